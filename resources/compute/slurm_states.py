"""Translate Slurm's job states, reasons and exit codes into the status of a task, with sentences that say what to do.

Sources: Slurm's pages "Job State Codes" and "Job Reason Codes" (22.05 and later).
"""

from __future__ import annotations

import re
import signal
import time

from resources.compute.base import Status

PENDING = {
    "PENDING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
    "SUSPENDED",
    "CONFIGURING",
    "RESV_DEL_HOLD",
}
RUNNING = {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"}
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
}
# Explanations of Slurm's reasons for waiting, where the reason's name does not explain itself.
WAITS = {
    "Resources": "the machines it asks for are taken",
    "Priority": "jobs of higher priority go first",
    "Dependency": "its fan-out has not ended",
    "BeginTime": "it was requeued and starts again shortly",
    "Licenses": "a license it asks for is taken",
    "ReqNodeNotAvail": "nodes it could use are down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "PartitionDown": "the partition is down",
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
    "JobHoldMaxRequeue": f"it was requeued too often and is held; {_RELEASE}",
    "ReservationDeleted": "its reservation was deleted",
    "InvalidReservation": "its reservation is not valid",
}
# Waiting never helps against a limit for one job (or one of its nodes), but it does against a limit for all jobs of an
# account or QOS.
_LIMIT_OF_ONE_JOB = re.compile(r"(Assoc|QOS)Max\w+Per(Job|Node)(Limit)?|QOSMin\w+|Max\w+PerJob")
_LIMIT_OF_ALL = re.compile(r"(Assoc|QOS)(Grp|Max)\w+|Max\w+PerAccount|Association\w+|QOS\w+Limit|AccountingPolicy")
# What `sbatch` says when the queue refuses a job (slurm_errno), and the fields of the profile that it depends on.
REFUSALS = {
    "invalid partition": "`slurm.partition`",
    "invalid account": "`slurm.account` and `slurm.partition`",
    "invalid qos": "`slurm.qos`",
    "user's group not permitted": "`slurm.partition`",
    "not permitted to use this partition": "`slurm.partition` and `slurm.account`",
    "time limit": "`hours`",
    "memory specification": "`memory_gb`",
    "generic resource": "`gpus_per_node`",
    "job array": "`nodes`, the number of tasks of an array,",
    "node count": "`nodes`",
    "requested node configuration": "`nodes`, `workers`, `threads`, `processes`, `memory_gb` and `gpus_per_node`",
    "cpu count": "`workers`, `threads` and `processes`",
    "violates accounting/qos policy": "`slurm.account`, `slurm.qos`, `nodes`, `memory_gb` and `hours`",
    "required partition not available": "`slurm.partition`",
}
# A stage that does not handle the early signal is ended by it, before Slurm reports a time-out.
WARNED = "the job was told to end, as happens before the time limit; raise `hours` in the profile, or run again"
REQUEUE_EXIT_CODE = 75
BAD_INPUT_EXIT_CODE = 2
NO_LOG_SIGNAL = 53  # what slurmd reports when it cannot open a job's output file
UNSEEN = "the root must be on a file system that all nodes share, under the same path"
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"


# The attempt's name (see `_attempt`) as a shell expression. It counts restarts, because a requeued job keeps its id.
NAME_OF_JOB = '"$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"'
NAME_OF_ARRAY_TASK = '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID.${SLURM_RESTART_COUNT:-0}"'


def status_of(fields: dict[str, str]) -> Status:
    """The status of a job, from the fields of `scontrol -o show job`."""
    state = fields["JobState"].split()[0]
    code, _, sign = fields.get("ExitCode", "0:0").partition(":")
    if state in PENDING:
        reason, is_stuck = _waits_for(fields.get("Reason", ""))
        return Status(state="pending", reason=reason, is_stuck=is_stuck, pending_seconds=_pending_seconds(fields))
    if state in RUNNING:
        return Status(state="running", reason=fields.get("NodeList", ""))
    if state == "COMPLETED":
        return Status(state="succeeded", exit_code=0)
    exit_code = int(code) or (-int(sign) if sign.isdigit() and int(sign) else None)
    if state == "PREEMPTED":
        exit_code = REQUEUE_EXIT_CODE  # preemption is no failure of the job
    if (state, sign) == ("FAILED", str(NO_LOG_SIGNAL)):
        said = f"{fields.get('NodeList', 'its node')} could not write the log in the root's folder: {UNSEEN}"
        return Status(
            state="failed", reason=said, exit_code=BAD_INPUT_EXIT_CODE, was_ended=True, attempt=_attempt(fields)
        )
    meaning = WARNED if (state, exit_code) == ("FAILED", -signal.SIGTERM) else ENDED.get(state, "unknown here")
    said = f"{state}: {meaning} (exit {fields.get('ExitCode', '?')})"
    return Status(
        state="cancelled" if state == "CANCELLED" else "failed",
        reason=said,
        exit_code=exit_code,
        was_ended=state != "FAILED" or not int(code),
        attempt=_attempt(fields),
        log=f"log-{fields['ArrayTaskId']}.txt" if "ArrayTaskId" in fields else "log.txt",
    )


def refused(said: str) -> str | None:
    """Return the fields of the profile because of which `sbatch` refused a job; None if there is another reason."""
    return next((fields for part, fields in REFUSALS.items() if part in said.lower()), None)


def _attempt(fields: dict[str, str]) -> str:
    """The name of the job's last attempt, as in its script; empty if Slurm does not report the number of restarts."""
    if "Restarts" not in fields:
        return ""
    job = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}" if "ArrayTaskId" in fields else fields["JobId"]
    return f"{job}.{fields['Restarts']}"


def _waits_for(reason: str) -> tuple[str, bool]:
    """Return Slurm's reason for waiting with an explanation, and whether the job can never start."""
    word = re.match(r"\w*", reason)[0]  # pyrefly: ignore[unsupported-operation]  # matches any text
    if word in NEVER:
        return f"{reason}: {NEVER[word]}", True
    if "_held" in word:  # job_requeued_in_held_state, launch_failed_requeued_held
        return f"{reason}: it was requeued and is held; {_RELEASE}", True
    if _LIMIT_OF_ONE_JOB.fullmatch(word):
        return f"{reason}: the account or QOS does not give one job so much; ask for less {_ELSE}", True
    if _LIMIT_OF_ALL.fullmatch(word):
        return f"{reason}: a limit of the account or QOS is used up; the job starts when others have ended", False
    return f"{reason}: {WAITS[word]}" if word in WAITS else reason, False


def _pending_seconds(fields: dict[str, str]) -> float:
    """Seconds since the job became eligible to start; since its submission for a held job."""
    since = next((fields[name] for name in ("EligibleTime", "SubmitTime") if fields.get(name, "")[:1].isdigit()), "")
    try:
        return max(0.0, time.time() - time.mktime(time.strptime(since, _TIME_FORMAT)))
    except ValueError:
        return 0.0  # the times are missing, as for a job that only accounting knows
