"""Measure what the first process of a post-training holds, with tensors without content (`pedigree plan --measure`).

It is the stages' own code for the recipe's settings and the profile's layout, in rows that are as long as they may be:
the trainer, a reference, steps, merging, what is measured after the steps, and the export of weights that processes
share. training/contract/process/without_content.py says what is counted.

`python -m training.posttrain.measured` reads the settings as JSON and prints the most bytes of each moment as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.contract.job import Counts, Job, Work
from training.contract.process.without_content import Memory
from training.contract.progress import Progress
from training.contract.records import read_record
from training.contract.run_settings import RunSettings
from training.generate.passes.pass_rows import MERGED_ROWS, SAMPLE_ROWS, rows_in_pass
from training.generate.spread import is_spread
from training.generate.turns import Chat, Encoded
from training.posttrain.align.alignment import Alignment
from training.posttrain.align.initial_loss import start_of
from training.posttrain.align.paired import pairs_trainer
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.preferences.answers import EncodedAnswer
from training.posttrain.preferences.pairs import EncodedPair, Pairs
from training.posttrain.reward.reward import pair_scores
from training.posttrain.reward.reward import trainer_of as reward_trainer
from training.posttrain.reward.settings import RewardRecipe
from training.posttrain.sft.settings import SftRecipe
from training.posttrain.sft.sft import mean_loss
from training.posttrain.sft.sft import trainer_of as sft_trainer
from training.posttrain.trainer.empty_model import on_gpus, write_empty_model
from training.posttrain.trainer.fit import merged
from training.posttrain.trainer.models import load_tokenizer, right_padded
from training.posttrain.trainer.spread_state import write_weights
from training.pretrain.models.shape import ModelConfig, ModelRecipe

STEPS, PASSES = 2, 2  # the second step has the optimizer's state, the second pass the gradients of the first
LEARN_FROM = {"sft": "conversations", "reward": "pairs"}
BETWEEN = "a pass without gradients"
SECTIONS = {"sft": SftRecipe, "reward": RewardRecipe, "align": AlignRecipe}
Section = SftRecipe | RewardRecipe | AlignRecipe


def measured(stage: str, section: Section, shape: ModelConfig, run: RunSettings) -> dict[str, int]:
    """Return the most bytes that the first process holds at each moment of a post-training: those of `tuning_bytes`.

    Those of opening the model, and of all before the first step, are added.
    """
    with tempfile.TemporaryDirectory() as name, on_gpus(run) as counted:
        write_empty_model(shape, Path(name, "model"))
        Measured(stage, section, run, Path(name), counted).measure()
    return counted.peaks


class Measured:
    """The phases of a post-training on tensors without content, of the model in `folder`."""

    def __init__(self, stage: str, section: Section, run: RunSettings, folder: Path, counted: Memory) -> None:
        self.stage, self.run, self.counted, self.folder = stage, run, counted, folder
        self.base = folder / "model"
        self.chat = Chat.of(self.base)
        self.tokenizer = load_tokenizer(self.base, self.chat)
        self.learns_from = section.declared.learns_from if isinstance(section, AlignRecipe) else LEARN_FROM[stage]
        sequences = 2 if self.learns_from == "pairs" else 1
        self.section, self.rows = _shortened(section, run, row_tokens=sequences * section.max_length)
        nothing: dict[str, Any] = dict.fromkeys(("asset", "partition", "recipe", "fingerprint", "stage_version"), "")
        self.job = Job(stage=stage, output=str(folder), run=run, settings={}, **nothing)
        (folder / "scratch").mkdir()
        self.work = Work(path=folder, scratch=folder / "scratch", progress=Progress(folder, enabled=False))

    def measure(self) -> None:
        """Make the steps, and what the stage does before and after them."""
        self.counted.begin("start")
        trainer = self._trainer()
        if self.stage == "align":
            self.counted.begin(BETWEEN)
            start_of(trainer)
        self.counted.begin("step")
        trainer.args.max_steps = STEPS
        trainer.train()
        self.counted.begin("merge" if self.stage == "align" else BETWEEN)
        ids = [[0] * self.section.max_length] * min(MERGED_ROWS, self.rows)
        model = merged(trainer, right_padded(ids, self.chat.pad_id, trainer.model.device), self.folder).model
        if self.stage == "sft":
            mean_loss(model, self._conversations(SAMPLE_ROWS), self.chat)
        if self.stage == "reward":
            pair_scores(model, self._pairs(SAMPLE_ROWS), self.chat)
        if is_spread(model):
            self.counted.begin("export")
            write_weights(model, self.folder / "exported")

    def _trainer(self) -> Any:
        """Return the stage's trainer, after what the stage does with it before the first step."""
        section = self.section
        if isinstance(section, SftRecipe):
            rows = self._conversations(STEPS * self.rows)
            trainer, _ = sft_trainer(self.job, self.work, section, self.tokenizer, rows, self.base)
            mean_loss(trainer.model, self._conversations(SAMPLE_ROWS), self.chat)
            return trainer
        pairs = self._pairs(STEPS * self.rows)
        given = Pairs(train_rows=[], train=pairs, held_out_rows=[], held_out=[], counts=Counts(records_in=0, kept=0))
        if isinstance(section, RewardRecipe):
            trainer, _ = reward_trainer(self.job, self.work, section, self.tokenizer, pairs, self.base)
            return trainer
        named = {"chat": self.chat, "tokenizer": self.tokenizer, "pairs": given, "sft_model": self.base}
        alignment = Alignment(job=self.job, work=self.work, recipe=section, **named)
        if self.learns_from == "pairs":
            return pairs_trainer(alignment, {})
        from training.posttrain.align.unpaired import ESTIMATES_DIVERGENCE, answers_trainer

        rows = [
            EncodedAnswer(prompt_ids=one.prompt_ids, answer_ids=one.chosen_ids, is_desired=True, row={})
            for one in pairs
        ]
        return answers_trainer(alignment, rows, section.trl.get("loss_type", ESTIMATES_DIVERGENCE))

    def _conversations(self, number: int) -> list[Encoded]:
        length = self.section.max_length
        return [Encoded(input_ids=[0] * length, trained=[False] + [True] * (length - 1))] * number

    def _pairs(self, number: int) -> list[EncodedPair]:
        half = [0] * (self.section.max_length // 2)
        return [EncodedPair(prompt_ids=half, chosen_ids=half, rejected_ids=half)] * number


def _shortened(section: Section, run: RunSettings, *, row_tokens: int) -> tuple[Section, int]:
    """Return the section for STEPS steps of at most PASSES passes of each process, and the rows of its step."""
    processes = run.nodes * run.processes
    share = section.batch_size // processes
    rows = rows_in_pass(share, micro_batch_tokens=run.micro_batch_tokens, row_tokens=row_tokens)
    batch = processes * rows * min(PASSES, share // rows)
    return replace(section, epochs=1.0, batch_size=batch), batch


def main() -> None:
    """Read what is trained, and where, from standard input; print the bytes of each moment."""
    given = json.load(sys.stdin)
    section: Section = read_record(SECTIONS[given["stage"]], given["section"])
    shape = read_record(ModelRecipe, given["model"]).shape(vocab_size=given["vocabulary"])
    print(json.dumps(measured(given["stage"], section, shape, read_record(RunSettings, given["run"]))))


if __name__ == "__main__":
    main()
