"""One picture for each materialization, made from the numbers that its artifact holds; a small SVG in Markdown.

Dagster has no metadata type for images and shows those in Markdown. The events are stored with their pictures, so a
picture has a few kilobytes, whatever the size of the corpus. Nothing outside of the artifact is read, and
Dagster's page fetches nothing.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice

from evaluation.report.figures import Bar, alone, bars_picture, lines_picture, thinned
from evaluation.report.training_curves import grouped
from training.contract.artifact import Artifact
from training.contract.progress import METRICS_FILE, read_metrics
from training.contract.scopes import WHOLE, whole_in_words

MOST_BARS = 16
MOST_LENGTHS = 1_000_000  # documents of which a histogram is made
# The colours are read on white and on dark.
STYLE = """
text { font: 12px sans-serif; fill: #555b66; } .title { font-weight: bold; } .value { text-anchor: end; }
.bar { fill: #4f6df5; } .other { fill: #c9513b; } .whisker { stroke: #555b66; stroke-width: 2; }
.line { fill: none; stroke: #4f6df5; stroke-width: 2; } .axis { stroke: #c9ccd3; }
"""
# Of the lines of a picture, one after the other, and from the first again.
COLOURS = {"blue": "#4f6df5", "red": "#c9513b", "green": "#2f8f5b", "violet": "#8a5cc9", "brown": "#a8741a"}
MOST_LINES = 20
STYLE += "".join(f".l{n} {{ stroke: {one}; }} " for n, one in zip(range(MOST_LINES), cycle(COLOURS.values())))

Bars = list[tuple[str, float]]


def picture_of(made: Artifact) -> str:
    """Markdown with the picture of an artifact, or its pictures; empty if it holds no numbers that one shows better."""
    record = made.record
    drawn = _DRAWN.get(record["asset"])
    if drawn is None and (made.path / METRICS_FILE).exists():
        drawn = _losses
    found = (drawn(made) if drawn is not None else "") or _funnel(made)
    images = [base64.b64encode(svg.encode()).decode() for svg in ([found] if isinstance(found, str) else found) if svg]
    return "\n".join(f"![{record['asset']}](data:image/svg+xml;base64,{image})" for image in images)


# What is drawn of which asset


def _funnel(made: Artifact) -> str:
    """A picture of the records: how many came in, were dropped for each reason, and were kept."""
    counts = made.record["counts"]
    if not counts or not counts["in"]:
        return ""
    lost = [(reason, n) for kind in ("dropped", "quarantined") for reason, n in counts[kind].items() if n]
    shown = _largest(lost, MOST_BARS - 2)
    return bars([("in", counts["in"]), *shown, ("kept", counts["kept"])], "records", marked={name for name, _ in shown})


def _lengths(made: Artifact) -> str:
    """A histogram of the documents' lengths in tokens, in classes that double."""
    import numpy as np

    seen: Counter[int] = Counter()
    left = MOST_LENGTHS
    for path in sorted(made.path.glob("shards/*.offsets.npy")):
        lengths = np.diff(np.load(path, mmap_mode="r")[: left + 1])
        seen.update(max(length, 1).bit_length() - 1 for length in lengths.tolist())
        left -= len(lengths)
        if left <= 0:
            break
    rows = [(f"{1 << k} to {(2 << k) - 1}", float(seen[k])) for k in range(min(seen), max(seen) + 1)] if seen else []
    return bars(rows, "documents by their tokens") if rows else ""


def _clusters(made: Artifact) -> str:
    import pyarrow.parquet as pq

    sizes: Counter[str] = Counter()
    for path in islice(sorted(made.path.glob("dropped/*.parquet")), 64):
        sizes.update(pq.read_table(path, columns=["duplicate_of"])["duplicate_of"].to_pylist())
    found = Counter(size + 1 for size in sizes.values())
    rows = [(f"{size} documents", float(number)) for size, number in sorted(found.items())]
    return bars(rows[:MOST_BARS], "clusters by what they hold") if rows else ""


def _mixture(made: Artifact) -> str:
    return bars(_under(made.record["metrics"], "share_"), "share of the tokens")


def _scores(made: Artifact, *, what: str = "score") -> str:
    """A bar for each metric from 0 to 1 that has an interval, but not for those of a suite's kinds of item."""
    metrics = made.record["metrics"]
    rows = [name for name in metrics if f"{name}_low" in metrics and not name.endswith(("_low", "_high", "_rating"))]
    whole = [name for name in rows if not any(name.startswith(f"{other}_") for other in rows)]
    ranges = {name: (metrics[f"{name}_low"], metrics[f"{name}_high"]) for name in whole}
    return bars(
        [(name, metrics[name]) for name in whole], f"{what}, with its interval of 95 %", ranges=ranges, most=1.0
    )


def _learning_curves(made: Artifact) -> list[str]:
    """A picture for each training: the score of each suite over the tokens or steps of its kept steps, a line each."""
    from evaluation.steps import learning_curves as curves

    told, drawn = json.loads(made.file(curves.RESULT_FILE).read_text("utf-8")), []
    of = {curves.BASE: told["steps"], **told["later"]}
    for model, points in ((model, of.get(model, [])) for model in WHOLE.values()):
        suites = list(dict.fromkeys(suite for point in points for suite in point["suites"]))
        over = curves.counted(points)
        title = f"{whole_in_words(model)}: scores over {over.rstrip('s')}s"
        lines = [curves.curve(points, suite, "score", "interval")[0] for suite in suites]
        if picture := lines_picture(title, lines, horizontal=f"to {over.rstrip('s')}"):
            drawn.append(alone(picture, STYLE, title=title, legend=_legend(suites)))
    return drawn


def _contamination(made: Artifact) -> str:
    """A bar chart of the fraction of each suite's items that was found in the model's training data."""
    found = next((gate["evidence"].get("found_fraction") for gate in made.record["gates"]), None)
    return bars(list(found.items()), "fraction of the items found", most=1.0, marked=set(found)) if found else ""


def _found_plants(made: Artifact) -> str:
    return bars(_under(made.record["metrics"], "plants_found_"), "fraction of planted copies found", most=1.0)


def _rewards(made: Artifact) -> str:
    named = [(name, value) for name, value in made.record["metrics"].items() if name.endswith("_reward")]
    return bars(named, "mean reward")


def _ladder(made: Artifact) -> str:
    return bars(list(made.record["metrics"].items())[:MOST_BARS], "numbers of the fit")


def _decision(made: Artifact) -> str:
    return bars(_under(made.record["metrics"], "score_"), "score", most=1.0)


def _losses(made: Artifact) -> list[str]:
    """A picture of each of a training's curves: its loss, and what was watched; none for a stage without a loss."""
    drawn = []
    for what, over, lines in grouped(read_metrics(made.path / METRICS_FILE)):
        points = [thinned(line) for line in lines.values()]
        if max(map(len, points)) > 1:
            title = f"{what} over {over}"
            picture = lines_picture(title, points, horizontal=f"to {over.rstrip('s')}")
            drawn.append(alone(picture, STYLE, title=title, legend=_legend(lines)))
    return drawn


def _legend(lines: Iterable[str]) -> str:
    """Return the name and the colour of each line of a picture; empty for a single one that stands for all."""
    named = [f"{name}: {colour}" for name, colour in zip(lines, cycle(COLOURS), strict=False)]
    return "" if named == ["all: blue"] else ", ".join(named)


_DRAWN: Mapping[str, Callable[[Artifact], str | list[str]]] = {
    "token_shards": _lengths,
    "deduplicated_documents": _clusters,
    "training_plan": _mixture,
    "reference_plan": _mixture,
    "long_context_plan": _mixture,
    "ladder_plan": _mixture,
    "mixture_weights": lambda made: bars(_under(made.record["metrics"], "weight_"), "weight"),
    "model_scores": _scores,
    "step_scores": _scores,
    "chosen_model": _scores,
    "judged_chat": partial(_scores, what="share"),
    "safety_answers": partial(_scores, what="share"),
    "learning_curves": _learning_curves,
    "data_contamination": _contamination,
    "contamination_report": _contamination,
    "benchmark_index": _found_plants,
    "alignment_rewards": _rewards,
    "scaling_fit": _ladder,
    "promoted_model": _decision,
}


def _under(metrics: Mapping[str, float], prefix: str) -> Bars:
    return [(name.removeprefix(prefix), value) for name, value in metrics.items() if name.startswith(prefix)]


def _largest(rows: Sequence[tuple[str, float]], most: int) -> Bars:
    """Return the `most` largest rows. If there are more, the last returned row sums up the rest."""
    ordered = sorted(rows, key=lambda row: -row[1])
    rest = sum(value for _, value in ordered[most - 1 :])
    return list(ordered) if len(ordered) <= most else [*ordered[: most - 1], ("others", rest)]


# Drawing


def bars(
    rows: Sequence[tuple[str, float]],
    title: str,
    *,
    most: float = 0.0,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    marked: frozenset[str] | set[str] = frozenset(),
) -> str:
    """Return horizontal bars with names and numbers; empty if there are no rows.

    `most` is the value of a full bar. The bars of `marked` rows and of negative numbers have the other colour.
    """
    drawn = [
        Bar(
            label=name,
            value=value,
            text=f"{value:,.4g}" if value % 1 else f"{value:,.0f}",
            interval=(ranges or {}).get(name),
            kind="other" if name in marked or value < 0 else "bar",
        )
        for name, value in rows[:MOST_BARS]
    ]
    full = most or max((abs(one.value) for one in drawn), default=0.0) or 1.0
    return alone(bars_picture(title, drawn, most=full), STYLE, title=title) if drawn else ""
