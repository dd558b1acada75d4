"""A confined process: one interpreter with its own library, limits, and a pipe to whoever started it.

bubblewrap gives it namespaces of its own (users, files, processes, network, IPC), no capability, no environment, no
other descriptor, a read-only root with the interpreter and one small folder to write in. There is no `/proc`, `/sys` or
`/dev` but `/dev/null`. seccomp lets through what an interpreter needs. It ends with the process that started it, which
also limits its elapsed time and the length of its answers. Programs are forked from one such process, `Nursery`, each
in a sandbox of its own. Nothing is weaker where something is missing: `why_unavailable` says what, and none is started.
"""

from __future__ import annotations

import json
import os
import platform
import select
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from training.contract.errors import DataError
from training.contract.sandbox.inside import candidate, nursery, plain
from training.contract.sandbox.seccomp import filter_bytes

_COMPILED = (candidate, nursery, plain)  # imported here, so that their bytecode is kept for the confined processes
HOME = "/python"  # where the interpreter stands inside
NURSERY = "nursery"
INSIDE = "training/contract/sandbox/inside"
# With a first process of bubblewrap's between, nobody would wait for it: its processor time would be in no job's cost.
NAMESPACES = (
    *("--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534", "--hostname", "sandbox"),
    *("--cap-drop", "ALL", "--new-session", "--die-with-parent", "--clearenv", "--as-pid-1"),
)
GIVE_UP_SECONDS = 20.0  # for the first process that is tried
KILLED = 128 + 9  # as the kernel does at the limit of processor time
USED_UP = 0.5  # of the limit: it is kept by ticks, which on a busy machine come to more than the time of the process
END_SECONDS = 5.0  # for a process to end by itself
# The libraries that the interpreter and its extension modules map, as they say when all of them are loaded. Modules for
# terminals and networks, which the process lacks, need half of the libraries; each that is shown takes a millisecond.
_LOAD_ALL = """
import glob, importlib, os, sys, sysconfig
for path in glob.glob(os.path.join(sysconfig.get_path("platstdlib"), "lib-dynload", "*.so")):
    name = os.path.basename(path).partition(".")[0]
    if not name.startswith(("_test", "_tkinter", "_curses", "_ssl", "_dbm", "_gdbm", "readline", "nis", "xx")):
        try: importlib.import_module(name)
        except ImportError: pass
print("\\n".join(sorted({line.split()[-1] for line in open("/proc/self/maps") if ".so" in line and "/" in line})))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a confined process may use. `answer_bytes` bounds one line that it sends."""

    cpu_seconds: int = 10
    wall_seconds: float = 60.0  # a last resort: unlike processor time, it depends on other work on the machine
    memory_bytes: int = 1 << 30
    scratch_bytes: int = 16 << 20
    answer_bytes: int = 4 << 20
    open_files: int = 64
    depth: int = 3000  # of Python's calls

    def as_settings(self, *, endless: bool = False) -> dict[str, object]:
        """Return the limits that the process sets for itself before it sees foreign code.

        With `endless` its processor time has none: it serves many, and each is limited by elapsed time.
        """
        limits = {
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_FSIZE": self.scratch_bytes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_CORE": 0,
            "RLIMIT_NPROC": 1,
        }
        return {"limits": limits if endless else {**limits, "RLIMIT_CPU": self.cpu_seconds}, "depth": self.depth}


@dataclass(frozen=True, slots=True)
class Ending:
    """Why no answer comes any more of a process, as the process that started it knows from the kernel.

    `is_late`: it used up its time.
    """

    why: str
    is_late: bool = False


class Channel:
    """Lines to and from a confined process, by two descriptors that are this object's to close."""

    def __init__(self, to: int, of: int, limits: Limits) -> None:
        self._to, self._of, self.limits, self._rest = to, of, limits, b""
        os.set_blocking(to, False)

    def close(self) -> None:
        """Close both descriptors."""
        os.close(self._to)
        os.close(self._of)

    def send(self, line: bytes, deadline: float) -> bool:
        """Send a line, and return whether the process took it before `deadline`, in seconds of the monotonic clock."""
        while line:
            if not _is_ready(self._to, select.POLLOUT, deadline):
                return False
            try:
                line = line[os.write(self._to, line[:65536]) :]
            except OSError:  # it has ended
                return False
        return True

    def receive(self, deadline: float) -> bytes | None:
        """Return the next line; None if the process ends, says too much, or nothing until `deadline`."""
        parts, size = [self._rest], len(self._rest)
        while b"\n" not in parts[-1]:
            if size > self.limits.answer_bytes or not _is_ready(self._of, select.POLLIN, deadline):
                return None
            parts.append(os.read(self._of, 1 << 16))
            size += len(parts[-1])
            if not parts[-1]:
                return None
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    def why_silent(self, code: int | None, cpu_seconds: float = 0.0) -> Ending:
        """Return why no answer comes any more of a process that ended with `code` after so much processor time.

        None: it runs.
        """
        if code is None:
            return Ending(f"it closed its answers, or one has more than {self.limits.answer_bytes:,} bytes")
        if code == KILLED and cpu_seconds >= USED_UP * self.limits.cpu_seconds:
            return Ending(f"it used its {self.limits.cpu_seconds} s of processor time", is_late=True)
        return Ending(f"it ended with signal {code - 128}" if code > 128 else f"it ended with code {code}")


