"""A terminal for tests: runs a command in a pseudo-terminal and reads the screen as a person sees it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import tempfile
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

# What is written to the terminal: a control sequence, a control character, or text.
_PIECE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")
_CUT = re.compile(r"\x1b[^A-Za-z]*\Z")  # a control sequence whose end was not read yet
READ_BYTES = 65_536


@dataclass
class Screen:
    """The lines of a terminal, and the control sequences that were seen. It knows the sequences that rich writes."""

    columns: int = 80
    lines: list[str] = field(default_factory=lambda: [""])  # all of them, also those that have scrolled away
    row: int = 0
    column: int = 0
    sequences: set[str] = field(default_factory=set)

    def feed(self, text: str) -> None:
        """Write text to the terminal. Raise AssertionError for a control sequence that is not known."""
        for piece in _PIECE.finditer(text):
            numbers, letter, control, words = piece.groups()
            if letter:
                self.sequences.add(letter)
                self._obey(numbers, letter)
            elif control == "\r":
                self.column = 0
            elif control == "\n":
                self._go_down()
            else:
                self._write(words)

    def _obey(self, numbers: str, letter: str) -> None:
        assert letter in "AKmhl", f"ESC [{numbers}{letter}"
        if letter == "A":
            self.row -= int(numbers or 1)
        elif letter == "K":
            self.lines[self.row] = "" if numbers == "2" else self.lines[self.row][: self.column]

    def _go_down(self) -> None:
        self.row += 1
        self.lines += [""] * (self.row + 1 - len(self.lines))

    def _write(self, words: str) -> None:
        for character in words:
            if self.column == self.columns:
                self._go_down()
                self.column = 0
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
            self.column += 1


Strike = tuple[Callable[[Screen], bool], int]  # when, and with which signal


@dataclass(frozen=True)
class Shown:
    """What a command showed: exit code, standard output, the screen at the end, and every screen before that."""

    code: int
    output: str
    screen: Screen
    frames: list[list[str]]

    def said(self, words: str) -> list[str]:
        """The lines of any frame that hold these words, each once."""
        return list(dict.fromkeys(line for frame in self.frames for line in frame if words in line))


def run_in_terminal(
    argv: list[str],
    environment: Mapping[str, str],
    *,
    columns: int = 80,
    strike: Strike | None = None,
) -> Shown:
    """Run a command until it ends; its standard input and standard error are a pseudo-terminal of 24 lines.

    `strike` is a condition on the screen, and the signal that the command gets when it is true; SIGINT is typed as
    Ctrl-C, so that all processes in the foreground get it.
    """
    ours, theirs = pty.openpty()
    resize(theirs, columns)
    screen, frames = Screen(columns), []
    decoder, cut = codecs.getincrementaldecoder("utf-8")(), ""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=output,
            stderr=theirs,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=partial(fcntl.ioctl, theirs, termios.TIOCSCTTY, 0),  # so that Ctrl-C reaches it
        )
        while True:
            is_over = process.poll() is not None
            if select.select([ours], [], [], 0 if is_over else 0.2)[0]:
                text = cut + decoder.decode(os.read(ours, READ_BYTES))
                whole = _CUT.sub("", text)
                cut = text[len(whole) :]
                screen.feed(whole)
                if not frames or frames[-1] != screen.lines:
                    frames.append(list(screen.lines))
            elif is_over:
                break
            if strike is not None and strike[0](screen):
                _strike(process, ours, strike[1])
                strike = None
        os.close(ours)
        os.close(theirs)
        output.seek(0)
        return Shown(process.returncode, output.read().decode(), screen, frames)


def read_now(terminal: int) -> str:
    """Return what was written to a pseudo-terminal and is not read yet."""
    data = b""
    with suppress(OSError):  # nobody has the other side open any more
        while select.select([terminal], [], [], 0)[0]:
            data += os.read(terminal, READ_BYTES)
    return data.decode()


def resize(terminal: int, columns: int) -> None:
    """Give a pseudo-terminal 24 lines of so many columns."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def broken_words(printed: Callable[[int], str]) -> set[str]:
    """The words that are in what is printed at 60 to 120 columns, but not in what is printed at 1000."""
    whole = set(printed(1000).split())
    at_widths = [printed(width) for width in range(60, 121)]
    assert all(len(line) <= width for width, text in enumerate(at_widths, 60) for line in text.splitlines())
    return {word for text in at_widths for word in text.split() if any(map(str.isalnum, word))} - whole


def _strike(process: subprocess.Popen[bytes], terminal: int, number: int) -> None:
    if number == signal.SIGINT:
        os.write(terminal, b"\x03")
    else:
        process.send_signal(number)
