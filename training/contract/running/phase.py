"""The phases of a stage: fan-outs that run one after the other.

A stage with one fan-out has `num_ranks` and `run_rank`. A stage with several has `PHASES`; the ranks of a phase read
files that earlier phases wrote. Files that only later phases read are in the job's scratch folder. Standard library
only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from training.contract.job import Job, Work
from training.contract.records import RecipeError

RANKS_FOLDER = "ranks"  # in an unfinished artifact: the marks of its finished ranks, with a folder for each phase

RunRank = Callable[[Job, Work, int], dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One fan-out of a stage.

    It begins when all ranks of the phases before it are finished.
    """

    name: str  # "" for a stage with one fan-out
    num_ranks: Callable[[Job], int]  # fixed by inputs and settings, never by the machine; may be 0
    run_rank: RunRank


def phases_of(module: ModuleType) -> tuple[Phase, ...]:
    """Return the phases of a stage's module, in order."""
    if hasattr(module, "PHASES"):
        return module.PHASES
    return (Phase(name="", num_ranks=module.num_ranks, run_rank=module.run_rank),)


def phase_of(module: ModuleType, name: str) -> Phase:
    """Return the phase with this name.

    Raise RecipeError if the stage has none.
    """
    phases = {phase.name: phase for phase in phases_of(module)}
    if name not in phases:
        said = f"one of {', '.join(phases)}" if "" not in phases else "left out, because the stage has one fan-out"
        raise RecipeError(f"--phase: {name!r} must be {said}")
    return phases[name]
