"""A summary of a run on one screen, from its artifacts alone: documents by stage, scores, contamination and cost.

`scoreboard` gathers plain data, and `render` prints it. The part of a missing artifact is left out. Artifacts that a
gate refused are included, and listed with the gate.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evaluation.intervals import in_percent
from evaluation.truth import Record, of_asset, truth_scores
from training.data.exams.rubric import WORTH
from training.numerics import in_words

if TYPE_CHECKING:
    from rich.console import Console

FUNNEL = (
    "extracted_documents",
    "filtered_documents",
    "deduplicated_documents",
    "decontaminated_documents",
)
MODELS = ("base", "sft", "aligned")
WHEN = ("before", "after")  # the long-context stage


def scoreboard(records: Sequence[Record]) -> dict[str, Any]:
    """Everything the scoreboard shows, as plain data. `records` are (artifact folder, its `artifact.json`)."""
    return {
        "recipe": records[0][1].get("recipe", "") if records else "",
        "funnel": funnel(records),
        "truth": truth_scores(records),
        "tokenizer": _metrics(records, "tokenizer"),
        "tokens": {
            record["partition"]: record["metrics"].get("tokens", 0.0) for _, record in of_asset(records, "token_shards")
        },
        "pretraining": _metrics(records, "base_model"),
        "long_context": long_context(records),
        "scores": scores_by_suite(records),
        "outside_text": _json_file(records, "model_scores", "bits_per_byte.json") or {},
        "alignment": _json_file(records, "alignment_rewards", "alignment.json") or {},
        "contamination": contamination(records),
        "promotion": _json_file(records, "promoted_model", "decision.json") or {},
        "numerics": numerics_classes(records),
        "refusals": refusals(records),
        "cost": cost(records),
    }


def long_context(records: Sequence[Record]) -> dict[str, Any]:
    """Return row lengths, needles found, and held-out bits per byte before and after the long-context stage.

    The result is empty without that stage.
    """
    table = _json_file(records, "long_context_model", "long_context.json")
    if table is None:
        return {}
    metrics = _metrics(records, "long_context_model")
    named = {name: value for name, value in metrics.items() if name.startswith(("needle", "bits_per_byte"))}
    return {"lengths": table["lengths"], **named, "needles": {when: table[when]["long"]["needles"] for when in WHEN}}


def numerics_classes(records: Sequence[Record]) -> dict[str, Any]:
    """Return the numerics class of every artifact that a model made.

    The class is None for a record by an earlier edition that did not write it.
    """
    return {
        asset_and_part(record): record.get("numerics")
        for _, record in records
        if "torch" in record.get("libraries", {})
    }


def asset_and_part(record: Mapping[str, Any]) -> str:
    """Return the asset's name, with the snapshot or rung of the record if it has one."""
    part = record["partition"].partition("@")[2]
    return f"{record['asset']} of {part}" if part else record["asset"]


