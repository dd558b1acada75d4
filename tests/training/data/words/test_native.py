from __future__ import annotations

import os
import subprocess
import sys

import numpy as np

from training.data.words.native import native

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


CALL = """
import sys
from ones import one

one.compiled
print("ready", flush=True)
sys.stdin.readline()
one(1)
stats = one.compiled.stats
print(sum(stats.cache_misses.values()), sum(stats.cache_hits.values()))
"""


def test_of_processes_that_call_a_kernel_at_the_same_moment_one_compiles_it(tmp_path):
    (tmp_path / "ones.py").write_text(ONE.format(factor=1, times=2))
    both = [started(tmp_path, CALL) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == ["ready\n"] * 2
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    assert sorted(process.communicate()[0].split() for process in both) == [["0", "1"], ["1", "0"]]


def run(folder):
    process = started(folder, "import twos")
    said, _ = process.communicate()
    assert process.returncode == 0
    return said.strip()


def started(folder, code):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "NUMBA_CACHE_DIR": ""}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"}  # of two texts of one size in a second, the first would be kept
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, **pipes)


@native
def product_and_sum(a, b, c):
    return a * b + c


def test_a_kernel_rounds_a_product_before_it_is_added():
    """A fused multiplication and addition rounds once, and not every processor has it."""
    a, b = 1 + 2.0**-30, 1 - 2.0**-30
    assert product_and_sum(a, b, -1.0) == 0  # fused, it would be -2^-60


@native
def dot(values, others):
    total = 0.0
    for place in range(len(values)):
        total += values[place] * others[place]
    return total


def test_a_kernel_adds_in_the_order_that_is_written():
    """In another order, for example of vectors of four numbers, the last bits of a sum differ."""
    values, others = np.random.default_rng(1).random((2, 1000))
    as_written = dot.py_func(values.tolist(), others.tolist())
    assert dot(values, others) == as_written
    assert sum(dot.py_func(values[k::4].tolist(), others[k::4].tolist()) for k in range(4)) != as_written
