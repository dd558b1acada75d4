"""Programs that try to leave the sandbox or to pass tests that they do not pass; and that each guard stops its own.

`make test` runs one of each kind, `make attack` all. For each group the guard is taken away, and more than half of the
attacks then succeed, so it is this guard that stopped them.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.attacks import programs
from training.contract.sandbox import confined
from training.contract.sandbox.confined import Limits, Nursery, why_unavailable
from training.contract.sandbox.judged import Program, Verdict, judged

pytestmark = pytest.mark.skipif(bool(why_unavailable()), reason=why_unavailable())
ESCAPES = {
    "kernel": programs.KERNEL,
    "processes": programs.PROCESSES,
    "signals": programs.SIGNALS,
    "files": programs.FILES,
    "writing": programs.WRITING,
    "network": programs.NETWORK,
    "bombs": programs.BOMBS,
}
CHEATS = programs.IN_ONE_PROCESS | programs.SPEECH
LIMITS = Limits(cpu_seconds=2, wall_seconds=8.0)
ALLOW_ALL = b"\x06\x00\x00\x00\x00\x00\xff\x7f"
VISIBLE = ("/etc", "/root", "/home", "/usr", "/bin", "/sys", "/var")


@pytest.fixture
def port() -> Iterator[int]:
    """A port of this machine at which somebody answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer, args=(server,), daemon=True).start()
        yield server.getsockname()[1]


def _answer(server: socket.socket) -> None:
    while True:
        try:
            taken, _ = server.accept()
        except OSError:
            return
        taken.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        taken.close()


def escapes(group: str, port: int, limits: Limits = LIMITS, **more: str) -> dict[str, Verdict]:
    """The verdicts on the attacks of a group; one that passes got out."""
    bodies = ESCAPES[group] | more
    codes = [
        "def attack():\n" + "".join(f"    {line}\n" for line in body.replace("PORT", str(port)).splitlines())
        for body in bodies.values()
    ]
    test = "answer = attack()\nassert answer is True"
    return dict(zip(bodies, judged([Program(code=code, test=test) for code in codes], limits), strict=True))


def passed(verdicts: dict[str, Verdict]) -> list[str]:
    return [name for name, verdict in verdicts.items() if verdict.passed]


def test_there_are_a_hundred_attacks():
    assert sum(map(len, ESCAPES.values())) + len(programs.OWN) + len(CHEATS) >= 100


@pytest.mark.parametrize("group", ESCAPES)
def test_nothing_gets_out(group, port, request, monkeypatch):
    if not request.config.getoption("--long"):
        few = {name: ESCAPES[group][name] for name in list(ESCAPES[group])[-1:]}
        monkeypatch.setitem(ESCAPES, group, few)
    found = escapes(group, port)
    assert passed(found) == []
    assert all(verdict.why for verdict in found.values())
    if "sleep" in found:  # it is ended by the limit of elapsed time, and not by its own end
        assert found["sleep"].why == f"the program gave no answer: no answer within {LIMITS.wall_seconds:g} s"


def test_neither_environment_nor_descriptors_are_inherited(tmp_path, monkeypatch, port):
    monkeypatch.setenv("PEDIGREE_SECRET", "x")
    (tmp_path / "secret").write_text("secret")
    with open(tmp_path / "secret", "rb") as stream:
        os.set_inheritable(stream.fileno(), True)
        monkeypatch.setitem(ESCAPES, "own", programs.OWN)
        assert passed(escapes("own", port)) == []


@pytest.mark.parametrize("group", ["kernel", "processes", "signals", "files", "writing", "network", "bombs", "own"])
def test_each_guard_stops_its_attacks(group, port, request, tmp_path, monkeypatch):
    """Without its guard, more than half of a group succeeds: the attacks are real, and nothing else stops them."""
    if not request.config.getoption("--long"):
        pytest.skip("only make attack takes guards away")
    limits = LIMITS
    if group == "own":
        monkeypatch.setitem(ESCAPES, group, programs.OWN)
    if group in ("kernel", "processes", "signals", "network"):
        monkeypatch.setattr(confined, "filter_bytes", lambda: ALLOW_ALL)
    if group == "bombs":
        limits = replace(limits, memory_bytes=1 << 36, scratch_bytes=1 << 41, answer_bytes=1 << 30, open_files=4096)
        limits = replace(limits, cpu_seconds=900, wall_seconds=20.0, depth=10**7)
    weaken(group, tmp_path, monkeypatch)
    found = escapes(group, port, limits)
    assert len(passed(found)) > len(found) / 2, {name: one.why for name, one in found.items() if not one.passed}


