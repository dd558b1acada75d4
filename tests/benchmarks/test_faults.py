"""The kills of single processes: finding each kind of a real task, and the table of a ledger."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

from benchmarks import faults


def test_processes_are_found_by_their_mark_wherever_they_are_and_one_that_is_left_is_told():
    mark = str(uuid.uuid4())
    argv = [sys.executable, "-c", "import time; time.sleep(300)", "resources.tracking"]
    process = subprocess.Popen(argv, env={**os.environ, faults.VARIABLE: mark}, start_new_session=True)
    try:
        assert faults.living(mark) == {"tracker's writer": [process.pid]}
        assert faults.living("another") == {}
    finally:
        process.kill()
        process.wait()
    assert faults.left_processes(mark) == []


def test_a_killed_command_is_given_again_and_one_that_goes_on_failing_is_not():
    def start_of(*codes: str):
        left = list(codes)
        return lambda: subprocess.Popen([sys.executable, "-c", left.pop(0)], stdout=subprocess.PIPE)

    killed, failed = "import os; os.kill(os.getpid(), 9)", "raise SystemExit(1)"
    command = faults.Command(start_of(killed, failed, killed, "print('made')"))
    assert (command.result(), command.given) == (b"made\n", 4)
    hopeless = faults.Command(start_of(*[failed] * 20))
    assert (hopeless.result(), hopeless.given) == (b"", faults.MOST_FAILURES + 1)


def test_a_ledger_adds_up_over_runs(tmp_path):
    good = {"target": "base_model", "kills": ["rank", "torchrun", "rank"], "same": True, "commands": 1}
    good |= {"seconds": 9.0, "load": 2.0}
    cycle = faults.Cycle(**good, left_processes=[], left_files=[])
    bad = faults.Cycle(**{**good, "kills": ["rank"], "same": False}, left_processes=["worker"], left_files=[])
    for one in (cycle, bad):
        faults.note(tmp_path / "ledger" / "faults.jsonl", one)
    lines = faults.read_ledger(tmp_path / "ledger" / "faults.jsonl")
    assert json.dumps(lines[0]) and cycle.is_clean and not bad.is_clean
    told = faults.table(lines)
    assert "| base_model | rank | 3 | 1 | 1 | 0 |" in told and "| base_model | torchrun | 1 | 0 | 0 | 0 |" in told
    assert "| sft_model | torchrun | 0 |" in told and "4 kills in 2 cycles, 1 of them not clean" in told
