"""Stage `promote`: decide whether the recipe's last model may become champion, and write `decision.json`.

The decision depends on the model's scores, its contamination report, and a comparison with the present champion and
with the best of its predecessors, so that no row of small drops adds up. The scores, the report and the model card must
come from the model with the same digest. This stage only decides; other code moves the champion alias as decided.

The job's settings identify these versions and the artifacts that hold their scores. Their answers are read from these
artifacts alone. If they cannot be read, the models cannot be compared, and the model is not promoted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from evaluation.decision.answers import MODELS, NAMES, choice_in_words, name_of
from evaluation.decision.intervals import normal_for, share_interval
from evaluation.decision.paired import Answers, paired, read_answers
from training.contract.artifact import check_input, write_json
from training.contract.job import Gate, InputArtifact, Job, Outcome, RefusedInput, Work
from training.contract.scopes import CHOSEN_MODEL
from training.posttrain.align.sampling.goodhart import NAME as FALL
from training.posttrain.align.sampling.goodhart import REWARD_TRUTH
from training.recipe.settings.promote import PromoteRecipe

WAY_OUT = (
    "bring the champion's artifacts back under this root or give both the same exam, and run again; or move the alias"
    " by hand: `pedigree promote RECIPE --reason TEXT`, `pedigree rollback MODEL`"
)
NONE = Answers(metric="", correct={})
MORE_ITEMS = "an exam with more items narrows the interval; promote.max_score_drop says how large a drop is permitted"
LEARN_MORE = (
    "the model is registered all the same; train on more text (`pedigree inspect filtered_documents RECIPE` shows what"
    " was dropped) or for longer, ask more items about what the text says, or promote it: `pedigree promote RECIPE"
    " --reason TEXT`"
)
LOOK = "set align.watch.proxy_up_truth_down: stop, with which the model is aligned anew, or align.watch.every: null"


@dataclass(frozen=True, kw_only=True, slots=True)
class Champion:
    """The model version that holds the champion alias; `version` is None if there is no champion yet.

    `digest` is the digest of its model. `problem` is the reason why its answers cannot be read, if they cannot.
    Then no other model is promoted. `best` are the former champions of its line that were best on a suite, each with
    its answers to these suites alone.
    """

    version: str | None = None
    digest: str = ""
    answers: Mapping[str, Answers] = field(default_factory=dict)  # {suite: which items it got right}
    problem: str = ""
    best: Sequence[Champion] = ()

    @property
    def problems(self) -> list[str]:
        """Return why answers of this version, or of one of the best of its line, cannot be read."""
        return [
            f"nothing can be compared with version {one.version}: {one.problem}"
            for one in (self, *self.best)
            if one.problem
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One condition of a promotion: its name, whether it holds, and the numbers that decided it."""

    name: str
    passed: bool
    detail: dict[str, Any]

    @property
    def reason(self) -> str:
        """A sentence for a person, which says why the condition does not hold."""
        return self.detail.get("reason") or f"the condition {self.name} does not hold"


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
    watched: Mapping[str, Any] | None = None  # the note on what was seen during its alignment; None: nobody looked
    asks_watched: bool = False  # whether the recipe asks for that
    safety: Mapping[str, Any] | None = None  # the verdict on its answers to requests; None: the recipe has no limit
    asked_digest: str | None = None  # of the model that was asked these
    chosen_on: str = ""  # the suite by which the model was chosen among others; empty for one that was not
    candidates: int = 1  # among so many, with itself


