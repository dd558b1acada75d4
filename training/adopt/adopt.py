"""The stage `adopt`: take over a model of somebody else, so that further stages read it like a base model.

The artifact has the layout of a base model: `model/` with fp32 weights in safetensors, `config.json`, and the tokenizer
(training/data/tokens/adopted_vocabulary.py). `provenance.json` says what is known of the model, what is not, and what
was changed. Nothing is downloaded, no pickle is opened and no code of the folder runs.

The gate `import_equals_transformers` compares logits with those of transformers for the folder as it was given: logits
of this project's decoder, or of what was written if only a class of transformers runs the model.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.adopt.settings import AdoptRecipe
from training.contract.artifact import manifest, write_json
from training.contract.identity import numerics
from training.contract.job import Gate, Job, Outcome, RefusedInput, Work
from training.contract.model_files import model_digest, model_files, number_of_weights
from training.contract.tokenizer_files import write_tokenizer
from training.data.tokens.adopted_vocabulary import Vocabulary, read_vocabulary
from training.generate.model_folder import check_folder, open_model
from training.pretrain.models import export
from training.pretrain.models.account import FILE_BYTES
from training.pretrain.models.attention import one_document
from training.pretrain.models.decoder import Decoder
from training.pretrain.models.families import is_borrowed

MODEL_FOLDER, PROVENANCE_FILE = "model", "provenance.json"
TOLERANCE = 1e-4  # largest difference of fp32 logits, as a share of the largest logit
POSITIONS = 128
LENGTH = 32  # positions of a row
NOT_KEPT = ("auto_map", "transformers_version")  # fields of JSON: code, and what a model does not depend on

NOT_KNOWN = (
    "the text that it was trained on: no page can be named for its weights, and no item of an exam can be ruled out",
    "what was done to it, and in which order, before it was published",
    "whether name, revision and licence are right: the recipe or the folder says them, and nothing here can check them",
)


def run(job: Job, work: Work) -> Outcome:
    """Write the adopted model, its tokenizer and its provenance record."""
    numerics.use_threads(job.run)
    numerics.note(job, work)
    recipe, given = job.settings_as(AdoptRecipe, "adopt"), Path(job.settings["adopted"]["path"])
    if model_digest(given) != job.settings["adopted"]["digest"]:
        raise RefusedInput(f"{given}: the model has changed since the job was written; run again")
    check_folder(given)
    vocabulary = read_vocabulary(given, job.settings["tokenizer"]["special_tokens"], has_corpus=False)
    tokenizer = work.scratch / "tokenizer"
    tokenizer.mkdir(parents=True, exist_ok=True)
    write_json(tokenizer / "tokenizer.json", vocabulary.tokenizer)
    write_json(tokenizer / "tokenizer_config.json", vocabulary.config)
    shape = export.read_shape(given)
    write = write_borrowed if is_borrowed(shape) else write_decoder
    names, gate = write(given, work.path / MODEL_FOLDER, vocabulary, tokenizer)
    write_json(work.path / PROVENANCE_FILE, provenance(recipe, given, vocabulary))
    return Outcome(
        files=(*(f"{MODEL_FOLDER}/{name}" for name in names), PROVENANCE_FILE),
        metrics={
            "parameters": number_of_weights(work.path / MODEL_FOLDER),
            "vocabulary": max(shape.vocab_size, vocabulary.size),
            "added_tokens": len(vocabulary.spelled),
        },
        gates=(gate,),
        notes={"name": recipe.name, "changes": list(vocabulary.changes)},
    )


def write_decoder(given: Path, folder: Path, vocabulary: Vocabulary, tokenizer: Path) -> tuple[tuple[str, ...], Gate]:
    """Write a model of a family of this project with rows for the new tokens; return the files, and the import gate."""
    model = export.read_model(given)
    gate = import_gate(model, given)
    return export.write_model(extended(model, vocabulary), folder, tokenizer=tokenizer, eos_id=vocabulary.eos_id), gate


@torch.no_grad()
def write_borrowed(given: Path, folder: Path, vocabulary: Vocabulary, tokenizer: Path) -> tuple[tuple[str, ...], Gate]:
    """Do the same with a model that transformers' own class runs. What was written is opened again for the gate."""
    model = open_model(given, dtype=torch.float32).eval()
    old = model.config.vocab_size
    known = min((old, *vocabulary.spelled))  # padding rows behind it become tokens
    tokens_BL = random_tokens(known, model.config.max_position_embeddings).to(model.device)
    expected: Tensor = model(tokens_BL, use_cache=False).logits[..., :known]
    model.resize_token_embeddings(max(old, vocabulary.size), mean_resizing=False)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    for weight in (embedding.weight, head.weight, *([] if head.bias is None else [head.bias])):
        weight[old:] = 0  # they were drawn
        fill_new(weight, vocabulary)
    names = _save(model, folder, vocabulary, tokenizer)
    found = open_model(folder, dtype=torch.float32).eval()(tokens_BL, use_cache=False).logits
    return names, _gate(found[..., :known], expected)


