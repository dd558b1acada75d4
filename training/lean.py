"""What libraries import in case someone has a use for it, left out of processes in which no one has.

A stage starts several processes, and a second of imports in each is a good part of a small one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Modules of these names are not found while the block runs, unless they are imported already."""
    finder = _Missing(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Missing:
    """A finder by which there are no such modules."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Nothing, for other finders to go on; ImportError for these names."""
        if name in self._names:
            raise ModuleNotFoundError(f"{name} is left out here", name=name)


def leave_pandas_out() -> None:
    """Let pyarrow find that pandas is not installed, in a process of which no other part asks pyarrow for frames.

    Before its first array it imports pandas, to know one of its frames when it sees it: 0.3 s of each process.
    """
    with without("pandas"):
        import pyarrow

        pyarrow.array([0])
