"""Compare tokens per second on a CPU of this trainer and of other trainers, with the same shape, data and precision.

`python -m benchmarks.speed --peers PEERS` measures the other trainers one by one (`benchmarks/trainers.py` says how to
install them), each with its stock and its best documented settings. Two processes live at a time, this trainer and the
other; they alternate in turns of a few steps, and the result is the median of the paired ratios, because other work on
the machine slows both. Processor seconds are given beside wall seconds. Lines that `--out` already has are not measured
again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.trainers import NotMeasured, Ready, Running, Task, Turn
from training.contract.artifact import write_json
from training.pretrain.models.shape import ModelConfig

SHAPES = {
    # heads of 64, and an MLP with as many weights as an ungated one of four times the width: what all peers can be
    "12.5M": ModelConfig(
        vocab_size=8192, width=320, layers=8, heads=5, kv_heads=5, mlp_width=864, max_length=512, tied_embeddings=True
    ),
    "kitchen": ModelConfig(
        vocab_size=2048, width=192, layers=4, heads=6, kv_heads=3, mlp_width=512, max_length=512, tied_embeddings=True
    ),
    "tiny": ModelConfig(vocab_size=512, width=64, layers=2, heads=1, kv_heads=1, mlp_width=176, max_length=64),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A line of the table: another trainer at a setting and a precision.

    Beside it stands the precision of this trainer.
    """

    peer: Literal["hf", "litgpt", "nanochat"]
    setting: Literal["stock", "best"]
    precision: Literal["bf16", "fp32"]
    own_precision: Literal["bf16", "fp32"]

    @property
    def name(self) -> str:
        """The pair's name, as in the table and on the command line."""
        return f"{self.peer}-{self.setting}-{self.precision}" + (
            "" if self.own_precision == self.precision else f"-against-{self.own_precision}"
        )

    @property
    def optimizer(self) -> Literal["adamw", "muon"]:
        """The optimizer of this trainer, chosen so that both do the same work: nanochat uses Muon."""
        return "muon" if self.peer == "nanochat" else "adamw"


PAIRS = (
    Pair(peer="hf", setting="stock", precision="bf16", own_precision="bf16"),
    Pair(peer="hf", setting="stock", precision="fp32", own_precision="bf16"),
    Pair(peer="litgpt", setting="stock", precision="bf16", own_precision="bf16"),
    Pair(peer="nanochat", setting="stock", precision="bf16", own_precision="bf16"),
    Pair(peer="hf", setting="best", precision="bf16", own_precision="bf16"),
    Pair(peer="litgpt", setting="best", precision="bf16", own_precision="bf16"),
    Pair(peer="hf", setting="stock", precision="fp32", own_precision="fp32"),
    Pair(peer="litgpt", setting="stock", precision="fp32", own_precision="fp32"),
    Pair(peer="nanochat", setting="stock", precision="fp32", own_precision="fp32"),
    Pair(peer="hf", setting="best", precision="fp32", own_precision="fp32"),
)


