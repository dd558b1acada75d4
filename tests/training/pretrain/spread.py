"""Tasks of the processes among which a test spreads a model; each returns what is compared."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import weakref
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.distributed as dist

from benchmarks import parallel
from benchmarks.parallel import ALONE, LIMIT, MODELS, Combination
from tests.messages import Messages
from tests.peak import peak
from tests.training.pretrain import tiny
from training.contract.job import RefusedInput
from training.pretrain import checkpoint
from training.pretrain import step as training_step
from training.pretrain.checkpoint import Store
from training.pretrain.models.decoder import Decoder, initialise, meta_decoder
from training.pretrain.models.shape import ModelConfig
from training.pretrain.optim.optimizers import muon
from training.pretrain.parallel import mesh
from training.pretrain.parallel.degrees import Degrees
from training.pretrain.parallel.input_verification import check_by_share
from training.pretrain.parallel.mesh import wholes
from training.pretrain.parallel.world import make_world
from training.pretrain.samples import continued
from training.pretrain.stages import pretrain as stage
from training.pretrain.step import Trainer

ADAMW = Combination(processes=1, degrees=Degrees(), model="experts")


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
    weights = {name: whole.detach().clone() for name, whole in wholes(trainer.model, trainer.pieces)}
    world = trainer.pieces.world
    assert world.is_first or not world.is_split or not any(one.numel() for one in weights.values())
    return loss, weights


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


def write_shared(folder):
    """Write the inputs that processes check by share."""
    for name, names in SHARED.items():
        (folder / name).mkdir(parents=True)
        for file in names:
            (folder / name / file).write_bytes(b"o" * 4000)


def assert_goes_on_alike(alone, others):
    """The step after a checkpoint has the same loss and weights in each of `others`, by name, as in one process."""
    expected_loss, expected = alone
    for key, (loss, weights) in others.items():
        assert loss == pytest.approx(expected_loss, rel=LIMIT), key
        assert weights.keys() == expected.keys(), key
        for name, weight in weights.items():
            assert (weight - expected[name]).norm() <= LIMIT * expected[name].norm(), (key, name)


def assert_begins_alike(narrow, wide):
    """The first loss and gradients of all matrices are the same bits, those of routers included."""
    assert narrow[0][0] == wide[0][0]
    products = [name for name, gradient in wide[1].items() if name.startswith("blocks.") and gradient.ndim > 1]
    assert [name for name in products if not (narrow[1][name] == wide[1][name]).all()] == []


def assert_half_the_bytes(model, wide, narrow, alone):
    """Weights sent in bf16 are half the bytes, and the training begins with the same bits and goes on alike."""
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
