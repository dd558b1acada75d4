"""Training itself: it learns, resumes to the bit, spreads over processes, and exports what was trained."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.training.pretrain import tiny
from training.contract.job import RefusedInput, StopRequested, write_job
from training.contract.process.exit_codes import REQUEUE
from training.contract.progress import read_metrics
from training.contract.records import RecipeError
from training.contract.running.runner import run_job
from training.order.batches import held_out_bytes
from training.order.ledger import Ledger
from training.pretrain import checkpoint, held_out
from training.pretrain.capacity.needs import disk_bytes
from training.pretrain.capacity.room import check_disk
from training.pretrain.models import export
from training.pretrain.models.shape import ExpertLayers
from training.pretrain.objectives.rewritten import Batch
from training.pretrain.optim.average_settings import AverageRecipe
from training.pretrain.optim.averages import use_average
from training.pretrain.optim.optimizers import OPTIMIZERS
from training.pretrain.parallel.world import World
from training.pretrain.report import Told
from training.pretrain.run import RunHooks, _utilization, train
from training.pretrain.spikes import SpikeRecipe
from training.pretrain.stages import pretrain as stage
from training.pretrain.state import Diverged
from training.pretrain.step import Trainer, pinned
from training.stages import STAGES

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
ALONE = World(rank=0, size=1, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return tiny.TinyChain(tmp_path_factory.mktemp("chain"))


def trainer_of(chain, *, micro_batch_tokens=None, model=tiny.MODEL, **changes):
    recipe = dataclasses.replace(chain.pretrain, **changes)
    built = tiny.built(stage.model_shape(model, Path(chain.tokenizer.path)), recipe)
    return Trainer(built, recipe, chain.plan, chain.open_shards(), ALONE, micro_batch_tokens=micro_batch_tokens)


def run_steps(trainer, count):
    return [trainer.run_step().loss for _ in range(count)]


def save(trainer, folder):
    """A whole checkpoint of the present step in `folder`."""
    if trainer.state.store is None:
        trainer.state.store = checkpoint.Store(folder, ALONE)
    trainer.state.save()
    trainer.state.store.settle()


def resume(trainer, folder):
    return trainer.state.resume(checkpoint.Store(folder, ALONE))


def state_of(trainer):
    return checkpoint.pack(trainer.model, trainer.optimizers)


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize(
    ("optimizer", "micro_batch_tokens", "average"),
    [*((name, None, "none") for name in OPTIMIZERS), ("adamw", 64, "ema"), ("muon", 64, "uniform")],
)
def test_a_resumed_run_ends_with_the_same_bits(chain, tmp_path, optimizer, micro_batch_tokens, average, **more):
    settings = {"optimizer": optimizer, "micro_batch_tokens": micro_batch_tokens, **more}
    settings["average"] = AverageRecipe(kind=average, fraction=0.75)
    straight, killed, resumed = (trainer_of(chain, **settings) for _ in range(3))
    losses = run_steps(straight, 12)
    assert run_steps(killed, 5) == losses[:5]
    save(killed, tmp_path)
    assert resume(resumed, tmp_path) == ()
    gc.collect()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()  # no file stays mapped
    assert run_steps(resumed, 7) == losses[5:]
    assert_same_bits(state_of(resumed), state_of(straight))
    assert losses[-1] < losses[0]


def test_an_optimizer_and_a_loss_from_outside_resume_with_the_same_bits(chain, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples" / "extend")
    parts = {"mine": {"from": "adamax:optimizer", "epsilon": 1e-6}, "own": {"from": "focal:loss", "gamma": 0.5}}
    test_a_resumed_run_ends_with_the_same_bits(chain, tmp_path, "mine", 64, "none", loss="own", parts=parts)


def test_the_model_that_is_made_is_the_mean_when_the_recipe_wants_one(chain, tmp_path):
    trainer = trainer_of(chain, average=AverageRecipe(kind="uniform", fraction=0.25))
    seen = []
    for _ in range(12):
        trainer.run_step()
        seen.append(trainer.model.embedding.detach().clone())
    use_average(trainer.optimizers)
    assert torch.allclose(trainer.model.embedding, torch.stack(seen[-3:]).mean(0), atol=1e-6)
    assert not torch.equal(trainer.model.embedding, seen[-1])


EXPERTS = dataclasses.replace(
    tiny.MODEL, experts=ExpertLayers(count=4, active=2, width=16, balancing="bias", balance_weight=0.01)
)


DEEPSEEK = dataclasses.replace(
    EXPERTS,
    family="deepseek_v3",
    kv_heads=4,
    experts=dataclasses.replace(EXPERTS.experts, shared=1),
    parts={"deepseek_v3": {"query_rank": 16, "key_value_rank": 12, "plain_width": 8, "value_width": 8, "groups": 2}},
)


@pytest.mark.parametrize("model", [EXPERTS, DEEPSEEK], ids=["experts", "deepseek_v3"])
def test_a_resumed_run_keeps_the_routers_biases(chain, tmp_path, model):
    straight, killed, resumed = (trainer_of(chain, model=model) for _ in range(3))
    losses = run_steps(straight, 12)
    run_steps(killed, 5)
    save(killed, tmp_path)
    resume(resumed, tmp_path)
    assert run_steps(resumed, 7) == losses[5:]
    assert_same_bits(state_of(resumed), state_of(straight))
    assert straight.model.blocks[0].mlp.bias.abs().max() > 0.01


def test_micro_batches_change_only_the_rounding_of_experts_and_their_balance(chain):
    auxiliary = dataclasses.replace(EXPERTS.experts, balancing="auxiliary", balance_weight=1.0)
    runs = []
    for micro_batch_tokens in (None, 64):
        model = dataclasses.replace(EXPERTS, experts=auxiliary)
        trainer = trainer_of(chain, model=model, precision="fp32", micro_batch_tokens=micro_batch_tokens, z_loss=1e-3)
        losses = run_steps(trainer, 3)
        runs.append([*losses, *trainer.model.blocks[1].mlp.router.flatten().tolist()])
    assert runs[0] == pytest.approx(runs[1], rel=1e-3, abs=1e-4)


def test_micro_batches_change_only_the_rounding(chain):
    whole, parts = trainer_of(chain, precision="fp32"), trainer_of(chain, precision="fp32", micro_batch_tokens=32)
    assert run_steps(whole, 6) == pytest.approx(run_steps(parts, 6), rel=1e-4)


def test_short_rows_and_small_batches_lead_to_the_rest_and_resume_to_the_bit(tmp_path):
    warmup = (
        tiny.BatchPhase(tokens=4 * 128, sequence_length=16, global_batch_tokens=128),
        tiny.BatchPhase(tokens=4 * 128, sequence_length=32, global_batch_tokens=128),
    )
    chain = tiny.TinyChain(tmp_path / "chain", pretrain=dataclasses.replace(tiny.PRETRAIN, batch_warmup=warmup))
    trainers = [trainer_of(chain, micro_batch_tokens=micro) for micro in (None, 32, 32)]
    runs = [run_steps(trainers[0], 16), run_steps(trainers[1], 6)]
    save(trainers[1], tmp_path / "checkpoints")
    runs[1] += run_steps(trainers[1], 10)
    assert [len(passes) for passes in trainers[1].passes] == [4, 4, 8]
    assert runs[0] == pytest.approx(runs[1], rel=1e-2)  # bf16
    resume(trainers[2], tmp_path / "checkpoints")
    assert run_steps(trainers[2], 10) == runs[1][6:]
    assert_same_bits(state_of(trainers[2]), state_of(trainers[1]))


def test_a_batch_is_learned_by_heart(tmp_path):
    chain = tiny.TinyChain(
        tmp_path,
        texts={"web": [tiny.sentence(number) for number in range(8)]},
        pretrain=tiny.PretrainRecipe(
            tokens=120 * 256, sequence_length=32, global_batch_tokens=256, learning_rate=2e-2, weight_decay=0.0
        ),
        mixture=tiny.MixtureRecipe(max_epochs=1000, held_out_fraction=0.0),
    )
    assert run_steps(trainer_of(chain, zero_init_outputs=False), 120)[-1] < 0.8


def test_rows_are_pinned_for_a_gpu_and_left_alone_on_a_cpu(monkeypatch):
    batch = Batch(*(np.arange(6).reshape(2, 3) + number for number in range(3)))
    assert pinned(batch, torch.device("cpu")) is batch
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 100)  # there is no such memory here
    assert [array.tolist() for array in pinned(batch, torch.device("cuda"))[:3]] == [
        (array + 100).tolist() for array in batch[:3]
    ]
    assert pinned(batch, torch.device("cuda")).prefix is None


def test_flags_of_a_step_come_back(chain):
    told = Told(stop=True, writing=True)
    assert trainer_of(chain).run_step(told).told == told


def test_a_gradient_that_is_not_finite_skips_the_step_and_then_stops(chain):
    trainer = trainer_of(chain, max_skipped_steps=2)
    run_steps(trainer, 1)
    before = {name: tensor.clone() for name, tensor in state_of(trainer).items()}
    healthy = trainer._backward
    trainer._backward = lambda samples, *, scale: healthy(samples, scale=float("nan"))
    assert [trainer.run_step().is_skipped for _ in range(2)] == [True, True]
    assert_same_bits(state_of(trainer), before)
    with pytest.raises(Diverged, match=r"\[1, 2, 3\].*max_skipped_steps=2"):
        trainer.run_step()


def test_the_formats_in_the_notes_are_read_off_what_is_there(chain, bf16):
    noted = {}
    for precision in ("bf16", "fp32"):
        trainer = trainer_of(chain, model=EXPERTS, precision=precision, optimizer="adamw")
        trainer.run_step()
        noted[precision] = stage._notes(trainer, (), 0)["dtypes"]
    fp32 = dict.fromkeys(("weights", "gradients", "optimizer", "passes"), "float32")
    assert noted["fp32"] == {**fp32, "products": {"float32": 32}}
    # 2 routers, in fp32; 2 layers of 4 experts in three products, with two of attention's weights and its own.
    assert noted["bf16"] == {**fp32, "passes": "bfloat16", "products": {"bfloat16": 30, "float32": 2}}
    odd = trainer.model.blocks[0].mlp
    trainer.optimizers["adamw"].state[odd.down]["exp_avg"] = torch.zeros(1, dtype=torch.bfloat16)
    odd.down.grad = None
    odd.router.data, odd.router.grad = odd.router.data.double(), None
    odd.router.grad = torch.zeros_like(odd.router)
    seen = trainer.formats()
    assert seen["optimizer"] == "bfloat16, float32"
    assert seen["weights"] == seen["gradients"] == "float32, float64"


# Checkpoints


def saved(chain, folder, steps=(2, 4)):
    trainer = trainer_of(chain)
    for step in steps:
        run_steps(trainer, step - trainer.state.position.step)
        save(trainer, folder)
    return trainer


@pytest.mark.parametrize("name", [checkpoint.tensors_file(0, 1), checkpoint.STATE_FILE, checkpoint.MANIFEST_FILE])
@pytest.mark.parametrize("length", [0, 10, None])
def test_a_broken_checkpoint_is_passed_over_and_named(chain, tmp_path, name, length):
    saved(chain, tmp_path)
    path = tmp_path / "step-00000004" / name
    path.write_bytes(path.read_bytes()[:length] if length is not None else b"")
    if length is None:
        path.unlink()
    trainer = trainer_of(chain)
    (line,) = resume(trainer, tmp_path)
    assert line.startswith("step-00000004") and trainer.state.position.step == 2


def test_when_every_checkpoint_is_damaged_they_are_set_aside_and_training_starts_again(chain, tmp_path):
    saved(chain, tmp_path)
    for folder in checkpoint.checkpoints(tmp_path):
        (folder / checkpoint.tensors_file(0, 1)).unlink()
    trainer = trainer_of(chain)
    newest, older, said = resume(trainer, tmp_path)
    assert newest.startswith("step-00000004: ") and older.startswith("step-00000002: ") and "step 0" in said
    assert trainer.state.position.step == 0 and not checkpoint.checkpoints(tmp_path)
    assert len(list(tmp_path.glob("damaged-step-*"))) == 2


def test_two_checkpoints_are_kept(chain, tmp_path):
    saved(chain, tmp_path, steps=(1, 2, 3))
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["step-00000003", "step-00000002"]


def test_a_checkpoint_of_another_plan_or_model_is_refused(chain, tmp_path):
    saved(chain, tmp_path)
    record = chain.plan.record
    shard = dataclasses.replace(record.shards[0], sha256="0" * 64)
    for name, changed in {
        "plan": {},
        "tokenizer": {"tokenizer_digest": "0" * 64},
        "shards": {"shards": (shard, *record.shards[1:])},
    }.items():
        other = trainer_of(chain)
        other.plan.digest = other.plan.digest if changed else "0" * 64
        other.plan.record = dataclasses.replace(record, **changed)
        with pytest.raises(RefusedInput, match=f"checkpoints of {name} .*, .* "):
            resume(other, tmp_path)
    with pytest.raises(RefusedInput, match=r"model.width: 32 → 64"):
        resume(trainer_of(chain, model=dataclasses.replace(tiny.MODEL, width=64)), tmp_path)
    with pytest.raises(RefusedInput, match=r"pretrain.learning_rate: 0.01 → 0.02"):
        resume(trainer_of(chain, learning_rate=0.02), tmp_path)


def watch_in(folder, **changes):
    settings = {"checkpoint_seconds": 1e9, "bundle": folder / "stopped", "describe": describe, **changes}
    return RunHooks(progress=tiny.progress_in(folder), **settings)


def describe(documents):
    return [{"shard": shard, "document": document} for shard, document in documents]


def test_a_signal_saves_at_the_step_boundary_and_asks_to_be_requeued(chain, tmp_path):
    trainer = trainer_of(chain)
    resume(trainer, tmp_path / "checkpoints")
    healthy = trainer.run_step

    def signalled(told):
        if trainer.state.position.step == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        return healthy(told)

    trainer.run_step = signalled
    with pytest.raises(StopRequested, match="checkpoint of step 5 of 12 saved"):
        train(trainer, watch_in(tmp_path))
    resumed = trainer_of(chain)
    resume(resumed, tmp_path / "checkpoints")
    assert resumed.state.position.step == 5


def test_a_stop_whose_last_save_fails_twice_says_what_is_left(chain, tmp_path):
    trainer, told = trainer_of(chain), []
    store = tmp_path / "checkpoints"
    resume(trainer, store)
    store.mkdir(exist_ok=True)
    (store / ".step-00000002.tmp").write_text("no folder")
    watch = watch_in(tmp_path)
    healthy = trainer.run_step

    def signalled(asked):
        os.kill(os.getpid(), signal.SIGTERM)
        return healthy(asked)

    trainer.run_step = signalled
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunHooks, "warn", lambda _, text: told.append(text))
        with pytest.raises(StopRequested, match=r"step 2 .*written: .* step 2 of 12$"):
            train(trainer, watch)
    assert len(told) == 1 and "of step 0" in told[0]


# The stage


@pytest.fixture(scope="module")
def made(chain):
    job = chain.job()
    work = tiny.work_in(Path(job.output))
    return work, stage.run(job, work)


def test_the_stage_makes_a_model_that_passes_its_gates(made):
    work, outcome = made
    assert {gate.name: gate.passed for gate in outcome.gates} == {
        "loss_finite_and_falling": True,
        "export_equals_trainer": True,
    }
    assert outcome.metrics["tokens"] == 3072 and outcome.metrics["loss_end"] < outcome.metrics["loss_start"]
    assert all((work.path / name).exists() for name in outcome.files)
    rows = read_metrics(work.path / "metrics.jsonl")
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 13))
    assert any("sample" in row for row in rows)


def test_of_rows_longer_than_what_is_compared_the_beginnings_are(chain, monkeypatch):
    monkeypatch.setattr(stage, "COMPARED_POSITIONS", 8)
    job = chain.job("longer_rows")
    gates = {gate.name: gate for gate in stage.run(job, tiny.work_in(Path(job.output))).gates}
    assert gates["export_equals_trainer"].passed
    assert gates["export_equals_trainer"].evidence["positions"] == 2 * 8


def test_a_resumed_stage_fills_no_weights_and_ends_in_the_same_bytes(made, chain, monkeypatch):
    job = chain.job("resumed", checkpoint_seconds=1e-9)
    healthy = Trainer.run_step

    def killed(trainer, told):
        if trainer.state.position.step == 7:
            raise KeyboardInterrupt
        return healthy(trainer, told)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "run_step", killed)
        stage.run(job, tiny.work_in(Path(job.output)))
    monkeypatch.setattr(stage, "drawn", None)  # whoever calls it fails
    stage.run(job, tiny.work_in(Path(job.output)))
    files = [folder / "model" / "model.safetensors" for folder in (made[0].path, Path(job.output))]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_saves_that_fail_change_nothing_in_the_model(made, chain, monkeypatch):
    job, told = chain.job("unsaved", checkpoint_seconds=1e-9), []
    folder = Path(job.output, "scratch", stage.CHECKPOINTS_FOLDER)
    folder.mkdir(parents=True)
    for step in range(12):
        (folder / f".step-{step:08d}.tmp").write_text("no folder")
    monkeypatch.setattr(checkpoint.Store, "tidy", lambda store: Ledger())  # it would clear the way
    monkeypatch.setattr(RunHooks, "warn", lambda _, text: told.append(text))
    stage.run(job, tiny.work_in(Path(job.output)))
    assert told and not any(folder.glob("step-*"))
    assert all(
        "could not be written: [Errno 17]" in line and "The newest checkpoint is of step 0" in line for line in told
    )
    files = [one / "model" / "model.safetensors" for one in (made[0].path, Path(job.output))]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_too_little_disk_stops_the_stage_with_the_sum(chain, monkeypatch):
    job = chain.job("disk")
    needed = disk_bytes(stage.model_shape(tiny.MODEL, Path(chain.tokenizer.path)), chain.pretrain, kept=2)
    assert list(needed) == ["3 checkpoints", "export"] and needed["3 checkpoints"] > 6 * needed["export"]
    spiky = dataclasses.replace(chain.pretrain, spikes=SpikeRecipe(deviations=6.0))
    assert "5 checkpoints" in disk_bytes(stage.model_shape(tiny.MODEL, Path(chain.tokenizer.path)), spiky, kept=2)
    monkeypatch.setattr(stage, "disk_bytes", lambda *_, **__: {"3 checkpoints": 1 << 60, "export": 1 << 50})
    with pytest.raises(RecipeError, match=r"3 checkpoints 1,152,921,505 \+ export 1,125,900 = .* GB"):
        stage.run(job, tiny.work_in(Path(job.output)))
    assert read_metrics(Path(job.output) / "metrics.jsonl") == []


def test_the_files_of_a_run_that_goes_on_count_as_free(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    with open(tmp_path / "checkpoint", "wb") as stream:
        stream.truncate(1 << 40)  # sparse
    check_disk("pretrain", {"checkpoints": free // 2 + (1 << 40)}, tmp_path)
    with pytest.raises(RecipeError, match=r"1,100 GB in its folder"):
        check_disk("pretrain", {"checkpoints": free + (2 << 40)}, tmp_path)


def test_a_model_of_experts_passes_its_gates_as_qwen3_moe(chain):
    shape = dataclasses.replace(EXPERTS, qk_norm=True, experts=ExpertLayers(count=4, active=2, width=16))
    job = chain.job("experts", model=shape, recompute="selective")
    outcome = stage.run(job, tiny.work_in(Path(job.output)))
    assert all(gate.passed for gate in outcome.gates), outcome.gates
    assert json.loads(Path(job.output, "model", "config.json").read_text())["model_type"] == "qwen3_moe"


def test_utilization_is_the_share_of_all_devices_peak(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    for name, expected in (("cuda", {"model_flops_utilization": 0.25}), ("cpu", {})):
        trainer = SimpleNamespace(world=World(rank=0, size=2, device=torch.device(name)))
        assert _utilization(trainer, 494.5) == expected


def test_held_out_bits_per_byte_count_the_whole_text(chain):
    trainer = trainer_of(chain, precision="fp32")
    bits = held_out.bits_per_byte(trainer)
    # Before training every token is about equally likely. The first tokens are 1.5 % of all, more than the tolerance.
    for number, source in enumerate(chain.plan.record.sources):
        size = held_out_bytes(chain.plan, number)
        assert bits[source.name] == pytest.approx(math.log2(tiny.VOCABULARY) * source.held_out_tokens / size, rel=0.006)


def test_a_plan_for_another_batch_is_refused(chain):
    job = chain.job("other", pretrain=dataclasses.replace(tiny.PRETRAIN, seed=4))
    with pytest.raises(RecipeError, match="materialize training_plan again"):
        stage.run(job, tiny.work_in(Path(job.output)))


def test_a_flipped_byte_in_a_shard_stops_the_stage_before_the_first_step(tmp_path):
    chain = tiny.TinyChain(tmp_path)
    path = chain.shards.file("shards/00000.bin")
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    job = chain.job()
    with pytest.raises(RefusedInput, match="the checksum"):
        stage.run(job, tiny.work_in(Path(job.output)))
    assert read_metrics(Path(job.output) / "metrics.jsonl") == []


def test_a_tokenizer_that_is_not_the_plans_stops_the_stage(tmp_path):
    chain = tiny.TinyChain(tmp_path)
    chain.tokenizer = dataclasses.replace(chain.tokenizer, digest="f" * 64)
    with pytest.raises(RefusedInput, match="made with tokenizer"):
        stage.run(chain.job(), tiny.work_in(tmp_path))


@pytest.mark.parametrize(("cuda", "here"), [("13.0", "; choose"), (None, r" \(torch .*, built for CPUs alone")])
def test_fewer_devices_than_the_profile_says_stop_the_stage(chain, monkeypatch, cuda, here):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    job = chain.job("devices", gpus_per_node=torch.cuda.device_count() + 1)
    with pytest.raises(RecipeError, match=rf"gpus_per_node=\d+, this node has \d+{here}.*gpus_per_node: 0 trains"):
        stage.run(job, tiny.work_in(Path(job.output)))
    assert read_metrics(Path(job.output) / "metrics.jsonl") == []


def test_too_little_memory_stops_the_stage_with_the_sum(chain, monkeypatch):
    job = chain.job("memory")
    monkeypatch.setattr(stage, "memory_of", lambda device: (300_000, "the machine"))
    with pytest.raises(RecipeError, match=r"\(weights .* activations .*\) GB, .* 0.0003 GB"):
        stage.run(job, tiny.work_in(Path(job.output)))
    assert read_metrics(Path(job.output) / "metrics.jsonl") == []


def test_a_wrong_export_is_noticed(made, chain, tmp_path):
    work, _ = made
    folder = shutil.copytree(work.path / "model", tmp_path / "model")
    model = export.read_model(folder)
    with torch.no_grad():
        model.blocks[0].attention.query_key_value[0] += 1.0
    assert not tiny.compared(model, folder, torch.arange(2, 60)[None]).is_equal


# Processes of their own


BARE = """
import builtins, importlib, pkgutil, sys

