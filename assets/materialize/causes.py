"""How a job ended and why, from the scheduler's state, the exits that the job's processes recorded, and the log.

If the scheduler or supervisor ended the job, its reason comes first, because the job could not record it. Otherwise the
error that this attempt recorded counts. Errors of earlier attempts, which may be in the same folder and log, are
ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from resources.compute.base import Status, Task
from training.contract.process.exit_codes import BAD_INPUT, FAILED, MISSING_RANKS, REFUSED, REQUEUE
from training.contract.running.attempt import verdict
from training.contract.stored_state import saved_step

FINAL_EXIT_CODES = (BAD_INPUT, REFUSED)  # every further attempt would end in the same way
TAIL_LINES = 40
NAMED_LOGS = 5  # at most so many log files are listed in a sentence


class StageFailed(RuntimeError):
    """A stage ended without its artifact. `exit_code` is the job's; FAILED if that is 0 or there is none."""

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code or FAILED


def as_told(status: Status, folder: Path, *, is_saved: bool) -> Status:
    """Return the job's status with the exit code that its own processes recorded, because torchrun always exits with 1.

    `is_saved` means that the job reported a saved state before it stopped. If no exit code was recorded, the job
    then gets the exit code of jobs that are to be submitted again. So does a preempted job, whatever error its
    processes met when they lost their nodes, unless every further attempt would end with it.
    """
    if status.state == "succeeded":
        return status
    if status.exit_code == MISSING_RANKS:
        return _of_fan_out(status, folder)
    told = verdict(folder, status.attempt) if status.attempt else None
    if told is not None and not (status.was_preempted and told["exit_code"] not in FINAL_EXIT_CODES):
        return replace(status, exit_code=told["exit_code"])
    return replace(status, exit_code=REQUEUE) if is_saved else status


def explain(backend: Any, task: Task, status: Status) -> str:
    """A sentence for people that explains why a stage ended without its artifact."""
    folder = Path(task.folder)
    if status.exit_code == REQUEUE:
        return f"somebody cancelled its job ({status.reason}); it {saved(folder)}; run it again to go on"
    if status.state == "cancelled" or status.parts:
        return status.reason  # the last error in the job's log did not cause this
    tail = backend.log_tail(task.folder, TAIL_LINES, status.attempt)
    own = _own_words(folder, status) or _last_error(tail)
    if status.was_ended and not (own and status.exit_code in FINAL_EXIT_CODES):
        return f"{status.reason}; before that the job said: {own}" if own else f"{status.reason}\n{tail}".rstrip()
    if not own and not tail and task.node_folder is not None:
        tail = (
            "its node sent no log: `node_cache` may not be writable there, or the node may not use the store"
            f" {task.node_folder.address}; what the node says is in {task.work_folder} there, in its /tmp, or in the"
            " pod's log"
        )
    return own or f"{status.reason or status.state} (exit code {status.exit_code})\n{tail}".rstrip()


def saved(folder: Path) -> str:
    """Return words that say what a stopped job saved, to end a sentence, such as `saved its state at step 100`."""
    step = saved_step(folder)
    return "saved its state" if step is None else f"saved its state at step {step}"


def _of_fan_out(status: Status, folder: Path) -> Status:
    """The status of a fan-out with missing ranks: the most frequent status among its failed tasks."""
    missing = _own_words(folder, status) or "ranks were not made"
    if not status.parts:
        return replace(
            status, exit_code=1, reason=f"{missing}; the backend no longer knows why: see log-0.txt, log-1.txt, ..."
        )
    causes = [_cause_of(part, folder) for part in status.parts]
    kinds = [re.sub(r"\d+", "0", cause) for cause in causes]  # numbers of ranks, files or bytes make no other cause
    kind, number = Counter(kinds).most_common(1)[0]
    alike = [part for part, one in zip(status.parts, kinds, strict=True) if one == kind]
    logs = ", ".join(part.log for part in alike[:NAMED_LOGS])
    more = f" and {number - NAMED_LOGS} more" if number > NAMED_LOGS else ""
    reason = (
        f"{missing}; {number} of {len(causes)} failed tasks of its fan-out: {causes[kinds.index(kind)]} ({logs}{more})"
    )
    ended = as_told(alike[0], folder, is_saved=False)
    final = ended.exit_code if ended.exit_code in (*FINAL_EXIT_CODES, REQUEUE) else 1
    return replace(status, state=ended.state, reason=reason, exit_code=final, was_ended=True)


def _cause_of(part: Status, folder: Path) -> str:
    return part.reason if part.was_ended else _own_words(folder, part) or part.reason


def _own_words(folder: Path, status: Status) -> str:
    told = verdict(folder, status.attempt) if status.attempt else None
    return str(told["error"]) if told is not None else ""


def _last_error(tail: str) -> str:
    errors = [line.removeprefix("error: ") for line in tail.splitlines() if line.startswith("error: ")]
    return errors[-1] if errors else ""
