"""What bills of materials say of a model: its files, the data that it read, libraries, settings and scores.

The forms are `evaluation.hub.forms.cyclonedx` and `evaluation.hub.forms.spdx`. All is read from the model's record,
from the records behind it and from the card's `training_content.json`, so equal records give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from evaluation.hub.costs import emissions_of, energy_of
from evaluation.hub.sourced import POST_TRAINED
from evaluation.hub.training_content import COLLECTION, CONTENT_FILE
from evaluation.report.truth_comparison import Record, of_asset, sound
from training.contract.artifact import Artifact
from training.contract.records import read_record
from training.contract.scopes import KEPT_STEPS, QUANTIZED_MODEL, WHOLE
from training.recipe.recipe import Recipe

OF_PRETRAINING = ("pretrain", ("learning_rate", "sequence_length", "global_batch_tokens", "precision", "seed"))
OF_SFT = ("sft", ("epochs", "learning_rate", "batch_size", "precision", "seed"))
OF_ALIGNMENT = ("align", ("method", "epochs", "learning_rate", "batch_size", "precision", "seed"))
SETTINGS = {  # asset: section of its settings, and the fields of it that a bill names
    "base_model": OF_PRETRAINING,
    KEPT_STEPS: OF_PRETRAINING,
    "sft_model": OF_SFT,
    "kept_sft_steps": OF_SFT,
    "aligned_model": OF_ALIGNMENT,
    "kept_align_steps": OF_ALIGNMENT,
}
TRAINED = ("reference_model", "base_model", "long_context_model", *POST_TRAINED, *WHOLE)
KEPT_OF = {whole: kept for kept, whole in WHOLE.items()}
LIMITS = (
    "The model knows what its pages say, and is wrong where they are. Its scores are of these exams alone. What the"
    " contamination check cannot see it does not rule out."
)


@dataclass(frozen=True, slots=True)
class DataSet:
    """Data that were read: their name, the digest of their artifact, and a sentence with what was read of them.

    `collected` is how the archives say that they were collected, `operator` by whom, and `last_day` when that ended;
    empty if they do not say.
    """

    name: str
    digest: str
    sentence: str
    kind: str
    collected: str = ""
    operator: str = ""
    last_day: str = ""


@dataclass(frozen=True, slots=True)
class SuiteScore:
    """A score of the model on a suite, with the ends of its interval."""

    suite: str
    metric: str
    value: float
    low: float
    high: float
    items: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelBill:
    """The content of a bill of materials. Empty texts are not known."""

    name: str
    version: str
    description: str
    asset: str
    digest: str
    licence: str | None
    supplier: str | None
    url: str | None
    architecture: str
    approach: str  # to learning, in CycloneDX's words
    base: str
    files: Mapping[str, str]
    libraries: Mapping[str, str]
    settings: Mapping[str, str]
    datasets: Sequence[DataSet]
    scores: Sequence[SuiteScore]
    steps: Sequence[str] = ()  # that the data went through before a training read them
    kilowatt_hours: float | None = None  # of all trainings behind the model; None: one of them was not measured
    emissions_grams: float | None = None  # of CO2, of these; None: neither stated nor to be computed


def bill_of(
    model: Artifact, card: Artifact, behind: Sequence[Record], files: Mapping[str, str], scores: Artifact | None
) -> ModelBill:
    """Return the bill of a model. `files` are the sha256 of its files by name; `behind` are the records behind it."""
    recipe = read_record(Recipe, card.record["settings"]["recipe"], where="recipe")
    config = json.loads(model.file("model/config.json").read_text("utf-8"))
    own, samples = [*behind, (model.path, model.record)], recipe.align.declared.learns_from == "samples"
    libraries: dict[str, str] = {}
    for _, record in own:
        libraries |= record["libraries"]
    spent = [record for asset in TRAINED for _, record in of_asset(own, asset)]
    energy, emissions = energy_of(spent, among=[record for _, record in own]), emissions_of(recipe.provider, spent)
    if energy is not None and energy.is_shared:  # the forms have no word for "at most"
        energy = emissions = None
    return ModelBill(
        name=recipe.promote.model_name,
        version=recipe.provider.version or model.digest[:12],
        description=recipe.description,
        asset=str(model.record["asset"]),
        digest=model.digest,
        licence=recipe.provider.licence,
        supplier=recipe.provider.name,
        url=recipe.provider.url,
        architecture=config["architectures"][0],
        approach=_approach(model, samples=samples),
        base=" ".join(filter(None, (recipe.adopt.name, recipe.adopt.revision))) if recipe.adopt.model else "",
        files=dict(sorted(files.items())),
        libraries=dict(sorted(libraries.items())),
        settings=_settings(own),
        datasets=[*_pages(card, own), *_rows(own, samples=samples)],
        scores=_scores(model, scores),
        steps=list(dict.fromkeys(_step(record) for _, record in own if _is_data(record))),
        kilowatt_hours=energy.kwh if energy else None,
        emissions_grams=emissions["emissions"] if emissions else recipe.provider.emissions_grams,
    )


def _is_data(record: Mapping[str, Any]) -> bool:
    """Whether a record is of an artifact that holds pages or rows, between the crawl and the training."""
    is_counted = record["counts"] is not None
    return is_counted and record["asset"] != "crawl_archives" and record["asset"] not in TRAINED


def _step(record: Mapping[str, Any]) -> str:
    return f"{record['asset']}: stage {record['stage']}, version {record['stage_version']}"


def _approach(model: Artifact, *, samples: bool) -> str:
    """Return how the training that made a model learned; `samples`: an aligned one from rewards of its own answers."""
    asset = model.record["notes"].get("choice", {}).get("asset", model.record["asset"])
    asset = model.record["notes"]["parent"]["asset"] if asset == QUANTIZED_MODEL else asset
    asset = WHOLE.get(asset, asset)
    if asset == "aligned_model" and samples:
        return "reinforcement-learning"
    return "supervised" if asset in POST_TRAINED else "self-supervised"


def _settings(records: Sequence[Record]) -> dict[str, str]:
    found = {}
    for asset, (section, names) in SETTINGS.items():
        for _, record in of_asset(records, asset)[-1:]:
            given = record["settings"].get(section, {})
            found |= {f"{section}.{name}": str(given[name]) for name in names if name in given}
    return found


def _pages(card: Artifact, records: Sequence[Record]) -> list[DataSet]:
    """Return the snapshots of which pages were read, each with what the card says was read of it."""
    content = json.loads(sound(card.path, card.record, CONTENT_FILE).read_text("utf-8"))
    read = content["read"]
    found = []
    noted = {
        record["partition"].partition("@")[2]: record["notes"].get("collection") or {}
        for _, record in of_asset(records, "extracted_documents")
    }
    for _, record in of_asset(records, "crawl_archives"):
        name = record["partition"].partition("@")[2]
        counted = read.get(name)
        if counted and counted["pages_read"]:
            said = f"{counted['pages_read']} of {counted['pages']} pages, {counted['tokens_read']} tokens read"
            source = record["settings"]["snapshot"]["source"]
            found.append(DataSet(name, record["digest"], said, source, *_collection(noted.get(name, {}))))
    return found


def _collection(noted: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return how, by whom and until when archives say that they were collected."""
    said = {name: "; ".join(one for one in values or () if one) for name, values in noted.get("said", {}).items()}
    first, last = noted.get("first_day") or "", noted.get("last_day") or ""
    days = f"records of {first} to {last}" if first else ""
    how = [f"{COLLECTION[name]}: {said[name]}" for name in ("software", "robots") if said.get(name)]
    return "; ".join([*([days] if days else []), *how]), said.get("operator", ""), last