ALLOWED = {"torch", "numpy", "safetensors", "training", *sys.stdlib_module_names}
plain = builtins.__import__


def guarded(name, globals=None, locals=None, fromlist=(), level=0):
    asking, asked = ((globals or {}).get("__name__") or "").partition(".")[0], name.partition(".")[0]
    if level == 0 and asking == "training" and asked not in ALLOWED:
        raise ModuleNotFoundError(f"No module named {name!r}: this node is bare", name=name)
    return plain(name, globals, locals, fromlist, level)


builtins.__import__ = guarded
import training.pretrain

for module in pkgutil.iter_modules(training.pretrain.__path__):
    importlib.import_module(f"training.pretrain.{module.name}")
from training.contract.running import command_line
from training import stages

sys.exit(command_line.main(sys.argv[1:], stages.STAGES))
"""


def test_a_node_that_has_torch_numpy_and_safetensors_alone_trains(chain, tmp_path):
    """To the end where the model is in the package's own layout; transformers checks the others."""
    job = chain.job("bare", model=dataclasses.replace(tiny.MODEL, activation="relu2"))
    write_job(job, tmp_path / "job.json")
    argv = [sys.executable, "-c", BARE, str(tmp_path / "job.json")]
    done = subprocess.run(argv, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert json.loads(Path(job.output, "artifact.json").read_text())["notes"]["own_layout"]


def trained(job, monkeypatch):
    """What a job's training left: weights and optimizer, before the stage makes anything of them."""
    found = {}

    def noting(trainer, watch):
        train(trainer, watch)
        found.update(state_of(trainer))

    with monkeypatch.context() as patch:
        patch.setattr(stage, "train", noting)
        assert run_job(job, STAGES) == 0
    return found


def test_a_run_that_is_killed_or_told_to_stop_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    texts = {source: [tiny.sentence((source, number)) for number in range(30)] for source in ("books", "web")}
    mixture = tiny.MixtureRecipe(max_epochs=10, held_out_fraction=0.1)
    recipe = dataclasses.replace(tiny.PRETRAIN, tokens=40 * 256, optimizer="muon")
    chain = tiny.TinyChain(tmp_path, texts=texts, mixture=mixture, pretrain=recipe)
    assert chain.outcome.metrics["epochs_web"] > 2
    straight, stopped = (
        chain.job(name, threads=1, checkpoint_seconds=0.0, micro_batch_tokens=64) for name in ("straight", "stopped")
    )
    write_job(stopped, tmp_path / "job.json")
    for moment, number in ((5, signal.SIGKILL), (15, signal.SIGTERM)):
        running = subprocess.Popen(
            [sys.executable, "-m", "training", str(tmp_path / "job.json")], env=ENVIRONMENT, stderr=subprocess.DEVNULL
        )
        metrics = Path(stopped.output, "metrics.jsonl")
        while running.poll() is None and not any(row["step"] >= moment for row in read_metrics(metrics)):
            time.sleep(0.01)
        running.send_signal(number)
        assert running.wait(60) == (REQUEUE if number == signal.SIGTERM else -number)
    ours, theirs = (trained(job, monkeypatch) for job in (stopped, straight))
    assert_same_bits(ours, theirs)
    assert any(name.startswith("muon.") for name in ours) and any(name.endswith(".exp_avg_sq") for name in ours)
    record = json.loads(Path(stopped.output, "artifact.json").read_text())
    assert 0 < record["notes"]["resumed_at_step"] < 40
    files = [Path(job.output, "model", "model.safetensors").read_bytes() for job in (straight, stopped)]
    assert files[0] == files[1]
    assert not Path(stopped.output, "scratch").exists()
