"""A summary of a run on one screen, from its artifacts alone: documents by stage, scores, contamination and cost.

`scoreboard` gathers plain data; evaluation/report/scoreboard_print.py prints it. Figures of missing artifacts are left
out. Artifacts that a gate refused are included, and listed with the gate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.contamination.verdict import told_of
from evaluation.decision.answers import BITS_FILES, COMPARISONS_FILE, FILLING_FILE, HELD_OUT, OUTSIDE
from evaluation.decision.intervals import in_percent, share_interval
from evaluation.report.chat_exams import chat_exams
from evaluation.report.truth_comparison import Record, of_asset, truth_scores
from training.contract.files.writing import regular_bytes
from training.contract.identity.numerics import in_words
from training.contract.scopes import KEPT_STEPS, QUANTIZED
from training.data.exams.rubric import WORTH

FUNNEL = (
    "extracted_documents",
    "filtered_documents",
    "deduplicated_documents",
    "decontaminated_documents",
)
MODELS = ("base", "sft", "aligned")
NOT_ABOVE = "not above the controls"
TEXTS = {HELD_OUT: "held-out documents", OUTSIDE: "texts from outside the corpus"}
SMALLEST_P = 0.001  # a smaller p-value is shown as below this one
WHEN = ("before", "after")  # the long-context stage


def scoreboard(records: Sequence[Record]) -> dict[str, Any]:
    """Return all that the scoreboard shows, as plain data. `records` are (artifact folder, its `artifact.json`)."""
    return {
        "recipe": records[0][1]["recipe"] if records else "",
        "funnel": funnel(records),
        "truth": truth_scores(records),
        "tokenizer": _metrics(records, "tokenizer"),
        "tokens": {
            record["partition"]: record["metrics"].get("tokens", 0.0) for _, record in of_asset(records, "token_shards")
        },
        "adopted": _metrics(records, "adopted_model"),
        "pretraining": _metrics(records, "base_model") or _metrics(records, KEPT_STEPS),
        "long_context": long_context(records),
        "scores": scores_by_suite(records),
        **small_numbers(records),
        "comparisons": _json_file(records, "model_scores", COMPARISONS_FILE) or {},
        "bits_per_byte": {name: _json_file(records, "model_scores", file) or {} for name, file in BITS_FILES.items()},
        "filling": _json_file(records, "model_scores", FILLING_FILE) or {},
        "alignment": _json_file(records, "alignment_rewards", "alignment.json") or {},
        **chat_exams(
            _json_file(records, "judged_chat", "judged.json"), _json_file(records, "safety_answers", "safety.json")
        ),
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
    """Return the numerics class of every artifact that a model made."""
    return {
        asset_and_part(record): record.get("numerics")
        for _, record in records
        if "torch" in record.get("libraries", {})
    }


def asset_and_part(record: Mapping[str, Any]) -> str:
    """Return the name of the record's asset, followed by its snapshot or rung if it has one."""
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
    return {
        suite: {model: scores[model][suite] for model in MODELS if suite in scores.get(model, {})} for suite in suites
    }


def small_numbers(records: Sequence[Record]) -> dict[str, Any]:
    """Return, under `small`, the method of the quantized model, bytes of it and its parent, scores, and what it lost.

    The result is empty without one.
    """
    scores = _json_file(records, "quantized_scores", "scores.json")
    made = of_asset(records, "quantized_model")
    if scores is None or not made:
        return {}
    metrics = made[-1][1]["metrics"]
    told = {
        "method": made[-1][1]["settings"]["quantize"]["method"],
        "bytes": metrics["weight_bytes"],
        "parent_bytes": metrics["parent_weight_bytes"],
        "scores": scores[QUANTIZED],
        "lost": _json_file(records, "quantized_scores", "loss.json"),
    }
    return {"small": told}


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
        "told": told_of(report),
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
    """Return every gate that failed in a run's artifacts, with its evidence."""
    return [
        {"asset": record["asset"], "partition": record["partition"], "gate": gate["name"], "evidence": gate["evidence"]}
        for _, record in records
        for gate in record["gates"]
        if not gate["passed"]
    ]


