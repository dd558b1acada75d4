"""Stage `quality`: models that judge text, trained on the reference texts that the recipe names.

There is an n-gram model for perplexity and a classifier. The classifier separates reference texts from the negatives
that the recipe names, or from a sample of the crawl in the reference's language. It is measured on a held-out share of
both, and on texts that people labelled. A second classifier separates toxic texts from others, if the recipe names
both.

Files: `quality.json`; with a reference, `classifier.safetensors` and `ngram.*`, or `ngram.<language>.*` for each
language that the recipe names; with toxic texts, `toxicity.safetensors`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from training.contract.artifact import write_json, written
from training.contract.job import Counts, DataError, Gate, InputArtifact, Job, Outcome, Work
from training.contract.records import RecipeError
from training.contract.running.phase import Phase
from training.data.bottom_k_sample import Lowest, load_columns, save_columns
from training.data.documents import JoinedFiles, bounded_text, decompressed, document_files, read_tables, texts_at
from training.data.quality import classifier, perplexity
from training.data.quality.arpa import read_arpa
from training.data.quality.classifier import FastTextClassifier, LinearClassifier
from training.data.quality.perplexity import NgramModel, file_of
from training.data.quality.settings import LabelledRecipe, QualityRecipe
from training.data.sources import open_uri, read_rows
from training.data.words.language import identify

SUMMARY_FILE = "quality.json"
FASTTEXT_FILE = "classifier.fasttext"
TOXICITY = "toxicity"
PIECE_CHARACTERS = 4000  # a row with a book or a list of articles is cut into page-sized pieces, at line ends
MIN_TEXTS = 10  # in each set; fewer texts say nothing about quality
LANGUAGE_CHARACTERS = 2000  # a text's first characters, enough to identify its language
CANDIDATES_PER_NEGATIVE = 4  # more than one, because candidates may be empty, short or in other languages
BUCKETS = ("head", "middle", "tail")


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityModels:
    """The models that filter rules use. `ngrams` holds one model per language, or one model for all under "".

    `classifier` and `toxicity` are None if the recipe names no texts for them.
    """

    ngrams: Mapping[str, BucketedNgrams]
    classifier: LinearClassifier | FastTextClassifier | None
    toxicity: LinearClassifier | None = None

    def perplexity(self, text: str, language: str) -> tuple[float, str | None]:
        """Return a text's perplexity and bucket by the model of its language.

        They are NaN and None if the language has no model.
        """
        model = self.ngrams.get("") or self.ngrams.get(language)
        if model is None:
            return math.nan, None
        value = model.ngram.perplexity(text)
        return value, model.bucket(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketedNgrams:
    """An n-gram model and its two bucket limits: the highest perplexities of `head` and of `middle`.

    The limits divide the sampled crawl pages into three equal parts, as in CCNet. Limits from the reference texts would
    put nearly every page into `tail`.
    """

    ngram: NgramModel
    bucket_limits: tuple[float, float]

    def bucket(self, value: float) -> str:
        """Return `head`, `middle` or `tail`: the third of the sampled crawl pages in which this perplexity lies."""
        return BUCKETS[sum(value > limit for limit in self.bucket_limits)]


def load_models(item: InputArtifact) -> QualityModels | None:
    """Load the models of a `quality_models` artifact; None if its recipe asks for no models."""
    summary = json.loads(item.file(SUMMARY_FILE).read_text("utf-8"))
    folder = item.folder
    toxicity = LinearClassifier.load(folder, TOXICITY) if summary.get("has_toxicity") else None
    if not summary["has_models"]:
        return QualityModels(ngrams={}, classifier=None, toxicity=toxicity) if toxicity else None
    ngrams = {
        code: BucketedNgrams(ngram=NgramModel.load(folder, file_of(code)), bucket_limits=tuple(limits))
        for code, limits in summary["bucket_limits"].items()
    }
    label = summary["classifier_label"]
    model = FastTextClassifier(folder / FASTTEXT_FILE, label) if label else LinearClassifier.load(folder, "classifier")
    return QualityModels(ngrams=ngrams, classifier=model, toxicity=toxicity)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedModels:
    """Trained quality models and the figures that the stage reports on them.

    `summary` is written to `quality.json`, from which models are loaded.
    """

    summary: dict[str, Any]
    files: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)
    counts: Counts | None = None  # of crawled pages; None if none are read


def finish(job: Job, work: Work, results: Mapping[str, list[dict[str, Any]]]) -> Outcome:
    """Train the quality models that the recipe asks for; without any, write a file that says so."""
    recipe = job.settings_as(QualityRecipe, "quality")
    reference = _reference_models(job, recipe, work, results["sample"])
    made = [reference]
    if recipe.toxicity.positive:
        made.append(_toxicity_model(job, recipe, work))
    write_json(work.path / SUMMARY_FILE, {name: value for one in made for name, value in one.summary.items()})
    return Outcome(
        files=(*(name for one in made for name in one.files), SUMMARY_FILE),
        counts=reference.counts,
        metrics={name: value for one in made for name, value in one.metrics.items()},
        gates=tuple(gate for one in made for gate in one.gates),
        notes={name: value for one in made for name, value in one.notes.items()},
    )


def _reference_models(
    job: Job, recipe: QualityRecipe, work: Work, sampled: Sequence[Mapping[str, Any]]
) -> TrainedModels:
    """Train and measure the n-gram models and the classifier that learn from the reference texts."""
    if not recipe.reference:
        note = "quality.reference is empty: no models, and a filter that asks for classifier or perplexity is refused"
        return TrainedModels(summary={"has_models": False}, notes={"models": note})
    if not recipe.snapshots:
        raise RecipeError("quality.snapshots: empty; name the snapshots whose pages the reference is compared with")
    labelled = [_labelled(job, one) for one in recipe.labelled]
    held = {piece for one in labelled for text in (*one.good, *one.bad) for piece in (text, *page_sized(text))}
    references = _texts(job, recipe.reference, recipe.reference_field, "quality.reference", but=held)
    language = _main_language(references)
    given = {one.language or "" for one in recipe.ngram_files}
    learned = {code: [] if code in given else _in_language(references, code) for code in recipe.ngram_languages}
    candidates = [text for text in _candidates(job, recipe, work, sampled) if text not in held]
    crawled = {code: _sample(candidates, recipe, code) for code in dict.fromkeys((language, *learned))}
    sides = {code: (texts, crawled[code]) for code, texts in learned.items()}
    ngrams, seen = _train_ngrams(recipe, sides or {"": (references, crawled[language])})
    negatives = crawled[language]
    if recipe.negative:
        negatives = _texts(job, recipe.negative, recipe.negative_field, "quality.negative", but=held)
        _check_apart("quality.reference and quality.negative", references, negatives)
    texts = ReferenceTexts(references=references, language=language, negatives=negatives, crawl_perplexities=seen)
    made = _train(recipe, work, texts, ngrams, labelled)
    return replace(made, counts=_counts(sum(one["pages"] for one in sampled), sum(map(len, crawled.values()))))


def _counts(pages: int, sampled: int) -> Counts:
    """The stage's counts of crawled pages: all pages of the snapshots are read, and those in the samples are kept.

    `dropped` is the difference. So the gate `counts_balance` compares the pages read with the pages in the snapshots.
    """
    return Counts(records_in=pages, kept=sampled, dropped={"not_sampled": pages - sampled} if pages > sampled else {})


def _toxicity_model(job: Job, recipe: QualityRecipe, work: Work) -> TrainedModels:
    """Train the classifier of toxic texts, and measure it on held-out texts of both sets."""
    asked = recipe.toxicity
    toxic = _texts(job, asked.positive, asked.positive_field, "quality.toxicity.positive")
    others = _texts(job, asked.negative, asked.negative_field, "quality.toxicity.negative")
    _check_apart("quality.toxicity", toxic, others)
    (bad, bad_held_out), (good, good_held_out) = (_split(texts, recipe.held_out_fraction) for texts in (toxic, others))
    work.progress.message(f"{len(toxic)} toxic texts, {len(others)} others")
    model = classifier.train(bad, good, buckets=asked.buckets)
    auc = classifier.area_under_curve([model.score(t) for t in bad_held_out], [model.score(t) for t in good_held_out])
    return TrainedModels(
        summary={"has_toxicity": True},
        files=(model.save(work.path, TOXICITY),),
        metrics={
            "toxicity_auc": auc,
            "toxic_texts": len(toxic),
            "other_texts": len(others),
            "toxicity_held_out_texts": len(bad_held_out) + len(good_held_out),
        },
        gates=(
            Gate(
                name="toxicity_auc",
                passed=auc >= asked.min_auc,
                evidence={"toxicity_auc": round(auc, 4), "min_auc": asked.min_auc},
            ),
        ),
        notes={"toxicity": {"positive": list(asked.positive), "negative": list(asked.negative)}},
    )


def _in_language(references: Sequence[str], code: str) -> list[str]:
    found = [text for text in references if identify(text[:LANGUAGE_CHARACTERS])[0] == code]
    if len(found) < MIN_TEXTS:
        raise RecipeError(
            f"quality.ngram_languages: {len(found)} reference texts are in {code!r}; at least {MIN_TEXTS} are needed"
        )
    return found


def _train_ngrams(
    recipe: QualityRecipe, sides: Mapping[str, tuple[list[str], list[str]]]
) -> tuple[dict[str, BucketedNgrams], dict[str, np.ndarray]]:
    """Return each language's n-gram model with buckets, and the perplexities of the crawled pages under it.

    `sides` maps each language to (reference texts, crawled pages). A model is trained on the reference texts, or read
    from a file that the recipe names; its bucket limits come from the crawled pages.
    """
    models, perplexities = {}, {}
    files = {one.language or "": one.uri for one in recipe.ngram_files}
    for code, (references, crawled) in sides.items():
        if code in files:
            ngram = _of_file(files[code])
        else:
            ngram = perplexity.train(_split(references, recipe.held_out_fraction)[0], order=recipe.ngram_order)
        seen = perplexities[code] = np.array([ngram.perplexity(text) for text in crawled])
        low, high = (float(np.quantile(seen, share)) for share in (1 / 3, 2 / 3))
        models[code] = BucketedNgrams(ngram=ngram, bucket_limits=(low, high))
    return models, perplexities


def _of_file(uri: str) -> NgramModel:
    with open_uri(uri) as stream, decompressed(stream, uri) as raw:
        return read_arpa(bounded_text(raw, uri), uri)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceTexts:
    """The classifier's two sets of texts, and the perplexities of the sampled crawl pages by language."""

    references: list[str]
    language: str
    negatives: list[str]
    crawl_perplexities: Mapping[str, np.ndarray]


