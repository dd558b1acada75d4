"""Model families by transformers' `model_type`: a file or folder with a `FAMILY` in it, or a part from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from training.contract.parts.outside import (
    FROM,
    NoSettings,
    OutsidePart,
    PartFailed,
    PartsOf,
    guarded,
    named,
    registered,
)
from training.contract.parts.packages import parts_in
from training.contract.records import RecipeError
from training.pretrain.models.borrowed import BORROWED
from training.pretrain.models.family import Family, Fields, Layers, NamedShapes
from training.pretrain.models.shape import ModelConfig

if TYPE_CHECKING:
    from training.pretrain.models.decoder import Block

KIND = "families"
FAMILIES: dict[str, Family] = {name: part.FAMILY for name, part in parts_in(__name__).items()}

# Places of the families from outside that the recipe of this process names. A `config.json` names a family only, so
# that a model's folder cannot choose which code is imported.
_named: dict[str, str] = {}


def forget_others(parts: Iterable[str]) -> None:
    """Forget the families from outside that an earlier recipe of this process named, but not those among `parts`."""
    for name in _named.keys() - {*parts}:
        _named.pop(name, None)  # another thread may read a recipe at the same time


def family_of(config: ModelConfig) -> str:
    """Return the name of the family that a shape belongs to."""
    if config.family:
        return config.family
    (name,) = (name for name, family in FAMILIES.items() if family.has(config))
    return name


def find_family(config: ModelConfig) -> Family:
    """Return the family that a shape belongs to. Raise RecipeError if there is none of its name."""
    name = family_of(config)
    if is_borrowed(config):
        return BORROWED[name]
    return FAMILIES[name] if name in FAMILIES else _outside(name, config.parts)


def is_borrowed(config: ModelConfig) -> bool:
    """Whether transformers' own class runs the model, because its family has no layers of this project."""
    return _is_borrowed(config.family, config.parts)


def _is_borrowed(name: str, parts: Mapping[str, Mapping[str, Any]]) -> bool:
    return name in BORROWED and FROM not in parts.get(name, {}) and name not in (*_named, *registered(KIND))


def family_of_type(model_type: str) -> Family | None:
    """Return the family of a `config.json`: Pedigree's, registered by a package, or named by this process's recipe.

    Else it is one whose layers are transformers' own. None if there is no such family.
    """
    if model_type not in FAMILIES and model_type in (*_named, *registered(KIND)):
        return _outside(model_type, {})
    return FAMILIES.get(model_type) or BORROWED.get(model_type)


def outside_family(name: str, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, OutsidePart]:
    """Return the part from outside that is the family `name`, by this name; empty if the family is Pedigree's."""
    is_own = not name or name in FAMILIES or _is_borrowed(name, parts)
    return {} if is_own else {name: _found(name, parts)[1]}


def check_family(config: ModelConfig) -> None:
    """Raise RecipeError if `model.family` and `model.parts` name no family that has this shape."""
    own = [name for name, family in FAMILIES.items() if family.settings is NoSettings]
    without_settings = [*own, *([config.family] if is_borrowed(config) else [])]
    PartsOf("model", config.parts).check_used([config.family], without_settings)
    if config.family in FAMILIES and FROM in config.parts.get(config.family, {}):
        raise RecipeError(f"model.parts.{config.family}.{FROM}: {config.family!r} is a part of Pedigree's")
    if config.family in FAMILIES and FAMILIES[config.family].layers is None:
        raise RecipeError(
            f"model.family: {config.family!r} is chosen by the shape, because its layers are those of Llama or Qwen3;"
            " null is right"
        )
    family = find_family(config)
    _ = config.settings_of(family.settings)  # checks itself
    if reasons := family.why_not(config):
        raise RecipeError(f"model.family: {config.family} does not have: {'; '.join(reasons)}")


