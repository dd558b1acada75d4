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


def test_a_ledger_adds_up_over_runs(tmp_path):
    good = {"target": "base_model", "kind": "rank", "killed": True, "same": True, "commands": 1, "seconds": 9.0}
    cycle = faults.Cycle(**good, left_processes=[], left_files=[])
    bad = faults.Cycle(**{**good, "same": False}, left_processes=["worker"], left_files=[])
    for one in (cycle, bad):
        faults.note(tmp_path / "ledger" / "faults.jsonl", one)
    lines = faults.read_ledger(tmp_path / "ledger" / "faults.jsonl")
    assert json.dumps(lines[0]) and cycle.is_clean and not bad.is_clean
    assert "| base_model | rank | 2 | 1 | 1 | 0 |" in faults.table(lines) and "2 kills in 2 cycles" in faults.table(
        lines
    )
