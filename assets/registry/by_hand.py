"""The registry by hand: register a kept step, make a recipe's model champion, or go back to the previous champion.

A damaged model is never promoted, so every champion is the artifact that was made. A kept step or a quantized model has
no decision of the gates, so it is registered without an alias, and only a recipe that ends with it can promote it.
"""

from __future__ import annotations

from typing import Any

from assets.registry.decision import DECISION, lineage_of, model_of
from assets.registry.decision_page import show_decision
from assets.registry.kept_digests import behind_of, doubts
from assets.registry.names import not_registered
from assets.registry.standing import REPAIR, damage, standing
from assets.registry.versions import MODEL_FOLDER, MODEL_NOTE, check_whole, registered, tags_of
from assets.state.compare import compare
from resources.tracking.errors import TrackingError
from resources.tracking.registry import CHAMPION, PREVIOUS, Action, Move, Registry, Version, explained, now, somebody
from resources.tracking.reports import Tracking, artifact_key
from resources.tracking.versions import registered_versions
from training.contract.artifact import Artifact, problems_of
from training.contract.job import DataError
from training.contract.scopes import QUANTIZED_MODEL, QUANTIZED_SCORES, kept_in_words, whole_in_words
from training.provenance import lineage
from training.recipe.recipe import Recipe

NO_REASON = "rolled back without a reason"


def promote_by_hand(recipe: Recipe, tracking: Tracking, reason: str) -> dict[str, Any]:
    """Make the recipe's model champion, even if a gate refused it or it is an older version; return the JSON answer.

    The version's tags record that a person did so, and the reason. Raises DataError if `reason` is empty or the model
    is not made, and TrackingError if anything it was made from is damaged.
    """
    if not reason.strip():
        raise DataError("--reason: empty; it stays in the registry for whoever asks why the champion changed")
    comparison = compare(recipe, tracking.root)
    model = model_of(comparison)
    if model.artifact is None:
        raise DataError(
            f"{model.asset} of recipe {recipe.name} is {model.state} under {tracking.root}; `pedigree run` makes it"
        )
    decided = comparison.cells[DECISION, recipe.name]
    behind = [*lineage_of(comparison), decided]
    problems = damage(comparison, before_promotion=True) + doubts(comparison.root, behind, tracking)
    if problems:
        raise TrackingError(f"{problems[0]}; {REPAIR}")
    decision = decided.artifact
    registry = Registry(tracking, recipe.promote.model_name)
    with explained(tracking), registry.locked():
        champion = registry.holder(CHAMPION)
        version = registered(comparison, registry, champion, tags_of(comparison, decision))
        moved = _move(registry, "override", version, champion, reason, decision.record_digest if decision else "")
        show_decision(comparison, standing(comparison, registry), registry)
        return _said(registry, "override", version, moved=moved, reason=reason)


def register_step(recipe: Recipe, step: Artifact, tracking: Tracking) -> dict[str, Any]:
    """Register a kept step, an average or a quantized model as a version without an alias, unless it is one.

    Return the JSON answer. Raise TrackingError if a gate refused the model or its scores, if anything of it is damaged,
    or if Dagster, MLflow or a descendant knows another record of it or of what it was made from, or none.
    """
    judged = [step]
    if step.record["asset"] == QUANTIZED_MODEL:
        judged.append(compare(recipe, tracking.root).made(QUANTIZED_SCORES, recipe.name))
    problems = [f"its gate {gate['name']} refused it" for one in judged for gate in one.failed_gates]
    problems += [problem for one in judged for problem in problems_of(one)]
    problems += doubts(tracking.root, behind_of(lineage.lineage_of(tracking.root, step)), tracking)
    if problems:
        raise TrackingError(f"{step.record['partition']}: {problems[0]}; {REPAIR}")
    with explained(tracking):
        registry = Registry(tracking, recipe.promote.model_name)
        with registry.locked():
            found = registry.version_of(step.digest)
            number = found.version if found else _registered_step(recipe, step, registry)
            return {"ok": True, "model_name": registry.name, "version": number, "moved": found is None}


def _registered_step(recipe: Recipe, step: Artifact, registry: Registry) -> str:
    kept, notes = kept_in_words(step.record["settings"]), step.record["notes"]
    what, judged = whole_in_words(step.record["asset"]), "No gate of its promotion has judged it."
    if parent := notes.get("parent"):
        what, of, own = whole_in_words(parent["asset"]), f"by {notes['method']}", registry.version_of(parent["digest"])
        made_from = {"quantized": notes["method"], "parent": parent["digest"]}
        made_from |= {"parent_version": own.version} if own else {}
        judged = f"It loses no more than quantize.max_drop from {f'version {own.version}' if own else 'that model'}."
    else:
        of = f"after {kept}" if kept else f"as the mean of steps {', '.join(notes['shares'])}"
        made_from = {"kept": of}
    tags = {
        "recipe": recipe.name,
        **made_from,
        "digest": step.digest,
        "record_digest": step.record_digest,
        "code_revision": step.record["code_revision"],
    }
    run_key = artifact_key(step.record["asset"], step.fingerprint)
    number = registry.register(step.file(MODEL_FOLDER), run_key=run_key, tags=tags)
    registry.explain(number, MODEL_NOTE, f"The {what} of the recipe **{recipe.name}** {of}. {judged}")
    return number


def roll_back(name: str, tracking: Tracking, reason: str) -> dict[str, Any]:
    """Make the version with alias `previous` the champion again; return the JSON answer.

    The present champion becomes `previous`. Raises DataError if no version has that alias, with the registered names if
    the model is none of them.
    """
    reason = reason.strip() or NO_REASON
    with explained(tracking):
        registry = Registry(tracking, name)
        with registry.locked():
            champion, version = registry.holder(CHAMPION), registry.holder(PREVIOUS)
            if version is None:
                known = registered_versions(tracking)
                if all(one.name != name for one in known):
                    raise DataError(not_registered(name, name, known))
                raise DataError(
                    f"{name} has no version with the alias {PREVIOUS} to go back to, in this root's registry"
                )
            where = check_whole(version, registry)
            moved = _move(registry, "rollback", version, champion, reason, version.tags.get("decision_record", ""))
            return {**_said(registry, "rollback", version, moved=moved, reason=reason), "checked": where}


def _move(
    registry: Registry, action: Action, version: Version, champion: Version | None, reason: str, decision: str
) -> bool:
    """Point the alias `champion` to `version`; return False if it already pointed there."""
    if champion is not None and champion.version == version.version:
        return False
    before = champion.version if champion else None
    registry.move(
        Move(
            action=action,
            version=version.version,
            before=before,
            why=reason,
            who=somebody(),
            when=now(),
            decision=decision,
        )
    )
    return True


def _said(registry: Registry, action: str, version: Version, *, moved: bool, reason: str) -> dict[str, Any]:
    """Return the JSON output of `pedigree promote` and `pedigree rollback`."""
    previous = registry.holder(PREVIOUS)
    return {
        "ok": True,
        "model_name": registry.name,
        "action": action,
        "champion": version.version,
        "previous": previous.version if previous else None,
        "moved": moved,
        "reason": reason,
    }
