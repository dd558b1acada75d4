"""The balance of a stage's records: in = kept + dropped + quarantined.

It must hold for the whole stage and for each rank; dropped and quarantined records are counted by reason.

A stage counts records twice: where it reads them (from a reader or a file's footer) and where it writes what became of
them. Only this module compares the two counts. It also compares the records read with the records that the input
artifacts kept (`Stage.reads`), so that no record is lost between two stages. The result is the gate `counts_balance`:
an artifact that fails it is refused as an input. Standard library only.
"""

from __future__ import annotations

from training.contract.job import Counts, Gate, Job
from training.contract.stage import Stage


def balance_gate(job: Job, stage: Stage, counts: Counts) -> Gate:
    """Return the gate `counts_balance`, which passes when every record is accounted for.

    The evidence holds the counts, the records that each input kept (null for an input without counts), and one sentence
    for each fault, with its place and the number of records.
    """
    given = {asset: _kept_of(job, stage, asset) for asset in (*stage.reads, *stage.reads_in_ranks)}
    faults = [
        *_unbalanced(stage.name, counts),
        *(fault for rank, part in enumerate(counts.parts) for fault in _unbalanced(f"{stage.name}, rank {rank}", part)),
        *_not_read(stage, given, counts),
    ]
    evidence = {
        **counts.as_json(),
        **({"inputs_kept": given} if given else {}),
        **({"faults": faults} if faults else {}),
    }
    return Gate(name="counts_balance", passed=not faults, evidence=evidence)


def _kept_of(job: Job, stage: Stage, asset: str) -> int | None:
    """Return the total number of records that the inputs made by `asset` kept; None if one of them has no counts."""
    inputs = job.inputs_of(asset)
    records = [item.record() for item in (inputs[-1:] if stage.reads_last else inputs)]
    accounts = [record.get("counts") for record in records]
    known = [account["kept"] for account in accounts if account is not None]
    return sum(known) if len(known) == len(accounts) else None


def _unbalanced(where: str, counts: Counts) -> list[str]:
    if counts.balance:
        return []
    difference = _difference(counts.records_in, counts.accounted)
    return [f"{where}: {counts.records_in} in, {counts.accounted} kept, dropped or quarantined: {difference}"]


def _not_read(stage: Stage, given: dict[str, int | None], counts: Counts) -> list[str]:
    files = len(counts.parts) if counts.files_in is None else counts.files_in
    came = {asset: files if asset in stage.reads_in_ranks else counts.records_in for asset in given}
    return [
        f"{stage.name}: {asset} kept {kept}, {came[asset]} came in: {_difference(kept, came[asset])}"
        for asset, kept in given.items()
        if kept is not None and kept != came[asset]
    ]


def _difference(expected: int, found: int) -> str:
    return f"{expected - found} lost" if found < expected else f"{found - expected} too many"
