"""Attacks on the project's own guards: each changes what a guard protects and expects it to notice.

`make test` runs most in a short form; `make attack` runs the long one (`--long`), whose figures stand in docs/trust.md.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.small_kitchen import first, root, shared, untouched  # noqa: F401

LONG_SECONDS = 7200.0  # a test that hangs ends some time; one that works may share its machine


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The limits of single tests are those of the short form."""
    if config.getoption("--long"):
        for item in items:
            item.add_marker(pytest.mark.timeout(LONG_SECONDS), append=False)


@pytest.fixture
def times(request: pytest.FixtureRequest) -> Callable[..., int]:
    """`times(short=60, long=1000)`: how often an attack is repeated in this run."""
    is_long = request.config.getoption("--long")

    def chosen(*, short: int, long: int) -> int:
        return long if is_long else short

    return chosen
