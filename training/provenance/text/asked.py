"""Find the parts of a text that a model was pretrained on, with their pages and training steps.

First they are looked for word for word, then, marked as such, in other letters (training/provenance/text/folded.py).

Rows of post-training are in no shard; training/provenance/rows searches them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from training.contract.artifact import Artifact
from training.contract.job import DataError
from training.data.tokens.tokenizer import TOKENIZER_FILE, load_tokenizer
from training.provenance.file_verification import sound
from training.provenance.lineage import SHARDS, Lineage, Node, artifacts_under, item_of
from training.provenance.text.folded import folded_spans
from training.provenance.text.search import IndexedShard, open_index
from training.provenance.text.texts import IndexedPage, spans_of_text
from training.provenance.trace import Tracer

INDEX = "text_index"
WHERE = ("id", "url", "snapshot", "warc_file", "warc_offset")
LEAST_TOKENS = 8  # shorter spans stand in any corpus


def trace_text(tracer: Tracer, text: str, *, least: int = LEAST_TOKENS, shown: int = 3) -> dict[str, Any]:
    """Return the spans of a text that occur in the corpus, with up to `shown` pages for each span.

    Spans have at least `least` tokens. Each page says which steps of the trainings saw it. `folded` are further spans
    of eight words or more that stand there in other letters; `folded_not_known` says why they were not looked for.
    Raise DataError if the corpus has no text index, or several tokenizers.
    """
    tokenizer, shards = searched(tracer.lineage)
    spans = spans_of_text(text, tokenizer, shards, least=least, most_pages=shown)
    covered = {at for span in spans for at in range(span.start, span.stop)}
    return {
        "text": text,
        "least_tokens": least,
        "tokens_searched": sum(len(shard.tokens) for shard in shards),
        "covered": round(len(covered) / len(text), 4) if text else 0.0,
        "spans": [
            {
                "start": span.start,
                "stop": span.stop,
                "text": text[span.start : span.stop],
                "tokens": span.tokens,
                "count": span.count,
                "pages": [_page(tracer, tokenizer, page) for page in span.pages],
            }
            for span in spans
        ],
        **_folded(tracer, text, [(span.start, span.stop) for span in spans], shown),
    }


def searched(lineage: Lineage) -> tuple[Tokenizer, list[IndexedShard]]:
    """Return what a text is searched with: the tokenizer of a corpus, and its shards with their suffix arrays.

    Raise DataError if the corpus has several tokenizers or none, or no text index.
    """
    tokenizers = {node.item.digest: node for node in lineage.of("tokenizer")}
    if len(tokenizers) != 1:
        raise DataError(f"{lineage.last.item.where}: was made with {len(tokenizers)} tokenizers; one is needed")
    (node,) = tokenizers.values()
    return load_tokenizer(sound(node.usable, TOKENIZER_FILE)), text_indexes(lineage)


def _folded(tracer: Tracer, text: str, covered: Sequence[tuple[int, int]], shown: int) -> dict[str, Any]:
    try:
        spans = folded_spans(tracer.lineage, text, covered)
    except DataError as error:
        return {"folded": [], "folded_not_known": str(error)}
    found = [
        {
            "start": span.start,
            "stop": span.stop,
            "text": text[span.start : span.stop],
            "words": span.words,
            "count": len(span.ids),
            "pages": [_whole_page(tracer, id_) for id_ in span.ids[:shown]],
        }
        for span in spans
    ]
    return {"folded": found, "folded_not_known": ""}


def _whole_page(tracer: Tracer, id_: str) -> dict[str, Any]:
    (known,) = tracer.document(id_)["pages"]
    return {name: known[name] for name in (*WHERE, "seen")}


def text_indexes(lineage: Lineage) -> list[IndexedShard]:
    """Return the shards with suffix arrays of all snapshots that an artifact was made from.

    Raise DataError if the text index of a snapshot is not made, and RefusedInput if it is damaged.
    """
    made = list(artifacts_under(lineage.root, lambda asset: asset == INDEX))
    return [shard for shards in lineage.of(SHARDS) for shard in _opened(shards, made)]


def _opened(shards: Node, made: Sequence[Artifact]) -> list[IndexedShard]:
    for one in made:
        if {entry["asset"]: entry["digest"] for entry in one.record["inputs"]} == {SHARDS: shards.item.digest}:
            return list(open_index(item_of(one), shards.usable))
    recipe = shards.item.partition.partition("@")[0]
    raise DataError(
        f"{INDEX} [{shards.item.partition}] of these shards ({shards.item.digest[:12]}) is not made;"
        f" `pedigree run {recipe} --until {INDEX}` makes it"
    )


def _page(tracer: Tracer, tokenizer: Tokenizer, page: IndexedPage) -> dict[str, Any]:
    """Return a page with the text around a span, and the steps that saw tokens of the span."""
    row, (before, after) = page.row, page.around(tokenizer)
    own = {name: row.get(name) for name in WHERE}
    return {**own, "token": page.token, "before": before, "after": after, "seen": seen_of_span(tracer, page)}


def seen_of_span(tracer: Tracer, page: IndexedPage) -> list[dict[str, Any]]:
    """Return which steps of each training saw tokens of a span, as its page has it."""
    seen = tracer.seen_in_shard(page.shard.item, page.shard.path, page.document)
    return [_of_span(one, page.token, page.token + page.tokens) for one in seen]


def _of_span(seen: Mapping[str, Any], first: int, stop: int) -> dict[str, Any]:
    """Return which steps of a training saw the tokens `first` to `stop` - 1 of a document.

    The form is that of `Tracer.page`.
    """
    steps = [one for one in seen["steps"] if one["start"] < stop and first < one["start"] + one["tokens"]]
    trained = [one for one in steps if not one["skipped"]]
    tokens = sum(min(one["start"] + one["tokens"], stop) - max(one["start"], first) for one in trained)
    return {**seen, "steps": steps, "times": len({one["epoch"] for one in trained}), "tokens": tokens}
