"""A trainer that makes steps when told, in a thread of this process instead of a process of its own."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from benchmarks.trainers import TRAINERS, Ready, Running, Task, Turns, _environment
from training.contract.records import read_record


class Inside(Running):
    """The same questions and answers over the same kind of pipes; starting takes no seconds."""

    def __init__(self, task: Task, *, peers: Path | None = None, timeout: float = 60.0) -> None:
        _environment(task, peers)  # says what is missing
        self.task, self.timeout, self._left = task, timeout, b""
        asked, ask = os.pipe()
        answered, answer = os.pipe()
        self._questions, self._answers = os.fdopen(asked), os.fdopen(answer, "w")
        self._process = _Pipes(ask, answered)
        self._said = ""
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self.ready = read_record(Ready, self._line())

    def close(self) -> None:
        self._process.stdin.close()
        self._thread.join(30)
        self._process.stdout.close()

    def _work(self) -> None:
        turns = Turns(self.task, questions=self._questions, answers=self._answers)
        try:
            TRAINERS[self.task.trainer](self.task, turns)
        except SystemExit as end:
            self._said = str(end.code)
        self._answers.close()
        self._questions.close()

    def _last_words(self) -> str:
        self._thread.join(30)
        self._process.stdin.close()
        self._process.stdout.close()
        return self._said


class _Pipes:
    """The two ends that a process would have."""

    def __init__(self, ask: int, answered: int) -> None:
        self.stdin, self.stdout = os.fdopen(ask, "wb", buffering=0), os.fdopen(answered, "rb", buffering=0)
