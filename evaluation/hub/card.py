"""The model card: `README.md` with the front matter that model hubs read, and its numbers in `scoreboard.json`.

All content is read from the artifacts in the job's inputs. The part of a missing artifact is left out. `report.html`
also shows times and costs, which differ between runs, so like the log it is no part of the artifact's digest.
`shown_records.json` has the samples of documents in the report, so that it can be written again without reading the
documents.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluation.hub.forms.training_summary import SUMMARY_FILE, as_page, fields_of
from evaluation.hub.pages_read import COUNTED, Reading, reading_of
from evaluation.hub.sourced import POST_TRAINED, CardTable, as_markdown, read_by
from evaluation.hub.training_content import CONTENT_FILE, DOMAINS_FILE, domains_page, tables_of
from evaluation.report.chat_exams import judge_lines, rating_rows, safety_rows
from evaluation.report.kept_models import said_of_models
from evaluation.report.pages import environment
from evaluation.report.run_page import looked_at, records_of, render_report
from evaluation.report.scoreboard import (
    bits_lines,
    comparison_columns,
    comparison_rows,
    filling_lines,
    kinds,
    long_context_lines,
    numerics_lines,
    scoreboard,
)
from evaluation.report.truth_comparison import Record, of_asset, sound
from training.contract.artifact import CLOCK, write_json, write_text
from training.contract.job import Job, Outcome, Work
from training.contract.records import read_record
from training.contract.scopes import CHOSEN_MODEL, KEPT_STEPS
from training.posttrain.rows_read import ROWS_READ
from training.recipe.recipe import Recipe

OWN_SHAPE = {  # by the names that the card reads: fields of a model that no class of transformers runs
    "num_hidden_layers": "layers",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "max_position_embeddings": "max_length",
}
REPORT_PAGE, SHOWN_RECORDS = "report.html", "shown_records.json"
CONFIG = "model/config.json"
CARD_TEMPLATE = "README.md.j2"
METRICS = ("tokenizer", "pretraining")  # parts of the scoreboard that hold the metrics of one stage
LICENSE = "unknown"  # if the recipe states none: a model does not simply inherit that of its data


def run(job: Job, work: Work) -> Outcome:
    """Write the card, the numbers behind it, and the report of the run."""
    recipe = read_record(Recipe, job.settings["recipe"], where="recipe")
    records = records_of(Path(item.path) for item in job.inputs)
    board = scoreboard(records)
    reading = reading_of(records)
    tables = tables_of(records, reading)
    write_text(work.path / "README.md", render_card(recipe, records, board, tables, reading))
    counted = reading.sums["snapshot"] if reading else {}
    read = {name: dict(zip(COUNTED, own, strict=True)) for name, own in sorted(counted.items())}
    write_json(work.path / CONTENT_FILE, {"tables": [table.as_json() for table in tables], "read": read})
    write_text(work.path / DOMAINS_FILE, domains_page(reading, small_enterprise=recipe.provider.small_enterprise))
    write_text(work.path / SUMMARY_FILE, as_page(fields_of(recipe, records, reading, DOMAINS_FILE), one_line))
    shown = looked_at(records)
    write_text(work.path / SHOWN_RECORDS, json.dumps(shown, ensure_ascii=False))
    write_text(work.path / REPORT_PAGE, render_report(records, shown=shown))
    write_json(work.path / "scoreboard.json", _finite(lasting(board)))
    metrics: dict[str, float] = {"artifacts": len(records), "refusals": len(board["refusals"])}
    files = ("README.md", "scoreboard.json", CONTENT_FILE, DOMAINS_FILE, SUMMARY_FILE)
    return Outcome(files=files, metrics=metrics)


def lasting(board: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scoreboard without costs, times and speeds, so that a rerun gives the same model card."""
    metrics = {
        part: {name: value for name, value in board[part].items() if not name.endswith(CLOCK)} for part in METRICS
    }
    return {name: metrics.get(name, part) for name, part in board.items() if name != "cost"}


