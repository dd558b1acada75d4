"""Tokens a second of `pedigree serve` beside `transformers serve`, its engine, for one model in one run.

    python -m benchmarks.serving FOLDER            # a folder in the transformers layout with a chat template
    python -m benchmarks.serving FOLDER --at-once 1 4 --requests 32 --rounds 5

Both servers hold the model all the time, and are asked in turn, in another order each round. Each asks the same
questions greedily, `--at-once` of them at a time. Counted are the tokens of the answers, seconds of the clock, and
processor seconds of the server with all its processes. Exit code 1 if an answer differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from benchmarks.chain import PEDIGREE
from benchmarks.rounds import ratios, spread
from tests.cluster.minislurm import free_ports

OURS, ENGINE = "pedigree serve", "transformers serve"
START_SECONDS = 300
QUESTION = "How hot should the oven be for the pie of table {number}, and how long does it stay there?"


def main() -> int:
    """Ask both servers, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    folder = options.folder.resolve()
    same = True
    with ExitStack() as stack:
        servers = {name: stack.enter_context(server(name, folder)) for name in (OURS, ENGINE)}
        for _, port, model in servers.values():
            answers(port, model, 2, 1, options.tokens)  # what the first request loads is loaded
        for at_once in options.at_once:
            speeds: dict[str, list[float]] = {OURS: [], ENGINE: []}
            costs: dict[str, list[float]] = {OURS: [], ENGINE: []}
            for number in range(options.rounds):
                said = {}
                for name in (OURS, ENGINE)[:: 1 if number % 2 else -1]:
                    process, port, model = servers[name]
                    begun, spent = time.perf_counter(), processor_seconds(process)
                    said[name], tokens = answers(port, model, options.requests, at_once, options.tokens)
                    speeds[name].append(tokens / (time.perf_counter() - begun))
                    costs[name].append(tokens / (processor_seconds(process) - spent))
                same = same and said[OURS] == said[ENGINE]
            for what, found in (("second", speeds), ("processor second", costs)):
                told = ", ".join(f"{name} {spread(values)}" for name, values in found.items())
                print(f"{at_once} at once, tokens a {what}: {told}; {spread(ratios(found[OURS], found[ENGINE]), 3)}")
    print("the answers are the same" if same else "the answers differ")
    return 0 if same else 1


@contextmanager
def server(name: str, folder: Path) -> Iterator[tuple[psutil.Process, int, str]]:
    """Start a server of a folder; yield its process, its port, and the model's name in requests."""
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as scratch:
        if name == OURS:
            command, model = [*PEDIGREE, "serve", str(folder), "--root", scratch, "--port", str(port)], folder.name
        else:
            engine = str(Path(sys.executable).with_name("transformers"))
            command, model = [engine, "serve", str(folder), "--host", "127.0.0.1", "--port", str(port)], str(folder)
        with (Path(scratch) / "log").open("wb") as log:
            process = psutil.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(process, port, Path(scratch) / "log")
            yield process, port, model
        finally:
            for one in (*process.children(recursive=True), process):
                one.terminate()
            process.wait()


def wait_for(process: psutil.Process, port: int, log: Path) -> None:
    """Return once a server answers. Raise RuntimeError with what it said if it ends before."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise RuntimeError(log.read_text(errors="replace")[-2000:])


def processor_seconds(process: psutil.Process) -> float:
    """Return what a process and its children have spent."""
    every = (process, *process.children(recursive=True))
    return sum(times.user + times.system for times in (one.cpu_times() for one in every))


def answers(port: int, model: str, number: int, at_once: int, most: int) -> tuple[list[str], int]:
    """Ask so many questions, some at a time; return the answers, and the number of their tokens."""

    def ask(one: int) -> tuple[str, int]:
        messages = [{"role": "user", "content": QUESTION.format(number=one)}]
        asked = {"model": model, "messages": messages, "max_tokens": most, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            data=json.dumps(asked).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            said = json.loads(response.read())
        return said["choices"][0]["message"]["content"], said["usage"]["completion_tokens"]

    with ThreadPoolExecutor(at_once) as pool:
        told = list(pool.map(ask, range(number)))
    return [text for text, _ in told], sum(tokens for _, tokens in told)


if __name__ == "__main__":
    sys.exit(main())
