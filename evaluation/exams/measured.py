"""Measure what the first process of a scoring holds, with tensors that have no content (`pedigree plan --measure`).

It is the code that opens and scores a model for the recipe's batches and the profile's layout, in rows that are as long
as they may be: whole windows, whose log-likelihoods are asked for, and questions with the first token of an answer.
training/contract/process/without_content.py says what is counted.

`python -m evaluation.exams.measured` reads the settings as JSON and prints the most bytes of each moment as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.posttrain.trainer.empty_model import LETTER, on_gpus, write_empty_model

# isort: split
from evaluation.exams.held_out import before_and_after
from evaluation.exams.local_model import LocalModel
from training.contract.process.without_content import Memory
from training.contract.records import read_record
from training.contract.run_settings import RunSettings
from training.generate.turns import Message
from training.posttrain.align.settings import AlignRecipe
from training.pretrain.models.shape import ModelConfig, ModelRecipe
from training.recipe.settings.evaluation import JUDGED_PROMPTS

ANSWERED = 1  # token; the question fills the rest of the row
CONTROL_TOKENS = 3  # of a question: who speaks, its end, and who answers


def scores(model: LocalModel, counted: Memory) -> None:
    """Score a batch of whole windows, and answer one of questions."""
    tokens = [0] * model.max_length
    counted.begin("whole windows")
    model._loglikelihood_tokens([(("", ""), [0], tokens)] * model.batch_size)
    counted.begin("answers")
    model.sampler.answer_tokens([tokens[ANSWERED:]] * model.batch_size, max_new_tokens=ANSWERED)


def measured(given: Mapping[str, Any], shape: ModelConfig, run: RunSettings) -> dict[str, int]:
    """Return the most bytes that the first process holds at each moment of a scoring.

    Those of `scoring_bytes` are among them, except for the models before and after alignment, whose answers are
    sampled and scored at one moment.
    """
    with tempfile.TemporaryDirectory() as name, on_gpus(run) as counted:
        folder, judge = Path(name, "model"), Path(name, "judge")
        shared = {"shard": run.shard, "gathers": given["gathers"]}
        write_empty_model(shape, folder)
        if "align" not in given:
            counted.begin("start")
            scores(LocalModel(folder, batch_size=given["batch_size"], **shared), counted)
            return counted.peaks
        write_empty_model(shape, judge, reward=True)
        counted.begin("answers and their rewards")
        align = replace(read_record(AlignRecipe, given["align"]), max_new_tokens=ANSWERED)
        asked: list[Message] = [{"role": "user", "content": LETTER * (align.max_length - CONTROL_TOKENS - ANSWERED)}]
        before_and_after(folder, folder, judge, [asked] * JUDGED_PROMPTS, align, **shared)
    return counted.peaks


def main() -> None:
    """Read what is scored, and where, from standard input; print the bytes of each moment."""
    given = json.load(sys.stdin)
    shape = read_record(ModelRecipe, given["model"]).shape(vocab_size=given["vocabulary"])
    print(json.dumps(measured(given, shape, read_record(RunSettings, given["run"]))))


if __name__ == "__main__":
    main()
