"""The benchmark of receipts asks for what is there: pieces of its documents, which the search finds."""

from __future__ import annotations

import numpy as np

from benchmarks import receipts
from training.provenance.text.search import maximal_spans


def test_answers_are_pieces_of_documents_and_each_is_searched_twice():
    shard = receipts.generated(20_000, np.random.default_rng(0))
    assert sorted(shard.suffixes.tolist()) == list(range(20_000)) and shard.tokens[499] == 0
    asked = receipts.answers([shard], 3)
    spans = [maximal_spans([shard], answer, least=8) for answer in asked]
    assert {len(answer) for answer in asked} == {200} and all(len(found) > 3 for found in spans)
    twice = receipts.searching([shard])(asked[0])
    assert [len(found) for found in twice] == [len(spans[0])] * 2
    seconds = receipts.seconds_of(len, asked)
    assert len(seconds) == 3 and "answers of 200 tokens" in receipts.shown(seconds)
