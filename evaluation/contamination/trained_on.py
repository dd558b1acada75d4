"""Which assets hold the text that a recipe's models are trained on, found in the declarations of the stages.

The search begins with the training stages behind the recipe's last model and goes up their inputs. It ends at the
assets that the scan for contamination reads. It also ends at an asset that brings in text of its own, because it has no
inputs or its settings name files. Such an asset has no scan, nor has a training whose settings name files that no
scanned asset reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from training.contract.records import uris_in
from training.contract.scopes import asks_for, last_trained, reads
from training.contract.stage import Asset
from training.stages import ASSETS

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

# The assets whose text the scan reads (evaluation.contamination.search).
SCANNED = ("decontaminated_documents", "instruction_data", "preference_data", "prompt_data")
DECLARED: dict[str, Asset] = {asset.name: asset for asset in ASSETS}


def data_of(recipe: Recipe) -> dict[str, tuple[str, ...]]:
    """Return {asset with training text: the models that are trained on it}, both sorted by name."""
    found: dict[str, set[str]] = {}
    for model in _trainings(recipe):
        for name in _inputs(recipe, model):
            for source in _sources(recipe, name):
                found.setdefault(source, set()).add(model)
    for model in _trainings(recipe):
        if _files(recipe, model) - {uri for name in found if name in SCANNED for uri in _files(recipe, name)}:
            found.setdefault(model, set()).add(model)
    return {name: tuple(sorted(models)) for name, models in sorted(found.items())}


def _trainings(recipe: Recipe) -> list[str]:
    """Return the recipe's last model and the trained models that it is made from, directly or indirectly."""
    model = last_trained(recipe)
    seen, waiting = {model}, [model]
    while waiting:
        new = set(_inputs(recipe, waiting.pop())) - seen
        seen |= new
        waiting.extend(new)
    return sorted(name for name in seen if _is_training(name))


def _sources(recipe: Recipe, name: str) -> Iterator[str]:
    """Yield the assets from which the text of an asset comes.

    A trained model is not followed further, because its text is counted for that model.
    """
    if _is_training(name):
        return
    inputs = _inputs(recipe, name)
    if name in SCANNED or not inputs or _files(recipe, name):
        yield name
        return
    for item in inputs:
        yield from _sources(recipe, item)


def _files(recipe: Recipe, name: str) -> set[str]:
    """Return the files that an asset's settings name, without those that its training only looks at."""
    settings, stage = DECLARED[name].settings(recipe, ""), DECLARED[name].stage
    return set(uris_in({section: value for section, value in settings.items() if section not in stage.context}))


def _inputs(recipe: Recipe, name: str) -> list[str]:
    declared = (item for item in DECLARED[name].inputs if reads(recipe, item))
    return [item.asset for item in declared if asks_for(recipe, *DECLARED[item.asset].sections)]


def _is_training(name: str) -> bool:
    return DECLARED[name].stage.distributed
