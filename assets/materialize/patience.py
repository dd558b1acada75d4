"""How long a run waits for a job to start, when it logs that it waits, and how often it retries a stage."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from resources.compute.base import Status
from training.contract.running.marks import num_finished
from training.contract.stored_state import saved_step

WAITING_SECONDS, REMINDER_SECONDS = 30.0, 600.0


class Patience:
    """When to log why a job does not start: after 30 s, when the reason changes, and every 600 s after that.

    A reason that waiting cannot end is logged at once.
    """

    def __init__(self) -> None:
        self._since = self._said_at = time.monotonic()
        self._said = ""
        self._pending_seconds = 0.0

    @property
    def seconds(self) -> float:
        """The time that the job has waited.

        It is the longer of the scheduler's figure and the time for which the job was watched.
        """
        return max(time.monotonic() - self._since, self._pending_seconds)

    def is_due(self, status: Status) -> bool:
        """Whether it is time to log why the job waits in the queue; False if the job is not pending."""
        self._pending_seconds = status.pending_seconds
        if status.state != "pending":
            self._since, self._said = time.monotonic(), ""
            return False
        silent = time.monotonic() - self._said_at
        is_news = status.reason != self._said
        due = (is_news and (status.is_stuck or self.seconds > WAITING_SECONDS)) or (
            self.seconds > WAITING_SECONDS and silent > REMINDER_SECONDS
        )
        if due:
            self._said, self._said_at = status.reason, time.monotonic()
        return due

    def given_up(self, status: Status, max_pending_hours: float | None) -> Status | None:
        """Return the final status of a job that was pending for too long; None while it may wait longer.

        `max_pending_hours` None means no limit.
        """
        if status.state != "pending" or max_pending_hours is None or status.pending_seconds < max_pending_hours * 3600:
            return None
        waited = f"waited {status.pending_seconds / 3600:.3g} hours in the queue"
        allowed = f"the profile's `max_pending_hours` is {max_pending_hours:g}"
        return replace(status, state="cancelled", reason=f"{waited} ({allowed}) and was cancelled: {status.reason}")


class Retries:
    """How often a stage that ended without its artifact is tried again: `allowed` times in a row without progress.

    Progress restores the whole budget. So a training of a month survives many faults, but a stage that always fails
    at the same place ends. Progress means more finished ranks, or a checkpoint of a later step than any before;
    steps after the last checkpoint are lost and do not count.
    """

    def __init__(self, allowed: int, folder: Path) -> None:
        self._allowed, self._folder = allowed, folder
        self._best = self._kept()
        self.left = allowed
        self.why = ""

    def take(self) -> bool:
        """Use up one attempt and return whether one was left; sets `why` to the progress that restored the budget."""
        kept = self._kept()
        gained = [f"{what} {number}" for what, number in kept.items() if number > self._best[what]]
        self._best = {what: max(kept[what], self._best[what]) for what in kept}
        self.left = (self._allowed if gained else self.left) - 1
        self.why = f" after progress to {' and '.join(gained)}" if gained else ""
        return self.left >= 0

    def _kept(self) -> dict[str, int]:
        """Return how far the work has come, to measure progress.

        This is the number of finished ranks, and the last checkpoint's step, which is -1 without a checkpoint.
        """
        step = saved_step(self._folder)
        return {
            "finished ranks:": num_finished(self._folder),
            "checkpoint of step": -1 if step is None else step,
        }
