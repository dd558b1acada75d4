"""A changed line that a run does not enter is found, in whatever process; what is no change of code is not."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.changed_lines import Base, Marker, Trace, traced
from tests.stage_versions import CHECKOUT, RECORD, STAGES, not_entered, path_of
from training.contract.identity.closure import Code

BEFORE = '''"""A module."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import json

LIMIT = 1


def f(x):
    """A function."""
    y = x + 1
    if y > LIMIT:
        raise ValueError("y")
    try:
        y = int(y)
    except ValueError:
        y = 0
    return y


@native
def kernel(x):
    return x
'''


@pytest.mark.parametrize(
    ("was", "becomes", "lines"),
    [
        ('"""A function."""', '"""Another word."""  # and a comment', []),
        ("y = x + 1", "y = (x\n+ 1)", []),
        ("    import json", "    import csv", []),
        ("LIMIT = 1", "LIMIT = 2", [10]),
        ("y = x + 1", "y = x + 2", [15]),
        ("if y > LIMIT", "if y < LIMIT", [16]),
        ('ValueError("y")', 'ValueError("x")', [17]),
        ("except ValueError", "except TypeError", [21]),
        ("def f(x)", "def f(x, z=1)", [13]),
        ("    y = x + 1\n", "", [15]),
        ("    return y\n", "    return y\n\n\ndef g():\n    if LIMIT:\n        return 1\n", [25, 26, 27]),
        ("    return x\n", "    return x + 1\n", [27]),
    ],
)
def test_the_lines_that_changed_are_statements_and_the_heads_of_blocks(was, becomes, lines):
    assert BEFORE.count(was) == 1
    assert marked(BEFORE, BEFORE.replace(was, becomes)) == lines


def test_a_definition_that_only_moved_is_no_change_and_one_that_changed_on_its_way_is():
    function, rest = "def f(x):\n    return x\n", "A = 1\n"
    moved = frozenset({ast.dump(ast.parse(function).body[0])})
    assert marked(rest, rest + function, moved) == []
    assert marked(rest, rest + function.replace("return x", "return -x"), moved) == [2, 3]


def marked(before: str, after: str, moved: frozenset[str] = frozenset()) -> list[int]:
    marker = Marker("m.py", moved)
    tree = marker.marked(before, after)
    compile(tree, "m.py", "exec")
    marks = [node for node in ast.walk(tree) if getattr(node, "id", "") == "__entered__"]
    assert len(marks) == len(marker.lines) or "return x + 1" in after  # there are none in a kernel
    return sorted(marker.lines)


# A run

RUN = """
import os, subprocess, sys, threading
from pathlib import Path

def changed(name):
    if name == "thread":
        return 1
    if name == "ended":
        os._exit(0)
    if name == "never":
        return 3
    return Path(__file__).with_name("words.txt").read_text()

if __name__ == "__main__" and len(sys.argv) == 1:
    thread = threading.Thread(target=changed, args=["thread"])
    thread.start()
    thread.join()
    subprocess.run([sys.executable, "-m", "made_up.run", "ended"], check=True)
    subprocess.run([sys.executable, "-c", "import made_up.run"], check=True)
elif __name__ == "__main__":
    changed(sys.argv[1])
"""


def test_a_run_enters_lines_in_threads_and_in_processes_that_end_at_once_and_misses_the_rest(tmp_path):
    package = tmp_path / "made_up"
    package.mkdir()
    files = {name: package / name for name in ("run.py", "words.txt", "other.txt")}
    for path in (*files.values(), package / "record.json", package / "__init__.py"):
        path.write_text("")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "a")):
        subprocess.run([*git, *arguments], cwd=tmp_path, check=True)
    files["run.py"].write_text(RUN)
    with traced(Base(tmp_path, package / "record.json"), files) as trace:
        subprocess.run([sys.executable, "-m", "made_up.run"], cwd=tmp_path, check=True)
    missed = [RUN.splitlines()[int(place.partition(":")[2]) - 1].strip() for place in trace.missed("run.py")]
    assert missed == ['if name == "never":', "return 3", 'return Path(__file__).with_name("words.txt").read_text()']
    assert trace.missed("words.txt") == ["made_up/words.txt"] and len(trace.changed["run.py"]) > 10
    with traced(Base(tmp_path, package / "record.json"), files) as trace:
        subprocess.run([sys.executable, "-c", "from made_up.run import changed; changed('')"], cwd=tmp_path, check=True)
    assert trace.missed("words.txt") == [] and trace.missed("other.txt") == ["made_up/other.txt"]


def test_every_module_and_packaged_file_of_a_stage_is_found_and_can_be_compared_with_the_base():
    code = Code(all_parts=True)
    names = {name for stage in STAGES.values() for name in code.digests(stage.module)}
    paths = {name: path_of(name, code) for name in names}
    assert len(paths) > 300 and all(path and path.exists() for path in paths.values())
    assert path_of("torch", code) is None
    assert "class Stage" in Base(CHECKOUT, RECORD).source(CHECKOUT / "training" / "contract" / "stage.py")


def test_each_stage_with_a_line_that_was_not_entered_is_asked_for_a_version():
    trace = Trace(changed={"a": ["a.py:1", "a.py:2"], "b": ["b.py:1"]}, entered={"a.py:1", "b.py:1"})
    said = not_entered({"one": ["a", "b", "torch"], "two": ["b"], "three": ["a"]}, trace)
    assert said == [f"stage {stage}: the small kitchen did not enter a.py:2" for stage in ("one", "three")]
