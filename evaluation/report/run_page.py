"""One self-contained HTML page about a run: its artifacts, the documents dropped, the models' scores, contamination.

`render_report` shows the artifacts that exist, refused ones included, and leaves out the parts of missing ones. All
text from web pages is escaped, no address is a link, and a content security policy in the page keeps it from loading
or running anything.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from evaluation.contamination.verdict import REPORT_FILE, told_of
from evaluation.decision.answers import MODELS, sample_file, score_of
from evaluation.decision.intervals import in_percent, share_interval
from evaluation.report.chat_exams import judge_lines, rating_rows, safety_rows
from evaluation.report.figures import (
    Bar,
    bars_picture,
    funnel_picture,
    funnel_steps,
    grid_picture,
    line_picture,
    thinned,
)
from evaluation.report.kept_models import said_of_models
from evaluation.report.pages import SHOWN_CHARACTERS, environment
from evaluation.report.samples import has_records
from evaluation.report.scoreboard import (
    NOT_ABOVE,
    bits_lines,
    filling_lines,
    headline,
    kinds,
    long_context_lines,
    numerics_lines,
    reward_parts,
    scoreboard,
    small_lines,
    total_of,
)
from evaluation.report.stage_details import look_at
from evaluation.report.training_curves import goodhart_picture, placed, watched_rewards
from evaluation.report.truth_comparison import Record, of_asset, sound
from training.contract.progress import METRICS_FILE, curve, read_metrics
from training.data.documents import read_lines

SHOWN_SAMPLES = 3  # for each outcome and reason
SHOWN_ANSWERS = 8  # for each suite
SHOWN_FINDINGS = 50
TEMPLATE = "report.html.j2"


def render_report(
    records: Sequence[Record],
    registered: Mapping[str, Any] | None = None,
    *,
    shown: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """Return the page as HTML.

    `records` are (artifact folder, its `artifact.json`), with inputs before the artifacts made from them. `registered`
    is the model registry's data on the model (`model_name`, `version`, `champion`, `promoted`, `sentence`) and on every
    move of its champion alias (`moves`); it is None or empty if the registry was not asked. `shown` are the records to
    show, as `looked_at` returns them; None: choose them now, for which all records that were not kept are read.
    """
    board = scoreboard(records)
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            board=board,
            headline=headline(board, registered or None),
            evidence=contamination_evidence(records),
            against_champion=against_champion(board["promotion"]),
            lineage=lineage(records),
            numerics=numerics_lines(board["numerics"]),
            kept=said_of_models(records),
            looked_at=looked_at(records) if shown is None else shown,
            clusters=cluster_counts(records),
            findings=findings(records),
            long_context=long_context_lines(board["long_context"]),
            bits=[
                *bits_lines(board["bits_per_byte"]),
                *filling_lines(board["filling"]),
                *small_lines(board.get("small", {})),
            ],
            comparisons=[{"suite": suite, **one} for suite, of in board["comparisons"].items() for one in of],
            contamination=contamination_suites(records),
            leaks=leak_effects(records),
            decontamination=decontamination_rates(records),
            encoders=encoders(records),
            second_extractors=second_extractors(records),
            fertility=tokenizer_note(records, "fertility"),
            vocabularies=tokenizer_note(records, "study"),
            answers=answers_side_by_side(records),
            alignment_answers=alignment_answers(records),
            reward_parts=reward_parts(board["alignment"]),
            watched=watched_rewards(records),
            kinds=kinds(board["scores"]),
            zeros=zeros(board["scores"]),
            ratings=rating_rows(board.get("judged_chat", {})),
            judge=judge_lines(board.get("judged_chat", {})),
            safety=safety_rows(board.get("safety", {})),
            not_above=NOT_ABOVE,
            how=_file(records, "model_scores", "harness.json") or {},
            reproducibility=reproducibility(records),
            funnel=funnel_steps(board["funnel"]),
            curves=curves(records),
            insides=insides(records),
            pictures=PICTURES,
            models=[model for model in MODELS if any(model in scored for scored in board["scores"].values())],
            totals={name: total_of(board, name) for name in ("node_hours", "price", "least")},
            registered=registered or {},
        )
    )


def _file(records: Sequence[Record], asset: str, name: str) -> Any:
    """Return the content of the JSON file `name` of the asset's last artifact.

    The result is None if the artifact or the file is missing.
    """
    for folder, record in reversed(of_asset(records, asset)):
        if _has(record, name):
            return json.loads(sound(folder, record, name).read_text("utf-8"))
    return None


def _has(record: Mapping[str, Any], name: str) -> bool:
    return any(entry["path"] == name for entry in record["files"])


def _snapshot(record: Mapping[str, Any]) -> str:
    return record["partition"].partition("@")[2] or record["partition"]


# Parts of the page.


def lineage(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the fingerprint, digest, counts, gates and metrics of every artifact."""
    return [
        {
            "asset": record["asset"],
            "partition": record["partition"],
            "fingerprint": record["fingerprint"],
            "digest": record["digest"],
            "counts": record["counts"],
            "gates": record["gates"],
            "metrics": record["metrics"],
        }
        for _, record in records
    ]


