"""What a command and its processes cost is told apart by what the processes run, orphans included."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.processes import COMMAND, JOBS, WRITER, covered

BUSY = "import time\nwhile time.process_time() < 0.5:\n    pass\n"
WATCH = """
import dataclasses, json, sys
from benchmarks.processes import run_watched

print(json.dumps(dataclasses.asdict(run_watched(sys.argv[1:]))))
"""


def test_processor_seconds_are_told_apart_and_orphans_are_waited_for(tmp_path):
    """In a process of its own, because it adopts orphans, and a process of tests has others."""
    (tmp_path / "supervise.py").write_text(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BUSY!r}])")
    (tmp_path / "parent.py").write_text(
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, {str(tmp_path / 'supervise.py')!r}])\n"
        "print('said')\n"
        "sys.exit(3)\n"
    )
    argv = [sys.executable, "-c", WATCH, sys.executable, str(tmp_path / "parent.py")]
    costs = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    assert (costs["exit_code"], costs["output"]) == (3, "said\n")
    spent = costs["processor"]
    assert spent[JOBS] > 0.3 > spent[COMMAND] and spent[WRITER] == 0
    assert len(costs["jobs"]) == 2 and all(begin <= end for begin, end in costs["jobs"])


def test_overlapping_intervals_count_once():
    assert covered([(4, 6), (0, 2), (1, 3), (5, 5.5)]) == 5
    assert covered([]) == 0
