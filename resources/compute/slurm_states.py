"""Translate Slurm's job states, reasons and exit codes into the status of a task, with sentences that say what to do.

Sources: Slurm's pages "Job State Codes" and "Job Reason Codes" (22.05 and later).
"""

from __future__ import annotations

import calendar
import re
import signal
import time

from resources.compute.base import Allocation, Status
from training.contract.process.exit_codes import BAD_INPUT, REQUEUE

PENDING = {
    "PENDING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "SUSPENDED",
    "CONFIGURING",
    "RESV_DEL_HOLD",
    "EXPEDITING",
    "POWER_UP_NODE",
}
HELD = {"REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
RUNNING = {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED", "UPDATE_DB"}
ENDED = {
    "FAILED": "the job ended with an error",
    "CANCELLED": "the job was cancelled",
    "TIMEOUT": "the time limit was reached; raise `hours` in the profile, or run again: checkpoints are kept",
    "NODE_FAIL": "a node failed and the job was not requeued",
    "PREEMPTED": "the job was preempted and not requeued",
    "OUT_OF_MEMORY": "the job used more memory than it asked for; raise `memory_gb` in the profile",
    "BOOT_FAIL": "a node did not boot",
    "DEADLINE": "the deadline was reached",
    "REVOKED": "the job was revoked",
    "LAUNCH_FAILED": "the job could not be started on its nodes",
    "RECONFIG_FAIL": "a node could not be set up for the job",
}
# Explanations of Slurm's reasons for waiting, where the reason's name does not explain itself.
WAITS = {
    "Resources": "the machines it asks for are taken",
    "Priority": "jobs of higher priority go first",
    "Dependency": "its fan-out has not ended",
    "BeginTime": "it may not begin before its begin time",
    "Licenses": "a license it asks for is taken",
    "ReqNodeNotAvail": "nodes it could use are down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "PartitionDown": "the partition is down",
    "Nodes_required_for_job_are_DOWN": "or are drained, or wait for jobs that go first",
    "PartitionInactive": "the partition takes no jobs to run",
}
_ELSE = "in the profile, or name another partition"
_RELEASE = "`scontrol release` lets it go"
# Reasons that waiting cannot end: a person must change the profile, the job or the cluster.
NEVER = {
    "PartitionConfig": "the partition cannot run such a job, for it has too few nodes, too small ones or a shorter "
    f"time limit; lower `nodes`, `threads`, `processes`, `workers`, `gpus_per_node`, `memory_gb` or `hours` {_ELSE}",
    "PartitionNodeLimit": f"the partition has fewer nodes, or gives one job fewer; lower `nodes` {_ELSE}",
    "PartitionTimeLimit": f"the partition ends jobs sooner; lower `hours` {_ELSE}",
    "MaxMemPerLimit": f"the partition gives one job less memory; lower `memory_gb` {_ELSE}",
    "BadConstraints": f"no node can ever meet what it asks for; ask for less {_ELSE}",
    "DependencyNeverSatisfied": "the job that it follows ended in another way",
    "InvalidAccount": "its account is not valid; change `account` in the profile",
    "AccountNotAllowed": "the partition does not take its account; change `account` or `partition` in the profile",
    "InvalidQOS": "its QOS is not valid; change `qos` in the profile",
    "QOSNotAllowed": "the partition does not take its QOS; change `qos` or `partition` in the profile",
    "JobHeldAdmin": "an administrator holds it",
    "JobHeldUser": f"it is held; {_RELEASE}",
    "launch_failed_requeued_held": "a node could not start it, so it was requeued and is held; look at the node, then "
    f"{_RELEASE}",
    "job_requeued_in_held_state": f"it was requeued and is held; {_RELEASE}",
    "JobHoldMaxRequeue": f"it was requeued too often and is held; {_RELEASE}",
    "ReservationDeleted": "its reservation was deleted",
    "InvalidReservation": "its reservation is not valid",
}
_HELD = f"it is held; {_RELEASE}"
# Waiting never helps against a limit for one job (or one of its nodes), but it does against a limit for all jobs of an
# account or QOS.
_LIMIT_OF_ONE_JOB = re.compile(r"(Assoc|QOS)Max\w+Per(Job|Node)(Limit)?|QOSMin\w+|Max\w+PerJob", re.I)
_LIMIT_OF_ALL = re.compile(
    r"(Assoc|QOS)(Grp|Max)\w+|Max\w+PerAccount|Association\w+|QOS\w+Limit|AccountingPolicy", re.I
)
# What `sbatch` says when the queue refuses a job (slurm_errno), and the fields of the profile that it depends on.
REFUSALS = {
    "invalid partition": "`parts.slurm.partition`",
    "invalid account": "`parts.slurm.account` and `parts.slurm.partition`",
    "invalid qos": "`parts.slurm.qos`",
    "user's group not permitted": "`parts.slurm.partition`",
    "not permitted to use this partition": "`parts.slurm.partition` and `parts.slurm.account`",
    "time limit": "`hours`",
    "memory specification": "`memory_gb`",
    "generic resource": "`gpus_per_node`",
    "job array": "`nodes`, the number of tasks of an array,",
    "node count": "`nodes`",
    "requested node configuration": "`nodes`, `workers`, `threads`, `processes`, `memory_gb` and `gpus_per_node`",
    "cpu count": "`workers`, `threads` and `processes`",
    "violates accounting/qos policy": "`parts.slurm.account`, `parts.slurm.qos`, `nodes`, `memory_gb` and `hours`",
    "required partition not available": "`parts.slurm.partition`",
}
# A stage that does not handle the early signal is ended by it, before Slurm reports a time-out.
WARNED = "the job was told to end, as happens before the time limit; raise `hours` in the profile, or run again"
FIRST_SECONDS = 60.0  # before which a job may not yet listen to SIGTERM: it imports its libraries
EARLIEST_SIGNAL_SECONDS = 150.0  # Slurm's early signal is due 60 s before the end, and comes up to 60 s earlier
NO_LOG_SIGNAL = 53  # what slurmd reports when it cannot open a job's output file
ENVIRONMENT_FAILED = 79  # what a job's script exits with if its node cannot unpack the job's environment
UNPACK = (
    "could not unpack parts.slurm.environment_file below `node_cache`: the disk may be full there, the folder not"
    " writable, or the archive not what was sent to the login's home, which nodes must see"
)
UNSEEN = "the root must be on a file system that all nodes share, under the same path"
NO_NODES = ("", "(null)", "None assigned")  # as squeue, scontrol and sacct say it of a job that never began
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"


def _letters(word: str) -> str:
    """The normal form of a word of Slurm's, whose commands differ in blanks, underscores and capitals."""
    return re.sub(r"[\W_]", "", word).lower()


_NEVER = {_letters(word): said for word, said in NEVER.items()}
_WAITS = {_letters(word): said for word, said in WAITS.items()}
_STATES = {_letters(state): state for state in (*PENDING, *RUNNING, *ENDED, "COMPLETED")}


def state_of(said: str) -> str:
    """The state of a job under the name that this module has for it; as sacct says it, it may go on: `by 0`."""
    return _STATES.get(_letters(said)) or _STATES.get(_letters(said.split()[0]), said)


# The attempt's name (see `_attempt`) as a shell expression. It counts restarts, because a requeued job keeps its id.
NAME_OF_JOB = '"$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"'
NAME_OF_ARRAY_TASK = '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID.${SLURM_RESTART_COUNT:-0}"'


def status_of(fields: dict[str, str]) -> Status:
    """The status of a job, from the fields of `scontrol -o show job`."""
    state = state_of(fields["JobState"])
    code, _, sign = fields.get("ExitCode", "0:0").partition(":")
    allocations = _allocations(fields, state)
    if state in PENDING:
        reason, is_stuck = _waits_for(fields, state)
        waited = _pending_seconds(fields)
        return Status(
            state="pending", reason=reason, is_stuck=is_stuck, pending_seconds=waited, allocations=allocations
        )
    if state in RUNNING:
        # While a preempted job may still save its state, it runs and has the time of its preemption.
        preempted = _time(fields, "PreemptTime") is not None
        return Status(
            state="running", reason=fields.get("NodeList", ""), was_preempted=preempted, allocations=allocations
        )
    if state == "COMPLETED":
        return Status(state="succeeded", exit_code=0, allocations=allocations)
    if state not in ENDED:  # of another version of Slurm: nobody knows that the job has ended
        said = f"{state}: a state of Slurm's that is not known here; the job counts as running"
        return Status(state="running", reason=said, allocations=allocations)
    exit_code = int(code) or (-int(sign) if sign.isdigit() and int(sign) else None)
    was_preempted = state == "PREEMPTED" or (state in ("FAILED", "TIMEOUT") and _lost_its_nodes(fields, exit_code))
    if (state, sign) == ("FAILED", str(NO_LOG_SIGNAL)):
        said = f"{fields.get('NodeList', 'its node')} could not write the log in the root's folder: {UNSEEN}"
        return Status(state="failed", reason=said, exit_code=BAD_INPUT, was_ended=True, attempt=_attempt(fields))
    if exit_code == ENVIRONMENT_FAILED:
        said = f"{fields.get('NodeList', 'its node')} {UNPACK}"
        return Status(state="failed", reason=said, exit_code=BAD_INPUT, was_ended=True, attempt=_attempt(fields))
    meaning = WARNED if (state, exit_code) == ("FAILED", -signal.SIGTERM) else ENDED[state]
    meaning = ENDED["PREEMPTED"] if was_preempted else meaning
    return Status(
        state="cancelled" if state == "CANCELLED" else "failed",
        reason=f"{state}: {meaning} (exit {fields.get('ExitCode', '?')})",
        exit_code=REQUEUE if was_preempted else exit_code,
        was_ended=was_preempted or state != "FAILED" or not int(code),
        attempt=_attempt(fields),
        log=f"log-{fields['ArrayTaskId']}.txt" if "ArrayTaskId" in fields else "log.txt",
        was_preempted=was_preempted,
        allocations=allocations,
    )


def _lost_its_nodes(fields: dict[str, str], exit_code: int | None) -> bool:
    """Whether a job failed, or met its end, because its nodes were taken away.

    Slurm says so with the time of the preemption, which moves the job's end to the end of its grace time. Else a job
    that SIGTERM ended in its first seconds was told by someone else, unless it ends so soon that this was the early
    signal of its own end.
    """
    if _time(fields, "PreemptTime") is not None:
        return True
    begin, end, limit = _time(fields, "StartTime"), _time(fields, "EndTime"), _limit_seconds(fields)
    was_told = (fields["JobState"], exit_code) in [("FAILED", code) for code in (128 + signal.SIGTERM, -signal.SIGTERM)]
    if not was_told or begin is None or end is None:
        return False
    return end - begin < FIRST_SECONDS and limit > end - begin + EARLIEST_SIGNAL_SECONDS


def _allocations(fields: dict[str, str], state: str) -> tuple[Allocation, ...]:
    """The nodes of the job's attempt, and the end of the one before: Slurm submits a job anew when it requeues it."""
    name, found = _attempt(fields), list[Allocation]()
    if not name or state in ("COMPLETING", "CONFIGURING"):
        return ()
    job, _, restarts = name.rpartition(".")
    number = fields.get("NumNodes", "1").partition("-")[0]
    nodes = int(number) if number.isdigit() else 1
    if int(restarts) and (end := _time(fields, "SubmitTime")) is not None:
        cause = "requeued"
        found.append(Allocation(attempt=f"{job}.{int(restarts) - 1}", begin=None, end=end, nodes=nodes, cause=cause))
    begin = _time(fields, "StartTime")
    if state in PENDING or begin is None or fields.get("NodeList") in NO_NODES:
        return tuple(found)
    end = None if state in RUNNING else _time(fields, "EndTime")
    cause = "preempted" if _time(fields, "PreemptTime") is not None else "" if state in RUNNING else state.lower()
    own = Allocation(attempt=name, begin=begin, end=end, nodes=nodes, names=fields.get("NodeList", ""), cause=cause)
    return (*found, own)


def _time(fields: dict[str, str], name: str) -> float | None:
    """A time of Slurm's, which is asked for in UTC, in seconds since 1970; None if Slurm has none."""
    try:
        return float(calendar.timegm(time.strptime(fields.get(name, ""), _TIME_FORMAT)))
    except ValueError:
        return None


def _limit_seconds(fields: dict[str, str]) -> float:
    """The job's time limit: `10:00`, `1:10:00` or `2-01:10:00`; infinite if it has none."""
    days, _, clock = fields.get("TimeLimit", "").rpartition("-")
    if not re.fullmatch(r"\d+(:\d+)+", clock):
        return float("inf")
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    return float(seconds + 86400 * int(days or 0))


def refused(said: str) -> str | None:
    """Return the fields of the profile because of which `sbatch` refused a job; None if there is another reason."""
    return next((fields for part, fields in REFUSALS.items() if part in said.lower()), None)


def _attempt(fields: dict[str, str]) -> str:
    """The name of the job's last attempt, as in its script; empty if Slurm does not report the number of restarts."""
    if "Restarts" not in fields:
        return ""
    job = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}" if "ArrayTaskId" in fields else fields["JobId"]
    return f"{job}.{fields['Restarts']}"


def _waits_for(fields: dict[str, str], state: str) -> tuple[str, bool]:
    """Return Slurm's reason for waiting with an explanation, and whether the job can never start.

    A job that is held, for whatever reason, has priority 0 or a state that says so; sacct tells the state alone.
    """
    reason = fields.get("Reason", "").strip("()").replace(" ", "_") or state
    word = _letters(re.split(r"[^\w]", reason)[0])
    if word in _NEVER:
        return f"{reason}: {_NEVER[word]}", True
    if fields.get("Priority") == "0" or state in HELD or "held" in word or "hold" in word:
        return f"{reason}: {_HELD}", True
    if _LIMIT_OF_ONE_JOB.fullmatch(word):
        return f"{reason}: the account or QOS does not give one job so much; ask for less {_ELSE}", True
    if _LIMIT_OF_ALL.fullmatch(word):
        return f"{reason}: a limit of the account or QOS is used up; the job starts when others have ended", False
    if word == "begintime" and fields.get("Restarts", "0") != "0":
        return f"{reason}: it was requeued and starts again shortly", False
    return f"{reason}: {_WAITS[word]}" if word in _WAITS else reason, False


def _pending_seconds(fields: dict[str, str]) -> float:
    """Seconds since the job became eligible to start; since its submission for a held job."""
    known = (_time(fields, name) for name in ("EligibleTime", "SubmitTime"))
    since = next((one for one in known if one is not None), time.time())  # missing if only accounting knows the job
    return max(0.0, time.time() - since)
