"""How the tests are spread over processes (`make test` starts four), and which `make test-all` adds."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.groups import PROJECT, is_within, left_out, read_groups

pytest_plugins = ["tests.outside", "tests.cluster.minis3"]  # fixtures for parts of a user's own, and of a store

# A machine holds one scheduler of the tests.
SCHEDULER = "tests/cluster/"
# These share the root of the small kitchen and change it, so one process runs them, in order, and makes it first.
SHARED_ROOT = tuple(f"tests/end_to_end/test_{name}.py" for name in ("chain", "chains", "serve"))
# These read the finished small kitchen or a copy of it, so any process takes them once it is made; the longest first.
AFTER_IT = tuple(
    f"tests/end_to_end/test_{name}.py"
    for name in ("kept_steps", "takedown", "one_result", "forgeries", "new_snapshot", "trace", "exact", "attest", "gc")
)
# What takes minutes, much of it waiting, is begun first; a fourth process works through the rest beside it, and begins
# with the files that take longest, so that the last file is a short one.
FIRST = (
    "tests/end_to_end/test_services.py",
    *SHARED_ROOT,
    SCHEDULER,
    "tests/end_to_end/test_browser.py",
    "tests/end_to_end/test_extend.py",
    "tests/end_to_end/test_withdrawals.py",
    "tests/training/pretrain/test_training.py",
    "tests/training/pretrain/parallel/test_parallel.py",
    "tests/attacks/test_promotion.py",
    "tests/attacks/test_secrets.py",
    "tests/attacks/test_automation.py",
    "tests/attacks/test_processes.py",
)
# Whoever uses this fixture waits while another process makes the small kitchen: outside of end_to_end it comes last.
KITCHEN = "first"
KITCHEN_SECONDS = 900.0  # for that, and for the test itself


class _Together(LoadFileScheduling):
    """Tests of a file, of the scheduler, and of the shared root, run in one process, in order."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SHARED_ROOT):
            return SHARED_ROOT[0]
        return SCHEDULER if nodeid.startswith(SCHEDULER) else super()._split_scope(nodeid)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make attack` asks for the long form of the attacks, `make test-all` and `.ci/run` for groups of groups.toml."""
    parser.addoption("--long", action="store_true", help="repeat each attack as often as docs/trust.md says")
    parser.addoption("--all", action="store_true", help="run the groups of tests/groups.toml too")
    parser.addoption("--group", action="append", default=[], metavar="NAME", help="run this group of them too")


LEFT_OUT = pytest.StashKey[dict[str, str]]()  # tests, and the group of each


def pytest_configure(config: pytest.Config) -> None:
    """Find out which groups are left out: those that no argument names. Raise UsageError for a group that is none."""
    here = config.invocation_params.dir
    files = [(here / argument.partition("::")[0]).resolve() for argument in config.args]
    arguments = [str(file.relative_to(PROJECT)) for file in files if file.is_relative_to(PROJECT)]
    groups, too = read_groups(), config.getoption("--group")
    if unknown := [name for name in too if name not in groups]:
        raise pytest.UsageError(f"--group {unknown[0]}: there are {', '.join(groups)}")
    left = {name: group for name, group in groups.items() if name not in too}
    config.stash[LEFT_OUT] = {} if config.getoption("--all") else left_out(left, arguments)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files and folders of a group are not even imported; `None` leaves the answer to others."""
    return str(collection_path.relative_to(PROJECT)) in config.stash[LEFT_OUT] or None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the groups that were left out."""
    if names := sorted(set(config.stash[LEFT_OUT].values())):
        one = f"`make test-group GROUP={names[0]}` one"
        terminalreporter.write_line(f"left out: {', '.join(names)} (`make test-all` runs them, {one})")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Libraries that the tests import stay; a collection of garbage looks only at what the tests make.

    Looking through all of them takes 0.25 s, and a training of transformers does so several times.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes longest first, what waits for the small kitchen last, and with time to do so; no group left out."""
    out = [item for item in items if any(is_within(item.nodeid, test) for test in config.stash[LEFT_OUT])]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]
    waiting = {item.path for item in items if KITCHEN in getattr(item, "fixturenames", ())}
    for item in items:
        if item.path in waiting and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(KITCHEN_SECONDS))

    def place(item: pytest.Item) -> int:
        found = max((name for name in (*FIRST, *AFTER_IT) if item.nodeid.startswith(name)), key=len, default="")
        if found in FIRST:
            return FIRST.index(found)
        if found in AFTER_IT:
            return len(FIRST) + 1 + AFTER_IT.index(found)
        return len(FIRST) + (1 + len(AFTER_IT) if item.path in waiting else 0)

    items.sort(key=place)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that reads the real data waits for it."""
    if item.get_closest_marker("data") and not os.environ.get("PEDIGREE_DATA"):
        pytest.skip("PEDIGREE_DATA is not set")


@pytest.fixture(autouse=True)
def own_secrets() -> Iterator[None]:
    """What a test lets its process remember as a secret is none in the next: "secret" stands in many a traceback."""
    from training.contract import secrets

    before = set(secrets._remembered)
    yield
    secrets._remembered.clear()
    secrets._remembered.update(before)


@pytest.fixture(scope="session", autouse=True)
def copied_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process makes an empty store of MLflow and of Dagster once; where another one is needed, it gets a copy."""
    from assets.services import stores
    from resources.tracking import store

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((store, "_make_tables"), (stores, "_make_files")):
            patch.setattr(module, name, _once(getattr(module, name), tmp_path_factory.mktemp("store") / "first"))
        yield


def _once(make: Callable[[Path], None], first: Path) -> Callable[[Path], None]:
    """A function that copies the file or folder that `make` makes at `first` when it is first needed."""

    def copied(place: Path) -> None:
        if not first.exists():
            make(first)
        shutil.copytree(first, place, dirs_exist_ok=True) if first.is_dir() else shutil.copyfile(first, place)

    return copied


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Not by marks and `--dist loadgroup`: xdist 3.8 writes a group into a field that pytest 9.2 no longer reads."""
    return _Together(config, log)
