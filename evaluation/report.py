"""One self-contained HTML page about a run: its artifacts, the documents dropped, the models' scores, contamination.

`render_report` shows the artifacts that exist, refused ones included, and leaves out the parts of missing ones. All
text from web pages is escaped, no address is a link, and a content security policy in the page keeps it from loading
anything.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from evaluation.answers import MODELS, sample_file
from evaluation.closer import look_at
from evaluation.intervals import share_interval
from evaluation.pages import SHOWN_CHARACTERS, environment, plotly_script
from evaluation.samples import has_records
from evaluation.scoreboard import (
    kinds,
    long_context_lines,
    numerics_lines,
    outside_line,
    reward_parts,
    scoreboard,
    total_price,
)
from evaluation.truth import Record, of_asset
from training.data.documents import read_lines
from training.evaluation_settings import EvaluationRecipe
from training.progress import METRICS_FILE, read_metrics
from training.records import read_record

SHOWN_SAMPLES = 3  # for each outcome and reason
SHOWN_ANSWERS = 8  # for each suite
SHOWN_FINDINGS = 50
TEMPLATE = "report.html.j2"


def render_report(records: Sequence[Record], registered: Mapping[str, Any] | None = None) -> str:
    """Return the page as HTML.

    `records` are (artifact folder, its `artifact.json`), with inputs before the artifacts made from them. `registered`
    is the model registry's data on the model (`model_name`, `version`, `champion`, `promoted`, `sentence`) and on every
    move of its champion alias (`moves`); it is None or empty if the registry was not asked.
    """
    board = scoreboard(records)
    figures = {
        "funnel": funnel_figure(board["funnel"]),
        "loss": loss_figure(records),
        "scores": scores_figure(board["scores"]),
        "tokens": tokens_figure(board["tokens"]),
    }
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            board=board,
            lineage=lineage(records),
            numerics=numerics_lines(board["numerics"]),
            looked_at=looked_at(records),
            clusters=cluster_counts(records),
            findings=findings(records),
            long_context=long_context_lines(board["long_context"]),
            outside=outside_line(board["outside_text"]),
            contamination=contamination_suites(records),
            decontamination=decontamination_rates(records),
            encoders=encoders(records),
            second_extractors=second_extractors(records),
            fertility=tokenizer_note(records, "fertility"),
            vocabularies=tokenizer_note(records, "study"),
            answers=answers_side_by_side(records),
            alignment_answers=alignment_answers(records),
            reward_parts=reward_parts(board["alignment"]),
            kinds=kinds(board["scores"]),
            how=_file(records, "model_scores", "harness.json") or {},
            reproducibility=reproducibility(records),
            figures={name: figure for name, figure in figures.items() if figure},
            plotly=Markup(plotly_script()) if any(figures.values()) else "",
            models=[model for model in MODELS if any(model in scored for scored in board["scores"].values())],
            total_price=total_price(board),
            registered=registered or {},
        )
    )


def _file(records: Sequence[Record], asset: str, name: str) -> Any:
    """Return the content of a JSON file of the asset's last artifact; None if the artifact or the file is missing."""
    for folder, record in reversed(of_asset(records, asset)):
        if _has(record, name):
            return json.loads((folder / name).read_text("utf-8"))
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
        {"asset": asset, "partition": partition, "groups": list(found)}
        for (asset, partition), found in itertools.groupby(groups, key=lambda one: (one.asset, one.partition))
    ]


def cluster_counts(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the metrics of deduplication for each snapshot."""
    return [
        {"snapshot": _snapshot(record), **record["metrics"]}
        for _, record in of_asset(records, "deduplicated_documents")
    ]


def findings(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the first SHOWN_FINDINGS findings of the contamination report."""
    found = of_asset(records, "contamination_report")
    if not found or not _has(found[-1][1], "findings.jsonl"):
        return []
    return [row for row, _ in zip(read_lines(found[-1][0] / "findings.jsonl"), range(SHOWN_FINDINGS), strict=False)]


def contamination_suites(records: Sequence[Record]) -> dict[str, Any]:
    """The contamination report; empty when there is none."""
    return _file(records, "contamination_report", "contamination.json") or {}


def decontamination_rates(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return, by snapshot and benchmark, the shares of planted items found, and the documents marked."""
    indexed = of_asset(records, "benchmark_index")
    plants = indexed[-1][1]["metrics"] if indexed else {}
    return [
        {
            "snapshot": _snapshot(record),
            "benchmark": benchmark["name"],
            **{how: plants.get(f"plants_found_{benchmark['name']}_{how}") for how in ("verbatim", "edited")},
            "marked": record["metrics"].get(f"documents_marked_{benchmark['name']}"),
            "documents": record["counts"]["in"],
            "parts": record.get("notes", {}).get("hits_by_part", {}).get(benchmark["name"], {}),
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
        if "encoders" in record.get("notes", {})
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
    return made[-1][1].get("notes", {}).get(name, []) if made else []


def answers_side_by_side(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return, for each suite with written answers, its first items with the answer of every model."""
    scored = of_asset(records, "model_scores")
    if not scored:
        return []
    folder, record = scored[-1]
    recipe = read_record(EvaluationRecipe, record["settings"]["evaluation"], where="evaluation")
    return [
        {"suite": suite.name, "rows": _rows(folder, suite.name)}
        for suite in recipe.suites
        if suite.kind != "multiple_choice"
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
                model: {"text": samples[model][i]["response"], "correct": samples[model][i]["correct"]}
                for model in samples
            },
        }
        for i, row in enumerate(samples["base"])
    ]


