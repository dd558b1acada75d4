"""Check that training converges as it should: compare the losses with those of transformers.

`PEDIGREE_DATA=… python -m benchmarks.convergence` trains a small Llama on the bytes of WikiText-2's validation articles
with this trainer, and again with Hugging Face's Trainer from the same weights, on the same rows, with the same
settings; the exit code is 1 if losses differ by more than 0.01 nats.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.rows import BYTES_VOCABULARY, plan_over_texts
from training.order.batches import Plan, Shards, held_out_samples, index
from training.order.loss_mask import IGNORED
from training.pretrain.capacity.usage import keep_freed_memory
from training.pretrain.losses.chunked import token_losses
from training.pretrain.models.attention import document_mask
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.export import hugging_face_config, hugging_face_views
from training.pretrain.models.shape import ModelConfig
from training.pretrain.optim.schedule import scheduled_factor
from training.pretrain.parallel.world import World
from training.pretrain.settings import PretrainRecipe
from training.pretrain.step import Trainer

TOLERANCE = 0.01  # nats
WINDOW = 10  # steps over which losses are averaged before they are compared
SMALL = ModelConfig(
    vocab_size=BYTES_VOCABULARY, width=128, layers=4, heads=4, kv_heads=4, mlp_width=352, max_length=256
)


def data_folder() -> Path:
    """Return the folder of the shared texts. Exit with a message if PEDIGREE_DATA does not name it."""
    if "PEDIGREE_DATA" not in os.environ:
        sys.exit("PEDIGREE_DATA names no folder with data")
    return Path(os.environ["PEDIGREE_DATA"])


def articles() -> list[str]:
    """Return WikiText-2's validation articles in their order, each with its title."""
    text = gzip.decompress((data_folder() / "text" / "wikitext-2.valid.txt.gz").read_bytes()).decode()
    starts = [found.start() for found in re.finditer(r"^ = [^=]+ = $", text, re.MULTILINE)]
    return [text[start:stop].strip() for start, stop in zip(starts, [*starts[1:], len(text)], strict=True)]


# This trainer and Hugging Face's, on the same plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The results of a training.

    They are the nats per target of each step and of the held-out rows, and the processor seconds of all steps.
    """

    losses: list[float]
    held_out: float
    processor: float


def own_trainer(
    config: ModelConfig, recipe: PretrainRecipe, plan: Plan, shards: Shards, *, device: str = "cpu"
) -> Trainer:
    """Return a trainer of this project with the weights that the recipe's seed gives."""
    model = Decoder(config)
    initialise(model, zero_outputs=recipe.zero_init_outputs, generator=torch.Generator().manual_seed(recipe.seed))
    return Trainer(model, recipe, plan, shards, World(rank=0, size=1, device=torch.device(device)))


def own_run(config: ModelConfig, recipe: PretrainRecipe, plan: Plan, shards: Shards) -> Run:
    """Train all steps with this project's trainer."""
    trainer, losses = own_trainer(config, recipe, plan, shards), []
    began = time.process_time()
    while trainer.state.position.step < plan.record.steps:
        losses.append(trainer.run_step().loss)
    processor = time.process_time() - began

    def nats(tokens: torch.Tensor, targets: torch.Tensor, documents: torch.Tensor) -> float:
        states = trainer.model(tokens, document_mask(documents, dtype=torch.float32)).states.flatten(0, 1)
        return token_losses(states, trainer.model.head_weight, targets.flatten()).double().sum().item()

    return Run(losses=losses, held_out=_held_out(plan, shards, nats), processor=processor)


