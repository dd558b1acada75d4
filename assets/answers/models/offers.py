"""Which model `pedigree serve` lets answer: the one that a person named, and the next one that its alias names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from assets.answers.models.outside import check_left_to_right, is_version, model_folder
from assets.answers.models.receipts import Receipts, opened
from assets.registry.names import VERSION
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe, recipe_folders
from assets.state.references import whole_model
from resources.tracking.errors import TrackingError
from resources.tracking.reports import Tracking
from resources.tracking.versions import registered_versions
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.contract.scopes import last_model
from training.generate.checked_folder import check_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A model to serve: its folder, the name by which programs ask for it, and the one that its answers give."""

    folder: Path
    name: str
    says: str = ""  # NAME/VERSION or ASSET/FINGERPRINT, as other commands take it; "": nothing is known of a folder
    receipts: Receipts | None = field(default=None, repr=False)


def offered(model: str, root: Path, tracking: Tracking, *, has_receipts: bool = False) -> Offer:
    """Return the model that a name means, checked for what the server would need of it.

    `model` is a folder, a version of the registry (`NAME@ALIAS`), or a recipe, whose last model is meant. Raise
    DataError if it is none of these, if the model is not made, or if its folder holds pickled weights; with
    `has_receipts` also for a folder, of which nobody knows what it learned from, and as `receipts.opened` does.
    """
    if has_receipts and not is_version(model) and Path(model).is_dir():
        raise DataError(f"{model}: is a folder, so nothing is known of its training data; name a recipe or NAME@ALIAS")
    folder, name, says = _place_of(model, root, tracking)
    check_folder(folder)
    check_left_to_right(folder)
    if not has_receipts:
        return Offer(folder=folder, name=name, says=says)
    receipts = opened(says, root, tracking)
    receipts.receipt("What the first search loads is loaded before the first answer.")
    made = receipts.tracer.lineage.last.made
    assert made is not None
    return Offer(folder=whole_model(made.file("model")), name=name, says=says, receipts=receipts)


def _place_of(model: str, root: Path, tracking: Tracking) -> tuple[Path, str, str]:
    if is_version(model):
        says = named_by(model, tracking) or model.removeprefix("models:/")
        return model_folder(says, tracking), says.partition("@")[0].partition("/")[0], says
    if Path(model).is_dir():
        return model_folder(model, tracking), Path(model).resolve().name, ""
    try:
        comparison = compare(load_recipe(model, recipe_folders(root)), root)
    except RecipeError as error:
        raise DataError(f"{model}: neither a folder nor NAME@ALIAS, and as a recipe: {error}") from None
    name = comparison.recipe.name
    asset = last_model(comparison.recipe)
    made = comparison.made(asset, name, named=model)
    return whole_model(made.file("model")), name, f"{asset}/{made.fingerprint}"


def named_by(model: str, tracking: Tracking) -> str:
    """Return NAME/VERSION of the version that NAME@ALIAS names now; "" if none, or for what is no alias."""
    found = VERSION.fullmatch(model)
    if found is None or not found["alias"]:
        return ""
    own = [one for one in registered_versions(tracking) if one.name == found["name"] and found["alias"] in one.aliases]
    return f"{found['name']}/{own[0].version}" if own else ""


@dataclass(kw_only=True, slots=True)
class Followed:
    """The versions that an alias comes to name while a server runs."""

    model: str  # NAME@ALIAS
    tried: str  # the last version that was offered, or could not be
    offer: Callable[[str], Offer]
    now: Callable[[], str]  # the version that the alias names
    problem: str = ""  # told last

    def next(self) -> tuple[Offer | None, str]:
        """Return the model that is to take the place, and a sentence to tell; None and "" where nothing changed."""
        try:
            version = self.now()
        except TrackingError as error:
            return None, self._once(f"{error}; {self.tried} goes on to answer")
        if not version:
            return None, self._once(f"{self.model} names no version now; {self.tried} goes on to answer")
        self.problem = ""
        if version == self.tried:
            return None, ""
        before, self.tried = self.tried, version
        try:
            return self.offer(version), ""
        except (DataError, TrackingError) as error:
            return None, f"{self.model} names {version} now, which is not served: {error}; {before} goes on to answer"

    def _once(self, problem: str) -> str:
        told = problem if problem != self.problem else ""
        self.problem = problem
        return told


def followed_by(model: str, first: Offer, offer: Callable[[str], Offer], tracking: Tracking) -> Followed | None:
    """Return what a server follows that began with the version that NAME@ALIAS named; None for any other name."""
    if not (is_version(model) and named_by(model, tracking)):
        return None
    return Followed(model=model, tried=first.says, offer=offer, now=partial(named_by, model, tracking))
