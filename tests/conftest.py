"""How the tests are spread over processes (`make test` starts four)."""

from __future__ import annotations

import os
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

# A machine holds one scheduler of the tests; what the end-to-end tests look at is made once for all of them.
ONE_AT_A_TIME = ("tests/cluster/", "tests/end_to_end/")
# These have roots of their own, and wait for a daemon or a server most of the time.
APART = ("tests/end_to_end/test_services.py", "tests/end_to_end/test_faults.py")
# What takes minutes, much of it waiting, is begun first; a fourth process works through the rest beside it.
FIRST = (APART[0], *reversed(ONE_AT_A_TIME))
# These may ask for the small kitchen, and would wait while it is being made.
LAST = "tests/attacks/"


class _Together(LoadFileScheduling):
    """Tests of a file, and of the folders above, run in one process, in order."""

    def _split_scope(self, nodeid: str) -> str:
        together = () if nodeid.startswith(APART) else ONE_AT_A_TIME
        return next((folder for folder in together if nodeid.startswith(folder)), super()._split_scope(nodeid))


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make attack` asks for the long form of the attacks."""
    parser.addoption("--long", action="store_true", help="repeat each attack as often as docs/trust.md says")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest first."""
    order = {one: place for place, one in enumerate(FIRST)} | {LAST: len(FIRST) + 1}
    items.sort(key=lambda item: next((order[one] for one in order if item.nodeid.startswith(one)), len(FIRST)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that reads the real data waits for it."""
    if item.get_closest_marker("data") and not os.environ.get("PEDIGREE_DATA"):
        pytest.skip("PEDIGREE_DATA is not set")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Not by marks and `--dist loadgroup`: xdist 3.8 writes a group into a field that pytest 9.2 no longer reads."""
    return _Together(config, log)
