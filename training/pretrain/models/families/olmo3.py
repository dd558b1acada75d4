"""The OLMo 3 family (arXiv 2512.13961): layers of OLMo 2, most of them with windows whose positions are not scaled."""

from __future__ import annotations

from dataclasses import replace

from training.contract.job import DataError
from training.contract.records import write_record
from training.pretrain.models.families import olmo2
from training.pretrain.models.family import Family, Fields, Preset, preset, sizes
from training.pretrain.models.rotary_json import given_rotary, layer_kinds, read_kinds, read_rotary, written_rotary
from training.pretrain.models.shape import ModelConfig, RotaryScaling


def why_not(config: ModelConfig) -> list[str]:
    """Return which features of the shape OLMo 3 does not have; empty if it has all."""
    found = [] if config.qk_norm else ["layers without qk_norm"]
    found += [] if config.window else ["layers without a window; OLMo 2 has none"]
    found += ["rope_scaling ntk, because its base is that of all layers"] if config.rope_scaling.kind == "ntk" else []
    return found + (["experts"] if config.experts.count else [])


def scaling(config: ModelConfig, layer: int) -> RotaryScaling:
    """Return the scaling of a layer's rotary positions: a layer with a window has none."""
    return RotaryScaling() if config.is_windowed(layer) else config.rope_scaling


def fields(config: ModelConfig) -> Fields:
    """Return the fields of `config.json` on windows, and on rotary positions for each kind of layer."""
    plain = {"rope_type": "default", "rope_theta": config.rope_theta}
    return {
        "sliding_window": config.window,
        "layer_types": layer_kinds(config),
        "rope_parameters": {
            "full_attention": written_rotary(config)["rope_parameters"],
            "sliding_attention": plain,
        },
    }


def read(data: Fields) -> Fields:
    """Return QK-norm, the window and its pattern, and the rotary positions of the layers without a window.

    Files of transformers 4 have one set of rotary fields, which is that of these layers.
    """
    given = given_rotary(data)
    full, windowed = given.get("full_attention", given), given.get("sliding_attention", {})
    rotary = read_rotary(full, data)
    apart = read_rotary(windowed, {"rope_theta": rotary["rope_theta"]})
    if apart != {"rope_theta": rotary["rope_theta"], "rope_scaling": RotaryScaling()}:
        raise DataError(
            f"config.json: rotary positions {windowed} in layers with a window; readable are those without scaling,"
            f" with rope_theta={rotary['rope_theta']}"
        )
    every_fourth = ["full_attention" if n % 4 == 3 else "sliding_attention" for n in range(data["num_hidden_layers"])]
    return {"qk_norm": True, **rotary, **read_kinds(data.get("layer_types") or every_fourth, data["sliding_window"])}


def _olmo_3(parameters: int, numbers: dict[str, int]) -> Preset:
    """Return the preset of an OLMo 3 base model as it was published, with positions stretched from 8,192 by YaRN."""
    return preset(
        100_278,
        parameters,
        **numbers,
        max_length=65_536,
        rope_theta=500_000.0,
        rope_scaling=write_record(RotaryScaling(kind="yarn", factor=8.0, original_length=8192)),
        norm_epsilon=1e-6,
        qk_norm=True,
        tied_embeddings=False,
        window=4096,
        window_pattern=["window", "window", "window", "full"],
        family="olmo3",
    )


FAMILY = Family(
    class_name="Olmo3",
    why_not=why_not,
    fields=fields,
    read=read,
    layers=replace(olmo2.LAYERS, scaling=scaling),
    presets={
        "olmo-3-7b": _olmo_3(7_298_011_136, sizes(4096, 32, 32, 32, 11_008)),
        "olmo-3-32b": _olmo_3(32_233_522_176, sizes(5120, 64, 40, 8, 27_648)),
    },
)
