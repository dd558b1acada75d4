"""Make imports cheap: hide optional modules from libraries, and keep the garbage collector from imported objects.

A stage starts several processes, and a second of imports in each process is a large part of a small stage's time.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Context manager in whose block these modules look uninstalled, unless they are imported already."""
    finder = _Missing(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Missing:
    """An import finder that refuses modules of the given names."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for the given names; return None for others, so that other finders search."""
        if name in self._names:
            raise ModuleNotFoundError(f"{name} is left out here", name=name)


@contextmanager
def not_found(*names: str) -> Iterator[None]:
    """Like `without`, for libraries that ask `importlib.util.find_spec`, which then finds nothing.

    It does not work for modules that Cython compiled, such as pyarrow's, because these take the None in
    `sys.modules` for the module.
    """
    left_out: dict[str, Any] = {name: None for name in names if name not in sys.modules}
    sys.modules.update(left_out)
    try:
        yield
    finally:
        for name in left_out:
            del sys.modules[name]


def leave_pandas_out() -> None:
    """Make pyarrow believe that pandas is not installed, in a process that never exchanges frames with it.

    Otherwise pyarrow imports pandas before its first array, to recognize data frames, which takes 0.3 s in each
    process.
    """
    with without("pandas"):
        import pyarrow

        pyarrow.array([0])


@contextmanager
def uncollected(module: str) -> Iterator[None]:
    """Import `module` in the `with` block without garbage collection; later collections ignore its objects too.

    The 600,000 objects of a large library live until the process ends. A collection that looks through them takes
    0.25 s; Python starts several during an import of post-training, and transformers' trainer starts several in
    each training. Cyclic garbage that exists when the block ends is kept too, so nothing is done if `module` is
    imported already.
    """
    if module in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
