"""The stage `sft`: supervised fine-tuning of the base model, with loss on the assistant's tokens only.

TRL's SFTTrainer gets tokens and labels, so it does not tokenize, truncate or mask. Which tokens are trained is decided
only in training.generate.turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from training.contract.job import Counts, DataError, Gate, Job, Outcome, Work
from training.contract.process.lean import uncollected
from training.contract.scopes import KEPT_STEPS
from training.generate.chat_template import template_digest
from training.generate.passes.compact import why_padded
from training.generate.passes.pass_rows import MERGED_ROWS, SAMPLE_ROWS, passes
from training.generate.turns import Chat, Encoded, Message, is_trained, template
from training.posttrain.chat import template_gate
from training.posttrain.rows.sorting import INSTRUCTIONS_FILE, read_jsonl
from training.posttrain.rows_read import rows_read
from training.posttrain.sft.settings import SftRecipe
from training.posttrain.trainer.compact import log_probs, said_of, without_padding
from training.posttrain.trainer.fit import (
    Reporter,
    adapter_config,
    fit,
    load_for_training,
    merged,
    row_order,
    rows_per_pass,
    set_up_torch,
    trainer_config,
    window_means,
)
from training.posttrain.trainer.kept import KeptModels
from training.posttrain.trainer.models import MODEL_FOLDER, load_tokenizer, right_padded, save_model
from training.posttrain.trainer.spread_state import saving_parts

UNTRAINED = -100  # the label of a token that is not trained


def run(job: Job, work: Work) -> Outcome:
    """Fine-tune the base model on the conversations and write the SFT model."""
    recipe = job.settings_as(SftRecipe, "sft")
    set_up_torch(job, work)
    base = _base(job)
    chat = Chat.of(base, template(recipe.chat_template, recipe.system_prompt or ""))
    tokenizer = load_tokenizer(base, chat)
    rows = read_jsonl(job.input_of("instruction_data").file(INSTRUCTIONS_FILE))
    kept, counts = fitting([row["messages"] for row in rows], chat, max_length=recipe.max_length)
    gate = template_gate(chat, tokenizer, list(kept.values()))
    encoded = chat.encode(list(kept.values()))
    order = row_order(
        [len(item.input_ids) for item in encoded], epochs=recipe.epochs, batch_size=recipe.batch_size, seed=recipe.seed
    )
    trainer, reporter = trainer_of(job, work, recipe, tokenizer, [encoded[i] for i in order], base)
    sample, places = encoded[:SAMPLE_ROWS], list(kept)
    training = _Training(
        recipe=recipe,
        trainer=trainer,
        reporter=reporter,
        tokenizer=tokenizer,
        chat=chat,
        sample=sample,
        before=mean_loss(trainer.model, sample, chat),
        rows=[rows[places[i]] for i in order],
        template=gate,
        counts=counts,
    )
    reporter.kept = KeptModels(
        job=job,
        work=work,
        made=lambda own: training.made(own, whole=own is work and "kept" not in job.settings),
        steps_per_epoch=Fraction(len(encoded), recipe.batch_size),
    )
    fit(trainer, reporter, recipe)
    return reporter.kept.made(work)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Training:
    """A training with what is known of it, from which an outcome is made after its last step and after kept ones."""

    recipe: SftRecipe
    trainer: Any
    reporter: Reporter
    tokenizer: Any
    chat: Chat
    sample: list[Encoded]
    before: float  # the mean loss of the sample before the training
    rows: list[Any]  # in training order
    template: Gate
    counts: Counts

    def made(self, work: Work, *, whole: bool) -> Outcome:
        """Write the model as it is now, and return the outcome. The loss of a part of a training need not have fallen.

        All processes must call this.
        """
        trainer, reporter, chat = self.trainer, self.reporter, self.chat
        ids = [item.input_ids for item in self.sample[:MERGED_ROWS]]
        made = merged(trainer, right_padded(ids, chat.pad_id, trainer.model.device), work.path)
        after = mean_loss(made.model, self.sample, chat)
        files = save_model(made.model, self.tokenizer, chat, work.path)
        read = rows_read(self.rows, steps=trainer.state.global_step, batch_size=self.recipe.batch_size)
        loss = loss_gate(reporter.losses, before=self.before, after=after, must_fall=whole)
        return Outcome(
            files=(*files, *made.files),
            counts=self.counts,
            metrics={
                "loss_before": self.before,
                "loss_after": after,
                "steps": trainer.state.global_step,
                "trained_tokens": self.template.evidence["trained_tokens"],
                "final_token_accuracy": reporter.logged[-1].get("mean_token_accuracy", math.nan)
                if reporter.logged
                else math.nan,
            },
            gates=(self.template, loss, *made.gates),
            notes={"chat_template_digest": template_digest(chat.template), **said_of(trainer.model), **read},
        )


def _base(job: Job) -> Path:
    """Return the folder of the model with which training begins: the base, a kept step of it, or a later model."""
    return job.input_of("base_model", KEPT_STEPS, "long_context_model", "adopted_model").file(MODEL_FOLDER)


def fitting(
    conversations: Sequence[Sequence[Message]], chat: Chat, *, max_length: int
) -> tuple[dict[int, list[Message]], Counts]:
    """Return the conversations, cut to whole turns within `max_length` tokens, and the counts of kept and dropped rows.

    The conversations that are kept are named by their places. A conversation is cut only after an assistant's turn,
    because half an answer would teach the model not to stop. It is dropped if not even the first answer fits.
    """
    kept: dict[int, list[Message]] = {}
    dropped = 0
    for place, (messages, whole) in enumerate(zip(conversations, chat.encode(conversations), strict=True)):
        ends = [i + 1 for i, token in enumerate(whole.input_ids) if token == chat.end_id and whole.trained[i]]
        spoken = [i + 1 for i, message in enumerate(messages) if is_trained(message)]
        number = sum(end <= max_length for end in ends)
        if number:
            kept[place] = list(messages[: spoken[number - 1]])
        dropped += not number
    if not kept:
        raise DataError(
            f"sft.max_length={max_length}: not one of {len(conversations)} conversations fits; make it larger"
        )
    reasons = {"longer_than_max_length": dropped} if dropped else {}
    return kept, Counts(records_in=len(conversations), kept=len(kept), dropped=reasons)


def trainer_of(
    job: Job, work: Work, recipe: SftRecipe, tokenizer: Any, ordered: list[Encoded], base: Path
) -> tuple[Any, Reporter]:
    """Return TRL's trainer of the model in the folder `base`, with the rows in their final order, and its reporter."""
    with uncollected("trl.trainer.sft_trainer"):
        from datasets import Dataset
        from trl.trainer import sft_trainer
        from trl.trainer.sft_config import SFTConfig

    rows, passes = rows_per_pass(job, batch_size=recipe.batch_size, row_tokens=recipe.max_length, where="sft")
    extra = {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": passes,
        "train_sampling_strategy": "sequential",
        "max_length": None,
        "dataset_kwargs": {"skip_prepare_dataset": True},
    }
    config = trainer_config(SFTConfig, job, work, where="sft", recipe=recipe, extra=extra)
    columns = {"input_ids": [row.input_ids for row in ordered], "labels": [row.labels for row in ordered]}
    if job.run.processes * job.run.nodes > 1:
        # Of an incomplete last batch, accelerate would give some processes rows of the first batch once more.
        for row in ordered[:1] * (-len(ordered) % recipe.batch_size):
            columns["input_ids"].append(row.input_ids)
            columns["labels"].append([UNTRAINED] * len(row.labels))
    table = Dataset.from_dict(columns)
    shard = job.run.shard if recipe.can_be_spread else 1
    without_padding(sft_trainer)
    trainer = saving_parts(sft_trainer.SFTTrainer)(
        model=load_for_training(base, precision=recipe.precision, shard=shard),
        args=config,
        train_dataset=table,
        processing_class=tokenizer,
        peft_config=adapter_config(recipe.peft, base, task="CAUSAL_LM", where="sft"),
    )
    return trainer, Reporter(work, checkpoint_seconds=job.run.checkpoint_seconds)


