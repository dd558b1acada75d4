"""Measure what one process of a large mesh holds while a model is fine-tuned, aligned and scored, without content.

`python -m benchmarks.fake_tuning` opens the shape of `llama-3-70b`, from files that have a size and no content, as the
first of 128 processes that share it, and goes through the stages' own code: loss, steps, a checkpoint and the export of
SFT, of all weights and of adapters; the reward model and its scores; the reference, the start and steps of DPO;
answers, rewards and steps of GRPO, with the initial policy and the reward model beside it; log-likelihoods and answers.
Memory is counted as by benchmarks.fake_mesh, as on GPUs. Beside each peak is the prediction of
training/posttrain/forecast.py, by which `pedigree plan` shows and checks the stages; the exit code is 1 if they differ
by more than a tenth.

`--processes 1` goes through the steps of a model that one process has whole. Answers of GRPO have SAMPLED_TOKENS, and
their prompts fill the rows, because each token is a pass of its own. The control must fail: `--control whole` gathers
all weights at once, as a trainer that saves by itself does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses import FakeTensor
from torch.distributed.tensor import DTensor

import training.generate.model_folder as model_folder
from benchmarks.fake_mesh import DEVICE, NOWHERE, STATE_BYTES, Memory, Peaks, differs, fake_world, without_content
from training.generate.pass_rows import MERGED_ROWS, PASS_TOKENS
from training.posttrain.forecast import (
    PlannedSampling,
    PlannedTuning,
    inputs_of_adapters,
    learns_in_mlp,
    memory_before_and_after,
    memory_beside_steps,
    memory_of_drawing,
    memory_of_judging,
    memory_of_sampling,
    memory_of_steps,
    memory_without_steps,
    numbers_of_adapters,
    numbers_of_magnitudes,
)
from training.pretrain.forecast import Layout
from training.pretrain.models import export
from training.pretrain.models.account import FP32, preset_shape
from training.pretrain.models.shape import ModelConfig
from training.pretrain.tensor_files import header
from training.process.precision import DTYPES

PASSES = 2  # of a process in a step, each with one conversation or one pair
RANK = 16  # of the adapters
ADAPTERS, SOME_ADAPTERS, FP32_SFT, SGD_SFT = "adapters", "adapters with dropout", "SFT in fp32", "SFT by SGD"
TOGETHER_SFT, DORA = "SFT in fp32 by AdamW that is not fused", "adapters with magnitudes"
SAMPLED_TOKENS = 4  # of an answer; its prompt fills the rest of the row
BATCH = 8  # rows that are scored at once
GATHERED = ", weights gathered"
GATHERED_GRPO = f"GRPO{GATHERED}"
PARTS = (
    *("tune", "adapt", "reward", "align", "answer", "sample", "sample_gathered", "score", "judge"),
    *("tune_in_fp32", "adapt_some", "tune_by_sgd", "tune_together"),
)
MORE = ("sample_in_fp32", "adapt_magnitudes")  # parts that are gone through only if they are named
SOME = ("q_proj", "v_proj")
STEPS = 2  # the second one has the optimizer's state
FILE_BYTES = 5 * 10**9
WORLD_OF = {"RANK": 0, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}


class Tuned:
    """A model of a shape in files without content, and the phases of its tuning as the first of `world` processes."""

    def __init__(
        self, shape: ModelConfig, world: int, length: int, folder: Path, control: str | None, parts: Sequence[str]
    ) -> None:
        self.parts = parts
        self.shape, self.world, self.length, self.control = shape, world, length, control
        self.folder, self.model_files = folder, folder / "base" / "model"
        self.counted = Memory()
        write_empty_model(shape, self.model_files)

    def job(self, stage: str, **settings: Any) -> Any:
        """Return the job of a stage, in which each process makes PASSES passes of a row in a step."""
        from tests.training.posttrain import tiny

        shared = {
            "batch_size": PASSES * self.world,
            "max_length": self.length,
            "precision": "bf16",
            "trl": {"activation_checkpointing": True},
        }
        # A pair has two sequences.
        is_paired = stage == "reward" or settings.get("method") == "dpo"
        # The answers from which the divergence is estimated are read in one pass.
        tokens = self.length * (PASSES if settings.get("method") == "kto" else 2 if is_paired else 1)
        places = {"processes": min(8, self.world), "nodes": max(1, self.world // 8)}
        layout = {**places, "shard": self.world, "micro_batch_tokens": tokens}
        return tiny.job(stage, self.folder / stage, {stage: {**shared, **settings}}, (), **layout)

    def measured(self) -> Iterator[Peaks]:
        """Go through the parts on the fake mesh; yield the most bytes that the process held in each phase of a part."""
        for name in self.parts:
            self.counted = Memory()  # what is left of the part before does not count
            with in_fake_world(self.world, self.counted):
                getattr(self, name)()
            yield self.counted.peaks

    def tune(self, name: str = "SFT", **settings: Any) -> Any:
        """Measure the loss before, steps, a checkpoint and the export of SFT; return its trainer."""
        from training.posttrain.chat import Encoded
        from training.posttrain.sft import sft
        from training.posttrain.sft.settings import SftRecipe

        chat = self.chat
        job = self.job("sft", epochs=1, data=[{"uri": "nowhere"}], **settings)
        tokens = list(range(self.length))
        row = Encoded(input_ids=[token % 300 for token in tokens], trained=[token % 2 == 1 for token in tokens])
        rows = [row] * (STEPS * PASSES * self.world)
        self.counted.begin(f"open for {name}")
        with patch.object(sft, "_base", lambda _: self.model_files):
            recipe = job.settings_as(SftRecipe, "sft")
            trainer, _ = sft._trainer(job, work_in(self.folder), recipe, chat, self.tokenizer, rows)
        self.counted.begin(f"loss of a sample of {name}")
        sample = [row] * max(1, PASS_TOKENS // self.length)  # a pass or more
        sft.mean_loss(trainer.model, sample, chat)
        model = self.steps_of(trainer, name)
        if self.world > 1 or "peft" not in settings:  # else peft would merge the adapters
            self.counted.begin(f"loss after the steps of {name}")
            sft.mean_loss(model, sample, chat)

    def adapt(self) -> None:
        """Measure the steps of SFT by adapters, a checkpoint, merging and export."""
        self.tune(ADAPTERS, peft={"r": RANK})

    def tune_in_fp32(self) -> None:
        """Measure the steps of SFT with products in fp32."""
        self.tune(FP32_SFT, precision="fp32")

    def adapt_some(self) -> None:
        """Measure the steps of SFT by adapters on some layers, with dropout."""
        self.tune(SOME_ADAPTERS, peft={"r": RANK, "target_modules": list(SOME), "lora_dropout": 0.1})

    def adapt_magnitudes(self) -> None:
        """Measure the memory of SFT's steps with DoRA adapters, which have a magnitude for each output."""
        self.tune(DORA, peft={"r": RANK, "use_dora": True})

    def tune_by_sgd(self) -> None:
        """Measure the memory of SFT's steps with SGD, which keeps no state of the weights."""
        self.tune(SGD_SFT, trl={"activation_checkpointing": True, "optim": "sgd"})

    def tune_together(self) -> None:
        """Measure the memory of SFT's steps in fp32 with torch's AdamW as it is on GPUs if it is not fused."""
        from torch.optim import optimizer

        devices = [*optimizer._get_foreach_kernels_supported_devices(), "cpu"]
        types = [*optimizer._foreach_supported_types, FakeTensor]  # shares are DTensors, here as on GPUs
        with (
            patch.object(optimizer, "_get_foreach_kernels_supported_devices", lambda: devices),
            patch.object(optimizer, "_foreach_supported_types", types),
        ):
            self.tune(TOGETHER_SFT, precision="fp32", trl={"activation_checkpointing": True, "optim": "adamw_torch"})

    def reward(self) -> None:
        """Measure steps of the reward model, the scores of pairs and the export."""
        from training.posttrain.reward import reward
        from training.posttrain.reward.settings import RewardRecipe

        job = self.job("reward", epochs=1)
        recipe = job.settings_as(RewardRecipe, "reward")
        self.counted.begin("open for reward")
        trainer, _ = reward._trainer(
            job, work_in(self.folder), recipe, self.tokenizer, SimpleNamespace(train=self.pairs), self.model_files
        )
        self.steps_of(trainer, "reward")
        self.counted.begin("scores of pairs")
        reward.pair_scores(trainer.model, self.pairs[:1] * max(1, PASS_TOKENS // self.length), self.chat)

    def sample_in_fp32(self) -> None:
        """Measure the memory of GRPO with products in fp32."""
        self.sample("GRPO in fp32", precision="fp32")

    def sample_gathered(self) -> None:
        """Measure the memory of GRPO if all weights stay gathered while answers are drawn."""
        self.sample(GATHERED_GRPO, gathers=True)

    def sample(self, name: str = "GRPO", *, gathers: bool = False, **settings: Any) -> None:
        """Measure steps of GRPO with the initial policy and the reward model beside the policy."""
        from trl.trainer import grpo_trainer
        from trl.trainer.grpo_config import GRPOConfig
        from trl.trainer.grpo_trainer import GRPOTrainer

        from training.generate import sampler
        from training.posttrain.align import sampled
        from training.posttrain.align.rewards import LearnedReward
        from training.posttrain.fit import load_for_training
        from training.posttrain.reward.reward import Judge

        asked = [{"role": "user", "content": "?" * (self.length - SAMPLED_TOKENS - 16)}]
        prompts = [{"prompt": asked, "answer": "", "rivals": []}] * (STEPS * self.world)
        given = self.given(method="grpo", max_steps=STEPS, num_generations=2, max_new_tokens=SAMPLED_TOKENS, **settings)
        self.counted.begin(f"open for {name}")
        with ExitStack() as stack:
            stack.enter_context(patch.object(type(given), "sft_model", self.model_files))
            stack.enter_context(patch.object(sampler, "_until_end", lambda row, _: list(map(int, row))))
            if self.world == 1:  # TRL opens it by another class, whose weights would not be counted
                opened = lambda folder, **_: load_for_training(Path(folder), precision="bf16")  # noqa: E731
                stack.enter_context(patch.object(grpo_trainer, "create_model_from_path", opened))
            learned = LearnedReward.__new__(LearnedReward)
            learned._judge, learned.mean, learned.deviation = Judge(self.model_files, shard=self.world), 0.0, 1.0
            trainer = sampled._trainer(given, GRPOConfig, GRPOTrainer, prompts, {learned.rewards: 1.0}, gathers=gathers)

            draw = trainer._drawn

            def drawn(prompts: list[list[int]]) -> list[list[int]]:
                with self.counted.inside(f"answers of {name}"):
                    return draw(prompts)

            def rewarded(_: Any, asked: list[Any], __: Any, answers: list[list[int]]) -> torch.Tensor:
                with self.counted.inside(f"rewards of {name}"):
                    learned.rewards(asked, answers)
                return torch.zeros(len(asked) * self.world, 1)  # TRL looks for NaN, but these have no content

            stack.enter_context(patch.object(trainer, "_drawn", drawn))
            stack.enter_context(patch.object(trainer, "_calculate_rewards", rewarded))
            stack.enter_context(patch.object(grpo_trainer, "gather_object", lambda texts: texts))
            self.steps_of(trainer, name)
            # A step holds the most in one of these.
            phases = [f"{one} of {name}" for one in ("steps", "answers", "rewards")]
            self.counted.peaks[phases[0], DEVICE] = max(self.counted.peaks[one, DEVICE] for one in phases)

    @property
    def chat(self) -> Any:
        """The chat of the model."""
        from training.posttrain.chat import Chat, template

        return Chat.of(self.model_files, template("pedigree", ""))

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the model."""
        from training.posttrain.models import load_tokenizer

        return load_tokenizer(self.model_files, self.chat)

    @property
    def compared(self) -> int:
        """The number of pairs or answers: for the steps, and for a whole pass before them."""
        return max(STEPS * PASSES * self.world, PASS_TOKENS // (2 * self.length))

    @property
    def pairs(self) -> list[Any]:
        """The preference pairs of all steps."""
        from training.posttrain.preferences.pairs import EncodedPair

        half = [token % 300 for token in range(self.length // 2)]
        return [EncodedPair(prompt_ids=half, chosen_ids=half, rejected_ids=half)] * self.compared

    def given(self, **settings: Any) -> Any:
        """Return the input of a preference method."""
        from training.posttrain.align.alignment import Alignment
        from training.posttrain.align.settings import AlignRecipe

        job = self.job("align", epochs=1, **settings)
        return Alignment(
            job=job,
            work=work_in(self.folder),
            recipe=job.settings_as(AlignRecipe, "align"),
            chat=self.chat,
            tokenizer=self.tokenizer,
            pairs=SimpleNamespace(train=self.pairs),
        )

    def align(self) -> None:
        """Measure the reference, the start and steps of DPO."""
        from training.posttrain.align import paired
        from training.posttrain.align.alignment import Alignment

        given = self.given(method="dpo")
        self.counted.begin("open for DPO")
        with patch.object(Alignment, "sft_model", self.model_files):
            trainer = paired.pairs_trainer(given, {})
        self.start_of(trainer, "DPO")
        self.steps_of(trainer, "DPO")

    def answer(self) -> None:
        """Measure the reference, the start and steps of KTO."""
        from training.posttrain.align import unpaired
        from training.posttrain.align.alignment import Alignment
        from training.posttrain.preferences.answers import EncodedAnswer

        half = [token % 300 for token in range(self.length // 2)]
        answers = [EncodedAnswer(prompt_ids=half, answer_ids=half, is_desired=True)] * self.compared
        given = self.given(method="kto")
        self.counted.begin("open for KTO")
        with patch.object(Alignment, "sft_model", self.model_files):
            trainer = unpaired._trainer(given, answers, unpaired.ESTIMATES_DIVERGENCE)
        # Which answers are desired has no content either: all rows are taken for both.
        with patch.object(torch, "nonzero", lambda rows, **_: torch.arange(len(rows), device=rows.device)):
            self.start_of(trainer, "KTO")
            self.steps_of(trainer, "KTO")

    def start_of(self, trainer: Any, name: str) -> None:
        """Measure a loss before the first step, on the rows of a pass: the stage's other passes are like it."""
        from training.posttrain.align import start

        self.counted.begin(f"start of {name}")
        with patch.object(start, "START_ROWS", max(1, PASS_TOKENS // (2 * self.length))):
            start.start_of(trainer)

    def steps_of(self, trainer: Any, name: str) -> Any:
        """Make the steps, save and export; return the model, of whose process the optimizer is still part."""
        from training.posttrain import fit, spread_state

        self.counted.begin(f"steps of {name}")
        trainer.train()
        if self.world == 1:  # a whole model is saved, merged and exported by transformers and peft
            return trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False).eval()  # without autocast
        if self.control == "whole":
            self.counted.gathered = [
                one.full_tensor() for one in trainer.model.parameters() if isinstance(one, DTensor)
            ]
        self.counted.begin(f"save {name}")
        with patch.object(spread_state, "save_tensors", lambda *_: None), patch.object(trainer, "lr_scheduler"):
            spread_state._save_parts(trainer.model, trainer.optimizer.optimizer, self.folder / "parts")
        self.counted.begin(f"merge {name}")
        tokens = torch.zeros((MERGED_ROWS, self.length), dtype=torch.long)
        with patch.object(fit, "_save_adapter", lambda *_: ()):
            made = fit.merged(trainer, {"input_ids": tokens, "attention_mask": tokens + 1}, self.folder)
        self.counted.begin(f"export {name}")
        with patch.object(spread_state, "write_tensor", lambda *_: None):
            spread_state.write_weights(made.model, self.folder / name)
        return made.model

    def score(self) -> None:
        """Measure log-likelihoods of rows and answers to short questions."""
        from evaluation.local_model import LocalModel

        self.counted.begin("open for scores")
        model = LocalModel(self.model_files, batch_size=1, shard=self.world)
        self.counted.begin("scores")
        tokens = [token % 300 for token in range(self.length)]
        model._score([tokens], [16])
        self.counted.begin("answers")
        model.sampler.answer_tokens([tokens[: self.length - 2]], max_new_tokens=2)
        self.counted.begin("answers of a batch")
        model.sampler.batch_size = BATCH
        model.sampler.answer_tokens([tokens[:-SAMPLED_TOKENS]] * BATCH, max_new_tokens=SAMPLED_TOKENS)
        self.counted.begin(f"answers of a batch{GATHERED}")
        model.sampler.gathers = True
        model.sampler.answer_tokens([tokens[:-SAMPLED_TOKENS]] * BATCH, max_new_tokens=SAMPLED_TOKENS)
        model.batch_size = BATCH
        self.counted.begin("whole windows")
        model._loglikelihood_tokens([(("", ""), [first], tokens[1:]) for first in range(BATCH)])
        self.counted.begin("scores of a batch")
        model.batch_size = 2 * BATCH  # two continuations after each context
        contexts = [[first, *tokens[: -SAMPLED_TOKENS - 1]] for first in range(BATCH)]
        model._loglikelihood_tokens([(("", ""), one, tokens[:SAMPLED_TOKENS]) for one in contexts for _ in range(2)])
        alone = [[first, *tokens[1:]] for first in range(min(2 * BATCH, max(1, PASS_TOKENS // self.length)))]
        model._loglikelihood_tokens([(("", ""), one, [0]) for one in alone])

    def judge(self) -> None:
        """Measure rewards of answers to exams, and what is measured of the models before and after alignment."""
        from evaluation.held_out import before_and_after
        from evaluation.local_model import rewards
        from training.generate import sampler
        from training.posttrain.align.settings import AlignRecipe

        asked = [{"role": "user", "content": "?" * (self.length - SAMPLED_TOKENS - 16)}]
        answered = [*asked, {"role": "assistant", "content": "?" * SAMPLED_TOKENS}]
        self.counted.begin("rewards of a batch")
        rewards(self.model_files, [answered] * BATCH, batch_size=BATCH, shard=self.world)
        recipe = AlignRecipe(max_new_tokens=SAMPLED_TOKENS)
        self.counted.begin("before and after alignment")
        with (
            patch.object(sampler, "_until_end", lambda row, _: list(map(int, row))),
            patch.object(sampler, "_drawn", lambda *_: sampler._greedy),  # torch draws no numbers without content
        ):
            before_and_after(*[self.model_files] * 3, [asked] * BATCH, recipe, shard=self.world)


def write_empty_model(shape: ModelConfig, folder: Path) -> None:
    """Write a model as transformers reads it, with files that have the size of its weights and no content."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from tests.training.posttrain import tiny
    from training.generate.chat_template import TEMPLATE_FILE
    from training.posttrain.chat import template
    from training.posttrain.spread_state import INDEX_FILE, file_name, in_files

    tiny.write_tokenizer(folder)
    (folder / TEMPLATE_FILE).write_text(template("pedigree", ""), "utf-8")
    config = export.hugging_face_config(shape, eos_id=0, pad_id=1)
    (folder / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    weights = dict(model.state_dict())
    files = in_files({name: {name: weight} for name, weight in weights.items()}, FILE_BYTES)
    listed = {}
    for number, names in enumerate(files, start=1):
        file = file_name(number, len(files))
        start = header([(name, weights[name]) for name in names])
        with (folder / file).open("wb") as stream:
            stream.write(start)
            stream.truncate(len(start) + sum(weights[name].nbytes for name in names))
        listed |= dict.fromkeys(names, file)
    size = sum(weight.nbytes for weight in weights.values())
    if len(files) > 1:
        (folder / INDEX_FILE).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": listed}))


def work_in(folder: Path) -> Any:
    """Return what a stage is given to write into, with progress that nobody reads."""
    from training.job import Work
    from training.progress import Progress

    (folder / "scratch").mkdir(exist_ok=True)
    return Work(path=folder, scratch=folder / "scratch", progress=Progress(folder))


@contextmanager
def in_fake_world(world: int, counted: Memory) -> Iterator[None]:
    """Be the first of so many processes with GPUs, for transformers and accelerate too."""
    from transformers.distributed import DistributedConfig, mixin, utils
    from trl.kernels import chunked_logprob

    from evaluation import local_model
    from training.generate import sampler, spread
    from training.posttrain import compact, fit
    from training.posttrain.align import drawn, reference
    from training.posttrain.sft import sft

    os.environ |= {"OMP_NUM_THREADS": "1", "ACCELERATE_TORCH_DEVICE": "cpu"}
    if world > 1:
        os.environ |= {name: str(value) for name, value in WORLD_OF.items()}
        os.environ |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(min(8, world))}

    def mapped(opened: Callable[..., Any]) -> Callable[..., Any]:
        def opened_nowhere(*given: Any, **options: Any) -> Any:
            with counted.on(NOWHERE):  # files; what a process keeps of them is copied later
                model = opened(*given, **options)
            if world == 1:
                copy_weights(model)
            return model

        return opened_nowhere

    layout = Layout(nodes=max(1, world // 8), processes=min(8, world), shard=world)
    with fake_world(layout) if world > 1 else nullcontext(), ExitStack() as stack:
        if world > 1:
            mesh = utils.initialize_distributed_mesh(DistributedConfig(fsdp_size=world, dp_replicate_size=1))
            stack.enter_context(patch.object(mixin, "initialize_distributed_mesh", lambda _: mesh))
        for one in (model_folder.AutoModelForCausalLM, model_folder.AutoModelForSequenceClassification):
            stack.enter_context(patch.object(one, "from_pretrained", mapped(one.from_pretrained)))
        # As on GPUs: bf16 is fast there, and attention keeps no probabilities.
        stack.enter_context(patch.object(fit, "dtype_here", lambda precision, _: DTYPES[precision]))
        stack.enter_context(patch.object(fit, "replaced_here", lambda *_: ""))
        stack.enter_context(patch.object(fit, "_device", lambda: torch.device("cuda")))
        stack.enter_context(patch.object(spread, "_passes_in_any", lambda *_, **__: False))  # there is nobody else
        stack.enter_context(patch.object(torch.nn.Module, "to", moved(torch.nn.Module.to)))
        for tile in ("_forward_tile", "_backward_tile", "_addmm_fp32"):  # on GPUs kernels do these in place
            stack.enter_context(patch.object(chunked_logprob, tile, lambda *_, **__: None))
        for module in (compact, drawn, local_model, sft):
            stack.enter_context(patch.object(module, "why_padded", lambda _: "the model is on a GPU"))
        for module in (reference, local_model, sampler):
            stack.enter_context(patch.object(module, "shared_out", first_alone))
        stack.enter_context(without_content(counted))
        yield


def copy_weights(model: torch.nn.Module) -> None:
    """Replace weights that are mapped from files by weights in memory, without content, as on a GPU."""
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            copy = torch.empty(weight.shape, dtype=weight.dtype)
            module.register_parameter(name, torch.nn.Parameter(copy, requires_grad=weight.requires_grad))


def moved(to: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's `to` without moves to the only device: torch cannot exchange weights that have no content."""

    def moved_there(module: torch.nn.Module, *given: Any, **options: Any) -> Any:
        dtype = options.get("dtype") or next((one for one in given if isinstance(one, torch.dtype)), None)
        is_there = all(dtype in (None, weight.dtype) for weight in module.parameters())
        return module if is_there else to(module, *given, **options)

    return moved_there


def first_alone(
    batches: Iterable[Any],
    made: Callable[[Any], Any],
    *,
    model: Any,
    before_training: bool = False,
    gathers: bool = False,
) -> Iterator[tuple[Any, Any]]:
    """Yield every batch with the result of the first one, which this process computes; there are no others."""
    from training.generate.spread import gathered

    listed = list(batches)
    if listed:
        mode = torch.no_grad() if before_training else torch.inference_mode()
        with mode, gathered(model, nullcontext()) if gathers else nullcontext():
            result = made(listed[0])
        yield from ((batch, result) for batch in listed)


def predicted(shape: ModelConfig, world: int, length: int) -> dict[str, int]:
    """Return the bytes that are predicted for each phase."""
    conversation = PlannedTuning(shape=shape, shard=world, positions=length, longest=length)
    pair = replace(conversation, positions=2 * length)  # or two answers that are read in one pass
    adapted = replace(conversation, adapters=numbers_of_adapters(shape, RANK))
    dora = replace(adapted, adapters=adapted.adapters + numbers_of_magnitudes(shape), has_magnitudes=True)
    some = replace(conversation, adapters=numbers_of_adapters(shape, RANK, SOME))
    some = replace(some, dropped=inputs_of_adapters(shape, SOME), learns_in_mlp=learns_in_mlp(SOME))
    judge = replace(pair, is_reward=True)
    sampling = PlannedSampling(policy=conversation, drawn=PASSES * length, has_reference=True, has_judge=True)
    of_one, of_two, of_adapters, of_judge = map(memory_without_steps, (conversation, pair, adapted, judge))
    batch = replace(conversation, positions=BATCH * length)
    of_a_batch = memory_without_steps(batch)
    continued = memory_without_steps(replace(batch, positions=2 * batch.positions))
    beside = {"initial policy": conversation.share, "reward model": judge.share}
    gathered = replace(sampling, gathers=world > 1)
    in_fp32 = replace(sampling, policy=replace(conversation, number_bytes=FP32))
    needed = {
        "open for SFT": of_one["open"],
        "loss of a sample of SFT": of_one["loss of a sample"],
        "steps of SFT": memory_of_steps(conversation),
        "loss after the steps of SFT": memory_beside_steps(conversation, "conversations")["loss after the steps"],
        "save SFT": of_one["save"],
        "export SFT": of_one["export"],
        f"open for {ADAPTERS}": of_adapters["open"],
        f"loss of a sample of {ADAPTERS}": of_adapters["loss of a sample"],
        f"steps of {ADAPTERS}": memory_of_steps(adapted),
        f"loss after the steps of {ADAPTERS}": memory_beside_steps(adapted, "conversations")["loss after the steps"],
        f"save {ADAPTERS}": of_adapters["save"],
        f"merge {ADAPTERS}": memory_beside_steps(adapted, "conversations").get("merge", {}),
        f"export {ADAPTERS}": of_adapters["export"],
        "open for reward": of_judge["open"],
        "steps of reward": memory_of_steps(judge),
        "save reward": of_judge["save"],
        "export reward": of_judge["export"],
        "scores of pairs": memory_beside_steps(judge, "pairs")["scores of pairs"],
        "start of DPO": memory_beside_steps(pair, "pairs")["start"],
        "steps of DPO": memory_of_steps(pair),
        "save DPO": of_two["save"],
        "export DPO": of_two["export"],
        "start of KTO": memory_beside_steps(pair, "answers")["start"],
        "steps of KTO": memory_of_steps(replace(pair, accumulates=False), reads_first=True),
        "save KTO": of_two["save"],
        "export KTO": of_two["export"],
        f"steps of {FP32_SFT}": memory_of_steps(replace(conversation, number_bytes=FP32)),
        f"steps of {SOME_ADAPTERS}": memory_of_steps(some),
        f"steps of {SGD_SFT}": memory_of_steps(replace(conversation, moments=0)),
        f"steps of {DORA}": memory_of_steps(dora),
        f"steps of {TOGETHER_SFT}": memory_of_steps(replace(conversation, number_bytes=FP32, updates_together=True)),
        f"save {TOGETHER_SFT}": of_one["save"],
        f"save {SGD_SFT}": memory_without_steps(replace(conversation, moments=0))["save"],
        "open for GRPO": of_one["open"] | beside,
        "answers of GRPO": memory_of_drawing(sampling),
        "rewards of GRPO": memory_of_judging(sampling),
        "steps of GRPO": memory_of_sampling(sampling),
        f"answers of {GATHERED_GRPO}": memory_of_drawing(gathered),
        f"steps of {GATHERED_GRPO}": memory_of_sampling(gathered),
        f"answers of a batch{GATHERED}": of_a_batch["answers with all weights gathered" if world > 1 else "answers"],
        "open for GRPO in fp32": of_one["open"] | beside,
        "answers of GRPO in fp32": memory_of_drawing(in_fp32),
        "rewards of GRPO in fp32": memory_of_judging(in_fp32),
        "steps of GRPO in fp32": memory_of_sampling(in_fp32),
        "save GRPO": of_one["save"] | beside,
        "export GRPO": of_one["export"] | beside,
        "open for scores": of_one["open"],
        "scores": of_one["scores"],
        "answers": of_one["answers"],
        "answers of a batch": of_a_batch["answers"],
        "rewards of a batch": memory_without_steps(replace(batch, is_reward=True))["rewards"],
        "before and after alignment": memory_before_and_after(batch),
        "whole windows": of_a_batch["whole windows"],
        "scores of a batch": continued["scores"],
    }
    return {phase: sum(parts.values()) for phase, parts in needed.items()}


def main() -> int:
    """Measure every phase and print it beside the prediction; return 1 if one differs by more than a tenth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="llama-3-70b")
    parser.add_argument("--processes", type=int, default=128, help="on nodes of eight")
    parser.add_argument("--length", type=int, default=8192, help="tokens of a conversation, and of each answer's row")
    parser.add_argument(
        "--parts", nargs="+", default=PARTS, choices=(*PARTS, *MORE), help="the trainings to go through"
    )
    parser.add_argument("--control", choices=("whole",), help="a fault that must show")
    given = parser.parse_args()
    shape = preset_shape(given.preset)
    share = STATE_BYTES * shape.parameter_count / 1e9
    print(f"{shape.parameter_count:,} weights; weights, gradients and optimizer: {share:,.0f} GB, by {given.processes}")
    print("| phase | measured GB | predicted GB | ratio |\n|---|---|---|---|")
    is_wrong = False
    for phase, found, expected in rows_of(shape, given.processes, given.length, given.control, given.parts):
        mark = "  DIFFERS" if differs(found, expected) else ""
        is_wrong |= differs(found, expected)
        # Told at once, because the largest shapes take more than half an hour.
        print(f"| {phase} | {found / 1e9:.2f} | {expected / 1e9:.2f} | {found / expected:.2f} |{mark}", flush=True)
    return int(is_wrong)


def rows_of(
    shape: ModelConfig, world: int, length: int, control: str | None = None, parts: Sequence[str] = PARTS
) -> Iterator[tuple[str, int, int]]:
    """Yield phase, measured and predicted bytes, part by part. The shape must not tie its embeddings."""
    needed = predicted(shape, world, length)
    with tempfile.TemporaryDirectory() as name:
        for found in Tuned(shape, world, length, Path(name), control, parts).measured():
            yield from ((phase, found[phase, DEVICE], needed[phase]) for phase in needed if (phase, DEVICE) in found)


if __name__ == "__main__":
    sys.exit(main())
