"""Low-rank adapters (LoRA, arXiv 2106.09685) in the recipe: what can be merged, and what needs whole weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from training.contract.records import RecipeError

KEEPS_WEIGHTS = (True, False, "gaussian", "orthogonal")  # initializations that leave the model's own weights alone
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
    for field in ("target_modules", "exclude_modules", "modules_to_save", "rank_pattern", "alpha_pattern"):
        given = peft.get(field) or ()
        for one in [given] if isinstance(given, str) else map(str, given):
            if field == "modules_to_save":
                pattern = rf".*{re.escape(one)}"
            elif isinstance(given, str):
                pattern = one
            else:
                pattern = rf"(?:.*\.)?(?:{one if field.endswith('_pattern') else re.escape(one)})"
            if one != "all-linear" and not any(re.fullmatch(pattern, name) for name in modules):
                raise RecipeError(f"{where}.{field}: the model has no module {one!r}, so it would have no effect")


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
    """Return which of embeddings and head a field names, as peft reads it: by the ends of names, or by a pattern."""
    named = peft.get(field) or ()
    if named == "all-linear":
        return []
    places = (*EMBEDDINGS, *HEADS)
    if isinstance(named, str) and field == "target_modules":
        try:
            return [place for place in places if re.fullmatch(named, place)]
        except re.error as error:
            raise RecipeError(f"{where}.{field}={named!r} is no pattern: {error}") from None
    ends = (named,) if isinstance(named, str) else tuple(map(str, named))
    dot = "." if field == "target_modules" else ""
    return [place for place in places if any(place == end or place.endswith(dot + end) for end in ends)]
