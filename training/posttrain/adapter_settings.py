"""Low-rank adapters (LoRA, arXiv 2106.09685) in the recipe: what can be merged, and what needs whole weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from training.contract.records import RecipeError

KEEPS_WEIGHTS = (True, False, "gaussian", "orthogonal")  # initializations that leave the model's own weights alone
NAMING = (  # fields that name modules
    "target_modules", "exclude_modules", "modules_to_save", "rank_pattern", "alpha_pattern", "target_parameters",
)  # fmt: skip
NEED_WHOLE = ("use_dora", "modules_to_save", "trainable_token_indices", "target_parameters")


def keeps_weights(peft: Mapping[str, Any]) -> bool:
    """Whether the initialization of the adapters leaves the model's own weights alone."""
    return peft.get("init_lora_weights", True) in KEEPS_WEIGHTS


def can_be_spread(peft: Mapping[str, Any]) -> bool:
    """Whether adapters, or none, can be trained beside weights that are divided among processes.

    Others are computed from whole weights, or are copies of whole layers.
    """
    return keeps_weights(peft) and not any(peft.get(field) for field in NEED_WHOLE)


EMBEDDINGS = ("model.embed_tokens", "transformer.wte", "gpt_neox.embed_in")  # by family
HEADS = ("lm_head", "embed_out")  # the last one in GPT-NeoX
ON_LAYERS = ("layers_to_transform", "layers_pattern")
ON_TIED = "the model's head is its embeddings (tied), "


def check_adapters(peft: Mapping[str, Any], *, where: str, tied: bool | None, has_head: bool = True) -> None:
    """Raise RecipeError for adapters that could not be trained, merged into the model and saved.

    `tied` says whether the model's head is its embeddings; None: not known here. `has_head` is false for a reward
    model, which has neither the head nor the tie.
    """
    _check_values(peft, where)
    trained = {name: _reached(peft, name, where) for name in ("target_modules", "modules_to_save")}
    if has_head and not set(HEADS).isdisjoint(trained["target_modules"]):
        raise RecipeError(
            f"{where}.target_modules={peft['target_modules']!r}: the head takes no adapters, as losses are computed"
            f" from its weights; to train it whole, name it in {where}.modules_to_save"
        )
    tokens = peft.get("trainable_token_indices")
    if isinstance(tokens, Mapping) and any(head.endswith(name) for head in HEADS for name in tokens):
        raise RecipeError(f"{where}.trainable_token_indices: rows of the head cannot be trained; name embed_tokens")
    if not tied or not has_head:
        return
    for name, places in trained.items():
        if places:
            raise RecipeError(
                f"{where}.{name}={peft[name]!r}: {ON_TIED}so neither can be changed without the other; leave"
                f" {' and '.join(place.rpartition('.')[2] for place in places)} out, or train every weight (peft: {{}})"
            )
    if tokens:
        raise RecipeError(f"{where}.trainable_token_indices: {ON_TIED}so rows of it cannot be trained alone")


def check_matched(peft: Mapping[str, Any], modules: Collection[str], *, where: str) -> None:
    """Raise RecipeError for a name or a pattern that fits none of the model's `modules`, as peft reads it."""
    for field in NAMING:
        for one in _named(peft, field):
            if one != "all-linear" and not any(_fitting(peft, field, one, modules, where)):
                raise RecipeError(f"{where}.{field}: the model has no module {one!r}, so it would have no effect")
    layers = peft.get("layers_to_transform")
    for number in () if layers is None else layers if isinstance(layers, (list, tuple)) else (layers,):
        if not any(f".{number}." in name for name in modules):
            raise RecipeError(f"{where}.layers_to_transform: the model has no layer {number!r}; they count from 0")


def _check_values(peft: Mapping[str, Any], where: str) -> None:
    start = peft.get("init_lora_weights", True)
    if start not in (*KEEPS_WEIGHTS, "olora", "pissa", "mica") and not re.fullmatch(
        r"pissa_niter_[1-9]\d*", str(start)
    ):
        raise RecipeError(
            f"{where}.init_lora_weights={start!r}: not one of true, false, gaussian, orthogonal, olora, pissa,"
            " pissa_niter_N, mica; others need data or gradients before the training"
        )
    ranks = peft.get("rank_pattern") or {}
    for place, rank in ranks.items():
        if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
            raise RecipeError(f"{where}.rank_pattern: {place}: {rank!r} must be a whole number, at least 1")
    if not 0 <= peft.get("lora_dropout", 0) < 1:
        raise RecipeError(f"{where}.lora_dropout={peft['lora_dropout']} must be at least 0 and below 1")
    if peft.get("lora_bias"):
        raise RecipeError(f"{where}.lora_bias: not every layer has a bias into which it could be merged; leave it out")
    if peft.get("fan_in_fan_out"):
        raise RecipeError(f"{where}.fan_in_fan_out: peft knows the layers whose weights are transposed; leave it out")
    on_layers = [name for name in ON_LAYERS if peft.get(name) is not None]
    if on_layers and not isinstance(peft.get("target_modules"), (list, tuple)):
        raise RecipeError(f"{where}.{on_layers[0]} needs a list of names in {where}.target_modules")
    if on_layers == ["layers_pattern"]:
        raise RecipeError(f"{where}.layers_pattern has an effect with {where}.layers_to_transform only")


def _reached(peft: Mapping[str, Any], field: str, where: str) -> list[str]:
    """Return which of embeddings and head a field names."""
    named = [one for one in _named(peft, field) if one != "all-linear"]
    return [place for one in named for place in _fitting(peft, field, one, (*EMBEDDINGS, *HEADS), where)]


def _named(peft: Mapping[str, Any], field: str) -> list[str]:
    given = peft.get(field) or ()
    return [given] if isinstance(given, str) else [str(one) for one in given]


def _fitting(peft: Mapping[str, Any], field: str, one: str, modules: Collection[str], where: str) -> Iterator[str]:
    """Yield the modules that a field's name or pattern fits, as peft reads it: whole, or by the ends of names."""
    is_whole = peft[field] == one and field in ("target_modules", "exclude_modules")
    is_pattern = is_whole or field.endswith("_pattern")
    name = one if is_pattern else re.escape(one)
    if field == "target_parameters":
        name = re.escape(one.rpartition(".")[0]) or ".*"  # a parameter without its module may be of any
    before = "" if is_whole else ".*" if field == "modules_to_save" else r"(?:.*\.)?"
    try:
        pattern = re.compile(f"{before}(?:{name})")
    except re.error as error:
        raise RecipeError(f"{where}.{field}={one!r} is no pattern: {error}") from None
    yield from filter(pattern.fullmatch, modules)