def _save(model: Any, folder: Path, vocabulary: Vocabulary, tokenizer: Path) -> tuple[str, ...]:
    """Write a model of transformers with this tokenizer and without names of code; return the names of the files."""
    from transformers import GenerationConfig

    ids = export.special_ids(tokenizer, vocabulary.eos_id)
    for name, number in ids.items():
        setattr(model.config, name, number)
    model.generation_config = GenerationConfig(**ids, do_sample=False)
    model.save_pretrained(folder, max_shard_size=FILE_BYTES)
    for file in (folder / "config.json", folder / "generation_config.json"):
        fields = json.loads(file.read_text("utf-8"))
        write_json(file, {name: one for name, one in fields.items() if name not in NOT_KEPT})
    write_tokenizer(tokenizer, folder, max_length=int(model.config.max_position_embeddings))
    return tuple(model_files(folder))


def random_tokens(known: int, max_length: int) -> Tensor:
    """Return the random tokens [rows, length], with ids below `known`, on which logits are compared."""
    length = min(LENGTH, max_length)
    return torch.randint(0, known, (POSITIONS // length, length), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def import_gate(model: Decoder, folder: Path) -> Gate:
    """Compare the adopted model's logits in this project's decoder with those in transformers.

    Both run in fp32 on random tokens.
    """
    theirs = open_model(folder, dtype=torch.float32).eval()
    tokens_BL = random_tokens(model.config.vocab_size, model.config.max_length).to(theirs.device)
    expected: Tensor = theirs(tokens_BL, use_cache=False).logits
    mask = one_document(tokens_BL, dtype=torch.float32, window=model.config.window)
    found = model.to(theirs.device).logits(tokens_BL, mask)
    model.to("cpu")
    return _gate(found, expected)


def _gate(found: Tensor, expected: Tensor) -> Gate:
    largest, scale = (found - expected).abs().max().item(), expected.abs().max().item()
    evidence = {
        "largest_difference": largest,
        "largest_logit": scale,
        "tolerance": TOLERANCE,
        "differing_argmax": int((found.argmax(-1) != expected.argmax(-1)).sum()),
        "positions": expected[..., 0].numel(),
    }
    return Gate(name="import_equals_transformers", passed=largest <= TOLERANCE * max(scale, 1.0), evidence=evidence)


@torch.no_grad()
def extended(model: Decoder, vocabulary: Vocabulary) -> Decoder:
    """Add an embedding row for each new token: the mean of the rows of the tokens that spell it. Return the model."""
    config = replace(model.config, vocab_size=max(model.config.vocab_size, vocabulary.size))
    weights = model.state_dict()
    for name in ("embedding", *(() if config.tied_embeddings else ("head",))):
        added = torch.zeros(config.vocab_size - model.config.vocab_size, config.width)
        weights[name] = torch.cat([weights[name], added])
        fill_new(weights[name], vocabulary)
    result = Decoder(config)
    result.load_state_dict(weights)
    return result


def fill_new(rows: Tensor, vocabulary: Vocabulary) -> None:
    """Set each new token's row to the mean of the rows of the tokens that spell it."""
    for number, spelled in vocabulary.spelled.items():
        rows[number] = rows[spelled].double().mean(0).float()


def provenance(recipe: AdoptRecipe, folder: Path, vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the provenance record of an adopted model.

    It has the model's known facts, its unknown facts, and the changes made to it.
    """
    licence = recipe.licence or _stated_licence(folder)
    return {
        "name": recipe.name or "not stated",
        "revision": recipe.revision or "not stated",
        "licence": licence or "not stated",
        "licence_from": "recipe" if recipe.licence else "README.md" if licence else "",
        "digest": model_digest(folder),
        "files": manifest(folder, model_files(folder)),
        "config": json.loads((folder / "config.json").read_text("utf-8")),
        "not_known": list(NOT_KNOWN),
        "changes": list(vocabulary.changes),
    }


def _stated_licence(folder: Path) -> str:
    """Return the licence in the front matter of the folder's README.md; empty if there is none."""
    path = folder / "README.md"
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    front = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    stated = re.search(r"^licen[sc]e:[ \t]*(\S+)", front[1], re.MULTILINE) if front else None
    return stated[1].strip("'\"") if stated else ""
