"""Check the fields of TRL's configurations that a recipe sets under `trl`, when the recipe is read.

The fields are read from the source of the libraries, because importing these needs torch and many seconds.
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

# RESERVED: fields of TRL that a field of the recipe sets, with that field's name. REFUSED: beginnings of the names of
# fields that the pipeline decides, or that would send data away or run foreign code.
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
# Python types that a YAML value may have for an annotated type; values of other types (enums, classes) are texts.
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
    """Return the recipe's `trl` fields after checking them against TRL's class `name`.

    Raise RecipeError for a field that the class does not have, a value of a wrong type, or a field that the pipeline or
    another field of the recipe decides. If TRL is not installed here, only the stage checks the fields, when it runs.
    """
    known = (fields_of(name) if passed else None) or {}
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
    """Return the fields of a configuration class of TRL with the types they accept, or None if TRL is not installed."""
    trl, transformers = (importlib.util.find_spec(library) for library in ("trl", "transformers"))
    if trl is None or transformers is None:
        return None
    assert trl.origin is not None and transformers.origin is not None
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
    """Return the fields that a dataclass declares in its source and accepts as arguments, with their types."""
    tree = ast.parse(path.read_text("utf-8"))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == cls)
    return {
        node.target.id: tuple(_kinds(node.annotation))
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not _is_computed(node)
    }


def _is_computed(node: ast.AnnAssign) -> bool:
    keywords = node.value.keywords if isinstance(node.value, ast.Call) else []
    return any(word.arg == "init" and ast.unparse(word.value) == "False" for word in keywords)


def _kinds(annotation: ast.expr) -> list[str]:
    """Return the types in an annotation by name: ["float", "None"] for `float | None`, ["list"] for `list[str]`."""
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
