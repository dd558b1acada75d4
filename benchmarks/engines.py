"""Run a recipe's corpus half with worker processes, with Ray and on Slurm, cause losses, and compare every digest.

    python -m benchmarks.engines                     # kitchen-small; Ray and Slurm with virtual nodes
    python -m benchmarks.engines --recipe webdocs    # the real crawl (PEDIGREE_DATA)
    python -m benchmarks.engines --sides slurm --recorded tests/golden.json   # without making it here

The sides are the shipped profiles `local`, `ray` and `slurm` with the sizes of this machine. Both clusters are those of
the tests. Ray (tests/cluster/miniray.py) has a head without cores and two nodes with one core each; run the benchmark
with an interpreter that has the extra `ray`. Slurm (tests/cluster/minislurm.py) has two nodes, and every stage in ranks
is an array of two tasks; it needs slurm-wlm and munge. Both need root.

On each cluster a process that makes a rank gets SIGKILL, and later a node that makes a rank of another stage loses its
power; it comes back at once. With `--own`, each job starts Ray itself, as the shipped profile does without an address,
and on Ray nothing is killed. Exit code 1 if a digest differs. With `--recorded`, digests are compared with those that
`tests.golden` recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from assets.state.chain import CHAIN
from benchmarks.chain import PEDIGREE
from tests.cluster import miniray, minislurm
from tests.cluster.miniray import MiniRay
from tests.cluster.minislurm import MiniSlurm

SIDES = ("local", "ray", "slurm")
PROFILES = Path(__file__).parent.parent / "resources" / "profiles"
RECIPES = Path(__file__).parent.parent / "tests" / "recipes"
LOOK_SECONDS = 0.05
TASKS = 2  # of an array


def main() -> int:
    """Run both sides, and print seconds, losses and whether the digests are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="kitchen-small")
    parser.add_argument("--until", default="token_shards", metavar="ASSET")
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--own", action="store_true", help="each job starts its own Ray; no cluster, no losses there")
    parser.add_argument("--recorded", type=Path, help="a file of `tests.golden`, whose digests are a side too")
    options = parser.parse_args()
    for side, lacking in (("ray", miniray.missing), ("slurm", minislurm.missing)):
        if side in options.sides and (what := lacking()):
            print(f"no {side} here: {what}", file=sys.stderr)
            return 1
    folder = Path(tempfile.mkdtemp(prefix="en-"))  # short, because the paths of sockets are
    folder.chmod(0o755)  # munge refuses a socket whose folders others cannot reach
    run = {"local": _locally, "ray": _with_own_ray if options.own else _on_ray, "slurm": _on_slurm}
    try:
        sides = {side: run[side](options, folder) for side in SIDES if side in options.sides}
        return compared((recorded(options.recorded, options.recipe, sides) if options.recorded else {}) | sides)
    finally:
        shutil.rmtree(folder)