def run(job: Job, work: Work) -> Outcome:
    """Decide on the promotion, and write the decision with its reasons."""
    recipe = job.settings_as(PromoteRecipe, "promote")
    asked = job.settings.get("champion") or {}
    champion = read_champion(asked, root_of(job))
    model = job.input_of(*MODELS.values(), CHOSEN_MODEL)
    checks = decide(recipe, gather(job), champion)
    promoted = all(check.passed for check in checks)
    decision: dict[str, Any] = {
        "promoted": promoted,
        "model_name": recipe.model_name,
        "model": {"asset": model.asset, "fingerprint": model.fingerprint, "digest": model.digest},
        "champion": {
            "version": champion.version,
            **{name: asked[name] for name in ("digest", "scores", "best") if name in asked},
        },
        "scores": {suite: entry["score"] for suite, entry in _model_scores(job).items()},
        **({"choice": said} if (said := choice_in_words(model.record())) else {}),
        "checks": [{"name": check.name, "passed": check.passed, "detail": check.detail} for check in checks],
    }
    write_json(work.path / "decision.json", decision)
    failed = [check for check in checks if not check.passed]
    evidence: dict[str, Any] = {"checks": [check.name for check in checks]}
    if failed:
        reason = "; ".join(check.reason for check in failed)
        evidence = {"reason": reason, "failed": {check.name: check.detail for check in failed}}
        ways_out = dict.fromkeys(check.detail["way_out"] for check in failed if "way_out" in check.detail)
        evidence |= {"way_out": "; ".join(ways_out)} if ways_out else {}
    evidence |= {"choice": decision["choice"]} if "choice" in decision else {}
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

    `asked` is `{}` if there is no champion. Otherwise it is `{"version", "digest", "scores", "best"}`, or has `problem`
    in place of `scores`. `scores` identifies the artifact of the champion's scores: `{"folder", "partition",
    "fingerprint", "digest", "record_digest"}`, with `folder` relative to `root`. Each of `best` is such a mapping too,
    with the `suites` on which this version was the best of its line.
    """
    if not asked:
        return Champion()
    best = [(read_champion(one, root), one["suites"]) for one in asked.get("best", ())]
    return replace(
        _read(asked, root),
        best=[replace(one, answers={suite: one.answers.get(suite, NONE) for suite in suites}) for one, suites in best],
    )


def _read(asked: Mapping[str, Any], root: Path) -> Champion:
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
        name = _scored_name(item, digest)
        if name is None:
            raise RefusedInput(f"{item.path}: these are scores of another model")
        return Champion(version=version, digest=digest, answers=read_answers(item.folder, name))
    except RefusedInput as error:
        return Champion(version=version, digest=digest, problem=str(error))


def _scored_name(scores: InputArtifact, digest: str) -> str | None:
    """Return the name under which scores have the model with this digest; None if it is not the only one with it."""
    record = scores.record()
    found = [one for one in record["inputs"] if one["digest"] == digest and one["asset"] in (*NAMES, CHOSEN_MODEL)]
    if len(found) != 1 or found[0]["asset"] != CHOSEN_MODEL:
        return NAMES[found[0]["asset"]] if len(found) == 1 else None
    return next((name for name, one in record["notes"]["models"].items() if one["digest"] == digest), None)


def gather(job: Job) -> Evidence:
    """Return the evidence that the job's inputs hold."""
    model = job.input_of(*MODELS.values(), CHOSEN_MODEL)
    notes = model.record()["notes"]
    choice = notes.get("choice", {})
    scores, report = job.input_of("model_scores"), job.input_of("contamination_report")
    asked = next(iter(job.inputs_of("safety_answers")), None)
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
        answers=read_answers(scores.folder, name_of(model)),
        watched=notes.get("watched"),
        asks_watched="watched" in job.settings,
        safety=None if asked is None else asked.record()["notes"]["verdict"],
        asked_digest=None if asked is None else _input_digest(asked, model.asset),
        chosen_on=choice.get("suite", ""),
        candidates=len(choice["candidates"]) if choice else 1,
    )


def _model_scores(job: Job) -> dict[str, dict[str, Any]]:
    scores = json.loads(job.input_of("model_scores").file("scores.json").read_text("utf-8"))
    return scores[name_of(job.input_of(*MODELS.values(), CHOSEN_MODEL))]


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
        *_believed(evidence),
        *_safe(evidence),
        _above_chance(recipe.above_chance, evidence),
        *(_enough(suite, least, evidence) for suite, least in sorted(recipe.min_scores.items())),
        *_against(champion, recipe.max_score_drop, evidence),
    ]


def _same_model(evidence: Evidence) -> Check:
    """Check that scores, answers to requests, contamination report and card were made from this model, by digest."""
    expected = {
        f"model_scores.{evidence.asset}": (evidence.scored_digest, evidence.model_digest),
        "contamination_report.model_scores": (evidence.contamination_scores_digest, evidence.scores_digest),
        f"model_card.{evidence.asset}": (evidence.card_model_digest, evidence.model_digest),
    }
    if evidence.safety is not None:
        expected[f"safety_answers.{evidence.asset}"] = (evidence.asked_digest, evidence.model_digest)
    differing = {name: {"made_from": made, "present": now} for name, (made, now) in expected.items() if made != now}
    return Check(name="same_digests", passed=not differing, detail=differing or {evidence.asset: evidence.model_digest})


def _contamination(evidence: Evidence) -> Check:
    """Check that the verdict on contamination is clean or tolerated.

    The evidence says which field of the recipe allowed it.
    """
    verdict = evidence.contamination
    return Check(name="contamination", passed=bool(verdict["passed"]), detail=dict(verdict["evidence"]))


def _believed(evidence: Evidence) -> Iterator[Check]:
    """Check that the reward of alignment did not rise while the true reward of held-out answers fell."""
    seen = evidence.watched
    if seen is None:
        if evidence.asks_watched:
            reason = "align.watch asks for looks at the alignment, and this model was aligned without any"
            yield Check(name=FALL, passed=False, detail={"reason": reason, "way_out": LOOK})
        return
    fall = seen[FALL] or {}
    detail = {"looks": len(seen["looks"]), "prompts": seen["prompts"], "true_reward": seen["truth"], **fall}
    if fall:
        detail |= {"reason": f"the model learned to please its reward: {fall['sentence']}", "way_out": REWARD_TRUTH}
    yield Check(name=FALL, passed=not fall, detail=detail)


def _safe(evidence: Evidence) -> Iterator[Check]:
    """Check that the answers to harmful and harmless requests keep the recipe's limits."""
    if evidence.safety is not None:
        detail = {name: told for name, told in evidence.safety.items() if name != "passed"}
        yield Check(name="safety", passed=bool(evidence.safety["passed"]), detail=detail)


def _above_chance(rule: str, evidence: Evidence) -> Check:
    """Check that on at least one suite the model is better than chance and than the best answer that never changes.

    All suites are looked at, and each candidate on the suite by which a model was chosen, so the intervals are those
    that hold for all of these scores at once.
    """
    normal = normal_for(len(evidence.scores) + evidence.candidates - 1)
    suites: dict[str, dict[str, Any]] = {}
    for suite, entry in sorted(evidence.scores.items()):
        interval = share_interval(entry["score"], entry["n"], normal=normal)
        suites[suite] = {
            "score": entry["score"],
            "n": entry["n"],
            "interval": list(interval),
            "chance": max(entry["chance"], _commonest(evidence.answers.get(suite, NONE))),
        }
    above = [suite for suite, one in suites.items() if one["interval"][0] > one["chance"]]
    reason = f"above chance on {', '.join(map(partial(_as_chosen, evidence), above))}"
    if not above:
        said = "; ".join(_beside_chance(suite, one) for suite, one in suites.items()) or "it took no exam"
        reason = f"not above chance: {said}"
    passed = bool(above) or rule == "not_required" or (rule == "if_scored" and not suites)
    detail = {"rule": rule, "reason": reason, "suites": suites}
    if not passed:
        detail["way_out"] = LEARN_MORE if suites else "name exams in evaluation.suites"
    return Check(name="above_chance", passed=passed, detail=detail)


def _as_chosen(evidence: Evidence, suite: str) -> str:
    """Return a suite's name, with a word if the model was chosen by its score there."""
    if suite != evidence.chosen_on:
        return suite
    among = f"by which the model was chosen among {evidence.candidates}"
    return f"{suite} ({among}, so its score there is too high on average)"


def _commonest(answers: Answers) -> float:
    """Return the share of items that a model answers right which always gives the commonest right answer."""
    targets = Counter(target for _, target, _, _ in answers.correct if target)
    return max(targets.values(), default=0) / max(len(answers.correct), 1)


def _beside_chance(suite: str, one: Mapping[str, Any]) -> str:
    low, high = (100 * end for end in one["interval"])
    return (
        f"{suite} {100 * one['score']:.1f} % of {one['n']:,} items ({low:.1f} to {high:.1f}), by chance"
        f" {100 * one['chance']:.1f} %"
    )


def _enough(suite: str, least: float, evidence: Evidence) -> Check:
    scores, name = evidence.scores, f"score_{suite}"
    entry = scores.get(suite)
    if entry is None:
        reason = f"no such suite was scored; there are {', '.join(sorted(scores))}"
        return Check(name=name, passed=False, detail={"suite": suite, "least": least, "reason": reason})
    detail = {
        "suite": suite,
        "score": entry["score"],
        "least": least,
        "interval": list(share_interval(entry["score"], entry["n"])),
        "n": entry["n"],
        "reason": f"{_as_chosen(evidence, suite)}: {100 * entry['score']:.1f} % of {entry['n']:,} items, and"
        f" promote.min_scores asks for {100 * least:.1f} %",
    }
    return Check(name=name, passed=entry["score"] >= least, detail=detail)


def _against(champion: Champion, most: float, evidence: Evidence) -> Iterator[Check]:
    """Compare the model with the present champion and the best of its line, suite by suite; never with itself.

    `most` is the largest drop of a score that the recipe allows.
    """
    if champion.version is None:
        return
    detail = {"version": champion.version, "digest": champion.digest}
    if champion.digest == evidence.model_digest:
        yield Check(name="champion", passed=True, detail={**detail, "reason": "this model is the champion"})
        return
    problems = champion.problems
    if not problems and not champion.answers:
        problems = [f"nothing can be compared with version {champion.version}: its scores kept no answers"]
    if problems:
        detail |= {"reason": "; ".join(problems), "way_out": WAY_OUT}
        yield Check(name="champion", passed=False, detail=detail)
        return
    yield Check(name="champion", passed=True, detail=detail)
    for one in (champion, *champion.best):
        if one.digest != evidence.model_digest:
            for suite, before in sorted(one.answers.items()):
                name = f"drop_{suite}" if one is champion else f"drop_{suite}_from_version_{one.version}"
                yield _no_drop(name, suite, one, before, evidence, most)


def _no_drop(name: str, suite: str, champion: Champion, before: Answers, evidence: Evidence, most: float) -> Check:
    """Check that the score on all items that a champion answered is shown to be at most `most` lower.

    A suite on which the two models cannot be compared fails the check, because nothing shows that this model is as
    good.
    """
    now = evidence.answers.get(suite, NONE)
    detail: dict[str, Any] = {"suite": suite, "version": champion.version}
    missing, who = before.correct.keys() - now.correct.keys(), f"version {champion.version}"
    drop = paired(before, now)
    if before.correct and now.correct and before.metric != now.metric:
        reason = f"{suite}: {who} was judged by {before.metric} and this model by {now.metric}"
    elif not before.correct:
        reason = f"{suite}: the scores of {who} kept no answers"
    elif missing:
        reason = f"{suite}: this model answered {len(before.correct) - len(missing):,} of the {len(before.correct):,}"
        reason += f" items that {who} answered, and all are needed"
    else:
        assert drop is not None
        passed = drop.is_at_most(most)
        says = "does not show" if not passed else "shows"
        reason = f"{_as_chosen(evidence, suite)}, against {who}: {drop.sentence}, which {says} that at most"
        reason += f" {100 * most:.1f} are lost"
        detail |= {**drop.as_json(), "most": most, "reason": reason, **({} if passed else {"way_out": MORE_ITEMS})}
        return Check(name=name, passed=passed, detail=detail)
    return Check(name=name, passed=False, detail={**detail, "reason": reason, "way_out": WAY_OUT})
