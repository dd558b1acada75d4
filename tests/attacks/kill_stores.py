"""Kill processes while they make the stores of a root: `python -m tests.attacks.kill_stores FOLDER WHAT POINT…`.

WHAT is `mlflow` or `dagster`. A POINT is a number of SQL statements, after which a process is killed that makes a store
as the library alone does it, and another one that makes it as Pedigree does. Then a store is opened and used at each
place. Prints one line of JSON for each point and way.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from sqlalchemy import event
from sqlalchemy.engine import Engine

from assets.services.stores import DAGSTER_YAML, dagster_home, opened_instance
from resources.tracking.store import default_uri, make_client


def by_mlflow(root: Path) -> None:
    """Make the store as MLflow does it."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=default_uri(root))
    client.search_experiments(max_results=1)
    client.search_registered_models(max_results=1)


def by_dagster(root: Path) -> None:
    """Make the files as Dagster does it."""
    import dagster as dg

    (dagster_home(root) / "dagster.yaml").write_text(DAGSTER_YAML, "utf-8")
    dg.DagsterInstance.from_config(str(dagster_home(root))).dispose()


def used_mlflow(root: Path) -> None:
    """Make or open the store and register a model."""
    client = make_client(default_uri(root), root)
    client.create_run("0")
    client.create_registered_model("m")


def used_dagster(root: Path) -> None:
    """Make or open the files, and read and write each of them."""
    with opened_instance(root) as instance:
        assert instance.get_runs_count() == 0 and not list(instance.all_asset_keys())
        instance.event_log_storage.set_concurrency_slots("training", 3)
        assert not list(instance.all_instigator_state())
        assert instance.run_storage.has_built_index("run_partitions")


def killed_after(statements: int, make: Callable[[Path], None], root: Path) -> bool:
    """Whether a child process that makes a store under `root` was killed after so many statements."""
    return in_child(lambda: (_kill_after(statements), make(root))) == -signal.SIGKILL


def _kill_after(statements: int) -> None:
    left = [statements]

    @event.listens_for(Engine, "before_cursor_execute")
    def count(*_: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def in_child(act: Callable[[], object]) -> int:
    """Run `act` in a forked process and return its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        act()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


# Short and long lists of points. MLflow has made its tables after 1,668 statements, Dagster after 173.
POINTS = {
    "mlflow": ([1025], [1, 20, 150, 300, 450, 600, 800, 960, 1005, 1015, 1025, 1033, 1200, 1400, 1640, 1665, 1667]),
    "dagster": ([45], list(range(1, 150, 8))),
}
WAYS = {"mlflow": (by_mlflow, used_mlflow), "dagster": (by_dagster, used_dagster)}


def outcomes(folder: Path, what: str, points: list[int]) -> Iterator[dict[str, object]]:
    """What became of each killed start, and of the next one."""
    alone, used = WAYS[what]
    for point in points:
        for way, make in (("library", alone), ("pedigree", used)):
            root = folder / f"{what}-{way}-{point}"
            root.mkdir(parents=True)
            was_killed = killed_after(point, make, root)
            left = sorted(str(file.relative_to(root)) for file in root.rglob("*.db") if ".new" not in str(file))
            code = in_child(lambda root=root, used=used: used(root))
            aside = [file.name for file in root.rglob("*.half-made-*")]
            yield {"way": way, "point": point, "killed": was_killed, "left": left, "next": code, "aside": len(aside)}


if __name__ == "__main__":
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - once, not in every child

    for one in outcomes(Path(sys.argv[1]), sys.argv[2], [int(point) for point in sys.argv[3:]]):
        print(json.dumps(one), flush=True)
