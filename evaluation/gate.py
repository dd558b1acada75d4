"""Stage `promote`: decide whether the recipe's last model may become champion, and write `decision.json`.

The decision depends on the model's scores, its contamination report, and a comparison with the present champion. The
scores, the report and the model card must come from the model with the same digest. This stage only decides; other code
moves the champion alias as decided.

The job's settings identify the champion and the artifact that holds the champion's scores. The champion's answers are
read from that artifact alone. If they cannot be read, the models cannot be compared, and the model is not promoted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluation.answers import MODELS
from evaluation.intervals import share_interval
from evaluation.paired import Answers, paired, read_answers
from training.artifact import check_input, write_json
from training.job import Gate, InputArtifact, Job, Outcome, RefusedInput, Work
from training.settings.promote import PromoteRecipe

WAY_OUT = (
    "bring the champion's artifacts back under this root or give both the same exam, and run again; or move the alias"
    " by hand: `pedigree promote RECIPE --reason TEXT`, `pedigree rollback MODEL`"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Champion:
    """The model version that holds the champion alias; `version` is None if there is no champion yet.

    `digest` is the digest of its model. `problem` is the reason why its answers cannot be read, if they cannot.
    Then no other model is promoted.
    """

    version: str | None = None
    digest: str = ""
    answers: Mapping[str, Answers] = field(default_factory=dict)  # {suite: which items it got right}
    problem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One condition of a promotion: its name, whether it holds, and the numbers that decided it."""

    name: str
    passed: bool
    detail: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The data from which a promotion is decided, all read from artifacts."""

    asset: str  # of the model: with which the recipe's chain ends
    model_digest: str
    scored_digest: str | None  # of the model that was scored
    scores_digest: str
    contamination_scores_digest: str | None  # of the scores that the contamination report was made from
    card_model_digest: str | None
    scores: Mapping[str, Mapping[str, Any]]  # {suite: {"score", "n", …}} of the model
    contamination: Mapping[str, Any]  # the report's gate: {"passed", "evidence"}
    answers: Mapping[str, Answers] = field(default_factory=dict)  # {suite: which items the model got right}


def run(job: Job, work: Work) -> Outcome:
    """Decide on the promotion, and write the decision with its reasons."""
    recipe = job.settings_as(PromoteRecipe, "promote")
    asked = job.settings.get("champion") or {}
    champion = read_champion(asked, root_of(job))
    model = job.input_of(*MODELS.values())
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
        "scores": {suite: entry["score"] for suite, entry in _model_scores(job).items()},
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
    """Return the root, the folder of all artifacts, which is two levels above the job's output folder."""
    return Path(job.output).parent.parent


def read_champion(asked: Mapping[str, Any], root: Path) -> Champion:
    """Return the champion that a job's settings describe.

    `asked` is `{}` if there is no champion. Otherwise it is `{"version", "digest", "scores"}`, or has `problem` in
    place of `scores`. `scores` identifies the artifact of the champion's scores: `{"folder", "partition",
    "fingerprint", "digest", "record_digest"}`, with `folder` relative to `root`.
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
        name = next((name for name, asset in MODELS.items() if _input_digest(item, asset) == digest), None)
        if name is None:
            raise RefusedInput(f"{item.path}: these are scores of another model")
        return Champion(version=version, digest=digest, answers=read_answers(item.folder, name))
    except RefusedInput as error:
        return Champion(version=version, digest=digest, problem=str(error))


def gather(job: Job) -> Evidence:
    """Return the evidence that the job's inputs hold."""
    model = job.input_of(*MODELS.values())
    scores, report = job.input_of("model_scores"), job.input_of("contamination_report")
    gates = {gate["name"]: gate for gate in report.record()["gates"]}
    return Evidence(
        asset=model.asset,
        model_digest=model.digest,
        scored_digest=_input_digest(scores, model.asset),
        scores_digest=scores.digest,
        contamination_scores_digest=_input_digest(report, "model_scores"),
        card_model_digest=_input_digest(job.input_of("model_card"), model.asset),
        scores=_model_scores(job),
        contamination=gates.get(
            "contamination", {"passed": False, "evidence": {"reason": "the report holds no verdict"}}
        ),
        answers=read_answers(scores.folder, _judged(model.asset)),
    )


def _judged(asset: str) -> str:
    """Return the name of an asset's model in the scores, such as `base` for `base_model`."""
    return next(name for name, one in MODELS.items() if one == asset)


def _model_scores(job: Job) -> dict[str, dict[str, Any]]:
    scores = json.loads(job.input_of("model_scores").file("scores.json").read_text("utf-8"))
    return scores[_judged(job.input_of(*MODELS.values()).asset)]


def _input_digest(item: InputArtifact, asset: str) -> str | None:
    """Return the digest of the input that artifact `item` read from `asset`.

    The result is None unless there is exactly one such input.
    """
    found = [entry["digest"] for entry in item.record()["inputs"] if entry["asset"] == asset]
    return found[0] if len(found) == 1 else None


def decide(recipe: PromoteRecipe, evidence: Evidence, champion: Champion) -> list[Check]:
    """Check every condition of a promotion. The model is promoted if all checks pass."""
    return [
        _same_model(evidence),
        _contamination(evidence),
        *(_enough(suite, least, evidence.scores) for suite, least in sorted(recipe.min_scores.items())),
        *_against(champion, recipe.max_score_drop, evidence),
    ]


def _same_model(evidence: Evidence) -> Check:
    """Check that scores, contamination report and card were made from this model, by digest and not by name."""
    expected = {
        f"model_scores.{evidence.asset}": (evidence.scored_digest, evidence.model_digest),
        "contamination_report.model_scores": (evidence.contamination_scores_digest, evidence.scores_digest),
        f"model_card.{evidence.asset}": (evidence.card_model_digest, evidence.model_digest),
    }
    differing = {name: {"made_from": made, "present": now} for name, (made, now) in expected.items() if made != now}
    return Check(name="same_digests", passed=not differing, detail=differing or {evidence.asset: evidence.model_digest})


def _contamination(evidence: Evidence) -> Check:
    """Check that the verdict on contamination is clean or tolerated.

    The evidence says which field of the recipe allowed it.
    """
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
    """Compare the model with the present champion, suite by suite; a champion is not compared with itself.

    `most` is the largest drop of a score that the recipe allows.
    """
    if champion.version is None:
        return
    detail = {"version": champion.version, "digest": champion.digest}
    if champion.digest == evidence.model_digest:
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
    """Check that the score on a suite is at most `most` below the champion's.

    A suite on which the two models cannot be compared fails the check, because nothing shows that this model is as
    good.
    """
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
