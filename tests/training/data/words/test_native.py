from __future__ import annotations

import os
import subprocess
import sys

ONE = """
from training.data.words.native import native

FACTOR = {factor}


@native
def one(number):
    return number * {times}
"""
TWO = """
from ones import FACTOR, one

from training.data.words.native import native


@native
def two(number):
    return one(number) + FACTOR


print(two(10))
"""


def test_a_kernel_is_compiled_again_when_what_it_takes_from_another_file_changed(tmp_path):
    """Machine code of the old kernel would be used under the digest of the new one."""
    (tmp_path / "twos.py").write_text(TWO)
    answers = []
    for factor, times in ((1, 2), (1, 2), (3, 2), (3, 5)):
        text = ONE.format(factor=factor, times=times)
        if not (tmp_path / "ones.py").exists() or (tmp_path / "ones.py").read_text() != text:
            (tmp_path / "ones.py").write_text(text)
        answers.append(run(tmp_path))
    assert answers == ["21", "21", "23", "53"]
    assert len(list(tmp_path.glob("**/twos.two-*.nbi"))) == 3


def run(folder):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "NUMBA_CACHE_DIR": ""}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"}  # of two texts of one size in a second, the first would be kept
    command = [sys.executable, "-c", "import twos"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