def render_card(
    recipe: Recipe,
    records: Sequence[Record],
    board: Mapping[str, Any],
    tables: Sequence[CardTable] = (),
    reading: Reading | None = None,
) -> str:
    """The card as Markdown with YAML front matter. `tables` are those of its training content, of this `reading`."""
    trained = ("base_model", KEPT_STEPS, "long_context_model", "sft_model", "aligned_model")
    models = {asset: of_asset(records, asset)[-1:] for asset in ("adopted_model", *trained, CHOSEN_MODEL)}
    text = (
        environment()
        .get_template(CARD_TEMPLATE)
        .render(
            recipe=recipe,
            board=board,
            long_context=long_context_lines(board["long_context"]),
            bits=[*bits_lines(board["bits_per_byte"]), *filling_lines(board["filling"])],
            compared=comparison_columns(board["comparisons"]),
            comparisons=comparison_rows(board["comparisons"]),
            kinds=kinds(board["scores"]),
            ratings=rating_rows(board.get("judged_chat", {})),
            judge=judge_lines(board.get("judged_chat", {})),
            safety=safety_rows(board.get("safety", {})),
            numerics=numerics_lines(board["numerics"]),
            kept=said_of_models(records),
            digests={asset: found[0][1]["digest"] for asset, found in models.items() if found},
            template_digest=_template_digest(records),
            shape=_shape(models),
            snapshots=_snapshots(records, reading),
            read={asset: _rows_read(records, asset) for asset in POST_TRAINED},
            method=_method(records),
            content=[as_markdown(table, one_line) for table in tables],
            content_file=CONTENT_FILE,
            line=one_line,
        )
    )
    return f"---\n{front_matter(recipe, records, reading)}\n---\n\n{text}"


def _shape(models: Mapping[str, Sequence[Record]]) -> dict[str, Any]:
    """Return the configuration that stands beside the weights of the last model; empty without a model."""
    for folder, record in (one for found in reversed(list(models.values())) for one in found):
        if any(entry["path"] == CONFIG for entry in record["files"]):
            config = json.loads(sound(folder, record, CONFIG).read_text("utf-8"))
            return {name: config["shape"][own] for name, own in OWN_SHAPE.items()} if "shape" in config else config
    return {}


def _snapshots(records: Sequence[Record], reading: Reading | None) -> dict[str, str]:
    """Return the kind of source of each snapshot of which tokens were read, by the snapshot's name."""
    made = {record["partition"].partition("@")[2]: record for _, record in of_asset(records, "crawl_archives")}
    read = reading.read("snapshot") if reading else []
    return {name: made[name]["settings"]["snapshot"]["source"] for name in sorted(read) if name in made}


def _rows_read(records: Sequence[Record], asset: str) -> dict[str, int]:
    """Return how many different rows of each source a post-training read, as its own record counts them."""
    read = Counter[str]()
    for origin in read_by(records, asset):
        for one in origin.record["notes"].get(ROWS_READ, ()):
            read[one["source"]] += one["rows"]
    return dict(read)


def _method(records: Sequence[Record]) -> str:
    """Return the method that the record of the aligned model names; empty without one."""
    return next((record["notes"].get("method", "") for _, record in of_asset(records, "aligned_model")), "")


def front_matter(recipe: Recipe, records: Sequence[Record] = (), reading: Reading | None = None) -> str:
    """Return the YAML that model hubs read: languages, licence, data and tags.

    Data are the snapshots of which pages were read, and the sources whose rows a post-training read, each once. The
    languages are those that were recognized in the pages read, the one with most tokens first.

    The scores are in `.eval_results` of an exported model (evaluation/hub/exam_results.py), and nowhere else: a hub
    that reads `model-index` too would show each of them twice.
    """
    from huggingface_hub import ModelCardData

    grams, source = recipe.provider.emissions_grams, recipe.provider.emissions_source
    emissions: dict[str, Any] = {} if grams is None else {"co2_eq_emissions": {"emissions": grams, "source": source}}
    data = ModelCardData(
        language=[name for name in reading.read("language") if name] if reading else None,
        **licence_fields(recipe.provider.licence),
        base_model=recipe.adopt.name or None,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=[
            "pedigree",
            "text-generation",
            *filter(None, [_method(records)]),
        ],
        datasets=list(
            dict.fromkeys(
                [
                    *(sorted(reading.read("snapshot")) if reading else ()),
                    *(name for asset in POST_TRAINED for name in _rows_read(records, asset)),
                ]
            )
        ),
        model_name=recipe.promote.model_name,
        **emissions,
    )
    return data.to_yaml()


def licence_fields(expression: str | None) -> dict[str, Any]:
    """Return the fields by which a hub knows an SPDX expression: its id, or `other` with the expression as its name."""
    if not expression:
        return {"license": LICENSE}
    if " " in expression or expression.startswith("LicenseRef-"):
        return {"license": "other", "license_name": expression}
    return {"license": expression.lower()}


def _template_digest(records: Sequence[Record]) -> str | None:
    found = of_asset(records, "aligned_model")
    return found[-1][1]["notes"].get("chat_template_digest") if found else None


def one_line(text: Any) -> str:
    """Return a text as one line of Markdown with all markup escaped.

    Text from web pages must not change the card's layout.
    """
    words = " ".join(str(text).split())
    return "".join("\\" + c if c in "\\`*_{}[]<>#|~$!&" else c for c in words)


def _finite(value: Any) -> Any:
    """Return plain data with NaN and infinities replaced by None, because JSON has no such numbers."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
