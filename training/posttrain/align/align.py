"""The stage `align`: train the SFT model towards preferred answers by the preference method that the recipe names.

The methods are the modules of training/posttrain/methods. The rewards of the aligned model's answers are measured by
the stage `judge` (evaluation.exams.judging).
"""

from __future__ import annotations

import json
from pathlib import Path

from training.contract.job import Job, Outcome, Work
from training.contract.model_files import CONFIG_FILE, usually_named
from training.contract.parts.outside import PartFailed, named
from training.contract.parts.packages import load_part
from training.contract.records import RecipeError
from training.generate.chat_template import template_digest
from training.generate.turns import Chat
from training.posttrain.align.alignment import Alignment, Trained
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.preferences.pairs import read_pairs
from training.posttrain.trainer.fit import set_up_torch
from training.posttrain.trainer.models import MODEL_FOLDER, load_tokenizer, save_model


def run(job: Job, work: Work) -> Outcome:
    """Align the SFT model and write the aligned model."""
    recipe = job.settings_as(AlignRecipe, "align")
    set_up_torch(job, work)
    sft = job.input_of("sft_model").file(MODEL_FOLDER)
    chat = Chat.of(sft)
    check_room(sft, recipe)
    tokenizer = load_tokenizer(sft, chat)
    pairs = read_pairs(job.input_of("preference_data"), chat, max_length=recipe.max_length, where="align")
    given = {"recipe": recipe, "chat": chat, "tokenizer": tokenizer, "pairs": pairs, "sft_model": sft}

    def finished(trained: Trained, own: Work) -> Outcome:
        files = save_model(trained.model, tokenizer, chat, own.path)
        return Outcome(
            files=(*files, *trained.files),
            counts=trained.counts,
            metrics=trained.metrics,
            gates=trained.gates,
            notes={**trained.notes, "method": recipe.method, "chat_template_digest": template_digest(chat.template)},
        )

    return finished(_trained(Alignment(job=job, work=work, finished=finished, **given)), work)


def _trained(given: Alignment) -> Trained:
    """Return the result of the recipe's method. An error in a method from outside is raised with its name."""
    name, declared = given.recipe.method, given.recipe.declared
    if declared.train is None:
        return load_part("training.posttrain.methods.*", name).train(given)
    with named(f"preference method {name}", "failed", trains=True):
        trained = declared.train(given)
    if not isinstance(trained, Trained) or not trained.counts.balance:
        raise PartFailed(
            f"preference method {name} returned {trained!r:.80}; it must be a Trained whose counts balance"
        )
    absent = [one for one in declared.start_gates if one not in {gate.name for gate in trained.gates}]
    if absent:
        raise PartFailed(f"preference method {name} did not judge its start: its gate {absent[0]} is missing")
    return trained


def check_room(model: Path, recipe: AlignRecipe) -> None:
    """Raise RecipeError, before any training, if `max_new_tokens` leaves no position of the model for a prompt."""
    config = usually_named(json.loads((model / CONFIG_FILE).read_text("utf-8")))
    positions = config["max_position_embeddings"]
    if recipe.max_new_tokens >= positions:
        raise RecipeError(
            f"align.max_new_tokens={recipe.max_new_tokens} leaves no room for a prompt in the model's {positions}"
            " positions"
        )