def _train(
    recipe: QualityRecipe,
    work: Work,
    texts: ReferenceTexts,
    ngrams: Mapping[str, BucketedNgrams],
    labelled: Sequence[LabelledTexts],
) -> TrainedModels:
    language = texts.language
    good, good_held_out = _split(texts.references, recipe.held_out_fraction)
    bad, bad_held_out = _split(texts.negatives, recipe.held_out_fraction)
    work.progress.message(f"{len(texts.references)} reference texts in {language!r}, {len(texts.negatives)} negatives")
    model, classifier_file = _classifier(recipe, work, good, bad)
    auc = classifier.area_under_curve([model.score(t) for t in good_held_out], [model.score(t) for t in bad_held_out])
    code = next((code for code in ("", language) if code in ngrams), next(iter(ngrams)))
    main = ngrams[code].ngram
    seen = np.array([main.perplexity(text) for text in good_held_out])
    limits = {code: list(one.bucket_limits) for code, one in ngrams.items()}
    saved = [name for code, one in ngrams.items() for name in one.ngram.save(work.path, file_of(code))]
    summary = {"has_models": True, "bucket_limits": limits, "language": language, "ngram_order": recipe.ngram_order}
    summary["classifier_label"] = recipe.classifier_label if recipe.classifier_model else ""
    metrics = {
        "classifier_auc": auc,
        "reference_texts": len(texts.references),
        "negative_texts": len(texts.negatives),
        "held_out_texts": len(good_held_out) + len(bad_held_out),
        "held_out_reference_perplexity": float(np.median(seen)),
        "crawl_perplexity": float(np.median(texts.crawl_perplexities[code])),
        "ngrams": float(sum(sum(map(len, one.ngram.log_probability)) for one in ngrams.values())),
        "vocabulary": float(len(main.vocabulary)),
    }
    gate = Gate(
        name="classifier_auc",
        passed=auc >= recipe.min_auc,
        evidence={"classifier_auc": round(auc, 4), "min_auc": recipe.min_auc},
    )
    notes = {"language": language, "bucket_limits": limits, "reference": list(recipe.reference)}
    if recipe.negative:
        notes["negative"] = list(recipe.negative)
    gates = [gate]
    if labelled:
        areas = {one.recipe.name: one.area_under_curve(model) for one in labelled}
        metrics |= {f"labelled_auc_{name}": area for name, area in areas.items()}
        metrics |= {f"labelled_texts_{one.recipe.name}": len(one.good) + len(one.bad) for one in labelled}
        gates.append(_labelled_gate(areas, recipe.labelled))
    return TrainedModels(
        summary=summary, files=(*saved, classifier_file), metrics=metrics, gates=tuple(gates), notes=notes
    )


