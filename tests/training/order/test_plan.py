"""Mixtures that change on the way: where they change, what each source gives, and what repetition is worth."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.data import chain
from tests.training.order.test_batches import positions_of
from tests.training.pretrain import tiny
from training.contract.records import RecipeError
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.order import batches
from training.order import plan as plan_stage
from training.order.batch_settings import BatchesRecipe, BatchPhase, ContinueRecipe
from training.order.batches import PlannedPhase
from training.order.plan import SourceSize, continue_phases, plan_phases, plan_sources, realized_shares, token_budget
from training.order.settings import MixturePhaseRecipe, MixtureRecipe
from training.order.stage import settings_of
from training.pretrain.settings import PretrainRecipe
from training.pretrain.stages.pretrain import open_inputs

LATE = MixturePhaseRecipe(start=0.75, weights={"books": 0.9, "web": 0.1})
PRETRAIN = PretrainRecipe(
    tokens=400 * 256,
    sequence_length=32,
    global_batch_tokens=256,
    batch_warmup=(BatchPhase(tokens=40 * 128, sequence_length=16, global_batch_tokens=128),),
    seed=3,
)
WEIGHTS = {"books": 0.37, "web": 0.63}


@pytest.fixture(scope="module")
def annealed(tmp_path_factory):
    """A plan with a warmup of short rows and another mixture in its last quarter."""
    mixture = MixtureRecipe(weights=WEIGHTS, phases=(LATE,), max_epochs=100, held_out_fraction=0.1)
    return tiny.TinyChain(tmp_path_factory.mktemp("annealed"), pretrain=PRETRAIN, mixture=mixture)


def tokens_by_source(plan, steps):
    """Shares of the tokens that the steps read, counted from their samples."""
    counted = Counter()
    for step in steps:
        for (source, _), sample in zip(batches.sample_ids(plan, step), batches.index(plan, step), strict=True):
            counted[plan.record.sources[source].name] += sum(segment.length for segment in sample)
    return {name: number / counted.total() for name, number in counted.items()}


def test_each_mixture_gives_what_it_asks_for_within_half_a_percent_counted_step_by_step(annealed):
    plan = annealed.plan
    change = next(step for step in range(plan.record.steps) if plan.tokens_before(step) >= 0.75 * 400 * 256)
    for steps, asked in ((range(change), WEIGHTS), (range(change, plan.record.steps), LATE.weights)):
        given = tokens_by_source(plan, steps)
        assert given == pytest.approx(asked, abs=0.005)


def test_the_account_of_the_shares_stands_in_the_gate(annealed):
    (gate,) = annealed.outcome.gates
    assert gate.name == "shares" and gate.passed
    first, second = gate.evidence["mixtures"]
    assert first["sources"]["web"]["asked"] == pytest.approx(0.63)
    assert second["sources"]["books"]["given"] == pytest.approx(0.9, abs=0.005)
    assert first["tokens"] + second["tokens"] == annealed.outcome.metrics["tokens"]
    overall = annealed.plan.record.sources[0].weight
    assert overall == pytest.approx(0.75 * 0.37 + 0.25 * 0.9, abs=0.001)


def test_shares_that_are_not_what_was_asked_for_fail_the_gate(annealed):
    sizes = dict.fromkeys(WEIGHTS, SourceSize(60, 3000, 0, 0))
    mixture = MixtureRecipe(weights=WEIGHTS, max_epochs=100)
    phases = plan_phases(sizes, mixture, [BatchPhase(tokens=64000, sequence_length=32, global_batch_tokens=64)])
    honest = realized_shares(sizes, mixture, phases)
    other = realized_shares(sizes, MixtureRecipe(weights={"books": 0.38, "web": 0.62}), phases)
    assert [plan_stage._shares_gate(one).passed for one in (honest, other)] == [True, False]


def test_a_source_is_read_on_where_the_mixture_changes(annealed):
    plan = annealed.plan
    for number, source in enumerate(plan.record.sources):
        seen = Counter(positions_of(plan, number))
        epochs = sum(phase.samples[number] * phase.sequence_length for phase in plan.phases) / source.tokens
        assert set(seen.values()) <= {int(epochs), int(epochs) + 1} and len(seen) == source.tokens


def test_the_trainer_takes_a_plan_whose_mixture_changes(annealed):
    plan, _, _ = open_inputs(annealed.job(), PRETRAIN)
    assert [phase.steps for phase in plan.phases] == [40, 280, 100]
    assert batches.shapes(plan.phases) == ((16, 128, 40), (32, 256, 380)) == batches.shapes(PRETRAIN.phases)


def test_a_mixture_without_a_step_is_refused():
    sizes = dict.fromkeys(WEIGHTS, SourceSize(60, 3000, 0, 0))
    phases = [MixturePhaseRecipe(start=start, weights=WEIGHTS) for start in (0.51, 0.52)]
    with pytest.raises(RecipeError, match=r"starts 0\.51, 0\.52"):
        plan_phases(
            sizes,
            MixtureRecipe(weights=WEIGHTS, phases=tuple(phases)),
            [BatchPhase(tokens=640, sequence_length=32, global_batch_tokens=64)],
        )


@pytest.mark.parametrize("starts", [(0.0,), (1.0,), (0.5, 0.5), (0.6, 0.4)])
def test_phases_that_are_not_in_order_are_refused(starts):
    with pytest.raises(RecipeError, match=r"mixture\.phases: start"):
        MixtureRecipe(phases=tuple(MixturePhaseRecipe(start=start, weights=WEIGHTS) for start in starts))


def test_a_phase_names_every_source(tmp_path):
    late = MixturePhaseRecipe(start=0.5, weights={"books": 1.0})
    with pytest.raises(RecipeError, match=r"mixture\.phases: .* books, web"):
        tiny.TinyChain(tmp_path, mixture=MixtureRecipe(phases=(late,)))


def test_a_source_may_be_read_more_often_than_the_others(tmp_path):
    mixture = MixtureRecipe(weights={"books": 1, "web": 1}, max_epochs=0.1, source_epochs={"books": 9, "web": 0.2})
    with pytest.raises(RecipeError, match=r"'web' .* max_epochs=0.2.*mixture.source_epochs"):
        tiny.TinyChain(tmp_path, mixture=mixture)
    with pytest.raises(RecipeError, match=r"mixture\.source_epochs names news"):
        tiny.TinyChain(tmp_path, mixture=MixtureRecipe(source_epochs={"news": 1}))


def test_the_number_of_the_first_mixture_is_not_written(tmp_path):
    chain = tiny.TinyChain(tmp_path, pretrain=PRETRAIN, mixture=MixtureRecipe(max_epochs=100))
    phases = json.loads((Path(chain.plan_artifact.path) / "plan.json").read_text())["phases"]
    assert [sorted(phase) for phase in phases] == [["global_batch_tokens", "samples", "sequence_length", "steps"]] * 2


def test_a_curriculum_goes_from_what_is_there_to_the_best_bucket(tmp_path):
    """Documents with a bucket each, sharded by it, in a plan whose later mixtures name the buckets anew."""
    buckets = ("head", "middle", "tail")
    rows = [
        chain.document("one", "f", number, tiny.sentence(number, 40)) | {"perplexity_bucket": buckets[number % 3]}
        for number in range(120)
    ]
    bucket = pa.field("perplexity_bucket", pa.string())
    source = chain.documents_of(tmp_path, "one", [rows], asset="decontaminated_documents", extra=(bucket,))
    tokenizer = tiny.make_tokenizer(tmp_path / "tokenizer" / "t")
    settings = {"shards": ShardsRecipe(buckets="perplexity")}
    shards = chain.run(tmp_path, "tokenize", "token_shards", "tiny@one", settings, [source, tokenizer])
    asked = [
        {"web/head": 0.3, "web/middle": 0.3, "web/tail": 0.4},
        {"web/head": 0.5, "web/middle": 0.5, "web/tail": 0.0},
        {"web/head": 1.0, "web/middle": 0.0, "web/tail": 0.0},
    ]
    later = tuple(
        MixturePhaseRecipe(start=start, weights=weights) for start, weights in zip((0.5, 0.8), asked[1:], strict=True)
    )
    mixture = MixtureRecipe(weights=asked[0], phases=later, max_epochs=100, held_out_fraction=0.1)
    pretrain = PretrainRecipe(tokens=160 * 256, sequence_length=32, global_batch_tokens=256, seed=3)
    settings = {"mixture": mixture, "pretrain": pretrain.batches}
    made = chain.run(tmp_path, "plan", "training_plan", "tiny", settings, [shards, tokenizer])
    plan = batches.read_plan(Path(made.path), digest=made.digest)
    bucket_of = {row["id"]: row["perplexity_bucket"] for row in rows}
    sidecars = {
        shard["name"]: pq.read_table(shards.file(f"shards/{shard['name']}.documents.parquet"))
        for shard in json.loads(shards.file("shards.json").read_text())["shards"]
    }
    for steps, weights in zip((range(80), range(80, 128), range(128, 160)), asked, strict=True):
        given = tokens_by_source(plan, steps)
        assert given == pytest.approx({name: weight for name, weight in weights.items() if weight}, abs=0.005)
        for name in given:  # and what a source holds are the documents of its bucket
            of = [table for table in sidecars.values() if table["source"][0].as_py() == name]
            found = {bucket_of[number] for table in of for number in table["id"].to_pylist()}
            assert found == {name.removeprefix("web/")}


BUDGETS = (130 * 256, 250 * 256, 400 * 256)
MIXTURES = [
    MixtureRecipe(weights=WEIGHTS, max_epochs=100, phases=phases) for phases in ((), (replace(LATE, start=0.8),))
]


@pytest.mark.parametrize("mixture", MIXTURES, ids=["one mixture", "two mixtures"])
@pytest.mark.parametrize("packing", ["end_to_end", "best_fit"])
def test_a_longer_training_reads_what_the_shorter_one_read_before_its_decay_once(tmp_path, mixture, packing):
    warmup = PRETRAIN.batch_warmup if packing == "end_to_end" else ()
    plain = replace(PRETRAIN, schedule="wsd", packing=packing, batch_warmup=warmup, tokens=BUDGETS[0])
    short = tiny.TinyChain(tmp_path / "short", pretrain=plain, mixture=mixture)
    plans, at = [short.plan], []
    for number, tokens in enumerate(BUDGETS[1:], start=1):
        longer = replace(plain, tokens=tokens, continues=ContinueRecipe(tokens=BUDGETS[:number]))
        plans.append(made_of(short, longer))
        at.append(longer.continued_at[-1])
    for first, longer, step in zip(plans, plans[1:], at, strict=False):
        assert step == first.record.steps - round(0.2 * first.record.steps)
        for one in range(step):
            assert batches.index(longer, one) == batches.index(first, one)
        assert batches.sample_ids(longer, step) != batches.sample_ids(first, step) or packing == "best_fit"
        read = Counter(places_of(longer))
        assert max(read.values()) == 1  # no place in the epochs of a source, end to end, is read twice
        for source, planned in enumerate(longer.record.sources):
            own = sorted(start for of, start in read if of == source)
            assert sum(phase.samples[source] for phase in longer.phases) == planned.samples == len(own)
            assert max(own) + 32 == sum(p.samples[source] * p.sequence_length for p in longer.phases)  # none left out


def made_of(chain, pretrain):
    """The plan of other settings over the same shards."""
    folder = chain.root / "training_plan" / str(pretrain.tokens)
    job = tiny.job_of("plan", settings_of(chain.mixture, pretrain), (chain.shards, chain.tokenizer), folder)
    outcome = plan_stage.run(job, tiny.work_in(folder))
    assert all(gate.passed for gate in outcome.gates)
    return batches.read_plan(folder)


def places_of(plan):
    """The source and the first token of each sample, in the epochs of the source end to end."""
    for step in range(plan.record.steps):
        phase = plan.phase_at(step)
        for source, number in batches.sample_ids(plan, step):
            yield source, phase.starts[source] + number * phase.sequence_length


def test_a_source_of_which_more_is_read_than_it_may_give_is_refused():
    sizes = dict.fromkeys(WEIGHTS, SourceSize(60, 3000, 0, 0))
    batches_of = [BatchPhase(tokens=640, sequence_length=32, global_batch_tokens=64)]
    first = plan_phases(sizes, MixtureRecipe(weights={"books": 1, "web": 1}), batches_of)
    longer = (PlannedPhase(steps=12, sequence_length=32, global_batch_tokens=64, samples=(4, 20)),)
    with pytest.raises(RecipeError, match=r"before step 9 \[9, 9\] rows .*, more than the \[4, 20\] of the whole"):
        continue_phases(first, (9, longer))


AUTO = BatchesRecipe(tokens="auto", sequence_length=32, global_batch_tokens=256)


@pytest.mark.parametrize("rows", [0, 120])  # 120: packed into rows, of which some are not full
def test_auto_is_the_most_tokens_that_every_source_gives_within_its_epochs(rows):
    sizes = {"books": SourceSize(60, 3000, 0, 0, rows), "web": SourceSize(60, 9000, 0, 0, 3 * rows)}
    mixture = MixtureRecipe(weights=WEIGHTS, max_epochs=4, source_epochs={"books": 2.0})

    def planned(tokens):
        phases = plan_phases(sizes, mixture, AUTO.of_tokens(tokens).phases)
        return plan_sources(sizes, mixture, phases)

    budget = token_budget(sizes, mixture, AUTO, None)
    assert budget.limited_by == "the epochs of source books" and budget.tokens % 256 == 0
    planned(budget.tokens)
    with pytest.raises(RecipeError, match="above max_epochs=2"):
        planned(budget.tokens + 2 * 256)
    paid = token_budget(sizes, mixture, AUTO, 1000)
    assert str(paid) == "pretrain.tokens: auto is 768, limited by pretrain.compute_budget"
    with pytest.raises(RecipeError, match=r"256 tokens; pretrain.compute_budget"):
        token_budget(sizes, mixture, AUTO, 255)


def test_a_plan_with_auto_records_the_number_and_training_takes_it(tmp_path):
    recipe = PretrainRecipe(tokens="auto", sequence_length=32, global_batch_tokens=256)
    made = tiny.TinyChain(tmp_path, pretrain=recipe, mixture=MixtureRecipe(max_epochs=2, held_out_fraction=0.1))
    tokens = made.plan.tokens_before(made.plan.record.steps)
    available = sum(source.tokens for source in made.plan.record.sources)
    assert 2 * available - 512 < tokens <= 2 * available
    assert made.outcome.notes["resolved"].startswith(f"pretrain.tokens: auto is {tokens:,}, limited by the epochs")
    plan, _, _ = open_inputs(made.job(), recipe)
    assert plan.record.steps == tokens // 256
