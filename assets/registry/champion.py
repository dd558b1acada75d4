"""The champion that a promotion decision compares with, and stale decisions.

A decision is *stale* if the champion has changed since. Its artifact exists, so nothing is missing, but nobody acts on
it: materializing `promoted_model` decides again. This module does not import Dagster.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.registry.decision import DECISION, SCORES, model_of
from resources.tracking.registry import line_in_file
from training.contract import artifact
from training.contract.artifact import Damaged

if TYPE_CHECKING:
    from assets.state.cell import Comparison
    from resources.tracking.registry import Version
    from resources.tracking.reports import Tracking
    from training.contract.artifact import Artifact


def champion_asked(line: Sequence[Version], root: Path) -> dict[str, Any]:
    """Return the champion, the last of a line, as settings of the promotion job.

    They are the version, its digest, the artifact of its scores, and under `best` the same of each former champion of
    the line that was the best on a suite, with these `suites`. `{}` if there is no champion.
    """
    if not line:
        return {}
    best = [{**_asked(one, root), "suites": suites} for one, suites in best_of(line) if one is not line[-1]]
    return {**_asked(line[-1], root), **({"best": best} if best else {})}


def best_of(line: Sequence[Version]) -> list[tuple[Version, list[str]]]:
    """Return the versions of a line that have the highest score of it on an exam, each with the suites of these exams.

    The scores are those that MLflow holds. Of two equal ones the newer counts. A version without a digest, such as a
    deleted one, is returned without suites: nobody knows how good it was.
    """
    best: dict[tuple[str, str], tuple[float, int]] = {}
    for place, version in enumerate(line):
        for tag, value in version.tags.items():
            if tag.startswith("eval."):
                suite = tag.removeprefix("eval.")
                exam = suite, version.tags.get(f"exam.{suite}", "")
                best[exam] = max(best.get(exam, (-1.0, 0)), (float(value), place))
    found: dict[int, list[str]] = {place: [] for place, one in enumerate(line) if not one.digest}
    for (suite, _), (_, place) in sorted(best.items()):
        found.setdefault(place, []).append(suite)
    return [(line[place], suites) for place, suites in sorted(found.items())]


def _asked(champion: Version, root: Path) -> dict[str, Any]:
    """Return a version as settings: version, digest and the artifact of its scores.

    The scores are found by the digest in the version's tags. If they cannot be found under this root, the field
    `problem` says so instead of `scores`.
    """
    who = {"version": champion.version, "digest": champion.digest}
    digest, record_digest = (champion.tags.get(f"{kind}.{SCORES}", "") for kind in ("digest", "record_digest"))
    if not champion.digest or not digest:
        return {**who, "problem": f"version {champion.version} has no tags with its digest and that of its scores"}
    found = with_digest(root, SCORES, digest, record_digest)
    if found is None:
        return {
            **who,
            "problem": f"its {SCORES} {digest[:12]} (recipe {champion.tags.get('recipe')}) are not under {root}",
        }
    return {
        **who,
        "scores": {
            "folder": str(found.path.relative_to(root)),
            "partition": found.record["partition"],
            "fingerprint": found.fingerprint,
            "digest": digest,
            "record_digest": record_digest,
        },
    }


def with_digest(root: Path, asset: str, digest: str, record_digest: str) -> Artifact | None:
    """The artifact of `asset` with this digest, preferably with this record digest; None if there is none.

    Artifacts that were set aside (renamed) are found too.
    """
    made = (_whole(path.parent) for path in sorted((root / asset).glob(f"*/{artifact.ARTIFACT_FILE}")))
    same = [found for found in made if found is not None and found.digest == digest]
    return next((found for found in same if found.record_digest == record_digest), same[0] if same else None)


def _whole(folder: Path) -> Artifact | None:
    try:
        return artifact.find(folder)
    except Damaged:
        return None


def is_stale(decision: Artifact, champion: Mapping[str, Any], model: Artifact, root: Path) -> bool:
    """Whether a decision must be made again for this champion.

    That is so if it was compared with another champion, or if it could not read the champion's scores and they can
    be read now. The result is False if the model itself is the champion, because there is nothing to compare it
    with.
    """
    if champion and champion["digest"] == model.digest:
        return False
    recorded = decision.record["settings"].get("champion") or {}
    if _identity(recorded) != _identity(champion):
        return True
    could_not_compare = any("champion" in gate["evidence"].get("failed", {}) for gate in decision.failed_gates)
    return could_not_compare and _is_readable(champion, root)


def _is_readable(champion: Mapping[str, Any], root: Path) -> bool:
    from evaluation.decision.gate import read_champion  # the import takes half a second and is rarely needed

    return not read_champion(champion, root).problems


def _identity(champion: Mapping[str, Any]) -> tuple[Any, ...]:
    scores, best = champion.get("scores", {}), tuple(map(_identity, champion.get("best", ())))
    return champion.get("version"), champion.get("digest"), scores.get("digest"), scores.get("record_digest"), best


def with_stale_noted(comparison: Comparison, tracking: Tracking) -> Comparison:
    """Return the comparison, with a note on the promotion decision if it is stale (made against a former champion).

    Only a tracking store in a local SQLite file is read, because that needs no import of MLflow.
    """
    cell = comparison.cells[DECISION, comparison.recipe.name]
    model = model_of(comparison).artifact
    if cell.artifact is None or model is None or tracking.store is None:
        return comparison
    try:
        line = line_in_file(tracking.store, comparison.recipe.promote.model_name)
    except sqlite3.Error:
        return comparison
    asked = champion_asked(line, comparison.root)
    if not is_stale(cell.artifact, asked, model, comparison.root):
        return comparison
    before = (cell.artifact.record["settings"].get("champion") or {}).get("version")
    note = (
        f"stale: it was compared with {f'version {before}' if before else 'no champion'}, and the champion is"
        f" {named(line[-1] if line else None)} now; whoever materializes it decides again"
    )
    return replace(comparison, cells={**comparison.cells, cell.key: replace(cell, note=note)})


def named(champion: Version | None) -> str:
    """Return the champion as words for a sentence: `version 3`, or `none`."""
    return f"version {champion.version}" if champion else "none"
