"""Write files that appear whole or not at all, and JSON with a checksum. Standard library only."""

from __future__ import annotations

import errno
import fcntl
import functools
import hashlib
import io
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from training.contract.files.checksums import note_written, sha256_of_written
from training.contract.process.lifetime import machine_id, start_of

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}-[0-9]+-[^.]+-[0-9a-f]{8}\.tmp")


@contextmanager
def written(path: Path, mode: str = "wb", *, durable: bool = True) -> Iterator[IO[Any]]:
    """Open a stream whose content appears at `path` whole or not at all: temporary name, fsync, rename.

    With `durable=False` there is no fsync, which waits for the disk; after a power failure the file may be empty. The
    file's checksum is taken while it is written, so that nothing needs to read it again
    (`training.contract.files.checksums`).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_for(path)
    try:
        with _Digesting(io.FileIO(temporary, "wb")) as raw:
            stream = raw if "b" in mode else io.TextIOWrapper(raw, "utf-8")
            yield stream
            stream.flush()
            if durable:
                os.fsync(raw.fileno())
            sha256 = raw.sha256()
        os.replace(temporary, path)
        if sha256:
            note_written(path, sha256)
    finally:
        temporary.unlink(missing_ok=True)


def temporary_for(path: Path) -> Path:
    """Return a temporary name beside `path` for a file that is being written.

    It contains the name of this process.
    """
    return path.with_name(f".{path.name}.{this_process()}-{uuid.uuid4().hex[:8]}.tmp")


def is_abandoned(temporary: Path) -> bool:
    """Whether the process that writes the file at a `temporary_for` name has ended. False for a process elsewhere."""
    return has_ended(temporary.name.split(".")[-2].rpartition("-")[0])


def is_being_written(path: Path) -> bool:
    """Whether a file is a temporary one (`temporary_for`) that a process may still be writing."""
    return _TEMPORARY.fullmatch(path.name) is not None and not path.is_symlink() and not is_abandoned(path)


def this_process() -> str:
    """Return a name of this process for names of files: machine, process id and start time."""
    return f"{_machine()}-{os.getpid()}-{start_of(os.getpid())}"


def has_ended(process: str) -> bool:
    """Whether the process that `this_process` named has ended. False if it ran on another machine."""
    machine, _, rest = process.partition("-")
    number, _, start = rest.partition("-")
    return machine == _machine() and number.isdigit() and bool(start) and start_of(int(number)) != start


@functools.cache
def _machine() -> str:
    return hashlib.sha256(machine_id().encode()).hexdigest()[:8]


class _Digesting(io.BufferedWriter):
    """A file being written, with the sha256 of its bytes so far."""

    def __init__(self, raw: io.FileIO) -> None:
        super().__init__(raw)
        self._sha256 = hashlib.sha256()
        self._counted = 0
        self._was_moved = False

    def write(self, data: Any) -> int:
        self._sha256.update(data)
        self._counted += memoryview(data).nbytes
        return super().write(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._was_moved = True  # what follows may overwrite; numpy writes past this object and then seeks
        return super().seek(offset, whence)

    def sha256(self) -> str:
        """Return the checksum (hex) of the flushed file; empty if it was not written from start to end."""
        is_all = not self._was_moved and self._counted == os.fstat(self.fileno()).st_size
        return self._sha256.hexdigest() if is_all else ""


def copied(source: Path, target: Path, sha256: str) -> bool:
    """Copy a file if it has this checksum. If it has another one or is gone, leave no copy and return False.

    The copy is an independent file and never a hard link, so that a later change of one file leaves the other as it
    is. Some file systems let both share their blocks until then. The checksum is computed from the bytes of the
    copy.
    """
    try:
        original = open(source, "rb")  # noqa: SIM115 - closed below; it may be removed at any moment before this
    except FileNotFoundError:
        return False
    with original, written(target) as copy:
        if not shares_blocks(original, copy):
            shutil.copyfileobj(original, copy, 1 << 20)
    if sha256_of_written(target) == sha256:
        return True
    target.unlink()
    return False


FICLONE = 0x40049409  # Linux ioctl that makes a file share the blocks of another file


def shares_blocks(original: IO[bytes], copy: IO[bytes]) -> bool:
    """Let an empty file share the blocks of another file, as on Btrfs or XFS; return False if that is not possible."""
    try:
        fcntl.ioctl(copy.fileno(), FICLONE, original.fileno())
    except OSError:
        return False
    return True


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Write a text file whole or not at all."""
    with written(path, "w", durable=durable) as stream:
        stream.write(text)


def json_text(value: Any) -> str:
    """Return JSON in the form used for files: indented, sorted keys, no NaN."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write JSON (indented, sorted keys) whole or not at all."""
    write_text(path, json_text(value), durable=durable)


# Sealed JSON: a mapping whose field `checksum` is the sha256 of the file's own text, with zeros in the field's place.


class Unsealed(ValueError):
    """A sealed JSON file cannot be read or differs from what was written."""


_NO_CHECKSUM = "0" * 64
_CHECKSUM = re.compile(rb'^ "checksum": "([0-9a-f]{64})"', re.MULTILINE)  # one space: a field of the outermost mapping


def sealed_text(value: Mapping[str, Any]) -> str:
    """Return the mapping as JSON with a field `checksum`, a sha256 over all other bytes of the text."""
    text = json_text({**value, "checksum": _NO_CHECKSUM})
    checksum = hashlib.sha256(text.encode("utf-8")).hexdigest()
    line = ' "checksum": "'  # only the outermost mapping can match, because no JSON string holds a line break
    return text.replace(f"\n{line}{_NO_CHECKSUM}", f"\n{line}{checksum}")


def write_sealed(path: Path, value: Mapping[str, Any], *, durable: bool = True) -> None:
    """Write a mapping as JSON with its checksum, whole or not at all."""
    write_text(path, sealed_text(value), durable=durable)


def regular_bytes(path: Path) -> bytes:
    """Return the bytes of a regular file. Raise Unsealed for a link, a folder, and a pipe, on which others would wait.

    Raise FileNotFoundError if there is nothing, or another OSError if the file cannot be read.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise Unsealed(f"{path.name} is no regular file") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise Unsealed(f"{path.name} is no regular file")
        with open(number, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(number)


def read_sealed(path: Path) -> dict[str, Any]:
    """Return the mapping in a sealed JSON file. Raise Unsealed if it is not JSON or a byte of it has changed."""
    return unsealed(regular_bytes(path), path.name)


def unsealed(data: bytes, name: str) -> dict[str, Any]:
    """Return the mapping in the bytes of a sealed JSON file `name`. Raise Unsealed as `read_sealed` does."""
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Unsealed(f"{name} cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise Unsealed(f"{name} holds no mapping")
    found = _CHECKSUM.findall(data)
    blank = _CHECKSUM.sub(f' "checksum": "{_NO_CHECKSUM}"'.encode(), data)
    if len(found) != 1 or hashlib.sha256(blank).hexdigest() != found[0].decode():
        raise Unsealed(f"{name} is not what was written: its checksum differs")
    return value