def cost(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return times, peak memory, node-hours, price and bytes on disk of each artifact, whenever it was made.

    Node-hours and price are those of all attempts, as the record's bill has them, of which `least` took longer than
    anybody saw; the price is in the unit of the profile under which the artifact was made, and None if that profile has
    no prices.
    """
    rows = []
    for _, record in records:
        spent = record["cost"]
        rows.append(
            {
                "asset": record["asset"],
                "partition": record["partition"],
                "seconds": record["seconds"],
                "cpu_seconds": spent.get("cpu_seconds", 0.0),
                "peak_memory_bytes": spent.get("peak_memory_bytes", 0),
                "node_hours": spent.get("node_hours"),
                "price": spent.get("price"),
                "least": spent.get("least", 0),
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
    return json.loads(regular_bytes(found[-1][0] / name))


def kinds(scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each suite and kind of item: items, chance, controls, and the score of each model, as text.

    A score whose interval is not above chance and all controls is marked, because counting words may be enough to reach
    it.
    """
    rows = []
    for suite, models in scores.items():
        for kind, first in next(iter(models.values()), {}).get("kinds", {}).items():
            cells = {model: _kind_cell(of) for model, entry in models.items() if (of := entry["kinds"].get(kind))}
            named = {"suite": suite, "kind": kind, "n": first["n"], "chance": first["chance"], "cells": cells}
            rows.append(named | {"controls": first.get("controls", {})})
    return rows


def items_told(models: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the number of a suite's items that have a score, as text: `96`, or `90 of 96` if some were set aside.

    If the models' numbers differ, it is the lowest one.
    """
    least = min(models.values(), key=lambda entry: entry["n"])
    return f"{least['n']:,}" + (f" of {least['n'] + least['set_aside']:,}" if least.get("set_aside") else "")


def _kind_cell(entry: Mapping[str, Any]) -> str:
    share = in_percent(entry["score"], entry["n"])
    return share if entry.get("above_controls", True) else f"{share} {NOT_ABOVE}"


def comparison_columns(comparisons: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the pairs of models that are compared, such as `base → sft`; neighbours in the chain come first."""
    pairs = {(MODELS.index(one["before"]), MODELS.index(one["after"])) for of in comparisons.values() for one in of}
    return [f"{MODELS[a]} → {MODELS[b]}" for a, b in sorted(pairs, key=lambda pair: (pair[1] - pair[0], pair[0]))]


def comparison_rows(comparisons: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each suite: number of items, and {compared models: items won, items lost and p, as text}."""
    return [
        {
            "suite": suite,
            "items": max(one["items"] for one in of),
            "cells": {f"{one['before']} → {one['after']}": _comparison_cell(one) for one in of},
        }
        for suite, of in comparisons.items()
    ]


def _comparison_cell(one: Mapping[str, Any]) -> str:
    p = one["p_value"]
    return f"+{one['won']} −{one['lost']}, p {f'{p:.3f}' if p >= SMALLEST_P else f'< {SMALLEST_P}'}"


# Sentences and sums, which the card, the report and the command line share


def headline(board: Mapping[str, Any], promotion: Mapping[str, Any] | None = None) -> str:
    """Return the result of a run as one line.

    An example is `63 k parameters, 94 % of sums against 1 % by counting words, above chance and counts in 1 of 3
    suites, clean (94 of 96 items cleared), promoted as kitchen v3`.

    `promotion` is the model's standing in the registry (`promoted`, `model_name`, `version`); None if the registry was
    not asked. Unknown parts are left out, and of a run that ended before the decision nothing is said about one.
    """
    parts = []
    model = board["pretraining"] or board["adopted"]
    if "parameters" in model:
        parts.append(f"{_rounded(model['parameters'])} parameters")
    parts += learned(board["scores"])
    if board["contamination"]:
        parts.append(board["contamination"]["told"])
    if board["refusals"]:
        parts.append(f"refused by gate {board['refusals'][0]['gate']}")
    if promotion is not None and promotion["promoted"]:
        parts.append(f"promoted as {promotion['model_name']} v{promotion['version']}")
    elif promotion is not None:
        if version := promotion.get("version"):
            parts.append(f"registered as {promotion['model_name']} v{version}")
        parts += ["not promoted"] if board["promotion"] else []
    return ", ".join(parts)


def learned(scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Return what the last scored model answers better than chance and, where words were counted, any count of them.

    The parts of a sentence are its score on the suite where it is farthest above these, and the number of suites where
    its interval is. A suite for which no words were counted is named only if there is no other.
    """
    last = {suite: [*models.values()][-1] for suite, models in scores.items() if models}
    if not last:
        return []
    others = {suite: _without_a_model(one) for suite, one in last.items()}
    above = [suite for suite, one in last.items() if share_interval(one["score"], one["n"])[0] > others[suite][0]]
    counted = {suite for suite, one in last.items() if best_count(one) is not None}
    best = max(above, key=lambda suite: (suite in counted, last[suite]["score"] - others[suite][0]), default=None)
    counts = " and counts" * bool(counted)
    parts = [f"above chance{counts} in {len(above) or 'none'} of {len(last)} suites"]
    if best is not None:
        own, (share, by) = last[best]["score"], others[best]
        parts.insert(0, f"{_told_from(own, share)} % of {best} against {_told_from(share, own)} % by {by}")
    aside = sum(one.get("set_aside", 0) for one in last.values())
    return [*parts, *([f"{aside:,} items set aside"] if aside else [])]


def _told_from(share: float, other: float) -> str:
    """Return a share in percent with as few decimals as tell it from another one, from none and from all."""
    apart = {other, 0.0, 1.0} - {share}
    digits = next((d for d in range(3) if round(100 * share, d) not in {round(100 * one, d) for one in apart}), 3)
    return f"{100 * share:.{digits}f}"


def _without_a_model(entry: Mapping[str, Any]) -> tuple[float, str]:
    """Return the larger one of chance and the best count, with its name."""
    count = best_count(entry)
    counted = [] if count is None else [(count, "counting words")]
    return max([(entry["chance"], "chance"), *counted])


def best_count(entry: Mapping[str, Any]) -> float | None:
    """Return the share of a suite's items that the best of its controls answers; None without controls.

    A control only counts words (`evaluation/exams/controls.py`). `entry` is the suite's score of one model.
    """
    kinds = [kind for kind in entry.get("kinds", {}).values() if "controls" in kind]
    if not kinds:
        return None
    items = sum(kind["n"] for kind in kinds)
    return max(sum(kind["controls"][name] * kind["n"] for kind in kinds) / items for name in kinds[0]["controls"])


def _rounded(number: float) -> str:
    """Return a count as text with two or three digits and a unit, such as `870`, `63 k`, `2.2 M` or `1.5 B`."""
    for size, unit in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.{0 if number >= 10 * size else 1}f}{unit}"
    return f"{number:.0f}"


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


def bits_lines(bits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return sentences with each model's bits per byte, one for the held-out documents and one for other text."""
    lines = []
    for name, by_model in bits.items():
        shown = [
            f"{model} {by_model[model]['bits_per_byte']:.3f}{_between(by_model[model])}"
            for model in MODELS
            if model in by_model
        ]
        if shown:
            first = next(iter(by_model.values()))
            read = f"{first['texts']:,} {TEXTS[name]} ({first['bytes']:,} bytes)"
            lines.append(f"Bits per byte of {read}: {', '.join(shown)}")
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


FIGURES = {  # of what a model fills in: its name, and the text of a number
    "pseudo_perplexity": ("pseudo-perplexity", "{:.2f}".format),
    "continuation_bits_per_byte": ("bits per byte after the prefix", "{:.3f}".format),
    "loss": ("loss", "{:.3f}".format),
    "exact_spans": ("spans filled exactly %", _percent),
    "filling_accuracy": ("tokens right %", _percent),
}


def filling_lines(filling: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return sentences with what a base model that answers no exam fills in of texts, and what its probe tells."""
    lines = []
    for one in filling.values():
        for where, entry in one["texts"].items():
            shown = []
            for name, figure in entry["figures"].items():
                said, form = FIGURES[name]
                ends = f" ({' to '.join(map(form, figure['interval']))})" if figure["interval"] else ""
                shown.append(f"{said} {form(figure['value'])}{ends}")
            read = f"{entry['targets']:,} tokens of {entry['texts']:,} {TEXTS[where]}"
            lines.append(f"Filled in ({one['objective']}) of {read}: {', '.join(shown)}")
        if probe := one.get("probe"):
            own, control = (
                f"{100 * of['value']:.1f} % ({100 * of['interval'][0]:.1f} to {100 * of['interval'][1]:.1f})"
                for of in (probe["accuracy"], probe["token_counts"])
            )
            lines.append(
                f"A probe of its states tells {probe['labels']} labels on {own} of {probe['asked']:,} texts,"
                f" counts of tokens on {control}, chance {100 * probe['chance']:.1f} %"
            )
    return lines


def _between(entry: Mapping[str, Any]) -> str:
    return f" ({entry['interval'][0]:.3f} to {entry['interval'][1]:.3f})" if entry["interval"] else ""


def small_lines(small: Mapping[str, Any]) -> list[str]:
    """Return a sentence with the size of the quantized model, and what it lost on each suite."""
    if not small:
        return []
    size, before = (f"{small[name] / 1e6:,.1f}" for name in ("bytes", "parent_bytes"))
    drops = [
        f"{suite} {100 * one['drop']:.1f} ({100 * one['interval'][0]:.1f} to {100 * one['interval'][1]:.1f})"
        for suite, one in small["lost"].items()
    ]
    made = f"In small numbers ({small['method']}): {size} MB of weights instead of {before}"
    return [f"{made}; drop in points: {', '.join(drops)}"]


def reward_parts(alignment: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the mean of each part of the reward that is computed from rubrics.

    The form is {part: {model or `gain`: percent with the 95 % interval}}. It is empty if no prompt has a rubric. The
    part `right` measures what a model knows, the other parts measure how it writes.
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


def total_of(board: Mapping[str, Any], name: str) -> float | None:
    """Return the sum of the artifacts' prices or node-hours; None if no artifact has one."""
    amounts = [row[name] for row in board["cost"] if row[name] is not None]
    return sum(amounts) if amounts else None


def node_hours(amount: float | None) -> str:
    """Return node-hours as text; empty for None."""
    return "" if amount is None else f"{amount:,.4f}"


def money(amount: float | None) -> str:
    """Return an amount of money as text, with four decimals if it is below 10; empty for None.

    Small runs cost fractions of a cent.
    """
    return "" if amount is None else f"{amount:,.4f}" if amount < 10 else f"{amount:,.2f}"
