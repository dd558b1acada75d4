"""Verdicts on programs: published solutions pass, changed ones do not, and what tests may read of a program."""

from __future__ import annotations

import ast
import resource
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from statistics import fmean

import pytest

from training.contract.sandbox import confined
from training.contract.sandbox.confined import Limits, why_unavailable
from training.contract.sandbox.judged import Program, judged, pass_at_k
from training.data.sources import read_rows

pytestmark = pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable())
HUMAN_EVAL = "data://benchmarks/human_eval.jsonl.gz"
OTHERS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.Mult, ast.FloorDiv: ast.Mult}
OTHERS |= {ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OTHERS |= {ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And}


def human_eval() -> list[Program]:
    return [
        Program(
            code=row["prompt"] + row["canonical_solution"],
            test=f"{row['test']}\ncheck({row['entry_point']})",
            given=row["prompt"],
        )
        for row in read_rows(HUMAN_EVAL)
    ]


def with_another_operator(program: Program) -> Program | None:
    """The program with its last operator changed; None if it has none."""
    tree = ast.parse(program.code)
    for node in reversed(list(ast.walk(tree))):
        for owner in (node, *getattr(node, "ops", ())):
            field = "ops" if owner is not node else "op"
            kind = type(owner) if field == "ops" else type(getattr(node, "op", None))
            if kind in OTHERS:
                new = OTHERS[kind]()
                setattr(node, field, [new, *node.ops[1:]] if field == "ops" else new)  # ty: ignore
                return Program(code=ast.unparse(tree), test=program.test, given=program.given)
    return None


def passes_in_one_process(program: Program) -> bool:
    """Whether test and program run through together, as in lm-eval's own `code_eval`."""
    command = [sys.executable, "-c", f"{program.code}\n{program.test}"]
    try:
        return subprocess.run(command, stderr=subprocess.DEVNULL, timeout=5, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


@pytest.mark.data
def test_published_solutions_pass():
    programs = human_eval()
    assert len(programs) > 80
    assert [verdict for verdict in judged(programs) if not verdict.passed] == []


@pytest.mark.data
def test_a_solution_with_one_operator_changed_passes_as_seldom_as_in_one_process():
    changed = [one for one in map(with_another_operator, human_eval()[::8]) if one is not None]
    found = [verdict.passed for verdict in judged(changed, Limits(cpu_seconds=3))]
    assert found == [passes_in_one_process(one) for one in changed]
    assert sum(found) < len(changed) / 4  # of these few the tests of the benchmark see no difference


@pytest.mark.parametrize(
    ("code", "test"),
    [
        ("def sum(a, b): return a * b", "assert sum(3, 4) == 12"),  # named as one of Python's own
        ("def only(values, kind): return [x for x in values if type(x) is kind]", "assert only((1, 2.0), int) == [1]"),
        ("from collections import Counter\ndef f(x): return Counter(x)", "assert f('aab') == {'a': 2, 'b': 1}"),
        ("class P:\n  def __init__(self, a): self.a = a\ndef f(p): return p.a", "assert f(P(3)) == 3 == P(3).a"),
        ("def f(n): yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
        ("def f(x): return -x if x else 1 / 0", "try: f(0)\nexcept ZeroDivisionError: pass\nelse: assert False"),
        ("def f(x): return x.decode()", "try: f(b'\\xff')\nexcept UnicodeDecodeError: pass\nelse: assert False"),
        ("def f(x): return x / 3", "assert math.isclose(f(1), 0.3333333333333333)"),
        ("def f(): return {(1, 2): {3}, None: b'x', 'r': range(3), 'c': 1j}",
         "assert f() == {(1, 2): {3}, None: b'x', 'r': range(3), 'c': 1j}"),
        ("from decimal import Decimal\ndef f(): return Decimal('0.1'), 10 ** 5000, frozenset([1])",
         "from decimal import Decimal\nassert f() == (Decimal('0.1'), 10 ** 5000, frozenset([1]))"),
        ("import json, hashlib, bz2, lzma, zlib, ctypes, sqlite3, asyncio\nasync def g(): return 1\n"
         "def f(): return asyncio.run(g())", "assert f() == 1"),
    ],
)  # fmt: skip
def test_right_programs_pass_whatever_they_give_back(code, test):
    assert judged([Program(code=code, test=test)])[0].passed


def test_an_error_of_another_class_is_none_that_a_test_expects():
    code, test = "def f(x): return x.decode()", "try: f(b'\\xff')\nexcept TypeError: pass\nelse: assert False"
    assert not judged([Program(code=code, test=test)])[0].passed


def test_what_the_prompt_defines_is_not_the_models_to_change():
    given = "def poly(xs, x):\n    return sum(c * x ** i for i, c in enumerate(xs))\n\ndef zero(xs):\n    'Its zero.'\n"
    test = "assert abs(poly([1, 2], zero([1, 2]))) < 1e-6"
    right, wrong = f"{given}    return -0.5", f"{given}    return 7\ndef poly(*_): return 0"
    assert [one.passed for one in judged([Program(code=code, test=test, given=given) for code in (right, wrong)])] == [
        True,
        False,
    ]


def test_why_a_program_failed_is_said():
    test = "assert f(2) == 4"
    codes = ["def f(x): return 5", "def f(x): os._exit(0)\nimport os", "f = (", "def f(x):\n  while True: pass"]
    said = [one.why for one in judged([Program(code=code, test=test) for code in codes], Limits(cpu_seconds=1))]
    assert said[0].startswith("AssertionError") and said[1] == "the program gave no answer: it ended with code 0"
    assert said[2].startswith("SyntaxError") and said[3].endswith("it used its 1 s of processor time")


KINDS = {
    "def f(x): return 5": ("wrong result", "AssertionError (line 2 of the test: assert f(2) == 4)"),
    "def f(x):\n    y = x\n    return z": (
        "exception NameError",
        "NameError: name 'z' is not defined (line 3 of the program)",
    ),
    "\nf = (": ("exception SyntaxError", "SyntaxError: '(' was never closed (line 2 of the program)"),
    "g = 1": ("exception NameError", "NameError: name 'f' is not defined (line 2 of the test: assert f(2) == 4)"),
    "def f(x):\n    return 'x' * (4 << 30)": ("memory", "MemoryError (line 2 of the program)"),
    "def f(x):\n    while True: pass": ("timeout", "the program gave no answer: it used its 1 s of processor time"),
    "def f(x): os._exit(0)\nimport os": ("no answer", "the program gave no answer: it ended with code 0"),
    "def f(x): os.kill(os.getpid(), 9)\nimport os": (None, None),
    "class Own(Exception): pass\ndef f(x): raise Own('s')": (
        "exception of another class",
        "ProgramRaised: s (line 2 of the program)",
    ),
}


def test_the_kind_of_a_failure_and_its_line_are_said():
    test = "x = 2\nassert f(2) == 4"
    found = judged([Program(code=code, test=test) for code in KINDS], Limits(cpu_seconds=1))
    said = {code: (one.kind, one.why) for code, one in zip(KINDS, found, strict=True)}
    own_signal = said.pop("def f(x): os.kill(os.getpid(), 9)\nimport os")
    assert said == {code: expected for code, expected in KINDS.items() if expected[0]}
    assert own_signal[0] != "timeout"  # it spent no processor time


FORGED = {
    "a failed assertion of its own": "def f(x): raise AssertionError('passed')",
    "escapes for a terminal": "def f(x): raise ValueError('\\x1b[2J\\u202e\\n' + 'passed' * 999)",
    "a class named as a verdict": "E = type('passed', (Exception,), {})\ndef f(x): raise E('True')",
    "a line that is none": "def f(x): pass\nimport json\njson.dumps = lambda said: "
    '\'{"raised": ["ValueError", "x"], "line": "1 of the test", "passed": true, "kind": ""}\'',
    "processor time that it had not": "def f(x): os._exit(137)\nimport os",
}


def test_a_program_chooses_neither_verdict_nor_kind_of_its_failure():
    codes = [Program(code=code, test="assert f(2) == 4") for code in FORGED.values()]
    found = dict(zip(FORGED, judged(codes, Limits(cpu_seconds=1)), strict=True))
    assert not any(one.passed for one in found.values())
    assert all(one.why.isprintable() and len(one.why) < 500 for one in found.values())
    kinds = [one.kind for one in found.values()]
    assert kinds == [
        *("exception AssertionError", "exception ValueError", "exception of another class", "exception ValueError"),
        "no answer",
    ]
    assert (
        "\\x1b[2J\\u202e\\n" in found["escapes for a terminal"].why and "line" not in found["a line that is none"].why
    )


def test_what_is_too_long_to_carry_is_said_on_either_side():
    long = "'a' * (5 << 20)"
    given = [(f"def f(x): return {long}", "f(1)"), ("def f(x): return 1", f"f({long})")]
    answer, tests = (one.why for one in judged([Program(code=code, test=test) for code, test in given]))
    too_long = "it closed its answers, or one has more than 4,194,304 bytes"
    assert answer == f"the program gave no answer: {too_long}"
    assert tests == f"the tests gave no verdict: {too_long}"


def test_pass_at_k_is_the_share_of_draws_with_a_right_program():
    for right in range(6):
        samples = [place < right for place in range(5)]
        for k in range(1, 6):
            draws = [any(draw) for draw in combinations(samples, k)]
            assert pass_at_k(5, sum(samples), k) == pytest.approx(fmean(draws))


def test_without_bubblewrap_nothing_runs_and_the_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    why_unavailable.cache_clear()
    try:
        with pytest.raises(ValueError, match="install Debian's package bubblewrap"):
            judged([Program(code="", test="")])
    finally:
        why_unavailable.cache_clear()


def test_a_sandbox_that_does_not_start_is_none(monkeypatch, tmp_path):
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    why_unavailable.cache_clear()
    try:
        assert "No permissions to create new namespace" in why_unavailable()
    finally:
        why_unavailable.cache_clear()


def test_the_numbers_of_calls_are_those_of_the_kernels_headers():
    from training.contract.sandbox.seccomp import CALLS

    path = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not path.exists():
        pytest.skip("linux-libc-dev is not installed")
    known = dict(line.split()[1:3] for line in path.read_text("ascii").splitlines() if line.startswith("#define __NR_"))
    for entry in CALLS.split(","):
        name, number, _ = entry.split()
        assert known[f"__NR_{name}"] == number, name


def test_all_cores_are_used_and_the_order_is_kept():
    programs = [Program(code=f"def f(): return {n}", test=f"assert f() == {n - n % 3}") for n in range(12)]
    assert [one.passed for one in judged(programs, at_once=4)] == [n % 3 == 0 for n in range(12)]


def test_a_confined_process_sees_an_interpreter_and_nothing_else():
    code = "import os\ndef f(): return sorted(os.listdir('/')), sorted(os.environ), os.getuid(), os.listdir('/dev')"
    names = sorted([*confined._environment(), "PWD"])
    test = f"assert f() == (['dev', 'lib64', 'python', 'tmp'], {names!r}, 65534, ['null'])"
    assert judged([Program(code=code, test=test)])[0].why == ""


def test_the_processor_time_of_programs_is_that_of_the_process_that_has_them_judged():
    """Of a process that nobody waits for, the cost of a job would know nothing."""
    work = "import time\nwhile time.process_time() < 0.5: pass\ndef f(): return time.process_time()"

    def of_children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = of_children()
    (verdict,) = judged([Program(code=work, test="assert f() >= 0.5")])
    assert verdict.passed and of_children() - before >= 0.5
