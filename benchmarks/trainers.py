"""Trainers to compare: this project's and others ("peers"), each in a process of its own that trains steps on request.

A peer is a folder `PEERS/<name>` from which it can be imported; none is part of this repository:

    pip install --no-deps --target PEERS/litgpt litgpt lightning lightning-utilities pytorch-lightning torchmetrics \\
        'jsonargparse<4.42'
    pip install --no-deps --target PEERS/torchtitan torchtitan==0.2.2 torchdata tyro tomli \\
        docstring_parser typeguard shtab rich
        (it also imports triton, datasets and tensorboard, which an environment for GPUs mostly has)
    PEERS/nanochat: a checkout of karpathy/nanochat
    pip install --no-deps --target PEERS/torchao torchao

`hf` (Hugging Face's Trainer) is imported from the environment. Every trainer is called as its own training script calls
it, on tokens that are ready in memory. `stock` are the settings of its script if only shape, batch and precision are
given; `best` adds what its documentation recommends for speed. The settings are printed with every figure.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from benchmarks.rows import made_plan, made_tokens
from training.contract.records import RecipeError, read_record, write_record
from training.pretrain.models.shape import ModelConfig

if TYPE_CHECKING:
    from training.pretrain.parallel.world import World
    from training.pretrain.settings import PretrainRecipe

MANY_STEPS = 100_000  # more than anyone asks for


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """The task of a trainer: which trainer, shape, batch and settings.

    `optimizer`, `compiled` and `recompute` are for this project's trainer only; other trainers have `setting`.
    """

    trainer: Literal["own", "hf", "litgpt", "nanochat", "torchtitan"]
    shape: ModelConfig
    rows: int  # of a global batch
    length: int
    setting: Literal["stock", "best"] = "stock"
    precision: Literal["bf16", "fp32", "fp8"] = "bf16"
    passes: int = 1  # that a batch is taken in
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int = 0  # 0: as many as torch takes
    optimizer: Literal["adamw", "muon"] = "adamw"
    compiled: Literal["no", "whole", "blocks"] = "no"
    recompute: Literal["none", "selective", "full"] = "none"
    learning_rate: float = 3e-4
    steps: int = MANY_STEPS  # of the schedule

    @property
    def tokens(self) -> int:
        """The number of tokens in one step."""
        return self.rows * self.length


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """Facts about a trainer after its first step: settings, parameters, operations per token, seconds until then."""

    settings: str
    parameters: int
    flops_per_token: float  # the formula of the GPU table, for the shape that this trainer has
    first_step_seconds: float  # building, compiling and the step


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Measurements of a few steps in a row. `loss` is the last step's; None if the trainer does not give it."""

    steps: int
    wall: float
    processor: float  # seconds, all threads
    peak_gigabytes: float  # so far: of the device, or of the process's memory
    loss: float | None = None


class NotMeasured(Exception):
    """A figure could not be measured; the message says why."""


# The side that asks


class Running:
    """A trainer in a process of its own that has made its first step and waits for requests."""

    def __init__(self, task: Task, *, peers: Path | None = None, timeout: float = 600.0) -> None:
        self.task, self.timeout, self._left = task, timeout, b""
        environment = _environment(task, peers)
        # Unbuffered: the place in it is shared with the process that writes.
        self._errors: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.trainers", json.dumps(write_record(task))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            bufsize=0,
        )
        try:
            self.ready = read_record(Ready, self._line())
        except BaseException:
            self.close()
            raise

    def steps(self, count: int) -> Turn:
        """Let the trainer make `count` steps; return the measurements."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `_line` says what it died of
            self._process.stdin.write(f"{count}\n".encode())
        return read_record(Turn, self._line())

    def close(self) -> None:
        """End the trainer's process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _line(self) -> dict[str, Any]:
        """Return the process's next answer.

        Raise NotMeasured, with the last line of its standard error, if it ended or takes too long.
        """
        assert self._process.stdout is not None
        until = time.monotonic() + self.timeout
        while b"\n" not in self._left:
            there, _, _ = select.select([self._process.stdout], [], [], max(0.0, until - time.monotonic()))
            if not there:
                raise NotMeasured(f"no answer within {self.timeout:.0f} s")
            read = self._process.stdout.read(65536)
            if not read:
                raise NotMeasured(self._last_words())
            self._left += read
        line, _, self._left = self._left.partition(b"\n")
        return json.loads(line)

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)  # it closes its answers before it says what went wrong
        self._errors.seek(0)
        lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return (lines[-1].strip() if lines else "it ended without a word")[:300]


