"""Products in fp8: the arithmetic of when they pay, what is refused, and that training goes on as in bf16."""

from __future__ import annotations

import dataclasses
import importlib.util
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import parallel
from benchmarks.parallel import MODELS, Combination
from tests.training.pretrain import tiny
from tests.training.pretrain.shapes import preset_shape
from training.contract.records import RecipeError
from training.order.batch_settings import BatchPhase
from training.pretrain.capacity.fp8_checks import EAGER_BYTES, balance, check_fp8, check_gpu
from training.pretrain.fp8 import Fp8Product
from training.pretrain.models.attention import one_document
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.layers import linear
from training.pretrain.models.shape import ExpertLayers, ModelConfig
from training.pretrain.parallel.degrees import Degrees
from training.pretrain.parallel.world import World, make_world
from training.pretrain.stages import pretrain as stage
from training.pretrain.step import Trainer

needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None,
    reason="waits for torchao: the extra fp8 of pyproject.toml, which is part of dev and of the lock",
)
CPU = torch.device("cpu")
WIDE = preset_shape("llama-3-8b")
SHAPE = dataclasses.replace(WIDE, layers=2)


# When it pays


def test_the_balance_of_one_layer_by_hand():
    one = ModelConfig(vocab_size=64, width=1024, layers=1, heads=8, kv_heads=8, mlp_width=2048, max_length=64)
    sums = balance(one, tokens=4096, device="H100", compiled=True)
    # (outputs, inputs): query, key and value; output; gate and up; down.
    sides = [(3072, 1024), (1024, 1024), (2048, 1024), (2048, 1024), (1024, 2048)]
    operations = sum(3 * 2 * 4096 * outputs * inputs for outputs, inputs in sides)
    assert sums.products == pytest.approx(operations / (0.78 * 989e12)) and sums.saved == sums.products / 2
    moved = sum(6 * 4096 * (outputs + inputs) + 8 * outputs * inputs for outputs, inputs in sides)
    assert sums.cast_bytes == moved
    # Every tensor is large enough here for its bytes, and not a kernel's start, to be what takes time.
    assert sums.cast == pytest.approx(moved / (0.92 * 3.35e12), rel=0.15) and sums.cast >= moved / (0.92 * 3.35e12)


def test_small_layers_and_layers_that_are_not_compiled_gain_nothing():
    def pays(name, *, compiled=True, device="H100", tokens=16_384):
        return balance(preset_shape(name), tokens=tokens, device=device, compiled=compiled).pays

    assert [pays(name) for name in ("30m", "100m", "llama-3.2-1b", "llama-3-8b")] == [False, False, True, True]
    assert not pays("llama-3.2-1b", compiled=False) and not pays("llama-3.2-1b", tokens=64)
    assert pays("100m", device="H200") and not pays("100m", device="L40S")


