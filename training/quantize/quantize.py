"""The stage `quantize`: the recipe's last model with its matrices in 8 or 4 bits.

torchao rounds each weight to the nearest number that its scale can give, on the processor; no page is read for that.
The folder has the layout that transformers reads where torchao is installed: of each matrix the numbers, scales and
zero points as tensors of safetensors files, with their form in the files' headers. Other weights, the embeddings and
the head among them, are those of the model.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import training.generate.model_folder  # noqa: F401 - the first to import transformers: offline
from training.contract.artifact import write_json, written
from training.contract.identity import numerics
from training.contract.job import DataError, Gate, Job, Outcome, Work
from training.contract.model_files import (
    CONFIG_FILE,
    INDEX,
    loaded,
    model_files,
    number_of_weights,
    open_weights,
    tensor_of,
    weight_files,
)
from training.generate.checked_folder import FIELD, FORMS, admit_torchao
from training.pretrain.tensor_files import header, write_tensor
from training.quantize.settings import QuantizeRecipe

MODEL_FOLDER = "model"
LOOKED_AT = 64  # tokens of the row by which the written model is compared with that in memory


def run(job: Job, work: Work) -> Outcome:
    """Write the job's model with its matrices quantized, and check that it opens as it was."""
    from transformers import AutoModelForCausalLM

    recipe = job.settings_as(QuantizeRecipe, "quantize")
    (parent,) = job.inputs
    source, target = parent.file(MODEL_FOLDER), work.path / MODEL_FOLDER
    admit_torchao()  # before the numerics are noted: torchao's build is of them
    numerics.use_threads(job.run)
    numerics.note(job, work)
    check_groups(source, recipe)
    config = _config(recipe)
    model = loaded(AutoModelForCausalLM, source, dtype="auto", quantization_config=config).eval()
    count, files = write_quantized(model, source, target, config.to_dict())
    parameters, sizes = number_of_weights(source), [_bytes(folder) for folder in (target, source)]
    return Outcome(
        files=tuple(f"{MODEL_FOLDER}/{name}" for name in files),
        metrics={
            "parameters": parameters,
            "quantized_parameters": count,
            "weight_bytes": sizes[0],
            "parent_weight_bytes": sizes[1],
            "bits_per_parameter": 8 * sizes[0] / parameters,
        },
        gates=(_reopens(model, loaded(AutoModelForCausalLM, target, dtype="auto").eval()),),
        notes={
            "method": recipe.method,
            "parent": {"asset": parent.asset, "fingerprint": parent.fingerprint, "digest": parent.digest},
            "calibration": [],  # pages by id
        },
    )


def check_groups(folder: Path, recipe: QuantizeRecipe) -> None:
    """Raise DataError if the groups of a method do not divide the rows of a matrix in a model folder."""
    if recipe.group is None:
        return
    with open_weights(folder) as weights:
        for name in sorted(weights):
            shape = weights[name].get_slice(name).get_shape()
            if ".layers." in name and len(shape) == 2 and shape[1] % recipe.group:
                raise DataError(
                    f"quantize.group_size={recipe.group} does not divide the {shape[1]} columns of {name}; a divisor of"
                    " all of them is right"
                )


def _config(recipe: QuantizeRecipe) -> Any:
    """Return transformers' description of a method."""
    import torchao.quantization as torchao
    from transformers import TorchAoConfig

    cls = getattr(torchao, FORMS[recipe.method])
    if recipe.group is None:
        return TorchAoConfig(cls())
    four = torch.int4  # pyrefly: ignore[missing-attribute] - torch declares it in a loop
    return TorchAoConfig(cls(weight_dtype=four, granularity=torchao.PerGroup(recipe.group)))


def write_quantized(model: Any, source: Path, target: Path, config: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Write a quantized model with its source's other files; return the number of quantized weights, and the files.

    Raise DataError if no matrix of the model is quantized, or if transformers names one otherwise than the files.
    """
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.utils import TorchAOBaseTensor

    small: dict[str, Any] = {
        name: one for name, one in model.state_dict().items() if isinstance(one, TorchAOBaseTensor)
    }
    if not small:
        raise DataError(f"{source}: a {type(model).__name__} has no matrix that torchao quantizes; set method to none")
    target.mkdir(parents=True, exist_ok=True)
    placed: dict[str, str] = {}
    with open_weights(source) as weights:
        if other := sorted(small.keys() - weights.keys()):
            raise DataError(
                f"{source}: has no {other[0]}, which transformers quantizes; save the model by transformers"
            )
        forms = dict.fromkeys(weights, '{"_type": "Tensor"}')
        forms |= {name: flatten_tensor_state_dict({name: one})[1][name] for name, one in small.items()}
        forms = dict(sorted(forms.items())) | {"tensor_names": json.dumps(sorted(forms))}  # of all files, in each
        held: dict[int, list[str]] = {}  # names by open file, in the order of the files
        for name, opened in weights.items():
            held.setdefault(id(opened), []).append(name)
        for file, inside in zip(weight_files(source), held.values(), strict=True):
            tensors: dict[str, Tensor] = {}
            for name in inside:
                parts = flatten_tensor_state_dict({name: small[name]})[0] if name in small else {}
                tensors |= parts or {name: tensor_of(source, weights, name)}
            _write(tensors, forms, target / file)
            placed |= dict.fromkeys(tensors, file)
    names = model_files(source)
    for name in names:
        if name not in placed.values():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)
    config_file = json.loads((source / CONFIG_FILE).read_text("utf-8"))
    write_json(target / CONFIG_FILE, config_file | {FIELD: dict(config)})
    if (source / INDEX).is_file():
        write_json(target / INDEX, {"metadata": {"total_size": _bytes(target)}, "weight_map": placed})
    return sum(one.numel() for one in small.values()), names


def _write(tensors: Mapping[str, Tensor], forms: Mapping[str, str], path: Path) -> None:
    """Write a safetensors file whose header, unlike that of the library, has the same bytes each time."""
    ordered = sorted(tensors.items(), key=lambda named: (-named[1].itemsize, named[0]))
    with written(path) as stream:
        stream.write(header(ordered, forms))
        for _, tensor in ordered:
            write_tensor(stream, tensor)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _reopens(model: Any, opened: Any) -> Gate:
    """Return the gate that the written model, opened again, has the logits of that in memory, to the bit."""
    size, length = int(model.config.vocab_size), min(LOOKED_AT, int(model.config.max_position_embeddings))
    row = (torch.arange(length) * 7919 % size)[None]
    with torch.inference_mode():
        differs = float((model(row).logits - opened(row).logits).abs().max())
    return Gate(
        name="opens_as_written", passed=differs == 0, evidence={"largest_difference": differs, "tokens": length}
    )
