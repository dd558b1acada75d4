"""Stage `learning_curves`: each training's scores over the steps that it keeps, and what leaked pages did to them.

The files of the artifact:

- `learning_curves.json`: for each kept step of the base model its tokens and, by suite, score and bits per byte of the
  right answers, with intervals, and the score by chance; `later` has the same of later trainings, by their model;
  `leaks` has the effect of reading leaked items on the base model, by suite and step
  (evaluation/steps/page_effects.py);
- `leaked_items.jsonl`: for each item that a page holds, the pages, the first step that read one, and for each kept
  step how often it was read by then, and its score and log-likelihood;
- `learning_curves.html`: the curves and effects as pictures and tables.

The numbers are also metrics of each step, from which MLflow draws the curves. Of later trainings their names begin with
`long_context_`, `sft_` or `aligned_`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from evaluation.contamination.verdict import FINDINGS_FILE, REPORT_FILE
from evaluation.decision.answers import NAMES, sample_file
from evaluation.report.figures import lines_picture
from evaluation.steps.page_effects import PageRead, answers_of, effects_of, pages_of, rows_of_items
from evaluation.steps.readings import numbers_of, readings_of
from training.contract.artifact import write_json, write_text, written
from training.contract.job import InputArtifact, Job, Outcome, Work
from training.contract.scopes import KEPT_STEPS, WHOLE, whole_in_words
from training.data.documents import read_lines
from training.order.batches import read_plan
from training.order.ledger import LEDGER_FILE, Ledger, read_ledger

RESULT_FILE, ITEMS_FILE, PAGE_FILE = "learning_curves.json", "leaked_items.jsonl", "learning_curves.html"
BASE = WHOLE[KEPT_STEPS]
Points = Sequence[Mapping[str, Any]]
SHOWN = ("score", "interval", "n", "chance", "metric", "bits_per_byte", "bits_interval")


def run(job: Job, work: Work) -> Outcome:
    """Write the curves of all suites over the kept steps, what leaked items did to them, and the page."""
    scored = scored_by_training(job.inputs_of("step_scores"))
    curves = {model: [_point(item, NAMES[model]) for item in items] for model, items in scored.items()}
    leaks, items = _leaks(job, scored.get(BASE, ()))
    for model, points in curves.items():
        for point in points:
            numbers = dict(_numbers(model, point["suites"])) | dict(_effects_at(leaks, point["step"], model))
            read = {"tokens": point["tokens"]} if "tokens" in point else {}
            work.progress.log(step=point["step"], **read, **numbers)
    later = {model: points for model, points in curves.items() if model != BASE}
    write_json(work.path / RESULT_FILE, {"steps": curves.get(BASE, []), "later": later, "leaks": leaks})
    write_text(work.path / ITEMS_FILE, "".join(f"{json.dumps(item, ensure_ascii=False)}\n" for item in items))
    with written(work.path / PAGE_FILE, "w") as stream:
        stream.write(page(curves, leaks))
    metrics: dict[str, float] = {"kept_steps": sum(map(len, curves.values()))}
    for model, points in curves.items():
        metrics |= dict(_numbers(model, points[-1]["suites"])) | dict(_effects_at(leaks, points[-1]["step"], model))
    return Outcome(files=(RESULT_FILE, ITEMS_FILE, PAGE_FILE), metrics=metrics)


def scored_by_training(scores: Iterable[InputArtifact]) -> dict[str, list[InputArtifact]]:
    """Return the scores of kept steps by the last model of their training, in the order of the chain and of the steps.

    A training without scored steps is left out.
    """
    found: dict[str, list[InputArtifact]] = {model: [] for model in WHOLE.values()}
    for item in sorted(scores, key=lambda item: item.record()["metrics"]["step"]):
        found[next(WHOLE[one["asset"]] for one in item.record()["inputs"] if one["asset"] in WHOLE)].append(item)
    return {model: items for model, items in found.items() if items}


def _leaks(job: Job, scored: Sequence[InputArtifact]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the effect of leaked items by suite, and a row for each of these items."""
    scan = job.input_of("data_contamination")
    report = json.loads(scan.file(REPORT_FILE).read_text("utf-8"))
    found = pages_of(read_lines(scan.file(FINDINGS_FILE)))
    readings = _readings(job, {document for items in found.values() for pages in items.values() for document in pages})
    leaks, rows = {}, []
    for suite, told in report["suites"].items():
        pages = found.get(suite, {})
        answers = {int(item.record()["metrics"]["step"]): _answers(item, suite) for item in scored}
        own = {item: [one for document in some for one in readings[document]] for item, some in pages.items()}
        leaks[suite] = effects_of(answers, own, told)
        rows += rows_of_items(suite, answers, own, {item: list(some.values()) for item, some in pages.items()})
    return leaks, rows


def _answers(item: InputArtifact, suite: str) -> dict[Any, dict[str, float]]:
    return answers_of(read_lines(item.file(sample_file(NAMES[BASE], suite))))


