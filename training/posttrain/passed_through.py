"""Which fields of TRL's configurations a recipe may set, checked when the recipe is read.

The libraries' own sources are read, not imported: importing them takes torch and many seconds.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from training.records import RecipeError

# What this project decides by its own fields, and what would send data away or run foreign code.
RESERVED = {
    "learning_rate": "learning_rate",
    "num_train_epochs": "epochs",
    "max_steps": "epochs",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "batch_size",
    "max_length": "max_length",
    "max_completion_length": "max_new_tokens",
    "num_generations": "num_generations",
    "beta": "beta",
    "seed": "seed",
    "data_seed": "seed",
    "bf16": "precision",
    "fp16": "precision",
    "warmup_steps": "warmup_fraction",
}
REFUSED = (
    "output_dir",
    "push_to_hub",
    "hub_",
    "report_to",
    "trust_remote_code",
    "resume_from_checkpoint",
    "use_vllm",
    "packing",
    "use_cpu",
    "save_",
    "train_sampling_strategy",
    "dataset_kwargs",
    "assistant_only_loss",
    "completion_only_loss",
    "model_init_kwargs",
    "ref_model_init_kwargs",
    "chat_template_path",
    "vllm_",
    "trackio_",
)
# What a value in YAML may be for an annotation; anything else there (an enum, a class) is written as text.
_WRITTEN = {
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "list": (list, tuple, str),  # of one
    "tuple": (list, tuple),
    "dict": (dict,),
    "None": (type(None),),
}


def check_passed_through(name: str, passed: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """The `trl` fields, when the class `name` of TRL has them, with values of their types, and no other field of the
    recipe decides them; else RecipeError. Without TRL on this machine names and types are checked by the stage alone.
    """
    known = fields_of(name) if passed else None
    for field, value in passed.items() if known else ():
        place = f"{where}.trl.{field}"
        if field not in known:
            raise RecipeError(f"{place}: {name} has no such field; there are {', '.join(sorted(_allowed(known)))}")
        if field in RESERVED:
            raise RecipeError(f"{place}: set {where}.{RESERVED[field]} instead")
        if field.startswith(REFUSED):
            raise RecipeError(f"{place}: not passed through; the pipeline decides it")
        if not any(_is_written(kind, value) for kind in known[field]):
            raise RecipeError(f"{place}: expected {' or '.join(known[field])}, got {value!r}{_advice(value)}")
    return dict(passed)


def _allowed(known: Mapping[str, Any]) -> list[str]:
    return [name for name in known if name not in RESERVED and not name.startswith(REFUSED)]


def _is_written(kind: str, value: Any) -> bool:
    if isinstance(value, bool) and kind in ("int", "float"):
        return False
    return kind in ("Any", "object") or isinstance(value, _WRITTEN.get(kind, (str,)))


def _advice(value: Any) -> str:
    is_number = isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value)
    return "; YAML reads a number with e as text unless it has a point and a sign, as in 1.0e-8" if is_number else ""


@lru_cache
def fields_of(name: str) -> dict[str, tuple[str, ...]] | None:
    """Each field of a configuration class of TRL, with the kinds of values it takes; None when TRL is not here."""
    trl, transformers = (importlib.util.find_spec(library) for library in ("trl", "transformers"))
    if trl is None or transformers is None:
        return None
    trainer = Path(trl.origin).parent / "trainer"
    found: dict[str, tuple[str, ...]] = {}
    for path, cls in (
        (Path(transformers.origin).parent / "training_args.py", "TrainingArguments"),
        (trainer / "base_config.py", "_BaseConfig"),
        (trainer / f"{name.removesuffix('Config').lower()}_config.py", name),
    ):
        found |= _declared(path, cls)
    return found


def _declared(path: Path, cls: str) -> dict[str, tuple[str, ...]]:
    """The fields that a dataclass declares in its source and takes as arguments."""
    tree = ast.parse(path.read_text("utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls)
    lines = [node for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    return {node.target.id: tuple(_kinds(node.annotation)) for node in lines if not _is_computed(node)}


def _is_computed(node: ast.AnnAssign) -> bool:
    keywords = node.value.keywords if isinstance(node.value, ast.Call) else []
    return any(word.arg == "init" and ast.unparse(word.value) == "False" for word in keywords)


def _kinds(annotation: ast.expr) -> list[str]:
    """`float | None` as its parts; of `list[str]` and the like the outer name."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return _kinds(ast.parse(annotation.value, mode="eval").body)
    if isinstance(annotation, ast.BinOp):
        return [*_kinds(annotation.left), *_kinds(annotation.right)]
    if isinstance(annotation, ast.Subscript):
        outer = ast.unparse(annotation.value).rpartition(".")[2]
        inside = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if outer in ("Optional", "Union"):
            return [kind for one in inside for kind in _kinds(one)] + ["None"] * (outer == "Optional")
        return ["str"] if outer == "Literal" else [outer]
    return [ast.unparse(annotation)]