def _environment(task: Task, peers: Path | None) -> dict[str, str]:
    """Return the environment variables of a trainer's process.

    The other trainer's folder comes first on the module path, threads are set as for jobs, and model hubs are offline.
    """
    here = str(Path(__file__).parent.parent)
    path = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    if task.precision == "fp8" and peers is not None and (peers / "torchao").is_dir():
        path.insert(1, str(peers / "torchao"))
    if task.trainer not in ("own", "hf"):
        if peers is None:
            raise NotMeasured("no folder of peers was given (--peers)")
        if not (peers / task.trainer).is_dir():
            raise NotMeasured(f"{task.trainer} is not in the folder of peers")
        path.insert(1, str(peers / task.trainer))
    threads = {"OMP_NUM_THREADS": str(task.threads)} if task.threads else {}
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "NANOCHAT_DTYPE": {"fp32": "float32"}.get(task.precision, "bfloat16"),
        **threads,
    }


# The side that trains


class Turns:
    """The trainer's side of the requests: it is called after every step, and returns when another step is wanted."""

    def __init__(self, task: Task, *, questions: IO[str], answers: IO[str]) -> None:
        self.task, self._questions, self._answers = task, questions, answers
        self._began, self._left = time.perf_counter(), 0
        self.about: dict[str, Any] = {}
        self._asked: tuple[int, float, float] | None = None

    def __call__(self, loss: Any = None) -> None:
        """Report that a step was made; `loss` may be a tensor, which is read only at the end of a turn."""
        self._left -= 1
        if self._left > 0:
            return
        self._synchronize()
        if self._asked is None:
            self._say(Ready(**self.about, first_step_seconds=time.perf_counter() - self._began))
        else:
            steps, wall, processor = self._asked
            self._say(
                Turn(
                    steps=steps,
                    wall=time.perf_counter() - wall,
                    processor=time.process_time() - processor,
                    peak_gigabytes=self._peak_bytes() / 1e9,
                    loss=None if loss is None or not math.isfinite(float(loss)) else float(loss),
                )
            )
        line = self._questions.readline()
        if not line.strip():
            sys.exit(0)
        self._left = int(line)
        self._asked = (self._left, time.perf_counter(), time.process_time())

    def _say(self, record: Ready | Turn) -> None:
        self._answers.write(json.dumps(write_record(record)) + "\n")
        self._answers.flush()

    def _synchronize(self) -> None:
        import torch

        if self.task.device == "cuda":
            torch.cuda.synchronize()

    def _peak_bytes(self) -> int:
        import torch

        if self.task.device == "cuda":
            return torch.cuda.max_memory_allocated()
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def flops_per_token(*, matrix_parameters: int, attention_width: int, layers: int, length: int) -> float:
    """Return the model operations for a token, forward and backward.

    They are 6 for each weight of a matrix, and 12 · width · L/2 in each layer for attention: PaLM's count (arXiv
    2204.02311, appendix B) with the half of the row that a causal model sees. Recomputation, norms and lookups are not
    counted; the head is counted, the embedding is not.
    """
    return 6 * matrix_parameters + 12 * attention_width * layers * length / 2


def _about(task: Task, model: Any, settings: str, matrix_parameters: int) -> dict[str, Any]:
    shape = task.shape
    return {
        "settings": settings,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "flops_per_token": flops_per_token(
            matrix_parameters=matrix_parameters,
            attention_width=shape.attention_width,
            layers=shape.layers,
            length=task.length,
        ),
    }


def _batches(task: Task) -> Iterator[list[tuple[Any, Any]]]:
    """Yield, for each step, the tokens and the next tokens of each pass, as long tensors on the device."""
    import torch

    rows, kept = task.rows // task.passes, 16
    made = made_tokens(kept * task.passes * rows * (task.length + 1), vocabulary=task.shape.vocab_size)
    made = torch.from_numpy(made.astype("int64")).view(kept, task.passes, rows, task.length + 1).to(task.device)
    while True:
        for step in made:
            yield [(one[:, :-1].contiguous(), one[:, 1:].contiguous()) for one in step]


