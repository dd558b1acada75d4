"""Bits per byte of a model on texts that it was not pretrained on: held-out documents, and a text from outside."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from lm_eval.api.instance import Instance

from evaluation.decision.intervals import ratio_interval
from evaluation.exams.local_model import LocalModel
from training.contract.job import DataError, InputArtifact
from training.data.documents import document_files, read_documents
from training.data.sources import read_rows
from training.order.held_out import held_out_rank, is_held_out
from training.recipe.settings.evaluation import EvaluationRecipe


def read_texts(recipe: EvaluationRecipe, settings: Mapping[str, Any]) -> list[str]:
    """Return the non-empty texts of the recipe's `outside_text`; none if the recipe names no file.

    Only the first `outside_text_limit` rows are read. Raise DataError if a row has no `text`, or if every text is
    empty.
    """
    if not recipe.outside_text:
        return []
    texts = []
    for number, row in enumerate(islice(read_rows(recipe.outside_text, settings=settings), recipe.outside_text_limit)):
        if not isinstance(row.get("text"), str):
            raise DataError(f"{recipe.outside_text}: row {number} has no `text`; it has {', '.join(sorted(row))}")
        texts.append(row["text"])
    found = [text for text in texts if text.strip()]
    if not found:
        raise DataError(f"{recipe.outside_text}: no text in it")
    return found


def held_out_texts(corpus: Sequence[InputArtifact], *, fraction: float, limit: int | None) -> list[str]:
    """Return the texts of the corpus's held-out documents.

    They are sorted by a hash of the document's id, which also decides what is held out. So a smaller `limit` (None:
    all) gives the first of the same texts, and the order of the snapshots changes nothing.
    """
    files = [path for item in corpus for path in document_files(item)]
    rows = ((row["id"], file) for file, path in enumerate(files) for row in read_documents(path, ["id"]))
    ranked = ((held_out_rank(name), name, file) for name, file in rows if is_held_out(name, fraction))
    chosen = sorted(ranked) if limit is None else heapq.nsmallest(limit, ranked)
    wanted = {name for _, name, _ in chosen}
    texts = {
        row["id"]: row["text"]
        for file in sorted({file for _, _, file in chosen})
        for row in read_documents(files[file], ["id", "text"])
        if row["id"] in wanted
    }
    return [texts[name] for _, name, _ in chosen]


def bits_per_byte(model: LocalModel, texts: Sequence[str]) -> dict[str, Any]:
    """Return `bits_per_byte` over all texts, its 95 % interval (None for one text), and the numbers of texts and bytes.

    Each text follows the end-of-text token. A text that is longer than the model's context is read in separate windows,
    as in lm-eval. The result is empty without texts.
    """
    if not texts:
        return {}
    asked = [Instance("loglikelihood_rolling", {}, (text,), number) for number, text in enumerate(texts)]
    bits = [-nats / math.log(2) for nats in model.loglikelihood_rolling(asked)]
    sizes = [len(text.encode("utf-8")) for text in texts]
    return {
        "bits_per_byte": sum(bits) / sum(sizes),
        "interval": list(ratio_interval(bits, sizes)) if len(texts) > 1 else None,
        "texts": len(texts),
        "bytes": sum(sizes),
    }
