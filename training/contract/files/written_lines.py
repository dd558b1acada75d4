"""What a job writes while it runs, in the store of its root: a node that does not see the root's folder sends it.

The node sends what log, metrics, messages and records of attempts have gained; whoever watches the job writes it into
files of the same names here. Keys:

    ASSET/FINGERPRINT/written/NAME/00000-WRITER    a piece of a file, renewed until it has PIECE_BYTES

Each writer has pieces of its own, after those that it found. So a node that was taken for dead overwrites nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.contract.files.stored_root import WRITTEN, StoredRoot, stored_root

SEND_SECONDS = 3.0
PIECE_BYTES = 1 << 18
_NAME = re.compile(r"log(-\d+)?\.txt|(metrics|messages)\.jsonl|attempts/\w[\w.-]*\.json")
_PIECE = re.compile(r"(?P<number>\d{5,})-\w[\w.-]*")


@dataclass
class _Growing:
    """A file that is being sent: where its newest piece begins, and what was sent of this piece."""

    number: int
    begin: int
    sent: bytes = b""


@dataclass
class Sender:
    """Sends files of an artifact's folder as they grow. `writer` is the name of this attempt, which is no other one's.

    `begins` says from which byte on a file is to be sent; others are sent from their first byte on.
    """

    folder: Path
    writer: str
    begins: Mapping[str, int] = field(default_factory=dict)
    _growing: dict[str, _Growing] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        root = stored_root(self.folder)
        assert root is not None
        self._root, self._pieces = root, pieces_of(root, self.folder)
        self.writer = re.sub(r"[^\w.-]", "_", self.writer)

    @property
    def known(self) -> frozenset[str]:
        """The names of the files of which the store had pieces before this writer."""
        return frozenset(self._pieces)

    def send(self, names: Iterable[str]) -> None:
        """Send what these files have gained since the last call; those that are not there are passed over."""
        for name in names:
            path = self.folder / name
            if not path.is_file():
                continue
            if name not in self._growing:
                last = max((number for number, *_ in self._pieces.get(name, ())), default=-1)
                self._growing[name] = _Growing(last + 1, self.begins.get(name, 0))
            self._send(name, path, self._growing[name])

    def _send(self, name: str, path: Path, growing: _Growing) -> None:
        with open(path, "rb") as stream:
            stream.seek(growing.begin)
            while (piece := stream.read(PIECE_BYTES)) and piece != growing.sent:
                key = f"{self._root.key(self.folder)}/{WRITTEN}/{name}/{growing.number:05d}-{self.writer}"
                self._root.objects.put(key, piece)
                growing.sent = piece
                if len(piece) == PIECE_BYTES:
                    growing.number, growing.begin, growing.sent = growing.number + 1, stream.tell(), b""


Piece = tuple[int, str, Mapping[str, Any]]  # number, key, and what a list says of it


def pieces_of(root: StoredRoot, folder: Path) -> dict[str, list[Piece]]:
    """Return the pieces that the store has of an artifact's written files, in their order, by the file's name."""
    found = dict[str, list[Piece]]()
    prefix = f"{root.key(folder)}/{WRITTEN}"
    for key, said in root.objects.listed(prefix).items():
        name, _, piece = key.removeprefix(f"{prefix}/").rpartition("/")
        if _NAME.fullmatch(name) and (match := _PIECE.fullmatch(piece)):  # whoever has rights there chooses keys
            found.setdefault(name, []).append((int(match["number"]), key, said))
    return {name: sorted(pieces, key=lambda one: one[:2]) for name, pieces in found.items()}


@dataclass
class Follower:
    """Writes what a job's nodes have sent into the files of its artifact's folder here."""

    folder: Path
    _seen: set[tuple[str, int, str]] = field(default_factory=set, init=False)  # key, place in the file, tag

    def bring(self) -> None:
        """Bring what is new, if the root is in a store."""
        if (root := stored_root(self.folder)) is None:
            return
        for name, pieces in pieces_of(root, self.folder).items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
            with open(number, "r+b", buffering=0) as stream:
                self._write(root, stream, pieces)

    def _write(self, root: StoredRoot, stream: Any, pieces: list[Piece]) -> None:
        place = 0
        for _, key, said in pieces:
            size, tag = int(said.get("size") or 0), str(said.get("ETag", "")).strip('"')
            if tag and (key, place, tag) in self._seen:
                place += size
                continue
            here = os.pread(stream.fileno(), size, place)
            if hashlib.md5(here, usedforsecurity=False).hexdigest() != tag:  # S3's tag of what was written at once
                here = root.objects.get(key) or b""
                os.pwrite(stream.fileno(), here, place)
            self._seen.add((key, place, tag))
            place += len(here)
        if place < os.fstat(stream.fileno()).st_size:
            stream.truncate(place)


def send_what_is_here(folder: Path) -> None:
    """Send what earlier attempts on this machine wrote and the store has not, before nodes add to it."""
    names = [path.name for path in sorted(folder.iterdir()) if _NAME.fullmatch(path.name)]
    if names:
        sender = Sender(folder, "before")
        sender.send([name for name in names if name not in sender.known])
