"""Settings, order of rows, checkpoints and adapters, for the trainers of SFT, reward model and alignment.

The order of rows is computed here from lengths and seed and given to the library as a plain sequence. So a resumed run
continues with the next row, whatever the library's samplers do.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import training.generate.model_folder  # noqa: F401 - first: it keeps what is imported after it offline and quiet

# isort: split
import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoConfig, AutoModelForCausalLM, TrainerCallback

from training.contract.artifact import find, manifest, sha256_of, write_json
from training.contract.files.writing import Unsealed, read_sealed, write_sealed
from training.contract.identity import numerics
from training.contract.job import Gate, Job, StopRequested, Work
from training.contract.process.device_kind import kind_of
from training.contract.process.precision import dtype_here, replaced_here
from training.contract.process.stop_requests import stop_requests
from training.contract.progress import WRITING
from training.contract.records import RecipeError
from training.contract.stored_state import StateSender
from training.generate.passes.pass_rows import passes, rows_in_pass
from training.generate.spread import is_first, is_spread
from training.posttrain.adapter_settings import check_adapters, check_matched, keeps_weights
from training.posttrain.passed_through import check_passed_through
from training.posttrain.trainer.compact import said_of
from training.posttrain.trainer.kept import KeptModels
from training.posttrain.trainer.models import load_model
from training.posttrain.trainer.spread_state import merge_adapters
from training.pretrain.optim.schedule import scheduled_factor
from training.pretrain.optim.settings import Scheduled
from training.pretrain.tensor_files import save_tensors

# Rows are sorted by length within this many batches. This saves padding and keeps the order random beyond them.
BATCHES_SORTED_TOGETHER = 32
COMPLETE_MARK = "complete.json"  # checksums of a checkpoint's files, written last
ADAPTER_FOLDER = "adapter"
MERGE_POSITIONS = 64  # of each row, at which logits are compared before and after a merge
MERGE_TOLERANCE = 1e-3  # largest allowed difference of a logit (fp32); merging changes the order of the sums


def set_up_torch(job: Job, work: Work) -> None:
    """Set torch's threads and, in audit mode, its deterministic algorithms.

    The numerics class is written down for the artifact's record.
    """
    if job.run.audit:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses to be deterministic
    torch.use_deterministic_algorithms(job.run.audit)
    numerics.use_threads(job.run)
    numerics.note(job, work)


def row_order(lengths: Sequence[int], *, epochs: float, batch_size: int, seed: int) -> list[int]:
    """Return the row indices in training order: `round(epochs * rows)` of them, each row once in each epoch.

    The rows of a batch have similar lengths.
    """
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
        # An incomplete batch must come last, or the library would cut every batch after it in the wrong place.
        order += [i for batch in [*whole, *(batch for batch in batches if len(batch) < batch_size)] for i in batch]
    return order


def rows_per_pass(job: Job, *, batch_size: int, row_tokens: int, where: str) -> tuple[int, int]:
    """Return (rows in one forward pass, passes in one optimizer step) for this process.

    Both follow from the profile's micro-batch and number of processes. Raise RecipeError if `batch_size` is not a
    multiple of the number of processes.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if batch_size % processes:
        raise RecipeError(f"{where}.batch_size={batch_size} is not a multiple of the {processes} processes of this job")
    share = batch_size // processes
    rows = rows_in_pass(share, micro_batch_tokens=job.run.micro_batch_tokens, row_tokens=row_tokens)
    return rows, share // rows


