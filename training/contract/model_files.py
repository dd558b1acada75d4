"""The files of a model folder in the transformers layout: those that a loader uses, their digest, and the weights.

Whatever opens weights does so here: transformers' classes by `loaded`, and this project's decoder by `open_weights`
(training/pretrain/models/export.py). Only opening imports safetensors.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from training.contract.artifact import digest_of_files, find, manifest
from training.contract.job import DataError

CONFIG_FILE: Final = "config.json"
WEIGHTS: Final = "model.safetensors"
INDEX: Final = f"{WEIGHTS}.index.json"  # which file each weight is in, if there are several
MOST = 3.4028234663852886e38  # the largest number of 32 bits
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
UNREAD = ".attention.masked_bias"  # end of a name in files of GPT-NeoX: minus infinity in fp16, which no class reads
TIED = {"lm_head.weight": "model.embed_tokens.weight"}  # weights of a file that repeat another one, in tied models

USUAL_NAMES = {
    "gpt2": {
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_positions": "max_position_embeddings",
    }
}  # by model_type, of fields that most families name otherwise

_EXPERT = re.compile(r"(.*\.experts\.)(\d+)(\..*)")  # the name of a weight of one expert, in three pieces


def usually_named(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `config.json` by the names that most families have."""
    names = USUAL_NAMES.get(str(config.get("model_type")), {})
    return {names.get(name, name): value for name, value in config.items()}


def model_files(folder: Path) -> list[str]:
    """Return the paths in a model folder of all files that a loader may use, those of subfolders included.

    Hidden folders, such as those of git and of the hub's downloads, are left out: no loader reads them. A link to a
    file counts as this file, because the hub's cache consists of such links. Raise DataError for a link to a folder,
    and for a pipe, a socket or a device.
    """
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(place, name) for name in (*folders, *names)):
            if path.name in folders and path.is_symlink():
                raise DataError(f"{path}: is a link to a folder; put the folder itself there")
            if path.name in names and not path.is_file():
                raise DataError(f"{path}: is no file that can be read; a model folder holds files and folders alone")
        found += [os.path.relpath(os.path.join(place, name), folder) for name in names]
    return sorted(found)


def model_digest(folder: Path) -> str:
    """Return the digest of a model: that of its files, or the artifact's if the folder is one with a model inside.

    What an `artifact.json` beside the model's own files says is not believed. Each process reads the files once, and
    again only when the size or time of a file has changed. Raise DataError if the folder holds no model.
    """
    if (folder / CONFIG_FILE).is_file():
        files = ((name, (folder / name).stat()) for name in model_files(folder))
        return _files_digest(folder, tuple((name, found.st_size, found.st_mtime_ns) for name, found in files))
    if (made := find(folder)) is None:
        raise DataError(f"{folder}: no artifact and no model is there; artifact.json or config.json is needed")
    return made.digest


@lru_cache(maxsize=64)
def _files_digest(folder: Path, files: tuple[tuple[str, int, int], ...]) -> str:
    return digest_of_files(manifest(folder, [name for name, _, _ in files]))


def weight_files(folder: Path) -> list[str]:
    """Return the names of the files with a model folder's weights: one, or those that its index names.

    Raise DataError if there is none, or if a loader would read anything else than safetensors files of the folder
    itself. Pickled weights are refused because opening them runs code.
    """
    if other := _json(folder / CONFIG_FILE).get("transformers_weights"):
        raise DataError(
            f"{folder}: {CONFIG_FILE}: transformers_weights names {other!r}, which some loaders would read instead of"
            f" {WEIGHTS}; remove this field"
        )
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    if not (folder / INDEX).is_file():
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
        advice = f"; {pickled[0]} is a pickle, which is never read: save it again as safetensors" if pickled else ""
        raise DataError(f"{folder}: no {WEIGHTS}{advice}")
    names = sorted(set(_placed(folder).values()))
    for name in names:
        if Path(name).name != name or Path(name).suffix != ".safetensors":
            raise DataError(f"{folder}: {INDEX} names {name!r}; it may only name safetensors files of this folder")
        if not (folder / name).is_file():
            raise DataError(f"{folder}: {INDEX} names {name}, and there is no such file; copy the whole model")
    return names


def _placed(folder: Path) -> dict[str, str]:
    """Return the file of each weight by the folder's index; empty if all weights are in one file."""
    if (folder / WEIGHTS).is_file():
        return {}
    index = _json(folder / INDEX)
    placed = index.get("weight_map")
    if (
        "metadata" not in index
        or not isinstance(placed, dict)
        or not all(isinstance(one, str) for one in placed.values())
    ):
        raise DataError(f"{folder}: {INDEX} must have `metadata`, and `weight_map` with the file of each weight")
    return placed


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: must be an object")
    return content


