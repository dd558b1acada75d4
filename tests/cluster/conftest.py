"""One real Slurm, and one namespace of a Kubernetes cluster, for all tests of this folder that ask for them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster import minikubernetes, minislurm
from tests.cluster.minikubernetes import MiniKubernetes
from tests.cluster.minislurm import MiniSlurm
from tests.small_kitchen import first, root, shared, untouched  # noqa: F401


@pytest.fixture(scope="session")
def _started() -> Iterator[MiniSlurm]:
    with cluster_of(nodes=2) as cluster:
        yield cluster


@contextmanager
def cluster_of(*, nodes: int, hidden: tuple[str, ...] = ()) -> Iterator[MiniSlurm]:
    lacking = minislurm.missing()
    if lacking:
        pytest.skip(f"no Slurm here: {lacking}")
    # Sockets have paths of at most 108 characters, which pytest's own folders may exceed.
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    cluster = MiniSlurm(folder, nodes=nodes, hidden=hidden)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)


@pytest.fixture
def slurm(_started: MiniSlurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[MiniSlurm]:
    """The cluster, which this process's client commands now talk to. A test leaves every node up and no job running."""
    for name, value in _started.variables.items():
        monkeypatch.setenv(name, value)
    yield _started
    _started.call("scancel", "--quiet", f"--user={os.getuid()}")
    for node in set(_started.nodes) - set(_started.running_nodes()):
        _started.revive(node)
    _started.wait_until(lambda: _started.idle_nodes() == set(_started.nodes), "every node is idle again")


@pytest.fixture
def three_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[MiniSlurm]:
    """A cluster of one test, with a node more than the cluster of all tests."""
    with cluster_of(nodes=3) as cluster:
        for name, value in cluster.variables.items():
            monkeypatch.setenv(name, value)
        yield cluster


@pytest.fixture(scope="module")
def apart() -> Iterator[MiniSlurm]:
    """A cluster whose nodes have empty folders in place of `here`, where commands work on roots, and `there`."""
    with cluster_of(nodes=2, hidden=("here", "there")) as cluster, pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.variables.items():
            patch.setenv(name, value)
        patch.setenv("PEDIGREE_CACHE", str(cluster.folder / "here"))
        yield cluster


@pytest.fixture(scope="session")
def _nodes() -> Iterator[MiniKubernetes]:
    if lacking := minikubernetes.missing():
        pytest.skip(f"no Kubernetes here: {lacking}")
    cluster = MiniKubernetes(Path(tempfile.mkdtemp(prefix="mk-")))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder)


@pytest.fixture
def kubernetes(_nodes: MiniKubernetes, monkeypatch: pytest.MonkeyPatch) -> MiniKubernetes:
    """The cluster, which this process's `kubectl` now talks to."""
    for name, value in _nodes.variables.items():
        monkeypatch.setenv(name, value)
    return _nodes