def trainer_config(cls: type, job: Job, work: Work, *, where: str, recipe: Any, extra: Mapping[str, Any]) -> Any:
    """Return the config of TRL's class `cls` for a section of the recipe, with the section's `trl` fields added.

    Raise RecipeError for a `trl` field that the class does not have or that another field of the recipe decides.
    """
    check_passed_through(recipe, cls.__name__, where=where)
    if is_first() and (fallback := replaced_here(recipe.precision, _device())):
        work.progress.message(fallback, level="WARNING")
    settings: dict[str, Any] = {
        "output_dir": str(work.scratch / "trainer"),
        "learning_rate": recipe.learning_rate,
        "num_train_epochs": 1,
        "bf16": dtype_here(recipe.precision, _device()) is torch.bfloat16,
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
        return cls(**_renamed(cls, {**settings, **extra, **recipe.trl}))
    except (ValueError, TypeError) as error:
        raise RecipeError(f"{where}.trl: {error}") from None


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _renamed(cls: type, settings: dict[str, Any]) -> dict[str, Any]:
    # transformers 5.23 renamed this field and warns about the old name; older versions know only the old name.
    if "activation_checkpointing" in {field.name for field in dataclasses.fields(cls)}:
        value = settings.pop("gradient_checkpointing")
        settings.setdefault("activation_checkpointing", value)
    return settings


def load_for_training(folder: Path, *, precision: str, reward: bool = False, shard: int = 1) -> Any:
    """Return the model in a folder, with the attention implementation that is fastest on this device.

    Implementations give equal results up to rounding. With `shard`, each weight is divided among so many processes.
    """
    model = load_model(folder, reward=reward, new_head=reward, shard=shard)
    if kind_of(_device()) == "cpu" and dtype_here(precision, _device()) is torch.bfloat16:
        # On CPUs flash attention in bf16 takes four times as long as in fp32 (measured, torch 2.13).
        model.set_attn_implementation("eager")
    return model


class Reporter(TrainerCallback):
    """A trainer callback that reports metrics to the job, saves checkpoints on time, and stops on request."""

    def __init__(self, work: Work, *, checkpoint_seconds: float) -> None:
        self.losses: list[float] = []
        self.logged: list[dict[str, float]] = []
        self.asked: list[int] = []  # signals received by this process that ask the job to stop
        self.stopped = False  # whether all processes have agreed to stop
        self.sender = StateSender(work.path)
        self.kept: KeptModels | None = None
        self.trainer: Any = None
        self._work = work
        self._checkpoint_seconds = checkpoint_seconds
        self._saved = time.monotonic()

    def write(self) -> None:
        """Report that the model is trained, and that it is now checked and written."""
        self._work.progress.phase(WRITING)

    def say(self, text: str) -> None:
        """Report a warning in the job's log."""
        self._work.progress.message(text, level="WARNING")

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        """Take over the metrics of the steps before a checkpoint, and report whether passes compute padding.

        Raise RecipeError if a step is to be kept that the training does not reach.
        """
        if self.kept is not None:
            self.kept.begin(state.max_steps)
        for why in said_of(model).values():
            self._work.progress.message(f"passes are TRL's own, which compute padding: {why}")
        for logs in state.log_history:
            self._keep(logs)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Report the metrics of one training step, and keep its model; the trainer's logs without a loss are ignored.

        A checkpoint of the step is saved after this.
        """
        if numbers := self._keep(logs or {}):
            self._work.progress.log(step=state.global_step, steps=state.max_steps, **numbers)
            if self.kept is not None:
                self._keep_model(self.kept, state.global_step, args.device)
                control.should_training_stop |= state.global_step == self.end(state)

    def _keep_model(self, kept: KeptModels, step: int, device: torch.device) -> None:
        """Keep the model if it is asked for after this step, and no attempt or other run has kept it."""
        for job in kept.jobs_after(step):
            if not in_any_process(find(Path(job.output)) is not None, device=device)[0]:
                kept.keep(job, self.trainer)

    def end(self, state: Any) -> int:
        """Return the last step of the job, after which no checkpoint is saved."""
        return state.max_steps if self.kept is None or self.kept.until is None else self.kept.until

    def _keep(self, logs: Mapping[str, Any]) -> dict[str, float]:
        """Keep the metrics of a training step and return them; return none if the logs are of something else."""
        numbers = {
            name.replace("/", "_"): float(value)
            for name, value in logs.items()
            if isinstance(value, (int, float)) and name != "step"
        }
        if "loss" not in numbers:
            return {}
        self.losses.append(numbers["loss"])
        self.logged.append(numbers)
        return numbers

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save a checkpoint if one is due or the job was asked to stop; in the latter case end training here.

        The clock is that of the first process.
        """
        due = state.is_world_process_zero and time.monotonic() - self._saved >= self._checkpoint_seconds > 0
        due, self.stopped = in_any_process(due, bool(self.asked), device=args.device)
        if (due or self.stopped) and state.global_step < self.end(state):
            control.should_save = True
            self._saved = time.monotonic()
        if self.stopped:
            control.should_training_stop = True
        if self.kept is not None and self.kept.is_kept(state.global_step):
            control.should_log = True  # its loss is known then, whatever `logging_steps` says

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark the checkpoint as complete. A checkpoint without the mark was not finished when the job was killed."""
        in_any_process(device=args.device)  # each process writes a file of its own; the mark is of all of them
        if state.is_world_process_zero:
            seal(Path(args.output_dir, f"checkpoint-{state.global_step}"))
            self.sender.send(state.global_step)
            if self.stopped:
                self._work.progress.saved(f"saved at step {state.global_step} of {state.max_steps}")


def in_any_process(*flags: bool, device: torch.device) -> tuple[bool, ...]:
    """Wait for all processes of the job, and return for each flag whether it is set in any of them.

    If each process saved or stopped by its own flag, the processes would do so at different steps and wait for each
    other for ever.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return flags
    numbers = torch.tensor([True, *flags], dtype=torch.int32, device=device)
    dist.all_reduce(numbers, dist.ReduceOp.MAX)
    return tuple(map(bool, numbers.tolist()[1:]))


def seal(checkpoint: Path) -> None:
    """Mark a checkpoint as complete by writing the checksums of its files."""
    names = [str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()]
    write_sealed(checkpoint / COMPLETE_MARK, {"files": manifest(checkpoint, names)})


def last_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """Return the newest undamaged checkpoint (or None), and one line for each newer checkpoint that is damaged.

    Damaged checkpoints are renamed. Incomplete ones, which a kill left behind, are removed.
    """
    said: list[str] = []
    for path in sorted(folder.glob("checkpoint-*"), key=lambda path: -int(path.name.rpartition("-")[2])):
        if not (path / COMPLETE_MARK).exists():
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
    """Return what is damaged in a checkpoint; empty if nothing is."""
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
        return f"{Path(error.filename).name} is missing"
    except Unsealed as error:
        return str(error)


def fit(trainer: Any, reporter: Reporter, recipe: Scheduled) -> None:
    """Train to the end, with the rates of the recipe's schedule, from the last undamaged checkpoint if there is one.

    On SIGTERM or SIGUSR1, save after the current step and raise StopRequested.
    """
    trainer.create_scheduler = partial(_create_scheduler, trainer, recipe)
    reporter.trainer = trainer
    trainer.add_callback(reporter)
    # The library's printed numbers would repeat those in the job's progress.
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    if trainer.accelerator.ddp_handler is not None:  # for a whole model in several processes
        # Else DDP copies gradients into its messages and keeps them besides: 4 bytes a weight.
        trainer.accelerator.ddp_handler.gradient_as_bucket_view = True
    checkpoint, damaged = last_checkpoint(Path(trainer.args.output_dir))
    for line in damaged:
        reporter.say(f"a checkpoint is damaged: {line}")

    with reporter.sender, stop_requests() as reporter.asked:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if reporter.stopped and trainer.state.global_step < reporter.end(trainer.state):
        raise StopRequested(f"saved at step {trainer.state.global_step} of {trainer.state.max_steps}")
    reporter.write()


def _create_scheduler(
    trainer: Any, recipe: Scheduled, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
) -> LambdaLR:
    """Do the work of a trainer's `create_scheduler` with the schedule of pretraining.

    Raise RecipeError if the rate of every step is 0.
    """
    rates = [scheduled_factor(step, steps=num_training_steps, recipe=recipe) for step in range(num_training_steps)]
    if not any(rates):
        raise RecipeError(
            f"final_learning_rate_fraction={recipe.final_learning_rate_fraction:g}: this training has"
            f" {num_training_steps} step, whose rate would be 0; set a fraction above 0"
        )
    if trainer.lr_scheduler is None:
        # torch asks for one step more than there are.
        trainer.lr_scheduler = LambdaLR(optimizer or trainer.optimizer, lambda step: [*rates, 0.0][step])
        trainer._created_lr_scheduler = True  # a continued training takes the step from its checkpoint
    return trainer.lr_scheduler


# Adapters


def adapter_config(peft: Mapping[str, Any], model: Path, *, task: str, where: str) -> Any:
    """Return peft's LoraConfig with the recipe's fields, or None if there are none and all weights are trained.

    Where the recipe does not say otherwise, every linear layer except the head has adapters. Raise RecipeError if the
    adapters could not be merged into the model in the folder `model`.
    """
    if not peft:
        return None
    from peft import LoraConfig

    tied = bool(json.loads((model / "config.json").read_text("utf-8")).get("tie_word_embeddings"))
    check_adapters(peft, where=f"{where}.peft", tied=tied, has_head=task == "CAUSAL_LM")
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model, local_files_only=True))
    check_matched(peft, {*dict(empty.named_modules()), "score"}, where=f"{where}.peft")
    fields: dict[str, Any] = {"target_modules": "all-linear", "task_type": task, **peft}
    try:
        return LoraConfig(**fields)
    except (ValueError, TypeError, ImportError) as error:
        raise RecipeError(f"{where}.peft: {error}") from None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Merged:
    """A trained model without adapters, the gate on their merging, and the files of the adapters."""

    model: Any
    gates: tuple[Gate, ...] = ()
    files: tuple[str, ...] = ()


