"""A model spread over processes: the same training as in one, whatever the mesh; what cannot be spread is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from benchmarks import parallel
from benchmarks.parallel import ALONE, LIMIT, MODELS, Combination
from tests.messages import Messages
from tests.peak import peak
from tests.training.pretrain import tiny
from training.job import RefusedInput, write_job
from training.pretrain import audit, checkpoint, mesh
from training.pretrain import pretrain as stage
from training.pretrain import step as training_step
from training.pretrain.checkpoint import Store
from training.pretrain.degrees import Degrees
from training.pretrain.divisible import check_degrees
from training.pretrain.mesh import wholes
from training.pretrain.models.attention import one_document
from training.pretrain.models.decoder import Decoder, initialise, meta_decoder
from training.pretrain.models.shape import ModelConfig
from training.pretrain.optim.optimizers import muon
from training.pretrain.parallel import World, make_world, micro_batches
from training.pretrain.pipeline import schedule
from training.pretrain.samples import continued
from training.pretrain.shares import check_by_share, own_share
from training.pretrain.step import Trainer
from training.pretrain.watchdog import Watchdog
from training.progress import read_metrics
from training.records import RecipeError

# Four micro-batches over three: 2, 1 and 1. With shards the last two go along with an empty pass.
UNEQUAL = [Combination(processes=3, degrees=Degrees(shard=shard), model=model) for shard in (1, 3) for model in MODELS]
# Of three experts each of two processes has a part of each, and Muon joins whole ones.
PARTS_OF_EXPERTS = Combination(
    processes=4, degrees=Degrees(shard=2, expert=2), model="experts", optimizer="muon", recompute="full"
)
ADAMW = Combination(processes=1, degrees=Degrees(), model="experts")
MESHES = {
    "experts": (4, Degrees(shard=2, expert=2)),  # three experts for two processes: a part of each
    "four": (4, Degrees(shard=2, tensor=2)),
    "stages": (4, Degrees(pipeline=2, shard=2)),
}
AUDITED = {"is_audited": True, "micro_batch_tokens": 32}
SKIPPING = (Degrees(), Degrees(shard=2))  # two processes each
BF16_MODELS = ("dense", "experts")
BF16_MESH = Degrees(shard=2, expert=2, zero_stage=1)


def trainer_in(data, world, one=ADAMW, **more):
    plan, shards = data.open()
    model = Decoder(MODELS[one.model])
    initialise(model, zero_outputs=False, generator=torch.Generator().manual_seed(1))
    recipe = dataclasses.replace(parallel.recipe_of(one), **more.pop("recipe", {}))
    return Trainer(model, recipe, plan, shards, world, micro_batch_tokens=parallel.LENGTH, **more)


def world_of(degrees, rank, size):
    return make_world(degrees, rank=rank, size=size, device=ALONE.device) if size > 1 else ALONE


def saved_and_trained_on(data, folder, degrees, rank, size):
    """The loss of the step after a checkpoint, and the weights at its end."""
    world = world_of(degrees, rank, size)
    trainer = trainer_in(data, world)
    trainer.run_step()
    with Store(folder, world) as trainer.state.store:
        trainer.state.save()
    return ended(trainer)


def resumed(data, folder, degrees, rank, size):
    """The same from the checkpoint."""
    world = world_of(degrees, rank, size)
    trainer = trainer_in(data, world)
    assert trainer.state.resume(Store(folder, world)) == () and trainer.state.position.step == 1
    return ended(trainer)


def ended(trainer):
    loss = trainer.run_step().loss
    return loss, {name: whole.detach().clone() for name, whole in wholes(trainer.model, trainer.pieces)}


MESSAGES = (2**26, 5_000)  # the whole model; a few weights, and each larger one alone
KINDS = ("allgather_base", "reduce_scatter_base", "allreduce")


def messages_of(data, zero_stage, rank, size):
    """The difference of two replicas of two shares from one process, and the messages of two steps of two passes."""
    one = Combination(processes=size, degrees=Degrees(shard=2, zero_stage=zero_stage))
    with Messages() as counted:
        difference = parallel.compare(one, data, rank, size)
    return difference, counted.found


def in_small_messages(data, numbers, rank, size):
    """The difference of two replicas from one process if a message has so many numbers, and the messages of a step."""
    one = Combination(processes=size, degrees=Degrees(), model="experts")
    with pytest.MonkeyPatch.context() as patch, Messages() as counted:
        patch.setattr(mesh, "MESSAGE_NUMBERS", numbers)
        difference = parallel.compare(one, data, rank, size)
    return difference, counted.found["allreduce"][0]


def in_bf16(data, model, degrees, rank, size):
    """Of steps in bf16: losses, the first gradients, what FSDP sent; after three, fp32 logits and the weights."""
    with pytest.MonkeyPatch.context() as patch, Messages() as counted:
        patch.setattr(training_step, "replaced_here", lambda *_: "")  # whether or not this processor is faster in bf16
        one = dataclasses.replace(ADAMW, model=model)
        trainer = trainer_in(data, world_of(degrees, rank, size), one, recipe={"precision": "bf16"})
        losses = [trainer.run_step().loss]
        gradients = {piece.name: trainer.pieces.whole(piece, piece.own.grad).clone() for piece in trainer.pieces}
        losses += [trainer.run_step().loss for _ in range(2)]
        logits = trainer.logits(range(2, 13), at=range(11), dtype=torch.float32)
        weights = {name: whole.detach().clone() for name, whole in wholes(trainer.model, trainer.pieces)}
        trainer.run_step()  # goes on as if nothing had been asked in between
    arrays = [{name: one.numpy() for name, one in named.items()} for named in (gradients, weights)]
    return losses, arrays[0], counted.found, logits.numpy(), arrays[1]


def audited(data, rank, size, *, is_audited=True, tokens=parallel.LENGTH):
    """A digest of weights and losses after two bf16 steps."""
    plan, shards = data.open()
    model = Decoder(MODELS["experts"])
    initialise(model, zero_outputs=False, generator=torch.Generator().manual_seed(1))
    recipe = dataclasses.replace(parallel.recipe_of(ADAMW), precision="bf16")
    trainer = Trainer(
        model, recipe, plan, shards, world_of(Degrees(), rank, size), micro_batch_tokens=tokens, is_audited=is_audited
    )
    losses = [trainer.run_step().loss for _ in range(2)]
    digest = hashlib.sha256(repr(losses).encode())
    for tensor in checkpoint.pack(model, trainer.optimizers).values():
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def skipping(data, degrees, rank, size):
    """Of every process: whether it skipped each of three steps, in the second of which the last one's gradient is NaN.

    And whether its weights and optimizer were left alone by that, and what it entered.
    """
    trainer = trainer_in(data, world_of(degrees, rank, size))
    healthy, wrong = trainer._backward, math.nan if rank == size - 1 else 1.0

    def state():
        return {name: tensor.clone() for name, tensor in checkpoint.pack(trainer.model, trainer.optimizers).items()}

    skips = [trainer.run_step().is_skipped]
    before = state()
    trainer._backward = lambda batch, *, scale: healthy(batch, scale=scale * wrong)
    skips.append(trainer.run_step().is_skipped)
    after = state()
    is_same = all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    trainer._backward = healthy
    skips.append(trainer.run_step().is_skipped)
    told = [None] * size
    dist.all_gather_object(told, (skips, is_same, list(trainer.state.ledger.steps)))
    return told


def orthogonalized(data, rank, size):
    """How many numbers of matrices each process orthogonalizes in a step of Muon."""
    trainer = trainer_in(data, world_of(Degrees(shard=size), rank, size), recipe={"optimizer": "muon"})
    with counted() as numbers:
        trainer.run_step()
    told = [0] * size
    if size > 1:
        dist.all_gather_object(told, sum(numbers))
    return told if size > 1 else [sum(numbers)]


@contextmanager
def counted():
    """Yield a list to which the numbers of each batch of matrices are added."""
    numbers, real = [], muon.orthogonalize
    muon.orthogonalize = lambda matrices: numbers.append(matrices.numel()) or real(matrices)
    try:
        yield numbers
    finally:
        muon.orthogonalize = real


def checked_by_share(folder, rank, size):
    """What every process says of inputs and of a checkpoint that are whole, and then of damaged ones."""
    world = world_of(Degrees(), rank, size)
    plan, shards = (tiny.commit(folder / name, name, names) for name, names in SHARED.items())
    told = []
    for damaged in (None, *SHARED["shards"]):
        if damaged:
            world.wait()
            if world.is_first:
                (folder / "shards" / damaged).write_bytes(b"x" * 4000)
            world.wait()
        try:
            check_by_share(plan, [shards], world)
            told.append("")
        except RefusedInput as refused:
            told.append(str(refused).split("; `")[0].rsplit("/")[-1])
        if damaged and world.is_first:
            (folder / "shards" / damaged).write_bytes(b"o" * 4000)
        world.wait()
    store = Store(folder / "kept", world)
    for step in (1, 2):
        store.begin(step=step, tensors={f"model.{n}": torch.ones(9) for n in "ab"}, own={}, state={"ledger": []})
        store.settle()
    if not world.is_first:
        flip = folder / "kept" / "step-00000002" / "tensors-00002-of-00002.safetensors"
        flip.write_bytes(flip.read_bytes()[:-1] + b"x")
    world.wait()
    found = Store(folder / "kept", world).newest()
    both = [None] * size
    dist.all_gather_object(both, (told, found.state["step"], found.broken))
    return both


WIDE = ModelConfig(vocab_size=300, width=512, layers=8, heads=8, kv_heads=4, mlp_width=2048, max_length=64)


def held(data, rank, size, *, builds_whole=False):
    """The most bytes that a process takes to begin a training; how many joined weights exist at once; digest and text.

    `builds_whole` makes the model whole before it is reduced to the process's part.
    """
    plan, shards = data.open()
    recipe = parallel.recipe_of(ADAMW)
    world = world_of(Degrees(shard=2, tensor=2) if size > 1 else Degrees(), rank, size)
    with peak() as beginning:
        if builds_whole:
            trainer = Trainer(tiny.built(WIDE, recipe), recipe, plan, shards, world)
        else:
            weights = stage.first_weights(WIDE, recipe)
            trainer = Trainer(meta_decoder(WIDE), recipe, plan, shards, world, weights=weights)
    text, digest = continued(trainer, [5, 6, 7], new_tokens=4), hashlib.sha256()
    joined, most = [], 0
    for name, whole in wholes(trainer.model, trainer.pieces):
        digest.update(name.encode() + whole.detach().numpy().tobytes())
        joined.append(weakref.ref(whole))
        most = max(most, sum(one() is not None for one in joined))
    return beginning[0], most, text, digest.hexdigest()


SHARED = {"plan": ["plan.json"], "shards": [f"{number}.bin" for number in range(3)]}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return parallel.make_data(tmp_path_factory.mktemp("chain"))


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    """Everything that needs several processes, by one set of them."""
    folder = tmp_path_factory.mktemp("processes")
    one = saved_and_trained_on(data, folder / "one", Degrees(), 0, 1)
    tasks = {
        one: (one.processes, partial(parallel.compare, one, data))
        for one in (*parallel.pairwise(), *UNEQUAL, PARTS_OF_EXPERTS)
    }
    for name, (size, degrees) in MESHES.items():
        tasks["saved", name] = (size, partial(saved_and_trained_on, data, folder / name, degrees))
    for name, (size, degrees) in MESHES.items():  # those of four processes come first
        tasks["from one", name] = (size, partial(resumed, data, folder / "one", degrees))
    tasks["from four", "experts"] = (2, partial(resumed, data, folder / "four", Degrees(context=2)))
    for degrees in SKIPPING:
        tasks["skipping", degrees] = (2, partial(skipping, data, degrees))
    for name, names in SHARED.items():
        (folder / "shared" / name).mkdir(parents=True)
        for file in names:
            (folder / "shared" / name / file).write_bytes(b"o" * 4000)
    tasks["shared", 2] = (2, partial(checked_by_share, folder / "shared"))
    for size in (2, 4):
        tasks["audited", size] = (size, partial(audited, data))
    more = parallel.make_data(folder / "more", rows=2 * parallel.ROWS)  # two passes of each of four processes
    for zero_stage in (1, 2, 3):
        tasks["messages", zero_stage] = (4, partial(messages_of, more, zero_stage))
    for numbers in MESSAGES:
        tasks["small messages", numbers] = (2, partial(in_small_messages, data, numbers))
    for gather_dtype in ("fp32", "bf16"):
        degrees = dataclasses.replace(BF16_MESH, gather_dtype=gather_dtype)
        tasks["in bf16", "mesh", gather_dtype] = (4, partial(in_bf16, data, "experts", degrees))
    for gather_dtype in ("fp32", "bf16"):
        for model in BF16_MODELS:
            degrees = Degrees(shard=2, gather_dtype=gather_dtype)
            tasks["in bf16", model, gather_dtype] = (2, partial(in_bf16, data, model, degrees))
    tasks["orthogonalized", 2] = (2, partial(orthogonalized, data))
    tasks["held", 4] = (4, partial(held, data))
    tasks["held whole", 4] = (4, partial(held, data, builds_whole=True))
    results = parallel.in_processes(list(tasks.values()), folder)
    made = dict(zip(tasks, results, strict=True))
    made["held", 1] = held(data, 0, 1)
    made |= {("in bf16", model, 1): in_bf16(data, model, Degrees(), 0, 1) for model in BF16_MODELS}
    made["orthogonalized", 1] = orthogonalized(data, 0, 1)
    made |= {("to one", name): resumed(data, folder / name, Degrees(), 0, 1) for name in MESHES}
    return made | {"alone": one}


def test_every_pair_of_settings_trains_like_one_process(done):
    differences = {one: value for one, value in done.items() if isinstance(one, Combination)}
    assert len(differences) > 12
    assert {str(one): value for one, value in differences.items() if not value <= one.limit} == {}


def test_unequal_numbers_of_passes_change_nothing(done):
    assert [len(passes_of(rank)) for rank in range(3)] == [2, 1, 1]
    assert all(done[one] <= LIMIT for one in UNEQUAL)


def passes_of(rank):
    world = World(rank=rank, size=3, device=ALONE.device)
    return micro_batches(parallel.ROWS, sequence_length=32, micro_batch_tokens=32, world=world)


def test_gradients_in_several_messages_are_those_in_one(done):
    (whole, of_one), (parts, of_many) = (done["small messages", numbers] for numbers in MESSAGES)
    assert whole <= LIMIT and parts <= LIMIT
    assert of_many >= of_one + 5


def test_a_checkpoint_of_any_mesh_goes_on_in_any_other(done):
    expected_loss, expected = done["alone"]
    apart = (
        "audited",
        "skipping",
        "shared",
        "held",
        "held whole",
        "orthogonalized",
        "messages",
        "small messages",
        "in bf16",
    )
    others = {key: value for key, value in done.items() if isinstance(key, tuple) and key[0] not in apart}
    assert len(others) == 3 * len(MESHES) + 1
    for key, (loss, weights) in others.items():
        assert loss == pytest.approx(expected_loss, rel=LIMIT), key
        assert weights.keys() == expected.keys(), key
        for name, weight in weights.items():
            assert (weight - expected[name]).norm() <= LIMIT * expected[name].norm(), (key, name)


def test_a_lower_zero_stage_gathers_and_sums_once_a_step_and_trains_alike(done):
    assert all(done["messages", number][0] <= LIMIT for number in (1, 2, 3))
    counts = [{name: count for name, (count, _) in done["messages", number][1].items()} for number in (3, 2, 1)]
    gathers, sums, over_replicas = zip(*([one[name] for name in KINDS] for one in counts), strict=True)
    units, passes, steps = 5, 2, 2  # four layers, and embedding, head and last norm; these stay gathered for a pass
    more = steps * (passes * (2 * units - 1) - units)
    assert gathers == (gathers[2] + more, gathers[2], gathers[2])
    assert sums == (steps * passes * units, steps * passes * units, steps * units)
    # Replicas are summed once a step at every stage, and so are the loss and the norm.
    assert set(over_replicas) == {steps * (units + 2)}


@pytest.mark.parametrize("model", BF16_MODELS)
def test_weights_sent_in_bf16_are_half_the_bytes_and_train_like_one_process(done, model):
    wide, narrow, alone = (done["in bf16", model, key] for key in ("fp32", "bf16", 1))
    # At first all gains are 1, so that the products read the same bits; then rounding weights before gains shows.
    assert_begins_alike(narrow, wide)
    assert narrow[0] == pytest.approx(alone[0], rel=2e-3)
    for name, gradient in narrow[1].items():
        assert np.linalg.norm(gradient - alone[1][name]) <= 2e-2 * np.linalg.norm(alone[1][name]), name
    # In four steps of two passes blocks are gathered twice a pass, and what is around them once.
    (number, size), (more, less) = (found["allgather_base"] for _, _, found, _, _ in (wide, narrow))
    around, routers = (
        sum(weight.size for name, weight in wide[4].items() if is_chosen(name))
        for is_chosen in (lambda name: not name.startswith("blocks."), lambda name: name.endswith("router"))
    )
    # A block's router is sent in fp32, in a message of its own.
    assert more - number == 4 * 2 * 2 * MODELS[model].expert_layers
    assert size - less == 4 * 2 * 2 * (2 * (MODELS[model].parameter_count - routers) - around)


def assert_begins_alike(narrow, wide):
    """The first loss and gradients of all matrices are the same bits, those of routers included."""
    assert narrow[0][0] == wide[0][0]
    products = [name for name, gradient in wide[1].items() if name.startswith("blocks.") and gradient.ndim > 1]
    assert [name for name in products if not (narrow[1][name] == wide[1][name]).all()] == []


def test_experts_of_several_processes_are_sent_in_bf16_too(done):
    wide, narrow = (done["in bf16", "mesh", key] for key in ("fp32", "bf16"))
    assert_begins_alike(narrow, wide)
    assert narrow[0] == pytest.approx(wide[0], rel=2e-3)
    # A process has half of the experts; it gathers all it has once in each of four steps.
    own = [weight.size // (2 if weight.ndim == 3 else 1) for name, weight in wide[4].items() if "router" not in name]
    assert wide[2]["allgather_base"][1] - narrow[2]["allgather_base"][1] == 4 * 2 * sum(own)


@pytest.mark.parametrize("model", BF16_MODELS)
def test_the_logits_of_the_exported_model_are_in_fp32_though_weights_are_sent_in_bf16(done, model):
    _, _, _, logits, weights = done["in bf16", model, "bf16"]
    model = Decoder(MODELS[model])
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})
    tokens = torch.arange(2, 13)[None]
    mask = one_document(tokens, dtype=torch.float32, window=model.config.window)
    assert torch.allclose(model.logits(tokens, mask)[0], torch.from_numpy(logits), atol=1e-5)


def test_each_process_orthogonalizes_its_share_of_the_matrices(done):
    (whole,), shares = done["orthogonalized", 1], done["orthogonalized", 2]
    assert sum(shares) == whole and max(shares) < 0.6 * whole


def test_no_process_ever_holds_the_whole_of_a_spread_model(done):
    whole = 4 * WIDE.parameter_count
    beginning, joined, *same = done["held", 4]
    assert beginning < 0.85 * whole < whole < done["held whole", 4][0]
    assert joined <= 2
    # It begins with the same weights, and writes the same text.
    assert tuple(same) == done["held whole", 4][2:] == done["held", 1][2:]


def test_a_gradient_that_is_not_finite_in_one_process_is_skipped_by_all(done):
    for degrees in SKIPPING:
        assert done["skipping", degrees] == 2 * [([False, True, False], True, [1])], degrees


def test_a_damaged_file_is_read_by_one_process_and_refused_by_all(done):
    one, other = done["shared", 2]
    assert one == other
    told, step, broken = one
    assert told == ["", *(f"{name}: content differs from its checksum {CHECKSUM[:12]}…" for name in SHARED["shards"])]
    assert step == 1
    assert broken == ("step-00000002: tensors-00002-of-00002.safetensors differs from its checksum",)


CHECKSUM = hashlib.sha256(b"o" * 4000).hexdigest()


@pytest.mark.parametrize("size", [1, 2, 3, 8, 64])
def test_processes_check_each_file_once_and_about_as_many_bytes(tmp_path, size):
    for number in range(40):
        (tmp_path / f"{number}.bin").write_bytes(bytes(100 + number))
    item = tiny.commit(tmp_path, "token_shards", [f"{number}.bin" for number in range(40)])
    files = [(item, *file) for file in item.files().items()]
    shares = [own_share(files, rank=rank, size=size) for rank in range(size)]
    assert sorted(name for share in shares for _, name, _ in share) == sorted(item.files())
    sizes = [sum(entry["bytes"] for _, _, entry in share) for share in shares]
    assert max(sizes) <= sum(sizes) / size + 2 * 140


def test_an_audited_run_gives_the_same_bits_for_any_number_of_processes(done, data):
    alone = audited(data, 0, 1)
    assert {done["audited", 2], done["audited", 4]} == {alone}
    assert audited(data, 0, 1, is_audited=False) != alone  # the order does matter


@pytest.mark.parametrize("count", [1, 2, 5, 6, 8, 13])
def test_an_audited_runs_processes_share_out_every_micro_batch_in_order(count):
    for size in (1, 2, 4):
        worlds = [World(rank=rank, size=size, device=ALONE.device) for rank in range(size)]
        if count >= size:
            assert [number for world in worlds for number in audit.leaves(count, world)] == list(range(count))


def test_a_tree_of_sums_holds_every_leaf_once_and_one_order():
    def leaf(number):
        return torch.tensor([10.0**number])

    assert audit.subtree(leaf, 0, 8, count=6).item() == 111111
    assert audit.subtree(leaf, 4, 8, count=6).item() == 110000


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize(("stages", "count"), [(2, 2), (2, 8), (3, 3), (4, 8)])
def test_a_pipelines_passes_meet_in_order_and_few_are_kept(stages, count, chunks):
    orders = [schedule(place, stages=stages, chunks=chunks, count=count) for place in range(stages)]
    channels, at, kept = {}, [0] * stages, [0] * stages
    while at != [len(order) for order in orders]:
        before = list(at)
        for place, order in enumerate(orders):
            if at[place] < len(order) and taken(order[at[place]], place, stages, chunks, channels):
                at[place] += 1
                kept[place] = max(kept[place], sum(1 if one.is_forward else -1 for one in order[: at[place]]))
        assert at != before, "every process waits"
    assert all(not channel for channel in channels.values())
    assert [len(set(order)) for order in orders] == [2 * count * chunks] * stages
    if chunks == 1:
        assert kept == [min(count, stages - place) for place in range(stages)]


def taken(action, place, stages, chunks, channels):
    """Whether what an action waits for is the next to come; then it is done, and what it makes is sent."""
    step = 1 if action.is_forward else -1
    number = action.chunk * stages + place
    first, last = (0, stages * chunks - 1)[::step]
    inbox = channels.setdefault((place, step), [])
    if number != first:
        if not inbox:
            return False
        assert inbox.pop(0) == (number, action.number)
    if number != last:
        channels.setdefault(((place + step) % stages, step), []).append((number + step, action.number))
    return True


# Refusals


@pytest.mark.parametrize(
    ("model", "degrees", "processes", "changes", "message"),
    [
        (
            "dense",
            {"tensor": 3},
            3,
            {},
            r"tensor=3: model.kv_heads=4 is not a multiple of it; 1 would be right",
        ),
        ("dense", {"tensor": 8}, 8, {}, r"tensor=8: model.kv_heads=4 is not a multiple of it; 1, 2 or 4 would be"),
        ("dense", {"shard": 4, "tensor": 8}, 32, {}, r"kv_heads=4 is not a multiple of it; 1, 2 or 4 would be"),
        (
            "dense",
            {"shard": 2, "context": 3},
            4,
            {},
            r"shard=2 \* context=3 = 6 does not divide .* = 4; .*; context=2 would work",
        ),
        ("dense", {"context": 3}, 3, {}, r"context \* tensor=3: pretrain.sequence_length=32 is not a multiple"),
        ("dense", {"expert": 2}, 2, {}, r"expert=2: the model has no experts"),
        ("experts", {"expert": 4}, 4, {}, r"expert=4: model.experts.count=6 is not a multiple of it; 1 or 2 would be"),
        ("dense", {"pipeline": 3}, 3, {}, r"pipeline_chunks=3: model.layers=4 is not a multiple of it; 1 would be"),
        ("dense", {"pipeline": 6}, 6, {}, r"pipeline_chunks=6: model.layers=4 is not a multiple of it; 1 or 2 would"),
        (
            "dense",
            {"pipeline": 4, "pipeline_chunks": 2},
            4,
            {},
            r"pipeline_chunks=8: model.layers=4 is not a multiple of it; 1 or 4 would",
        ),
        ("dense", {"gather_dtype": "bf16"}, 1, {}, r"gather_dtype=bf16 with shard=1: .* fp32 is right"),
        ("dense", {"pipeline_chunks": 2}, 1, {}, r"pipeline_chunks=2 with pipeline=1: 1 is right"),
        ("dense", {"shard": 2}, 2, {"optimizer": "adafactor"}, r"shard=2: pretrain.optimizer=adafactor"),
        ("dense", {"shard": 2}, 2, AUDITED, r"audit=true with shard=2: .* data parallel only"),
        ("dense", {}, 3, AUDITED, r"audit=true with processes \* nodes = 3: .* a power of two"),
        ("dense", {}, 2, {"is_audited": True}, r"audit=true without micro_batch_tokens"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_the_arithmetic(model, degrees, processes, changes, message):
    given = {"phases": [tiny.PRETRAIN], "optimizer": "adamw", "processes": processes, **changes}
    with pytest.raises(RecipeError, match=message):
        check_degrees(Degrees(**degrees), MODELS[model], **given)


def test_a_job_that_cannot_be_spread_is_refused_before_the_first_step(tmp_path):
    chain = tiny.TinyChain(tmp_path)
    job = chain.job(shard=2, processes=2)  # but this is one process
    with pytest.raises(RecipeError, match=r"shard=2 does not divide processes \* nodes = 1"):
        stage.run(job, tiny.work_in(Path(job.output)))


# Processes that stand still


class Board:
    """The launcher's store, in memory."""

    def __init__(self):
        self.kept = {}

    def set(self, key, value):
        self.kept[key] = value.encode()

    def get(self, key):
        return self.kept[key]

    def check(self, keys):
        return all(key in self.kept for key in keys)


