"""Stage `learning_curves`: the base model's scores over the steps that it keeps, and what leaked pages did to them.

The files of the artifact:

- `learning_curves.json`: for each kept step its tokens and, by suite, score and bits per byte of the right answers,
  with intervals, and the score by chance; `leaks` has the effect of reading leaked items, by suite and step
  (evaluation/steps/page_effects.py);
- `leaked_items.jsonl`: for each item that a page holds, the pages, the first step that read one, and for each kept
  step how often it was read by then, and its score and log-likelihood;
- `learning_curves.html`: the curves and effects as pictures and tables.

The numbers are also metrics of each step, from which MLflow draws the curves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.contamination.verdict import FINDINGS_FILE, REPORT_FILE
from evaluation.decision.answers import NAMES, sample_file
from evaluation.report.figures import lines_picture
from evaluation.steps.page_effects import PageRead, answers_of, effects_of, pages_of, rows_of_items
from evaluation.steps.readings import numbers_of, readings_of
from training.contract.artifact import write_json, write_text, written
from training.contract.job import InputArtifact, Job, Outcome, Work
from training.data.documents import read_lines
from training.order.batches import read_plan
from training.order.ledger import LEDGER_FILE, Ledger, read_ledger

RESULT_FILE, ITEMS_FILE, PAGE_FILE = "learning_curves.json", "leaked_items.jsonl", "learning_curves.html"
SHOWN = ("score", "interval", "n", "chance", "metric", "bits_per_byte", "bits_interval")


def run(job: Job, work: Work) -> Outcome:
    """Write the curves of all suites over the kept steps, what leaked items did to them, and the page."""
    scored = sorted(job.inputs_of("step_scores"), key=lambda item: item.record()["metrics"]["step"])
    points = [_point(item) for item in scored]
    leaks, items = _leaks(job, scored)
    for point in points:
        numbers = dict(_numbers(point["suites"])) | dict(_effects_at(leaks, point["step"]))
        work.progress.log(step=point["step"], tokens=point["tokens"], **numbers)
    write_json(work.path / RESULT_FILE, {"steps": points, "leaks": leaks})
    write_text(work.path / ITEMS_FILE, "".join(f"{json.dumps(item, ensure_ascii=False)}\n" for item in items))
    with written(work.path / PAGE_FILE, "w") as stream:
        stream.write(page(points, leaks))
    last = points[-1]["step"] if points else 0
    return Outcome(
        files=(RESULT_FILE, ITEMS_FILE, PAGE_FILE),
        metrics={"kept_steps": len(points), **dict(_last(points)), **dict(_effects_at(leaks, last))},
    )


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
    return answers_of(read_lines(item.file(sample_file(NAMES["base_model"], suite))))


def _readings(job: Job, documents: set[str]) -> dict[str, list[PageRead]]:
    """Return when the training read each of the documents; no shard is opened if there are none."""
    if not documents:
        return {}
    item = job.input_of("training_plan")
    plan = read_plan(item.folder, digest=item.digest)
    numbers = numbers_of(plan, job.inputs_of("token_shards"), documents)
    last = max(job.inputs_of("kept_steps"), key=lambda one: one.record()["settings"]["kept"]["step"])
    ledger = read_ledger(last.file(LEDGER_FILE).parent) if LEDGER_FILE in last.files() else Ledger()
    return {document: list[PageRead]() for document in documents} | readings_of(plan, numbers, ledger)


def _effects_at(leaks: Mapping[str, Any], step: int) -> Iterator[tuple[str, float]]:
    """Yield the effects after a kept step as metrics, with the ends of their intervals."""
    for suite, told in leaks.items():
        for row in (row for row in told["steps"] if row["step"] == step):
            yield f"{suite}_leaked_items_read", row["read"]
            for name in ("score", "bits_per_byte"):
                if effect := row[name]:
                    yield f"{suite}_leak_{name}", effect["difference"]
                    if effect["interval"]:
                        ends = (f"{suite}_leak_{name}_low", f"{suite}_leak_{name}_high")
                        yield from zip(ends, effect["interval"], strict=True)


def _point(item: InputArtifact) -> dict[str, Any]:
    """Return what the curves have of one kept step."""
    metrics = item.record()["metrics"]
    suites = json.loads(item.file("scores.json").read_text("utf-8"))[NAMES["base_model"]]
    return {
        "step": int(metrics["step"]),
        "tokens": int(metrics["tokens"]),
        "suites": {suite: {name: told[name] for name in SHOWN if name in told} for suite, told in suites.items()},
    }


def _numbers(suites: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    """Yield the metrics of one kept step: a score or bits per byte of a suite, and the ends of its interval."""
    for suite, told in suites.items():
        for name, ends in (("score", "interval"), ("bits_per_byte", "bits_interval")):
            if name in told:
                yield f"{suite}_{name}", told[name]
            if told.get(ends):
                yield from zip((f"{suite}_{name}_low", f"{suite}_{name}_high"), told[ends], strict=True)


def _last(points: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, float]]:
    yield from _numbers(points[-1]["suites"] if points else {})


def curve(points: Sequence[Mapping[str, Any]], suite: str, name: str, ends: str) -> list[list[tuple[float, float]]]:
    """Return a curve of one suite over tokens, and below it the two ends of its interval where it has one."""
    rows = [(point["tokens"], point["suites"][suite]) for point in points if name in point["suites"].get(suite, {})]
    middle = [(tokens, told[name]) for tokens, told in rows]
    bounds = [[(tokens, told[ends][end]) for tokens, told in rows if told.get(ends)] for end in (0, 1)]
    return [middle, *bounds]


def pictures(points: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the title and the picture of each curve: of the score with chance as a line, and of bits per byte."""
    for suite in dict.fromkeys(suite for point in points for suite in point["suites"]):
        score = curve(points, suite, "score", "interval")
        chance = [(p["tokens"], p["suites"][suite]["chance"]) for p in points if suite in p["suites"]]
        title = f"{suite}: score, its 95 % interval, and chance"
        yield title, lines_picture(title, [*score, chance], horizontal="tokens")
        bits = curve(points, suite, "bits_per_byte", "bits_interval")
        if bits[0]:
            title = f"{suite}: bits per byte of the right answers"
            yield title, lines_picture(title, bits, horizontal="tokens")


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


def page(points: Sequence[Mapping[str, Any]], leaks: Mapping[str, Any]) -> str:
    """Return one self-contained HTML page: the curves and the effects of leaked items, each with a table."""
    from jinja2 import PackageLoader

    from evaluation.report.pages import environment

    template = environment().overlay(loader=PackageLoader("evaluation.steps")).get_template("learning_curves.html.j2")
    drawn = {"pictures": list(pictures(points)), "effects": list(effect_pictures(leaks))}
    return template.render(points=points, leaks=leaks, **drawn)
