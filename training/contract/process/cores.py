"""How many cores this process may use: those of its node and its allocation. Standard library only."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Return the number of cores that this process may use, at least 1.

    It is the smallest of three: the cores that the process may run on, those that Slurm gave the job on this node, and
    the processor time that its control group allows.
    """
    granted = os.environ.get("SLURM_CPUS_ON_NODE", "")
    limits = [
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        *([int(granted)] if granted.isdigit() else []),
        *_quotas(),
    ]
    return max(1, min(limits))


def _quotas(groups: Path = CGROUPS, own: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Return the whole cores that the process's control group (version 2) and those around it allow; empty if all."""
    found: list[int] = []
    with suppress(OSError, ValueError):
        lines = own.read_text("utf-8").splitlines()
        place = groups / next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
        for group in (place, *place.parents):
            with suppress(OSError, ValueError):
                quota, period = (group / "cpu.max").read_text("ascii").split()
                found.append(int(quota) // int(period))  # "max" is no limit
            if group == groups:
                break
    return found
