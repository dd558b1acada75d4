"""Plans of many documents: nothing lost between shards, plan and steps, whatever is stored, looked at or packed."""

from __future__ import annotations

import dataclasses
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.pretrain import tiny
from training.contract import artifact
from training.contract.job import RefusedInput
from training.contract.records import RecipeError
from training.order import batches, corpus, documents, packing
from training.order import plan as plan_stage
from training.order.batches import TOKENS
from training.order.held_out import budgets, held_out_rank
from training.order.settings import MixtureRecipe
from training.pretrain.settings import PretrainRecipe

MANY = 70_000  # documents of a source, more than `plan_stage.COMPUTED_DOCUMENTS`


def generated_shards(folder: Path, tokenizer, sizes: dict[str, np.ndarray], *, per_shard: int = 9_000):
    """A `token_shards` artifact with documents of these sizes, without texts: the tokens are zeros in sparse files."""
    (folder / "shards").mkdir(parents=True)
    files = ["shards.json"]
    for source, tokens in sizes.items():
        for start in range(0, len(tokens), per_shard):
            part = tokens[start : start + per_shard]
            name = f"shards/{source}-{start:09d}"
            with open(folder / f"{name}.bin", "wb") as stream:
                stream.truncate(2 * int(part.sum()))
            np.save(folder / f"{name}.offsets.npy", np.cumsum([0, *part.tolist()]))
            numbers = range(start, start + len(part))
            table = {"id": [f"{source}/{number:09d}" for number in numbers], "source": [source] * len(part)}
            pq.write_table(pa.table(table | {"tokens": part, "bytes": 4 * part}), folder / f"{name}.documents.parquet")
            files += [f"{name}.bin", f"{name}.offsets.npy", f"{name}.documents.parquet"]
    listing = {"tokenizer_digest": tokenizer.digest, "dtype": "uint16", "eos_id": tiny.EOS}
    artifact.write_json(folder / "shards.json", listing)
    return tiny.commit(folder, "token_shards", files)


def sizes_of(count: int, *, seed: int) -> np.ndarray:
    """Numbers of tokens, from few to many."""
    return 1 + np.random.Generator(np.random.Philox(seed)).integers(0, 60, count)


