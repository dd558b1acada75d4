"""The benchmark of the sandbox at toy size."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from benchmarks import sandbox
from training.contract.sandbox.confined import why_unavailable

pytestmark = [pytest.mark.data, pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable())]


def test_the_cost_of_a_program_is_printed_beside_an_interpreters():
    """In a process of its own: it waits for all its children, and this one may have others."""
    command = [sys.executable, "-m", "benchmarks.sandbox", "--pairs", "1", "--programs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout
    assert done.returncode == 0, done.stderr
    assert "ms beyond the interpreter's start" in said and "processor ms; 4 programs, n = 1" in said
    counted = re.search(r"^sandbox .* ms, ([0-9.]+) \[", said, re.MULTILINE)
    assert counted is not None and float(counted[1]) > 1  # what runs confined is counted too


def test_its_programs_are_right_and_wrong_in_turns():
    assert sandbox.by_sandbox(sandbox.programs(2)) == [True, False] * 2
