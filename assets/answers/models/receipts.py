"""Receipts for answers: the model that gave one, and the rarest parts of the answer that stand in what it learned from.

A receipt names the model and its attestation by digest, and for each part of the answer the pages (address, archive,
offset, shard) with the training steps that read it, or the rows of post-training with the models that learned from
them. What was withdrawn is never named. The same answer of the same model has the same receipt, to the byte, so
somebody else can make it again (assets/answers/models/receipt_check.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from assets.answers.models.attest import model_named, statement_about
from assets.answers.trace.trace import models_of
from assets.state.tombstones import Tombstone, read_tombstones
from evaluation.hub.attestation import as_bytes
from resources.tracking.reports import Tracking
from training.contract.artifact import digest_of
from training.contract.job import DataError, RefusedInput
from training.data.address_lists import entries_of
from training.data.checksum_cache import known_under
from training.data.urls import key_of
from training.provenance.index import RowGroups
from training.provenance.lineage import SHARDS, Lineage, lineage_of
from training.provenance.rows.rows import WHERE as WHERE_ROW
from training.provenance.rows.rows import RowIndex, row_indexes_of
from training.provenance.rows.spans import RowSpan, spans_in_rows
from training.provenance.text.asked import LEAST_TOKENS, WHERE, searched, seen_of_span
from training.provenance.text.search import IndexedShard
from training.provenance.text.texts import IndexedPage, TextSpan, rarity_bits, spans_of_text
from training.provenance.trace import SIDECARS_BYTES, Tracer

TYPE = "urn:pedigree:receipt:v1"  # says what follows from the answer: a change of what is chosen is another type
MOST_SPANS = 10  # of each kind, those of the rarest tokens
MOST_PLACES = 3  # pages or rows that are named for a span
LOOKED_AT = 20  # places of a span among which those are named that a step read, and none that was withdrawn
DIGEST = "sha256"  # of all other fields of a receipt
SAID = ("asset", "partition", "fingerprint", "digest", "record_digest")  # of the model

IsWithdrawn = Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipts:
    """What receipts of a model are made from, opened once; `stones` are the takedowns that they honour."""

    root: Path
    tracking: Tracking
    tracer: Tracer
    attestation: str
    tokenizer: Tokenizer
    shards: Sequence[IndexedShard]
    rows: Sequence[RowIndex]
    rows_not_known: str
    stones: tuple[Tombstone, ...]
    most_spans: int = MOST_SPANS
    most_places: int = MOST_PLACES
    looked_at: int = LOOKED_AT
    sidecars: RowGroups = field(default_factory=lambda: RowGroups(WHERE, most_bytes=SIDECARS_BYTES), repr=False)

    @property
    def model(self) -> str:
        """The name of the model's artifact, as commands take it."""
        item = self.tracer.lineage.last.item
        return f"{item.asset}/{item.fingerprint}"

    def current(self) -> Receipts:
        """Return these receipts, or opened anew if there was a takedown since."""
        if read_tombstones(self.root) == self.stones:
            return self
        return opened(self.model, self.root, self.tracking)

    def receipt(self, answer: str) -> dict[str, Any]:
        """Return the receipt for an answer. Raise DataError if something that it rests on is gone or was changed."""
        try:
            with known_under(self.root):
                return self._receipt(answer)
        except RefusedInput as error:
            raise DataError(str(error)) from None

    def page(self, shard: str, document: int) -> dict[str, Any]:
        """Return the address and the text of a document, by the name of its shard in receipts and its number there.

        Raise DataError if there is no such document, or if it was withdrawn.
        """
        own = next((one for one in self.shards if name_of(one) == shard), None)
        if own is None or not 0 <= document < len(own.offsets) - 1:
            raise DataError(f"{shard}, document {document}: is not in what {self.model} was trained on")
        try:
            (row,) = self.sidecars.rows(own.sidecar, [document])
        except RefusedInput as error:
            raise DataError(str(error)) from None
        if named_by(self.stones)(row):
            raise DataError("this page was withdrawn")
        first, stop = own.offsets[document : document + 2].tolist()
        text = self.tokenizer.decode(own.tokens[first : stop - 1].tolist(), skip_special_tokens=False)
        return {**row, "text": text}

    def _receipt(self, answer: str) -> dict[str, Any]:
        is_withdrawn = named_by(self.stones)
        pages, left_out = self._in_pages(answer, is_withdrawn)
        rows = self._in_rows(answer, is_withdrawn)
        item, lineage = self.tracer.lineage.last.item, self.tracer.lineage
        told = {
            "type": TYPE,
            "model": {name: getattr(item, name) for name in SAID},
            "attestation": {"sha256": self.attestation},
            "answer": {"text": answer, "sha256": hashlib.sha256(answer.encode()).hexdigest()},
            "searched": {
                "least_tokens": LEAST_TOKENS,
                "tokens": sum(len(shard.tokens) for shard in self.shards),
                "shards": {node.item.fingerprint: node.item.digest for node in lineage.of(SHARDS)},
                "rows": {one.item.fingerprint: one.item.digest for one in self.rows},
                "rows_not_known": self.rows_not_known,
                "not_searched": [f"adopted_model/{one.item.fingerprint}" for one in lineage.of("adopted_model")],
            },
            "takedowns": len(self.stones),
            "withdrawn_places": left_out,
            "spans": pages,
            "row_spans": rows,
        }
        return {**told, DIGEST: digest_of(told)}

    def _in_pages(self, answer: str, is_withdrawn: IsWithdrawn) -> tuple[list[dict[str, Any]], int]:
        """Return the spans that stand in pages, and how many places of withdrawn pages were left out."""
        spans = spans_of_text(answer, self.tokenizer, self.shards, least=LEAST_TOKENS, most_pages=self.looked_at)
        found, left_out = [], 0
        for one in sorted(spans, key=lambda span: (-span.bits, span.start)):
            pages = [page for page in one.pages if not self.stones or not is_withdrawn(self._row(page))]
            gone = len(one.pages) - len(pages)
            left_out += gone
            if pages:
                found.append(self._span(answer, one, pages, one.count - gone))
            if len(found) == self.most_spans:
                break
        return sorted(found, key=lambda span: span["start"]), left_out

    def _span(self, answer: str, span: TextSpan, pages: Sequence[IndexedPage], count: int) -> dict[str, Any]:
        return {
            "start": span.start,
            "stop": span.stop,
            "text": answer[span.start : span.stop],
            "tokens": span.tokens,
            "bits": span.bits,
            "count": count,
            "pages": [self._page(page, seen) for page, seen in self._read_first(pages)],
        }

    def _read_first(self, pages: Sequence[IndexedPage]) -> list[tuple[IndexedPage, list[dict[str, Any]]]]:
        """Return some of these pages with the trainings that saw the span there: those that a step read come first."""
        read, others = [], []
        for page in pages:
            seen = seen_of_span(self.tracer, page)
            (read if any(one["times"] for one in seen) else others).append((page, seen))
            if len(read) == self.most_places:
                break
        return [*read, *others][: self.most_places]

    def _row(self, page: IndexedPage) -> dict[str, Any]:
        (row,) = self.sidecars.rows(page.shard.sidecar, [page.document])
        return row

    def _page(self, page: IndexedPage, trainings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        row = self._row(page)
        return {
            **{name: row.get(name) for name in WHERE},
            "shard": name_of(page.shard),
            "document": page.document,
            "token": page.token,
            "tokens": page.tokens,
            "seen": [
                {
                    **{name: seen[name] for name in ("training", "held_out", "times", "tokens")},
                    "steps": sorted({one["step"] for one in seen["steps"] if not one["skipped"]}),
                }
                for seen in trainings
            ],
        }

    def _in_rows(self, answer: str, is_withdrawn: IsWithdrawn) -> list[dict[str, Any]]:
        def learned(row: Mapping[str, Any]) -> bool:
            return bool(models_of(self.tracer.lineage, row)) and not is_withdrawn(row)

        spans = [self._row_span(answer, one) for one in spans_in_rows(self.rows, answer, learned)]
        rarest = sorted(spans, key=lambda span: (-span["bits"], span["start"]))[: self.most_spans]
        return sorted(rarest, key=lambda span: span["start"])

    def _row_span(self, answer: str, span: RowSpan) -> dict[str, Any]:
        text = answer[span.start : span.stop]
        rows = [
            {**{name: row[name] for name in WHERE_ROW}, "models": models_of(self.tracer.lineage, row)}
            for row in span.rows[: self.most_places]
        ]
        return {
            "start": span.start,
            "stop": span.stop,
            "text": text,
            "words": span.words,
            "bits": rarity_bits(self.tokenizer.encode(text, add_special_tokens=False).ids, self.shards),
            "count": len(span.rows),
            "rows": rows,
        }


def opened(model: str, root: Path, tracking: Tracking) -> Receipts:
    """Return what the receipts of a model under a root are made from, after checking every file of it.

    `model` is a name as in `pedigree attest`. Raise DataError if the model cannot be attested or its corpus has no text
    index.
    """
    stones = read_tombstones(root)
    made = model_named(model, root, tracking)
    try:
        with known_under(root):
            lineage = lineage_of(root, made)
            statement = statement_about(lineage, root, tracking)
            tokenizer, shards = searched(lineage)
            rows, not_known = _rows_of(lineage)
            return Receipts(
                root=root,
                tracking=tracking,
                tracer=Tracer(lineage),
                attestation=hashlib.sha256(as_bytes(statement)).hexdigest(),
                tokenizer=tokenizer,
                shards=shards,
                rows=rows,
                rows_not_known=not_known,
                stones=stones,
            )
    except RefusedInput as error:
        raise DataError(str(error)) from None


def _rows_of(lineage: Lineage) -> tuple[list[RowIndex], str]:
    try:
        return row_indexes_of(lineage), ""
    except DataError as error:
        return [], str(error)


def name_of(shard: IndexedShard) -> str:
    """Return the name of a shard in receipts."""
    return f"{shard.item.fingerprint}/{shard.path}"


def named_by(stones: Sequence[Tombstone]) -> IsWithdrawn:
    """Return a function that says whether tombstones name a page (`id`, `url`) or a row (`id`, `source`).

    A page counts as withdrawn from every snapshot, and also where a recipe kept it as the twin of a withdrawn one.
    """
    names = frozenset(name for one in stones for name in (*(each.entry for each in one.entries), *one.rows))

    def is_withdrawn(record: Mapping[str, Any]) -> bool:
        entries = entries_of(key_of(record["url"])) if names and record.get("url") else ()
        return not names.isdisjoint((record["id"], f"{record.get('source')}#", *entries))

    return is_withdrawn
