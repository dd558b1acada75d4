"""Kernels compiled by numba at their first call, and the cache in which they stay compiled.

The functions are plain Python: `kernel.py_func` is the same code without the compiler, and tests hold both to the same
answers. Compiled code is kept beside the module, or, where an installation cannot be written to, in numba's cache
folder of the user (`NUMBA_CACHE_DIR` names another); where there is none at all, every process compiles for itself.
numba looks whether the file of a kernel is the one that it compiled, and at nothing that the kernel takes from another
file, so a kernel is compiled under a name with a digest of its code, its constants and every kernel that it calls.
numba itself is imported at the first call too: that takes half a second, and many processes never call a kernel.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from functools import cache, cached_property, update_wrapper
from types import CodeType, FunctionType, ModuleType
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
        numba, function = _compiler(), _named(self.py_func)
        try:
            return numba.njit(cache=True, nogil=True)(function)
        except RuntimeError:  # no folder for the cache
            return numba.njit(nogil=True)(function)


def native(function: Callable[..., Any]) -> Kernel:
    """`function` as a kernel."""
    return Kernel(function)


def _named(function: Callable[..., Any]) -> FunctionType:
    """A copy of `function` whose qualified name, by which numba keeps what it compiles, ends in a digest of what
    decides the compiled code."""
    assert isinstance(function, FunctionType)
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    digest = hashlib.sha256("\n".join(_decides(function, set())).encode()).hexdigest()[:16]
    copy.__module__, copy.__qualname__ = function.__module__, f"{function.__qualname__}-{digest}"
    return copy


def _decides(function: FunctionType, known: set[FunctionType]) -> Iterator[str]:
    """What decides the compiled code of `function`: its own code, and what it names of its module, through the kernels
    that it calls. `known` holds those that were looked at, for kernels may call each other."""
    known.add(function)
    yield function.__qualname__
    for code in _codes(function.__code__):
        yield code.co_code.hex()
        yield repr([constant for constant in code.co_consts if not isinstance(constant, CodeType)])
        for name in code.co_names:
            value = function.__globals__.get(name)
            if not isinstance(value, Kernel):
                yield f"{name} = {_written(value)}"
            elif value.py_func not in known:
                yield from _decides(value.py_func, known)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of the comprehensions and functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _written(value: Any) -> str:
    """A constant as text, the same in every process; a module or a function of a library is its name."""
    if isinstance(value, ModuleType) or callable(value):
        return str(getattr(value, "__qualname__", getattr(value, "__name__", type(value).__qualname__)))
    if hasattr(value, "tobytes"):  # of an array, whose text leaves out its middle
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    return repr(value)


@cache
def _compiler() -> Any:
    """numba, which now sees in a kernel that another kernel names the function that it compiles.

    It looks whether scipy is there, for products of matrices, and loads the extensions of other packages, of which
    awkward's imports awkward. No kernel here needs either: a second of processor time of each process.
    """
    with without("scipy", "awkward"), warnings.catch_warnings():
        import numba
        from numba.core.registry import cpu_target
        from numba.extending import typeof_impl

        warnings.filterwarnings("ignore", message="Numba extension module .awkward")
        cpu_target.target_context.refresh()
    typeof_impl.register(Kernel, lambda kernel, context: typeof_impl(kernel.compiled, context))
    return numba