def numerics_lines(classes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (names of artifacts, their numerics class in words), one pair for each class."""
    lines: dict[str, list[str]] = {}
    for name, one in classes.items():
        lines.setdefault(in_words(one) if one else "not on record", []).append(name)
    return [(", ".join(names), words) for words, names in lines.items()]


def funnel(records: Sequence[Record]) -> dict[str, list[dict[str, Any]]]:
    """Return, by snapshot, the corpus stages in order with the counts in, kept, dropped and quarantined."""
    snapshots: dict[str, list[dict[str, Any]]] = {}
    for asset in FUNNEL:
        for _, record in of_asset(records, asset):
            snapshot = record["partition"].partition("@")[2] or record["partition"]
            snapshots.setdefault(snapshot, []).append({"asset": asset, **record["counts"]})
    return snapshots


def scores_by_suite(records: Sequence[Record]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the scores as {suite: {model: {"score", "n", "chance", …}}}."""
    scores = _json_file(records, "model_scores", "scores.json")
    if scores is None:
        return {}
    settings = of_asset(records, "model_scores")[-1][1]["settings"]
    suites = [suite["name"] for suite in settings["evaluation"]["suites"]]
    return {suite: {model: scores[model][suite] for model in MODELS if suite in scores[model]} for suite in suites}


def contamination(records: Sequence[Record]) -> dict[str, Any]:
    """Return the verdict, the number of items found in each suite, and the first findings.

    The result is empty without a contamination report.
    """
    report = _json_file(records, "contamination_report", "contamination.json")
    if report is None:
        return {}
    gates = [gate for _, record in of_asset(records, "contamination_report") for gate in record["gates"]]
    evidence = next((gate["evidence"] for gate in gates if gate["name"] == "contamination"), {})
    return {
        "verdict": report["verdict"],
        "tolerated": report["tolerated"],
        "found": {
            name: {
                "items": suite["items"],
                "found": suite["found_items"],
                "questions_seen": len(suite["questions_seen"]),
                "not_cleared": len(suite["not_cleared"]),
            }
            for name, suite in report["suites"].items()
        },
        "findings": evidence.get("findings", []),
    }


def refusals(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Every gate that failed, with its evidence."""
    return [
        {"asset": record["asset"], "partition": record["partition"], "gate": gate["name"], "evidence": gate["evidence"]}
        for _, record in records
        for gate in record["gates"]
        if not gate["passed"]
    ]


def cost(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return seconds, processor seconds, peak memory, price and bytes on disk of each artifact, whenever it was made.

    The price is in the unit of the profile under which the artifact was made; None if that profile has no prices.
    """
    rows = []
    for _, record in records:
        spent = record.get("cost") or {}
        rows.append(
            {
                "asset": record["asset"],
                "partition": record["partition"],
                "seconds": record["seconds"],
                "cpu_seconds": spent.get("cpu_seconds", 0.0),
                "peak_memory_bytes": spent.get("peak_memory_bytes", 0),
                "price": spent.get("price"),
                "bytes": sum(entry["bytes"] for entry in record["files"]),
            }
        )
    return rows


def _metrics(records: Sequence[Record], asset: str) -> dict[str, float]:
    found = of_asset(records, asset)
    return dict(found[-1][1]["metrics"]) if found else {}


def _json_file(records: Sequence[Record], asset: str, name: str) -> Any:
    """Return the content of a JSON file of the asset's last artifact; None if the artifact or the file is missing."""
    found = of_asset(records, asset)
    if not found or name not in {entry["path"] for entry in found[-1][1]["files"]}:
        return None
    return json.loads((found[-1][0] / name).read_text("utf-8"))


# Printing.


def render(board: Mapping[str, Any], console: Console) -> None:
    """Print the scoreboard."""
    for part in (
        _funnel_table,
        _truth_table,
        _corpus_lines,
        _score_table,
        _outside_line,
        _alignment_lines,
        _contamination_lines,
        _cost_table,
    ):
        shown = part(board)
        if shown is not None:
            console.print(shown)
    for refusal in board["refusals"]:
        console.print(
            f"refused: {refusal['asset']} [{refusal['partition']}] by gate {refusal['gate']}", style="red", markup=False
        )


def _table(title: str, *columns: str) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    return table


def _funnel_table(board: Mapping[str, Any]) -> Any:
    if not board["funnel"]:
        return None
    table = _table("Documents", "snapshot and stage", "in", "kept", "dropped", "quarantined", "most often dropped for")
    for snapshot, stages in board["funnel"].items():
        for stage in stages:
            dropped = sorted(stage["dropped"].items(), key=lambda item: (-item[1], item[0]))
            reasons = ", ".join(f"{reason} {number}" for reason, number in dropped[:3])
            numbers = (stage["in"], stage["kept"], sum(stage["dropped"].values()), sum(stage["quarantined"].values()))
            table.add_row(f"{snapshot} {stage['asset']}", *(f"{number:,}" for number in numbers), reasons)
    return table


def _truth_table(board: Mapping[str, Any]) -> Any:
    if not board["truth"]:
        return None
    table = _table("Against the kitchen's truth", "stage", "precision", "recall")
    for name, scores in board["truth"].items():
        table.add_row(name.replace("_", " "), f"{scores['precision']:.3f}", f"{scores['recall']:.3f}")
    return table


def _corpus_lines(board: Mapping[str, Any]) -> str | None:
    lines = []
    tokenizer, training = board["tokenizer"], board["pretraining"]
    if tokenizer:
        lines.append(
            f"Tokenizer: {tokenizer.get('vocabulary', 0):,.0f} tokens,"
            f" {tokenizer.get('bytes_per_token', 0):.2f} bytes per token"
        )
    if board["tokens"]:
        lines.append(f"Shards: {sum(board['tokens'].values()):,.0f} tokens")
    if training:
        bits = training.get("held_out_bits_per_byte")
        held_out = f", held out {bits:.3f} bits per byte" if bits is not None else ""
        lines.append(
            f"Pretraining: {training.get('parameters', 0):,.0f} parameters, {training.get('steps', 0):,.0f} steps,"
            f" loss {training.get('loss_start', math.nan):.3f} → {training.get('loss_end', math.nan):.3f}{held_out}"
        )
    lines += long_context_lines(board["long_context"])
    return "\n".join(lines) or None


def long_context_lines(part: Mapping[str, Any]) -> list[str]:
    """Return sentences about the long-context stage: needles found and bits per byte, before and after it."""
    if not part:
        return []
    lengths = part["lengths"]
    found = (
        f"Long context: needles in {lengths['long']:,} tokens {100 * part['needles_long_before']:.0f} →"
        f" {100 * part['needles_long_after']:.0f} %, chance {100 * part['needle_chance']:.0f} %"
    )
    bits = [
        f"held out in rows of {lengths[name]:,} {part[f'bits_per_byte_{name}_before']:.3f} →"
        f" {part[f'bits_per_byte_{name}_after']:.3f} bits per byte"
        for name in lengths
        if f"bits_per_byte_{name}_before" in part
    ]
    return ["; ".join([found, *bits])]


def _score_table(board: Mapping[str, Any]) -> Any:
    if not board["scores"]:
        return None
    table = _table("Accuracy in percent (95 % interval)", "suite", "items", "chance", *MODELS)
    for suite, models in board["scores"].items():
        first = next(iter(models.values()))
        cells = [_score_cell(models.get(model)) for model in MODELS]
        table.add_row(
            f"{suite} ({first.get('metric', 'score')})", str(first["n"]), f"{100 * first['chance']:.0f}", *cells
        )
    return table


def _score_cell(entry: Mapping[str, Any] | None) -> str:
    return "–" if entry is None else in_percent(entry["score"], entry["n"])


def _outside_line(board: Mapping[str, Any]) -> str | None:
    return outside_line(board["outside_text"]) or None


def outside_line(bits: Mapping[str, Any]) -> str:
    """Return each model's bits per byte on the text from outside the corpus as a sentence; empty without that text."""
    if not bits:
        return ""
    first = next(iter(bits.values()))
    named = {model: bits[model] for model in MODELS if model in bits}
    shown = ", ".join(f"{model} {entry['bits_per_byte']:.3f}{_between(entry)}" for model, entry in named.items())
    return f"Bits per byte of {first['texts']:,} texts from outside the corpus ({first['bytes']:,} bytes): {shown}"


def _between(entry: Mapping[str, Any]) -> str:
    return f" ({entry['interval'][0]:.3f} to {entry['interval'][1]:.3f})" if entry["interval"] else ""


def _alignment_lines(board: Mapping[str, Any]) -> str | None:
    alignment = board["alignment"]
    lines = []
    for kind in ("true_reward", "learned_reward"):
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


def reward_parts(alignment: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return {part of the true reward: {model or `gain`: percent with the 95 % interval}}; empty without rubrics.

    `right` shows what a model knows, the other parts how it says it.
    """
    columns = {name: entry["parts"] for name, entry in alignment.items() if "parts" in entry}
    named = [part for part in WORTH if any(part in parts for parts in columns.values())]
    return {
        f"{part.replace('_', ' ')} (worth {WORTH[part]:+g})": {
            name: _part_cell(parts[part], sign="+" if name == "gain" else "") for name, parts in columns.items()
        }
        for part in named
    }


def _part_cell(part: Mapping[str, Any], *, sign: str) -> str:
    mean, low, high = (f"{100 * value:{sign}.1f}" for value in (part["mean"], *part["interval"]))
    return f"{mean} ({low} to {high})"


def _contamination_lines(board: Mapping[str, Any]) -> str | None:
    report = board["contamination"]
    if not report:
        return None
    found = ", ".join(f"{name} {entry['found']} of {entry['items']}" for name, entry in report["found"].items())
    lines = [f"Contamination: {report['verdict']}; items found in training data: {found}"]
    for field, numbers in report["tolerated"].items():
        lines.append(f"  tolerated by {field}: {', '.join(f'{name} {text}' for name, text in numbers.items())}")
    unclear = ", ".join(f"{name} {entry['not_cleared']}" for name, entry in report["found"].items())
    lines.append(f"  items that cannot be cleared, because they are too short or not their own: {unclear}")
    for finding in report["findings"]:
        place = finding.get("url") or finding.get("row", "")
        record = f", {finding['warc_file']} at {finding['warc_offset']}" if "warc_file" in finding else ""
        lines.append(f"  {finding['benchmark']} {finding['item']} in {finding['where']}: {place}{record}")
    return "\n".join(lines)


def _cost_table(board: Mapping[str, Any]) -> Any:
    if not board["cost"]:
        return None
    priced = total_price(board) is not None
    table = _table(
        "Time and cost", "asset", "seconds", "processor s", "peak MB", "MB on disk", *(["price"] if priced else [])
    )
    for row in board["cost"]:
        name = f"{row['asset']} {row['partition'].partition('@')[2]}".rstrip()
        numbers = (f"{row['seconds']:.1f}", f"{row['cpu_seconds']:.1f}")
        sizes = (f"{row['peak_memory_bytes'] / 1e6:.0f}", f"{row['bytes'] / 1e6:.1f}")
        table.add_row(name, *numbers, *sizes, *([money(row["price"])] if priced else []))
    seconds, cpu_seconds, size = (sum(row[key] for row in board["cost"]) for key in ("seconds", "cpu_seconds", "bytes"))
    table.add_section()
    totals = (f"{seconds:.1f}", f"{cpu_seconds:.1f}", "", f"{size / 1e6:.1f}")
    table.add_row("all", *totals, *([money(total_price(board))] if priced else []))
    return table


def total_price(board: Mapping[str, Any]) -> float | None:
    """Return the sum of the artifacts' prices; None if no artifact has a price."""
    prices = [row["price"] for row in board["cost"] if row["price"] is not None]
    return sum(prices) if prices else None


def money(amount: float | None) -> str:
    """Return an amount as text, with four decimals below 10, since a demo's stages cost thousandths; empty for None."""
    return "" if amount is None else f"{amount:,.4f}" if amount < 10 else f"{amount:,.2f}"
