"""Name the modules of a model from the source of transformers, because importing it needs torch and many seconds."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from training.pretrain.models.families import family_of, find_family
from training.pretrain.models.shape import ModelConfig

NO_MODULES = ("Buffer", "Parameter")


def modules_of(shape: ModelConfig) -> frozenset[str] | None:
    """Return the dotted module names of transformers' class for a model shape; None if the class is not installed.

    A class that chooses between two modules of one name is taken to have what is inside of both.
    """
    spec, name = importlib.util.find_spec("transformers"), family_of(shape).removesuffix("_text")
    if spec is None or spec.origin is None:
        return None
    source = Path(spec.origin).parent / "models" / name / f"modeling_{name}.py"
    return _modules(source, find_family(shape).class_name, shape.layers) if source.is_file() else None


@lru_cache
def _modules(source: Path, family: str, layers: int) -> frozenset[str] | None:
    classes = {node.name: node for node in ast.parse(source.read_text("utf-8")).body if isinstance(node, ast.ClassDef)}
    model = next((f"{family}{end}" for end in ("ForCausalLM", "LMHeadModel") if f"{family}{end}" in classes), "")
    return frozenset(_inside(classes, model, layers)) if model else None


def _inside(classes: Mapping[str, ast.ClassDef], name: str, layers: int) -> Iterator[str]:
    """Yield the dotted names of the modules that a class of transformers has; `nn.ModuleList` is one for each layer."""
    for base in (ast.unparse(one) for one in classes[name].bases):
        yield from _inside(classes, base, layers) if base in classes else ()
    for line in ast.walk(classes[name]):
        if not (isinstance(line, ast.Assign) and ast.unparse(line.targets[0]).startswith("self.")):
            continue
        own = ast.unparse(line.targets[0]).removeprefix("self.")
        made = [ast.unparse(one.func) for one in ast.walk(line.value) if isinstance(one, ast.Call)]
        if "nn.ModuleList" in made:
            places = [f"{own}.{number}" for number in range(layers)]
        elif any(_is_class(one) for one in made) or "ACT2FN" in ast.unparse(line.value):
            places = [own]
        else:
            continue
        yield from {own, *places}
        inner = {module for one in made if one in classes for module in _inside(classes, one, layers)}
        yield from (f"{place}.{module}" for place in places for module in inner)


def _is_class(called: str) -> bool:
    last = called.rpartition(".")[2]
    return last[0].isupper() and last not in NO_MODULES
