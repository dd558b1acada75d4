"""The decision to promote: scores, contamination and the present champion, for exactly these digests.

A pure decision, written to `decision.json`. Moving the alias is done elsewhere, from the decision.

Whoever writes the job names the champion, and in its scores the artifact that holds them; what the champion got right
is read from there and from nowhere else. Where that cannot be read there is no comparison, and so no promotion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.intervals import share_interval
from evaluation.paired import Answers, paired, read_answers
from training.artifact import check_input, write_json
from training.job import Gate, InputArtifact, Job, Outcome, RefusedInput, Work
from training.promote_settings import PromoteRecipe

JUDGED_MODEL = "aligned"
WAY_OUT = (
    "bring the champion's artifacts back under this root or give both the same exam, and run again; or move the alias"
    " by hand: `pedigree promote RECIPE --reason TEXT`, `pedigree rollback MODEL`"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Champion:
    """The model version that holds the champion alias now; `version` is None where there is none yet.

    `digest` is of its aligned model. `problem` says why its answers cannot be read; then nothing is promoted.
    """

    version: str | None = None
    digest: str = ""
    answers: Mapping[str, Answers] = field(default_factory=dict)  # suite: what it got right
    problem: str = ""


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
    scores: Mapping[str, Mapping[str, Any]]  # suite: {"score", "n", …} of the aligned model
    contamination: Mapping[str, Any]  # the report's gate: {"passed", "evidence"}
    answers: Mapping[str, Answers] = field(default_factory=dict)  # suite: what the aligned model got right


def run(job: Job, work: Work) -> Outcome:
    """Decide, and write down why."""
    recipe = job.settings_as(PromoteRecipe, "promote")
    asked = job.settings.get("champion") or {}
    champion = read_champion(asked, root_of(job))
    model = job.input_of("aligned_model")
    checks = decide(recipe, gather(job), champion)
    promoted = all(check.passed for check in checks)
    decision = {
        "promoted": promoted,
        "model_name": recipe.model_name,
        "model": {"asset": model.asset, "fingerprint": model.fingerprint, "digest": model.digest},
        "champion": {
            "version": champion.version,
            **{name: asked[name] for name in ("digest", "scores") if name in asked},
        },
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


def root_of(job: Job) -> Path:
    """The folder of all artifacts, of which this job makes one."""
    return Path(job.output).parent.parent


def read_champion(asked: Mapping[str, Any], root: Path) -> Champion:
    """The champion that a job names: `{}`, or `{"version", "digest", "scores"}`, or `problem` in place of the scores.

    `scores` is the artifact of its scores: `{"folder", "partition", "fingerprint", "digest", "record_digest"}`.
    """
    if not asked:
        return Champion()
    version, digest = str(asked["version"]), str(asked.get("digest", ""))
    if "scores" not in asked:
        return Champion(
            version=version, digest=digest, problem=asked.get("problem") or "the job names none of its scores"
        )
    scores = dict(asked["scores"])
    item = InputArtifact(asset="model_scores", path=str(root / scores.pop("folder")), **scores)
    try:
        if check_input(item).record_digest != item.record_digest and item.record_digest:
            raise RefusedInput(f"{item.path}: its record is not the one that the champion's version names")
        if _input_digest(item, "aligned_model") != digest:
            raise RefusedInput(f"{item.path}: these are scores of another model")
        return Champion(version=version, digest=digest, answers=read_answers(Path(item.path), JUDGED_MODEL))
    except RefusedInput as error:
        return Champion(version=version, digest=digest, problem=str(error))


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
        answers=read_answers(Path(scores.path), JUDGED_MODEL),
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
        _contamination(evidence),
        *(_enough(suite, least, evidence.scores) for suite, least in sorted(recipe.min_scores.items())),
        *_against(champion, recipe.max_score_drop, evidence),
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


def _contamination(evidence: Evidence) -> Check:
    """A verdict of clean or tolerated; the evidence says which, and what allowed it."""
    verdict = evidence.contamination
    return Check(name="contamination", passed=bool(verdict["passed"]), detail=dict(verdict["evidence"]))


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
        "interval": list(share_interval(entry["score"], entry["n"])),
        "n": entry["n"],
    }
    return Check(name=f"score_{suite}", passed=entry["score"] >= least, detail=detail)


def _against(champion: Champion, most: float, evidence: Evidence) -> Iterator[Check]:
    """The comparison with the present champion, suite by suite. A model is not compared with itself."""
    if champion.version is None:
        return
    detail = {"version": champion.version, "digest": champion.digest}
    if champion.digest == evidence.aligned_digest:
        yield Check(name="champion", passed=True, detail={**detail, "reason": "this model is the champion"})
        return
    problem = champion.problem or ("" if champion.answers else "its scores kept no answers")
    if problem:
        detail["reason"] = f"version {champion.version} is the champion, and nothing can be compared with it: {problem}"
        yield Check(name="champion", passed=False, detail={**detail, "way_out": WAY_OUT})
        return
    yield Check(name="champion", passed=True, detail=detail)
    for suite, before in sorted(champion.answers.items()):
        yield _no_drop(suite, before, evidence.answers.get(suite), most)


def _no_drop(suite: str, before: Answers, now: Answers | None, most: float) -> Check:
    """A suite that the champion was judged by and this model was not counts as a drop: nothing shows it as good."""
    name, drop = f"drop_{suite}", paired(before, now) if now else None
    if now is None:
        reason = "the champion has answers to it and this model has none"
    elif before.metric != now.metric:
        reason = f"the champion was judged by {before.metric} and this model by {now.metric}"
    else:
        reason = f"none of the champion's {len(before.correct)} items is among the {len(now.correct)} of this model"
    if drop is None:
        return Check(name=name, passed=False, detail={"suite": suite, "reason": reason, "way_out": WAY_OUT})
    return Check(name=name, passed=not drop.is_above(most), detail={"suite": suite, **drop.as_json(), "most": most})
