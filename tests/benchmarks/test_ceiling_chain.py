"""A process of a training may have what it needs without a model, its share, and a quarter more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import benchmarks
from benchmarks.ceiling_chain import CEILINGS_FILE, FOLDER

ROOT = Path(benchmarks.__file__).parent.parent
SHARE = 2**28  # bytes of a process's weights, gradients and optimizer
TAKEN = """
import json, os, sys
from pathlib import Path
kept = bytearray(int(sys.argv[2]))
seen = lambda: [json.loads(file.read_text())["last"] for file in Path(sys.argv[3]).glob("*.peak.json")]
while not any(last + int(sys.argv[4]) > len(kept) for last in seen()):
    os.sched_yield()
"""


def process(folder, taken, base):
    """A process of pretraining, one of four, that takes so many bytes; its return code, its peak, and what it said."""
    ceilings = {"parameters": SHARE * 4 // 16, "base": {"base_model": {"0": base}}}
    (folder / CEILINGS_FILE).write_text(json.dumps(ceilings))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks" / "ceiling_site"), str(ROOT)]),
        FOLDER: str(folder),
        "LOCAL_RANK": "0",
        "RANK": "0",
        "WORLD_SIZE": "4",
    }
    job = folder / "base_model" / "fingerprint" / "job.json"
    argv = [sys.executable, "-W", "ignore", "-c", TAKEN, str(job), str(taken), str(folder), str(base)]
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    peaks = list(folder.glob("base_model-0-*.peak.json"))
    peak = json.loads(peaks[0].read_text()) if peaks else {}
    for file in peaks:
        file.unlink()
    return ended.returncode, peak, ended.stderr


def test_the_kernel_refuses_a_process_more_than_its_share_and_a_quarter(tmp_path):
    code, peak, said = process(tmp_path, SHARE, 2**40)
    assert code == 0 and peak["rank"] == "0" and peak["size"] == 4, said
    base = peak["last"] + 2**40 - SHARE  # libraries
    code, peak, said = process(tmp_path, int(1.15 * SHARE), base)
    assert code == 0 and SHARE < peak["last"] <= peak["bytes"] < 1.25 * SHARE, said
    code, _, said = process(tmp_path, int(1.35 * SHARE), base)
    assert code == 1 and "MemoryError" in said
