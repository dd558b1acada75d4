"""Run on a GPU what no test on a CPU can enter, and compare it with the same training step on the CPU in fp32.

    python -m benchmarks.on_gpu --out FILE [--device cpu]

One step of small models over packed documents is computed in fp32 on the CPU, and in bf16 by each form that a GPU has:
attention as `masked`, `flex` and `varlen`, eager and with compiled blocks, plain heads, grouped queries, windows,
experts (`grouped_mm`), and another family. Compared are the loss and all gradients, as ‖difference‖ ÷ ‖reference‖.
`masked`, torch's own attention with a mask, is the measure: rounding to bf16 alone gives its difference. A form passes
if its difference is at most TOLERANCE times that one. fp8, if torchao is installed, is measured by the difference that
torchao's emulation has on the CPU.

Then three promises about steps: `read_steps` gives the same weights as steps read one by one, a resumed training those
of one without a pause, and a second run those of the first. Where bits differ, the largest difference is shown.

It needs torch, numpy and safetensors. With `--device cpu`, for a test of this script, only `masked` and `blocks` exist.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.rows import made_tokens, plan_over
from training.artifact import write_json
from training.pretrain import checkpoint
from training.pretrain.models.attention import Kind
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.shape import ExpertLayers, ModelConfig
from training.pretrain.parallel import World
from training.pretrain.pretrain import compile_model
from training.pretrain.report import Told
from training.pretrain.settings import PretrainRecipe
from training.pretrain.step import Trainer

TOLERANCE = 1.5
STEPS, ROWS, LENGTH, VOCABULARY = 6, 4, 512, 1024
PLAIN = ModelConfig(
    vocab_size=VOCABULARY,
    width=256,
    layers=4,
    heads=4,
    kv_heads=4,
    mlp_width=512,
    max_length=LENGTH,
    tied_embeddings=False,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How a step is computed on the device."""

    attention: Kind
    compiled: bool = False
    precision: str = "bf16"

    def __str__(self) -> str:
        more = [*(["compiled blocks"] if self.compiled else []), *(["fp8"] if self.precision == "fp8" else [])]
        return ", ".join([self.attention, *more])


EMULATED = Form(attention="blocks", precision="fp8")  # on the CPU


def shapes() -> dict[str, ModelConfig]:
    """Return the small models, by what is special about them."""
    windows = {"window": 64, "window_pattern": ("window", "window", "window", "full"), "qk_norm": True}
    return {
        "plain heads": PLAIN,
        "grouped queries": replace(PLAIN, kv_heads=1),
        "windows": replace(PLAIN, **windows),
        "experts": replace(PLAIN, qk_norm=True, experts=ExpertLayers(count=8, active=2, width=128)),
        "olmo2": replace(PLAIN, family="olmo2", qk_norm=True),
    }


def forms(device: torch.device, config: ModelConfig) -> list[Form]:
    """Return the kinds of attention, compilation and precision that a device has for a model, the baseline first."""
    has_fp8 = not config.experts.count and importlib.util.find_spec("torchao") is not None
    if device.type == "cpu":
        return [Form(attention="masked"), Form(attention="blocks"), *([EMULATED] if has_fp8 else [])]
    kinds: list[Kind] = ["flex", "varlen"] if may_be_varlen(config) else ["flex"]
    fp8 = [Form(attention="flex", compiled=True, precision="fp8")] if has_fp8 else []
    return [
        Form(attention="masked"),
        *(Form(attention=kind, compiled=on) for kind in kinds for on in (False, True)),
        *fp8,
    ]


def may_be_varlen(config: ModelConfig) -> bool:
    """Return whether the installed torch can compute a model's attention by `varlen_attn`."""
    from torch.nn.attention.varlen import varlen_attn

    return config.own_layers is None and (config.group == 1 or "enable_gqa" in signature(varlen_attn).parameters)


def made(config: ModelConfig, device: torch.device, *, precision: str, steps: int = STEPS) -> Trainer:
    """Return a trainer over packed documents of 20 to 200 tokens, with the same weights for every device."""
    chance = np.random.default_rng(1)
    count = steps * ROWS * LENGTH
    sizes: list[int] = []
    while sum(sizes) < count:
        sizes.append(int(chance.integers(20, 200)))
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    tokens = made_tokens(sum(sizes), vocabulary=VOCABULARY)
    plan, shards = plan_over(tokens, list(zip(starts, sizes, strict=True)), steps=steps, rows=ROWS, length=LENGTH)
    recipe = PretrainRecipe(
        tokens=count,
        sequence_length=LENGTH,
        global_batch_tokens=ROWS * LENGTH,
        precision=precision,  # pyrefly: ignore
        learning_rate=1e-3,
        gradient_clip=None,
    )
    model = Decoder(config)
    initialise(model, zero_outputs=False, generator=torch.Generator().manual_seed(0))
    return Trainer(model, recipe, plan, shards, World(rank=0, size=1, device=device))