def looked_at(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return a few records of every outcome and reason, by stage and partition, as `pedigree inspect` shows them."""
    assets = {record["asset"]: None for _, record in records if has_records(record)}
    groups = [
        group
        for asset in assets
        for group in look_at(records, asset, number=SHOWN_SAMPLES, characters=SHOWN_CHARACTERS)
    ]
    return [
        {"asset": asset, "partition": partition, "groups": [one.as_json() for one in found]}
        for (asset, partition), found in itertools.groupby(groups, key=lambda one: (one.asset, one.partition))
    ]


def cluster_counts(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the metrics of the stage `dedup`, such as the number of clusters, for each snapshot."""
    return [
        {"snapshot": _snapshot(record), **record["metrics"]}
        for _, record in of_asset(records, "deduplicated_documents")
    ]


def findings(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the first SHOWN_FINDINGS findings of the contamination report."""
    found = of_asset(records, "contamination_report")
    if not found or not _has(found[-1][1], "findings.jsonl"):
        return []
    rows = read_lines(sound(*found[-1], "findings.jsonl"))
    return [row for row, _ in zip(rows, range(SHOWN_FINDINGS), strict=False)]


def contamination_suites(records: Sequence[Record]) -> dict[str, Any]:
    """Return the content of the contamination report; empty if there is none."""
    return _file(records, "contamination_report", "contamination.json") or {}


def leak_effects(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Return, by exam suite, how reading leaked items changed the base model's answers up to its last kept step.

    Suites without a leaked item are left out; empty if the model's steps were not scored.
    """
    curves_file = "learning_curves.json"  # of evaluation/steps, which imports this package
    leaks = (_file(records, "learning_curves", curves_file) or {}).get("leaks", {})
    return {
        suite: {"leaked": told["leaked"], **told["steps"][-1]}
        for suite, told in leaks.items()
        if told["leaked"] and told["steps"]
    }


def decontamination_rates(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the fractions of planted items that were found, by snapshot and benchmark.

    The number of marked documents is given too.
    """
    indexed = of_asset(records, "benchmark_index")
    plants = indexed[-1][1]["metrics"] if indexed else {}
    return [
        {
            "snapshot": _snapshot(record),
            "benchmark": benchmark["name"],
            **{how: plants.get(f"plants_found_{benchmark['name']}_{how}") for how in ("verbatim", "edited")},
            "marked": record["metrics"].get(f"documents_marked_{benchmark['name']}"),
            "documents": record["counts"]["in"],
            "parts": record["notes"].get("hits_by_part", {}).get(benchmark["name"], {}),
        }
        for _, record in of_asset(records, "decontaminated_documents")
        for benchmark in record["settings"].get("decontaminate", {}).get("benchmarks", ())
    ]


def encoders(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return, by snapshot, how token shards were encoded.

    `files` counts files by encoder, `compared` is the number of documents on which both encoders were compared, and
    `reasons` says why the fast encoder was not used.
    """
    return [
        {
            "snapshot": _snapshot(record),
            "files": record["notes"]["encoders"],
            "compared": record["metrics"].get("documents_compared"),
            "reasons": record["notes"].get("without_the_fast_encoder", {}),
        }
        for _, record in of_asset(records, "token_shards")
        if "encoders" in record["notes"]
    ]


def second_extractors(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return, by snapshot, the numbers of doubtful pages and of pages that the second extractor extracted."""
    return [
        {
            "snapshot": _snapshot(record),
            "doubtful": record["metrics"]["doubtful_pages"],
            "second": record["metrics"]["second_extractor_pages"],
        }
        for _, record in of_asset(records, "extracted_documents")
        if record["metrics"].get("doubtful_pages")
    ]


def tokenizer_note(records: Sequence[Record], name: str) -> list[dict[str, Any]]:
    """Return the tokenizer's table `fertility` (by language and source) or `study` (of vocabulary sizes)."""
    made = of_asset(records, "tokenizer")
    return made[-1][1]["notes"].get(name, []) if made else []


def answers_side_by_side(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return, for each suite with written answers, its first items with the answer of every model."""
    scored = of_asset(records, "model_scores")
    if not scored:
        return []
    folder, record = sound(*scored[-1]), scored[-1][1]
    return [
        {"suite": suite["name"], "rows": _rows(folder, suite["name"])}
        for suite in record["settings"]["evaluation"]["suites"]  # as plain data: a part from outside need not be here
        if suite["kind"] != "multiple_choice"
    ]


def _rows(folder: Path, suite: str) -> list[dict[str, Any]]:
    files = {model: folder / sample_file(model, suite) for model in MODELS}
    samples = {model: _first(file) for model, file in files.items() if file.exists()}
    return [
        {
            "item": row["item"],
            "prompt": row["prompt"],
            "target": row["target"],
            "answers": {
                model: {
                    "text": samples[model][i]["response"],
                    "score": score_of(samples[model][i]),
                    "why": _why(samples[model][i]),
                }
                for model in samples
            },
        }
        for i, row in enumerate(samples["base"])
    ]


def _why(sample: Mapping[str, Any]) -> str:
    """Return why the first answer of an item that scored 0 did so; empty if it is not known."""
    first = next((one for one in sample.get("why", ()) if one), None)
    return ": ".join(first.values()) if first else ""


def zeros(scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each suite and reason for which written answers scored 0, with the number of each model."""
    return [
        {"suite": suite, "kind": kind, "answers": {model: of["scored_0"].get(kind, 0) for model, of in counted.items()}}
        for suite, models in scores.items()
        if (counted := {model: entry for model, entry in models.items() if "scored_0" in entry})
        for kind in dict.fromkeys(kind for entry in counted.values() for kind in entry["scored_0"])
    ]


def _first(path: Path) -> list[dict[str, Any]]:
    return [row for row, _ in zip(read_lines(path), range(SHOWN_ANSWERS), strict=False)]


def alignment_answers(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return sampled answers of the SFT and the aligned model to the same prompts, with their rewards."""
    scored = of_asset(records, "alignment_rewards")
    names = {model: f"samples/{model}_alignment_answers.jsonl.zst" for model in ("sft", "aligned")}
    if not scored or not all(_has(scored[-1][1], name) for name in names.values()):
        return []
    rows = {model: _first(sound(*scored[-1], name)) for model, name in names.items()}
    return [
        {"prompt": before["prompt"][-1]["content"], "sft": before, "aligned": after}
        for before, after in zip(rows["sft"], rows["aligned"], strict=True)
    ]


def reproducibility(records: Sequence[Record]) -> dict[str, Any]:
    """Return the code revisions, libraries, seeds and settings of all artifacts."""
    libraries: dict[str, str] = {}
    for _, record in records:
        libraries |= record["libraries"]
    return {
        "code_revisions": sorted({record["code_revision"] for _, record in records if record["code_revision"]}),
        "libraries": dict(sorted(libraries.items())),
        "seeds": {f"{record['asset']} [{record['partition']}]": record["seed"] for _, record in records},
        "settings": {f"{record['asset']} [{record['partition']}]": record["settings"] for _, record in records},
    }


def contamination_evidence(records: Sequence[Record]) -> dict[str, Any]:
    """Return the evidence behind the last verdict on contamination; empty if the training data were not scanned.

    It has the verdict, the same with the number of items cleared (`told`), the number of texts read of each kind, the
    rule, what was not read or is unknown, and the digests of what was read. If contamination stopped the training,
    there is no report, and the scan of `data_contamination` is used.
    """
    report = _file(records, "contamination_report", REPORT_FILE) or _file(records, "data_contamination", REPORT_FILE)
    return report | {"told": told_of(report)} if report else {}


def against_champion(decision: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the paired comparisons with the champion of a promotion's decision, one for each suite."""
    return [
        {"passed": check["passed"], **check["detail"], "change": _signed(check["detail"])}
        for check in decision.get("checks", ())
        if "p_value" in check["detail"]
    ]


def _signed(drop: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return a drop as a change with the ends of its interval; above 0 where this model is better."""
    low, high = drop["interval"]
    return 0.0 - drop["drop"], 0.0 - high, 0.0 - low


def curves(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return what is shown of the trainings by their steps: each model's loss, and what was watched of the base model.

    Each has the model's `name`, the `metric` and its `words`, (step, value) `points`, and how many were `recorded`.
    """
    found = []
    for asset in ("base_model", "long_context_model", "sft_model", "reward_model", "aligned_model"):
        for folder, record in of_asset(records, asset)[-1:]:
            rows = read_metrics(folder / METRICS_FILE)
            shown = WATCHED if "watch" in record["settings"] else ()
            watched = (name for row in rows for name in row if name.startswith(shown))
            for metric in dict.fromkeys(("loss", *watched)):
                over, points = placed(rows, metric)
                if points:
                    words = "training loss" if metric == "loss" else metric.replace("_", " ")
                    named = {"name": asset.replace("_", " "), "metric": words.removeprefix("training "), "words": words}
                    found.append({**named, "over": over, "points": thinned(points), "recorded": len(points)})
    return found


WATCHED = ("watched_", "held_out_bits_per_byte_", "training_loss/")  # learning rates are in MLflow alone
INSIDE = {"gradient_norm/": "norm of gradients before clipping", "largest_activation/": "largest activation"}


def insides(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return what was noted inside the base model at the watched steps: its layers, and its kinds of weights.

    Each has `words`, and the (step, value) points by name in `rows`.
    """
    found = []
    for folder, record in of_asset(records, "base_model")[-1:]:
        rows = read_metrics(folder / METRICS_FILE) if "watch" in record["settings"] else []
        names = dict.fromkeys(name for row in rows for name in row if name.startswith(tuple(INSIDE)))
        for prefix, words in INSIDE.items():
            own = {name.removeprefix(prefix): thinned(curve(rows, name)) for name in names if name.startswith(prefix)}
            layers = {name.replace("_", " "): points for name, points in own.items() if name.startswith("layer_")}
            kinds = {name: points for name, points in own.items() if not name.startswith("layer_")}
            for what, some in (("layer", layers), ("kind of weight", kinds)):
                if some:
                    found.append({"words": f"{words} by {what} and step", "rows": some})
    return found


def score_picture(suite: str, models: Mapping[str, Mapping[str, Any]]) -> Markup:
    """Return bars of the models' accuracy on a suite with 95 % intervals, and chance as a mark."""
    bars = [
        Bar(
            label=model,
            value=entry["score"],
            text=f"{in_percent(entry['score'], entry['n'])} %",
            interval=share_interval(entry["score"], entry["n"]),
        )
        for model, entry in models.items()
    ]
    chance = next(iter(models.values()))["chance"] if models else None
    return bars_picture(f"Accuracy on {suite}", bars, most=1.0, mark=chance)


def tokens_picture(tokens: Mapping[str, float]) -> Markup:
    """Return bars of the number of tokens in each snapshot's shards."""
    bars = [
        Bar(label=name.partition("@")[2] or name, value=number, text=f"{number:,.0f}")
        for name, number in tokens.items()
    ]
    return bars_picture("Tokens of each snapshot", bars, most=max(tokens.values(), default=0.0))


def curve_picture(shown: Mapping[str, Any]) -> Markup:
    """Return a metric of one model over its tokens or steps as a line."""
    title = f"{shown['words'].capitalize()} of {shown['name']}"
    return line_picture(title, shown["points"], horizontal=shown["over"])


def inside_picture(shown: Mapping[str, Any]) -> Markup:
    """Return what was noted inside a model as a grid of names and steps."""
    return grid_picture(shown["words"].capitalize(), shown["rows"], horizontal="step")


PICTURES = {
    "funnel": funnel_picture,
    "scores": score_picture,
    "tokens": tokens_picture,
    "curve": curve_picture,
    "inside": inside_picture,
    "goodhart": goodhart_picture,
}


def records_of(folders: Iterable[Path]) -> list[Record]:
    """Return the artifacts in `folders`, each with its `artifact.json`."""
    return [(folder, json.loads((folder / "artifact.json").read_text("utf-8"))) for folder in folders]