def weaken(group: str, tmp_path, monkeypatch) -> None:
    """Take the guard of a group away from the command of a confined process."""
    kept, options = confined.command, confined._files()
    copies = {}
    if group == "writing":  # of what is the project's and the interpreter's own, for attacks to change
        shown = dict(zip(options[2::3], options[1::3], strict=False))
        own = [shown[where] for where in shown if where.startswith(confined.HOME) and "/so/" not in where]
        copies = {path: _copied(path, tmp_path) for path in own if os.path.exists(path)}

    def command(module: str, limits: Limits, _: object = None) -> list[str]:
        given = kept(module, limits)
        end = given.index("--dev-bind")
        if group == "files":
            shown = [part for path in VISIBLE for part in ("--bind", os.path.realpath(path), path)]
            given[end : end + 3] = [*shown, "--dev-bind", "/dev", "/dev", "--proc", "/proc"]
        if group == "writing":
            for place in [place for place, part in enumerate(given) if part == "--ro-bind"]:
                if given[place + 1] in copies:
                    given[place : place + 2] = ["--bind", copies[given[place + 1]]]
            for place in [place for place, part in enumerate(given) if part == "--remount-ro"][::-1]:
                del given[place : place + 2]
        if group == "network":
            given.insert(end, "--share-net")
        if group == "own":
            given = [part for part in given if part != "--clearenv"] + ["secret"]
        return given

    monkeypatch.setattr(confined, "command", command)
    if group == "own":
        (tmp_path / "secret").write_text("secret")
        descriptor = os.open(tmp_path / "secret", os.O_RDONLY)
        start = subprocess.Popen

        def popen(argv, pass_fds=(), env=None, **more):
            return start(argv, pass_fds=[*pass_fds, descriptor], env={"PEDIGREE_SECRET": "x"}, **more)

        monkeypatch.setattr(confined.subprocess, "Popen", popen)


def _copied(path: str, folder: Path) -> str:
    """A copy of a file or folder of the interpreter, which attacks may change."""
    copy = folder / path.strip("/").replace("/", "_")
    if not copy.exists():
        left_out = shutil.ignore_patterns("site-packages", "test", "idlelib", "ensurepip")
        _ = shutil.copytree(path, copy, ignore=left_out) if os.path.isdir(path) else shutil.copy2(path, copy)
        (copy / "site-packages").mkdir(exist_ok=True) if os.path.isdir(path) else None
    return str(copy)


def test_no_wrong_program_passes(request):
    some = CHEATS if request.config.getoption("--long") else dict(list(CHEATS.items())[::15])
    found = judged([Program(code=code, test=programs.TEST) for code in some.values()], LIMITS)
    assert passed(dict(zip(some, found, strict=True))) == []


def test_in_one_process_the_cheats_pass(request):
    """The same programs where test and program share an interpreter that ends well: each of them is a real cheat."""
    some = programs.IN_ONE_PROCESS
    if not request.config.getoption("--long"):
        some = dict(list(some.items())[::10])
    wrong = [name for name, code in some.items() if _together(f"{code}\n{programs.TEST}")]
    assert wrong == []


def _together(code: str) -> int:
    return subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, timeout=60, check=False).returncode


def test_a_right_program_passes_and_a_failed_one_leaves_the_next_alone():
    right = Program(code="def square(x): return x * x", test=programs.TEST)
    bad = [Program(code=code, test=programs.TEST) for code in programs.SPEECH.values()]
    mixed = [one for pair in zip(bad[:8], [right] * 8, strict=True) for one in pair]
    assert [verdict.passed for verdict in judged(mixed, LIMITS, at_once=1)] == [False, True] * 8


def functions(*bodies: str) -> list[Program]:
    """Programs of one function each, which are right if it returns true."""
    codes = ["def attack():\n" + "".join(f"    {line}\n" for line in body.splitlines()) for body in bodies]
    return [Program(code=code, test="assert attack() is True") for code in codes]


@pytest.mark.parametrize("name", programs.LEGACIES)
def test_a_program_leaves_nothing_for_the_next_one(name):
    """Both are forked from one process, one after the other."""
    found = judged(functions(*programs.LEGACIES[name]), LIMITS, at_once=1)
    assert [one.passed for one in found] == [name not in ("a changed function",), False], found


def test_a_program_finds_no_other_process():
    found = judged(functions(*programs.NEIGHBOURS.values()), LIMITS, at_once=1)
    assert passed(dict(zip(programs.NEIGHBOURS, found, strict=True))) == []


def test_a_program_has_no_capability_even_without_the_filter(monkeypatch):
    """The process that it is forked from needs one, to make its namespaces and its folder."""
    monkeypatch.setattr(confined, "filter_bytes", lambda: ALLOW_ALL)
    body = """import ctypes
lib = ctypes.CDLL(None)
head, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
return lib.capget(head, sets) != 0 or any(sets) or lib.umount2(b'/tmp', 2) == 0"""
    (found,) = judged(functions(body), LIMITS)
    assert found.why.startswith("AssertionError")


def test_a_program_that_goes_on_after_its_answer_is_ended_before_the_next():
    code = """import signal
def wait(*_):
    while True: pass
signal.signal(signal.SIGALRM, wait)
signal.setitimer(signal.ITIMER_REAL, 0.2)
"""
    start = json.dumps({"program": code, "limits": {}, "depth": 900}).encode()
    with closing(Nursery(LIMITS)) as nursery:
        for _ in range(3):
            with nursery.program() as program:
                until = time.monotonic() + 300
                assert program.send(start + b"\n{}\n", until) and program.receive(until)
                nursery.ending(program)  # it answers in turn, so the process that forked the program has ended
                found = [one.name() for one in psutil.Process(nursery._process.pid).children(recursive=True)]
                assert found == ["python", "python"]  # the process of programs, and one of them