def _first(path: Path) -> list[dict[str, Any]]:
    return [row for row, _ in zip(read_lines(path), range(SHOWN_ANSWERS), strict=False)]


def alignment_answers(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Sampled answers of the SFT and the aligned model to the same prompts, with their rewards."""
    scored = of_asset(records, "alignment_rewards")
    names = {model: f"samples/{model}_alignment_answers.jsonl.zst" for model in ("sft", "aligned")}
    if not scored or not all(_has(scored[-1][1], name) for name in names.values()):
        return []
    rows = {model: _first(scored[-1][0] / name) for model, name in names.items()}
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


# Figures, as plotly's JSON. They hold numbers and names of the run, and no text of a web page.

COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#9c755f")
LAYOUT = {
    "margin": {"l": 60, "r": 20, "t": 40, "b": 50},
    "paper_bgcolor": "#fff",
    "font": {"family": "system-ui, sans-serif"},
}


def funnel_figure(funnel: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Return a Sankey diagram of all snapshots together: documents kept, dropped and quarantined by each stage."""
    nodes: dict[str, int] = {}
    flows: dict[tuple[int, int], int] = {}

    def flow(source: str, target: str, records: int) -> None:
        if records:
            key = (nodes.setdefault(source, len(nodes)), nodes.setdefault(target, len(nodes)))
            flows[key] = flows.get(key, 0) + records

    for stages in funnel.values():
        before = "crawl records"
        for stage in stages:
            name = stage["asset"].replace("_", " ")
            flow(before, name, stage["kept"])
            for outcome in ("dropped", "quarantined"):
                for reason, records in stage[outcome].items():
                    flow(before, f"{outcome}: {reason.partition(':')[0].replace('_', ' ')}", records)
            before = name
    if not flows:
        return {}
    links = {
        "source": [source for source, _ in flows],
        "target": [target for _, target in flows],
        "value": list(flows.values()),
        "color": [
            "rgba(78,121,167,0.35)" if ":" not in list(nodes)[target] else "rgba(225,87,89,0.35)" for _, target in flows
        ],
    }
    return {
        "data": [{"type": "sankey", "node": {"label": list(nodes), "pad": 12}, "link": links}],
        "layout": {**LAYOUT, "height": 460},
    }


def loss_figure(records: Sequence[Record]) -> dict[str, Any]:
    """Return a line chart of the training loss by step, for every trained model."""
    traces = []
    for asset in ("base_model", "long_context_model", "sft_model", "reward_model", "aligned_model"):
        for folder, _ in of_asset(records, asset)[-1:]:
            rows = [row for row in read_metrics(folder / METRICS_FILE) if isinstance(row.get("loss"), (int, float))]
            if rows:
                points = {"x": [row["step"] for row in rows], "y": [row["loss"] for row in rows]}
                traces.append({"type": "scatter", "mode": "lines", "name": asset.replace("_", " "), **points})
    if not traces:
        return {}
    axes = {"xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": "loss"}}}
    return {"data": traces, "layout": {**LAYOUT, **axes, "height": 380}}


def scores_figure(scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return a bar chart of accuracy with 95 % intervals, the models side by side, and chance as a mark."""
    if not scores:
        return {}
    suites = list(scores)
    traces: list[dict[str, Any]] = []
    for colour, model in zip(COLOURS, MODELS, strict=False):
        entries = [scores[suite].get(model) for suite in suites]
        bounds = [share_interval(entry["score"], entry["n"]) if entry else (0.0, 0.0) for entry in entries]
        shares = [entry["score"] if entry else 0.0 for entry in entries]
        above = [100 * (high - share) for share, (_, high) in zip(shares, bounds, strict=True)]
        below = [100 * (share - low) for share, (low, _) in zip(shares, bounds, strict=True)]
        bars = {"x": suites, "y": [100 * entry["score"] if entry else None for entry in entries]}
        error = {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "visible": True}
        traces.append({"type": "bar", "name": model, "marker": {"color": colour}, "error_y": error, **bars})
    chance = [100 * next(iter(scores[suite].values()))["chance"] for suite in suites]
    mark = {"symbol": "line-ew-open", "size": 30, "color": "#333"}
    traces.append({"type": "scatter", "mode": "markers", "name": "chance", "x": suites, "y": chance, "marker": mark})
    axis = {"title": {"text": "percent"}, "range": [0, 100]}
    return {"data": traces, "layout": {**LAYOUT, "barmode": "group", "yaxis": axis, "height": 380}}


def tokens_figure(tokens: Mapping[str, float]) -> dict[str, Any]:
    """Return a bar chart of the number of tokens in each snapshot's shards."""
    if not tokens:
        return {}
    names = [name.partition("@")[2] or name for name in tokens]
    bars = {"type": "bar", "x": names, "y": list(tokens.values()), "marker": {"color": COLOURS[0]}}
    return {"data": [bars], "layout": {**LAYOUT, "yaxis": {"title": {"text": "tokens"}}, "height": 300}}


def records_of(folders: Iterable[Path]) -> list[Record]:
    """The artifacts in `folders`, each with its `artifact.json`."""
    return [(folder, json.loads((folder / "artifact.json").read_text("utf-8"))) for folder in folders]
