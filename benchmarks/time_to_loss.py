"""Compare the processor time to reach a held-out loss, of this trainer and of Hugging Face's.

This trainer runs with its own recipe, Hugging Face's Trainer with AdamW.

`python -m benchmarks.time_to_loss` trains the same shape on the same bytes of WikiText-2's validation articles. First
Hugging Face's Trainer runs the whole budget of steps with each of several learning rates; its best held-out loss is the
goal. Then this trainer (Muon, QK-norm, output matrices that begin at zero) runs schedules of growing length with each
of its learning rates, until one reaches the goal. The result compares the processor seconds of these two runs alone;
the searches for learning rates are not counted on either side.

Reads PEDIGREE_DATA. Finished runs are recorded in `--out` and not repeated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.convergence import SMALL, Run, articles, hugging_face_run, own_run
from benchmarks.rows import plan_over_texts
from training.artifact import write_json
from training.order.batches import Plan, Shards
from training.pretrain.settings import PretrainRecipe
from training.pretrain.usage import keep_freed_memory

SHARES = (1 / 8, 1 / 6, 1 / 5, 1 / 4, 1 / 3, 1 / 2, 1.0)  # of the peer's steps


def main() -> None:
    """Run the peer's sweep of learning rates, then this trainer up to the goal, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=160, help="of the peer")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--peer-rates", type=float, nargs="+", default=[1e-3, 3e-3, 6e-3])
    parser.add_argument("--own-rates", type=float, nargs="+", default=[0.01, 0.02], help="Muon's; AdamW's follows")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    race(
        Noted(options.out),
        lambda rate: peer_run(rate, options),
        lambda rate, steps: own_steps(rate, steps, options),
        peer_rates=options.peer_rates,
        own_rates=options.own_rates,
        steps=options.steps,
    )


def race(
    noted: Noted,
    peer_run: Callable[[float], Run],
    own_run: Callable[[float, int], Run],
    *,
    peer_rates: Sequence[float],
    own_rates: Sequence[float],
    steps: int,
) -> float | None:
    """Return the peer's processor time to its best held-out loss divided by this trainer's time to the same loss.

    The result is None if this trainer never reached that loss.
    """
    peer = {rate: noted(f"peer {rate:g}", lambda rate=rate: peer_run(rate)) for rate in peer_rates}
    best = min(peer, key=lambda rate: peer[rate].held_out)
    goal = peer[best]
    print(f"goal: {goal.held_out:.4f} nats a byte, by AdamW {best:g} in {goal.processor:.0f} processor seconds")
    if best in (min(peer), max(peer)):
        print("the peer's best rate lies at the edge of its sweep: widen it before quoting this")
    for share in SHARES:
        count = max(1, round(share * steps))
        own = {
            rate: noted(f"own {rate:g} in {count} steps", lambda rate=rate, count=count: own_run(rate, count))
            for rate in own_rates
        }
        rate = min(own, key=lambda rate: own[rate].held_out)
        if own[rate].held_out <= goal.held_out:
            faster = goal.processor / own[rate].processor
            print(
                f"reached: {own[rate].held_out:.4f} by Muon {rate:g} in {own[rate].processor:.0f} processor seconds:"
                f" {faster:.2f} x less time, {steps / count:.2f} x fewer tokens"
            )
            return faster
    print("not reached")
    return None


class Noted:
    """Finished runs by name, stored in a file if a path is given."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path and path.exists() else {}

    def __call__(self, name: str, run: Callable[[], Run]) -> Run:
        """Return the run with this name; make it if it is not stored."""
        if name not in self._found:
            self._found[name] = asdict(run())
            if self._path:
                write_json(self._path, self._found)
        one = Run(**self._found[name])
        print(f"| {name} | {one.held_out:.4f} | {one.processor:.1f} |", flush=True)
        return one


def recipe_of(steps: int, options: argparse.Namespace) -> PretrainRecipe:
    """Return the settings that both trainers share."""
    batch = options.rows * options.length
    return PretrainRecipe(
        tokens=steps * batch, sequence_length=options.length, global_batch_tokens=batch, seed=options.seed
    )


def plan_of(steps: int, options: argparse.Namespace) -> tuple[Plan, Shards]:
    """Return the training plan over the articles, of which one in ten is held out."""
    return plan_over_texts(articles(), steps=steps, rows=options.rows, length=options.length)


def peer_run(rate: float, options: argparse.Namespace) -> Run:
    """Train with Hugging Face's Trainer.

    Settings: bf16, AdamW (0.9, 0.95), weight decay 0.1, cosine schedule, its own initialisation.
    """
    recipe = replace(recipe_of(options.steps, options), learning_rate=rate)
    return hugging_face_run(SMALL, recipe, *plan_of(options.steps, options))


def own_steps(rate: float, steps: int, options: argparse.Namespace) -> Run:
    """Train with this trainer, and the optimizer and schedule of the shipped recipes.

    AdamW's rate is in their proportion to Muon's.
    """
    recipe = replace(
        recipe_of(steps, options),
        optimizer="muon",
        muon_learning_rate=rate,
        learning_rate=0.15 * rate,
        schedule="wsd",
        decay_fraction=0.3,
        final_learning_rate_fraction=0.05,
    )
    return own_run(replace(SMALL, qk_norm=True), recipe, *plan_of(steps, options))


if __name__ == "__main__":
    main()
