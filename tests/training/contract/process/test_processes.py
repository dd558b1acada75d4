"""Processor time of a process and its descendants."""

from __future__ import annotations

import os
import subprocess

from training.contract.process import lifetime as processes


def test_a_look_at_the_processor_time_reads_this_process_and_its_descendants_alone(monkeypatch):
    looked_at = []
    stat_of = processes._stat_of
    with subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as shell:
        sleeper = int(shell.stdout.readline())
        try:
            monkeypatch.setattr(processes, "_stat_of", lambda pid: looked_at.append(pid) or stat_of(pid))
            processes.cpu_seconds_with_children()
            assert {shell.pid, sleeper} <= set(looked_at) and os.getppid() not in looked_at
            search = processes._children_by_search()  # as on a kernel without lists of children
            assert list(search(shell.pid)) == processes._children_of(shell.pid) == [sleeper]
            assert set(search(os.getpid())) == set(processes._children_of(os.getpid())) >= {shell.pid}
        finally:
            os.kill(sleeper, 9)
