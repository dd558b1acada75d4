"""Where a recipe's model stands: what it was decided against, whether all of it is whole, and what the registry says.

A decision is *stale* when another version is champion than the one that it compared with. A stale decision is made, so
nothing is missing, and it is not acted upon: whoever materializes `promoted_model` decides again. No Dagster in here.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assets.chain import CHAIN
from assets.status import Cell, Comparison
from resources.tracking.registry import CANDIDATE, CHAMPION, Registry, Version, champion_in_file
from resources.tracking.reports import Tracking, artifact_key
from training import artifact
from training.artifact import Artifact, Damaged

REPAIR = "`pedigree verify RECIPE --mend` sets aside what has a damaged file, and a run puts right what is damaged"
BY_HAND = ("override", "rollback")
DECISION, MODEL, SCORES, REPORT = "promoted_model", "aligned_model", "model_scores", "contamination_report"


# The champion that a decision is made against


def champion_asked(champion: Version | None, root: Path) -> dict[str, Any]:
    """The champion as the job that decides has it: `{}`, or version, digest, and the artifact of its scores.

    The scores are found by the digest that its tags hold. Where they are not under this root, `problem` says so.
    """
    if champion is None:
        return {}
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
    """The artifact with this digest, the one with this record digest first; also one that another took the place of."""
    made = (_whole(path.parent) for path in sorted((root / asset).glob(f"*/{artifact.ARTIFACT_FILE}")))
    same = [found for found in made if found is not None and found.digest == digest]
    return next((found for found in same if found.record_digest == record_digest), same[0] if same else None)


def _whole(folder: Path) -> Artifact | None:
    try:
        return artifact.find(folder)
    except Damaged:
        return None


def is_stale(decision: Artifact, champion: Mapping[str, Any], model: Artifact, root: Path) -> bool:
    """Whether a decision was made against another champion than this one, or could not read what can be read now.

    The model that is champion itself is not decided again: there is nobody else to compare it with.
    """
    if champion and champion["digest"] == model.digest:
        return False
    recorded = decision.record["settings"].get("champion") or {}
    if _identity(recorded) != _identity(champion):
        return True
    could_not_compare = any("champion" in gate["evidence"].get("failed", {}) for gate in decision.failed_gates)
    return could_not_compare and _is_readable(champion, root)


def _is_readable(champion: Mapping[str, Any], root: Path) -> bool:
    from evaluation.gate import read_champion  # costs half a second, and is rarely asked

    return not read_champion(champion, root).problem


def _identity(champion: Mapping[str, Any]) -> tuple[Any, ...]:
    scores = champion.get("scores", {})
    return champion.get("version"), champion.get("digest"), scores.get("digest"), scores.get("record_digest")


def with_stale_noted(comparison: Comparison, tracking: Tracking) -> Comparison:
    """The comparison, where a stale decision has a note that says so. Only of a store that is a file: it can be asked
    without MLflow."""
    cell = comparison.cells[DECISION, comparison.recipe.name]
    model = comparison.cells[MODEL, comparison.recipe.name].artifact
    if cell.artifact is None or model is None or tracking.store is None or not tracking.store.exists():
        return comparison
    try:
        champion = champion_in_file(tracking.store, comparison.recipe.promote.model_name)
    except sqlite3.Error:
        return comparison
    asked = champion_asked(champion, comparison.root)
    if not is_stale(cell.artifact, asked, model, comparison.root):
        return comparison
    before = (cell.artifact.record["settings"].get("champion") or {}).get("version")
    note = (
        f"stale: it was compared with {f'version {before}' if before else 'no champion'}, and the champion is"
        f" {_named(champion)} now; whoever materializes it decides again"
    )
    return replace(comparison, cells={**comparison.cells, cell.key: replace(cell, note=note)})


# Whether it is whole


def lineage_of(comparison: Comparison) -> list[Cell]:
    """Every cell that the recipe's decision is made from, near and far, in the order of the chain."""
    wanted: set[tuple[str, str]] = set()
    waiting = [(DECISION, comparison.recipe.name)]
    while waiting:
        for key in comparison.cells[waiting.pop()].inputs:
            if key not in wanted:
                wanted.add(key)
                waiting.append(key)
    return [cell for key, cell in comparison.cells.items() if key in wanted]


def unfit(comparison: Comparison) -> list[str]:
    """Why the registry must not be touched for this model, whatever was decided; one line each, empty when all is well.

    Everything that it is made from must be there, passed by its gates, and whole.
    """
    lines = []
    for cell in lineage_of(comparison):
        if cell.artifact is None:
            lines.append(f"{cell.asset} [{cell.partition}] is not made as the recipe asks for it")
        elif cell.artifact.failed_gates:
            lines.append(f"{cell.asset} [{cell.partition}] was refused by {cell.artifact.failed_gates[0]['name']}")
    return lines + damage(comparison, before_promotion=True)


def damage(comparison: Comparison, *, before_promotion: bool = False) -> list[str]:
    """One line for everything damaged: records of all artifacts, and files of the model and of the artifacts that its
    decision was made from.

    `before_promotion` reads the files of every other model on the way too, and of all the rest, which may be terabytes,
    it asks whether they are there with their sizes. (`pedigree verify` reads every file.)
    """
    decision = comparison.cells[DECISION, comparison.recipe.name]
    cells = (*lineage_of(comparison), decision)
    lines = [f"{cell.asset} [{cell.partition}]: {line}" for cell in cells if cell.is_damaged for line in cell.reasons]
    for cell in cells:
        is_near = cell is decision or cell.key in decision.inputs
        if cell.artifact is not None and (is_near or before_promotion):
            reads = is_near or CHAIN[cell.asset].stage.by_a_model
            lines += artifact.damaged_files(cell.artifact, reads=reads)
    return lines


