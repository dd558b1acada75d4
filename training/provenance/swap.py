"""New versions of files that lie beside the old ones until all of them are ready, and then take their places together.

Whatever fails before `commit` leaves every file as it was. A process that is killed in `commit` leaves each file old or
new and never half of both, so the same work can be done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from training.contract.files.checksums import at_once, sha256_of
from training.contract.files.erased import ErasedState, note_erased
from training.contract.files.writing import temporary_for
from training.data.documents import compressing, decompressed_text, parsed_lines

Commit = Callable[[], object]


class Unchanged(Exception):
    """Raised in the block of `overwriting` to leave the file as it is."""


@dataclass(kw_only=True, slots=True)
class Overwriting:
    """A new version of a file: the stream of its content, and the pages that are overwritten in it."""

    stream: IO[bytes]
    pages: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ErasedFile:
    """A file of the artifact in `folder` that a takedown overwrites: its sha256 before, and its state after."""

    folder: Path
    path: str
    before: str
    state: ErasedState


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedRecord:
    """A record in whose texts a takedown masks words: its artifact's folder, and its digests before and after."""

    folder: Path
    before: str
    after: str


@dataclass(kw_only=True, slots=True)
class _New:
    """The new version of a file, and the artifact's folder that lists it as erased; None for a file of no artifact."""

    content: Path
    folder: Path | None
    is_input: bool
    pages: int = 0


@dataclass(kw_only=True)
class Swap:
    """A context manager that collects new versions of files for a takedown; without `commit`, it removes them again.

    `note` is told of all files and records of artifacts before the first of them changes, so that the takedown can be
    asked later what it did. `begin` are functions that start a change with a lock of its own, such as a transaction of
    a database, undo it when the stack is closed, and return what makes it final. All of them begin before any file is
    replaced. `then` is done at the end.
    """

    takedown: int
    note: Callable[[Sequence[ErasedFile], Sequence[MaskedRecord]], object]
    records: list[MaskedRecord] = field(default_factory=list)
    begin: list[Callable[[ExitStack], Commit]] = field(default_factory=list)
    then: list[Commit] = field(default_factory=list)
    has_begun: bool = False  # whether `commit` may have changed something
    _new: dict[Path, _New] = field(default_factory=dict)
    _contents: set[Path] = field(default_factory=set)

    def __enter__(self) -> Swap:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        for new in self._new.values():
            new.content.unlink(missing_ok=True)

    @contextmanager
    def overwriting(self, folder: Path | None, name: str | Path, *, is_input: bool = True) -> Iterator[Overwriting]:
        """Open a stream for the new version of a file. A block that raises Unchanged, or another error, leaves none.

        `name` is the file's path in an artifact's folder, or without one its whole path. `is_input` is that of
        `ErasedState`; a file that has a new version already keeps that of the first one.
        """
        path = Path(name) if folder is None else folder / name
        content = temporary_for(path)
        self._contents.add(content)
        try:
            with open(content, "w+b") as stream:
                yield (out := Overwriting(stream=stream))
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException as error:
            content.unlink(missing_ok=True)
            if isinstance(error, Unchanged):
                return
            raise
        before = self._new.get(path)
        if before is not None:
            before.content.unlink()
        first = before or _New(content=content, folder=folder, is_input=is_input)
        self._new[path] = _New(
            content=content, folder=folder, is_input=first.is_input, pages=max(first.pages, out.pages)
        )

    def now(self, path: Path) -> Path:
        """Return where the content of a file lies: in its new version if it has one."""
        return self._new[path].content if path in self._new else path

    def is_own(self, path: Path) -> bool:
        """Whether a file is the new version of another one."""
        return path in self._contents

    @property
    def paths(self) -> list[Path]:
        """The files that have a new version."""
        return list(self._new)

    def commit(self) -> None:
        """Put the new versions in their places, between the beginning and the end of all other changes."""
        files = {path: self._erased(path, new) for path, new in self._new.items() if new.folder is not None}
        with ExitStack() as stack:
            finals = [begin(stack) for begin in self.begin]
            self.note(list(files.values()), self.records)
            self.has_begun = True
            for final in finals:
                final()
        for path, new in self._new.items():
            if path in files:
                note_erased(files[path].folder, files[path].path, files[path].state)
            os.replace(new.content, path)
        for one in self.then:
            one()

    def _erased(self, path: Path, new: _New) -> ErasedFile:
        assert new.folder is not None
        state = ErasedState(
            takedown=self.takedown,
            bytes=new.content.stat().st_size,
            sha256=sha256_of(new.content),
            is_input=new.is_input,
            pages=new.pages,
        )
        name, before = path.relative_to(new.folder).as_posix(), sha256_of(path)
        return ErasedFile(folder=new.folder, path=name, before=before, state=state)


def overwrite_lines(
    folder: Path, name: str, changed: Callable[[Any], Any], swap: Swap, *, is_input: bool = True
) -> int:
    """Rewrite a file of JSON lines with the rows that `changed` changes, and return their number; 0 writes nothing.

    All other lines keep their bytes; empty ones go. Raise DataError for a line that is not JSON.
    """
    lines: list[str] = []

    def read() -> Iterator[str]:
        with open(folder / name, "rb", opener=at_once) as stream, decompressed_text(stream, name) as texts:
            for line in texts:
                if line.strip():
                    lines.append(line)
                yield line

    rows = list(parsed_lines(read(), str(folder / name)))
    new = [changed(row) for row in rows]
    touched = [row != other for row, other in zip(rows, new, strict=True)]
    if any(touched):
        with swap.overwriting(folder, name, is_input=is_input) as out, compressing(out.stream, name) as stream:
            out.pages = sum(touched)
            for line, row, is_touched in zip(lines, new, touched, strict=True):
                stream.write((json.dumps(row, ensure_ascii=False) + "\n" if is_touched else line).encode("utf-8"))
    return sum(touched)