@contextmanager
def open_weights(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Map the name of each tensor of a model folder to the open safetensors file that holds it.

    Raise DataError if a file is no whole safetensors file, or if the index and the files differ.
    """
    from safetensors import SafetensorError, safe_open

    files = weight_files(folder)
    placed, found = _placed(folder), dict[str, Any]()
    with ExitStack() as opened:
        for file in files:
            try:
                tensors = opened.enter_context(safe_open(folder / file, framework="pt"))
            except SafetensorError as error:
                raise DataError(f"{folder / file}: {error}; copy the whole file again") from None
            for name in tensors.keys():  # noqa: SIM118 - safe_open is not a mapping
                if placed and placed.get(name) != file:
                    where = placed.get(name, "no file")
                    raise DataError(f"{folder}: {INDEX} places {name} in {where}, but {file} holds it; write it anew")
                found[name] = tensors
        if lacking := sorted(placed.keys() - found.keys()):
            raise DataError(f"{folder}: {INDEX} places {lacking[0]} in {placed[lacking[0]]}, which does not hold it")
        yield found


def number_of_weights(folder: Path) -> int:
    """Return how many numbers the tensors in the files of a model folder have; a weight that is tied is there once."""
    with open_weights(folder) as weights:
        return sum(math.prod(weights[name].get_slice(name).get_shape()) for name in weights)


def tensor_of(folder: Path, weights: Mapping[str, Any], name: str) -> Any:
    """Return a tensor of a folder's open weights. Raise DataError for a value that is not finite in 32 bits."""
    return _measured(folder, weights, name)[0]


def _measured(folder: Path, weights: Mapping[str, Any], name: str) -> tuple[Any, float]:
    """Return what `tensor_of` does, and the largest magnitude in it."""
    tensor = weights[name].get_tensor(name)
    whole = tensor.float() if tensor.itemsize == 1 else tensor
    limits = whole.aminmax() if tensor.is_floating_point() and tensor.numel() else ()  # NaN if one value is NaN
    largest = max((abs(float(limit)) for limit in limits), default=0.0)
    if not largest <= MOST:
        raise DataError(f"{folder}: {name} has values that are not finite in 32 bits; take a sound copy of the model")
    return tensor, largest


def check_tied(folder: Path, weights: Mapping[str, Any], tied: Mapping[str, str] = TIED) -> None:
    """Raise DataError if a file repeats a weight with other values, although the configuration ties the two."""
    for name, original in tied.items():
        if {name, original} <= weights.keys() and not weights[name].get_tensor(name).equal(
            weights[original].get_tensor(original)
        ):
            raise DataError(
                f"{folder}: {name} differs from {original}, with which {CONFIG_FILE} ties it; set tie_word_embeddings"
                f" to false if the model was trained so, or remove {name}"
            )


def _check_experts(folder: Path, weights: Mapping[str, Any]) -> None:
    """Raise DataError unless the experts of each layer are numbered without a gap, and have equal shapes.

    transformers joins the experts of a layer that it finds, whatever their numbers are.
    """
    layers: dict[str, dict[str, dict[int, tuple[int, ...]]]] = {}
    for name in weights:
        if found := _EXPERT.fullmatch(name):
            shape = tuple(weights[name].get_slice(name).get_shape())
            layers.setdefault(found[1], {}).setdefault(found[3], {})[int(found[2])] = shape
    for layer, kinds in layers.items():
        for kind, shapes in kinds.items():
            for number in range(max(map(len, kinds.values()))):
                name = f"{layer}{number}{kind}"
                if number not in shapes:
                    raise DataError(f"{folder}: {name} is missing; each layer has all its experts, numbered from 0")
                if shapes[number] != shapes[0]:
                    raise DataError(f"{folder}: {name} is {shapes[number]}, the first expert's is {shapes[0]}")


def loaded(cls: Any, folder: Path, *, new_head: bool = False, part: tuple[int, int] = (0, 1), **options: Any) -> Any:
    """Return the model that transformers' class `cls` makes of a folder; `options` are those of `from_pretrained`.

    Raise DataError for a configuration that transformers refuses, and, with the name of the weight, unless the files
    hold exactly the model's weights, in its shapes and with finite values: transformers would draw what is missing at
    random. With `new_head`, only those outside the body may be missing or left over. `part` is (n, k): of k processes
    that open the model, this one reads the n-th share of all values.
    """
    from huggingface_hub.errors import StrictDataclassError
    from torch import finfo

    with open_weights(folder) as weights:
        _check_experts(folder, weights)
        names = sorted(name for name in weights if not name.endswith(UNREAD))[part[0] :: part[1]]
        largest = {name: _measured(folder, weights, name)[1] for name in names}
        try:
            model, told = cls.from_pretrained(
                folder,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are named below
                trust_remote_code=False,  # without it a person at a terminal is asked, and may say yes
                **options,
            )
        except StrictDataclassError as error:
            raise DataError(f"{folder}: {CONFIG_FILE}: {' '.join(str(error).split())}") from None
        if model.config.get_text_config().tie_word_embeddings and isinstance(model._tied_weights_keys, dict):
            check_tied(folder, weights, model._tied_weights_keys)
    body = f"{model.base_model_prefix}." if new_head else ""
    for problem in ("missing", "unexpected"):
        if names := sorted(name for name in told[f"{problem}_keys"] if name.startswith(body)):
            more = f", and {len(names) - 1} more" * (len(names) > 1)
            raise DataError(
                f"{folder}: {names[0]} is {problem}{more}; the weights must be those of a {type(model).__name__} with"
                f" this {CONFIG_FILE}"
            )
    holds = finfo(model.dtype).max
    if too_large := sorted(name for name, number in largest.items() if number > holds):
        raise DataError(
            f"{folder}: {too_large[0]} has values up to {largest[too_large[0]]:g}, and is opened as {model.dtype},"
            f" which ends at {holds:g}; set dtype in {CONFIG_FILE} to that of the weights"
        )
    for name, given, wanted in sorted(told["mismatched_keys"]):
        raise DataError(f"{folder}: {name} is {tuple(given)}, the configuration wants {tuple(wanted)}")
    return model