class Moved(TorchDispatchMode):
    """Bytes that operations read and write; views move none."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.count += sum(one.nbytes for one in (*args, made) if isinstance(one, torch.Tensor))
        return made


@needs_torchao
def test_torchao_moves_as_many_bytes_as_are_counted_when_nothing_is_compiled():
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic

    x = torch.randn(256, 1024).bfloat16()
    with Moved() as moved:
        hp_tensor_to_float8_dynamic(x, torch.float8_e4m3fn, None)
    # Forward and backward cast anew, and one of the two is turned round.
    assert 2 * moved.count / x.numel() + 2 == pytest.approx(EAGER_BYTES, rel=0.01)


# Refusals


def refused(config=SHAPE, **changes):
    given = {
        "phases": [BatchPhase(tokens=2**24, sequence_length=4096, global_batch_tokens=2**20)],
        "degrees": Degrees(),
        "processes": 8,
        "micro_batch_tokens": 16_384,
        "compiled": True,
        "gpus_per_node": 8,
    } | changes
    try:
        check_fp8(config, **given)
    except RecipeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpus_per_node": 0}, "gpus_per_node=0: it is made on GPUs alone"),
        ({"degrees": Degrees(tensor=2)}, "tensor=2: a scale is a whole matrix's"),
        ({"compiled": False}, "does not pay: on H200, in passes of 16384 tokens, a layer's products take"),
        ({"compiled": False}, "more tokens in a pass, compile: blocks"),
        ({"device": "NVIDIA L40S", "micro_batch_tokens": 256, "degrees": Degrees(context=4)}, "does not pay: on L40S"),
        ({"degrees": Degrees(context=8), "micro_batch_tokens": 4104}, "a process has 513 tokens in a pass"),
        ({"config": dataclasses.replace(SHAPE, mlp_width=14_340)}, "mlp.gate is 14340 x 4096; both sides"),
        (
            {"config": dataclasses.replace(SHAPE, qk_norm=True, experts=ExpertLayers(count=4, width=512))},
            "model.experts.count=4: experts have bf16 alone",
        ),
    ],
)
def test_what_cannot_be_or_does_not_pay_is_refused_with_the_arithmetic(changes, said):
    assert said in refused(**changes)


def test_what_pays_on_some_gpu_is_not_refused_before_the_gpu_is_known():
    small = preset_shape("100m")
    assert refused(small) == "" and refused(small, device="NVIDIA H200") == ""
    assert refused(small, device="Some other GPU") == ""
    assert "does not pay" in refused(small, device="NVIDIA H100 80GB HBM3")


def test_the_phase_with_the_most_tokens_decides():
    short = BatchPhase(tokens=2**14, sequence_length=64, global_batch_tokens=2**10)
    rest = BatchPhase(tokens=2**24, sequence_length=4096, global_batch_tokens=2**20)
    assert refused(phases=[short, rest], micro_batch_tokens=None) == ""
    assert "in passes of 128 tokens" in refused(phases=[short], micro_batch_tokens=None)


def test_a_device_without_fp8_and_a_missing_torchao_are_named(monkeypatch):
    with pytest.raises(RecipeError, match=r"no CUDA .* 8\.9"):
        check_gpu(CPU)
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(RecipeError, match=r"A100 .* 8\.0, .* 8\.9"):
        check_gpu(device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(RecipeError, match=r"pip install 'pedigree\[fp8\]'"):
        check_gpu(device)
    with pytest.raises(RecipeError, match="torchao"):
        Fp8Product(emulated=True)


def test_a_job_without_a_gpu_is_refused_before_the_first_step(tmp_path):
    pretrain = dataclasses.replace(tiny.PRETRAIN, precision="fp8")
    job = tiny.TinyChain(tmp_path, pretrain=pretrain).job()
    with pytest.raises(RecipeError, match="no CUDA device"):
        stage.run(job, tiny.work_in(Path(job.output)))


# What is made


def built(name="dense", *, product=None, recompute="none"):
    model = Decoder(MODELS[name])
    initialise(model, zero_outputs=False, generator=torch.Generator().manual_seed(1))
    model.set_recompute(recompute)
    if product is not None:
        model.set_product(product)
    return model


def apart(one, other):
    return ((one.float() - other.float()).norm() / other.float().norm()).item()


@needs_torchao
def test_a_product_and_its_gradients_are_near_those_of_bf16():
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=generator) for shape in ((2, 64, 64), (96, 64)))
    x, gain, grad = x.bfloat16(), torch.rand(64, generator=generator), torch.randn(2, 64, 96, generator=generator)
    results = []
    for product in (Fp8Product(emulated=True), linear):
        given = [tensor.clone().requires_grad_() for tensor in (x, weight, gain)]
        made = product(*given)
        results.append((made, *torch.autograd.grad(made, given, grad.bfloat16())))
    assert [one.dtype for one in results[0]] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    far = [apart(one, other) for one, other in zip(*results, strict=True)]
    # e4m3 has four significant bits, so a number is off by up to 1/16, e5m2 three.
    assert all(0.01 < one < 0.08 for one in far), far


@needs_torchao
def test_where_no_gradient_is_made_products_are_those_of_bf16():
    x, weight = torch.randn(4, 64).bfloat16(), torch.randn(32, 64)
    with torch.no_grad():
        assert torch.equal(Fp8Product(emulated=True)(x, weight), F.linear(x, weight.bfloat16()))


@needs_torchao
def test_the_layers_alone_are_in_fp8_and_made_again_they_have_the_same_bits():
    tokens = torch.randint(258, (2, 32), generator=torch.Generator().manual_seed(0))
    seen = []

    def noted(x, weight, gain=None):
        seen.append(weight.shape)
        return product(x, weight, gain)

    product = Fp8Product(emulated=True)
    results = []
    for recompute in ("none", "selective", "full"):
        model = built(product=noted, recompute=recompute)
        mask = one_document(tokens, dtype=torch.bfloat16, window=8)
        model(tokens, mask, dtype=torch.bfloat16).states.float().square().sum().backward()
        results.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    assert {tuple(shape) for shape in seen} == {(64, 32), (32, 32), (48, 32), (32, 48)}
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


@needs_torchao
def test_it_can_be_compiled_as_one_graph():
    product = Fp8Product(emulated=True)
    compiled = torch.compile(
        lambda x, weight: product(x, weight).float().square().sum(), backend="aot_eager", fullgraph=True
    )
    x, weight = torch.randn(32, 64).bfloat16(), torch.randn(48, 64, requires_grad=True)
    one, other = (torch.autograd.grad(made(x, weight).float().square().sum(), weight)[0] for made in (product, product))
    assert torch.equal(one, other)
    made = compiled(x, weight)
    assert made.item() == pytest.approx(product(x, weight).float().square().sum().item(), rel=1e-3)
    assert apart(torch.autograd.grad(made, weight)[0], one) < 1e-3


RECIPE = {"precision": "fp8", "learning_rate": 1e-2}
MESHES = {"replicas": Degrees(), "shard": Degrees(shard=2), "pipeline": Degrees(pipeline=2)}


def losses_of(data, degrees, rank, size, *, steps=3, **changes):
    """Of the first steps, each of four passes of one row."""
    trainer = trainer_in(data, degrees, rank, size, **changes)
    return [trainer.run_step().loss for _ in range(steps)]


def trainer_in(data, degrees, rank, size, **changes):
    plan, shards = data.open()
    world = make_world(degrees, rank=rank, size=size, device=CPU) if size > 1 else World(rank=0, size=1, device=CPU)
    recipe = dataclasses.replace(parallel.recipe_of(Combination(processes=1, degrees=Degrees())), **RECIPE | changes)
    return Trainer(built(), recipe, plan, shards, world, micro_batch_tokens=parallel.LENGTH)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return parallel.make_data(tmp_path_factory.mktemp("chain"))


@needs_torchao
def test_training_lowers_the_loss_as_bf16_does(data, bf16):
    one, other = (losses_of(data, Degrees(), 0, 1, steps=12, precision=kind) for kind in ("fp8", "bf16"))
    assert one != other and one[0] - one[-1] > 1.0
    assert one[-1] == pytest.approx(other[-1], rel=0.02)


@needs_torchao
def test_the_artifacts_notes_say_what_was_in_fp8(data, bf16):
    trainers = [trainer_in(data, Degrees(), 0, 1, precision=kind) for kind in ("fp8", "bf16")]
    for trainer in trainers:
        trainer.run_step()
    fp8s, bf16s = (stage._notes(trainer, (), 0) for trainer in trainers)
    said = fp8s.pop("fp8")  # read from the layer that computed
    assert said["grad_output"] == "float8_e5m2, tensorwise" and set(said.values()) == {
        "float8_e4m3fn, tensorwise",
        said["grad_output"],
    }
    counts = [notes["dtypes"].pop("products") for notes in (fp8s, bf16s)]
    # Of each of four layers five products of weights; attention's own stays as it is.
    assert counts == [{"bfloat16": 4, "float8": 20}, {"bfloat16": 24}]
    assert fp8s.pop("torchao").startswith("0.") and fp8s == bf16s


@needs_torchao
def test_replicas_shards_and_stages_train_like_one_process(data, tmp_path):
    alone = losses_of(data, Degrees(), 0, 1)
    tasks = [(2, partial(losses_of, data, degrees)) for degrees in MESHES.values()]
    for name, losses in zip(MESHES, parallel.in_processes(tasks, tmp_path), strict=True):
        assert losses == pytest.approx(alone, rel=2e-3), name
