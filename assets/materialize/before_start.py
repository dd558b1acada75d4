"""Refusals before work starts: long work repeated or begun anew unasked, or a later asset that cannot be made.

Another version of the code may make a part of the corpus in another way. Then everything that descends from that part
is outdated, also a training that took a month. Such work is repeated only if a person says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from assets.state.cell import BEGINS_ANEW, Cell, Comparison
from assets.state.chain import CHAIN, trains
from assets.state.reasons import as_read, reasons_of
from assets.state.references import look
from assets.state.requested_settings import asked_settings
from training.contract import artifact
from training.contract.artifact import Artifact
from training.contract.files.checked import unsound
from training.contract.files.stored_root import is_here
from training.contract.job import DataError, read_job
from training.contract.records import differences, write_record
from training.contract.running.phase import RANKS_FOLDER
from training.contract.scopes import KEPT_STEPS, OPTIMIZER_FOLDER, WHOLE
from training.contract.stage import InputCheck
from training.contract.stored_state import saved_step

MOST_SHOWN = 3
LONG_SECONDS = 24 * 3600  # processor seconds: data that took more together is not made again unasked
_OF_THE_CODE = "sources"  # the setting that holds versions of the project's own generated sources


@dataclass(slots=True)
class Changes:
    """The differences between a made artifact, with its ancestors, and what the recipe asks for now.

    `asked` are fields of the recipe, `by_code` versions of stages, sources and libraries, one line each. `unknown`
    names ancestors that are gone or damaged, so that their differences are not known.
    """

    asked: list[str] = field(default_factory=list)
    by_code: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def explained(self) -> str:
        """Return why work would be repeated without a change of the recipe; empty if it would not."""
        lines = list(dict.fromkeys(self.by_code))  # once for all snapshots
        more = len(lines) - MOST_SHOWN
        shown = "; ".join(lines[:MOST_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        whys = [f"it was made by another version of the code ({shown})"] if self.by_code else []
        if self.unknown:
            whys.append(f"whether a field differs cannot be told of what is gone or damaged: {', '.join(self.unknown)}")
        return "; ".join(["no field of the recipe is known to differ", *whys]) if whys else ""


class Repeats:
    """Finished long work that a run would make again although no field of the recipe is known to differ.

    Long are all trainings, and data if all that would be made again took more than LONG_SECONDS together.
    """

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._whys: dict[tuple[str, str], str] = {}

    def check(self, cell: Cell) -> None:
        """Raise DataError if the cell is such work, unless it is begun, because then somebody has asked for it."""
        if self._before(cell) is None or self._is_begun(cell) or not (work := self._long_work(cell)):
            return
        if why := self._why(cell):
            raise DataError(
                f"{cell.asset} [{cell.partition}] {work} again: {why}. Go on with that version, or make it again"
                f" {BEGINS_ANEW}"
            )

    def _before(self, cell: Cell) -> Artifact | None:
        """Return the artifact that an outdated cell had; None if there is none."""
        if cell.state != "outdated" or cell.reference is None:
            return None
        return _at(cell.asset, cell.reference.fingerprint, self._comparison)

    def _is_begun(self, cell: Cell) -> bool:
        own = artifact.folder_of(self._comparison.root, cell.asset, cell.fingerprint)
        return saved_step(own) is not None or any((own / RANKS_FOLDER).rglob("*.json"))

    def _why(self, cell: Cell) -> str:
        """Return why the cell would be made again unasked; empty if it was asked for, or if there is nothing of it."""
        if cell.key not in self._whys:
            made = self._before(cell)
            changes = changes_since(made, cell, self._comparison) if made is not None else Changes()
            self._whys[cell.key] = "" if changes.asked else changes.explained()
        return self._whys[cell.key]

    def _long_work(self, cell: Cell) -> str:
        """Return words on how long work was and would be again; empty if it was neither a training nor long."""
        if trains(CHAIN[cell.asset]):
            return "is trained and would be trained"
        seconds = self._long_data
        if not seconds:
            return ""
        many = f"is one of {len(seconds)} artifacts that" if len(seconds) > 1 else ""
        return f"{many} took {sum(seconds) / 3600:,.0f} processor hours and would be made".strip()

    @cached_property
    def _long_data(self) -> tuple[float, ...]:
        """Return the processor seconds of each artifact that would be made again unasked; empty if they are few."""
        cells = [cell for cell in self._comparison.cells.values() if not trains(CHAIN[cell.asset])]
        known = {cell.key: _seconds(made) for cell in cells if (made := self._before(cell)) is not None}
        if sum(known.values()) <= LONG_SECONDS:  # spares a look at all ancestors
            return ()
        seconds = tuple(known[cell.key] for cell in cells if known.get(cell.key) and self._why(cell))
        return seconds if sum(seconds) > LONG_SECONDS else ()


def _seconds(made: Artifact) -> float:
    return made.record["cost"].get("cpu_seconds", 0.0)


def changes_since(made: Artifact, cell: Cell, comparison: Comparison) -> Changes:
    """Compare an artifact and all its ancestors with the present cells of the same assets and partitions."""
    changes, waiting, seen = Changes(), [(made, cell)], set[tuple[str, str]]()
    while waiting:
        earlier, now = waiting.pop()
        if now.key in seen:
            continue
        seen.add(now.key)
        _compare(earlier.record, now, changes)
        before = {(item["asset"], _snapshot(item["partition"])): item for item in earlier.record["inputs"]}
        inputs = {(asset, _snapshot(key)): comparison.cells[asset, key] for asset, key in now.inputs}
        changes.asked += [f"{now.asset} reads {asset} of {of}" for asset, of in before.keys() ^ inputs.keys()]
        for place in before.keys() & inputs.keys():
            found = _at(place[0], before[place]["fingerprint"], comparison)
            if found is None:
                changes.unknown.append(f"{inputs[place].asset} [{inputs[place].partition}]")
            else:
                waiting.append((found, inputs[place]))
    return changes


def _compare(record: Mapping[str, Any], cell: Cell, changes: Changes) -> None:
    """Add the differences between one record and its cell."""
    stage = CHAIN[cell.asset].stage
    old, new = (asked_settings(stage, one) for one in as_read(record["settings"], cell.settings))
    by_code = differences(old.pop(_OF_THE_CODE, {}), new.pop(_OF_THE_CODE, {}), _OF_THE_CODE)
    by_code += differences(record["libraries"], stage.library_versions(), "libraries")
    by_code += differences(record["stage_version"], stage.version, "stage_version")
    changes.asked += [f"{cell.asset}: {line}" for line in differences(old, new)]
    changes.by_code += [f"{cell.asset}: {line}" for line in by_code]


def _at(asset: str, fingerprint: str, comparison: Comparison) -> Artifact | None:
    return look(artifact.folder_of(comparison.root, asset, fingerprint), asset, set()).artifact


def _snapshot(partition: str) -> str:
    return partition.partition("@")[2]


def check_begun(cell: Cell, comparison: Comparison) -> None:
    """Raise DataError if running this cell would silently start a training again at step 0.

    That is so if the trained model is damaged and cannot be restored, or if the training has a checkpoint under
    another fingerprint and none under its own: a changed setting or input changes the fingerprint and thus the
    folder, and the new folder has no checkpoint. Only the run that was begun last is considered.
    """
    own = artifact.folder_of(comparison.root, cell.asset, cell.fingerprint)
    is_lost = cell.state == "damaged" and cell.artifact is None and (own / artifact.ARTIFACT_FILE).exists()
    if is_lost and trains(CHAIN[cell.asset]):
        raise DataError(f"{cell.asset} [{cell.partition}] is damaged ({cell.reasons[0]}); {cell.way_out}")
    if cell.state in ("made", "unavailable") or saved_step(own) is not None:
        return
    folder, record = _last_begun(cell, comparison.root)
    step = saved_step(folder) if folder else None
    if folder is None or folder == own or step is None or (folder / artifact.ARTIFACT_FILE).exists():
        return
    reasons = "; ".join(reasons_of(CHAIN[cell.asset], record, cell.settings, cell.inputs, comparison.cells))
    raise DataError(
        f"{cell.asset} [{cell.partition}]: training stands at step {step} and was begun otherwise ({reasons}); change"
        f" that back to go on from there, or begin at step 0 {BEGINS_ANEW}"
    )


def check_continued(cell: Cell, comparison: Comparison) -> None:
    """Raise DataError if a training that continues another one would silently begin at step 0: no state is there.

    So it is if the state is damaged. One that was made before is made again unasked, as after a withdrawal, which
    leaves no state.
    """
    pretrain = comparison.recipe.pretrain
    own = artifact.folder_of(comparison.root, cell.asset, cell.fingerprint)
    begins = cell.asset == WHOLE[KEPT_STEPS] and cell.state == "missing" and saved_step(own) is None
    if not begins or not pretrain.continues.tokens:
        return
    name, at = pretrain.continues.recipe or "a shorter training", pretrain.continued_at[-1]
    said, anew = f"{cell.asset} [{cell.partition}] continues {name}", f"have all {pretrain.steps} steps trained"
    if comparison.continued is None:
        raise DataError(
            f"{said}, of which no kept step up to {at}, where its decay begins, has its optimizer state under"
            f" {comparison.root}; keep one there (pretrain.keep: {{steps: [{at}], optimizer: true}}) and run it, or"
            f" {anew} {BEGINS_ANEW}"
        )
    if damage := damage_of_state(comparison.continued):
        raise DataError(
            f"{said} from the optimizer state of {comparison.continued.partition}, which is damaged ({damage}); put it"
            f" back from a backup, remove its folder {OPTIMIZER_FOLDER} to go on from an earlier one, or {anew}"
            f" {BEGINS_ANEW}"
        )


def damage_of_state(kept: Cell) -> str:
    """Return what of the optimizer state beside a kept step is missing or was changed; "" if it is whole."""
    assert kept.artifact is not None, "it has a state"
    files = [one for one in kept.artifact.record.get("beside", ()) if one["path"].startswith(f"{OPTIMIZER_FOLDER}/")]
    for one in files:
        is_here(kept.artifact.path / one["path"], one["sha256"])  # brought from the root's store, if there is one
    lines = (unsound(kept.artifact.path, one, trusts=True) for one in files)
    return next(filter(None, lines), "" if files else f"{kept.artifact.path}: its record lists none")


def _last_begun(cell: Cell, root: Path) -> tuple[Path | None, dict[str, Any]]:
    """The folder and content of the newest `job.json` of the cell's asset and partition, whatever its fingerprint.

    (None, {}) if there is no readable one.
    """
    jobs = sorted((root / cell.asset).glob("*/job.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    for path in jobs:
        try:
            job = read_job(path)
        except (OSError, ValueError):
            continue  # damaged, or written by other code: skip it
        if job.partition == cell.partition:
            return path.parent, write_record(job)
    return None, {}


def check_facts(comparison: Comparison) -> None:
    """Raise DataError for the first asset that is not made and cannot be made from what is made (`Asset.facts`)."""
    for asset in dict.fromkeys(cell.asset for cell in comparison.to_do()):
        for fact in CHAIN[asset].facts:
            made = _made(comparison, fact)
            if made:
                fact.check(comparison.recipe, made)


def _made(comparison: Comparison, fact: InputCheck) -> dict[str, list[Artifact]]:
    """Return the artifacts that a check is about, by asset; empty unless all of the recipe are made and sound."""
    found: dict[str, list[Artifact]] = {}
    for cell in comparison.cells.values():
        if cell.asset in fact.assets:
            if cell.artifact is None or cell.is_damaged or cell.artifact.failed_gates:
                return {}
            found.setdefault(cell.asset, []).append(cell.artifact)
    return found
