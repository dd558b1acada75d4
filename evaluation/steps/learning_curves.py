"""Stage `learning_curves`: how the scores of the base model grow over the steps that it keeps.

The files of the artifact:

- `learning_curves.json`: for each kept step its tokens and, by suite, score and bits per byte of the right answers,
  with intervals, and the score by chance;
- `learning_curves.html`: the same as curves over tokens, and as a table.

The scores are also metrics of each step, from which MLflow draws the curves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evaluation.decision.answers import NAMES
from evaluation.report.figures import lines_picture
from training.contract.artifact import write_json, written
from training.contract.job import InputArtifact, Job, Outcome, Work

RESULT_FILE, PAGE_FILE = "learning_curves.json", "learning_curves.html"
SHOWN = ("score", "interval", "n", "chance", "metric", "bits_per_byte", "bits_interval")


def run(job: Job, work: Work) -> Outcome:
    """Write the curves of all suites over the kept steps, and the page."""
    points = sorted((_point(item) for item in job.inputs_of("step_scores")), key=lambda point: point["step"])
    for point in points:
        work.progress.log(step=point["step"], tokens=point["tokens"], **dict(_numbers(point["suites"])))
    write_json(work.path / RESULT_FILE, {"steps": points})
    with written(work.path / PAGE_FILE, "w") as stream:
        stream.write(page(points))
    return Outcome(files=(RESULT_FILE, PAGE_FILE), metrics={"kept_steps": len(points), **dict(_last(points))})


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


def page(points: Sequence[Mapping[str, Any]]) -> str:
    """Return one self-contained HTML page: the curves, and their numbers as a table."""
    from jinja2 import PackageLoader

    from evaluation.report.pages import environment

    template = environment().overlay(loader=PackageLoader("evaluation.steps")).get_template("learning_curves.html.j2")
    return template.render(points=points, pictures=list(pictures(points)))