def _readings(job: Job, documents: set[str]) -> dict[str, list[PageRead]]:
    """Return when the training read each of the documents; no shard is opened if there are none, or no kept steps."""
    kept = job.inputs_of(KEPT_STEPS)
    if not documents or not kept:
        return {document: [] for document in documents}
    item = job.input_of("training_plan")
    plan = read_plan(item.folder, digest=item.digest)
    numbers = numbers_of(plan, job.inputs_of("token_shards"), documents)
    last = max(kept, key=lambda one: one.record()["settings"]["kept"]["step"])
    ledger = read_ledger(last.file(LEDGER_FILE).parent) if LEDGER_FILE in last.files() else Ledger()
    return {document: list[PageRead]() for document in documents} | readings_of(plan, numbers, ledger)


def _effects_at(leaks: Mapping[str, Any], step: int, model: str) -> Iterator[tuple[str, float]]:
    """Yield the effects after a kept step as metrics, with the ends of their intervals; none of a later training."""
    for suite, told in leaks.items() if model == BASE else ():
        for row in (row for row in told["steps"] if row["step"] == step):
            yield f"{suite}_leaked_items_read", row["read"]
            for name in ("score", "bits_per_byte"):
                if effect := row[name]:
                    yield f"{suite}_leak_{name}", effect["difference"]
                    if effect["interval"]:
                        ends = (f"{suite}_leak_{name}_low", f"{suite}_leak_{name}_high")
                        yield from zip(ends, effect["interval"], strict=True)


def _point(item: InputArtifact, model: str) -> dict[str, Any]:
    """Return what the curves have of one kept step, which took exams as `model`. Trainings on rows count no tokens."""
    metrics = item.record()["metrics"]
    suites = json.loads(item.file("scores.json").read_text("utf-8"))[model]
    return {
        **{name: int(metrics[name]) for name in ("step", "tokens") if name in metrics},
        "suites": {suite: {name: told[name] for name in SHOWN if name in told} for suite, told in suites.items()},
    }


def _numbers(model: str, suites: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield the metrics of one kept step: a score or bits per byte of a suite, and the ends of its interval."""
    prefix = "" if model == BASE else f"{model.removesuffix('_model')}_"
    for suite, told in suites.items():
        for name, ends in (("score", "interval"), ("bits_per_byte", "bits_interval")):
            metric = f"{prefix}{suite}_{name}"
            if name in told:
                yield metric, told[name]
            if told.get(ends):
                yield from zip((f"{metric}_low", f"{metric}_high"), told[ends], strict=True)


def curve(points: Points, suite: str, name: str, ends: str) -> list[list[tuple[float, float]]]:
    """Return a curve of one suite over tokens or steps, and the two ends of its interval where it has one."""
    over = counted(points)
    rows = [(point[over], point["suites"][suite]) for point in points if name in point["suites"].get(suite, {})]
    middle = [(place, told[name]) for place, told in rows]
    bounds = [[(place, told[ends][end]) for place, told in rows if told.get(ends)] for end in (0, 1)]
    return [middle, *bounds]


def counted(points: Points) -> Literal["tokens", "step"]:
    """Return over what the curves of a training are drawn: the tokens that it had read, or else its steps."""
    return "tokens" if all("tokens" in point for point in points) else "step"


def pictures(points: Points) -> Iterator[tuple[str, Any]]:
    """Yield the title and the picture of each curve: of the score with chance as a line, and of bits per byte."""
    over = counted(points)
    for suite in dict.fromkeys(suite for point in points for suite in point["suites"]):
        score = curve(points, suite, "score", "interval")
        chance = [(p[over], p["suites"][suite]["chance"]) for p in points if suite in p["suites"]]
        title = f"{suite}: score, its 95 % interval, and chance"
        yield title, lines_picture(title, [*score, chance], horizontal=over)
        bits = curve(points, suite, "bits_per_byte", "bits_interval")
        if bits[0]:
            title = f"{suite}: bits per byte of the right answers"
            yield title, lines_picture(title, bits, horizontal=over)


def effect_pictures(leaks: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the title and the picture of each effect over the steps, with its interval."""
    for suite, told in leaks.items():
        for name, words in (("score", "score"), ("bits_per_byte", "bits per byte of the right answers")):
            rows = [(row["step"], row[name]) for row in told["steps"] if row[name]]
            ends = [[(step, one["interval"][end]) for step, one in rows if one["interval"]] for end in (0, 1)]
            lines = [[(step, one["difference"]) for step, one in rows], *ends, [(step, 0.0) for step, _ in rows]]
            if len(rows) > 1:
                title = f"{suite}: what reading leaked items did to {words}"
                yield title, lines_picture(title, lines, horizontal="step")


def page(curves: Mapping[str, Points], leaks: Mapping[str, Any]) -> str:
    """Return one self-contained HTML page: the curves of each training and the effects of leaked items, with tables."""
    from jinja2 import PackageLoader

    from evaluation.report.pages import environment

    template = environment().overlay(loader=PackageLoader("evaluation.steps")).get_template("learning_curves.html.j2")
    trainings = [(whole_in_words(model), points, list(pictures(points))) for model, points in curves.items()]
    return template.render(trainings=trainings, leaks=leaks, effects=list(effect_pictures(leaks)))
