"""Finished trainings and other long work that a run would repeat although nobody asked for it.

Another edition of the code may make a part of the corpus in another way. Then everything that descends from that part
is outdated, also a training that took a month. Such work is repeated only if a person says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assets.chain import CHAIN
from assets.found import look
from assets.status import BEGINS_ANEW, Cell, Comparison, as_read
from training import artifact
from training.artifact import Artifact
from training.job import DataError
from training.phase import RANKS_FOLDER
from training.records import differences

MOST_SHOWN = 3
LONG_SECONDS = 24 * 3600  # processor seconds: what cost more is not made again unasked, training or not
_OF_THE_CODE = "sources"  # the setting that holds versions of the project's own generated sources


@dataclass(slots=True)
class Changes:
    """What differs between a made artifact, with its ancestors, and what the recipe asks for now.

    `asked` are fields of the recipe, `by_code` versions of stages, sources and libraries, one line each. `unknown`
    names ancestors that are gone or damaged: of these nobody can tell.
    """

    asked: list[str] = field(default_factory=list)
    by_code: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def explained(self) -> str:
        """Why work would be repeated that nobody is known to have asked for; empty if it would not."""
        more = len(self.by_code) - MOST_SHOWN
        shown = "; ".join(self.by_code[:MOST_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        whys = [f"it was made by another edition of the code ({shown})"] if self.by_code else []
        if self.unknown:
            whys.append(f"whether a field differs cannot be told of what is gone or damaged: {', '.join(self.unknown)}")
        return "; ".join(["no field of the recipe is known to differ", *whys]) if whys else ""


def check_not_repeated(cell: Cell, comparison: Comparison) -> None:
    """Raise DataError if finished long work would be made again and no field of the recipe is known to differ.

    Long are all trainings, and what cost more than LONG_SECONDS. Work that is begun under the present fingerprint goes
    on: somebody has asked for it.
    """
    if cell.state != "outdated" or cell.reference is None or _is_begun(cell, comparison):
        return
    made = _at(cell.asset, cell.reference.fingerprint, comparison)
    if made is None or not (work := _long_work(cell, made)):
        return
    changes = changes_since(made, cell, comparison)
    if not changes.asked and (why := changes.explained()):
        raise DataError(
            f"{cell.asset} [{cell.partition}] {work} again: {why}. Go on with that edition, or make it again"
            f" {BEGINS_ANEW}"
        )


def _is_begun(cell: Cell, comparison: Comparison) -> bool:
    own = artifact.folder_of(comparison.root, cell.asset, cell.fingerprint)
    return artifact.checkpoint_step(own) is not None or any((own / RANKS_FOLDER).rglob("*.json"))


def _long_work(cell: Cell, made: Artifact) -> str:
    """What it was and would be again, in words; empty if it was neither a training nor long."""
    if CHAIN[cell.asset].stage.distributed:
        return "is trained and would be trained"
    seconds = made.record.get("cost", {}).get("cpu_seconds", 0.0)
    return f"took {seconds / 3600:,.0f} processor hours and would be made" if seconds > LONG_SECONDS else ""


def changes_since(made: Artifact, cell: Cell, comparison: Comparison) -> Changes:
    """Compare an artifact and all its ancestors with the cells that stand in their places now."""
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
    """Add what differs between one record and its cell."""
    stage = CHAIN[cell.asset].stage
    old, new = as_read(record["settings"], json.loads(json.dumps(cell.settings)))
    by_code = differences(old.pop(_OF_THE_CODE, {}), new.pop(_OF_THE_CODE, {}), _OF_THE_CODE)
    by_code += differences(record["libraries"], stage.library_versions(), "libraries")
    by_code += differences(record["stage_version"], stage.version, "stage_version")
    changes.asked += [f"{cell.asset}: {line}" for line in differences(old, new)]
    changes.by_code += [f"{cell.asset}: {line}" for line in by_code]


def _at(asset: str, fingerprint: str, comparison: Comparison) -> Artifact | None:
    return look(artifact.folder_of(comparison.root, asset, fingerprint), asset, set()).artifact


def _snapshot(partition: str) -> str:
    return partition.partition("@")[2]
