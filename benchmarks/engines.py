"""Run a recipe's corpus half with worker processes and with Ray, cause losses meanwhile, and compare every digest.

    python -m benchmarks.engines                     # kitchen-small on a Ray cluster of three virtual nodes
    python -m benchmarks.engines --recipe webdocs    # the real crawl (PEDIGREE_DATA)

The cluster is that of the tests (tests/cluster/miniray.py): a head without cores and two nodes with one core each. A
worker that makes a rank gets SIGKILL, and later a node that makes a rank loses its power; it comes back at once.
With `--own`, each job starts Ray itself, as the shipped profile `ray` does, and nothing is killed. Exit code 1 if a
digest differs.
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
from pathlib import Path
from typing import Any

import yaml

from benchmarks.chain import PEDIGREE
from tests.cluster.miniray import MiniRay, missing

RECIPES = Path(__file__).parent.parent / "tests" / "recipes"
LOOK_SECONDS = 0.05


def main() -> int:
    """Run both sides, and print seconds, losses and whether the digests are equal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="kitchen-small")
    parser.add_argument("--until", default="token_shards", metavar="ASSET")
    parser.add_argument("--own", action="store_true", help="each job starts its own Ray; no cluster, no losses")
    options = parser.parse_args()
    lacking = missing()
    if lacking:
        print(f"no Ray cluster here: {lacking}", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="en-"))  # short, because the paths of sockets are
    try:
        sides = {"local": _run(options, folder, "local")}
        sides["ray"] = _run(options, folder, "ray") if options.own else _on_a_cluster(options, folder)
    finally:
        shutil.rmtree(folder)
    return _compared(sides)


def _on_a_cluster(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    cluster = MiniRay(folder / "c")
    started = time.monotonic()
    try:
        cluster.start()
        print(f"cluster of {len(cluster.nodes)} nodes: {time.monotonic() - started:.1f} s", file=sys.stderr)
        losses = Losses(cluster, folder / "ray")
        losses.start()
        side = _run(options, folder, "ray", cluster)
        losses.end()
        side["losses"] = losses.caused
        return side
    finally:
        cluster.stop()


def _run(options: argparse.Namespace, folder: Path, engine: str, cluster: MiniRay | None = None) -> dict[str, Any]:
    """What `pedigree run --json` says, with its `seconds`."""
    profile = folder / f"{engine}.yaml"
    size = {"backend": "local", "engine": engine, "workers": 2, "threads": 1}
    profile.write_text(yaml.safe_dump({"name": engine, "default": size}))
    argv = [*PEDIGREE, "run", options.recipe, "--root", str(folder / engine), "--profile", str(profile)]
    argv += ["--until", options.until, "--json"]
    os.environ.setdefault("PEDIGREE_RECIPES", str(RECIPES))
    started = time.monotonic()
    spawn = subprocess.Popen if cluster is None else cluster.spawn
    process = spawn(argv, stdout=subprocess.PIPE)
    answer = json.loads(process.communicate()[0].splitlines()[-1])
    return answer | {"seconds": time.monotonic() - started, "root": str(folder / engine), "cost": _cost(answer)}


def _cost(answer: dict[str, Any]) -> float:
    """Processor seconds in the records of the artifacts: jobs and ranks, without Ray's own processes."""
    made = [Path(told["uri"], "artifact.json") for cells in answer["assets"].values() for told in cells.values()]
    return sum(json.loads(path.read_text("utf-8"))["cost"]["cpu_seconds"] for path in made)


def _compared(sides: dict[str, dict[str, Any]]) -> int:
    digests = {
        name: {(asset, part): told["digest"] for asset, cells in side["assets"].items() for part, told in cells.items()}
        for name, side in sides.items()
    }
    for name, side in sides.items():
        said = f"{side['seconds']:.1f} s, {side['cost']:.1f} processor seconds in the records"
        print(f"{name}: {len(digests[name])} artifacts, {said}; ok: {side['ok']} {side['error']}")
        for loss in side.get("losses", ()):
            print(f"  {loss}")
    same = sum(digests["ray"].get(cell) == digest for cell, digest in digests["local"].items())
    print(f"equal digests: {same} of {len(digests['local'])}")
    return 0 if same == len(digests["local"]) and all(side["ok"] for side in sides.values()) else 1


class Losses(threading.Thread):
    """Kills a worker while it makes a rank, and then cuts the power of a node that makes one."""

    def __init__(self, cluster: MiniRay, root: Path) -> None:
        super().__init__(daemon=True)
        self._cluster, self._root, self._ended = cluster, root, threading.Event()
        self.caused: list[str] = []

    def run(self) -> None:
        """Let a rank that runs be lost with its worker, and one of another stage with its node."""
        first = self._running(but="")
        if first is None:
            return
        asset, rank, node = first
        os.kill(self._worker(), signal.SIGKILL)
        self.caused.append(f"SIGKILL to a worker while rank {rank} of {asset} ran on {node}")
        second = self._running(but=asset)
        if second is None:
            return
        asset, rank, node = second
        self._cluster.fail(node)
        self.caused.append(f"{node} cut off while it made rank {rank} of {asset}")
        self._cluster.revive(node)

    def end(self) -> None:
        """Cause no further loss."""
        self._ended.set()
        self.join()

    def _running(self, *, but: str) -> tuple[str, str, str] | None:
        """Asset, rank and node of a rank that runs, of another asset than `but`; None if none runs before the end."""
        while not self._ended.wait(LOOK_SECONDS):
            for sign in self._root.glob("*/*/scratch/ray-*/[0-9]*"):
                asset = sign.relative_to(self._root).parts[0]
                try:
                    node = sign.read_text().partition(" ")[0]
                except OSError:
                    continue
                if asset != but and node in self._cluster.nodes and self._worker():
                    return asset, sign.name, node
        return None

    def _worker(self) -> int:
        """The process id of a worker of Ray that makes a rank; 0 if there is none."""
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if entry.read_bytes().startswith(b"ray::rank"):
                    return int(entry.parent.name)
            except OSError:
                continue
        return 0


if __name__ == "__main__":
    sys.exit(main())
