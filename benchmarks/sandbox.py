"""Measure what it costs to judge a program in the sandbox, beside an interpreter's start and lm-eval's `code_eval`.

    PEDIGREE_DATA=… python -m benchmarks.sandbox [--peers FOLDER] [--pairs 5] [--programs 82]

`FOLDER` holds `code_eval`, the metric of Hugging Face's `evaluate` (its folder `metrics`), which the environment lacks.
Programs are HumanEval's published solutions, and as many that return another value, judged one after the other, in
turns with the peer, which forks this process for each program. Both must give the same verdicts. Beside elapsed time
stands the processor time of this process and all that it starts, which depends less on other work on the machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from training.contract.process.cores import available_cores
from training.contract.sandbox.judged import Program, judged
from training.data.sources import read_rows

HUMAN_EVAL = "data://benchmarks/human_eval.jsonl.gz"


def programs(number: int) -> list[Program]:
    """Return so many published solutions, from the first again after the last, each followed by a wrong program."""
    found = list[Program]()
    for row in islice(cycle(list(read_rows(HUMAN_EVAL))), number):
        test = f"{row['test']}\ncheck({row['entry_point']})"
        codes = (row["prompt"] + row["canonical_solution"], row["prompt"] + "    return 'another'\n")
        found += [Program(code=code, test=test, given=row["prompt"]) for code in codes]
    return found


def by_sandbox(given: list[Program], *, at_once: int = 1) -> list[bool]:
    """Return the sandbox's verdicts."""
    return [verdict.passed for verdict in judged(given, at_once=at_once)]


def by_code_eval(metric: Any, given: list[Program]) -> list[bool]:
    """Return the verdicts of `code_eval`, with one worker."""
    _, results = metric.compute(
        references=[one.test for one in given], predictions=[[one.code] for one in given], k=[1], num_workers=1
    )
    return [results[place][0][1]["passed"] for place in range(len(given))]


def interpreters(given: list[Program]) -> list[bool]:
    """Start an interpreter for each program, which does nothing."""
    return [subprocess.run([sys.executable, "-IS", "-c", "pass"], check=True).returncode == 0 for _ in given]


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Elapsed and processor milliseconds for a program, and the verdicts on all."""

    elapsed: float
    processor: float
    verdicts: list[bool]


def measured(run: Callable[[list[Program]], list[bool]], given: list[Program]) -> Round:
    """Return what a way of judging programs costs."""
    started, used = time.perf_counter(), processor_seconds()
    verdicts = run(given)
    elapsed = time.perf_counter() - started
    each = 1000 / len(given)
    return Round(elapsed=each * elapsed, processor=each * (processor_seconds() - used), verdicts=verdicts)


def processor_seconds() -> float:
    """Return the processor time of this process and of all that it started and that has ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def spread(values: list[float]) -> str:
    """Return measured values as a text: their median, then the smallest and the largest in brackets."""
    return f"{median(values):.1f} [{min(values):.1f}-{max(values):.1f}]"


def main(argv: list[str] | None = None) -> int:
    """Print the cost of a program by each way; return 1 if the verdicts differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="folder with code_eval")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--programs", type=int, default=82)
    options = parser.parse_args(argv)
    given = programs(options.programs)
    ways: dict[str, Callable[[list[Program]], list[bool]]] = {"interpreter": interpreters, "sandbox": by_sandbox}
    if options.peers:
        import evaluate

        os.environ["HF_ALLOW_CODE_EVAL"] = "1"
        metric = evaluate.load(str(options.peers / "code_eval"))
        ways["code_eval"] = lambda some: by_code_eval(metric, some)
    side_by_side = {f"{cores} at once": cores for cores in {available_cores()} - {1}}
    ways |= {name: partial(by_sandbox, at_once=cores) for name, cores in side_by_side.items()}
    by_sandbox(given[:1])  # whether there is one
    found: dict[str, list[Round]] = {name: [] for name in ways}
    for _ in range(options.pairs):
        for name, run in ways.items():
            found[name].append(measured(run, given))
    for name, rounds in found.items():
        elapsed, processor = spread([one.elapsed for one in rounds]), spread([one.processor for one in rounds])
        print(f"{name:12} {elapsed} ms, {processor} processor ms")
    bare = found["interpreter"]
    more = spread([ours.elapsed - one.elapsed for ours, one in zip(found["sandbox"], bare, strict=True)])
    used = spread([ours.processor - one.processor for ours, one in zip(found["sandbox"], bare, strict=True)])
    print(
        f"a program costs {more} ms beyond the interpreter's start, {used} processor ms; {len(given)} programs,"
        f" n = {options.pairs}"
    )
    each = {at_once: found[name] for name, at_once in side_by_side.items()} | {1: found["sandbox"]}
    for at_once, rounds in sorted(each.items()):
        seconds, used = (
            spread([getattr(one, unit) * len(given) / 1000 for one in rounds]) for unit in ("elapsed", "processor")
        )
        cores = spread([one.processor / one.elapsed for one in rounds])
        print(f"all {len(given)} programs, {at_once} at once: {seconds} s, {used} processor s, so {cores} cores")
    if options.peers:
        ratios = [ours.elapsed / peer.elapsed for ours, peer in zip(found["sandbox"], found["code_eval"], strict=True)]
        print(f"sandbox ÷ code_eval: {spread(ratios)}")
        if found["sandbox"][0].verdicts != found["code_eval"][0].verdicts:
            print("the verdicts differ")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
