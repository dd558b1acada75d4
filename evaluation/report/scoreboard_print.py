"""Print the scoreboard in a terminal: the result in one sentence, then scores, data and cost.

A table that is too wide loses its last columns instead of breaking words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluation.decision.intervals import in_percent
from evaluation.report.scoreboard import (
    MODELS,
    NOT_ABOVE,
    bits_lines,
    comparison_columns,
    comparison_rows,
    headline,
    items_told,
    kinds,
    long_context_lines,
    money,
    node_hours,
    reward_parts,
    total_of,
)
from training.contract.tables import table

if TYPE_CHECKING:
    from rich.console import Console


def render(board: Mapping[str, Any], console: Console, promotion: Mapping[str, Any] | None = None) -> None:
    """Print the scoreboard: headline and refusals, scores and contamination, data, cost."""
    if said := headline(board, promotion):
        good = not board["refusals"] and (promotion is None or promotion["promoted"])
        console.print(said, style="bold green" if good else "bold red", highlight=False, markup=False)
    for refusal in board["refusals"]:
        console.print(
            f"refused: {refusal['asset']} [{refusal['partition']}] by gate {refusal['gate']}", style="red", markup=False
        )
    for line in _finding_lines(board):
        console.print(line, markup=False, soft_wrap=True)  # an address is left whole, so that it can be copied
    for part in (
        _score_table,
        _kind_table,
        _comparison_table,
        _alignment_lines,
        _bits_lines,
        _contamination_lines,
        _funnel_table,
        _truth_table,
        _corpus_lines,
        _cost_table,
    ):
        shown = part(board, console.width)
        if shown is not None:
            console.print()
            console.print(shown, markup=False)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, spared: int = 0) -> Any:
    """Return a table in which numbers are aligned to the right; the last row is set apart if it begins with `all`."""
    numbers = {at for at in range(1, len(columns)) if not any(", " in row[at] for row in rows)}
    has_sum = rows[-1][0] == "all"
    return table(rows, head=columns, title=title, right=numbers, has_sum=has_sum, width=width, spared=spared)


def _in_words(name: str) -> str:
    """Return the name of an asset or a reason as separate words, so that a line can break between them."""
    return name.replace("_", " ").replace(":", ": ")


def _score_table(board: Mapping[str, Any], width: int) -> Any:
    if not board["scores"]:
        return None
    rows = []
    scored = _scored(board)
    for suite, models in board["scores"].items():
        first = next(iter(models.values()))
        cells = [_score_cell(models.get(model)) for model in scored]
        rows.append(
            (f"{suite} ({first.get('metric', 'score')})", *cells, items_told(models), f"{100 * first['chance']:.0f}")
        )
    columns = ("suite", *scored, "items", "chance")
    return _table("Accuracy in percent (95 % interval)", columns, rows, width, spared=4)


def _scored(board: Mapping[str, Any]) -> list[str]:
    """Return the models that have a score, the last of the chain first."""
    return [model for model in reversed(MODELS) if any(model in models for models in board["scores"].values())]


def _kind_table(board: Mapping[str, Any], width: int) -> Any:
    found = kinds(board["scores"])
    if not found:
        return None
    scored = _scored(board)
    rows = [
        (
            f"{row['suite']}: {_in_words(row['kind'])}",
            *(_in_one_word(row["cells"].get(model, "–")).replace(f" {NOT_ABOVE}", "*") for model in scored),
            "\n".join(f"{name} {100 * share:.0f}" for name, share in row["controls"].items()) or "–",
            str(row["n"]),
            f"{100 * row['chance']:.0f}",
        )
        for row in found
    ]
    columns = ("suite: kind", *scored, "controls", "items", "chance")
    return _table(
        f"Accuracy by kind of item, in percent (95 % interval; * {NOT_ABOVE})", columns, rows, width, spared=4
    )


def _comparison_table(board: Mapping[str, Any], width: int) -> Any:
    columns = comparison_columns(board["comparisons"])
    if not columns:
        return None
    rows = [
        (row["suite"], *(row["cells"].get(name, "–") for name in columns), str(row["items"]))
        for row in comparison_rows(board["comparisons"])
    ]
    title = "Same items: won (+), lost (−), McNemar's p"
    return _table(title, ("suite", *columns, "items"), rows, width, spared=2)


def _score_cell(entry: Mapping[str, Any] | None) -> str:
    return "–" if entry is None else _in_one_word(in_percent(entry["score"], entry["n"]))


def _in_one_word(share: str) -> str:
    """Return the interval of a fraction without spaces, so that a line breaks only before or after it."""
    return share.replace(" to ", "–")


def _alignment_lines(board: Mapping[str, Any], width: int) -> str | None:
    alignment = board["alignment"]
    lines = []
    for kind in ("true_reward", "learned_reward", "judged_reward"):
        parts = [
            f"{name} {entry[kind]:+.3f} ± {entry[f'{kind}_interval']:.3f}"
            for name, entry in alignment.items()
            if kind in entry
        ]
        if parts:
            lines.append(f"Sampled answers, mean {kind.replace('_', ' ')} (95 % interval): {', '.join(parts)}")
    for part, cells in reward_parts(alignment).items():
        lines.append(f"  {part}, percent: {', '.join(f'{name} {cell}' for name, cell in cells.items())}")
    lengths = [f"{name} {entry['mean_tokens']:.1f}" for name, entry in alignment.items() if "mean_tokens" in entry]
    if lengths:
        lines.append(f"Sampled answers, mean length in tokens: {', '.join(lengths)}")
    return "\n".join(lines) or None


def _bits_lines(board: Mapping[str, Any], width: int) -> str | None:
    return "\n".join(bits_lines(board["bits_per_byte"])) or None


def _contamination_lines(board: Mapping[str, Any], width: int) -> str | None:
    report = board["contamination"]
    if not report:
        return None
    found = ", ".join(f"{name} {entry['found']} of {entry['items']}" for name, entry in report["found"].items())
    shown = f"items found in training data: {found}" if found else "no exam was looked for"
    lines = [f"Contamination: {report['told']}; {shown}"]
    for field, numbers in report["tolerated"].items():
        lines.append(f"  tolerated by {field}: {', '.join(f'{name}: {text}' for name, text in numbers.items())}")
    unclear = ", ".join(
        f"{name} {entry['not_cleared']}" for name, entry in report["found"].items() if entry["not_cleared"]
    )
    if unclear:
        lines.append(f"  items that cannot be cleared, because they are too short or not their own: {unclear}")
    return "\n".join(lines)


def _finding_lines(board: Mapping[str, Any]) -> list[str]:
    lines = []
    for finding in board["contamination"].get("findings", ()):
        place = finding.get("url") or finding.get("row", "")
        record = f", {finding['warc_file']} at {finding['warc_offset']}" if "warc_file" in finding else ""
        lines.append(f"  {finding['benchmark']} {finding['item']} in {finding['where']}: {place}{record}")
    return lines


def _funnel_table(board: Mapping[str, Any], width: int) -> Any:
    if not board["funnel"]:
        return None
    rows = []
    for snapshot, stages in board["funnel"].items():
        for stage in stages:
            dropped = sorted(stage["dropped"].items(), key=lambda item: (-item[1], item[0]))
            reasons = ", ".join(f"{_in_words(reason)} {number:,}" for reason, number in dropped[:2])
            numbers = (stage["in"], stage["kept"], sum(stage["dropped"].values()), sum(stage["quarantined"].values()))
            rows.append(
                (
                    f"{snapshot} {stage['asset'].removesuffix('_documents')}",
                    *(f"{number:,}" for number in numbers),
                    reasons,
                )
            )
    columns = ("documents of", "in", "kept", "dropped", "quarantined", "most often dropped for")
    return _table("Documents", columns, rows, width, spared=2)


def _truth_table(board: Mapping[str, Any], width: int) -> Any:
    if not board["truth"]:
        return None
    rows = [
        (_in_words(name), f"{scores['precision']:.3f}", f"{scores['recall']:.3f}")
        for name, scores in board["truth"].items()
    ]
    return _table("Against the kitchen's truth", ("stage", "precision", "recall"), rows, width)


def _corpus_lines(board: Mapping[str, Any], width: int) -> str | None:
    lines = []
    tokenizer, training = board["tokenizer"], board["pretraining"]
    if tokenizer:
        lines.append(
            f"Tokenizer: {tokenizer.get('vocabulary', 0):,.0f} tokens,"
            f" {tokenizer.get('bytes_per_token', 0):.2f} bytes per token"
        )
    if board["tokens"]:
        lines.append(f"Shards: {sum(board['tokens'].values()):,.0f} tokens")
    if adopted := board["adopted"]:
        lines.append(f"Adopted model: {adopted.get('parameters', 0):,.0f} parameters")
    if training:
        bits = training.get("held_out_bits_per_byte")
        held_out = f", held out {bits:.3f} bits per byte" if bits is not None else ""
        lines.append(
            f"Pretraining: {training.get('parameters', 0):,.0f} parameters, {training.get('steps', 0):,.0f} steps,"
            f" loss {training.get('loss_start', math.nan):.3f} → {training.get('loss_end', math.nan):.3f}{held_out}"
        )
    lines += long_context_lines(board["long_context"])
    return "\n".join(lines) or None


def _cost_table(board: Mapping[str, Any], width: int) -> Any:
    if not board["cost"]:
        return None
    priced = total_of(board, "price") is not None
    rows = [
        (
            _in_words(f"{row['asset']} {row['partition'].partition('@')[2]}".rstrip()),
            *([money(row["price"])] if priced else []),
            f"{row['seconds']:.1f}",
            f"{row['cpu_seconds']:.1f}",
            node_hours(row["node_hours"]),
            f"{row['peak_memory_bytes'] / 1e6:.0f}",
            f"{row['bytes'] / 1e6:.1f}",
        )
        for row in board["cost"]
    ]
    seconds, cpu_seconds, size = (sum(row[key] for row in board["cost"]) for key in ("seconds", "cpu_seconds", "bytes"))
    prices = [money(total_of(board, "price"))] if priced else []
    hours = node_hours(total_of(board, "node_hours"))
    rows.append(("all", *prices, f"{seconds:.1f}", f"{cpu_seconds:.1f}", hours, "", f"{size / 1e6:.1f}"))
    columns = ("asset", *(["price"] if priced else []), "seconds", "processor s", "node-hours", "peak MB", "MB on disk")
    return _table("Time and cost", columns, rows, width, spared=2)