def hugging_face_run(
    config: ModelConfig, recipe: PretrainRecipe, plan: Plan, shards: Shards, *, rates: Sequence[float] = ()
) -> Run:
    """Train all steps with Hugging Face's Trainer: with its loop, optimizer, clipping, loss and model.

    It begins with the same weights as `own_trainer`, if the recipe does not set output matrices to zero. `rates` gives
    the learning rate of every step; without them the Trainer's own cosine schedule goes from the recipe's rate to zero.
    """
    from transformers import LlamaForCausalLM, Trainer, TrainingArguments
    from transformers.models.llama.configuration_llama import LlamaConfig

    losses: list[float] = []

    class Recording(Trainer):  # type: ignore[misc]
        def compute_loss(self, *given, **options):  # type: ignore[no-untyped-def]
            loss = super().compute_loss(*given, **options)
            losses.append(loss.item())
            return loss

        def create_scheduler(self, num_training_steps, optimizer=None):  # type: ignore[no-untyped-def]
            if not rates:
                return super().create_scheduler(num_training_steps, optimizer)
            factors = [rate / recipe.learning_rate for rate in rates]
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
                optimizer or self.optimizer, lambda step: factors[min(step, len(factors) - 1)]
            )
            return self.lr_scheduler

    keys = hugging_face_config(config, eos_id=0)
    taken = {name: keys[name] for name in keys if name not in ("architectures", "model_type", "dtype", "use_cache")}
    torch.manual_seed(recipe.seed)
    model = LlamaForCausalLM(LlamaConfig(**taken, use_cache=False))
    if not recipe.zero_init_outputs:
        views = hugging_face_views(own_trainer(config, recipe, plan, shards).model)
        weights = {name: view.reshape(-1, view.shape[-1]) if view.dim() > 1 else view for name, view in views}
        left = model.load_state_dict(weights, strict=False)
        assert left.missing_keys in ([], ["lm_head.weight"]) and not left.unexpected_keys
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=plan.record.global_batch_tokens // plan.record.sequence_length,
            max_steps=plan.record.steps,
            learning_rate=recipe.learning_rate,
            adam_beta1=recipe.beta1,
            adam_beta2=recipe.beta2,
            weight_decay=recipe.weight_decay,
            max_grad_norm=recipe.gradient_clip,
            lr_scheduler_type="cosine",
            warmup_steps=round(recipe.warmup_fraction * plan.record.steps),
            bf16=recipe.precision == "bf16",
            use_cpu=True,
            train_sampling_strategy="sequential",
            remove_unused_columns=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = Recording(model=model, args=arguments, train_dataset=_Rows(plan, shards), data_collator=_collated)
        began = time.process_time()
        trainer.train()
        processor = time.process_time() - began
    model.eval()

    def nats(tokens: torch.Tensor, targets: torch.Tensor, documents: torch.Tensor) -> float:
        positions = document_mask(documents, dtype=torch.float32).positions
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits.flatten(0, 1).double()
        return torch.nn.functional.cross_entropy(
            logits, targets.flatten(), ignore_index=IGNORED, reduction="sum"
        ).item()

    return Run(losses=losses, held_out=_held_out(plan, shards, nats), processor=processor)


class _Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The plan's rows in order, as a data set for the model of transformers.

    Positions restart where a document begins, and labels are already shifted.
    """

    def __init__(self, plan: Plan, shards: Shards) -> None:
        self._plan, self._shards = plan, shards
        self._rows = plan.record.global_batch_tokens // plan.record.sequence_length
        self._batch: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return self._plan.record.steps * self._rows

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        step, row = divmod(number, self._rows)
        if self._batch[0] != step:
            made = self._shards.rows(index(self._plan, step), length=self._plan.record.sequence_length)
            self._batch = step, tuple(map(torch.from_numpy, made))
        tokens, targets, documents = (part[row] for part in self._batch[1])
        positions = document_mask(documents[None], dtype=torch.float32).positions[0]
        return {"input_ids": tokens, "labels": targets, "shift_labels": targets, "position_ids": positions}


def _collated(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


@torch.no_grad()
def _held_out(plan: Plan, shards: Shards, nats: Any, *, rows: int = 16) -> float:
    """Return the loss on the held-out rows in nats per target, in fp32."""
    samples, total, count = held_out_samples(plan, 0), 0.0, 0
    for at in range(0, len(samples), rows):
        made = shards.rows(samples[at : at + rows], length=plan.record.sequence_length)
        tokens, targets, documents = map(torch.from_numpy, made)
        total += nats(tokens, targets, documents)
        count += int((targets != IGNORED).sum())
    return total / count


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Differences between this trainer and Hugging Face's, in nats.

    They are the difference of the first step, the largest of the means over windows of steps, and that of the held-out
    loss.
    """

    first: float
    largest: float
    held_out: float

    @property
    def is_equal(self) -> bool:
        """Whether the differences are so small that the two trainings count as equal."""
        return max(self.first, self.largest, self.held_out) <= TOLERANCE