def inexpressible(config: ModelConfig) -> tuple[str, ...]:
    """Return the reasons why no class of transformers can run the model; empty if one can."""
    found = []
    if config.logit_softcap:
        found.append("logit_softcap: none of the classes caps logits")
    if config.activation != "swiglu":
        found.append(f"activation {config.activation}: the classes' MLPs are gated")
    return (*found, *find_family(config).why_not(config))


def _found(name: str, parts: Mapping[str, Mapping[str, Any]]) -> tuple[PartsOf, OutsidePart]:
    place = parts.get(name, {}).get(FROM) or _named.get(name)
    given = PartsOf("model", {**parts, **({name: {**parts.get(name, {}), FROM: place}} if place else {})})
    part = given.find(KIND, name, FAMILIES, "family")
    _named[name] = part.place
    return given, part


def _outside(name: str, parts: Mapping[str, Mapping[str, Any]]) -> Family:
    given, part = _found(name, parts)
    return _guarded(name, part.place, given.load(KIND, name, FAMILIES, field="family", cls=Family))


@lru_cache(maxsize=16)
def _guarded(name: str, place: str, family: Family) -> Family:
    """Return a family from outside. Whatever its code raises is raised under its name."""
    if family.layers is None:
        raise RecipeError(f"model.family: {place!r} has no layers; without layers of its own it would have no shape")
    who, layers = f"model family {name}", family.layers

    def make(config: ModelConfig, layer: int) -> Block:
        return _made(who, layers, config, layer)

    def weights(config: ModelConfig, layer: int) -> NamedShapes:
        with named(who, "does not say its weights"):
            return list(layers.weights(config, layer))

    def fields(config: ModelConfig) -> Fields:
        with named(who, "gives no fields of config.json"):
            return dict(family.fields(config))

    def read(data: Fields) -> Fields:
        with named(who, "cannot read config.json"):
            return dict(family.read(data))

    return replace(
        family,
        why_not=guarded(who, "does not say which shapes it has", family.why_not),
        fields=fields,
        read=read,
        layers=replace(
            layers,
            make=make,
            weights=weights,
            kept=guarded(who, "does not say what it keeps", layers.kept),
            scaling=guarded(who, "does not say how its positions are scaled", layers.scaling),
            head_widths=layers.head_widths and guarded(who, "does not say its widths", layers.head_widths),
            names=layers.names and guarded(who, "does not name its weights", layers.names),
        ),
    )


def _made(who: str, layers: Layers, config: ModelConfig, layer: int) -> Block:
    """Return a layer from outside, whose errors are raised under the family's name.

    Raise PartFailed if it is no Block, or has other weights than the family says.
    """
    from training.pretrain.models.decoder import Block

    with named(who, f"cannot make layer {layer}"):
        made = layers.make(config, layer)
    with named(who, "does not say its weights"):
        said = dict(layers.weights(config, layer))
    if not isinstance(made, Block):
        raise PartFailed(f"{who} made {type(made).__name__}; it must be a {Block.__module__}.Block")
    has = {name: tuple(weight.shape) for name, weight in made.named_parameters()}
    if differing := sorted(set(has.items()) ^ set(said.items())):
        name = differing[0][0]
        raise PartFailed(
            f"{who}: layer {layer} has {name} {has.get(name, 'not')}, and its weights are said to have"
            f" {said.get(name, 'none of this name')}"
        )
    made.forward = _told(f"{who} failed in layer {layer}", made.forward)
    return made


def _told(what: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a layer's `forward`, whose errors and invalid results are raised under the family's name."""

    def called(x_BLD: Any, *given: Any) -> Any:
        try:
            result = forward(x_BLD, *given)
            states, _ = result
            shape = tuple(states.shape)
        except Exception as error:
            if type(error).__module__ == "torch.utils.checkpoint":  # by which torch ends a recomputation early
                raise
            raise PartFailed(f"{what}: {type(error).__name__}: {error}") from error
        if shape != tuple(x_BLD.shape):
            raise PartFailed(f"{what}: it returned states of {shape}; they must have the shape {tuple(x_BLD.shape)}")
        return result

    return called