def own(task: Task, turns: Turns) -> None:
    """Run this project's trainer: the class that the stage uses, with a plan over generated tokens."""
    import torch

    from training.pretrain.capacity.usage import keep_freed_memory
    from training.pretrain.models.decoder import Decoder, initialise
    from training.pretrain.parallel.world import World
    from training.pretrain.settings import PretrainRecipe
    from training.pretrain.stages.pretrain import compile_model
    from training.pretrain.step import Trainer

    keep_freed_memory()
    recipe = PretrainRecipe(
        tokens=task.steps * task.tokens,
        sequence_length=task.length,
        global_batch_tokens=task.tokens,
        optimizer=task.optimizer,
        learning_rate=task.learning_rate,
        precision=task.precision,
    )
    plan, shards = made_plan(vocabulary=task.shape.vocab_size, steps=task.steps, rows=task.rows, length=task.length)
    model = Decoder(task.shape)
    initialise(model, zero_outputs=True, generator=torch.Generator().manual_seed(0))
    world = World(rank=0, size=1, device=torch.device(task.device, *([0] if task.device == "cuda" else [])))
    if task.precision == "fp8":
        _require_fp8(task, recipe, world)
    trainer = Trainer(model, recipe, plan, shards, world, micro_batch_tokens=task.tokens // task.passes)
    model.set_recompute(task.recompute)
    compile_model(trainer, {"no": False, "whole": True, "blocks": "blocks"}[task.compiled])
    compiled = {"no": "eager", "whole": "compiled", "blocks": "blocks compiled"}[task.compiled]
    said = [task.precision, task.optimizer, compiled, f"attention {trainer.attention}"]
    said.append(f"passes of {task.rows // task.passes} rows")
    if task.recompute != "none":
        said.append(f"recompute {task.recompute}")
    turns.about = _about(task, model, ", ".join(said), task.shape.matrix_parameters)
    while True:
        turns(trainer.run_step().loss)


def _require_fp8(task: Task, recipe: PretrainRecipe, world: World) -> None:
    """Exit with the stage's own message if fp8 is not possible.

    A dry run on a CPU, which emulates fp8, needs only torchao.
    """
    import torch

    from training.pretrain.capacity.fp8_checks import check_fp8, check_gpu
    from training.pretrain.fp8 import require_torchao

    try:
        if task.device == "cpu":
            return require_torchao()
        check_gpu(world.device)
        check_fp8(
            task.shape,
            phases=recipe.phases,
            degrees=world.degrees,
            processes=world.size,
            micro_batch_tokens=task.tokens // task.passes,
            compiled=task.compiled != "no",
            gpus_per_node=1,
            device=torch.cuda.get_device_name(world.device),
        )
    except RecipeError as why:
        sys.exit(str(why))


def hf(task: Task, turns: Turns) -> None:
    """Run Hugging Face's Trainer with its Llama model."""
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

    from training.pretrain.models.export import hugging_face_config

    class AfterSteps(TrainerCallback):
        def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
            turns()

    is_best = task.setting == "best"
    keys = hugging_face_config(task.shape, eos_id=0)
    model = LlamaForCausalLM(LlamaConfig(**{key: keys[key] for key in keys if key not in HF_NO_ARGUMENTS}))
    model.config.use_cache = not is_best
    rows = made_tokens(64 * task.tokens, vocabulary=task.shape.vocab_size).astype("int64").reshape(-1, task.length)
    data = [{"input_ids": row, "labels": row} for row in rows] * (1 + 2**20 // len(rows))
    said = {"bf16": task.precision == "bf16", "torch_compile": is_best}
    turns.about = _about(
        task, model, ", ".join(f"{name}={value}" for name, value in said.items()), task.shape.matrix_parameters
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=task.rows // task.passes,
            gradient_accumulation_steps=task.passes,
            learning_rate=task.learning_rate,
            max_steps=task.steps,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=task.device == "cpu",
            **said,
        )
        Trainer(model=model, args=arguments, train_dataset=data, callbacks=[AfterSteps()]).train()


HF_NO_ARGUMENTS = ("architectures", "model_type", "dtype")


def litgpt(task: Task, turns: Turns) -> None:
    """Run litgpt's `pretrain`: Fabric, a compiled model, its AdamW, and its loss in chunks."""
    import lightning
    import torch
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.pretrain import initialize_weights
    from litgpt.utils import chunked_cross_entropy, instantiate_torch_optimizer

    shape = task.shape
    mixed = "bf16-true" if task.setting == "best" else "bf16-mixed"
    precision = "32-true" if task.precision == "fp32" else mixed
    fabric = lightning.Fabric(devices=1, accelerator=task.device, precision=precision)
    config = Config(
        name="made",
        block_size=task.length,
        vocab_size=shape.vocab_size,
        padded_vocab_size=shape.vocab_size,
        n_layer=shape.layers,
        n_head=shape.heads,
        n_embd=shape.width,
        n_query_groups=shape.kv_heads,
        head_size=shape.head_width,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        intermediate_size=shape.mlp_width,
    )
    with fabric.init_module(empty_init=True):
        model = GPT(config)
    initialize_weights(fabric, model, n_layer=config.n_layer, n_embd=config.n_embd)
    if shape.tied_embeddings:
        model.transformer.wte.weight = model.lm_head.weight
    turns.about = _about(task, model, f"precision {precision}, compiled, AdamW", shape.matrix_parameters)
    model = fabric.setup(torch.compile(model))
    optimizer = instantiate_torch_optimizer("AdamW", model.parameters(), fused=task.device == "cuda")
    optimizer = fabric.setup_optimizers(optimizer)
    for passes in _batches(task):
        for number, (tokens, targets) in enumerate(passes):
            with fabric.no_backward_sync(model, enabled=number + 1 < len(passes)):
                loss = chunked_cross_entropy(model(tokens), targets)
                fabric.backward(loss / len(passes))
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        turns(loss.detach())


def nanochat(task: Task, turns: Turns) -> None:
    """Run nanochat's base trainer.

    It uses a compiled model, Muon and AdamW, and full attention, as nanochat advises without its FA3 kernel. Its model
    has another shape: an ungated MLP of four times the width, an untied head, tables of values in every other layer.
    """
    import torch
    from nanochat.flash_attention import HAS_FA3
    from nanochat.gpt import GPT, GPTConfig

    shape = task.shape
    with torch.device("meta"):
        plain = GPT(
            GPTConfig(
                sequence_len=task.length,
                vocab_size=shape.vocab_size,
                n_layer=shape.layers,
                n_head=shape.heads,
                n_kv_head=shape.kv_heads,
                n_embd=shape.width,
                window_pattern="L",
            )
        )
    plain.to_empty(device=task.device)
    plain.init_weights()
    attention = "FA3" if HAS_FA3 else "torch's attention"
    settings = f"{task.precision}, compiled, Muon and AdamW, {attention}"
    turns.about = _about(task, plain, settings, plain.num_matmul_params())
    model, optimizer = torch.compile(plain, dynamic=False), plain.setup_optimizer()
    for passes in _batches(task):
        for tokens, targets in passes:
            loss = model(tokens, targets)
            (loss / len(passes)).backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        turns(loss.detach())


def torchtitan(task: Task, turns: Turns) -> None:
    """Run torchtitan 0.2's trainer on one device, with its Llama 3, autocast, optimizer and loss.

    With `stock`, its defaults, every second layer is recomputed and nothing is compiled; with `best`, layers and loss
    are compiled and nothing is recomputed.
    """
    import torch
    from torchtitan.components.loss import build_cross_entropy_loss
    from torchtitan.config import JobConfig
    from torchtitan.distributed.activation_checkpoint import apply_ac
    from torchtitan.models.llama3.infra.parallelize import apply_compile
    from torchtitan.models.llama3.model.args import TransformerModelArgs
    from torchtitan.models.llama3.model.model import Transformer

    shape, settings = task.shape, JobConfig()
    if task.setting == "best":
        settings.compile.enable, settings.activation_checkpoint.mode = True, "none"
    arguments = TransformerModelArgs(
        dim=shape.width,
        n_layers=shape.layers,
        n_heads=shape.heads,
        n_kv_heads=shape.kv_heads,
        vocab_size=shape.vocab_size,
        multiple_of=16,
        ffn_dim_multiplier=(shape.mlp_width - 0.5) / int(8 * shape.width / 3),  # the width that it rounds up to ours
        norm_eps=shape.norm_epsilon,
        rope_theta=shape.rope_theta,
        max_seq_len=task.length,
    )
    with torch.device("meta"):
        model = Transformer(arguments)
    found = model.layers["0"].feed_forward.w1.out_features
    assert found == shape.mlp_width, f"torchtitan made an MLP of {found}, not {shape.mlp_width}"
    if settings.activation_checkpoint.mode != "none":
        apply_ac(model, settings.activation_checkpoint)
    if settings.compile.enable:
        apply_compile(model, settings.compile)
    model.to_empty(device=task.device)
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    said = (
        f"compile {settings.compile.enable}, recompute {settings.activation_checkpoint.mode}, {task.precision}, AdamW"
    )
    turns.about = _about(task, model, said, shape.matrix_parameters)
    loss_of = build_cross_entropy_loss(settings)
    adam = settings.optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=adam.lr,
        betas=(adam.beta1, adam.beta2),
        eps=adam.eps,
        weight_decay=adam.weight_decay,
        fused=adam.implementation == "fused",
    )
    for passes in _batches(task):
        optimizer.zero_grad()
        for tokens, targets in passes:
            with torch.autocast(task.device, dtype=torch.bfloat16, enabled=task.precision == "bf16"):
                loss = loss_of(model(tokens), targets) / task.tokens
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        turns(loss.detach() * len(passes))


TRAINERS: dict[str, Callable[[Task, Turns], None]] = {
    "own": own,
    "hf": hf,
    "litgpt": litgpt,
    "nanochat": nanochat,
    "torchtitan": torchtitan,
}


def main() -> None:
    """Do the task on the command line. Standard output carries only answers, whatever a library prints."""
    import torch

    task = read_record(Task, json.loads(sys.argv[1]))
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        if task.device == "cuda" and not torch.cuda.is_available():
            sys.exit("no GPU is here")
        if task.threads:
            torch.set_num_threads(task.threads)
        TRAINERS[task.trainer](task, Turns(task, questions=sys.stdin, answers=answers))


if __name__ == "__main__":
    main()
