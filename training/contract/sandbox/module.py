"""A module of this project, run confined on a folder that a stranger made.

It sees what this environment can import and that folder, read-only; no network, no environment, no other file of its
user. Otherwise it is confined as programs are (`confined.py`), with one thread.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from training.contract.sandbox.confined import NAMESPACES
from training.contract.sandbox.seccomp import filter_bytes

SYSTEM = ("/usr", "/lib", "/lib64", "/lib32")  # where shared libraries are
PROJECT = Path(__file__).parents[3]


def run_confined(
    module: str, *arguments: str, folder: Path, scratch_bytes: int, seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a module of `training` to its end and return what it wrote.

    Raise TimeoutExpired after so many seconds, with what it wrote until then.
    """
    reader, writer = os.pipe()
    with open(writer, "wb") as stream:
        stream.write(filter_bytes())  # smaller than a pipe's buffer
    command = [
        *(shutil.which("bwrap") or "bwrap", "--seccomp", str(reader), *NAMESPACES),
        *("--dev-bind", "/dev/null", "/dev/null", "--size", str(scratch_bytes), "--tmpfs", "/tmp"),
        *_shown(folder),
        *("--chdir", "/", "--remount-ro", "/"),
        *(part for name, value in _environment().items() for part in ("--setenv", name, value)),
        *("--", sys.executable, "-sPB", "-m", module, *arguments),
    ]
    try:
        return subprocess.run(
            command,
            capture_output=True,
            timeout=seconds,
            check=False,
            env={},
            stdin=subprocess.DEVNULL,
            pass_fds=[reader],
        )
    finally:
        os.close(reader)


def _environment() -> dict[str, str]:
    named = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return named | {
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
        "PYTHONPATH": os.pathsep.join([str(PROJECT), *_paths()]),
        "TOKENIZERS_PARALLELISM": "false",
    }


def _paths() -> list[str]:
    """Return where this process looks for modules, but a checkout of the project and the folder it was started in."""
    checkout = PROJECT if (PROJECT / "pyproject.toml").is_file() else None
    return [path for path in dict.fromkeys(sys.path) if os.path.isabs(path) and Path(path) != checkout]


def _shown(folder: Path) -> Iterator[str]:
    """Yield the options that show the system's libraries, the interpreter, modules, and the folder, all read-only."""
    for path in filter(os.path.exists, SYSTEM):
        yield from ("--symlink", os.readlink(path), path) if os.path.islink(path) else ("--ro-bind", path, path)
    shown = [sys.base_prefix, sys.prefix, os.path.dirname(os.path.realpath(sys.executable)), *_paths()]
    outside = [path for path in dict.fromkeys(shown) if os.path.exists(path) and not path.startswith("/usr/")]
    for path in (*outside, str(PROJECT / "training")):
        yield from ("--ro-bind", path, path)
    yield from ("--ro-bind-try", str(folder), str(folder))  # a folder that is not there is for the module to refuse
    targets = (one.resolve() for one in folder.rglob("*") if one.is_symlink())  # as in the cache of a hub
    for target in sorted({str(one) for one in targets if one.is_file() and not one.is_relative_to(folder)}):
        yield from ("--ro-bind", target, target)