class Confined(Channel):
    """A confined process that runs `main()` of a module of the folder `inside`, under the filter from its start."""

    def __init__(self, module: str, limits: Limits) -> None:
        reader, writer = os.pipe()
        with open(writer, "wb") as stream:
            stream.write(filter_bytes())  # smaller than a pipe's buffer
        start = command(module, limits)
        theirs, to = os.pipe()
        of, answers = os.pipe()
        try:
            self._process = subprocess.Popen(
                [start[0], "--seccomp", str(reader), *start[1:]],
                stdin=theirs,
                stdout=answers,
                stderr=subprocess.DEVNULL,
                pass_fds=[reader],
                env={},
            )
        finally:
            for descriptor in (reader, theirs, answers):
                os.close(descriptor)
        super().__init__(to, of, limits)

    def close(self) -> None:
        """End the process with all that it started."""
        super().close()
        _ended(self._process)

    def ending(self) -> Ending:
        """Return why no answer comes any more: how the process ended, or what it did instead."""
        try:
            return self.why_silent(self._process.wait(timeout=1.0))
        except subprocess.TimeoutExpired:
            return self.why_silent(None)


class Nursery:
    """A confined process that starts others by forking, one at a time, each in a sandbox of its own.

    So a program costs no start of an interpreter. See `inside/nursery.py`. Programs can import what is `shown`, {place
    below the folder of modules: path here}. `calls` are made once before all of them: module, function and arguments,
    which must be nobody's but ours.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        shown: Mapping[str, str] | None = None,
        calls: Sequence[tuple[str, str, Sequence[object]]] = (),
    ) -> None:
        self.limits = limits
        start = json.dumps(
            {"filter": filter_bytes().hex(), "scratch_bytes": limits.scratch_bytes, "calls": list(calls)}
        )
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(GIVE_UP_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                command(NURSERY, limits, shown),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={},
            )
            with suppress(OSError):  # it has ended; the first program says why
                self._control.sendall(start.encode())

    def close(self) -> None:
        """End the process with all that it started."""
        assert self._process.stderr is not None, "it is a pipe"
        self._control.close()
        _ended(self._process)
        self._process.stderr.close()

    @contextmanager
    def program(self) -> Iterator[Channel]:
        """Context manager around a new process that waits for a program. The one before it is ended."""
        theirs, to = os.pipe()
        of, answers = os.pipe()
        channel = Channel(to, of, self.limits)
        try:
            try:
                socket.send_fds(self._control, [b"p"], [theirs, answers])
            except OSError as error:
                raise self._no_more() from error
            finally:
                os.close(theirs)
                os.close(answers)
            yield channel
        finally:
            channel.close()

    def ending(self, channel: Channel) -> Ending:
        """Return why the last program gives no answer any more: how it ended, or what it did instead.

        Raise DataError if the nursery has ended itself.
        """
        try:
            self._control.sendall(b"e")
            said = self._control.recv(64)
        except OSError:
            said = b""
        if not said:
            raise self._no_more()
        code, milliseconds = map(int, said.split())
        return channel.why_silent(None if code < 0 else code, milliseconds / 1000)

    def _no_more(self) -> DataError:
        assert self._process.stderr is not None, "it is a pipe"
        self._process.kill()
        said = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        return DataError(f"no program can be started in the sandbox: {said[-1] if said else 'it does not answer'}")


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that was told to end. Of one that is killed, nobody learns what processor time it used."""
    try:
        process.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _is_ready(descriptor: int, event: int, deadline: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    left = deadline - time.monotonic()
    return left > 0 and bool(poll.poll(left * 1000))


def command(module: str, limits: Limits, shown: Mapping[str, str] | None = None) -> list[str]:
    """Return the command of a confined process, without its filter of system calls.

    What is `shown` stands, read-only, where modules are looked for; see `Nursery`. The nursery has no filter, and may
    make namespaces and mount the folder that each of its programs can write in.
    """
    if module == NURSERY:
        more = ("--cap-add", "CAP_SYS_ADMIN", "--dir", "/tmp")
    else:
        more = ("--size", str(limits.scratch_bytes), "--tmpfs", "/tmp")
    return [
        shutil.which("bwrap") or "bwrap",
        *NAMESPACES,
        *_files(),
        *(part for place, path in (shown or {}).items() for part in ("--ro-bind", path, f"{HOME}/ours/{place}")),
        *("--dev-bind", "/dev/null", "/dev/null"),
        *(*more, "--chdir", "/tmp", "--remount-ro", "/"),
        *(part for name, value in _environment().items() for part in ("--setenv", name, value)),
        *("--", f"{HOME}/bin/python", "-sSPB", "-c", f"from {INSIDE.replace('/', '.')}.{module} import main; main()"),
    ]


def _environment() -> dict[str, str]:
    """The whole environment inside. Texts have the same hashes each time, so that no answer depends on them."""
    return {
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONHOME": HOME,
        "PYTHONPATH": f"{HOME}/ours",
        "LD_LIBRARY_PATH": f"{HOME}/so",
    }


@cache
def _files() -> tuple[str, ...]:
    """Return the options that show the interpreter, its library and the modules of `inside`, all read-only."""
    library, loader = sysconfig.get_path("stdlib"), _loader()
    place = f"{HOME}/{sys.platlibdir}/{os.path.basename(library)}"
    shown = {_interpreter(): f"{HOME}/bin/python", library: place, loader: loader}
    shown[str(Path(__file__).parent / "inside")] = f"{HOME}/ours/{INSIDE}"
    shared = [(path, f"{HOME}/so/{name}") for name, path in _libraries().items()]
    options = [
        part for path, where in [*shown.items(), *shared] for part in ("--ro-bind", os.path.realpath(path), where)
    ]
    for folder in ("site-packages", "dist-packages"):  # no part of the library
        if os.path.isdir(f"{library}/{folder}"):
            options += ["--tmpfs", f"{place}/{folder}", "--remount-ro", f"{place}/{folder}"]
    return tuple(options)


def _interpreter() -> str:
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


@cache
def _libraries() -> dict[str, str]:
    """Return the shared libraries outside the interpreter's own folder that it and its modules load, by each name."""
    done = subprocess.run(
        [_interpreter(), "-IS", "-c", _LOAD_ALL], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
    )
    own = os.path.realpath(sysconfig.get_path("stdlib"))
    named = dict[str, str]()
    for path in map(Path, done.stdout.splitlines()):
        if not path.is_relative_to(own):
            same = [one for one in path.parent.glob(f"{path.name.partition('.so')[0]}.so*") if one.resolve() == path]
            content = path.read_bytes()  # it holds the name by which others ask for it
            named |= {one.name: str(path) for one in same if b"\0%s\0" % one.name.encode() in content}
    return named


def _loader() -> str:
    """Return the path of the program that loads shared libraries, as the interpreter names it."""
    content = Path(_interpreter()).read_bytes()
    start = content.find(b"/lib")
    while start >= 0:
        path = content[start : content.find(b"\0", start)]
        if b"/ld-" in path:
            return path.decode()
        start = content.find(b"/lib", start + 1)
    raise OSError(f"{_interpreter()} names no loader of shared libraries")


@cache
def why_unavailable() -> str:
    """Return why no process can be confined on this machine, with the way out; empty if one was."""
    if platform.system() != "Linux":
        return f"the sandbox needs Linux; this machine has {platform.system()}"
    if shutil.which("bwrap") is None:
        return "the sandbox needs bubblewrap: install Debian's package bubblewrap (`bwrap`)"
    try:
        with closing(Nursery(Limits())) as tried, tried.program() as program:
            deadline = time.monotonic() + GIVE_UP_SECONDS
            nothing = b'{"program": "", "limits": {}, "depth": 100}\n{}\n'
            if program.send(nothing, deadline) and program.receive(deadline):
                return ""
            said = tried.ending(program).why
    except (DataError, LookupError, OSError, subprocess.SubprocessError) as error:
        said = str(error)
    return (
        f"the sandbox does not start ({said}); bubblewrap must be allowed to make user namespaces"
        " (kernel.unprivileged_userns_clone=1, in a container also its seccomp profile)"
    )


def check_sandbox(who: str) -> None:
    """Raise DataError unless processes can be confined here. `who` says what would run in them."""
    if problem := why_unavailable():
        raise DataError(f"{who} runs code that nobody has read, which this machine cannot confine: {problem}")
