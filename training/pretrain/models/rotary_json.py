"""The fields of `config.json` on rotary positions and on the kinds of layers, written and read. No torch."""

from __future__ import annotations

from math import isclose
from typing import Any

from training.contract.job import DataError
from training.pretrain.models.shape import ModelConfig, RotaryScaling

ROPE_TYPES = {"none": "default", "linear": "linear", "yarn": "yarn", "llama3": "llama3"}
_SHARPENING = ("mscale", "mscale_all_dim")


def written_rotary(config: ModelConfig) -> dict[str, Any]:
    """Return the fields on rotary positions: transformers 5 reads `rope_parameters`, transformers 4 the other two."""
    scaling = config.rope_scaling
    # NTK scaling is nothing but a larger base; transformers' own form of it changes with the length of the text.
    theta = scaling.base(config.rope_theta, head_width=config.head_width)
    fields: dict[str, Any] = {"rope_type": "default" if scaling.kind == "ntk" else ROPE_TYPES[scaling.kind]}
    if scaling.kind in ("linear", "yarn", "llama3"):
        fields["factor"] = scaling.factor
    if scaling.kind in ("yarn", "llama3"):
        fields["original_max_position_embeddings"] = scaling.original_length
    if scaling.kind == "yarn":
        fields |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
    if scaling.kind == "llama3":
        fields |= {
            "low_freq_factor": scaling.low_frequency_factor,
            "high_freq_factor": scaling.high_frequency_factor,
        }
    older = {} if fields["rope_type"] == "default" else {"rope_scaling": fields}
    return {"rope_parameters": {**fields, "rope_theta": theta}, "rope_theta": theta, **older}


def given_rotary(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields on rotary positions of a `config.json`, as transformers 5 or 4 wrote it; empty if none.

    Raise DataError if it has both and they differ: libraries read one or the other.
    """
    new, old = data.get("rope_parameters") or {}, data.get("rope_scaling") or {}
    is_by_layer = any(isinstance(value, dict) for value in new.values())
    if new and old and not is_by_layer:
        said = [{"rope_type": one.get("type", "default"), **one} for one in (new, old)]
        if any(said[0][name] != said[1][name] for name in said[0].keys() & said[1].keys()):
            raise DataError("config.json: rope_parameters and rope_scaling differ; leave the wrong one out")
    return new or old


def read_rotary(rope: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a shape that `rope`, the fields on rotary positions of the `config.json` `data`, describes.

    Raise DataError if this package lacks what they describe.
    """
    theta = rope.get("rope_theta") or data.get("rope_theta", 10_000.0)
    return {"rope_theta": theta, "rope_scaling": _read_scaling(rope)}


def _read_scaling(rope: dict[str, Any]) -> RotaryScaling:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ROPE_TYPES.values() or any(rope.get(name) for name in _SHARPENING):
        raise DataError(f"config.json: rotary positions {rope}; readable are {', '.join(ROPE_TYPES.values())}")
    if kind == "default":
        return RotaryScaling()
    names = {
        "original_max_position_embeddings": "original_length",
        "low_freq_factor": "low_frequency_factor",
        "high_freq_factor": "high_frequency_factor",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
    }
    given = {ours: rope[theirs] for theirs, ours in names.items() if rope.get(theirs) is not None}
    scaling = RotaryScaling(kind=kind, factor=rope["factor"], **given)
    factor = rope.get("attention_factor")
    if factor is not None and not (kind == "yarn" and isclose(factor, scaling.attention_factor)):
        raise DataError(
            f"config.json: attention_factor={factor} of rotary positions {kind}; {scaling.attention_factor} is readable"
        )
    return scaling


def layer_kinds(config: ModelConfig) -> list[str]:
    """Return transformers' name for the kind of each layer: with a window, or without."""
    return ["sliding_attention" if config.is_windowed(n) else "full_attention" for n in range(config.layers)]


def read_kinds(kinds: list[str], window: int | None) -> dict[str, Any]:
    """Return the window and its pattern, the shortest that gives these kinds of layers when it is repeated.

    Empty if no layer has a window.
    """
    pattern = tuple("window" if kind == "sliding_attention" else "full" for kind in kinds)
    if not window or "window" not in pattern:
        return {}
    lengths = range(1, len(pattern) + 1)
    repeats = (length for length in lengths if all(kind == pattern[n % length] for n, kind in enumerate(pattern)))
    return {"window": window, "window_pattern": pattern[: next(repeats)]}
