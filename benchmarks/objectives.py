"""Train models of one size by each objective on the same tokens, and score them side by side.

`PEDIGREE_DATA=… python -m benchmarks.objectives` reads articles of WikiText-2 and pages of C4, of which every tenth is
held out. The causal model fills in the tokens that the masked one is asked for, and continues the prefixes of the
prefix one, each time from what comes before alone. The probe tells the subjects of MMLU's questions.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.convergence import articles
from benchmarks.rows import EOS, plan_over
from evaluation.exams.objectives.decoder import OwnModel
from evaluation.exams.objectives.filling import Figure, Filled, filled, summed
from evaluation.exams.objectives.probe import probed
from training.contract.tables import markdown_table
from training.data.sources import read_rows
from training.data.tokens.tokenizer import load_tokenizer, train
from training.data.tokens.tokenizer_settings import TokenizerRecipe
from training.order.batches import Plan, Shards
from training.order.loss_mask import IGNORED
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.export import token_ids, write_model
from training.pretrain.models.shape import ModelConfig
from training.pretrain.objectives.objective import Objective
from training.pretrain.objectives.rewritten import Batch
from training.pretrain.objectives.settings import MASK_TOKEN, ObjectiveRecipe, sentinel_token
from training.pretrain.parallel.world import World
from training.pretrain.settings import PretrainRecipe
from training.pretrain.step import Trainer

KINDS = ("causal", "masked", "prefix", "span_corruption")
SPECIAL = ("<|endoftext|>", "<|pad|>", MASK_TOKEN, *(sentinel_token(number) for number in range(32)))
HELD_OUT_EVERY, ROWS, LENGTH = 10, 16, 128
SUBJECTS, QUESTIONS = 10, 150  # of MMLU: the subjects with most questions, and how many of each
HEADS = {
    "hidden_tokens": "hidden tokens right %",
    "pseudo_perplexity": "their perplexity",
    "continuation": "bits per byte after prefixes",
    "exact_spans": "spans filled exactly %",
    "probe": "subjects told by a probe %",
}


def corpus() -> list[str]:
    """Return the texts that the models are trained and scored on."""
    return [*articles(), *(row["text"] for row in read_rows("data://text/c4_demo.jsonl.gz"))]


def questions() -> tuple[list[str], list[str]]:
    """Return questions of MMLU and their subjects."""
    rows = list(read_rows("data://benchmarks/mmlu_test.jsonl.gz"))
    chosen = [name for name, _ in Counter(row["subject"] for row in rows).most_common(SUBJECTS)]
    own = [row for name in chosen for row in [row for row in rows if row["subject"] == name][:QUESTIONS]]
    return [row["question"] for row in own], [row["subject"] for row in own]


def planned(texts: Sequence[str], folder: Path, *, vocabulary: int, steps: int) -> tuple[Plan, Shards]:
    """Write a tokenizer of the texts that are not held out into a folder, and return the plan over their tokens."""
    read = [text for number, text in enumerate(texts) if number % HELD_OUT_EVERY]
    made = train(read, TokenizerRecipe(snapshots=(), vocabulary=vocabulary, special_tokens=SPECIAL))
    folder.mkdir(parents=True)
    made.save(str(folder / "tokenizer.json"))
    named = {"eos_token": SPECIAL[0], "pad_token": SPECIAL[1], "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    encoded = [[*one.ids, EOS] for one in load_tokenizer(folder / "tokenizer.json").encode_batch(list(read))]
    sizes = [len(one) for one in encoded]
    places = list(zip(np.cumsum([0, *sizes])[:-1].tolist(), sizes, strict=True))
    tokens = np.concatenate(encoded).astype(np.uint16)
    return plan_over(tokens, places, steps=steps, rows=ROWS, length=LENGTH)


def trained(kind: str, plan: Plan, shards: Shards, tokenizer: Path, folder: Path, shape: dict[str, int]) -> float:
    """Train a model by an objective, write it into a folder, and return the loss of its last step."""
    ids = token_ids(tokenizer)
    size = max(ids.values()) + 1
    recipe = PretrainRecipe(
        tokens=plan.record.steps * ROWS * LENGTH,
        sequence_length=LENGTH,
        global_batch_tokens=ROWS * LENGTH,
        learning_rate=3e-3,
        muon_learning_rate=0.03,
        optimizer="muon",
        objective=ObjectiveRecipe(kind=kind),
    )
    model = Decoder(ModelConfig(vocab_size=size, max_length=LENGTH, **shape))
    initialise(model, zero_outputs=True, generator=torch.Generator().manual_seed(recipe.seed))
    objective = Objective(recipe.objective, seed=recipe.seed, token_ids=ids, eos_id=EOS, vocab_size=size)
    world = World(rank=0, size=1, device=torch.device("cpu"))
    trainer, loss = Trainer(model, recipe, plan, shards, world, objective=objective), math.nan
    while trainer.state.position.step < plan.record.steps:
        loss = trainer.run_step().loss
    write_model(model, folder, tokenizer=tokenizer, eos_id=EOS, own_layout=True)
    return loss


def figures(kind: str, model: OwnModel, texts: Sequence[str], labelled: tuple[list[str], list[str]]) -> dict[str, Any]:
    """Return the figures of a model by name; those that its objective has."""
    found: dict[str, Figure] = {}
    if kind in ("causal", "masked"):
        own = _summed(model, texts, "masked", from_before=kind == "causal")
        found["hidden_tokens"] = own.share("right", "targets")
        found["pseudo_perplexity"] = own.ratio("nats", "targets", math.exp)
    if kind in ("causal", "prefix"):
        own = _summed(model, texts, "prefix", from_before=kind == "causal")
        found["continuation"] = own.ratio("nats", "bytes", lambda nats: nats / math.log(2))
    if kind == "span_corruption":
        found["exact_spans"] = filled(model, ObjectiveRecipe(kind=kind), texts)["figures"]["exact_spans"]
    told = probed(model, *labelled, is_causal=kind == "causal")
    return {**found, "probe": told["accuracy"], "token_counts": told["token_counts"], "chance": told["chance"]}


def _summed(model: OwnModel, texts: Sequence[str], kind: str, *, from_before: bool) -> Filled:
    """Return the sums over what an objective asks for of the texts, but for a text's first token.

    With `from_before`, a causal model is asked for the same tokens by what comes before them in the text.
    """

    def read(rows: Batch, batch: Batch) -> Batch:
        if kind == "masked":
            batch.targets[:, 0] = IGNORED
        if not from_before:
            return batch
        targets = batch.targets
        if kind == "masked":  # a token is predicted one position earlier
            targets = np.full_like(targets, IGNORED)
            targets[:, :-1] = batch.targets[:, 1:]
        return Batch(rows.tokens, targets, rows.documents)

    return summed(model, ObjectiveRecipe(kind=kind), texts, read)


def compared(
    texts: Sequence[str],
    labelled: tuple[list[str], list[str]],
    folder: Path,
    *,
    vocabulary: int,
    steps: int,
    shape: dict[str, int],
) -> dict[str, dict[str, Any]]:
    """Train and score a model by each objective, and return their figures."""
    plan, shards = planned(texts, folder / "tokenizer", vocabulary=vocabulary, steps=steps)
    held_out, found = texts[::HELD_OUT_EVERY], {}
    for kind in KINDS:
        loss = trained(kind, plan, shards, folder / "tokenizer", folder / kind, shape)
        found[kind] = {"loss": loss, **figures(kind, OwnModel(folder / kind), held_out, labelled)}
        print(kind, json.dumps(found[kind]), flush=True)
    return found


def _cell(name: str, found: dict[str, Any]) -> str:
    if name not in found:
        return "–"
    scale, digits = (100, 1) if "%" in HEADS[name] else (1, 3 if name == "continuation" else 1)
    value, (low, high) = found[name]["value"], found[name]["interval"]
    return f"{scale * value:.{digits}f} ({scale * low:.{digits}f} to {scale * high:.{digits}f})"


def main(argv: Sequence[str] | None = None) -> None:
    """Compare the objectives and print a table."""
    parser = argparse.ArgumentParser(prog="benchmarks.objectives", description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args(argv).steps
    shape = {"width": 128, "layers": 4, "heads": 4, "kv_heads": 4, "mlp_width": 352}
    with tempfile.TemporaryDirectory() as place:
        found = compared(corpus(), questions(), Path(place), vocabulary=2048, steps=steps, shape=shape)
    rows = [(kind, *(_cell(name, one) for name in HEADS)) for kind, one in found.items()]
    print("\n".join(markdown_table(("objective", *HEADS.values()), rows)))
    counts = found["causal"]["token_counts"]["value"]
    print(f"{steps * ROWS * LENGTH:,} tokens each; counts of tokens tell {100 * counts:.1f} % of the subjects")


if __name__ == "__main__":
    main()