def said_by(board, *, counts, silent=()):
    """What the first of three processes says when nothing goes on.

    The others write their ticks while the first one waits for them, however slow the machine is.
    """
    said, ended = [], threading.Event()
    others = [Watchdog(board, rank=rank, size=3, seconds=100.0, end=said.append) for rank in (1, 2)]

    def let_the_others_tell(_: float) -> None:
        for dog in others:
            if dog._rank not in silent:
                dog._tell()

    def end(why: str) -> None:
        said.append(why)
        ended.set()

    first = Watchdog(board, rank=0, size=3, seconds=0.2, end=end, sleep=let_the_others_tell)
    for dog in (first, *others):
        for _ in range(counts[dog._rank]):
            dog.count()
        dog._tell()
    first.start()
    assert ended.wait(60)
    first.stop()
    return said[0]


def test_the_process_that_stopped_is_named_or_else_the_one_that_is_behind():
    assert "process 2 of 3 (host" in (said := said_by(Board(), counts=[4, 4, 4], silent=[2])) and "1 of 3" not in said
    assert "process 1 of 3 (host" in (said := said_by(Board(), counts=[4, 3, 4])) and "is behind" in said
    assert "same point" in said_by(Board(), counts=[4, 4, 4])


def test_a_process_that_is_stopped_ends_the_others_and_is_named(tmp_path):
    recipe = dataclasses.replace(tiny.PRETRAIN, tokens=4000 * 256)
    mixture = tiny.MixtureRecipe(max_epochs=1000, held_out_fraction=0.1)
    chain = tiny.TinyChain(tmp_path, pretrain=recipe, mixture=mixture)
    job = chain.job(processes=2, shard=2, hang_seconds=10.0, threads=1)
    write_job(job, tmp_path / "job.json")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = os.environ | {"OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    argv = [sys.executable, "-m", "training", str(tmp_path / "job.json")]
    running = [
        subprocess.Popen(argv, env=common | {"RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    try:
        metrics = Path(job.output, "metrics.jsonl")
        while not read_metrics(metrics):
            assert all(one.poll() is None for one in running)
            time.sleep(0.05)
        running[1].send_signal(signal.SIGSTOP)
        _, said = running[0].communicate(timeout=60)
        assert running[0].returncode == 1
        assert (
            f"process 1 of 2 (host {socket.gethostname()}, pid {running[1].pid}" in said and "does not answer" in said
        )
        assert not Path(job.output, "artifact.json").exists()
        assert any("slowest_process" in row for row in read_metrics(metrics))
        (kept,) = Path(job.output, "hangs").glob("*.rank-0.json")  # the messages that it sent and waits for
        assert str(kept) in said
        names = [one["profiling_name"] for one in json.loads(kept.read_text())["entries"]]
        assert names and all(name.startswith("gloo:") for name in names)
    finally:
        for one in running:
            one.kill()
            one.communicate()
