"""A stage of toy ranks that fails where a test says, run by the real runner in real processes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from resources.compute.base import Backend, Task
from resources.profile import Size
from tests.jobs import job_by_hand
from training.contract.artifact import Artifact
from training.contract.job import write_job
from training.contract.run_settings import RunSettings

if TYPE_CHECKING:
    from assets.materialize.causes import StageFailed

# In a module of its own, so that pool workers and the nodes of a cluster import it. A fault strikes before its rank, in
# as many attempts as the list has it.
TOY = """
import os, signal, sys, time
from pathlib import Path
from training.contract.job import DataError, Outcome
from training.contract.running.phase import Phase
from training.contract.running.command_line import main
from training.contract.stage import Stage

def num_ranks(job):
    return job.settings["ranks"]

def run_rank(job, work, rank):
    for number, (where, how) in enumerate(job.settings["faults"]):
        struck = Path(job.settings.get("signs", work.path.parent), f"fault-{number}")
        if where == rank and not struck.exists():
            struck.touch()
            strike(how, rank, struck)
    with open(work.path / f"{rank}.txt", "a") as stream:  # made twice, a rank stands there twice
        stream.write(f"rank {rank}\\n")
    return {"files": [f"{rank}.txt"]}

def strike(how, rank, sign):
    if how == "fill":
        sign.write_bytes(bytes(8 << 20))
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "memory":
        print(len(bytes(os.urandom(1 << 20)) * 300))
    if how == "sleep":
        time.sleep(300)
    if how == "tell":  # what it should not
        print("known as", os.environ["TOY_API_KEY"])
        raise RuntimeError(f"a server said {os.environ['TOY_API_KEY']}")
    raise (DataError if how == "bad" else RuntimeError)(f"rank {rank} met a fault")

def finish(job, work, results):
    return Outcome(files=tuple(name for result in results for name in result["files"]))

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], {"toy": Stage(name="toy", version="1", module="toy_ranks", in_ranks=True)}))
"""

# Each rank of the second phase writes what all ranks of the first have written.
PHASED = TOY.replace('work.path / f"{rank}', 'work.scratch / f"{rank}').replace(
    '"files": [f"{rank}', '"files": [f"scratch/{rank}'
)
PHASED = PHASED.replace(
    "def finish(job, work, results):",
    """
def gather(job, work, rank):
    texts = [(work.scratch / f"{one}.txt").read_text() for one in range(num_ranks(job))]
    (work.path / f"all-{rank}.txt").write_text("".join(texts))
    return {"files": [f"all-{rank}.txt"]}

PHASES = (
    Phase(name="make", num_ranks=num_ranks, run_rank=run_rank),
    Phase(name="gather", num_ranks=num_ranks, run_rank=gather),
)

def finish(job, work, phases):
    results = phases["gather"]""",
)


def toy_task(
    folder: Path,
    *,
    ranks: int,
    faults: list[tuple[int, str]],
    size: Size | None = None,
    num_tasks: int = 1,
    workers: int | None = 1,
    phases: tuple[str, ...] = (),
) -> Task:
    """The task of a toy job, which is written."""
    (folder / "toy_ranks.py").write_text(PHASED if phases else TOY)
    settings = {"ranks": ranks, "faults": faults}
    job = job_by_hand("toy", folder / "toys" / "f", settings, run=RunSettings(workers=workers))
    write_job(job, Path(job.output) / "job.json")
    return Task(
        key="toys-f",
        argv=("-m", "toy_ranks", f"{job.output}/job.json"),
        size=size or Size(threads=1),
        folder=job.output,
        environment={"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        num_tasks=num_tasks,
        phases=phases,
    )


def made_of(task: Task, backend: Backend) -> tuple[Artifact | StageFailed, list[str]]:
    """What comes of a task and all its attempts, as an asset is told, and what the run says meanwhile."""
    from assets.materialize.causes import StageFailed
    from assets.materialize.follow import Following
    from assets.materialize.watchers import Watching

    said: list[str] = []
    watch: Any = SimpleNamespace(
        say=said.append, is_canceling=lambda: False, observe=lambda _: None, tell_waiting=lambda *_: None
    )
    run: Any = SimpleNamespace(log_metrics=lambda _: None, set_tags=lambda _: None)
    cell: Any = SimpleNamespace(asset="toys", partition="r")
    try:
        with Watching(Path(task.folder), run_id="toy") as watching:
            job = Following(backend=backend, task=task, run=run, watch=watch, cell=cell, watching=watching)
            return job.made(), said
    except StageFailed as failure:
        return failure, said
