"""Check a folder with a model in the transformers layout, without opening the model.

Quantized weights are those that torchao holds, as the stage `quantize` writes them.
"""

from __future__ import annotations

import importlib.util
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.contract.job import DataError
from training.contract.model_files import CONFIG_FILE, open_weights, weight_files
from training.generate.chat_template import check_template

FIELD = "quantization_config"
FORMS = {  # torchao's settings for each method of the recipe
    "int8": "Int8WeightOnlyConfig",
    "int8_activations": "Int8DynamicActivationInt8WeightConfig",
    "fp8": "Float8WeightOnlyConfig",
    "int4": "IntxWeightOnlyConfig",
}


def check_folder(folder: Path) -> None:
    """Raise DataError unless the folder holds a complete model in the transformers layout with safetensors weights.

    The chat template must be the one with which the model was trained. Adapters are refused because they need another
    model's folder.
    """
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise DataError(f"{folder}: no {name}; a model folder in the transformers layout is needed")
    if (folder / "adapter_config.json").exists():
        raise DataError(f"{folder}: adapter_config.json: an adapter is no model; merge it into its model and save that")
    weight_files(folder)
    check_tokenizer(folder)
    check_template(folder)


def check_tokenizer(folder: Path) -> None:
    """Raise DataError if a loader would take the tokenizer from another file than tokenizer.json."""
    path = folder / "tokenizer_config.json"
    named = json.loads(path.read_text("utf-8")).get("fast_tokenizer_files") if path.is_file() else None
    if named and named != ["tokenizer.json"]:
        raise DataError(
            f"{path}: fast_tokenizer_files names {named}, which some loaders would read instead of tokenizer.json;"
            " remove this field"
        )


def prepare_quantized(folder: Path) -> None:
    """Let transformers open a model folder if its weights are quantized; it needs nothing for others.

    Raise DataError if a weight lacks a part, or if torchao is not installed.
    """
    config = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
    if not config.get(FIELD):
        return
    check_quantized(folder, config)
    with open_weights(folder) as weights:
        forms = next(iter(weights.values())).metadata() or {}
        parts = {name: json.loads(form).get("_tensor_data_names", ()) for name, form in forms.items() if "." in name}
        wanted = {_part(name, part) for name, some in parts.items() for part in some}
        if lost := sorted(wanted - weights.keys()):
            raise DataError(f"{folder}: {lost[0]} is missing, a part of a quantized weight; copy the whole model again")
    admit_torchao()


def _part(weight: str, part: str) -> str:
    module, _, name = weight.rpartition(".")
    return f"{module}._{name}_{part}"


def check_quantized(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise DataError if a configuration says that the weights are quantized in a form that is not written here."""
    said = config.get(FIELD) or {}
    kind = said.get("quant_type") or {}
    made_by = (kind.get("default") or {}).get("_type") if isinstance(kind, dict) else None
    if said and (said.get("quant_method") != "torchao" or made_by not in FORMS.values()):
        raise DataError(
            f"{folder}: {CONFIG_FILE}: quantized weights ({FIELD}) of the form"
            f" {made_by or said.get('quant_method')!r:.60} are not read; take whole ones, or those of quantize.method"
        )


def admit_torchao() -> None:
    """Let transformers use torchao, which `model_folder` hides from it. Raise DataError if it is not installed."""
    if importlib.util.find_spec("torchao") is None:
        raise DataError("quantized weights: torchao is not installed; pip install 'pedigree[fp8]'")
    from transformers.utils import is_torchao_available

    before = logging.root.manager.disable
    logging.disable(logging.ERROR)  # torchao tells of each of its libraries for GPUs that it cannot load
    try:
        import torchao.prototype.safetensors.safetensors_support
        import torchao.quantization  # noqa: F401 - with the classes of its tensors
    finally:
        logging.disable(before)
    is_torchao_available.cache_clear()
