"""The engine `ray`: each rank is a task of Ray Core.

The tasks run on the cluster whose address is given, or on a Ray that the job starts. A task writes its files and its
mark into the job's folder, which every node must see, and returns only a small result. So Ray's object store stays
empty, and the loss of a worker or a node loses no finished rank. Ray itself repeats nothing: this module submits a lost
rank again, at most `rank_retries` times. Tasks end with the job, and the next job continues from the marks.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from training.contract.engines import ray_task
from training.contract.engines.engine import Here, Maker, check_installed
from training.contract.engines.workers import WorkerDied
from training.contract.files.writing import has_ended, this_process
from training.contract.records import RecipeError
from training.contract.secrets import masked

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # between two looks at what runs while no rank ends
WAITING_SECONDS = 5.0  # after which a job without a running rank says what it waits for
START_SECONDS = 120.0  # for a cluster to answer
SOCKET_ROOM = 64  # bytes of the path of a socket below Ray's folder; the whole path has at most 107
FOLDER_PREFIX = "ray-"  # of the folder of Ray of the job's own, followed by the name of the job's process
OBJECT_STORE_BYTES = 75 * 2**20  # the least that Ray takes; ranks hand over files
# The job's variables that the workers of a cluster get. The others, credentials above all, belong to the nodes.
PASSED_ON = (
    *("PEDIGREE_DATA", "PEDIGREE_FETCH_ALLOW", "PEDIGREE_FETCH_MAX_GB", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"),
    *("TOKENIZERS_PARALLELISM", "PYTHONHASHSEED", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS"),
)
# Read by Ray when it is imported and by the processes that it starts.
FLAGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_task_oom_retries": "0",  # by default without end; this module counts
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
OWN_FLAGS = {
    # Ray then binds every port to 127.0.0.1. Otherwise it replaces this address by the machine's outer one.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_process_group_cleanup_enabled": "1",  # children of a killed worker end with it
    "RAY_AUTH_MODE": "token",
}


def each_result(maker: Maker, ranks: Sequence[int], here: Here) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run the ranks as tasks of Ray (see `training.contract.engines.engine.Engine`).

    Raise RecipeError if Ray is not installed, its cluster does not answer, or a node cannot run ranks of this job;
    WorkerDied if a rank was lost more often than `rank_retries` allows.
    """
    with _Tasks(_connection(here), maker, here) as tasks:
        yield from tasks.each_result(ranks)


# Connecting


_kept = ExitStack()  # the connection, until this process ends: a stage may have several phases of ranks
_ray: ModuleType | None = None


def _connection(here: Here) -> ModuleType:
    global _ray
    if _ray is None:
        atexit.register(_kept.close)
        _ray = _kept.enter_context(_connected(here))
    return _ray


