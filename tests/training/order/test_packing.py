"""Best-fit packing: nothing lost, no document cut that fits a row, the waste counted, the shares those of tokens."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import numpy as np
import pytest

from tests.training.pretrain import tiny
from training.contract.records import RecipeError
from training.order import batches, packing
from training.order.batch_settings import BatchPhase
from training.order.packing import Packing, best_fit, cut_documents
from training.order.settings import MixtureRecipe
from training.pretrain.stages.pretrain import open_inputs

LENGTH = 32


def sizes(count=400, seed=0):
    draw = random.Random(seed)
    return np.array([draw.choice((0, draw.randint(1, 2 * LENGTH), draw.randint(1, 12))) for _ in range(count)])


def by_looking_at_every_row(tokens, length):
    """The same by the plainest means: the room of every row is compared for every piece."""
    pieces = [(length, number, first * length) for number, size in enumerate(tokens) for first in range(size // length)]
    rests = sorted(
        ((size % length, number, size // length * length) for number, size in enumerate(tokens) if size % length),
        key=lambda piece: -piece[0],
    )
    rows = [[piece] for piece in pieces]
    begun = []  # (row, how often rows had been filled when it was last)
    rooms = {}
    for time, piece in enumerate(rests):
        fitting = [row for row in begun if rooms[row][0] >= piece[0]]
        if fitting:
            row = min(fitting, key=lambda row: (rooms[row][0], -rooms[row][1]))
        else:
            row = len(rows)
            rows.append([])
            begun.append(row)
            rooms[row] = (length, 0)
        rows[row].append(piece)
        rooms[row] = (rooms[row][0] - piece[0], time)
    return [[(number, first, size) for size, number, first in row] for row in rows]


def row_of(packing: Packing, number: int) -> list[tuple[int, ...]]:
    """Return (document, first token, number of tokens) of each piece of a row."""
    first = int(packing.ends[number - 1]) if number else 0
    return [tuple(map(int, piece)) for piece in packing.pieces[first : int(packing.ends[number])]]


def test_rows_are_those_of_the_plainest_best_fit():
    tokens = sizes()
    packing = best_fit(tokens, LENGTH)
    assert [row_of(packing, number) for number in range(len(packing.ends))] == by_looking_at_every_row(tokens, LENGTH)


def test_every_token_is_in_one_row_and_no_document_is_cut_that_fits_one():
    tokens = sizes(seed=1)
    packing = best_fit(tokens, LENGTH)
    rows = [row_of(packing, number) for number in range(len(packing.ends))]
    assert max(sum(piece[2] for piece in row) for row in rows) <= LENGTH
    places = Counter((number, first + place) for row in rows for number, first, size in row for place in range(size))
    assert set(places.values()) == {1} and len(places) == tokens.sum()
    parts = Counter(number for row in rows for number, _, _ in row)
    assert all(parts[number] == -(-size // LENGTH) for number, size in enumerate(tokens.tolist()))
    assert cut_documents(tokens, LENGTH) == 53  # what standing end to end does to as many


def test_nothing_to_pack_is_no_row():
    assert [len(part) for part in best_fit(np.array([], dtype=np.int64), LENGTH)] == [0, 0]


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Two sources of very different documents; the rows of one of them cannot be filled."""
    texts = {
        "books": [tiny.sentence(("books", number), words=1 + number % 9) for number in range(150)],
        "web": [tiny.sentence(("web", number), words=3)[:13].ljust(13, "x") for number in range(200)],
    }
    recipe = dataclasses.replace(tiny.PRETRAIN, tokens=160 * 256, packing="best_fit")
    mixture = MixtureRecipe(weights={"books": 0.4, "web": 0.6}, max_epochs=50, held_out_fraction=0.1)
    return tiny.TinyChain(tmp_path_factory.mktemp("packed"), texts=texts, pretrain=recipe, mixture=mixture)


