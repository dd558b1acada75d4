"""A cell, which is one asset in one partition, and the state of all cells of a recipe.

`pedigree status`, `pedigree run`, the sensors and the schedules all read these records, which `compare` makes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from assets.state.chain import CHAIN, ancestors, trains
from assets.state.references import look
from training.contract import artifact
from training.contract.identity import made_by
from training.contract.job import DataError
from training.contract.scopes import KEPT_ON_PAGES, KEPT_STEPS, OPTIMIZER_FOLDER, WHOLE

if TYPE_CHECKING:
    from assets.state.references import Reference
    from training.contract.artifact import Artifact
    from training.recipe.recipe import Recipe

START_ANEW = "pedigree/start-anew"  # the tag of a run that may begin a training again at step 0
BEGINS_ANEW = f"with --start-anew (in the UI: the tag {START_ANEW}: true)"

State = Literal["made", "missing", "outdated", "damaged", "unavailable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One asset in one partition: the artifact that the recipe asks for, and the one that exists.

    `artifact` is the artifact with exactly the fingerprint asked for, or None if it must be made. For a damaged cell it
    is the artifact that can be restored, if any. `is_recorded` is True if the partition's reference already points to
    that artifact, which may have been made for another recipe. `reference` is the partition's reference, or None if
    there is none or it cannot be read. `reasons` lists the differing fields of an outdated cell, the damage of a
    damaged one, or why a cell is unavailable.
    """

    asset: str
    partition: str
    fingerprint: str
    settings: dict[str, Any]
    inputs: tuple[tuple[str, str], ...]  # (asset, partition)
    state: State
    artifact: Artifact | None
    is_recorded: bool
    guards: tuple[tuple[str, str], ...] = ()  # (asset, partition)
    reasons: tuple[str, ...] = ()
    reference: Reference | None = None
    other_code: tuple[str, ...] = ()  # parts of the code that have changed since the artifact was made
    was_there: bool = False  # the folder of this fingerprint held an artifact, whole or not, when it was compared
    note: str = ""  # a remark from outside this comparison, such as that a promotion decision is stale
    kept_from: int | None = None  # takedowns that its artifact honours; None unless it is kept although there are more

    @property
    def is_done(self) -> bool:
        """Whether the artifact that is asked for is made and the partition's reference points to it."""
        return self.state == "made" and self.is_recorded

    @property
    def is_damaged(self) -> bool:
        """Whether the cell's record or reference differs from what was written."""
        return self.state == "damaged"

    @property
    def remark(self) -> str:
        """Return notes on the artifact for a person, and the number that a setting `auto` became.

        Empty if the present code made the artifact, and there is no `note` and no such setting.
        """
        if self.artifact is None:
            return ""
        resolved = self.artifact.record["notes"].get("resolved", "")
        made = made_by.in_words(self.artifact.record, self.other_code)
        return "; ".join(line for line in (self.note, resolved, made) if line)

    @property
    def is_kept(self) -> bool:
        """Whether the cell is a model that learned from the corpus before a withdrawal and was kept."""
        return self.kept_from is not None

    @property
    def way_out(self) -> str:
        """Return how a damaged cell is repaired, by the next run or by a person; empty if the cell is not damaged."""
        if self.state != "damaged":
            return ""
        if self.artifact is not None:
            return "the next run puts it right; nothing is made again"
        if trains(CHAIN[self.asset]):
            return f"put it back from a backup, or have it set aside and trained again {BEGINS_ANEW}"
        return "the next run sets it aside and makes it again"

    def is_of(self, digest: str) -> bool:
        """Whether `digest` is the digest of this cell's artifact.

        If a damaged cell has no usable artifact, the digest in its reference is compared. Without a reference to the
        cell's fingerprint, any digest is accepted.
        """
        if self.artifact is not None:
            return self.artifact.digest == digest
        known = self.reference.digest if self.reference and self.reference.fingerprint == self.fingerprint else digest
        return self.state == "damaged" and known == digest

    @property
    def kept_at(self) -> int:
        """The step, or the epoch, after which the model of a cell is kept; the last one is that of the training."""
        return next(iter(self.settings["kept"].values()))

    @property
    def has_state(self) -> bool:
        """Whether a made cell of `kept_steps` has the optimizer's state beside it."""
        return self.state == "made" and self.artifact is not None and (self.artifact.path / OPTIMIZER_FOLDER).is_dir()

    @property
    def part(self) -> str:
        """The name of the partition's snapshot or rung; empty for an asset of the whole recipe."""
        return self.partition.partition("@")[2]

    @property
    def place(self) -> str:
        """`asset/part`, or `asset` alone for an asset of the whole recipe; used in tags."""
        return f"{self.asset}/{self.part}" if self.part else self.asset

    @property
    def waits_for(self) -> tuple[tuple[str, str], ...]:
        """The cells that must be made before this one: its inputs and its guards."""
        return (*self.inputs, *self.guards)

    @property
    def key(self) -> tuple[str, str]:
        """The cell's asset and partition, which identify it in a comparison."""
        return self.asset, self.partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The state of every cell (an asset in a partition) of a recipe under a root; inputs come before their readers."""

    recipe: Recipe
    root: Path
    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)
    continued: Cell | None = None  # the last kept step of a training that this one continues, if its state is there

    def to_do(self, until: str | None = None) -> list[Cell]:
        """Return the cells (assets in partitions) that a run must make or point to a made artifact, inputs first.

        With `until`, only the cells of that asset and of the assets that it is made from.
        """
        return [cell for cell in self.up_to(until) if not cell.is_done]

    def up_to(self, until: str | None) -> list[Cell]:
        """Return all cells; with `until`, only those of that asset and of the assets that it is made from."""
        wanted = self._assets(until)
        return [cell for cell in self.cells.values() if cell.asset in wanted]

    def _assets(self, until: str | None) -> set[str]:
        """Return the asset `until` and all assets that must be made before it; every asset if `until` is None.

        If the recipe has no cell of `until`, the ancestors come from the chain instead.
        """
        found: set[str] = {cell.asset for cell in self.cells.values()} & {until}
        if not found:
            return set(CHAIN) if until is None else ancestors(until) | {until}
        for cell in reversed(self.cells.values()):  # each cell before its inputs
            if cell.asset in found:
                found |= {asset for asset, _ in cell.waits_for}
        return found

    def state_before(self, cell: Cell) -> Cell | None:
        """Return the last kept step before that of `cell` whose optimizer state is there; None without one.

        The training of the base model begins with a step of the one that it continues.
        """
        kept = [one for one in self.cells.values() if one.asset == cell.asset and one.has_state]
        before = [one for one in kept if one.kept_at < cell.kept_at]
        begun = self.continued if cell.asset in (KEPT_STEPS, WHOLE[KEPT_STEPS]) else None
        return max(before, key=lambda one: one.kept_at, default=begun)

    def step_before(self, cell: Cell) -> int:
        """Return the step after which the training of `cell` begins; of a kept step, once the last model is there."""
        found = self.state_before(cell)
        return 0 if found is None else found.kept_at

    def length_of(self, cell: Cell) -> float:
        """Return how many steps, or epochs, the whole training of a kept step has, once its last model is made."""
        section = getattr(self.recipe, CHAIN[cell.asset].sections[0].partition(".")[0])
        if "epoch" in cell.settings["kept"]:
            return section.epochs
        if cell.asset in KEPT_ON_PAGES:
            return section.steps
        return self.made(WHOLE[cell.asset], self.recipe.name).record["metrics"]["steps"]

    def refused_by(self, cell: Cell) -> Cell | None:
        """Return the first input or guard of `cell` that has a failed gate; None if there is none."""
        for key in cell.waits_for:
            made = self.cells[key].artifact
            if made is not None and made.failed_gates:
                return self.cells[key]
        return None

    def made(self, asset: str, partition: str, *, named: str = "") -> Artifact:
        """Return the artifact of an asset and partition as the recipe asks for it.

        Raise DataError if there is none, with its state and the command that makes it, in which `named` is the name or
        path by which a person gave the recipe.
        """
        cell = self.cells.get((asset, partition))
        if cell is None:
            raise DataError(f"{asset} [{partition}] is not part of recipe {self.recipe.name}")
        if cell.artifact is None or cell.is_damaged:
            why = f" ({cell.reasons[0]})" if cell.reasons else ""
            raise DataError(
                f"{asset} [{partition}] is {cell.state}{why} under {self.root}; `pedigree run"
                f" {named or self.recipe.name} --until {asset}` makes it"
            )
        return cell.artifact


def last_made(cell: Cell, root: Path) -> Artifact | None:
    """The artifact of a cell; for an outdated cell, the artifact that its reference still points to."""
    if cell.artifact is not None or cell.reference is None:
        return cell.artifact
    return look(artifact.folder_of(root, cell.asset, cell.reference.fingerprint), cell.asset, set()).artifact
