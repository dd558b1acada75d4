"""The comparison of several models as lines of at most 80 columns, and as one page with pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from evaluation.report.figures import Bar, bars_picture, lines_picture, thinned
from evaluation.report.pages import environment
from evaluation.report.scoreboard import money
from training.contract.tables import folded, table_lines

TEMPLATE = "compare.html.j2"
COLOURS = 6  # of lines in the page's style; further lines begin again
CORPUS = ("extracted_documents", "filtered_documents", "deduplicated_documents", "decontaminated_documents")


def letters(number: int) -> str:
    """Return the short name of a side: A, B, …, Z, AA."""
    return (letters(number // 26 - 1) if number >= 26 else "") + chr(65 + number % 26)


# Lines


def lines_of(told: Mapping[str, Any]) -> list[str]:
    """Return the comparison as lines for a terminal."""
    sides = told["sides"]
    lines = [f"{letters(number)}  {side['title']}: {side['model']}" for number, side in enumerate(sides)]
    parts = {
        "": told["problems"],
        "Recipes": list(_recipe_lines(told)),
        "Artifacts": list(_artifact_lines(told)),
        "Scores in %, with 95 % intervals": list(_score_lines(told)),
        "Over seeds, in % with 95 % intervals": list(_seed_lines(told)),
        "Compute": list(_compute_lines(told)),
        "Training loss of the base model": list(_loss_lines(told)),
    }
    for title, part in parts.items():
        if part:
            lines += ["", *([title] if title else []), *part]
    return [piece for line in lines for piece in folded(line)]


def _recipe_lines(told: Mapping[str, Any]) -> Iterator[str]:
    for number, one in enumerate(told["recipes"], 1):
        yield f"A → {letters(number)}" + ("" if one["differences"] else "  no field differs")
        yield from (f"  {line}" for line in one["differences"])


def _artifact_lines(told: Mapping[str, Any]) -> Iterator[str]:
    others = [row for row in told["artifacts"] if row["agree"] != "same"]
    same = f"{len(told['artifacts']) - len(others)} of {len(told['artifacts'])} are the same in all"
    if not others:
        yield same
        return
    yield f"{same}; documents kept, or fingerprints, of the others:"
    rows = []
    for row in others:
        values = [_made(row, number) for number in range(len(told["sides"]))]
        equal = " (equal content)" if row["agree"] == "equal" else ""
        rows.append((f"{row['asset']} {row['part']}".strip() + equal, values))
    yield from _table("", rows, told)


def _made(row: Mapping[str, Any], number: int) -> str:
    """Return a short text on a compared model's artifact of an asset: kept documents, tokens, or the fingerprint."""
    if row["fingerprints"][number] is None:
        return "–"
    if row["kept"][number] is not None:
        return f"{row['kept'][number]:,}"
    return row["fingerprints"][number][:8]


def _score_lines(told: Mapping[str, Any]) -> Iterator[str]:
    for row in told["scores"]:
        yield row["suite"]
        rows = [(letters(number), _score(own)) for number, own in enumerate(row["sides"])]
        yield from table_lines(rows, indent=2)
    yield from (f"not compared: {line}" for line in told["not_compared"])
    yield from told["remarks"]


def _score(own: Mapping[str, Any] | None) -> str:
    if own is None:
        return "    –"
    return f"{_percent(own['score'], own['interval'])}, {own['n']:,} items{_against(own['against'])}"


