"""Export the model in the transformers layout of one of the families, and read such a model back.

Writing and reading need torch and safetensors only. `compare` loads transformers, because equal logits prove the
export.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.contract.artifact import write_json
from training.contract.job import DataError
from training.contract.model_files import INDEX, WEIGHTS, check_tied, loaded, open_weights, tensor_of
from training.contract.parts.outside import FROM
from training.contract.records import RecipeError, write_record
from training.contract.tokenizer_files import write_tokenizer
from training.pretrain.models.account import FILE_BYTES, FP32
from training.pretrain.models.attention import one_document
from training.pretrain.models.config_json import OWN_NAMES, OWN_TYPE, read_either_config, renamed
from training.pretrain.models.decoder import Block, Decoder, meta_decoder
from training.pretrain.models.families import family_of, find_family, inexpressible
from training.pretrain.models.layer_views import layer_views
from training.pretrain.models.rotary_json import written_rotary
from training.pretrain.models.shape import ModelConfig
from training.pretrain.tensor_files import save_tensors

TOLERANCE = 1e-4  # largest difference of fp32 logits


def hugging_face_config(
    config: ModelConfig, *, eos_id: int, bos_id: int | None = None, pad_id: int | None = None
) -> dict[str, Any]:
    """Return the content of `config.json`. `bos_id` and `pad_id` are None when the tokenizer has no such token.

    Raise RecipeError with the reasons if no class of transformers can run the model.
    """
    if reasons := inexpressible(config):
        raise RecipeError(f"model: no class of transformers has: {'; '.join(reasons)}")
    name = family_of(config)
    family = find_family(config)
    result = {
        "architectures": [f"{family.class_name}ForCausalLM"],
        "model_type": name,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.norm_epsilon,
        **written_rotary(config),
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": False,
        "bos_token_id": bos_id,
        "eos_token_id": eos_id,
        "pad_token_id": pad_id,
        "use_cache": True,
        "dtype": "float32",
    }
    return result | family.fields(config)


def hugging_face_views(model: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Yield transformers' name of every weight, with a view of the part of this model's parameters that holds it."""
    own = model.config.own_layers
    names = layer_views if own is None or own.names is None else own.names
    yield "model.embed_tokens.weight", model.embedding
    for number, block in enumerate(model.blocks):
        assert isinstance(block, Block), "a model that is exported has all its layers"
        for name, view in names(block):
            yield f"model.layers.{number}.{name}", view
    yield "model.norm.weight", model.norm
    if not model.config.tied_embeddings:
        yield "lm_head.weight", model.head


def write_model(
    model: Decoder, folder: Path, *, tokenizer: Path, eos_id: int, own_layout: bool = False
) -> tuple[str, ...]:
    """Write a model that is whole in memory; see `write_weights`."""
    weights = (*model.named_parameters(), *model.named_buffers())
    return write_weights(model.config, weights, folder, tokenizer=tokenizer, eos_id=eos_id, own_layout=own_layout)


