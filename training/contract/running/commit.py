"""Commit an artifact: its record with manifest, gates, numerics class and cost, written last."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.contract import artifact
from training.contract.identity import numerics
from training.contract.job import Job, Outcome, Work
from training.contract.records import write_record
from training.contract.running.accounts import balance_gate
from training.contract.running.lease import Lease
from training.contract.running.leftovers import remove_leftovers
from training.contract.running.marks import peak_memory_bytes, spent_on_ranks
from training.contract.stage import Stage


def commit(
    job: Job,
    outcome: Outcome,
    folder: Path,
    lease: Lease,
    *,
    files: list[dict[str, Any]],
    code: dict[str, Any],
    ranks: dict[str, Any],
    seconds: float,
    node_hours: float,
    cpu_before: float = 0.0,
) -> None:
    """Write `artifact.json` with the manifest `files` and the fields `ranks`; then the artifact counts as made.

    `ranks` are the fields about ranks, and about files that are kept for later jobs. `cpu_before` are the CPU seconds
    that this process spent on something else. Raise LeaseHeld if the lease was lost.
    """
    record = {
        "asset": job.asset,
        "stage": job.stage,
        "stage_version": job.stage_version,
        "recipe": job.recipe,
        "partition": job.partition,
        "fingerprint": job.fingerprint,
        "digest": artifact.digest_of_files(files),
        # Which list of erased files was judged is no part of what an input is.
        "inputs": [{name: one for name, one in item.items() if name != "erased"} for item in write_record(job.inputs)],
        "settings": job.settings,
        "seed": job.seed,
        "libraries": job.libraries,
        "code": code,
        "code_revision": job.code_revision,
        "counts": outcome.counts.as_json() if outcome.counts else None,
        # JSON has no NaN; a training that came to nothing shall be refused by its gates.
        "metrics": {
            name: float(value) if math.isfinite(value) else None for name, value in sorted(outcome.metrics.items())
        },
        "gates": write_record(outcome.gates),
        "notes": outcome.notes,
        "numerics": outcome.numerics,
        "files": files,
        **ranks,
        **({"guards": write_record(job.guards)} if job.guards else {}),
        **({"replaces": list(job.replaces)} if job.replaces else {}),
        "seconds": round(seconds, 3),
        "cost": _cost(folder, seconds, cpu_before) | _charge(job, node_hours),
    }
    with lease.kept():
        remove_leftovers(folder, (*outcome.files, *outcome.beside.values()))
        artifact.commit_record(folder, record)


def with_balance(job: Job, stage: Stage, outcome: Outcome) -> Outcome:
    """Return the outcome with the gate `counts_balance` added, if the stage counts records."""
    if outcome.counts is None:
        return outcome
    return replace(outcome, gates=(*outcome.gates, balance_gate(job, stage, outcome.counts)))


def with_numerics(job: Job, stage: Stage, outcome: Outcome, work: Work) -> Outcome:
    """Return the outcome with its numerics class, if a model made it.

    If the stage is not distributed, the class says one process.
    """
    if not stage.by_a_model:
        return outcome
    alone: dict[str, int] = {} if stage.distributed else {"processes": 1}
    return replace(outcome, numerics=numerics.recorded(job, work) | alone)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _cost(folder: Path, seconds: float, cpu_before: float) -> dict[str, float]:
    """Return the wall seconds of this attempt, the sum of its CPU seconds, and the largest memory of a process (bytes).

    Sum and largest memory include ranks that ran in other processes.
    """
    elsewhere = [spent for spent in spent_on_ranks(folder) if spent["pid"] != os.getpid()]
    own = cpu_seconds() - cpu_before
    return {
        "wall_seconds": round(seconds, 3),
        "cpu_seconds": round(own + sum(spent["cpu_seconds"] for spent in elsewhere), 3),
        "peak_memory_bytes": max([peak_memory_bytes(), *(spent["peak_memory_bytes"] for spent in elsewhere)]),
    }


def node_hours_of(job: Job, stage: Stage, seconds: float, earlier_rank_seconds: float) -> float:
    """Return the node-hours of this attempt on its nodes plus those of earlier ranks.

    An earlier rank counts with the part of a node that one worker has.
    """
    own_nodes = 1 if stage.in_ranks else job.run.nodes + job.run.spare_nodes
    return (own_nodes * seconds + earlier_rank_seconds / max(job.run.num_workers, 1)) / 3600


def _charge(job: Job, node_hours: float) -> dict[str, float]:
    """Return the node-hours and, if the profile gives a price per hour, their price in its currency."""
    price = {"price": round(node_hours * job.run.price_per_hour, 6)} if job.run.price_per_hour else {}
    return {"node_hours": round(node_hours, 6), **price}
