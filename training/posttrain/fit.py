"""What the trainers share: their settings, the order of rows, progress, checkpoints, adapters.

The order of rows is fixed here, as a function of lengths and seed, and handed to the library as a plain sequence; so a
resumed run continues with the row after the last one, whatever the library's samplers do.
"""

from __future__ import annotations

import dataclasses
import math
import os
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import training.generate.model_folder  # noqa: F401 - first: it keeps what is imported after it offline and quiet

# isort: split
import torch
from transformers import TrainerCallback

from training import numerics
from training.artifact import manifest, sha256_of
from training.files import Unsealed, read_sealed, write_sealed
from training.job import Gate, Job, Work
from training.posttrain.lora_settings import LoraRecipe
from training.posttrain.models import load_model
from training.posttrain.passed_through import check_passed_through
from training.records import RecipeError
from training.runner import StopRequested, stop_requests

# Rows are sorted by length within this many batches: little padding, and the order stays random at any scale above.
BATCHES_SORTED_TOGETHER = 32
BF16 = {"bf16": True, "fp32": False}  # by the recipe's precision: whether products are computed in bf16
COMPLETE_MARK = "complete.json"  # the checksums of a checkpoint's files, written last
EARLIER_MARK = "complete"  # by an edition that kept no checksums
MERGE_TOLERANCE = 1e-3  # largest difference of a logit, fp32; the two ways add in another order


def set_up_torch(job: Job, work: Work) -> None:
    """Threads as the job says; in audit one, and deterministic algorithms alone. The record gets the numerics class."""
    if job.run.audit:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses to be deterministic
    torch.use_deterministic_algorithms(job.run.audit)
    numerics.use_threads(job.run)
    numerics.note(job, work)


def row_order(lengths: Sequence[int], *, epochs: float, batch_size: int, seed: int) -> list[int]:
    """Which row is seen when: `round(epochs * rows)` indices, each row once an epoch, batches of similar length."""
    rng = random.Random(seed)
    total = round(epochs * len(lengths))
    stream: list[int] = []
    while len(stream) < total:
        epoch = list(range(len(lengths)))
        rng.shuffle(epoch)
        stream += epoch
    order: list[int] = []
    block = BATCHES_SORTED_TOGETHER * batch_size
    for start in range(0, total, block):
        chosen = sorted(stream[start : min(start + block, total)], key=lambda i: lengths[i])
        batches = [chosen[i : i + batch_size] for i in range(0, len(chosen), batch_size)]
        whole = [batch for batch in batches if len(batch) == batch_size]
        rng.shuffle(whole)
        # A last incomplete batch stays last, or every batch after it would be cut in the wrong place.
        order += [i for batch in [*whole, *(batch for batch in batches if len(batch) < batch_size)] for i in batch]
    return order


def rows_per_pass(job: Job, *, batch_size: int, row_tokens: int, where: str) -> tuple[int, int]:
    """Rows in one forward pass and passes in one optimizer step, from the profile's micro-batch and processes."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if batch_size % processes:
        raise RecipeError(f"{where}.batch_size={batch_size} is not a multiple of the {processes} processes of this job")
    share = batch_size // processes
    fitting = max(1, job.run.micro_batch_tokens // row_tokens) if job.run.micro_batch_tokens else share
    rows = max(n for n in range(1, share + 1) if share % n == 0 and n <= fitting)
    return rows, share // rows


def trainer_config(cls: type, job: Job, work: Work, *, where: str, recipe: Any, extra: Mapping[str, Any]) -> Any:
    """The library's config of class `cls` for a section of the recipe, its `trl` fields passed through.

    RecipeError names a `trl` field that the class does not have, or that another field of the recipe decides.
    """
    passed = check_passed_through(cls.__name__, getattr(recipe, "trl", {}), where=where)
    settings: dict[str, Any] = {
        "output_dir": str(work.scratch / "trainer"),
        "learning_rate": recipe.learning_rate,
        "num_train_epochs": 1,
        "lr_scheduler_type": "cosine",
        "warmup_steps": getattr(recipe, "warmup_fraction", 0.05),
        "bf16": BF16[recipe.precision],
        "use_cpu": not torch.cuda.is_available(),
        "seed": recipe.seed,
        "data_seed": recipe.seed,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "save_total_limit": 2,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "optim": "adamw_torch_fused",
    }
    try:
        return cls(**_renamed(cls, {**settings, **extra, **passed}))
    except (ValueError, TypeError) as error:
        raise RecipeError(f"{where}.trl: {error}") from None


def _renamed(cls: type, settings: dict[str, Any]) -> dict[str, Any]:
    # transformers 5.23 renamed it and warns; older ones know only the first name.
    if "activation_checkpointing" in {field.name for field in dataclasses.fields(cls)}:
        value = settings.pop("gradient_checkpointing")
        settings.setdefault("activation_checkpointing", value)
    return settings


def load_for_training(folder: Path, *, precision: str, reward: bool = False) -> Any:
    """The model with the attention that is fastest where it runs; the result is the same up to rounding."""
    model = load_model(folder, reward=reward)
    if BF16[precision] and not torch.cuda.is_available():
        # On CPUs flash attention in bf16 takes four times as long as in fp32 (measured, torch 2.13).
        model.set_attn_implementation("eager")
    return model


class Reporter(TrainerCallback):
    """Streams the library's numbers to the job's progress, saves by the clock, and stops when asked to."""

    def __init__(self, work: Work, *, checkpoint_seconds: float) -> None:
        self.losses: list[float] = []
        self.logged: list[dict[str, float]] = []
        self.asked: list[int] = []  # fills when a signal asks to stop
        self._work = work
        self._checkpoint_seconds = checkpoint_seconds
        self._saved = time.monotonic()

    def say(self, text: str) -> None:
        """A warning for whoever follows the job."""
        self._work.progress.message(text, level="WARNING")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Numbers of one step."""
        numbers = {
            name.replace("/", "_"): float(value)
            for name, value in (logs or {}).items()
            if isinstance(value, (int, float))
        }
        if "loss" not in numbers:
            return
        self.losses.append(numbers["loss"])
        self.logged.append(numbers)
        self._work.progress.log(step=state.global_step, **numbers)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save a checkpoint when one is due or the job was asked to stop; then stop after this step."""
        due = time.monotonic() - self._saved >= self._checkpoint_seconds > 0
        if (due or self.asked) and state.global_step < state.max_steps:
            control.should_save = True
            self._saved = time.monotonic()
        if self.asked:
            control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark the checkpoint as whole: one without the mark was being written when the job was killed."""
        if state.is_world_process_zero:
            seal(Path(args.output_dir, f"checkpoint-{state.global_step}"))
            if self.asked:
                self._work.progress.saved(f"saved at step {state.global_step} of {state.max_steps}")


