"""The result of a `pedigree run`, derived once at its end from the state of every cell that was asked for.

The exit code, the JSON answer, the terminal, the webhook, MLflow's run of the launch and Dagster's log all show this
one result. A cell is an asset in a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from typing import Any

from assets.registry.decision import DECISION
from assets.registry.refusal import refusal_by, refusal_sentence
from assets.registry.standing import Standing
from assets.services.signals import SIGNALS, by_signal, exit_code_of
from assets.state.cell import Cell, Comparison
from assets.state.chain import CHAIN
from assets.terminal.errors import GO_ON
from resources.notify import Notice
from training.contract.process.exit_codes import FAILED, OK, REFUSED


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """What a run was asked for: all cells, or those up to the asset `until`, or those of `snapshots` with inputs."""

    until: str | None = None
    snapshots: tuple[str, ...] = ()

    def cells(self, comparison: Comparison) -> list[Cell]:
        """Return all cells that are asked for, made or not, inputs first. Raise RecipeError for an unknown snapshot."""
        cells = comparison.up_to(self.until)
        if not self.snapshots:
            return cells
        for name in self.snapshots:
            comparison.recipe.snapshot(name)
        needed = {cell.key for cell in cells if CHAIN[cell.asset].scope == "snapshot" and cell.part in self.snapshots}
        waiting = list(needed)
        while waiting:
            new = set(comparison.cells[waiting.pop()].waits_for) - needed
            needed |= new
            waiting += new
        return [cell for cell in cells if cell.key in needed]

    def left(self, comparison: Comparison) -> list[Cell]:
        """Return the cells that are asked for and that a run must make or point to a made artifact, inputs first."""
        return [cell for cell in self.cells(comparison) if not cell.is_done]

    @property
    def words(self) -> str:
        """Return what the run was asked for less than all, to put behind `artifacts`; empty if it was all."""
        snapshots = f" of {', '.join(self.snapshots)} and what they need" if self.snapshots else ""
        return (f" up to {self.until}" if self.until else "") + snapshots

    def decision(self, comparison: Comparison) -> Cell | None:
        """Return the cell of the decision on a promotion, if it is asked for."""
        return next((cell for cell in self.cells(comparison) if cell.asset == DECISION), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a run of Dagster ended. Its `error` is empty if at most gates of its own artifacts failed.

    `exit_code` is the command's for this error. `notices` are about all assets that failed or were refused.
    """

    error: str = ""
    exit_code: int = OK
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The result of one `pedigree run`, with the fields that docs/command-line.md promises."""

    recipe: str
    exit_code: int = OK
    done: str = ""  # what an ok run was asked for, and made
    promoted: bool = False
    error: str = ""
    refusals: tuple[dict[str, Any], ...] = ()
    assets: dict[str, dict[str, Any]] = field(default_factory=dict)
    promotion: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    notices: tuple[Notice, ...] = ()  # which the webhook got while the run went on

    def as_json(self) -> dict[str, Any]:
        """Return the object that `pedigree run --json` prints."""
        return {
            "recipe": self.recipe,
            "ok": self.exit_code == OK,
            "promoted": self.promoted,
            "promotion": self.promotion,
            "refusals": list(self.refusals),
            "error": self.error,
            "seconds": round(self.seconds, 3),
            "assets": self.assets,
        }

    @property
    def sentence(self) -> str:
        """Return in words how the run ended: `ok` with what is made, or its error and its refusals."""
        if self.exit_code == OK:
            return f"ok: {self.done}"
        return "; ".join(line for line in (self.error, *map(refusal_sentence, self.refusals)) if line)

    @property
    def is_cancelled(self) -> bool:
        """Whether Ctrl-C or SIGTERM ended the run, of which the webhook hears nothing."""
        return self.exit_code in map(exit_code_of, SIGNALS)

    def ended_by(self, number: int) -> Report:
        """Return the result of the run that this signal ended; the same one if it is 0, or all was made before it."""
        if not number or self.exit_code == OK:
            return self
        return replace(self, error=f"{by_signal(number)}; {GO_ON}", exit_code=exit_code_of(number))

    def untold(self, last: str) -> Iterator[Notice]:
        """Yield a notice of each refusal, and of the error, that was not told while the run went on.

        An error is told of the asset `last`, with which the run was to end.
        """
        told = {(one.asset, one.partition) for one in self.notices}
        for one in self.refusals:
            asset, partition = one["asset"], one["partition"]
            if (asset, partition) not in told:
                yield Notice(kind="refused", asset=asset, partition=partition, cause=refusal_sentence(one))
        if self.error and not told:
            yield Notice(kind="failed", asset=last, partition=self.recipe, cause=self.error)


def report_of(
    comparison: Comparison,
    goal: Goal,
    *,
    ended: Iterable[Ended],
    standing: Standing | None,
    made_here: Set[tuple[str, str]] = frozenset(),
) -> Report:
    """Return the result of a run from the cells after it, the standing of the recipe's model and how its parts ended.

    It is ok if every cell that was asked for is made and none of them was refused and, if the decision on a promotion
    is among them, if the model is promoted.
    """
    ended = tuple(ended)
    report = Report(
        recipe=comparison.recipe.name,
        assets=_entries(comparison, made_here),
        refusals=tuple(_refusals(comparison, goal, standing)),
        promoted=standing is not None and standing.promoted,
        promotion=standing.as_json() if standing is not None else {},
        notices=tuple(notice for one in ended for notice in one.notices),
    )
    if failed := [one for one in ended if one.error]:
        return replace(report, error="\n".join(one.error for one in failed), exit_code=failed[0].exit_code)
    if report.refusals:
        return replace(report, exit_code=REFUSED)
    error = _not_made(goal.left(comparison)) or _not_promoted(comparison, goal, standing)
    return replace(report, error=error, exit_code=FAILED if error else OK, done=_done(comparison, goal, made_here))


def _done(comparison: Comparison, goal: Goal, made_here: Set[tuple[str, str]]) -> str:
    keys = {cell.key for cell in goal.cells(comparison)}
    return f"{len(keys):,} of {len(keys):,} artifacts{goal.words} are made, {len(keys & made_here):,} by this run"


def _refusals(comparison: Comparison, goal: Goal, standing: Standing | None) -> Iterator[dict[str, Any]]:
    """Yield the refusal of each cell that was asked for.

    A decision is none if a person promoted the model all the same, if the model is damaged, or if the registry did not
    answer. A former champion is refused by the gate `champion`.
    """
    for cell in goal.cells(comparison):
        is_refused = cell.artifact is not None and bool(cell.artifact.failed_gates)
        if cell.asset != DECISION or standing is None:
            yield from [refusal_of(cell)] if is_refused else []
        elif is_refused:
            yield from [] if standing.by_hand or standing.is_damaged or not standing.is_known else [refusal_of(cell)]
        elif standing.superseded_by:
            evidence = {"reason": standing.sentence, "version": standing.version, "champion": standing.champion}
            yield {"gate": "champion", "evidence": evidence, "asset": cell.asset, "partition": cell.partition}


def _not_made(left: list[Cell]) -> str:
    """Return a sentence about the first cell that is not made; empty if there is none."""
    if not left:
        return ""
    cell, why = left[0], f" ({left[0].reasons[0]})" if left[0].reasons else ""
    return f"{cell.asset} [{cell.partition}] is {cell.state} at the end of the run{why}"


def _not_promoted(comparison: Comparison, goal: Goal, standing: Standing | None) -> str:
    """Return why the model is not promoted although a decision was asked for; empty if it is, or if none was."""
    if standing is None or standing.promoted or goal.decision(comparison) is None:
        return ""
    return f"{standing.model_name} is not promoted: {standing.sentence}"


def refusal_of(cell: Cell) -> dict[str, Any]:
    """Return the refusal by the first failed gate of a cell's artifact, for the JSON answer."""
    assert cell.artifact is not None
    return refusal_by(cell.artifact.failed_gates[0], cell)


def _entries(comparison: Comparison, made_here: Set[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Return an entry for every asset and partition that is made, by both names."""
    found: dict[str, dict[str, Any]] = {}
    for cell in comparison.cells.values():
        if cell.artifact is not None and cell.is_recorded:
            found.setdefault(cell.asset, {})[cell.partition] = _entry(cell, reused=cell.key not in made_here)
    return found


def _entry(cell: Cell, *, reused: bool) -> dict[str, Any]:
    assert cell.artifact is not None
    record = cell.artifact.record
    return {
        "fingerprint": cell.artifact.fingerprint,
        "digest": cell.artifact.digest,
        "uri": str(cell.artifact.path),
        "reused": reused,
        "seconds": record["seconds"],
        "counts": record["counts"],
        "metrics": record["metrics"],
        **({"reused_ranks": record["reused_ranks"]} if "reused_ranks" in record else {}),
    }