def main() -> None:
    """Measure the pairs that are not in the file yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, help="folder with a folder for each peer")
    parser.add_argument("--out", type=Path, help="JSON with what was measured; lines in it are kept")
    parser.add_argument(
        "--pairs", nargs="*", default=[pair.name for pair in PAIRS], help="names; all when none is given"
    )
    parser.add_argument("--shape", choices=SHAPES, default="12.5M")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--optimizer", choices=("adamw", "muon"), help="ours; else that which does the peer's work")
    parser.add_argument("--compiled", choices=("no", "blocks", "whole"), default="no", help="ours, by torch.compile")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="of a turn")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one answer, compiling included")
    options = parser.parse_args()
    found = json.loads(options.out.read_text("utf-8")) if options.out and options.out.exists() else {}
    for pair in PAIRS:
        if pair.name in options.pairs and pair.name not in found:
            found[pair.name] = measured(pair, options)
            print(line(pair.name, found[pair.name]), flush=True)
            if options.out:
                write_json(options.out, found)
    print(table(found, options))


def measured(pair: Pair, options: argparse.Namespace) -> dict[str, Any]:
    """Return the measurements of a pair of trainers, or the reason why there are none."""
    base = Task(
        trainer="own", shape=SHAPES[options.shape], rows=options.rows, length=options.length, threads=options.threads
    )
    ours = replace(
        base,
        precision=pair.own_precision,
        optimizer=options.optimizer or pair.optimizer,
        compiled=options.compiled,
    )
    theirs = replace(base, trainer=pair.peer, setting=pair.setting, precision=pair.precision)
    try:
        with Running(theirs, peers=options.peers, timeout=options.timeout) as peer:
            with Running(ours, timeout=options.timeout) as own:
                return compared(own, peer, rounds=options.rounds, steps=options.steps)
    except NotMeasured as why:
        return {"not_measured": str(why)}


def compared(own: Running, peer: Running, *, rounds: int, steps: int) -> dict[str, Any]:
    """Let both trainers train in turns and return their speeds; the first round is a warm-up and is not counted."""
    turns: list[tuple[Turn, Turn]] = []
    for number in range(rounds + 1):
        # Whoever is second finds the other's traces in the caches: each is it in turn.
        if number % 2:
            theirs = peer.steps(steps)
            turns.append((own.steps(steps), theirs))
        else:
            turns.append((own.steps(steps), peer.steps(steps)))
    turns = turns[1:]
    return {
        "rounds": rounds,
        "own": side(own.ready, [mine for mine, _ in turns], own.task.tokens),
        "peer": side(peer.ready, [theirs for _, theirs in turns], own.task.tokens),
        "ratio_wall": spread([theirs.wall / mine.wall for mine, theirs in turns]),
        "ratio_processor": spread([theirs.processor / mine.processor for mine, theirs in turns]),
    }


def side(ready: Ready, turns: list[Turn], tokens: int) -> dict[str, Any]:
    """Return the settings and the speed, in tokens per second, of one of the two trainers."""
    return {
        "settings": ready.settings,
        "parameters": ready.parameters,
        "megaflops_per_token": ready.flops_per_token / 1e6,
        "first_step_seconds": ready.first_step_seconds,
        "tokens_per_second": spread([turn.steps * tokens / turn.wall for turn in turns]),
        "tokens_per_processor_second": spread([turn.steps * tokens / turn.processor for turn in turns]),
        "peak_gigabytes": max(turn.peak_gigabytes for turn in turns),
    }


def spread(values: list[float]) -> list[float]:
    """Return median, smallest and largest value."""
    return [statistics.median(values), min(values), max(values)]


def line(name: str, found: dict[str, Any]) -> str:
    """Return one row of the table."""
    if "not_measured" in found:
        return f"| {name} | | | | not measured: {found['not_measured']} | |"
    own, peer = found["own"], found["peer"]
    ratios = (
        f"{middle:.2f} [{least:.2f}-{most:.2f}]"
        for middle, least, most in (found["ratio_processor"], found["ratio_wall"])
    )
    return (
        f"| {name} | {peer['settings']} | {own['settings']} | {peer['tokens_per_processor_second'][0]:,.0f} /"
        f" {own['tokens_per_processor_second'][0]:,.0f} | {' | '.join(ratios)} |"
    )


def table(found: dict[str, Any], options: argparse.Namespace) -> str:
    """Return the table of all pairs, headed by the shape, the batch and the number of threads."""
    head = (
        f"{options.shape}, {options.rows} rows of {options.length}, {options.threads} threads, n = {options.rounds}"
        " paired turns\n\n"
        "| peer | its settings | ours | tokens a processor second, peer / ours | ratio, processor | ratio, clock |\n"
        "|---|---|---|---|---|---|"
    )
    return "\n".join([head, *(line(name, one) for name, one in found.items())])


if __name__ == "__main__":
    main()
