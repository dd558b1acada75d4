"""The stage `extend`: train the base model further on longer rows, and measure the effect on long and short rows.

Training, checkpoints and export use the code of the base model (`pretrain.trained`). Training begins with the base
model's weights and with rotary positions stretched as the recipe says. Then the models before and after are compared in
rows of the base model's length and of the new one, by the needles that they find (`needles.py`) and by held-out bits
per byte. `long_context.json` has every number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from training.contract.artifact import write_json
from training.contract.job import Gate, Job, Outcome, Work
from training.contract.process.precision import dtype_here
from training.contract.records import RecipeError
from training.order.batches import Plan, Shards, held_out_bytes, open_shards, read_plan
from training.pretrain import held_out
from training.pretrain.models import export
from training.pretrain.models.decoder import Decoder
from training.pretrain.parallel.world import World, own_device
from training.pretrain.settings import PretrainRecipe
from training.pretrain.stages.long_context_settings import LongContextRecipe
from training.pretrain.stages.needles import Needle, found_needles, haystack, haystack_sources, needles, scorer
from training.pretrain.stages.pretrain import MODEL_FOLDER, PLANS, step_of, trained
from training.pretrain.step import Trainer

FILE = "long_context.json"


def run(job: Job, work: Work) -> Outcome:
    """Train the base model further and judge the result, unless it is a step that is kept.

    Only the first process of a distributed job measures the result.
    """
    require_tokenizers()
    recipe, pretrain = job.settings_as(LongContextRecipe, "long_context"), job.settings_as(PretrainRecipe, "pretrain")
    lengths = {"short": job.settings["short"]["sequence_length"], "long": pretrain.sequence_length}
    for length in lengths.values():
        _items(job, recipe, [0], length)  # raises if a row has no room for needles
    item = job.input_of(*PLANS)
    plan = read_plan(item.folder, digest=item.digest)
    haystack_sources(plan)
    outcome = trained(job, work, start=_base(job))
    return judged(job, work, outcome, plan, lengths) if outcome.files and step_of(job) is None else outcome


def require_tokenizers() -> None:
    """Raise RecipeError if the package tokenizers is missing, before training rather than after it."""
    if not export.is_installed("tokenizers"):
        raise RecipeError("long_context: needles are written with the package tokenizers, which is not installed")


def judged(job: Job, work: Work, outcome: Outcome, plan: Plan, lengths: dict[str, int]) -> Outcome:
    """Add needles and held-out bits per byte, before and after, and the gates on them to the outcome of training."""
    recipe, pretrain = job.settings_as(LongContextRecipe, "long_context"), job.settings_as(PretrainRecipe, "pretrain")
    # Training has just verified every byte of the shards.
    shards = open_shards(plan, {one.fingerprint: one for one in job.inputs_of("token_shards")}, verify=False)
    hay = haystack(plan, shards, tokens=recipe.needles * len(recipe.needle_depths) * max(lengths.values()))
    items = {name: _items(job, recipe, hay, length) for name, length in lengths.items()}
    measured = {}
    for when, folder in (("before", _base(job)), ("after", work.path / MODEL_FOLDER)):
        model = export.read_model(folder).to(own_device())
        measured[when] = {
            name: {
                "needles": found_needles(items[name], scorer(model, dtype_here(pretrain.precision, own_device()))),
                "bits_per_byte": bits_per_byte(model, pretrain, plan, shards, length=length),
            }
            for name, length in lengths.items()
        }
        work.progress.message(f"{when}: {_sentence(measured[when])}")
    table = {"lengths": lengths, "chance": 1 / recipe.needle_choices, **measured}
    write_json(work.path / FILE, table)
    return replace(
        outcome,
        files=(*outcome.files, FILE),
        metrics={**outcome.metrics, **metrics_of(table)},
        gates=(*outcome.gates, needle_gate(table, recipe), short_gate(table, recipe)),
    )


def _base(job: Job) -> Path:
    return job.input_of("base_model").file(MODEL_FOLDER)


def _items(job: Job, recipe: LongContextRecipe, hay: Sequence[int], length: int) -> list[Needle]:
    from tokenizers import Tokenizer

    encoding = Tokenizer.from_file(str(job.input_of("tokenizer").file("tokenizer.json")))
    made = needles(
        hay,
        lambda text: encoding.encode(text, add_special_tokens=False).ids,
        length=length,
        depths=recipe.needle_depths,
        count=recipe.needles,
        choices=recipe.needle_choices,
        seed=recipe.seed,
    )
    return list(made)


def bits_per_byte(model: Decoder, pretrain: PretrainRecipe, plan: Plan, shards: Shards, *, length: int) -> float | None:
    """Return the bits per byte of all held-out documents in rows of `length`, computed as the trainer does.

    The result is None if no documents are held out.
    """
    record = replace(plan.record, sequence_length=length, global_batch_tokens=length, phases=())
    cut = plan.with_record(record)
    alone = World(rank=0, size=1, device=own_device())
    sizes = {source.name: held_out_bytes(cut, number) for number, source in enumerate(cut.record.sources)}
    by_source = held_out.bits_per_byte(Trainer(model, pretrain, cut, shards, alone))
    total = sum(sizes[name] for name in by_source)
    return sum(bits * sizes[name] for name, bits in by_source.items()) / total if total else None


def found_share(rows: Sequence[dict[str, Any]], what: str = "found") -> float:
    """Return the fraction `what` of needles found, averaged over all depths with equal weight."""
    return fmean(row[what] for row in rows)


def metrics_of(table: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of the needle table as metrics, named like `needles_<length>_<when>`."""
    metrics: dict[str, float] = {"needle_chance": table["chance"]}
    for when in ("before", "after"):
        for name in table["lengths"]:
            part = table[when][name]
            metrics[f"needles_{name}_{when}"] = found_share(part["needles"])
            metrics[f"needles_said_{name}_{when}"] = found_share(part["needles"], "said")
            if part["bits_per_byte"] is not None:
                metrics[f"bits_per_byte_{name}_{when}"] = part["bits_per_byte"]
    return metrics