def _locally(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    return _run(options, folder, "local", {"default": {"workers": 2, "threads": 1}})


def _with_own_ray(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    return _run(options, folder, "ray", {"default": {"workers": 2, "threads": 1}})


def _on_ray(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    cluster = MiniRay(folder / "c")
    started = time.monotonic()
    try:
        cluster.start()
        print(f"Ray of {len(cluster.nodes)} nodes: {time.monotonic() - started:.1f} s", file=sys.stderr)
        losses = LossesOnRay(cluster, folder / "ray")
        losses.start()
        side = _run(options, folder, "ray", {"default": {"workers": 2, "threads": 1}}, cluster.spawn)
        losses.end()
        return side | {"losses": losses.caused}
    finally:
        cluster.stop()


def _on_slurm(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    cluster = MiniSlurm(folder / "s")
    started = time.monotonic()
    os.environ.update(cluster.variables)
    try:
        cluster.start()
        print(f"Slurm of {len(cluster.nodes)} nodes: {time.monotonic() - started:.1f} s", file=sys.stderr)
        losses = LossesOnSlurm(cluster)
        losses.start()
        changes = {
            "partitions_at_once": 3,
            "default": {"workers": 1, "threads": 1, "memory_gb": 2, "hours": 1},
            "stages": {name: {"nodes": TASKS} for name, declared in CHAIN.items() if declared.stage.in_ranks},
            "parts": {
                "slurm": {"partition": "main", "poll_seconds": 0.2, "environment": ["SLURM_CONF", "PEDIGREE_DATA"]},
            },
        }
        side = _run(options, folder, "slurm", changes)
        losses.end()
        return side | {"losses": losses.caused}
    finally:
        cluster.stop()


def _run(
    options: argparse.Namespace,
    folder: Path,
    name: str,
    changes: dict[str, Any],
    spawn: Callable[..., Any] = subprocess.Popen,
) -> dict[str, Any]:
    """What `pedigree run --json` says, with its `seconds`; `changes` are those of a shipped profile."""
    shipped = yaml.safe_load((PROFILES / f"{name}.yaml").read_text("utf-8"))
    merged = {key: {**shipped[key], **new} if isinstance(new, dict) else new for key, new in changes.items()}
    profile = folder / f"{name}.yaml"
    profile.write_text(yaml.safe_dump(shipped | merged))
    argv = [*PEDIGREE, "run", options.recipe, "--root", str(folder / name), "--profile", str(profile)]
    argv += ["--until", options.until, "--json"]
    os.environ.setdefault("PEDIGREE_RECIPES", str(RECIPES))
    started = time.monotonic()
    process = spawn(argv, stdout=subprocess.PIPE)
    answer = json.loads(process.communicate()[0].splitlines()[-1])
    return answer | {"seconds": time.monotonic() - started, "root": str(folder / name), "cost": _cost(answer)}


def _cost(answer: dict[str, Any]) -> float:
    """Processor seconds in the records of the artifacts: jobs and ranks, without Ray's own processes."""
    made = [Path(told["uri"], "artifact.json") for cells in answer["assets"].values() for told in cells.values()]
    return sum(json.loads(path.read_text("utf-8"))["cost"]["cpu_seconds"] for path in made)


def recorded(path: Path, recipe: str, sides: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the recorded digests of the assets that any side has made, as a side."""
    made = {asset for side in sides.values() for asset in side["assets"]}
    digests = json.loads(path.read_text("utf-8"))[recipe]
    assets = {
        asset: {part: {"digest": digest} for part, digest in cells.items()}
        for asset, cells in digests.items()
        if asset in made
    }
    return {"recorded": {"assets": assets, "seconds": 0.0, "cost": 0.0, "ok": True, "error": ""}}


def compared(sides: dict[str, dict[str, Any]]) -> int:
    """Print what each side made and lost, and whether its digests are those of the first side; return an exit code."""
    digests = {
        name: {(asset, part): told["digest"] for asset, cells in side["assets"].items() for part, told in cells.items()}
        for name, side in sides.items()
    }
    for name, side in sides.items():
        said = f"{side['seconds']:.1f} s, {side['cost']:.1f} processor seconds in the records"
        print(f"{name}: {len(digests[name])} artifacts, {said}; ok: {side['ok']} {side['error']}")
        for loss in side.get("losses", ()):
            print(f"  {loss}")
    first, *others = digests
    is_equal = all(side["ok"] for side in sides.values())
    for name in others:
        differing = sorted(
            cell for cell in digests[first] | digests[name] if digests[first].get(cell) != digests[name].get(cell)
        )
        print(f"{name} against {first}: {len(digests[first]) - len(differing)} of {len(digests[first])} digests equal")
        for asset, part in differing:
            print(f"  differs: {asset} {part}")
        is_equal = is_equal and not differing
    return 0 if is_equal else 1


class Losses(threading.Thread, ABC):
    """Kills a process while it makes a rank, and then cuts the power of a node that makes one of another stage."""

    def __init__(self, cluster: MiniRay | MiniSlurm) -> None:
        super().__init__(daemon=True)
        self._cluster, self._ended = cluster, threading.Event()
        self.caused: list[str] = []

    def run(self) -> None:
        """Let a rank that runs be lost with its process, and one of another stage with its node."""
        first = self._wait_for_rank(but="")
        if first is None:
            return
        stage, rank, node, process = first
        os.kill(process, signal.SIGKILL)
        self.caused.append(f"SIGKILL to a process while {rank} of {stage} ran on {node}")
        second = self._wait_for_rank(but=stage)
        if second is None:
            return
        stage, rank, node, _ = second
        self._cluster.fail(node)
        self.caused.append(f"{node} cut off while it made {rank} of {stage}")
        self._cluster.revive(node)

    def end(self) -> None:
        """Cause no further loss."""
        self._ended.set()
        self.join()

    def _wait_for_rank(self, *, but: str) -> tuple[str, str, str, int] | None:
        """Return stage, rank, node and process of a rank that runs, of another stage than `but`; None at the end."""
        while not self._ended.wait(LOOK_SECONDS):
            found = next((one for one in self._running() if one[0] != but), None)
            if found:
                return found
        return None

    @abstractmethod
    def _running(self) -> Iterator[tuple[str, str, str, int]]:
        """Yield (stage, rank, node, process id) for each rank that a worker process computes at this moment."""


class LossesOnRay(Losses):
    """Losses of the tasks of Ray, which leave a sign with their node's name in the job's scratch folder."""

    def __init__(self, cluster: MiniRay, root: Path) -> None:
        super().__init__(cluster)
        self._root = root

    def _running(self) -> Iterator[tuple[str, str, str, int]]:
        for sign in self._root.glob("*/*/scratch/ray-*/[0-9]*"):
            try:
                node = sign.read_text().partition(" ")[0]
            except OSError:
                continue
            if node in self._cluster.nodes and (worker := process_of(lambda line: line.startswith(b"ray::rank"))):
                yield sign.relative_to(self._root).parts[0], f"rank {sign.name}", node, worker


class LossesOnSlurm(Losses):
    """Losses of the tasks of arrays."""

    def _running(self) -> Iterator[tuple[str, str, str, int]]:
        queue = subprocess.run(["squeue", "-h", "-t", "R", "-o", "%i %N %j"], capture_output=True, text=True).stdout
        for line in queue.splitlines():
            job, node, name = line.split(maxsplit=2)
            array, _, number = job.partition("_")
            if number and (task := process_of(partial(_is_task, words=[f"{number}/{TASKS}".encode(), array.encode()]))):
                yield name.partition("-")[0], f"task {number}", node, task


def _is_task(line: bytes, words: list[bytes]) -> bool:
    return set(words) <= set(line.split(b"\0"))


def process_of(fits: Callable[[bytes], bool]) -> int:
    """Return the id of a process whose command line fits; 0 if there is none."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if fits(entry.read_bytes()):
                return int(entry.parent.name)
        except OSError:
            continue
    return 0


if __name__ == "__main__":
    sys.exit(main())