def seal(checkpoint: Path) -> None:
    """Mark a checkpoint as whole, with the checksums of its files."""
    names = [str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()]
    write_sealed(checkpoint / COMPLETE_MARK, {"files": manifest(checkpoint, names)})


def last_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and a line for each damaged one that was set aside on the way to it.

    Those that a kill left incomplete are removed.
    """
    said: list[str] = []
    for path in sorted(folder.glob("checkpoint-*"), key=lambda path: -int(path.name.rpartition("-")[2])):
        if not (path / COMPLETE_MARK).exists() and not (path / EARLIER_MARK).exists():
            shutil.rmtree(path, ignore_errors=True)
            continue
        problem = _problem(path)
        if not problem:
            return path, said
        aside = path.with_name(f"damaged-{path.name}-{time.time_ns() // 1_000_000}")
        with suppress(FileNotFoundError):  # another process of the job was first
            path.rename(aside)
        said.append(f"{path.name}: {problem}; set aside as {aside.name}")
    return None, [*said, "no checkpoint is whole: training begins at step 0 again"] if said else []


def _problem(checkpoint: Path) -> str:
    """What is damaged about a checkpoint; empty when nothing is, or an earlier edition kept no checksums."""
    try:
        sealed = read_sealed(checkpoint / COMPLETE_MARK)
        return next(
            (
                f"{entry['path']} differs from its checksum"
                for entry in sealed["files"]
                if sha256_of(checkpoint / entry["path"]) != entry["sha256"]
            ),
            "",
        )
    except FileNotFoundError as error:
        if error.filename == str(checkpoint / COMPLETE_MARK) and (checkpoint / EARLIER_MARK).exists():
            return ""
        return f"{Path(error.filename).name} is missing"
    except Unsealed as error:
        return str(error)


def fit(trainer: Any, reporter: Reporter) -> None:
    """Train to the end, from the last whole checkpoint where there is one.

    SIGTERM and SIGUSR1 save at the next step's boundary and raise StopRequested.
    """
    trainer.add_callback(reporter)
    # Printed numbers would repeat what progress has.
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    checkpoint, damaged = last_checkpoint(Path(trainer.args.output_dir))
    for line in damaged:
        reporter.say(f"a checkpoint is damaged: {line}")

    with stop_requests() as reporter.asked:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if reporter.asked and trainer.state.global_step < trainer.state.max_steps:
        raise StopRequested(f"saved at step {trainer.state.global_step} of {trainer.state.max_steps}")


def is_main_process() -> bool:
    """Whether this process writes; the others of a distributed job only work."""
    return int(os.environ.get("RANK", "0")) == 0


# Adapters


def adapter_config(lora: LoraRecipe, *, task: str) -> Any:
    """peft's config for low-rank adapters on every linear layer but the head; None where every weight is trained."""
    if lora.rank is None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
        bias="none",
        task_type=task,
    )


def merged(trainer: Any, sample: Mapping[str, torch.Tensor]) -> tuple[Any, tuple[Gate, ...]]:
    """The trained model as plain weights, adapters merged in, with the gate that compares logits before and after.

    `sample` is a batch of `input_ids` and `attention_mask`. Without adapters the model is given back and no gate.
    """
    model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    model.eval()
    if not hasattr(model, "merge_and_unload"):
        return model, ()
    before = logits_of(model, sample)
    model = model.merge_and_unload()
    difference = float((logits_of(model, sample) - before).abs().max())
    gate = Gate(
        name="merged_equals_adapter",
        passed=difference <= MERGE_TOLERANCE,
        evidence={"max_logit_difference": difference, "tolerance": MERGE_TOLERANCE},
    )
    return model, (gate,)


def logits_of(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """fp32 logits [rows, tokens, vocabulary], zero at filled-up positions."""
    with torch.inference_mode(), torch.autocast(batch["input_ids"].device.type, enabled=False):
        logits = model(**batch, use_cache=False).logits.float()
    return logits * batch["attention_mask"].unsqueeze(-1)


def finite_gate(losses: Sequence[float]) -> Gate:
    """Whether there were steps and the loss of each was finite."""
    finite = bool(losses) and all(map(math.isfinite, losses))
    return Gate(name="loss_finite", passed=finite, evidence={"steps": len(losses)})


def window_means(values: Sequence[float]) -> tuple[float, float]:
    """The means of the first and of the last tenth of a series, at least one value each."""
    size = max(1, len(values) // 10)
    return math.fsum(values[:size]) / size, math.fsum(values[-size:]) / size