def compared(own: Run, theirs: Run) -> Compared:
    """Return the differences between the losses of two runs."""
    pairs = list(zip(_windows(own.losses), _windows(theirs.losses), strict=True))
    return Compared(
        first=abs(own.losses[0] - theirs.losses[0]),
        largest=max(abs(mine - other) for mine, other in pairs),
        held_out=abs(own.held_out - theirs.held_out),
    )


def _windows(losses: list[float]) -> list[float]:
    return [statistics.fmean(losses[at : at + WINDOW]) for at in range(0, len(losses), WINDOW)]


def equal(options: argparse.Namespace) -> int:
    """Run both trainings and print how much they differ; return 1 if they are not equal."""
    recipe = PretrainRecipe(
        tokens=options.steps * options.rows * options.length,
        sequence_length=options.length,
        global_batch_tokens=options.rows * options.length,
        learning_rate=options.learning_rate,
        precision=options.precision,
        zero_init_outputs=False,
        seed=options.seed,
    )
    plan, shards = plan_over_texts(articles(), steps=options.steps, rows=options.rows, length=options.length)
    own, theirs, rates = both(SMALL, recipe, plan, shards)
    found = compared(own, theirs)
    print(
        f"{SMALL.parameter_count:,} parameters, {options.precision}, {options.steps} steps of {options.rows} x"
        f" {options.length} bytes, AdamW {options.learning_rate} (last step {rates[-1]:.2g}), seed {options.seed}"
    )
    print("| steps | this trainer | Hugging Face's Trainer | difference |\n|---|---|---|---|")
    lines = list(zip(_windows(own.losses), _windows(theirs.losses), strict=True))
    shown = sorted({round(share * (len(lines) - 1)) for share in (0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1)})
    for number in shown:
        mine, other = lines[number]
        first = number * WINDOW
        last = min(first + WINDOW, options.steps)
        print(f"| {first} to {last - 1} | {mine:.4f} | {other:.4f} | {mine - other:+.4f} |")
    print(f"| held out | {own.held_out:.4f} | {theirs.held_out:.4f} | {own.held_out - theirs.held_out:+.4f} |")
    print(
        f"first step {found.first:.2g}, largest of windows of {WINDOW} steps {found.largest:.2g}; processor seconds"
        f" {own.processor:.0f} and {theirs.processor:.0f};"
        f" {'equal' if found.is_equal else 'NOT equal'} within {TOLERANCE}"
    )
    return 0 if found.is_equal else 1


def both(config: ModelConfig, recipe: PretrainRecipe, plan: Plan, shards: Shards) -> tuple[Run, Run, list[float]]:
    """Train with this trainer and with Hugging Face's, with the same learning rate at every step.

    Returns both runs and the rates.
    """
    steps = plan.record.steps
    rates = [recipe.learning_rate * scheduled_factor(step, steps=steps, recipe=recipe) for step in range(steps)]
    own = own_run(config, recipe, plan, shards)
    return own, hugging_face_run(config, recipe, plan, shards, rates=rates), rates


def main() -> int:
    """Compare both trainers; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    return equal(options)


if __name__ == "__main__":
    sys.exit(main())