def needle_gate(table: dict[str, Any], recipe: LongContextRecipe) -> Gate:
    """Return the gate that the share of needles found at the new length reaches `min_needle_score`."""
    rows = table["after"]["long"]["needles"]
    evidence = {
        "found": found_share(rows),
        "min_needle_score": recipe.min_needle_score,
        "chance": table["chance"],
        "found_before": found_share(table["before"]["long"]["needles"]),
        "positions": table["lengths"]["long"],
        "found_by_depth": {f"{row['depth']:g}": row["found"] for row in rows},
    }
    return Gate(name="needles_found", passed=evidence["found"] >= recipe.min_needle_score, evidence=evidence)


def short_gate(table: dict[str, Any], recipe: LongContextRecipe) -> Gate:
    """Return the gate that held-out bits per byte, at the base model's length, rose by at most `max_short_rise`."""
    before, after = (table[when]["short"]["bits_per_byte"] for when in ("before", "after"))
    evidence = {
        "bits_per_byte_before": before,
        "bits_per_byte_after": after,
        "max_short_rise": recipe.max_short_rise,
        "positions": table["lengths"]["short"],
    }
    kept = before is not None and after <= before * (1 + recipe.max_short_rise)
    return Gate(name="short_context_kept", passed=kept, evidence=evidence)


def _sentence(measured: dict[str, Any]) -> str:
    parts = [
        f"{name} rows {100 * found_share(part['needles']):.0f} % of needles"
        + (f", {part['bits_per_byte']:.3f} bits per byte" if part["bits_per_byte"] is not None else "")
        for name, part in measured.items()
    ]
    return "; ".join(parts)