class Generated:
    """A plan over generated shards."""

    def __init__(self, root: Path, sizes: dict[str, np.ndarray], mixture: MixtureRecipe, **pretrain):
        self.tokenizer = tiny.make_tokenizer(root / "tokenizer" / "t")
        self.shards = generated_shards(root / "token_shards" / "s", self.tokenizer, sizes)
        recipe = PretrainRecipe(**{"tokens": "auto", "sequence_length": 64, "global_batch_tokens": 4096} | pretrain)
        self.settings = {"mixture": mixture, "pretrain": recipe.batches}
        self.folder = root / "training_plan" / "p"
        self.outcome = self.make_plan()
        self.plan = batches.read_plan(self.folder)

    def make_plan(self):
        job = tiny.job_of("plan", self.settings, (self.shards, self.tokenizer), self.folder)
        return plan_stage.run(job, tiny.work_in(self.folder))


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A source with stored epochs and one without, each read twice."""
    sizes = {"web": sizes_of(MANY, seed=1), "books": sizes_of(900, seed=2)}
    mixture = MixtureRecipe(max_epochs=2, held_out_fraction=0.02, held_out_tokens=9_000)
    return Generated(tmp_path_factory.mktemp("large"), sizes, mixture, seed=5)


def whole_documents(made: Generated, *, held_out: bool) -> Counter:
    """(shard, number, tokens) of every document, read from the sidecars."""
    found = Counter()
    for number, shard in enumerate(made.plan.record.shards):
        offsets = np.load(made.shards.file(shard.path.replace(".bin", ".offsets.npy")))
        ids = pq.read_table(made.shards.file(shard.path.replace(".bin", ".documents.parquet")))["id"].to_pylist()
        for document, (name, tokens) in enumerate(zip(ids, np.diff(offsets).tolist(), strict=True)):
            if (held_out_rank(name) < 0.02 * 2**64) == held_out:
                found[number, document] += tokens
    return found


def test_an_epoch_has_every_token_of_every_document_that_is_not_held_out_once(large):
    plan, expected = large.plan, whole_documents(large, held_out=False)
    assert [source.stored_epochs for source in plan.record.sources] == [0, 2]
    seen, tokens = Counter(), Counter()
    length = plan.record.sequence_length
    for number, source in enumerate(plan.record.sources):
        for k in range(-(-source.tokens // length)):
            left = min(length, source.tokens - k * length)
            for segment in batches._sample(plan, number, start=k * length, length=left):
                seen[segment.shard, segment.document] += segment.length
                tokens[segment.shard, segment.start] += segment.length
    assert seen == expected
    assert sum(source.documents for source in plan.record.sources) == len(expected)
    assert large.outcome.metrics["available_tokens"] == expected.total()


def test_steps_give_what_the_plan_says_each_source_gives(large):
    plan, given = large.plan, Counter()
    for step in range(plan.record.steps):
        for (source, _), sample in zip(batches.sample_ids(plan, step), batches.index(plan, step), strict=True):
            given[plan.record.sources[source].name] += sum(segment.length for segment in sample)
    for source in plan.record.sources:
        assert given[source.name] == source.samples * plan.record.sequence_length
        assert large.outcome.metrics[f"share_{source.name}"] == given[source.name] / given.total()
        assert large.outcome.metrics[f"epochs_{source.name}"] == given[source.name] / source.tokens


def test_what_is_stored_of_an_epoch_is_what_is_computed(large):
    plan = large.plan
    for epoch in (0, 1):
        starts = plan.starts_of_blocks(1, epoch)
        assert (1, epoch) in plan._stored and starts.tolist() == plan.computed_starts(1, epoch).tolist()
        assert len(starts) == -(-MANY // plan.record.block_documents) and (np.diff(starts) > 0).all()


@pytest.mark.parametrize("by", [-700, 700])
def test_stored_starts_that_are_not_those_of_the_documents_are_refused(large, by):
    plan = large.plan
    shifted = {key: starts + by * (starts > 0) for key, starts in plan._stored.items()}
    wrong = batches.Plan(plan.record, plan.documents, plan.held_out, starts=shifted)
    with pytest.raises(RefusedInput, match=r"block_starts.npy: .* token \d+ of epoch 0"):
        for step in range(plan.record.steps):
            batches.index(wrong, step)


@pytest.mark.parametrize("size", [1, 7, 300, 1 << 20])
def test_the_order_is_the_same_for_any_size_of_the_blocks(large, size):
    plan, steps = large.plan, (0, 300, 3, large.plan.record.steps - 1)
    other = plan.with_record(dataclasses.replace(plan.record, block_documents=size))
    assert [batches.index(other, step) for step in steps] == [batches.index(plan, step) for step in steps]


def test_documents_of_shards_with_several_sources_lie_where_their_offsets_say(tmp_path):
    texts = {source: [tiny.sentence((source, number)) for number in range(25)] for source in ("books", "web", "news")}
    chain = tiny.TinyChain(tmp_path, texts=texts)
    whole = chain.plan.documents.segments(np.arange(75))
    assert len({(one.shard, one.document) for one in whole}) == 75
    for one, source in zip(whole, (name for name in sorted(texts) for _ in range(25)), strict=True):
        base = chain.plan.record.shards[one.shard].path.removesuffix(".bin")
        offsets = np.load(chain.shards.file(f"{base}.offsets.npy"))
        assert (one.start, one.start + one.length) == tuple(offsets[one.document : one.document + 2])
        sidecar = pq.read_table(chain.shards.file(f"{base}.documents.parquet"))
        assert sidecar["source"][one.document].as_py() == source


def test_a_document_takes_few_bytes_of_the_plan(large):
    size = sum((large.folder / name).stat().st_size for name in large.outcome.files)
    assert size / len(large.plan.documents) < 10


def test_the_memory_of_planning_does_not_grow_with_the_documents(tmp_path, monkeypatch):
    for module in (corpus, documents):
        monkeypatch.setattr(module, "AT_ONCE", 500)
    monkeypatch.setattr(plan_stage, "COMPUTED_DOCUMENTS", 0)
    mixture = MixtureRecipe(max_epochs=1, held_out_fraction=0.02, held_out_tokens=500)
    peaks = []
    for count in (4_000, 16_000):
        made = Generated(tmp_path / str(count), {"web": sizes_of(count, seed=3)}, mixture)
        tracemalloc.start()
        made.make_plan()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 12_000 * 4  # bytes, less than a number for each document


# Looks at held-out text


def test_a_look_reads_the_first_held_out_documents_up_to_its_budget(large):
    plan, held_out = large.plan, whole_documents(large, held_out=True)
    record = plan.record
    assert sum(source.held_out_tokens for source in record.sources) == held_out.total()
    looked = [tuple(row) for row in plan.held_out[:, [0, 1, TOKENS]].tolist()]
    assert all(held_out[shard, document] == tokens for shard, document, tokens in looked)
    books, web = record.sources
    assert books.look_tokens == books.held_out_tokens  # less than half of the budget: all of it
    assert 9_000 - 60 < books.look_tokens + web.look_tokens <= 9_000 < web.held_out_tokens
    assert large.outcome.metrics["look_tokens"] == books.look_tokens + web.look_tokens
    samples = [batches.held_out_samples(plan, number) for number in (0, 1)]
    assert [sum(s.length for row in rows for s in row) for rows in samples] == [books.look_tokens, web.look_tokens]


def test_the_documents_of_a_look_are_those_that_evaluation_reads_first(large):
    plan, ranks = large.plan, []
    for shard, document in plan.held_out[large.plan.record.sources[1].first_looked_at :, :2].tolist():
        path = plan.record.shards[shard].path.replace(".bin", ".documents.parquet")
        ranks.append(held_out_rank(pq.read_table(large.shards.file(path))["id"][document].as_py()))
    every = sorted(held_out_rank(f"web/{number:09d}") for number in range(MANY))
    assert sorted(ranks) == every[: len(ranks)]


def test_a_larger_budget_adds_documents_and_takes_none_away(tmp_path):
    sizes, seen = {"web": sizes_of(3_000, seed=4)}, []
    for number, tokens in enumerate((1, 500, 2_000, 10**6)):
        mixture = MixtureRecipe(max_epochs=1, held_out_fraction=0.1, held_out_tokens=tokens)
        plan = Generated(tmp_path / str(number), sizes, mixture).plan
        seen.append({tuple(row) for row in plan.held_out[:, :2].tolist()})
    assert len(seen[0]) == 1 and seen[0] < seen[1] < seen[2] < seen[3]
    assert len(seen[3]) == plan.record.sources[0].held_out_documents


def test_what_a_small_source_leaves_of_a_look_goes_to_the_others():
    assert budgets({"a": 10, "b": 100, "c": 1000}, 300) == {"a": 10, "b": 100, "c": 190}
    assert budgets({"a": 1000, "b": 1000}, 300) == {"a": 150, "b": 150}
    assert budgets({"a": 10, "b": 0}, 300) == {"a": 10, "b": 0}


def test_a_look_at_nothing_is_refused_with_the_way_to_hold_out_nothing():
    with pytest.raises(RecipeError, match=r"held_out_tokens=0.*set mixture\.held_out_fraction: 0"):
        MixtureRecipe(held_out_tokens=0)


def test_everything_may_be_held_out_or_nothing(tmp_path):
    sizes = {"web": sizes_of(200, seed=5)}
    plan = Generated(tmp_path / "none", sizes, MixtureRecipe(held_out_fraction=0.0)).plan
    assert plan.record.sources[0].documents == 200 and len(plan.held_out) == 0
    with pytest.raises(RecipeError, match=r"mixture\.weights="):
        Generated(tmp_path / "all", sizes, MixtureRecipe(held_out_fraction=1.0))


def test_a_source_of_which_nothing_is_left_is_told_no_epochs(tmp_path):
    sizes = {"web": sizes_of(200, seed=5), "one": sizes_of(1, seed=6)}
    fraction = 1.01 * held_out_rank("one/000000000") / 2**64  # so that this one document is held out
    mixture = MixtureRecipe(held_out_fraction=fraction, weights={"web": 1.0, "one": 0.0})
    metrics = Generated(tmp_path, sizes, mixture).outcome.metrics
    assert metrics["share_one"] == 0 and "epochs_one" not in metrics and metrics["epochs_web"] > 0


# Rows packed window by window


def test_rows_of_windows_lose_nothing_and_their_documents_are_neighbours(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "WINDOW", 50)
    sizes = {"web": sizes_of(420, seed=6), "books": sizes_of(130, seed=7)}
    mixture = MixtureRecipe(max_epochs=1.2, held_out_fraction=0.02)
    made = Generated(tmp_path, sizes, mixture, packing="best_fit", sequence_length=32, global_batch_tokens=1024)
    plan, seen = made.plan, Counter()
    for number, source in enumerate(plan.record.sources):
        for place in range(source.rows):
            for segment in batches._sample(plan, number, start=32 * place, length=32):
                seen[segment.shard, segment.document] += segment.length
        for row in range(source.first_packed, source.first_packed + source.rows):
            numbers = plan.packing.pieces_of(np.array([row]))[0] - source.first_document
            assert len(set((numbers // 50).tolist())) == 1
    assert seen == whole_documents(made, held_out=False)


def test_shards_are_mapped_when_they_are_read_and_no_more_than_a_few_at_once(tmp_path, monkeypatch):
    chain = tiny.TinyChain(tmp_path)
    samples = [sample for step in range(12) for sample in batches.index(chain.plan, step)]
    whole = chain.open_shards().rows(samples, length=32)
    monkeypatch.setattr(batches, "OPEN_SHARDS", 2)
    shards = chain.open_shards()
    assert not shards._tokens_of.cache_info().currsize
    assert all(np.array_equal(*pair) for pair in zip(shards.rows(samples, length=32), whole, strict=True))
    assert shards._tokens_of.cache_info().currsize == 2
