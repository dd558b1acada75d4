"""Measure steps of GRPO with a model in shares, whose weights are gathered for each token or once for all answers.

`python -m benchmarks.drawing` trains a random model by GRPO in two processes on this machine, which talk by gloo, with
`answer_weights` sharded and gathered in turns. Counted are the messages by which FSDP gathers weights, with the bytes
that each process then has, and per step the wall and processor seconds of the first process, without the first step of
each training. The exit code is 1 unless both give the same model to the bit. Answers have random tokens, so nearly all
are as long as they may be; the reward is the part `length`, which costs nothing. With `--control` the sides draw other
answers, and the exit code must be 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import parallel
from benchmarks.fake_mesh import Messages

KINDS = ("sharded", "gathered")
GATHERS = "allgather_base"  # torch's name for the message by which FSDP gathers a group of weights
PROCESSES, ROWS, GENERATIONS = 2, 8, 4  # answers of a step, and those of a prompt
LENGTH, LEARNING_RATE = 128, 1e-3
TOKENS_OF_A_WORD = 8  # about, if they are random
PRELOADED = ("trl.trainer.grpo_trainer", "training.posttrain.align.sampled")


def main() -> int:
    """Measure both kinds in turns, and print messages, medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--new", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--steps", type=int, default=4, help="of a training; the first one is not timed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--control", action="store_true", help="draw other answers on one side, which must show")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_inputs(root, width=options.width, layers=options.layers)
        common = {"new": options.new, "steps": options.steps, "control": options.control}
        tasks = [(kind, partial(trained, root, f"sent {kind}", kind, counts=True, **common)) for kind in KINDS]
        for number in range(options.rounds):
            order = KINDS if number % 2 == 0 else KINDS[::-1]
            tasks += [(kind, partial(trained, root, f"{kind} {number}", kind, **common)) for kind in order]
        (root / "stores").mkdir()
        found = parallel.in_processes([(PROCESSES, task) for _, task in tasks], root / "stores", preload=PRELOADED)
    told = [(kind, one) for (kind, _), one in zip(tasks, found, strict=True)]
    for kind, one in told[: len(KINDS)]:
        number, size = one["sent"]
        print(f"{kind}: {number / options.steps:,.0f} gathers of {size / options.steps / 1e6:,.1f} MB in all a step")
    for unit in ("wall", "processor"):
        each = {kind: [one[unit] for name, one in told[len(KINDS) :] if name == kind] for kind in KINDS}
        ratios = [gathered / sharded for sharded, gathered in zip(*(each[kind] for kind in KINDS), strict=True)]
        medians = ", ".join(f"{kind} {statistics.median(some):.2f}" for kind, some in each.items())
        spread = f"[{min(ratios):.2f}-{max(ratios):.2f}]"
        print(f"{unit} seconds a step: {medians}; gathered / sharded {statistics.median(ratios):.2f} {spread}")
    digests = {one["digest"] for _, one in told}
    print("the same model to the bit" if len(digests) == 1 else f"THE MODELS DIFFER: {digests}")
    spread = [one["reward_spread"] for _, one in told]
    if not all(spread):
        print("no answer had another reward than the others: nothing was learned, and so nothing compared")
        return 1
    return 0 if len(digests) == 1 else 1


def write_inputs(root: Path, *, width: int, layers: int) -> None:
    """Write the random model and the preference pairs with which the trainings begin."""
    from tests.training.posttrain import tiny
    from training.generate.chat_template import TEMPLATE_FILE
    from training.posttrain.chat import template

    folder = tiny.write_model(root / "sft_model" / "model", width=width, layers=layers)
    (folder / TEMPLATE_FILE).write_text(template("pedigree", ""), "utf-8")
    tiny.commit(root, "sft_model")
    source = tiny.write_rows(root / "pairs.jsonl", tiny.preference_rows())
    pairs = {"data": [{"uri": source, "format": "chosen_rejected"}], "held_out_fraction": 0.25}
    tiny.run("preferences", root / "preference_data", {"preferences": pairs})


def trained(
    root: Path,
    name: str,
    kind: str,
    rank: int,
    size: int,
    *,
    new: int,
    steps: int,
    counts: bool = False,
    control: bool = False,
) -> dict[str, Any]:
    """Train in this process as one of `size`; return what was sent, or seconds per step, and the model's digest."""
    from accelerate.state import AcceleratorState

    from tests.training.posttrain import tiny

    AcceleratorState._reset_state(reset_partial_state=True)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": 29500}
    os.environ |= {key: str(number) for key, number in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
    settings = {
        "method": "grpo",
        "batch_size": ROWS,
        "num_generations": GENERATIONS,
        "max_new_tokens": new,
        "max_length": LENGTH,
        "max_steps": steps,
        "learning_rate": LEARNING_RATE,
        "precision": "fp32",
        "rewards": {"length": 1.0},
        "parts": {"length": {"most_words": max(1, new // TOKENS_OF_A_WORD)}},  # so that answers have different rewards
        "seed": int(control and kind == "gathered"),
    }
    inputs = tiny.made(root, "sft_model"), tiny.made(root, "preference_data")
    job = tiny.job("align", root / name, {"align": settings}, inputs, processes=size, shard=size, answer_weights=kind)
    with warnings.catch_warnings(), ends_of_steps() as ends, Messages() if counts else contextlib.nullcontext() as sent:
        warnings.simplefilter("ignore")
        tiny.run_job(job, tiny.STAGES)
    if rank:  # the first process writes the artifact
        return {}
    (first_wall, first_processor), (last_wall, last_processor) = ends[0], ends[-1]
    record = json.loads((root / name / "artifact.json").read_text())
    assert len(ends) == steps and record["notes"]["answer_weights"] == f"{kind}, by the profile"
    return {
        "sent": sent.found[GATHERS] if sent else None,
        "wall": (last_wall - first_wall) / (steps - 1),
        "processor": (last_processor - first_processor) / (steps - 1),
        "digest": record["digest"],
        "reward_spread": max(number["reward_std"] for number in _logged(root / name)),
    }


def _logged(folder: Path) -> list[dict[str, float]]:
    """Return the numbers of the steps of a training."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "reward_std" in row]


@contextlib.contextmanager
def ends_of_steps() -> Iterator[list[tuple[float, float]]]:
    """Yield a list to which the end of each step adds the seconds of the clock and of this process."""
    from training.posttrain import fit

    ends: list[tuple[float, float]] = []
    original = fit.Reporter.on_step_end

    def noted(*given: Any, **named: Any) -> None:
        ends.append((time.perf_counter(), time.process_time()))
        original(*given, **named)

    fit.Reporter.on_step_end = noted
    try:
        yield ends
    finally:
        fit.Reporter.on_step_end = original


if __name__ == "__main__":
    sys.exit(main())
