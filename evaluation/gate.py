"""The decision to promote: scores, contamination and the present champion, for exactly these digests.

A pure decision, written to `decision.json`. Moving the alias is done elsewhere, from the decision. Standard library
only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from training.artifact import write_json
from training.job import Gate, InputArtifact, Job, Outcome, Work
from training.recipe import PromoteRecipe

JUDGED_MODEL = "aligned"


@dataclass(frozen=True, kw_only=True, slots=True)
class Champion:
    """The model version that holds the champion alias now; `version` is None where there is none yet."""

    version: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One condition of a promotion: what it is about, whether it holds, and the numbers it was judged by."""

    name: str
    passed: bool
    detail: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What a promotion is decided on, all of it read from artifacts."""

    aligned_digest: str
    scored_digest: str | None  # of the aligned model that the scores are of
    scores_digest: str
    contamination_scores_digest: str | None  # of the scores that the contamination report looked at
    card_aligned_digest: str | None
    scores: Mapping[str, Mapping[str, Any]]  # suite: {"score", "stderr", "n", …} of the aligned model
    contamination: Mapping[str, Any]  # the report's gate: {"passed", "evidence"}


def run(job: Job, work: Work) -> Outcome:
    """Decide, and write down why."""
    recipe = job.settings_as(PromoteRecipe, "promote")
    champion = read_champion(job.settings.get("champion") or {})
    model = job.input_of("aligned_model")
    checks = decide(recipe, gather(job), champion)
    promoted = all(check.passed for check in checks)
    decision = {
        "promoted": promoted,
        "model_name": recipe.model_name,
        "model": {"asset": model.asset, "fingerprint": model.fingerprint, "digest": model.digest},
        "champion": {"version": champion.version, "scores": dict(champion.scores)},
        "scores": {suite: entry["score"] for suite, entry in _aligned_scores(job).items()},
        "checks": [{"name": check.name, "passed": check.passed, "detail": check.detail} for check in checks],
    }
    write_json(work.path / "decision.json", decision)
    failed = {check.name: check.detail for check in checks if not check.passed}
    evidence = {"failed": failed} if failed else {"checks": [check.name for check in checks]}
    return Outcome(
        files=("decision.json",),
        metrics={
            "promoted": float(promoted),
            **{f"score_{suite}": score for suite, score in decision["scores"].items()},
        },
        gates=(Gate(name="promotion", passed=promoted, evidence=evidence),),
        notes={"model_name": recipe.model_name, "champion_before": champion.version},
    )


def read_champion(data: Mapping[str, Any]) -> Champion:
    """The champion in a job's settings: `{}`, or `{"version", "scores": {suite: score}}`."""
    if not data:
        return Champion()
    return Champion(version=str(data["version"]), scores={str(k): float(v) for k, v in data.get("scores", {}).items()})


def gather(job: Job) -> Evidence:
    """The evidence in the job's inputs."""
    scores, report = job.input_of("model_scores"), job.input_of("contamination_report")
    gates = {gate["name"]: gate for gate in report.record()["gates"]}
    return Evidence(
        aligned_digest=job.input_of("aligned_model").digest,
        scored_digest=_input_digest(scores, "aligned_model"),
        scores_digest=scores.digest,
        contamination_scores_digest=_input_digest(report, "model_scores"),
        card_aligned_digest=_input_digest(job.input_of("model_card"), "aligned_model"),
        scores=_aligned_scores(job),
        contamination=gates.get(
            "contamination", {"passed": False, "evidence": {"reason": "the report holds no verdict"}}
        ),
    )


def _aligned_scores(job: Job) -> dict[str, dict[str, Any]]:
    scores = json.loads(job.input_of("model_scores").file("scores.json").read_text("utf-8"))
    return scores[JUDGED_MODEL]


def _input_digest(item: InputArtifact, asset: str) -> str | None:
    """The digest of the one input of `item` made by `asset`, as recorded then; None when there is not one."""
    found = [entry["digest"] for entry in item.record()["inputs"] if entry["asset"] == asset]
    return found[0] if len(found) == 1 else None


def decide(recipe: PromoteRecipe, evidence: Evidence, champion: Champion) -> list[Check]:
    """Every condition of a promotion, with its verdict. The model is promoted when all hold."""
    return [
        _same_model(evidence),
        _contamination(recipe, evidence),
        *(_enough(suite, least, evidence.scores) for suite, least in sorted(recipe.min_scores.items())),
        *(
            _no_drop(suite, score, recipe.max_score_drop, evidence.scores)
            for suite, score in sorted(champion.scores.items())
        ),
    ]


def _same_model(evidence: Evidence) -> Check:
    """Scores, contamination and card must be of this very model: a digest, not a name."""
    expected = {
        "model_scores.aligned_model": (evidence.scored_digest, evidence.aligned_digest),
        "contamination_report.model_scores": (evidence.contamination_scores_digest, evidence.scores_digest),
        "model_card.aligned_model": (evidence.card_aligned_digest, evidence.aligned_digest),
    }
    differing = {name: {"made_from": made, "present": now} for name, (made, now) in expected.items() if made != now}
    return Check(
        name="same_digests", passed=not differing, detail=differing or {"aligned_model": evidence.aligned_digest}
    )


def _contamination(recipe: PromoteRecipe, evidence: Evidence) -> Check:
    verdict = evidence.contamination
    passed = bool(verdict["passed"]) or not recipe.require_clean
    return Check(name="contamination", passed=passed, detail={"required": recipe.require_clean, **verdict["evidence"]})


def _enough(suite: str, least: float, scores: Mapping[str, Mapping[str, Any]]) -> Check:
    entry = scores.get(suite)
    if entry is None:
        detail = {
            "suite": suite,
            "least": least,
            "reason": f"no such suite was scored; there are {', '.join(sorted(scores))}",
        }
        return Check(name=f"score_{suite}", passed=False, detail=detail)
    detail = {
        "suite": suite,
        "score": entry["score"],
        "least": least,
        "stderr": entry.get("stderr"),
        "n": entry.get("n"),
    }
    return Check(name=f"score_{suite}", passed=entry["score"] >= least, detail=detail)


def _no_drop(suite: str, before: float, most: float, scores: Mapping[str, Mapping[str, Any]]) -> Check:
    """A suite that the champion was judged by and this model was not counts as a drop: nothing shows it as good."""
    name = f"drop_{suite}"
    if suite not in scores:
        detail = {
            "suite": suite,
            "champion": before,
            "reason": "the champion has a score on it and this model has none",
        }
        return Check(name=name, passed=False, detail=detail)
    now = scores[suite]["score"]
    drop = round(before - now, 9)  # a difference of two decimals should not fail by its last bit
    return Check(
        name=name,
        passed=drop <= most,
        detail={"suite": suite, "champion": before, "score": now, "drop": drop, "most": most},
    )
