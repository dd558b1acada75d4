"""Registering a version of a recipe's model, with tags that record its inputs, scores and promotion decision."""

from __future__ import annotations

import json

from assets.lineage import REPORT, SCORES, lineage_of, model_of
from assets.status import Comparison
from evaluation.answers import MODELS
from resources.tracking.registry import CANDIDATE, Registry, Version
from resources.tracking.reports import artifact_key
from training.artifact import Artifact
from training.scopes import last_model


def tags_of(comparison: Comparison, decision: Artifact | None) -> dict[str, str]:
    """The tags of a model version: its latest decision, its scores, and both digests of everything it is made from."""
    recipe = comparison.recipe
    scores, report = (comparison.cells[asset, recipe.name].artifact for asset in (SCORES, REPORT))
    model = model_of(comparison).artifact
    assert model is not None
    tags = {
        "recipe": recipe.name,
        "digest": model.digest,
        "record_digest": model.record_digest,
        "code_revision": model.record["code_revision"],
        "contamination": _verdict(report),
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
        judged = next(name for name, asset in MODELS.items() if asset == last_model(recipe))
        said = json.loads((scores.path / "scores.json").read_text("utf-8"))[judged]
        tags |= {f"eval.{suite}": str(entry["score"]) for suite, entry in said.items()}
    return tags


def _verdict(report: Artifact | None) -> str:
    """The word of the contamination report's verdict; `unknown` without a report, or with one of an earlier edition."""
    gates = [] if report is None else report.record["gates"]
    return next(
        (gate["evidence"].get("verdict", "unknown") for gate in gates if gate["name"] == "contamination"), "unknown"
    )


def registered(comparison: Comparison, registry: Registry, champion: Version | None, tags: dict[str, str]) -> Version:
    """The version of the recipe's model, which is registered if it is new, with its tags set to `tags`.

    The alias `candidate` moves to this version if it is the newest.
    """
    model = model_of(comparison).artifact
    assert model is not None
    found = registry.version_of(model.digest)
    if found is None:
        run_key = artifact_key(last_model(comparison.recipe), model.fingerprint)
        number = registry.register(str(model.path / "model"), run_key=run_key, tags=tags)
    else:
        number = found.version
        registry.remember(found, champion)
        registry.describe(number, tags)
    candidate = registry.holder(CANDIDATE)
    if candidate is None or int(candidate.version) < int(number):
        registry.set_alias(CANDIDATE, number)
    return registry.version(number)
