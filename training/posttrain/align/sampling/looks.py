"""Looks at a training on rewards: the answers to held-out prompts after some of its steps, and what they show.

Every look draws one answer to each of the same prompts, with the same random numbers and the training's own sampling.
The first look is at the SFT model. Nothing of a look changes a weight, or the random numbers of the training. Looks are
part of the trainer's log, so that a training which goes on from a checkpoint has those before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from accelerate.utils import gather_object

from training.contract.job import Gate
from training.generate.sampler import seeds_of
from training.posttrain.align.alignment import Alignment
from training.posttrain.align.sampling.goodhart import NAME, REWARD_TRUTH, Fall, RewardLook, change_of, fall_of
from training.posttrain.align.sampling.likelihoods import Likelihood, likelihoods
from training.posttrain.align.sampling.watched_prompts import WatchedPrompts, as_completions
from training.posttrain.trainer.fit import Reporter, load_for_training

PREFIX = "watched_"  # of the metrics of a look
LOGGED = "watched"  # the entry of the trainer's log that has a look's rewards by prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """Answers to all watched prompts as tokens and as texts, with both rewards of each."""

    tokens: list[list[int]]
    texts: list[str]
    proxy: list[float]
    truth: list[float]


class RewardLooks:
    """Looks at the model of a trainer that samples answers, after the steps that the recipe watches."""

    def __init__(self, given: Alignment, trainer: Any, rewards: Mapping[Any, float], prompts: WatchedPrompts) -> None:
        self.watch, self.prompts = given.recipe.watch, prompts
        self.steps: tuple[int, ...] = ()  # known when the training begins
        self._given, self._trainer, self._rewards = given, trainer, rewards
        self._prompt_ids = given.chat.encode_prompts(prompts.columns["prompts"])
        self._seeds = seeds_of(self.watch.seed, len(prompts.rows))
        self._begun: Answered | None = None  # by the SFT model

    def __str__(self) -> str:
        """Return what is watched and what it costs, as a sentence."""
        args, number = self._trainer.args, len(self.prompts.rows)
        drawn, trained = len(self.steps) * number, self.steps[-1] * args.generation_batch_size
        trained //= args.steps_per_generation * args.num_iterations
        return (
            f"watched after {len(self.steps)} steps: {number} held-out prompts, true reward {self.prompts.truth};"
            f" {drawn:,} answers are drawn for it, {drawn / trained:.0%} of the {trained:,} that the training draws"
        )

    def begin(self, state: Any) -> None:
        """Draw the SFT model's answers, with which each look is compared. They are the look after step 0."""
        self.steps = self.watch.steps_of(state.max_steps)
        with self._reference() as model:
            self._begun = self._answered(model)
            if not looks_in(state.log_history):
                self._note(state, self._begun, self._likelihoods(model, self._begun), divergence=0.0)

    def look(self, state: Any) -> None:
        """Look at the model after a step, if it is one of those that are watched."""
        if state.global_step not in self.steps:
            return
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        was_training = model.training
        model.eval()
        answered = self._answered(self._trainer.model_wrapped)
        own = self._likelihoods(model, answered)
        model.train(was_training)
        with self._reference() as reference:
            begun = self._likelihoods(reference, answered)
        divergence = fmean(one.nats - other.nats for one, other in zip(own, begun, strict=True))
        self._note(state, answered, own, divergence=divergence)

    def fall(self, log: Sequence[Mapping[str, Any]]) -> Fall | None:
        """Return the fall of the truth that the last look shows; None if it shows none."""
        return fall_of(looks_in(log), planned=len(self.steps), each_decides=self.watch.stops)

    def _likelihoods(self, model: Any, answered: Answered) -> list[Likelihood]:
        with in_fp32(model):
            return likelihoods(model, list(zip(self._prompt_ids, answered.tokens, strict=True)), self._given.chat)

    @contextmanager
    def _reference(self) -> Iterator[Any]:
        """Context manager that gives the SFT model: the trainer's reference unless that changes, else opened anew."""
        held = None if self._given.recipe.trl.get("sync_ref_model") else self._trainer.ref_model
        if held is None:
            recipe = self._given.recipe
            held = load_for_training(self._given.sft_model, precision=recipe.precision, shard=self._given.shard)
            held = held.to(self._trainer.accelerator.device).eval()
        yield held

    def _answered(self, model: Any) -> Answered:
        tokens = self._drawn(model)
        texts = self._trainer._tokenizer.batch_decode(tokens, skip_special_tokens=True)
        asked = {"completions": as_completions(texts), "completion_ids": tokens, **self.prompts.columns}
        proxy = [0.0] * len(texts)
        for function, weight in self._rewards.items():
            for i, one in enumerate(function(**asked)):
                proxy[i] += weight * (one or 0.0)  # as TRL adds them: one that is left out adds nothing
        truth = [float(one or 0.0) for one in self.prompts.true_rewards(texts)]
        return Answered(tokens=tokens, texts=texts, proxy=proxy, truth=truth)

    def _drawn(self, model: Any) -> list[list[int]]:
        """Return an answer to each prompt. The processes share the prompts out, in rounds of equally many passes."""
        accelerator, args = self._trainer.accelerator, self._trainer.args
        rows, number = args.generation_batch_size // accelerator.num_processes, len(self._prompt_ids)
        each = rows * accelerator.num_processes
        found: list[list[int]] = []
        for first in range(0, number, each):
            start = first + rows * accelerator.process_index
            own = slice(start, min(start + rows, first + each, number))
            some, seeds = self._prompt_ids[own], self._seeds[own]
            drawn = self._trainer.drawn(model, some or self._prompt_ids[:1], seeds or self._seeds[:1])[: len(some)]
            found += gather_object(drawn) if accelerator.num_processes > 1 else drawn
        return found

    def _note(self, state: Any, answered: Answered, likely: Sequence[Likelihood], *, divergence: float) -> None:
        """Put a look into the trainer's log and into the job's metrics."""
        assert self._begun is not None, "begin comes first"
        begun = self._begun
        wins = [(one > other) + (one == other) / 2 for one, other in zip(answered.truth, begun.truth, strict=True)]
        numbers = {
            "proxy_reward": fmean(answered.proxy),
            "true_reward": fmean(answered.truth),
            "win_rate_against_sft": fmean(wins),
            "answer_tokens": fmean(map(len, answered.tokens)),
            "kl_from_sft": divergence,
            "entropy": fmean(one.entropy for one in likely),
            "repetition": fmean(map(repeated_share, answered.tokens)),
            **agreement(answered, begun),
        }
        named = {PREFIX + name: value for name, value in numbers.items()}
        rewards = {"proxy": answered.proxy, "truth": answered.truth}
        state.log_history.append({"step": state.global_step, LOGGED: rewards, **named})
        self._given.work.progress.log(step=state.global_step, **named)


