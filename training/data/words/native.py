"""Functions (kernels) that numba compiles at their first call, and the cache of the compiled code.

Kernels are plain Python: `kernel.py_func` is the same code without the compiler, and tests compare the two. Compiled
code is cached beside the module; if that folder is not writable, in numba's cache folder of the user
(`NUMBA_CACHE_DIR` names another); if there is none, every process compiles for itself. numba notices changes only in
the kernel's own file, not in anything that the kernel uses from another file. So a kernel is compiled under a name that
contains a digest of its code, its constants and every kernel that it calls. numba itself is also imported at the first
call, because that takes half a second and many processes never call a kernel.

Workers of a stage call the same kernel at the same moment. The first one compiles it, and the others wait and then load
it from the cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, cached_property, update_wrapper
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from training.contract.process.lean import without

LOCK_FILE = "kernels.lock"  # in the folder of the cache


class Kernel:
    """A function that numba compiles when it is first called, from Python or from another kernel."""

    def __init__(self, function: Callable[..., Any]) -> None:
        update_wrapper(self, function)
        self.py_func = function

    def __call__(self, *arguments: Any) -> Any:
        return self.compiled(*arguments)

    @cached_property
    def compiled(self) -> Any:
        """Return the function compiled by numba; it releases the GIL."""
        numba, function = _compiler(), _named(self.py_func)
        try:
            return _compiled_once(numba.njit(cache=True, nogil=True)(function))
        except RuntimeError:  # no folder for the cache
            return numba.njit(nogil=True)(function)


def native(function: Callable[..., Any]) -> Kernel:
    """Decorator that makes `function` a kernel."""
    return Kernel(function)


def _named(function: Callable[..., Any]) -> FunctionType:
    """Copy `function` under a qualified name that ends in a digest of everything that determines the compiled code.

    numba caches compiled code under this name.
    """
    assert isinstance(function, FunctionType)
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    digest = hashlib.sha256("\n".join(_decides(function, set())).encode()).hexdigest()[:16]
    copy.__module__, copy.__qualname__ = function.__module__, f"{function.__qualname__}-{digest}"
    return copy


def _decides(function: FunctionType, known: set[FunctionType]) -> Iterator[str]:
    """Yield everything that determines the compiled code of `function`, as text.

    That is its own code, the globals that it uses, and the same for every kernel that it calls. `known` holds the
    functions already visited, because kernels may call each other.
    """
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
    """Yield the code object of a function and of all functions and comprehensions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _written(value: Any) -> str:
    """Return a constant as text that is the same in every process.

    A module or library function is given by its name.
    """
    if isinstance(value, ModuleType) or callable(value):
        return str(getattr(value, "__qualname__", getattr(value, "__name__", type(value).__qualname__)))
    if hasattr(value, "tobytes"):  # an array, because its repr leaves out the middle
        return f"{value.dtype} {value.shape} {value.tobytes().hex()}"
    return repr(value)


def _compiled_once(dispatcher: Any) -> Any:
    """Let one process at a time look for the kernel in the cache and compile it if it is not there."""
    compile_now, folder = dispatcher.compile, Path(dispatcher.stats.cache_path)

    def compile_alone(signature: Any) -> Any:
        with _alone(folder):
            return compile_now(signature)

    dispatcher.compile = compile_alone
    return dispatcher


_TURN, _HELD = threading.RLock(), list[Path]()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a cache folder, or no lock if the folder cannot be written.

    Kernels that are compiled for another kernel need no lock of their own, so a process never holds two.
    """
    with _TURN, ExitStack() as stack:
        if not _HELD:
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                stream = stack.enter_context(open(folder / LOCK_FILE, "a", encoding="utf-8"))
                fcntl.flock(stream, fcntl.LOCK_EX)
                stack.callback(fcntl.flock, stream, fcntl.LOCK_UN)  # a process forked meanwhile may keep the file open
        _HELD.append(folder)
        stack.callback(_HELD.pop)
        yield


@cache
def _compiler() -> Any:
    """Return numba, set up so that kernels can call other kernels.

    On import numba looks for scipy, for matrix products, and loads the extensions of other packages; awkward's
    extension imports awkward. No kernel here needs either, and this saves each process a second of processor time.
    """
    with without("scipy", "awkward"), warnings.catch_warnings():
        import numba
        from numba.core.registry import cpu_target
        from numba.extending import typeof_impl

        warnings.filterwarnings("ignore", message="Numba extension module .awkward")
        cpu_target.target_context.refresh()
    typeof_impl.register(Kernel, lambda kernel, context: typeof_impl(kernel.compiled, context))
    return numba