def _classifier(
    recipe: QualityRecipe, work: Work, good: list[str], bad: list[str]
) -> tuple[LinearClassifier | FastTextClassifier, str]:
    """Return the classifier and its file name: a copy of the recipe's fastText model, or one trained on both sets."""
    if not recipe.classifier_model:
        model = classifier.train(good, bad, buckets=recipe.classifier_buckets)
        return model, model.save(work.path, "classifier")
    with open_uri(recipe.classifier_model) as source, written(work.path / FASTTEXT_FILE) as copy:
        shutil.copyfileobj(source, copy)
    return FastTextClassifier(work.path / FASTTEXT_FILE, recipe.classifier_label), FASTTEXT_FILE


# Reference texts


def _texts(job: Job, uris: Sequence[str], column: str, where: str, *, but: Set[str] = frozenset()) -> list[str]:
    """Return page-sized pieces of all texts behind the URIs, without repeats, sorted by hash.

    Pieces in `but` are left out.
    """
    rows = _rows(job, uris, column, where, f"{where}_field")
    pieces = {piece for _, text in rows for piece in page_sized(text)} - but
    return _enough(pieces, uris, where)


def _rows(
    job: Job, uris: Sequence[str], column: str, where: str, column_setting: str
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every row of the files at the URIs, with its text."""
    for uri in uris:
        for number, row in enumerate(read_rows(uri, settings=job.settings)):
            text = row.get(column)
            if not isinstance(text, str):
                raise DataError(
                    f"{where}: {uri}: row {number} has no text in {column!r}; its fields are"
                    f" {', '.join(sorted(row))} ({column_setting} names the one to read)"
                )
            yield row, text


def _enough(texts: Set[str], uris: Sequence[str], where: str) -> list[str]:
    if len(texts) < MIN_TEXTS:
        raise DataError(f"{where}: {len(texts)} texts in {', '.join(uris)}; at least {MIN_TEXTS} are needed")
    return sorted(texts, key=_hash)


def _check_apart(where: str, texts: Sequence[str], others: Sequence[str]) -> None:
    if common := set(texts) & set(others):
        raise DataError(f"{where}: {len(common)} texts are in both sets; the first is {min(common)[:80]!r}")


def page_sized(text: str) -> Iterator[str]:
    """Yield the text in pieces of at most PIECE_CHARACTERS, cut at line ends. A longer line is one piece."""
    piece: list[str] = []
    size = 0
    for line in text.splitlines():
        if size + len(line) > PIECE_CHARACTERS and piece:
            yield "\n".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += len(line) + 1
    if "".join(piece).strip():
        yield "\n".join(piece)


def _main_language(texts: Sequence[str]) -> str:
    counts = Counter(identify(text[:LANGUAGE_CHARACTERS])[0] for text in texts)
    return min(counts, key=lambda code: (-counts[code], code))


# Texts that people labelled as good or bad


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelledTexts:
    """Texts that people labelled as good or bad. They are not cut into pieces, because pages are scored whole too."""

    recipe: LabelledRecipe
    good: list[str]
    bad: list[str]

    def area_under_curve(self, model: LinearClassifier | FastTextClassifier) -> float:
        """Probability in [0, 1] that the classifier scores a good text above a bad one."""
        scores = ([model.score(text) for text in texts] for texts in (self.good, self.bad))
        return classifier.area_under_curve(*scores)


def _labelled(job: Job, asked: LabelledRecipe) -> LabelledTexts:
    where = f"quality.labelled.{asked.name}"
    sides = []
    for uris, label in ((asked.positive, asked.positive_label), (asked.negative, asked.negative_label)):
        rows = _rows(job, uris, asked.text_field, where, "text_field")
        chosen = {text for row, text in rows if not asked.label_field or str(row.get(asked.label_field)) == label}
        sides.append(_enough(chosen, uris, where))
    _check_apart(where, *sides)
    return LabelledTexts(recipe=asked, good=sides[0], bad=sides[1])


def _labelled_gate(areas: Mapping[str, float], asked: Sequence[LabelledRecipe]) -> Gate:
    return Gate(
        name="labelled_auc",
        passed=all(areas[one.name] >= one.min_auc for one in asked),
        evidence={
            "labelled_auc": {name: round(area, 4) for name, area in areas.items()},
            "min_auc": {one.name: one.min_auc for one in asked},
        },
    )


# Texts of the crawl


def choose_in_file(job: Job, work: Work, rank: int) -> dict[str, Any]:
    """Choose the pages of one file from which negatives may be sampled."""
    recipe = job.settings_as(QualityRecipe, "quality")
    lowest, pages = _lowest(recipe, more=1), 0
    for table in read_tables(crawled_files(job)[rank], ["id"]):
        ids = table["id"].to_pylist()
        lowest.add(_numbers(ids), np.ones(len(ids), np.int64), np.arange(pages, pages + len(ids)))
        pages += len(ids)
    save_columns(_choice_path(work, rank), *lowest.documents())
    return {"files": [str(_choice_path(work, rank).relative_to(work.path))], "pages": pages}


def crawled_files(job: Job) -> JoinedFiles:
    """Return the files of the pages with which the reference is compared."""
    return JoinedFiles([document_files(item) for item in job.inputs_of("extracted_documents")])


def _choice_path(work: Work, rank: int) -> Path:
    return work.scratch / "sample" / f"{rank:05d}.npy"


def _num_files(job: Job) -> int:
    return len(crawled_files(job)) if job.settings_as(QualityRecipe, "quality").reference else 0


PHASES = (Phase(name="sample", num_ranks=_num_files, run_rank=choose_in_file),)


def _lowest(recipe: QualityRecipe, *, more: int) -> Lowest:
    """Return what chooses among pages, each of which counts as one byte."""
    return Lowest(CANDIDATES_PER_NEGATIVE * recipe.negatives, more=more)


def _numbers(ids: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return the first 64 bits of each id's hash."""
    return np.array([int(_hash(id_)[:16], 16) for id_ in ids], np.uint64)


def _candidates(job: Job, recipe: QualityRecipe, work: Work, sampled: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts from which negatives are sampled.

    They are the pages whose ids have the smallest hashes, sorted by hash, so the order of the files does not matter.
    """
    lowest, files = _lowest(recipe, more=2), crawled_files(job)
    for rank in range(len(sampled)):
        hashes, sizes, rows = load_columns(_choice_path(work, rank))
        lowest.add(hashes, sizes, np.full(len(rows), rank), rows)
    _, _, *places = (column[: lowest.fitting()].tolist() for column in lowest.documents())
    found = list(zip(*places, strict=True))
    texts: dict[tuple[int, int], str] = {}
    for file, chosen in itertools.groupby(sorted(found), key=itemgetter(0)):
        rows = [row for _, row in chosen]
        texts |= {(file, row): text for row, text in zip(rows, texts_at(files[file], rows), strict=True)}
    return [texts[place] for place in found]


def _sample(candidates: Sequence[str], recipe: QualityRecipe, language: str) -> list[str]:
    """Return the first `recipe.negatives` candidates (crawled pages) that are in `language`, or as many as there are.

    Raise DataError if fewer than MIN_TEXTS are in that language.
    """
    chosen: list[str] = []
    for text in candidates:
        if len(chosen) < recipe.negatives and identify(text[:LANGUAGE_CHARACTERS])[0] == language:
            chosen.append(text)
    if len(chosen) < MIN_TEXTS:
        names = ", ".join(recipe.snapshots)
        raise DataError(
            f"quality.snapshots: {len(chosen)} pages of {names} are in {language!r}, the reference's language;"
            f" at least {MIN_TEXTS} are needed"
        )
    return chosen


def _split(texts: list[str], held_out_fraction: float) -> tuple[list[str], list[str]]:
    """Return (training texts, held-out texts); at least one text is held out.

    The choice is by the hash of a text, so an added text does not move any other.
    """
    limit = held_out_fraction * 2**64
    is_held_out = [int(_hash("held out\n" + text)[:16], 16) < limit for text in texts]
    if not any(is_held_out):
        is_held_out[0] = True
    training = [text for text, held in zip(texts, is_held_out, strict=True) if not held]
    if not training:
        raise RecipeError(f"quality.held_out_fraction: {held_out_fraction} leaves nothing to train on; 0.1 is usual")
    return training, [text for text, held in zip(texts, is_held_out, strict=True) if held]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
