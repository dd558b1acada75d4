"""`python -m tests.moved_modules REVISION`: record which modules were only moved since a revision.

A module was only moved if its statements are the same but for imports, docstrings and names of modules. It may have
been divided into several. Artifacts that the code of the revision made are then not called made by other code.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
from pathlib import Path

from tests.stage_versions import RECORD, state
from training.identity.closure import Code
from training.identity.made_by import MOVED

PROJECT = Path(__file__).parent.parent
Renamed = dict[str, str]  # old names of modules, and the new ones


def statements(source: str, renamed: Renamed) -> set[str]:
    """Return a module's top-level statements without imports and docstrings, with the new names of modules."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = renamed.get(node.value, node.value)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not isinstance(one, ast.Import | ast.ImportFrom) and not _is_text(one)]
    return {ast.dump(one) for one in tree.body}


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def moved_to(old: str, new: dict[str, str], renamed: Renamed, *, name: str) -> tuple[str, ...]:
    """Return the names of the modules in `new` that hold the code of the source `old`; none if it was changed.

    `name` is its name in `new`. `new` has, beside it, the modules that the revision did not have.
    """
    before, now = statements(old, renamed), statements(new[name], renamed)
    parts = [one for one in new if one != name and (its := statements(new[one], renamed)) and its <= before - now]
    whole = now.union(*(statements(new[one], renamed) for one in parts))
    return (name, *parts) if whole == before else ()


def main() -> None:
    """Add the modules that were moved since the revision to `moved.json`, and print those that were changed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision")
    revision = parser.parse_args().revision
    before = json.loads(_git("show", f"{revision}:{RECORD.relative_to(PROJECT)}"))["modules"]
    code = Code()
    now, renamed, added = state(code)["modules"], {}, []
    files = _git("ls-tree", "-r", "--name-only", revision).splitlines()
    for line in _git("diff", "--name-status", "-M", revision, "--", *code.places).splitlines():
        kind, *paths = line.split("\t")
        names = [path.removesuffix(".py").replace("/", ".") for path in paths]
        if kind.startswith("R"):
            renamed[names[0]] = names[1]
        elif kind == "A" and names[0] in now:
            added.append(names[0])
    rows = json.loads(MOVED.read_text("utf-8")) if MOVED.exists() else {}
    for name, digest in before.items():
        new = renamed.get(name, name)
        if "/" in name or (now.get(new) in (None, digest) and new == name):
            continue
        path = name.replace(".", "/")
        old = _git("show", f"{revision}:{path}.py" if f"{path}.py" in files else f"{revision}:{path}/__init__.py")
        sources = {one: code.source(one).decode() for one in (new, *added)}
        if places := moved_to(old, sources, renamed, name=new):
            rows.setdefault(name, {})[digest] = {place: now[place] for place in places}
        else:
            print(f"changed: {name}")
    MOVED.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", "utf-8")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main()