def mean_loss(model: Any, rows: Sequence[Encoded], chat: Chat) -> float:
    """Return the mean loss over the rows in nats per trained token, computed in fp32."""
    import torch

    was_training = model.training
    model.eval()
    with torch.no_grad(), torch.autocast(model.device.type, enabled=False):
        total = sum(
            _loss_in_pass(model, rows[some], chat)
            for some in passes([len(row.input_ids) for row in rows], vocabulary=model.config.vocab_size)
        )
    model.train(was_training)
    return total / sum(sum(row.trained[1:]) for row in rows)


def _loss_in_pass(model: Any, rows: Sequence[Encoded], chat: Chat) -> float:
    """Return the sum of the losses of all trained tokens."""
    import torch

    batch = right_padded([row.input_ids for row in rows], chat.pad_id, model.device)
    labels = right_padded([row.labels for row in rows], UNTRAINED, model.device)["input_ids"]
    if not why_padded(model):
        return -float(log_probs(model, **batch, labels=labels).sum(dtype=torch.float64))
    logits = model(**batch, use_cache=False).logits.float()
    # Row by row, because a copy of all logits would take as much again.
    losses = (
        torch.nn.functional.cross_entropy(one[:-1], wanted[1:], ignore_index=UNTRAINED, reduction="sum")
        for one, wanted in zip(logits, labels, strict=True)
    )
    return sum(map(float, losses))


def loss_gate(losses: Sequence[float], *, before: float, after: float, must_fall: bool = True) -> Gate:
    """Return the gate `loss_finite_and_falling`: every loss is finite and, with `must_fall`, `after` below `before`.

    Both are losses on the same sample rows, measured after and before the training.
    """
    first, last = window_means(losses) if losses else (math.nan, math.nan)
    finite = bool(losses) and all(map(math.isfinite, [*losses, before, after]))
    shown = {"loss_before": before, "loss_after": after, "first_steps": first, "last_steps": last}
    evidence = {name: value if math.isfinite(value) else str(value) for name, value in shown.items()}
    told = {**evidence, "steps": len(losses)} | ({} if must_fall else {"must_fall": False})
    return Gate(name="loss_finite_and_falling", passed=finite and (after < before or not must_fall), evidence=told)
