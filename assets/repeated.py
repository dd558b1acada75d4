"""Finished trainings that a run would repeat although nobody asked for it.

Another edition of the code may make a part of the corpus in another way. Then everything that descends from that part
is outdated, also a training that took a month. Such a training is repeated only if a person says so.
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
from training.records import differences

MOST_SHOWN = 3
_OF_THE_CODE = "sources"  # the setting that holds versions of the project's own generated sources


@dataclass(slots=True)
class Changes:
    """What differs between a made artifact, with its ancestors, and what the recipe asks for now.

    `asked` are fields of the recipe, `by_code` versions of stages, sources and libraries. One line each. `is_known` is
    False if an ancestor is gone, so that nobody can tell.
    """

    asked: list[str] = field(default_factory=list)
    by_code: list[str] = field(default_factory=list)
    is_known: bool = True


def check_not_repeated(cell: Cell, comparison: Comparison) -> None:
    """Raise DataError if a finished training would be made again and no field of the recipe differs.

    A training that already has a checkpoint under the present fingerprint goes on: somebody has asked for it.
    """
    own = artifact.folder_of(comparison.root, cell.asset, cell.fingerprint)
    is_begun = artifact.checkpoint_step(own) is not None
    if cell.state != "outdated" or not CHAIN[cell.asset].stage.distributed or is_begun or cell.reference is None:
        return
    made = _at(cell.asset, cell.reference.fingerprint, comparison)
    if made is None:
        return
    changes = changes_since(made, cell, comparison)
    if changes.is_known and changes.by_code and not changes.asked:
        more = len(changes.by_code) - MOST_SHOWN
        shown = "; ".join(changes.by_code[:MOST_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        raise DataError(
            f"{cell.asset} [{cell.partition}] is trained and would be trained again, though no field of the recipe"
            f" differs; it was made by another edition of the code ({shown}). Use that edition to go on with this"
            f" model, or train again {BEGINS_ANEW}"
        )


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
                changes.is_known = False
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