def _rows(records: Sequence[Record], *, samples: bool) -> list[DataSet]:
    """Return a data set for each source of post-training rows, with the digest of the artifact that holds the rows."""
    found = []
    of_rows = ("instruction_data", "preference_data", "prompt_data" if samples else "preference_data")
    rows = dict(zip(POST_TRAINED, of_rows, strict=True))
    for asset in POST_TRAINED:
        for _, record in [one for name in (asset, KEPT_OF.get(asset, "")) for one in of_asset(records, name)][-1:]:
            given = next((item["digest"] for item in record["inputs"] if item["asset"] == rows[asset]), "unknown")
            for one in record["notes"].get("rows_read", ()):
                by = f" by {one['generator']}" if one["generator"] else ""
                said = f"{one['rows']} rows{by} read by {asset}, {one['times']} times in all"
                found.append(DataSet(f"{one['source']}{by}, {asset}", given, said, "rows"))
    return found


def _scores(model: Artifact, scores: Artifact | None) -> list[SuiteScore]:
    if scores is None:
        return []
    names = ("harness.json", "scores.json")
    harness, values = (json.loads(sound(scores.path, scores.record, name).read_text("utf-8")) for name in names)
    return [
        SuiteScore(suite, one["metric"], one["score"], one["interval"][0], one["interval"][1], one["n"])
        for name, asked in harness.items()
        if asked["digest"] == model.digest
        for suite, one in values[name].items()
    ]


def package_url(name: str, version: str) -> str | None:
    """Return the package URL of a library; None for a list of words of the project, whose version is a checksum."""
    is_list = PurePath(name).suffix in (".txt", ".tsv")
    return None if is_list else f"pkg:pypi/{name}@{version.replace('+', '%2B')}"


def as_json(document: Mapping[str, Any]) -> str:
    """Return a form as text."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
