"""What Slurm's accounting keeps of a job: every attempt with begin, end, nodes and energy, also those before a requeue.

Many clusters have no accounting. Then the controller alone is asked, which forgets an attempt when it requeues the job.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from resources.compute.base import Allocation, Status
from resources.compute.slurm_calls import Login, SlurmError
from resources.compute.slurm_states import state_of, status_of

# The fields of `sacct` under the names that `scontrol show job` has for them.
_FIELDS = {
    "JobId": "JobID",
    "JobState": "State",
    "ExitCode": "ExitCode",
    "StartTime": "Start",
    "EndTime": "End",
    "TimeLimit": "Timelimit",
    "NumNodes": "NNodes",
    "NodeList": "NodeList",
    "Joules": "ConsumedEnergyRaw",
}


def accounted(login: Login, job: str, *arrays: str) -> Status | None:
    """Return the status of a job's last attempt, with all allocations of the job and of the tasks of its arrays.

    The result is None if accounting does not know the job.
    """
    asked = ["-j", ",".join((job, *arrays)), "-o", ",".join(_FIELDS.values())]
    try:
        answer = login.call(["sacct", "-X", "-n", "-P", "--duplicates", *asked])
    except SlurmError:
        return None
    return status_of_rows(job, answer.splitlines())


def status_of_rows(job: str, lines: list[str]) -> Status | None:
    """Return the status of a job in the lines of `sacct`, oldest attempt first; None if none is the job's."""
    seen, found, last = Counter[str](), list[Allocation](), None
    for line in lines:
        if "|" not in line:
            continue
        fields = dict(zip(_FIELDS, line.split("|"), strict=False))
        fields["Restarts"] = str(seen[fields["JobId"]])
        seen[fields["JobId"]] += 1
        # A requeued attempt has ended, although its job has not.
        was_requeued = state_of(fields["JobState"]) == "REQUEUED"
        status = status_of(fields | ({"JobState": "CANCELLED"} if was_requeued else {}))
        last = status if fields["JobId"] == job else last
        joules = fields["Joules"]
        energy = {"nodes": float(joules)} if joules.isdigit() and int(joules) else {}
        for one in status.allocations[-1:]:  # an earlier one has a line of its own
            found.append(replace(one, energy=energy, cause="requeued" if was_requeued else one.cause))
    return None if last is None else replace(last, allocations=tuple(found))