def _against(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return ""
    return f"; to A {_signed(one['difference'], one['interval'])}, p {_p_value(one['p_value'])}"


def _seed_lines(told: Mapping[str, Any]) -> Iterator[str]:
    for row in told["seeds"]:
        yield row["suite"]
        for group in row["groups"]:
            if group["mean"] is None:
                continue
            against = group["against"]
            difference = f"; difference {_signed(against['difference'], against['interval'])}" if against else ""
            seeds = f"{group['seeds']} {'seed' if group['seeds'] == 1 else 'seeds'}"
            yield f"  {group['title']}, {seeds}: {_percent(group['mean'], group['interval'])}{difference}"


def _compute_lines(told: Mapping[str, Any]) -> Iterator[str]:
    yield from _table("", compute_rows(told["compute"]), told)
    yield told["compute"]["sentence"]


def compute_rows(compute: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the rows of the table of compute: a title, and one value for each side."""
    shown = {
        "parameters": ("parameters", "{:,.0f}".format),
        "tokens": ("pretraining tokens", "{:,.0f}".format),
        "flops": ("pretraining FLOPs (6 N D)", "{:.2e}".format),
        "training_cpu_seconds": ("trainings, processor seconds", "{:,.1f}".format),
        "cpu_seconds": ("everything, processor seconds", "{:,.1f}".format),
        "node_hours": ("everything, node-hours", "{:,.4f}".format),
        "price": ("everything, price", money),
        "held_out_bits_per_byte": ("held-out bits per byte", "{:.4f}".format),
    }
    rows = []
    for name, (title, form) in shown.items():
        values = [one[name] for one in compute["sides"]]
        if any(value is not None for value in values):
            rows.append((title, ["–" if value is None else form(value) for value in values]))
    return rows


def _loss_lines(told: Mapping[str, Any]) -> Iterator[str]:
    for key, words in (("at_tokens", "tokens"), ("at_seconds", "processor seconds")):
        rows = [
            (f"  {row['at']:,.0f}", ["–" if one is None else f"{one:.3f}" for one in row["losses"]])
            for row in told["losses"][key]
        ]
        yield from _table(f"at {words}", rows, told)


def _table(title: str, rows: Iterable[tuple[str, list[str]]], told: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table with a column for each side."""
    names = [letters(number) for number in range(len(told["sides"]))]
    right = range(1, 1 + len(names))
    return table_lines([(first, *values) for first, values in rows], head=(title, *names), right=right)


def _percent(share: float, interval: Sequence[float] | None) -> str:
    if interval is None:
        return f"{100 * share:5.1f}"
    return f"{100 * share:5.1f} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})"


def _signed(share: float, interval: Sequence[float] | None) -> str:
    inside = f" ({100 * interval[0]:+.1f} to {100 * interval[1]:+.1f})" if interval is not None else ""
    return f"{100 * share:+.1f}{inside}"


def _p_value(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


# The page


def page_of(told: Mapping[str, Any]) -> str:
    """Return the comparison as one HTML page that loads nothing and runs no script."""
    made = environment()
    made.filters |= {"share": _percent, "signed": _signed, "p_value": _p_value, "made": _made}
    return made.get_template(TEMPLATE).render(
        told=told,
        names=[letters(number) for number in range(len(told["sides"]))],
        colours=COLOURS,
        score_pictures=[(row["suite"], _score_picture(row, told["sides"])) for row in told["scores"]],
        loss_pictures=list(_loss_pictures(told["losses"])),
        corpus_picture=_corpus_picture(told),
        compute_rows=compute_rows(told["compute"]),
        title=" and ".join(side["title"] for side in told["sides"]),
    )


def _score_picture(row: Mapping[str, Any], sides: Sequence[Mapping[str, Any]]) -> Any:
    bars = [
        Bar(
            label=f"{letters(number)}  {sides[number]['title']}",
            value=own["score"],
            text=f"{_percent(own['score'], own['interval']).strip()} %",
            interval=(own["interval"][0], own["interval"][1]),
        )
        for number, own in enumerate(row["sides"])
        if own is not None
    ]
    return bars_picture(f"Score on {row['suite']}", bars, most=1.0)


def _loss_pictures(losses: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for axis, words in (("tokens", "tokens"), ("seconds", "processor seconds")):
        lines = [thinned(list(zip(one[axis], one["loss"], strict=False))) for one in losses["curves"]]
        picture = lines_picture(f"Training loss over {words}", lines, horizontal=words)
        if picture:
            yield f"Training loss over {words}", picture


def _corpus_picture(told: Mapping[str, Any]) -> Any:
    """Return bars with the number of documents that each compared model's corpus has after its last stage."""
    kept = [0] * len(told["sides"])
    for row in told["artifacts"]:
        if row["asset"] == CORPUS[-1]:
            kept = [total + (own or 0) for total, own in zip(kept, row["kept"], strict=True)]
    bars = [
        Bar(label=f"{letters(number)}  {told['sides'][number]['title']}", value=float(one), text=f"{one:,}")
        for number, one in enumerate(kept)
        if one
    ]
    return bars_picture("Documents left for training", bars, most=float(max(kept, default=0)))
