"""The exit codes of commands and of jobs. Each has one meaning, which `docs/command-line.md` shows."""

from __future__ import annotations

OK, FAILED, BAD_INPUT, REFUSED, MISSING_RANKS, REQUEUE, BUSY = 0, 1, 2, 3, 4, 75, 76

MEANINGS = {
    OK: "done; for `run` to the end or `--until promoted_model`: promoted",
    FAILED: "anything else",
    BAD_INPUT: "bad input (recipe, profile, data); a command started nothing",
    REFUSED: "a gate refused; its evidence is printed",
    MISSING_RANKS: "a job alone: ranks of an array are missing",
    REQUEUE: "a job alone: saved, and can be resumed",
    BUSY: "a job alone: another process is making the artifact",
    130: "ended by Ctrl-C",
    143: "ended by SIGTERM",
}
