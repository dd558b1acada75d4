"""Contain the code of a part from outside while it runs: where it may write, and how long a call may take.

This contains mistakes, not attackers. A process that a call forks, and in which the call ends too, goes on with nothing
of the job's: it ends there. Writing is noticed where Python itself opens, renames or removes a file. It is
not noticed in native code, nor in a thread or process that the part starts. A call that takes too long ends the job and
decides no page, so the load of the machine never changes what is kept. Standard library only.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, cast

from training.contract.errors import DataError
from training.contract.process.lifetime import SignsOfLife

if TYPE_CHECKING:
    from training.contract.job import Job

log = logging.getLogger(__name__)

EXIT_CODE = 2
MAX_INTERVAL = 10.0  # seconds between two looks at the running calls
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Audit events of changes to files: the positions of the path and of its folder's descriptor among the arguments.
_CHANGES: Mapping[str, tuple[tuple[int, int | None], ...]] = {
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.link": ((1, 3),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
}
_FOLLOWING = ("open", "os.chmod", "os.chown", "os.truncate")  # what they change is the target of a link
_CACHES = ("_CACHE", "_CACHE_DIR", "_CACHE_HOME")  # how names of variables end that name a library's cache
_HOMES = ("HF_HOME", "TORCH_HOME")


class PartFailed(DataError):
    """The code of a part from outside raised an error, gave an invalid value, did not return, or wrote elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The folders in which a part may write, and the longest time of one of its calls.

    `folder` is the job's own; `stores` hold the artifacts of other jobs.
    """

    folder: str
    stores: tuple[str, ...] = ()
    seconds: float = 0.0  # 0: without a limit, because another process watches

    @staticmethod
    def of(job: Job) -> Bounds:
        """Return where a job's parts from outside may write, and how many seconds a call of one may take."""
        stores = {str(Path(place).parents[1]) for place in (job.output, *(item.path for item in job.inputs))}
        return Bounds(folder=job.output, stores=tuple(sorted(stores)), seconds=job.run.hang_seconds)

    def allow(self, path: str) -> bool:
        """Whether a part may write at an absolute path. The innermost known folder around the path decides.

        Caches are allowed: those that variables of the environment name, and hidden folders of the home folder.
        """
        if "/__pycache__" in path or path.startswith(("/dev/", "/proc/")):
            return True
        around = [folder for folder in self.folders if f"{path}/".startswith(f"{folder.rstrip('/')}/")]
        innermost = max(around, key=len, default="")
        hidden = os.path.join(os.path.realpath(Path.home()), ".")
        return self.folders.get(innermost, False) or (path.startswith(hidden) and len(innermost) < len(hidden))

    @cached_property
    def folders(self) -> dict[str, bool]:
        """The known folders, and whether a part may write in them."""
        caches = [
            value
            for name, value in os.environ.items()
            if name.endswith(_CACHES) or name in _HOMES
            if os.path.isabs(value)
        ]
        allowed = dict.fromkeys(map(os.path.realpath, (tempfile.gettempdir(), *caches)), True)
        return (
            allowed | dict.fromkeys(map(os.path.realpath, self.stores), False) | {os.path.realpath(self.folder): True}
        )


class running:
    """Context manager around one call of a part's code; `who` names the part.

    A process that the call forked ends with it. The rest needs bounds. With `trains`, the call may take as long as it
    likes while it reports progress or uses the processor.
    """

    __slots__ = ("is_late", "problem", "process", "trains", "who")

    def __init__(self, who: str, *, trains: bool = False) -> None:
        self.who, self.trains, self.problem, self.is_late = who, trains, "", False

    def __enter__(self) -> running:
        self.process = os.getpid()
        if _bounds is not None:
            _calls.setdefault(threading.get_ident(), []).append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if os.getpid() != self.process:
            os._exit(EXIT_CODE)  # without what Python does at its end: that is the job's, and of its own process
        stack = _calls.get(threading.get_ident())
        if stack and stack[-1] is self:
            stack.pop()
        if self.problem and not isinstance(error, PartFailed):  # the part's own code caught the error
            raise PartFailed(self.problem) from error


_bounds: Bounds | None = None
_calls: dict[int, list[running]] = {}  # the running calls of each thread, the innermost last
_is_hooked = False  # an audit hook cannot be removed


