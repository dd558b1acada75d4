"""Small named texts that the processes of a job leave for each other, such as claims and signs of life.

They are files of a folder that all of the processes see, or objects of the root's store.

A note is created only if there is none of its name, or written in place of an earlier one. Standard library only, but
for notes in a store.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from training.contract.files.stored_root import StoredRoot, stored_root


class Notes(Protocol):
    """A place of notes."""

    @property
    def look_seconds(self) -> float:
        """How long to wait between two looks at the notes."""
        ...

    @property
    def write_seconds(self) -> float:
        """How long to wait before a note is written again."""
        ...

    def names(self) -> Iterable[str]:
        """Return the names of all notes."""
        ...

    def create(self, name: str, text: str) -> bool:
        """Write a note if there is none of this name; return whether it was written."""
        ...

    def read(self, name: str) -> str:
        """Return a note; empty if there is none."""
        ...

    def write(self, name: str, text: str) -> None:
        """Write a note in place of an earlier one of its name, if there is one."""
        ...


def notes_in(folder: Path) -> Notes:
    """Return where processes leave notes about a folder: the root's object store, else the folder, which is made."""
    if (root := stored_root(folder)) is not None:
        return StoredNotes(root, root.key(folder))
    folder.mkdir(parents=True, exist_ok=True)
    return FolderNotes(folder)


@dataclass(frozen=True, slots=True)
class FolderNotes:
    """Notes as files of a folder, which is safe on NFS too; nothing renames or removes them."""

    folder: Path
    look_seconds: float = 0.25
    write_seconds: float = 1.0

    def names(self) -> list[str]:
        """Return the names of all notes."""
        return os.listdir(self.folder)

    def create(self, name: str, text: str) -> bool:
        """Write a note if there is none of this name; return whether it was written."""
        try:
            descriptor = os.open(self.folder / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
        return True

    def read(self, name: str) -> str:
        """Return a note; empty if there is none, or if its writer ended before it wrote."""
        with suppress(FileNotFoundError):
            return (self.folder / name).read_text("utf-8")
        return ""

    def write(self, name: str, text: str) -> None:
        """Write a note in place, of the length that it had: NFS shows a new content sooner than a new file."""
        descriptor = os.open(self.folder / name, os.O_CREAT | os.O_WRONLY, 0o666)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)


@dataclass(frozen=True, slots=True)
class StoredNotes:
    """Notes as objects of a root's store, whose keys begin with `prefix/`."""

    root: StoredRoot
    prefix: str
    look_seconds: float = 2.0
    write_seconds: float = 5.0

    def names(self) -> list[str]:
        """Return the names of all notes."""
        return [key.removeprefix(f"{self.prefix}/") for key in self.root.objects.listed(self.prefix)]

    def create(self, name: str, text: str) -> bool:
        """Write a note if there is none of this name; return whether it is there with this text.

        An answer may be lost after the note was written, so the text must be that of one writer alone.
        """
        return self.root.objects.create(f"{self.prefix}/{name}", text.encode("utf-8")) or self.read(name) == text

    def read(self, name: str) -> str:
        """Return a note; empty if there is none."""
        return (self.root.objects.get(f"{self.prefix}/{name}") or b"").decode("utf-8", "replace")

    def write(self, name: str, text: str) -> None:
        """Write a note in place of an earlier one of its name, if there is one."""
        self.root.objects.put(f"{self.prefix}/{name}", text.encode("utf-8"))
