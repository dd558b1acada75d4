"""Check the fields of TRL's and peft's configurations that a recipe sets under `trl` and `peft`, when it is read.

The fields are read from the source of the libraries, because importing these needs torch and many seconds.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from training.contract.records import RecipeError, did_you_mean
from training.posttrain.adapter_settings import check_adapters, check_matched
from training.posttrain.model_modules import modules_of
from training.pretrain.models.shape import ModelConfig

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

# RESERVED: fields of TRL that a field of the recipe sets, with that field's name. REFUSED: beginnings of the names of
# fields that the pipeline decides, that would send data away or run foreign code, or whose adapters cannot be merged.
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
    "lr_scheduler_type": "schedule",
    "lr_scheduler_kwargs": "schedule",
    "warmup_steps": "warmup_fraction",
    "warmup_ratio": "warmup_fraction",
}
REFUSED = {
    "trl": (
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
        "eval_",
        "per_device_eval_",
        "do_",
        "load_best_model_at_end",
        "metric_for_best_model",
        "auto_find_batch_size",
        "local_rank",
        "ddp_",
        "fsdp",
        "deepspeed",
        "accelerator_config",
        "parallelism_config",
        "eos_token",
        "pad_token",
        "dataset_text_field",
        "torch_compile",
        "gradient_checkpointing_kwargs",
        "activation_checkpointing_kwargs",
    ),
    "peft": (
        "task_type",
        "peft_type",
        "peft_version",
        "auto_mapping",
        "base_model_name_or_path",
        "revision",
        "inference_mode",
        "runtime_config",
        "megatron_",
        "layer_replication",
        "alora_",
        "arrow_",
        "loftq_",
        "use_qalora",
        "qalora_",
        "ensure_weight_tying",
    ),
}
QUANTIZED = {"quantization_config", "load_in_4bit", "load_in_8bit", "loftq_config", "use_qalora"}
"""Fields, also of `model_init_kwargs`, by which QLoRA and its relatives are asked for."""
WORDS: dict[str, dict[str, tuple[str, ...]]] = {  # of texts that TRL looks at when it trains
    "SFTConfig": {"loss_type": ("nll", "dft"), "truncation_mode": ("keep_start", "keep_end")},
    "DPOConfig": {
        "truncation_mode": ("keep_start", "keep_end"),
        "f_divergence_type": ("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"),
    },
    "KTOConfig": {"loss_type": ("kto", "apo_zero_unpaired")},
    "GRPOConfig": {
        "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "luspo", "sapo", "vespo"),
        "importance_sampling_level": ("token", "sequence"),
        "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    },
}
_LORA = "tuners/lora/config.py"
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


def check_passed_through(section: Any, config: str, *, where: str, shape: ModelConfig | None = None) -> None:
    """Check the fields `trl` and `peft` of a section of the recipe against the classes `config` of TRL and LoraConfig.

    Raise RecipeError for a field that the class does not have, a value of a wrong type, or a field that the pipeline or
    another field of the section decides. If the libraries are not installed here, only the stage checks the fields,
    when it runs. Adapters that cannot be merged and saved, or have no effect on the model of this shape, are refused
    too; None: the shape is not known here.
    """
    _check_fields(section.peft, "LoraConfig", f"{where}.peft", {})
    if isinstance(rank := section.peft.get("r", 1), int) and rank < 1:
        raise RecipeError(f"{where}.peft.r={rank} must be at least 1; peft: {{}} trains every weight")
    tied = None if shape is None else shape.tied_embeddings
    check_adapters(section.peft, where=f"{where}.peft", tied=tied, has_head=config != "RewardConfig")
    if section.peft and shape is not None and (modules := modules_of(shape)):
        check_matched(section.peft, modules | {"score"}, where=f"{where}.peft")
    own = {field: name for field, name in RESERVED.items() if hasattr(section, name)}
    _check_fields(section.trl, config, f"{where}.trl", own)


def shape_trained(recipe: Recipe) -> ModelConfig | None:
    """Return the shape of the model that a recipe trains or adopts; None if the adopted one is not on this machine."""
    if recipe.adopt.model:
        from training.data.tokens.adopted_folder import folder_here

        if folder_here(recipe.adopt.model, field="model") is None:
            return None
    return recipe.model.shape(vocab_size=recipe.tokenizer.vocabulary)


def _check_fields(passed: Mapping[str, Any], config: str, where: str, reserved: Mapping[str, str]) -> None:
    section, _, library = where.partition(".")
    refused = REFUSED[library]
    known = (fields_of(config) if passed else None) or {}
    for field, value in passed.items() if known else ():
        place = f"{where}.{field}"
        if field in QUANTIZED or (isinstance(value, dict) and value.keys() & QUANTIZED):
            raise RecipeError(
                f"{place}: not passed through; QLoRA's quantized weights need a GPU and bitsandbytes, and adapters are"
                " merged into unquantized weights here"
            )
        if field not in known:
            allowed = sorted(name for name in known if name not in reserved and not name.startswith(refused))
            meant = did_you_mean(field, allowed)
            raise RecipeError(f"{place}: {config} has no such field;{meant} there are {', '.join(allowed)}")
        if field in reserved:
            raise RecipeError(f"{place}: set {section}.{reserved[field]} instead")
        if field.startswith(refused):
            raise RecipeError(f"{place}: not passed through; the pipeline decides it")
        if not any(_is_written(kind, value) for kind in known[field]):
            raise RecipeError(f"{place}: expected {' or '.join(known[field])}, got {value!r}{_advice(value)}")


def _is_written(kind: str, value: Any) -> bool:
    if isinstance(value, bool) and kind in ("int", "float"):
        return False
    if kind[0] in "'\"" and "[" not in kind:  # one of the words of a Literal; `pissa_niter_[…]` is a form
        return repr(value) == kind
    return kind in ("Any", "object") or isinstance(value, _WRITTEN.get(kind, (str,)))


def _advice(value: Any) -> str:
    is_number = isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value)
    return "; YAML reads a number with e as text unless it has a point and a sign, as in 1.0e-8" if is_number else ""


@lru_cache
def fields_of(name: str) -> dict[str, tuple[str, ...]] | None:
    """Return the fields of a configuration class of TRL or peft with the types they accept.

    None if the library is not installed.
    """
    if name == "LoraConfig":
        places = [("peft", "config.py", "PeftConfigMixin"), ("peft", "config.py", "PeftConfig"), ("peft", _LORA, name)]
    else:
        places = [
            ("transformers", "training_args.py", "TrainingArguments"),
            ("trl", "trainer/base_config.py", "_BaseConfig"),
            ("trl", f"trainer/{name.removesuffix('Config').lower()}_config.py", name),
        ]
    found: dict[str, tuple[str, ...]] = {}
    for library, path, cls in places:
        spec = importlib.util.find_spec(library)
        if spec is None or spec.origin is None:
            return None
        folder = Path(spec.origin).parent
        found |= _declared(folder / path, cls)
        for words_of in ("training_args.py", "trainer_utils.py") if library == "transformers" else ():
            words = _words(folder / words_of)
            found |= {field: words[kinds[0]] for field, kinds in found.items() if kinds[0] in words}
    return found | {field: tuple(map(repr, words)) for field, words in WORDS.get(name, {}).items() if field in found}


def _words(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the words of each enumeration of texts that a source file declares, as they are written in Python."""
    classes = (node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.ClassDef))
    return {
        one.name: tuple(repr(line.value.value) for line in one.body if _is_word(line))
        for one in classes
        if any(ast.unparse(base) == "ExplicitEnum" for base in one.bases)
    }


def _is_word(line: ast.stmt) -> TypeGuard[Any]:
    return isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)


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
        return [ast.unparse(one) for one in inside] if outer == "Literal" else [outer]
    return [ast.unparse(annotation)]