def merged(trainer: Any, sample: Mapping[str, torch.Tensor], folder: Path) -> Merged:
    """Return the trained model with its adapters merged, and a gate that compares logits before and after the merge.

    `sample` is a batch of `input_ids` and `attention_mask`, of which only the rows of one pass are compared. The
    adapters alone are written to `adapter/` in `folder`, as peft reads them. A model without adapters is returned as it
    is.
    """
    model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)
    if not hasattr(model, "merge_and_unload"):
        return Merged(model=model.eval())
    files = _save_adapter(model, folder)  # before anything that may fail
    model.eval()
    rows, width = sample["input_ids"].shape
    some = next(passes([width] * rows))
    sample = {name: values[some] for name, values in sample.items()}
    before = logits_of(model, sample)
    model = merge_adapters(model) if is_spread(model) else model.merge_and_unload()
    difference = float((logits_of(model, sample) - before).abs().max())
    gate = Gate(
        name="merged_equals_adapter",
        passed=difference <= MERGE_TOLERANCE,
        evidence={"max_logit_difference": difference, "tolerance": MERGE_TOLERANCE},
    )
    return Merged(model=model, gates=(gate,), files=files)


def _save_adapter(model: Any, folder: Path) -> tuple[str, ...]:
    """Write the adapters of a peft model under `folder`, and return the paths of the files relative to it.

    Only the first process of a job does so. Nothing is written for an initialization that changes the weights of the
    model itself: such adapters fit no model that is kept.
    """
    from peft import get_peft_model_state_dict

    config = model.peft_config["default"].to_dict() | {"base_model_name_or_path": None, "inference_mode": True}
    if not is_first() or not keeps_weights(config):
        return ()
    plain = {name: sorted(value) if isinstance(value, set) else value for name, value in sorted(config.items())}
    write_json(folder / ADAPTER_FOLDER / "adapter_config.json", plain)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    # Of a spread model peft would join all weights, and then leave out those of the model itself.
    own = {name: weight for name, weight in model.state_dict().items() if name in trained} if is_spread(model) else None
    adapters = get_peft_model_state_dict(model, state_dict=own, save_embedding_layers=False)
    weights = {name: tensor.contiguous() for name, tensor in sorted(adapters.items())}
    save_tensors(weights, folder / ADAPTER_FOLDER / "adapter_model.safetensors")
    return tuple(f"{ADAPTER_FOLDER}/{name}" for name in ("adapter_config.json", "adapter_model.safetensors"))


def logits_of(model: Any, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the model's logits at some positions of each row, [rows, positions, vocabulary], in fp32.

    The positions are those before the shortest row's end or, if there are more, MERGE_POSITIONS of them. A reward model
    has one score for each row, [rows, 1].
    """
    shortest = int(batch["attention_mask"].sum(-1).min())
    number = min(shortest, MERGE_POSITIONS)
    positions = torch.linspace(0, shortest - 1, number, device=batch["input_ids"].device).long()
    kept = {"logits_to_keep": positions} if model.can_generate() else {}
    with torch.no_grad(), torch.autocast(batch["input_ids"].device.type, enabled=False):
        return model(**batch, use_cache=False, **kept).logits.float()


def finite_gate(losses: Sequence[float]) -> Gate:
    """Return the gate `loss_finite`: there was at least one step, and the loss of each step was finite."""
    finite = bool(losses) and all(map(math.isfinite, losses))
    return Gate(name="loss_finite", passed=finite, evidence={"steps": len(losses)})


def window_means(values: Sequence[float]) -> tuple[float, float]:
    """Return the means of the first and the last tenth of a series, each of at least one value."""
    size = max(1, len(values) // 10)
    return math.fsum(values[:size]) / size, math.fsum(values[-size:]) / size