@contextmanager
def _connected(here: Here) -> Iterator[ModuleType]:
    """Connect to the cluster that the profile or RAY_ADDRESS names, or start Ray on this node until the block ends.

    Ray's own handler of SIGTERM is removed, so that the signal ends the job and with it the tasks.
    """
    check_installed("ray")
    address = here.run.ray_address or os.environ.get("RAY_ADDRESS", "")
    os.environ.update(FLAGS if address else {**FLAGS, **OWN_FLAGS, "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    import ray

    handler = signal.getsignal(signal.SIGTERM)
    folder = None if address else _own_folder()
    try:
        _join(ray, address, here) if folder is None else _start(ray, folder, here)
        signal.signal(signal.SIGTERM, handler)
        yield ray
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, handler)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _own_folder() -> Path:
    """Make the folder for Ray's sockets and logs."""
    folder = Path(tempfile.gettempdir(), f"{FOLDER_PREFIX}{this_process()}")
    if len(os.fsencode(folder)) > 107 - SOCKET_ROOM:
        folder = Path("/tmp", folder.name)
    remove_left_folders(folder.parent)
    folder.mkdir(mode=0o700)
    return folder


def remove_left_folders(place: Path) -> None:
    """Remove the folders that Ray of this machine's killed jobs left in `place`."""
    for folder in place.glob(f"{FOLDER_PREFIX}*"):
        if has_ended(folder.name.removeprefix(FOLDER_PREFIX)):
            shutil.rmtree(folder, ignore_errors=True)


def _start(ray: ModuleType, folder: Path, here: Here) -> None:
    ray.init(
        address="local",
        num_cpus=max(here.run.num_workers, round(here.run.rank_cpus)),
        num_gpus=0,
        _memory=None if here.run.memory_gb is None else int(here.run.memory_gb * 2**30),
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        configure_logging=False,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(folder),
    )


def _join(ray: ModuleType, address: str, here: Here) -> None:
    """Connect to a cluster, which may still be starting.

    Raise RecipeError with the reason if that is impossible.
    """
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    where = f"the Ray cluster at {address}"
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            ray.init(address=address, configure_logging=False, runtime_env={"env_vars": passed})
            return here.progress.waits("")
        except ray.exceptions.AuthenticationError as error:
            raise _refused(f"{where} does not take this job's token", error) from None
        except RuntimeError as error:
            if "Version mismatch" not in str(error):
                raise
            raise _refused(f"{where} has another version of Ray or Python", error) from None
        except (ConnectionError, ValueError) as error:
            if time.monotonic() > deadline:
                raise _refused(f"{where} gave no answer in {START_SECONDS:.0f} s", error) from None
        here.progress.waits(f"an answer from {where}")
        time.sleep(LOOK_SECONDS)


def _refused(what: str, error: Exception) -> RecipeError:
    return RecipeError(f"ray_address: {what}: {masked(' '.join(str(error).split()))}")


# Running


class _Tasks:
    """The Ray tasks of a job.

    A limited number is submitted at once, and tasks that were lost with a worker or a node are submitted again.
    """

    def __init__(self, ray: ModuleType, maker: Maker, here: Here) -> None:
        self._ray, self._here = ray, here
        self._token = secrets.token_hex(8)
        self._signs = here.scratch / f"ray-{self._token}"
        self._order = {
            "token": self._token,
            "signs": str(self._signs),
            "folder": str(here.folder),
            "made_by": maker.made_by,
            "job": dict(maker.order),
            "versions": maker.versions(),
            "unset": [name for name in ("OMP_NUM_THREADS",) if name not in os.environ],
        }
        ray.cloudpickle.register_pickle_by_value(ray_task)
        self._function = ray.remote(ray_task.make_rank)
        self._flying: dict[Any, int] = {}
        self._lost = Counter[int]()
        self._memory_gb: dict[int, float] = {}  # of ranks that a node had too little memory for
        self._signs_seen: dict[str, int] = {}
        self._silent_since = time.monotonic()
        self._waits = ""

    def __enter__(self) -> _Tasks:
        self._signs.mkdir(parents=True)
        (self._signs / "token").write_text(self._token, "ascii")
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._signs, ignore_errors=True)

    def each_result(self, ranks: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield each rank and its result; raise the first error when the running ranks have ended."""
        left, failure = list(reversed(ranks)), None
        while self._flying or (left and failure is None):
            while left and failure is None and len(self._flying) < self._window():
                self._submit(left.pop())
            ended, _ = self._ray.wait(list(self._flying), num_returns=1, timeout=LOOK_SECONDS)
            self._look()
            for reference in ended:
                rank = self._flying.pop(reference)
                try:
                    result = self._result_of(reference, rank)
                except _Lost as lost:
                    failure = failure or self._again(rank, lost, left)
                except Exception as error:
                    failure = failure or error
                    self._call_off()
                else:
                    yield rank, result
        if failure is not None:
            raise failure

    def _submit(self, rank: int) -> None:
        memory_gb = self._memory_gb.get(rank, self._here.run.rank_memory_gb)
        asked = {"num_cpus": self._here.run.rank_cpus, "max_retries": 0, "name": f"rank {rank}"}
        if memory_gb is not None:
            asked["memory"] = int(memory_gb * 2**30)
        self._flying[self._function.options(**asked).remote({**self._order, "rank": rank})] = rank

    def _window(self) -> int:
        """The number of tasks that are submitted at once: twice as many as the cluster's cores can run."""
        return max(2, 2 * int(self._ray.cluster_resources().get("CPU", 0) / self._here.run.rank_cpus))

    def _result_of(self, reference: Any, rank: int) -> dict[str, Any]:
        """Return a rank's result.

        Raise _Lost if the rank was lost, its own error if it failed, and RecipeError if its node was refused.
        """
        from ray import exceptions

        try:
            answer = self._ray.get(reference)
        except exceptions.OutOfMemoryError:
            raise _Lost("was ended by Ray because its node ran out of memory", for_memory=True) from None
        except exceptions.NodeDiedError:
            raise _Lost("was lost with its node") from None
        except exceptions.WorkerCrashedError:
            raise _Lost("was lost with its worker") from None
        except (exceptions.ObjectLostError, exceptions.RaySystemError):
            raise _Lost("was lost with its worker or node") from None
        except exceptions.TaskUnschedulableError as error:
            raise RecipeError(f"rank_cpus, rank_memory_gb: Ray cannot place rank {rank}: {error}") from None
        if "refused" in answer:
            raise RecipeError(f"engine: {answer['refused']}")
        if "error" in answer:
            answer["error"].add_note(answer["told"])
            raise answer["error"]
        return answer["result"]

    def _again(self, rank: int, lost: _Lost, left: list[int]) -> Exception | None:
        """Queue a lost rank again, with more memory if it ran out of memory.

        After too many losses the result is the error to raise.
        """
        where = self._where(rank)
        self._lost[rank] += 1
        tries, allowed = self._lost[rank], 1 + self._here.run.rank_retries
        said = f"rank {rank} {lost.reason}{f' ({where})' if where else ''}"
        asked = self._memory_gb.get(rank, self._here.run.rank_memory_gb)
        if lost.for_memory and asked is not None:
            self._memory_gb[rank] = min(2 * asked, max(self._largest()[1], asked))
        if tries >= allowed:
            more = "; raise `rank_memory_gb` in the profile" if lost.for_memory else ""
            return WorkerDied(f"{said}, and was made {tries} times (`rank_retries` in the profile){more}")
        log.warning("%s; it is made again, try %d of %d", said, tries + 1, allowed)
        self._here.progress.message(f"{said}; it is made again, try {tries + 1} of {allowed}", level="WARNING")
        left.append(rank)
        return None

    def _where(self, rank: int) -> str:
        """Return the node of a lost rank, from the rank's file of signs of life; "" if there is none."""
        sign = self._signs / str(rank)
        try:
            node = sign.read_text("utf-8").partition(" ")[0]
            sign.unlink()
        except OSError:
            return ""
        return f"node {node}"

    def _call_off(self) -> None:
        """Cancel the tasks whose ranks have not yet begun."""
        begun = {path.name for path in self._signs.iterdir()}
        for reference in [one for one, rank in self._flying.items() if str(rank) not in begun]:
            del self._flying[reference]
            self._ray.cancel(reference)

    def _look(self) -> None:
        """Report progress if a rank is alive, or what the job waits for if no rank runs."""
        signs = {path.name: path.stat().st_mtime_ns for path in _entries(self._signs) if path.name != "token"}
        runs, now = bool(signs), time.monotonic()
        if signs != self._signs_seen or not runs:
            self._here.progress.num_lines += 1  # waiting counts as a sign of life too
        self._signs_seen = signs
        if runs or not self._flying:
            self._silent_since = now
        waits = self._reason() if now - self._silent_since > WAITING_SECONDS else ""
        if waits != self._waits:
            self._waits = waits
            self._here.progress.waits(waits)
            if waits:
                log.info("waits for %s", waits)

    def _reason(self) -> str:
        """Return, as text, the cores and memory that the cluster must have free before a rank can begin."""
        run = self._here.run
        memory_gb = max([run.rank_memory_gb or 0.0, *self._memory_gb.values()])
        asked = _cores(run.rank_cpus) + (f" and {memory_gb:g} GiB" if memory_gb else "")
        cores, largest_gb, nodes = *self._largest(), len(self._alive())
        if cores < run.rank_cpus or largest_gb < memory_gb:
            return (
                f"a node of the Ray cluster with {asked} (`rank_cpus`, `rank_memory_gb` in the profile); the largest of"
                f" {nodes} has {_cores(cores)} and {largest_gb:.1f} GiB"
            )
        return f"{asked} on one of {nodes} nodes of the Ray cluster, which are taken or start a worker"

    def _alive(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _largest(self) -> tuple[float, float]:
        """Return the most cores and the most memory in GiB of any node of the cluster."""
        nodes = self._alive()
        return (
            max((node.get("CPU", 0.0) for node in nodes), default=0.0),
            max((node.get("memory", 0.0) / 2**30 for node in nodes), default=0.0),
        )


def _cores(number: float) -> str:
    return f"{number:g} core{'' if number == 1 else 's'}"


def _entries(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.exists():
            yield path


class _Lost(Exception):
    """Raised when the worker or the node of a rank died."""

    def __init__(self, reason: str, *, for_memory: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.for_memory = reason, for_memory