def test_an_epoch_has_every_token_once_and_the_next_one_another_order(packed):
    assert {packing.PIECES_FILE, packing.ROW_ENDS_FILE} <= set(packed.outcome.files)
    plan = packed.plan
    for number, source in enumerate(plan.record.sources):
        samples = [
            sample
            for step in range(plan.record.steps)
            for (one, _), sample in zip(batches.sample_ids(plan, step), batches.index(plan, step), strict=True)
            if one == number
        ]
        first, second = samples[: source.rows], samples[source.rows : 2 * source.rows]
        seen = Counter(
            (segment.shard, place)
            for row in first
            for segment in row
            for place in range(segment.start, segment.start + segment.length)
        )
        assert len(seen) == source.tokens == seen.total()
        assert first != second and sorted(first) == sorted(second)


def test_shares_are_those_of_tokens_and_the_waste_is_what_stays_empty(packed):
    plan, metrics = packed.plan, packed.outcome.metrics
    given = Counter()
    for step in range(plan.record.steps):
        for (source, _), sample in zip(batches.sample_ids(plan, step), batches.index(plan, step), strict=True):
            given[plan.record.sources[source].name] += sum(segment.length for segment in sample)
    places = plan.record.steps * plan.record.global_batch_tokens
    assert (
        metrics["packing_waste"] == pytest.approx(1 - given.total() / places, abs=0.002) and places == metrics["tokens"]
    )
    assert metrics["packing_waste"] > 0.05 and metrics["cut_documents_share"] == 0  # 14 and 14 of 32
    assert given["web"] / given.total() == pytest.approx(0.6, abs=0.005) == metrics["share_web"]
    (gate,) = packed.outcome.gates
    assert gate.passed and gate.evidence["mixtures"][0]["sources"]["books"]["given"] == pytest.approx(0.4, abs=0.005)


def test_end_to_end_wastes_nothing_and_says_how_many_documents_it_cuts(packed, tmp_path):
    chain = tiny.TinyChain(tmp_path)
    plan, metrics = chain.plan, chain.outcome.metrics
    longest = max(plan.documents.tokens(0, len(plan.documents)))
    assert (
        metrics["packing_waste"] == 0 and longest > LENGTH and metrics["cut_documents_share"] == 0
    )  # none of them fits
    short = tiny.TinyChain(tmp_path / "short", pretrain=dataclasses.replace(tiny.PRETRAIN, sequence_length=64))
    assert 0.5 < short.outcome.metrics["cut_documents_share"] <= 1


def test_rows_that_are_not_full_have_no_targets_behind_their_end(packed):
    plan, shards = packed.plan, packed.open_shards()
    samples = batches.index(plan, 0)
    tokens, targets, documents = shards.rows(samples, length=LENGTH)
    filled = np.array([sum(segment.length for segment in sample) for sample in samples])
    beyond = np.arange(LENGTH) >= filled[:, None]
    assert beyond.any() and (documents[beyond] == -1).all() and (tokens[beyond] == 0).all()
    assert (targets >= 0).sum() == batches.trained_tokens(samples)


def test_a_stage_trains_on_a_packed_plan_and_refuses_one_that_is_not(packed):
    from training.pretrain.stages.pretrain import run

    job = packed.job(pretrain=packed.pretrain)
    outcome = run(job, tiny.work_in(packed.root / "base_model" / "m"))
    assert all(gate.passed for gate in outcome.gates)
    with pytest.raises(RecipeError, match=r"'end_to_end'.*'best_fit'"):
        open_inputs(packed.job(), dataclasses.replace(packed.pretrain, packing="end_to_end"))


def test_rows_of_several_lengths_are_refused():
    warmup = (BatchPhase(tokens=256, sequence_length=16, global_batch_tokens=256),)
    with pytest.raises(RecipeError, match=r"best_fit .*batch_warmup .*\[16, 32\]"):
        dataclasses.replace(tiny.PRETRAIN, packing="best_fit", batch_warmup=warmup)
