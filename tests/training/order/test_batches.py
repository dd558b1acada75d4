"""The order of the data: pure, complete, and refused when the files are not those of the plan."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.training.pretrain import tiny
from training.contract.job import RefusedInput
from training.contract.records import RecipeError
from training.order import batches
from training.order.batch_settings import BatchPhase
from training.order.held_out import is_held_out
from training.order.loss_mask import IGNORED
from training.order.plan import SourceSize, effective_tokens, plan_phases, plan_sources
from training.order.settings import MixtureRecipe
from training.pretrain.parallel.world import World, micro_batches
from training.pretrain.settings import PretrainRecipe


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return tiny.TinyChain(tmp_path_factory.mktemp("chain"))


def long_plan(chain, *, epochs=3):
    """The chain's plan, long enough for several epochs of each source."""
    record = chain.plan.record
    samples = [-(-epochs * source.tokens // record.sequence_length) for source in record.sources]
    rows = chain.plan.phases[-1].rows
    steps = sum(samples) // rows + 1
    samples[0] += steps * rows - sum(samples)
    sources = tuple(
        batches.PlannedSource(**{name: getattr(source, name) for name in source.__slots__} | {"samples": count})
        for source, count in zip(record.sources, samples, strict=True)
    )
    fields = {name: getattr(record, name) for name in record.__slots__} | {"sources": sources, "steps": steps}
    return chain.plan.with_record(batches.PlanRecord(**fields))


def documents_of(plan, *, held_out):
    """(shard, number in the shard) of the plan's documents."""
    chosen = np.flatnonzero(plan.documents.are_held_out(0, len(plan.documents)) == held_out)
    return {(one.shard, one.document) for one in plan.documents.segments(chosen)}


def test_a_batch_is_the_same_whatever_was_asked_before(chain):
    fresh = [batches.index(chain.plan, step) for step in range(12)]
    backwards = chain.plan
    assert [batches.index(backwards, step) for step in reversed(range(12))] == fresh[::-1]


PHASES = (
    BatchPhase(tokens=5 * 48 * 16, sequence_length=16, global_batch_tokens=48 * 16),
    BatchPhase(tokens=4 * 24 * 32 + 7, sequence_length=32, global_batch_tokens=24 * 32),
)


@pytest.fixture(scope="module")
def warmed(tmp_path_factory):
    """A plan whose first steps have shorter rows, then smaller batches than the rest."""
    recipe = PretrainRecipe(tokens=30_000, sequence_length=32, global_batch_tokens=48 * 32, batch_warmup=PHASES, seed=3)
    mixture = MixtureRecipe(weights={"books": 2.0, "web": 1.0}, max_epochs=30, held_out_fraction=0.1)
    return tiny.TinyChain(tmp_path_factory.mktemp("warmed"), pretrain=recipe, mixture=mixture)


def test_phases_come_one_after_the_other_and_use_up_the_budget(warmed):
    plan = warmed.plan
    rows = [len(batches.index(plan, step)) for step in range(plan.record.steps)]
    assert rows == [48] * 5 + [24] * 4 + [48] * ((30_000 - 5 * 48 * 16 - 4 * 24 * 32) // (48 * 32))
    lengths = [{sum(part.length for part in row) for row in batches.index(plan, step)} for step in (0, 4, 5, 8, 9)]
    assert lengths == [{16}, {16}, {32}, {32}, {32}]
    assert plan.tokens_before(10) == 5 * 48 * 16 + 4 * 24 * 32 + 48 * 32
    assert plan.tokens_before(plan.record.steps) == warmed.outcome.metrics["tokens"] <= 30_000
    assert warmed.outcome.metrics["share_books"] == pytest.approx(2 / 3, abs=0.01)


def positions_of(plan, number):
    """The shard and the place of each token of a source, as the steps read them."""
    return [
        (segment.shard, position)
        for step in range(plan.record.steps)
        for (one, _), sample in zip(batches.sample_ids(plan, step), batches.index(plan, step), strict=True)
        for segment in sample
        for position in range(segment.start, segment.start + segment.length)
        if one == number
    ]


def test_a_phase_reads_on_where_the_one_before_it_ended(warmed):
    plan = warmed.plan
    for number, source in enumerate(plan.record.sources):
        whole = Counter(positions_of(plan, number)[: source.tokens])
        assert len(whole) == source.tokens and set(whole.values()) == {1}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("micro_batch_tokens", [None, 32])
def test_every_step_has_the_same_samples_for_any_number_of_processes_and_micro_batch(warmed, size, micro_batch_tokens):
    plan = warmed.plan
    for step in range(plan.record.steps):
        phase, samples = plan.phase_at(step), batches.index(plan, step)
        ranks = [
            micro_batches(
                phase.rows,
                sequence_length=phase.sequence_length,
                micro_batch_tokens=micro_batch_tokens,
                world=World(rank=rank, size=size, device=None),
            )
            for rank in range(size)
        ]
        # Pass by pass, process by process: the whole batch in its order, whoever takes it.
        taken = [samples[row] for passes in zip(*ranks, strict=True) for rows in passes for row in rows]
        assert taken == samples


def test_a_micro_batch_that_a_phase_cannot_be_cut_into_is_refused(warmed):
    phase = warmed.plan.phases[0]
    with pytest.raises(RecipeError, match="not a multiple"):
        micro_batches(
            phase.rows,
            sequence_length=phase.sequence_length,
            micro_batch_tokens=5 * 16,
            world=World(rank=0, size=1, device=None),
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_warmup": (BatchPhase(tokens=29_999, sequence_length=16, global_batch_tokens=16),)}, "after 29984"),
        ({"batch_warmup": (BatchPhase(tokens=64, sequence_length=64, global_batch_tokens=64),)}, "longer than"),
    ],
)
def test_a_warmup_that_leads_nowhere_is_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        PretrainRecipe(tokens=30_000, sequence_length=32, global_batch_tokens=64, **changes)


def test_without_a_warmup_the_plan_is_written_as_ever(chain):
    assert "phases" not in json.loads((Path(chain.plan_artifact.path) / "plan.json").read_text())


def test_every_sample_has_exactly_the_rows_length(chain):
    plan = long_plan(chain)
    for step in range(plan.record.steps):
        assert all(sum(segment.length for segment in sample) == 32 for sample in batches.index(plan, step))


def test_every_token_of_an_epoch_is_seen_once_before_the_next(chain):
    plan = long_plan(chain)
    for number, source in enumerate(plan.record.sources):
        stream = [
            segment
            for k in range(3 * source.tokens // 32)
            for segment in batches._sample(plan, number, start=32 * k, length=32)
        ]
        at, seen = 0, Counter()
        for segment in stream:
            for position in range(segment.start, segment.start + segment.length):
                seen[at // source.tokens, segment.shard, position] += 1
                at += 1
        assert set(seen.values()) == {1}
        assert sum(1 for epoch, *_ in seen if epoch == 0) == source.tokens


@pytest.mark.parametrize("quotas", [(5, 3, 0, 11), (1,), (7, 7), (100, 1)])
def test_interleaving_equals_sorting_all_samples_by_time(quotas):
    times = sorted((Fraction(2 * k + 1, 2 * n), source, k) for source, n in enumerate(quotas) for k in range(n))
    expected = [(source, k) for _, source, k in times]
    for first in range(len(expected)):
        count = min(4, len(expected) - first)
        assert batches.interleaved(quotas, first=first, count=count) == expected[first : first + count]


def test_rows_hold_the_documents_and_never_predict_across_their_ends(chain):
    plan, shards = chain.plan, chain.open_shards()
    samples = batches.index(plan, 3)
    tokens, targets, documents = shards.rows(samples, length=32)
    same = documents[:, :-1] == documents[:, 1:]
    assert (targets[:, :-1][same] == tokens[:, 1:][same]).all()
    assert (targets[tokens == tiny.EOS] == IGNORED).all()
    assert (targets != IGNORED).sum() == batches.trained_tokens(samples)


def test_lineage_names_the_documents_of_a_step(chain):
    plan = chain.plan
    named = batches.documents_at(plan, 0)
    assert named == sorted(set(named)) and set(named) <= documents_of(plan, held_out=False)


def test_held_out_documents_are_chosen_by_id_and_never_trained_on(chain):
    plan = chain.plan
    held_out = documents_of(plan, held_out=True)
    assert held_out == {tuple(row) for row in plan.held_out[:, :2].tolist()} and len(plan.documents) == 120
    tables = [
        pq.read_table(chain.shards.file(shard.path.replace(".bin", ".documents.parquet")))
        for shard in plan.record.shards
    ]
    assert held_out == {
        (shard, number)
        for shard, table in enumerate(tables)
        for number, name in enumerate(table["id"].to_pylist())
        if is_held_out(name, 0.1)
    }
    trained = {document for step in range(plan.record.steps) for document in batches.documents_at(plan, step)}
    assert trained and not trained & held_out
    assert sum(is_held_out(f"s/{i}", 0.2) for i in range(5000)) == pytest.approx(1000, rel=0.1)
    assert all(is_held_out(f"s/{i}", 0.3) for i in range(500) if is_held_out(f"s/{i}", 0.2))


def test_held_out_rows_hold_every_held_out_token_once(chain):
    plan = chain.plan
    for number, source in enumerate(plan.record.sources):
        samples = batches.held_out_samples(plan, number)
        assert sum(segment.length for sample in samples for segment in sample) == source.held_out_tokens


def test_shares_follow_the_weights(tmp_path):
    chain = tiny.TinyChain(tmp_path, mixture=MixtureRecipe(weights={"books": 3, "web": 1}, held_out_fraction=0.1))
    assert chain.outcome.metrics["share_books"] == 0.75
    taken = [source for step in range(12) for source, _ in batches.interleaved([72, 24], first=step * 8, count=8)]
    assert Counter(taken) == {0: 72, 1: 24}


def test_quotas_that_do_not_come_out_even_still_add_up():
    sizes = dict.fromkeys("abc", SourceSize(10, 10_000, 0, 0))
    phases = plan_phases(sizes, MixtureRecipe(), [BatchPhase(tokens=3200, sequence_length=32, global_batch_tokens=32)])
    sources = plan_sources(sizes, MixtureRecipe(), phases)
    assert sorted(source.samples for source in sources) == [33, 33, 34]


def test_too_many_epochs_are_refused_with_what_is_there_and_what_it_would_be_worth(tmp_path):
    with pytest.raises(RecipeError, match=r"'books' .* 1,5\d\d .* 3,.*max_epochs=0.1"):
        tiny.TinyChain(tmp_path, mixture=MixtureRecipe(weights={"books": 1, "web": 1}, max_epochs=0.1))


def test_a_weight_without_a_source_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"books, news; .* books, web"):
        tiny.TinyChain(tmp_path, mixture=MixtureRecipe(weights={"books": 1, "news": 1}))


def test_repeated_tokens_are_worth_less_and_less():
    assert effective_tokens(100, 50) == 50 and effective_tokens(100, 100) == 100
    assert effective_tokens(100, 400) == pytest.approx(100 + 100 * 15.387756 * (1 - np.exp(-3 / 15.387756)))


def test_the_plan_does_not_depend_on_the_order_of_arrival(tmp_path):
    texts = {source: [tiny.sentence((source, number)) for number in range(40)] for source in ("books", "web")}
    turned = dict(reversed(texts.items()))
    mixture = MixtureRecipe(weights={"books": 1.0, "web": 1.0}, held_out_fraction=0.1)
    plans = []
    for name, given in (("a", texts), ("b", turned)):
        chain = tiny.TinyChain(tmp_path / name, texts=given, mixture=mixture)
        tokens, _, _ = chain.open_shards().rows(batches.index(chain.plan, 2), length=32)
        plans.append(tokens.tolist())
    assert plans[0] == plans[1]


@pytest.mark.parametrize(("tail", "said"), [(b"\xff\xff", "differs"), (b"", r"\d+ bytes")])
def test_a_changed_or_short_shard_is_refused(tmp_path, tail, said):
    chain = tiny.TinyChain(tmp_path)
    path = chain.shards.file("shards/00001.bin")
    path.write_bytes(path.read_bytes()[:-2] + tail)
    with pytest.raises(RefusedInput, match=rf"00001.bin: .*{said}"):
        chain.open_shards()


def test_shards_of_another_tokenizer_are_refused(tmp_path):
    chain = tiny.TinyChain(tmp_path)
    chain.tokenizer = dataclasses.replace(chain.tokenizer, digest="f" * 64)
    with pytest.raises(RefusedInput, match=r"tokenizer .* ffff"):
        chain.make_plan()