def step_of(config: ModelConfig, device: torch.device, form: Form | None) -> tuple[float, Tensor]:
    """Return loss and gradients, as one vector on the CPU, of the first step; None is fp32 on the CPU."""
    trainer = made(config, device, precision="fp32" if form is None else form.precision)
    if form is not None:
        trainer.attention = form.attention
        compile_model(trainer, "blocks" if form.compiled else False)
    loss = trainer.run_step().loss
    gradients = [weight.grad for weight in trainer.model.parameters()]
    return loss, torch.cat([one.detach().double().cpu().flatten() for one in gradients if one is not None])


def compared(device: torch.device, kinds: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield for each model and form how far it is from fp32 on the CPU. `kinds`: of attention; none is all."""
    for name, config in shapes().items():
        loss, gradients = step_of(config, torch.device("cpu"), None)
        measures: dict[str, float] = {}  # by precision
        for form in forms(device, config):
            if measures and kinds and form.attention not in kinds:
                continue
            row: dict[str, Any] = {"model": name, "form": str(form)}
            began = time.perf_counter()
            try:
                own_loss, own = step_of(config, device, form)
            except Exception as error:
                yield row | {"passed": False, "error": f"{type(error).__name__}: {error}"[:600]}
                continue
            apart = float((own - gradients).norm() / gradients.norm())
            if form.precision not in measures:
                emulated = step_of(config, torch.device("cpu"), EMULATED)[1] if form.precision == "fp8" else own
                measures[form.precision] = float((emulated - gradients).norm() / gradients.norm())
            measure = measures[form.precision]
            yield row | {
                "passed": apart <= TOLERANCE * measure,
                "loss_difference": abs(own_loss - loss),
                "gradient_difference": apart,
                "of_the_measure": apart / measure,
                "seconds": time.perf_counter() - began,
            }


# Steps


def weights_of(trainer: Trainer) -> Tensor:
    """Return all weights as one vector on the CPU."""
    return torch.cat([weight.detach().cpu().flatten() for weight in trainer.model.parameters()])


def one_by_one(trainer: Trainer, folder: Path) -> Tensor:
    """Train all steps, each read when it is made."""
    del folder
    while trainer.state.position.step < STEPS:
        trainer.run_step()
    return weights_of(trainer)


def read_together(trainer: Trainer, folder: Path) -> Tensor:
    """Train all steps, and read them in two groups."""
    del folder
    assert trainer.run_steps(Told(), until=STEPS // 2) and trainer.run_steps(Told(), until=STEPS)
    return weights_of(trainer)


def resumed(trainer: Trainer, folder: Path) -> Tensor:
    """Return the last weights of a training that is stopped at half, saved, and resumed by a second trainer."""
    store = checkpoint.Store(folder / "checkpoints", trainer.world)
    trainer.state.store = store
    while trainer.state.position.step < STEPS // 2:
        trainer.run_step()
    trainer.state.save()
    store.settle()
    other = made(PLAIN, trainer.world.device, precision="bf16")
    other.state.resume(checkpoint.Store(folder / "checkpoints", other.world))
    assert other.state.position.step == STEPS // 2, other.state.position
    return one_by_one(other, folder)


WAYS: dict[str, Callable[[Trainer, Path], Tensor]] = {
    "a second run": one_by_one,
    "read_steps": read_together,
    "resumed": resumed,
}


def promised(device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield for each promise about steps whether the weights have the same bits as those of steps one by one."""
    with tempfile.TemporaryDirectory() as temporary:
        expected = one_by_one(made(PLAIN, device, precision="bf16"), Path(temporary))
        for name, way in WAYS.items():
            row: dict[str, Any] = {"promise": name}
            try:
                found = way(made(PLAIN, device, precision="bf16"), Path(temporary))
            except Exception as error:
                yield row | {"passed": False, "error": f"{type(error).__name__}: {error}"[:600]}
                continue
            yield row | {
                "passed": torch.equal(expected, found),
                "largest_difference": float((expected - found).abs().max()),
            }


def main() -> int:
    """Run all comparisons; the exit code is 1 if one did not pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--attention", nargs="+", default=(), help="only these kinds beside masked, and no promises")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no GPU is here")
    device = torch.device(options.device, *([0] if options.device == "cuda" else []))
    rows: list[dict[str, Any]] = []
    for one in chain(() if options.attention else promised(device), compared(device, options.attention)):
        rows.append(one)
        print(
            " | ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{value}" for name, value in one.items())
        )
        sys.stdout.flush()
        if options.out:
            name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
            write_json(options.out, {"device": name, "torch": torch.__version__, "found": rows})
    return 0 if all(row["passed"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