@contextmanager
def in_fp32(model: Any) -> Iterator[None]:
    """Context manager in which a model computes in its weights' own precision, not in accelerate's mixed precision.

    accelerate's own way takes the wrapper off for good, so that the rest of the training would be another one.
    """
    plain, wrapped = model.__dict__.get("_original_forward"), model.forward
    if plain is None:
        yield
        return
    model.forward = plain
    try:
        yield
    finally:
        model.forward = wrapped


def agreement(answered: Answered, begun: Answered) -> dict[str, float]:
    """Return in what share of prompts the proxy prefers the truly better of the model's and the SFT model's answer.

    Prompts whose two answers are equally good are left out, and nothing is returned if all are. Half the share is for
    each prompt whose answers have the same proxy reward: so 0.5 is a proxy that knows nothing of the truth.
    """
    judged = [
        (proxy - proxy_before) * math.copysign(1.0, truth - truth_before)
        for proxy, proxy_before, truth, truth_before in zip(
            answered.proxy, begun.proxy, answered.truth, begun.truth, strict=True
        )
        if truth != truth_before
    ]
    return {"proxy_agreement": fmean((one > 0) + (one == 0) / 2 for one in judged)} if judged else {}


def repeated_share(tokens: Sequence[int]) -> float:
    """Return the share of an answer's trigrams of tokens that occurred in it before."""
    trigrams = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
    return 1 - len(set(trigrams)) / len(trigrams) if trigrams else 0.0


class WatchedReporter(Reporter):
    """A reporter that also looks at the training, and ends it if the recipe says so and a look shows a fall."""

    def __init__(self, looks: RewardLooks, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._looks = looks

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **more: Any) -> None:
        """Say what is watched, and draw the answers with which it is compared."""
        super().on_train_begin(args, state, control, model=model, **more)
        self._looks.begin(state)
        self._work.progress.message(str(self._looks))

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Look at the step; where that ends the training, no checkpoint is saved of its last step."""
        self._looks.look(state)
        if self._looks.watch.stops and (fall := self._looks.fall(state.log_history)):
            self.say(f"the training ends here: {fall}")
            control.should_training_stop = True
            return
        super().on_step_end(args, state, control, **more)


def looks_in(log: Sequence[Mapping[str, Any]]) -> list[RewardLook]:
    """Return the looks in a trainer's log, by ascending steps."""
    return [
        RewardLook(step=entry["step"], proxy=tuple(entry[LOGGED]["proxy"]), truth=tuple(entry[LOGGED]["truth"]))
        for entry in log
        if LOGGED in entry
    ]


def watched_note(looks: RewardLooks, log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the artifact's note `watched`: each look's rewards, their changes since step 0, and a fall of the truth.

    The changes have 95 % intervals, each for itself.
    """
    first, *_ = found = looks_in(log)
    rows = []
    for look, entry in zip(found, (entry for entry in log if LOGGED in entry), strict=True):
        changes = {name: change_of(getattr(first, name), getattr(look, name)) for name in ("proxy", "truth")}
        told = {f"{name}_change": [one.mean, one.low, one.high] for name, one in changes.items()}
        rows.append({"step": look.step, **{n: v for n, v in entry.items() if n.startswith(PREFIX)}, **told})
    fall = looks.fall(log)
    return {
        "truth": looks.prompts.truth,
        "prompts": len(looks.prompts.rows),
        "planned_looks": len(looks.steps),
        "looks": rows,
        NAME: None if fall is None else fall.as_json() | {"sentence": str(fall)},
    }


def fall_gate(looks: RewardLooks, log: Sequence[Mapping[str, Any]]) -> Gate:
    """Return the gate `proxy_up_truth_down` of a training that a fall of the truth ends."""
    fall = looks.fall(log)
    evidence = {"looks": len(looks_in(log))} if fall is None else fall.as_json() | {"reason": str(fall)}
    way_out = {} if fall is None else {"way_out": REWARD_TRUTH}
    return Gate(name=NAME, passed=fall is None, evidence=evidence | way_out)
