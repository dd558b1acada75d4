"""Kernels compiled by numba at their first call, and the cache in which they stay compiled.

The functions are plain Python: `kernel.py_func` is the same code without the compiler, and tests hold both to the same
answers. Compiled code is kept beside the module, or, where an installation cannot be written to, in numba's cache
folder of the user (`NUMBA_CACHE_DIR` names another); where there is none at all, every process compiles for itself.
numba itself is imported at the first call too: that takes half a second, and many processes never call a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, update_wrapper
from typing import Any

from training.lean import without


class Kernel:
    """A function that numba compiles when it is first called, from Python or from another kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.py_func = function

    def __call__(self, *arguments: Any) -> Any:
        return self.compiled(*arguments)

    @cached_property
    def compiled(self) -> Any:
        """numba's form of the function. It lets other Python threads run."""
        numba = _compiler()
        try:
            return numba.njit(cache=True, nogil=True)(self.py_func)
        except RuntimeError:  # no folder for the cache
            return numba.njit(nogil=True)(self.py_func)


def native(function: Callable[..., Any]) -> Kernel:
    """`function` as a kernel."""
    return Kernel(function)


@cache
def _compiler() -> Any:
    """numba, which now sees in a kernel that another kernel names the function that it compiles.

    It looks whether scipy is there, for products of matrices, and asks other packages for their extensions (awkward's
    imports awkward). No kernel here needs either: a quarter of a second of each process.
    """
    with without("scipy"):
        import numba
        from numba.core import entrypoints
        from numba.core.registry import cpu_target
        from numba.extending import typeof_impl

        entrypoints._already_initialized = True
        cpu_target.target_context.refresh()
    typeof_impl.register(Kernel, lambda kernel, context: typeof_impl(kernel.compiled, context))
    return numba
