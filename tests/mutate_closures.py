"""`python -m tests.mutate_closures`: whether the guard of versions sees a change in every module of every closure.

In a copy of the packages, one constant or comparison of each module is changed, then changed back, but none of a check
that only refuses. The guard must name
that module, in every stage whose closure has it and in no other. `--number 10 --seed 3` takes ten modules by chance.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from tests.edited_copy import copied_sources
from tests.stage_versions import GUARDED, moved, state
from training.contract.identity.closure import Code, ParsedSources
from training.contract.identity.refusals import refusing_statements

OPPOSITE = {ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPPOSITE |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In}


def mutants(place: Path, *, number: int | None, seed: int) -> Iterator[tuple[str, str, list[str]]]:
    """Change one thing in each of `number` modules (None: of all) in a copy at `place`.

    Yields the module, what was changed in it, and what was wrong with the guard's answer, if anything.
    """
    chance, original = random.Random(seed), Code(all_parts=True)
    places = copied_sources(place)
    copy, record, kept = Code(places=places, all_parts=True), state(original), ParsedSources()
    names = sorted(record["modules"])
    for name in names if number is None else sorted(chance.sample(names, number)):
        path = place / name if "/" in name else copy.path(name)
        before = path.read_bytes()
        after, what = changed(before, chance) if path.suffix == ".py" else (before + b" ", "a byte more")
        path.write_bytes(after)
        yield name, what, list(_misses(name, Code(places=places, kept=kept, all_parts=True), original, record))
        path.write_bytes(before)


def _misses(name: str, code: Code, original: Code, record: dict[str, Any]) -> Iterator[str]:
    for stage in GUARDED.values():
        expected = [name] if name in original.digests(stage.module) else []
        said = moved(stage, code, record)
        if said != expected:
            yield f"stage {stage.name}: the guard says {said or 'nothing'}, not {expected or 'nothing'}"


def changed(source: bytes, chance: random.Random) -> tuple[bytes, str]:
    """A module's source with one of its constants or comparisons changed, and which; with one more if it has none."""
    tree = ast.parse(source)
    nodes = [node for node in _nodes(tree, refusing_statements(tree)) if isinstance(node, ast.Constant | ast.Compare)]
    if not nodes:
        return source + b"\nNEW = 1\n", "a constant more"
    node = chance.choice(nodes)
    before = ast.unparse(node)
    if isinstance(node, ast.Compare):
        node.ops[0] = OPPOSITE[type(node.ops[0])]()
    else:
        node.value = _other(node.value)
    return ast.unparse(tree).encode(), f"line {node.lineno}: {before[:40]} → {ast.unparse(node)[:40]}"


def _nodes(node: ast.AST, skipped: Collection[ast.AST]) -> Iterator[ast.AST]:
    """The nodes that are run, but for some, the pieces of formatted strings, and names of modules."""
    for child in ast.iter_child_nodes(node):
        is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if child not in skipped and not isinstance(child, ast.JoinedStr | ast.MatchValue) and not is_text:
            yield child
            yield from _nodes(child, skipped)


def _other(value: Any) -> Any:
    if isinstance(value, bool) or value is None or value is Ellipsis:
        return not value
    return value + {str: "x", bytes: b"x"}.get(type(value), 1)


def main() -> int:
    """Change every module, or `--number` of them; 1 when a change was not seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, help="of modules, drawn by chance; all without it")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = list(mutants(Path(place), number=options.number, seed=options.seed))
    for name, what, misses in found:
        print(f"{'seen  ' if not misses else 'MISSED'} {name}, {what}", *misses, sep="\n       " if misses else "")
    missed = sum(bool(misses) for _, _, misses in found)
    print(f"{len(found)} modules and files changed, {missed} changes missed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