@torch.no_grad()
def write_weights(
    shape: ModelConfig,
    weights: Iterable[tuple[str, Tensor]],
    folder: Path,
    *,
    tokenizer: Path,
    eos_id: int,
    own_layout: bool = False,
    file_bytes: int = FILE_BYTES,
) -> tuple[str, ...]:
    """Write weights, configuration and the tokenizer's files into `folder` and return the names of the files.

    `weights` are all weights and buffers of a Decoder of this shape with their names, in its order. They are taken one
    after the other and written into files of up to `file_bytes`, so that no more than one file's are in memory.

    `own_layout` is for a model that no class of transformers can run: weights have this package's names, and
    `config.json` has its own form, which `read_model` reads and transformers refuses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copied = write_tokenizer(tokenizer, folder, max_length=shape.max_length)
    ids = special_ids(tokenizer, eos_id)
    if own_layout:
        named = renamed(_written_fields(shape), OWN_NAMES)
        config = {"model_type": OWN_TYPE, "shape": named, "eos_token_id": eos_id}
    else:
        config = hugging_face_config(
            shape, eos_id=eos_id, bos_id=ids.get("bos_token_id"), pad_id=ids.get("pad_token_id")
        )
    files = _write_files(weights, _parts(shape, own_layout=own_layout), folder, file_bytes=file_bytes)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {**ids, "do_sample": False})
    return (*files, "config.json", "generation_config.json", *copied)


def _written_fields(shape: ModelConfig) -> dict[str, Any]:
    """Return the fields of a shape; those of a family only if it names one, and never the place of its code."""
    fields = write_record(shape)
    parts = {name: {key: one for key, one in given.items() if key != FROM} for name, given in fields["parts"].items()}
    fields |= {"parts": {name: given for name, given in parts.items() if given}}
    return {name: value for name, value in fields.items() if value or name not in ("family", "parts")}


Parts = dict[str, list[tuple[str, Tensor]]]  # by weight: the names in the files, each with a view of a meta tensor


def _parts(shape: ModelConfig, *, own_layout: bool) -> Parts:
    """Return, for each weight of a Decoder that is written, its parts in the files."""
    skeleton = meta_decoder(shape)
    names = {id(tensor): name for name, tensor in own_views(skeleton)}
    parts: Parts = {name: [] for name in names.values()}
    for name, view in own_views(skeleton) if own_layout else hugging_face_views(skeleton):
        parts[names[id(view if view._base is None else view._base)]].append((name, view))
    return parts


def _write_files(
    weights: Iterable[tuple[str, Tensor]], parts: Parts, folder: Path, *, file_bytes: int
) -> tuple[str, ...]:
    """Write the parts of each weight, and an index if they are in several files; return the files' names."""
    sizes = {name: FP32 * view.numel() for some in parts.values() for name, view in some}
    place, count, room = dict.fromkeys(sizes, 1), 1, file_bytes
    for name, size in sizes.items():
        if size > room and room < file_bytes:
            count, room = count + 1, file_bytes
        place[name], room = count, room - size
    last = {number: name for name, number in place.items()}
    waiting: dict[str, Tensor] = {}
    for weight, whole in weights:
        whole = whole.contiguous()
        for name, view in parts[weight]:
            part = whole.as_strided(view.shape, view.stride(), whole.storage_offset() + view.storage_offset())
            waiting[name] = _written(name, part).cpu()
            if last[place[name]] == name:
                save_tensors(waiting, folder / _file_name(place[name], count))
                waiting = {}
    files = tuple(_file_name(number, count) for number in last)
    if count == 1:
        return files
    listed = {name: _file_name(number, count) for name, number in place.items()}
    write_json(folder / INDEX, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": listed})
    return (*files, INDEX)


def _file_name(number: int, count: int) -> str:
    return WEIGHTS if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def own_views(model: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight and every router's bias with this package's name for it."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def _written(name: str, view: Tensor) -> Tensor:
    """Return a contiguous copy of a weight for the file; heads and head width of attention weights become one axis."""
    return view.reshape(_written_shape(name, view)).detach().clone().contiguous()


def _written_shape(name: str, view: Tensor) -> tuple[int, ...]:
    if name.endswith(".bias"):
        return (view.numel(),)
    if ".self_attn." in name and view.dim() > 1:
        return view.numel() // view.shape[-1], view.shape[-1]
    return tuple(view.shape)


def read_shape(folder: Path) -> ModelConfig:
    """Return the shape of the model in a folder of either layout. Raise DataError if it cannot be read."""
    return read_either_config(_config(folder))


def _config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text("utf-8"))


@torch.no_grad()
def read_model(folder: Path) -> Decoder:
    """Load the model in a folder of either layout; see `read_weights` for the errors."""
    model = Decoder(read_either_config(_config(folder)))
    own = dict(own_views(model))
    for name, weight in read_weights(model.config, folder):
        own[name].copy_(weight)
    return model


@torch.no_grad()
def read_weights(shape: ModelConfig, folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and tensor of each weight and buffer of the decoder that a model folder holds, one at a time.

    The folder has transformers' layout or this package's, with weights in one safetensors file, or in several with an
    index. DataError is raised if a weight is missing, has another shape, is unknown to this model or is not finite.
    """
    data = _config(folder)
    parts = _parts(shape, own_layout=data.get("model_type") == OWN_TYPE)
    with open_weights(folder) as weights:
        if shape.tied_embeddings:
            check_tied(folder, weights)
        known = {name for some in parts.values() for name, _ in some}
        unknown = [name for name in weights if name not in known and not _is_repeated(name, shape)]
        if unknown:
            raise DataError(f"{folder}: {unknown[0]} is no weight of a {data['model_type']} with this config.json")
        for name, view in (one for some in parts.values() for one in some):
            wanted = _written_shape(name, view)
            given = tuple(weights[name].get_slice(name).get_shape()) if name in weights else "missing"
            if given != wanted:
                raise DataError(f"{folder}: {name} is {given}, the configuration wants {wanted}")
        for weight, tensor in own_views(meta_decoder(shape)):
            whole = torch.zeros(tensor.shape)  # a router's bias, which only the own layout has, is 0
            for name, view in parts[weight]:
                part = whole.as_strided(view.shape, view.stride(), view.storage_offset())
                part.copy_(tensor_of(folder, weights, name).view(view.shape))
            yield weight, whole


def _is_repeated(name: str, config: ModelConfig) -> bool:
    """Whether older files store this tensor although it follows from others, such as a tied head."""
    return (name == "lm_head.weight" and config.tied_embeddings) or name.endswith("rotary_emb.inv_freq")


def special_ids(tokenizer: Path, eos_id: int) -> dict[str, int]:
    """Return the ids of the tokens that begin, end and pad a text, by their fields; those that there are."""
    begin, pad = _special_id(tokenizer, "bos_token"), _special_id(tokenizer, "pad_token")
    ids = {"bos_token_id": begin, "eos_token_id": eos_id, "pad_token_id": pad}
    return {name: number for name, number in ids.items() if number is not None}


def _special_id(tokenizer: Path, name: str) -> int | None:
    """Return the id of the token with this role in `tokenizer_config.json`; None if no token has it."""
    path = tokenizer / "tokenizer_config.json"
    token = json.loads(path.read_text("utf-8")).get(name) if path.exists() else None
    if isinstance(token, dict):
        token = token.get("content")
    return token_ids(tokenizer).get(token) if token else None


def token_ids(tokenizer: Path) -> dict[str, int]:
    """Return the id of every token in `tokenizer.json`, including added tokens."""
    data = json.loads((tokenizer / "tokenizer.json").read_text("utf-8"))
    return data["model"]["vocab"] | {token["content"]: token["id"] for token in data.get("added_tokens", [])}


def is_installed(package: str) -> bool:
    """Whether a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def require_transformers() -> None:
    """Raise RecipeError if transformers is missing, before training rather than after it."""
    if not is_installed("transformers"):
        raise RecipeError(
            "base_model: the export is checked with transformers, which is not installed; pip install transformers"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LogitDifference:
    """The difference between transformers' logits and the trainer's, both in fp32, over `positions` positions."""

    largest_difference: float
    differing_argmax: int
    positions: int

    @property
    def is_equal(self) -> bool:
        """Whether the exported model equals the trained one, within `TOLERANCE`."""
        return self.largest_difference <= TOLERANCE and self.differing_argmax == 0


@torch.no_grad()
def difference(ours: Tensor, folder: Path, tokens_BL: Tensor, *, offload_folder: Path | None = None) -> LogitDifference:
    """Run the exported model in transformers and compare its logits with the trained model's, `ours` `[B, L, V]`.

    With `offload_folder`, only one layer at a time is in memory: transformers leaves the weights in the model's files,
    and writes those that it must rearrange, such as the experts of a layer, into this folder. A model in the package's
    own layout is read back by this package instead, and whole; with `offload_folder` on the CPU.
    """
    if json.loads((folder / "config.json").read_text("utf-8"))["model_type"] == OWN_TYPE:
        tokens = tokens_BL if offload_folder is None else tokens_BL.cpu()
        back = read_model(folder).to(tokens.device)
        theirs = back.logits(tokens, one_document(tokens, dtype=torch.float32, window=back.config.window))
    else:
        theirs = _transformers_logits(folder, tokens_BL, offload_folder)
    theirs = theirs.to(ours.device)
    return LogitDifference(
        largest_difference=(theirs - ours).abs().max().item(),
        differing_argmax=int((theirs.argmax(-1) != ours.argmax(-1)).sum()),
        positions=tokens_BL.numel(),
    )


def _transformers_logits(folder: Path, tokens_BL: Tensor, offload_folder: Path | None) -> Tensor:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    placed: dict[str, Any] = {"device_map": {"": "disk"}, "offload_folder": offload_folder} if offload_folder else {}
    model = loaded(AutoModelForCausalLM, folder, dtype=torch.float32, **placed)
    model = model if placed else model.to(tokens_BL.device)
    return model.eval()(tokens_BL, use_cache=False).logits