def bounds() -> Bounds | None:
    """Return the bounds that hold in this process; None if no parts from outside run in it."""
    return _bounds


@contextmanager
def contained(
    limits: Bounds | None, num_lines: Callable[[], int] = lambda: 0, end: Callable[[str], object] = log.error
) -> Iterator[None]:
    """Context manager in which parts are held to the bounds; None, or bounds that hold already, change nothing.

    `num_lines` counts the reports of progress. If a part that does not return cannot be interrupted either, or calls
    `os._exit`, `end` is called with a sentence, and the process ends with exit code 2.
    """
    global _bounds
    if limits is None or _bounds is not None:
        yield
        return
    _hook()
    _ = limits.folders  # once, and not while a file is opened: to find the folder of temporary files, one is written
    _bounds = limits
    finished = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    before: Any = signal.signal(signal.SIGALRM, _interrupt) if is_main else None
    leave, os._exit = os._exit, cast(Any, partial(_leave, os._exit, end))
    watcher = threading.Thread(target=_watch, args=(limits.seconds, num_lines, end, finished), daemon=True)
    if limits.seconds:
        watcher.start()
    try:
        yield
    finally:
        _bounds, os._exit = None, leave
        finished.set()
        if limits.seconds:
            watcher.join()
        if is_main:
            signal.signal(signal.SIGALRM, before)


def _leave(leave: Callable[[int], NoReturn], end: Callable[[str], object], status: int) -> NoReturn:
    """End the process as `os._exit` does, which asks nobody; if a part ends the job's process so, say which one."""
    stack = _calls.get(threading.get_ident())
    if stack and stack[-1].process == os.getpid():
        end(f"{stack[-1].who} ended the process of its job: os._exit({status})")
        logging.shutdown()
        leave(EXIT_CODE)
    leave(status)


def _watch(seconds: float, num_lines: Callable[[], int], end: Callable[[str], object], done: threading.Event) -> None:
    """Look at the running calls until `done`; interrupt one that takes too long, and end the process if that fails."""
    since = dict[int, tuple[running, float]]()  # by thread: its innermost call, and when it was first seen
    trains = SignsOfLife(num_lines, seconds)
    while not done.wait(min(MAX_INTERVAL, seconds / 4)):
        for thread, stack in list(_calls.items()):
            call = stack[-1] if stack else None
            if call is None or since.get(thread, (None,))[0] is not call:
                since.pop(thread, None)
                if call is not None:
                    since[thread] = call, time.monotonic()
            elif call.is_late:
                end(call.problem)
                logging.shutdown()
                os._exit(EXIT_CODE)
            elif time.monotonic() - since[thread][1] > seconds and not (call.trains and trains()):
                what = "neither reported progress nor used the processor" if call.trains else "did not return"
                call.problem = f"{call.who} {what} within {seconds:g} s (hang_seconds in the profile)"
                call.is_late = True
                signal.pthread_kill(thread, signal.SIGALRM)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    stack = _calls.get(threading.get_ident())
    if stack and stack[-1].is_late:
        raise PartFailed(stack[-1].problem)


def _hook() -> None:
    global _is_hooked
    if not _is_hooked:
        _is_hooked = True
        sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise PartFailed if the running part changes a file outside its bounds."""
    if _bounds is None or not (event == "open" or event in _CHANGES):
        return
    stack = _calls.get(threading.get_ident())
    if not stack or (event == "open" and not arguments[2] & _WRITING):
        return
    for place, folder in _CHANGES.get(event, ((0, None),)):
        name = arguments[place]
        if isinstance(name, int) or name is None:  # a descriptor that is open already
            continue
        path = _real(os.fsdecode(name), -1 if folder is None else arguments[folder], follows=event in _FOLLOWING)
        if not _bounds.allow(path) and not (event == "os.mkdir" and os.path.isdir(path)):
            call = stack[-1]
            call.problem = f"{call.who} writes outside the folder of its job: {path} ({event})"
            raise PartFailed(call.problem)


def _real(name: str, folder: int, *, follows: bool) -> str:
    """Return the real path of a name inside an open folder, or inside the current one if `folder` is negative."""
    inside = os.readlink(f"/proc/self/fd/{folder}") if folder >= 0 else os.getcwd()
    path = os.path.join(inside, name)
    if follows:
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
