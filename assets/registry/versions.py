"""Registering a version of a recipe's model, with tags that record its inputs, scores and promotion decision."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from assets.registry.champion import with_digest
from assets.registry.decision import REPORT, SCORES, lineage_of, model_of
from assets.registry.standing import REPAIR
from evaluation.decision.answers import MODELS, NAMES, choice_in_words
from resources.tracking.errors import TrackingError
from resources.tracking.loadable import Score
from resources.tracking.registry import CANDIDATE
from resources.tracking.reports import artifact_key
from training.contract.artifact import digest_of, problems_of
from training.contract.scopes import CHOSEN_MODEL, last_model, last_trained
from training.contract.tables import markdown_table

if TYPE_CHECKING:
    from assets.state.cell import Comparison
    from resources.tracking.registry import Registry, Version
    from training.contract.artifact import Artifact
    from training.recipe.recipe import Recipe

MODEL_NOTE = (
    "Language models by Pedigree recipes. `champion` is the promoted version, `previous` the one before it, and"
    " `candidate` the newest. Load one by `mlflow.pyfunc.load_model` or `mlflow.transformers.load_model`."
)
MODEL_FOLDER = "model"  # of a model's artifact, in the transformers layout


def tags_of(comparison: Comparison, decision: Artifact | None) -> dict[str, str]:
    """The tags of a model version: its latest decision, its scores, and both digests of everything it is made from."""
    recipe = comparison.recipe
    report = comparison.cells[REPORT, recipe.name].artifact
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
        tags["compared_with"] = decision.record["notes"]["champion_before"] or "none"
    if said := choice_in_words(model.record):
        tags |= {"chosen_on": model.record["notes"]["choice"]["suite"], "choice": said}
    for cell in lineage_of(comparison):
        if cell.artifact is not None:
            tags[f"digest.{cell.place}"] = cell.artifact.digest
            tags[f"record_digest.{cell.place}"] = cell.artifact.record_digest
    for one in scores_of(comparison):
        tags |= {f"eval.{one.suite}": str(one.value), f"exam.{one.suite}": one.exam}
    return tags


def judged(recipe: Recipe) -> str:
    """The name under which the scores have the recipe's last model: `base`, `sft` or `aligned`."""
    return next(name for name, asset in MODELS.items() if asset == last_trained(recipe))


def scores_of(comparison: Comparison) -> list[Score]:
    """The scores of the recipe's last model, each with the exam; empty if the model was not scored."""
    made = comparison.cells[SCORES, comparison.recipe.name].artifact
    if made is None:
        return []
    said = json.loads(made.file("scores.json").read_text("utf-8"))[judged(comparison.recipe)]
    settings = made.record["settings"]
    suites = {one["name"]: one for one in settings["evaluation"]["suites"]}
    files, others = settings.get("data", {}), {key: settings[key] for key in settings.keys() - {"evaluation", "data"}}
    return [
        Score(
            suite=name,
            value=entry["score"],
            exam=digest_of({"suite": suites[name], "file": files.get(suites[name]["uri"]), "settings": others}),
            source=json.dumps({"uri": suites[name]["uri"]}),
        )
        for name, entry in said.items()
    ]


def note_of(tags: Mapping[str, str]) -> str:
    """Return the description of a registered model version, made from its tags."""
    scores = [(name.removeprefix("eval."), f"{float(tags[name]):.3f}") for name in tags if name.startswith("eval.")]
    table = "\n".join(markdown_table(("exam", "score"), scores)) if scores else "It has no scores."
    choice = f" {tags['choice']}." if "choice" in tags else ""
    return (
        f"The last model of the recipe **{tags['recipe']}**.{choice} Its decision: {tags['verdict']}. Contamination:"
        f" {tags['contamination']}.\n\n{table}\n\nDigest `{tags['digest'][:12]}`; the tags hold the digests of"
        " everything that it was made from."
    )


def _verdict(report: Artifact | None) -> str:
    """Return the verdict of the contamination report with the number of items cleared; `unknown` without a report."""
    gates = [] if report is None else report.record["gates"]
    said = next((gate["evidence"] for gate in gates if gate["name"] == "contamination"), {})
    return said.get("told") or said.get("verdict", "unknown")


def registered(comparison: Comparison, registry: Registry, champion: Version | None, tags: dict[str, str]) -> Version:
    """The version of the recipe's model, which is registered if it is new, with its tags set to `tags`.

    The alias `candidate` moves to this version if it is the newest.
    """
    model = model_of(comparison).artifact
    assert model is not None
    found = registry.version_of(model.digest)
    if found is None:
        run_key = artifact_key(last_model(comparison.recipe), model.fingerprint)
        number = registry.register(model.file(MODEL_FOLDER), run_key=run_key, tags=tags)
    else:
        number = found.version
        if problems := registry.unloadable(found, model.file(MODEL_FOLDER)):
            raise TrackingError(f"version {number} of {registry.name} is not whole: {problems[0]}; {REPAIR}")
        registry.remember(found, champion)
        registry.describe(number, tags)
    if found is None or any(found.tags.get(name) != tags[name] for name in tags if name.startswith("eval.")):
        registry.score(number, scores_of(comparison))
    registry.explain(number, MODEL_NOTE, note_of(tags))
    candidate = registry.holder(CANDIDATE)
    if candidate is None or int(candidate.version) < int(number):
        registry.set_alias(CANDIDATE, number)
    return registry.version(number)


def check_whole(version: Version, registry: Registry) -> bool:
    """Check the version's record and files, and what MLflow would load.

    False if they are not under this root and so could not be checked. Raise TrackingError if the record is another one
    or a file is damaged.
    """
    told = version.tags.get("record_digest", "")
    found = (with_digest(registry.tracking.root, asset, version.digest, told) for asset in (*NAMES, CHOSEN_MODEL))
    made = next((one for one in found if one is not None), None)
    if made is None:
        return False
    problems = [f"{made.path}: its record is not the one that version {version.version} names"]
    problems = problems if told and told != made.record_digest else problems_of(made)
    problems = problems or registry.unloadable(version, made.file(MODEL_FOLDER))
    if problems:
        raise TrackingError(f"version {version.version} is not whole: {problems[0]}; {REPAIR}")
    return True