# What the registry says


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Where a recipe's model stands in the registry. `version` and `champion` are None where there is none.

    `sentence` says why it is not promoted; `undecided` that materializing `promoted_model` again would do something.
    """

    model_name: str
    version: str | None = None
    champion: str | None = None
    promoted: bool = False
    by_hand: bool = False  # promoted by a person, whatever the gate said
    undecided: bool = False
    is_damaged: bool = False
    is_known: bool = True  # the registry answered
    superseded_by: str = ""  # the champion, where this version was it before
    sentence: str = ""

    def as_json(self) -> dict[str, Any]:
        """The form in a command's JSON answer."""
        return {
            "model_name": self.model_name,
            "version": self.version,
            "champion": self.champion,
            "sentence": self.sentence,
        }


def standing(comparison: Comparison, registry: Registry) -> Standing:
    """The truth about the recipe's model now, from the registry and the files."""
    decision, model = (comparison.cells[asset, comparison.recipe.name].artifact for asset in (DECISION, MODEL))
    champion = registry.holder(CHAMPION)
    version = registry.version_of(model.digest) if model is not None else None
    known = Standing(
        model_name=registry.name,
        version=version.version if version else None,
        champion=champion.version if champion else None,
    )
    if model is None:
        return replace(known, sentence="aligned_model is not made as the recipe asks for it")
    lines = damage(comparison)
    if lines:
        return replace(known, is_damaged=True, sentence=f"{lines[0]}; {REPAIR}")
    if version and champion and version.version == champion.version:
        return replace(known, promoted=True, by_hand=version.tags.get("champion.how") in BY_HAND)
    if decision is None:
        return replace(known, sentence="it was not decided whether to promote it")
    asked = champion_asked(champion, comparison.root)
    if is_stale(decision, asked, model, comparison.root):
        return replace(known, undecided=True, sentence=f"it was compared with another champion than {_named(champion)}")
    if decision.failed_gates:
        return replace(known, sentence="it was refused by the gate promotion")
    if version is not None and registry.was_champion(version, champion):
        by = champion.version if champion else "none"
        return replace(known, superseded_by=by, sentence=superseded(registry.name, version, champion))
    return replace(known, undecided=True, sentence="it may be promoted, and nobody has done so yet")


def superseded(name: str, version: Version, champion: Version | None) -> str:
    """Why a version that was champion does not come back by itself, and how it does."""
    recipe = version.tags.get("recipe", "RECIPE")
    return (
        f"version {version.version} was champion of {name} before {_named(champion)}, and does not come back by"
        f" itself; `pedigree rollback {name}` or `pedigree promote {recipe} --reason TEXT` brings it back"
    )


def _named(champion: Version | None) -> str:
    return f"version {champion.version}" if champion else "none"


# What a version says of itself


def tags_of(comparison: Comparison, decision: Artifact | None) -> dict[str, str]:
    """The tags of a version: its latest decision, its scores, and both digests of everything that it was made from."""
    recipe = comparison.recipe
    cells = {asset: comparison.cells[asset, recipe.name].artifact for asset in (MODEL, SCORES, REPORT)}
    model, scores, report = cells.values()
    assert model is not None
    tags = {
        "recipe": recipe.name,
        "digest": model.digest,
        "record_digest": model.record_digest,
        "code_revision": model.record["code_revision"],
        "contamination": "unknown" if report is None else "fail" if report.failed_gates else "pass",
        "decision": decision.digest if decision else "",
        "decision_record": decision.record_digest if decision else "",
        "verdict": "none" if decision is None else "refused" if decision.failed_gates else "passed",
    }
    if decision is not None:
        tags["compared_with"] = (decision.record["settings"].get("champion") or {}).get("version", "none")
    for cell in lineage_of(comparison):
        if cell.artifact is not None:
            tags[f"digest.{cell.place}"] = cell.artifact.digest
            tags[f"record_digest.{cell.place}"] = cell.artifact.record_digest
    if scores is not None:
        said = json.loads((scores.path / "scores.json").read_text("utf-8"))["aligned"]
        tags |= {f"eval.{suite}": str(entry["score"]) for suite, entry in said.items()}
    return tags


def registered(comparison: Comparison, registry: Registry, champion: Version | None, tags: dict[str, str]) -> Version:
    """The registered version of the recipe's model, registered now if it is new, and given these tags. The newest
    version becomes `candidate`."""
    model = comparison.cells[MODEL, comparison.recipe.name].artifact
    assert model is not None
    found = registry.version_of(model.digest)
    if found is None:
        run_key = artifact_key(MODEL, model.fingerprint)
        number = registry.register(str(model.path / "model"), run_key=run_key, tags=tags)
    else:
        number = found.version
        registry.remember(found, champion)
        registry.describe(number, tags)
    candidate = registry.holder(CANDIDATE)
    if candidate is None or int(candidate.version) < int(number):
        registry.set_alias(CANDIDATE, number)
    return registry.version(number)
