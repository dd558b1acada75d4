"""One writer for each artifact: who holds a lease, who may take it over, and that no clock decides it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from training.contract.process.lifetime import SignsOfLife
from training.contract.running import lease as lease_module
from training.contract.running.lease import Lease, LeaseHeld


def test_a_second_writer_is_turned_away_while_the_first_lives(tmp_path):
    with Lease(tmp_path) as lease:
        assert lease.is_held
        with pytest.raises(LeaseHeld), Lease(tmp_path):
            pass
    with Lease(tmp_path) as after:
        assert after.is_held


def test_a_writer_that_slept_through_its_lease_may_not_commit(tmp_path, monkeypatch):
    sleeper = Lease(tmp_path)
    sleeper._take()
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.0)
    with Lease(tmp_path) as successor:
        assert successor.is_held and not sleeper.is_held


def test_a_lease_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    def stalled(descriptor):
        raise AssertionError("an fsync can take longer than a heartbeat may be old")

    monkeypatch.setattr(os, "fsync", stalled)
    with Lease(tmp_path) as lease:
        assert lease.is_held


def _hold(folder, ready):
    lease = Lease(folder)
    lease._take()
    ready.set()
    time.sleep(60)


def test_the_lease_of_a_killed_process_is_free_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_hold, args=(tmp_path, ready))
    process.start()
    assert ready.wait(10)
    process.kill()
    process.join()
    with Lease(tmp_path) as lease:
        assert lease.is_held


def _race(folder, start, results, answered):
    start.wait()
    try:
        with Lease(folder) as lease:
            results.put(lease.is_held)
            answered.wait()  # who has it keeps it until all have tried, however late they come
    except LeaseHeld:
        results.put(None)


def test_of_several_writers_that_start_at_once_one_wins(tmp_path):
    context = multiprocessing.get_context("fork")
    start, results, answered = context.Event(), context.Queue(), context.Event()
    processes = [context.Process(target=_race, args=(tmp_path, start, results, answered)) for _ in range(4)]
    for process in processes:
        process.start()
    start.set()
    outcomes = [results.get(timeout=60) for _ in processes]
    answered.set()
    for process in processes:
        process.join()
    assert outcomes.count(True) == 1 and outcomes.count(None) == 3


@pytest.fixture
def holder(tmp_path):
    """A process that holds the folder's lease; waited for by nobody until the test is over."""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_keep, args=(tmp_path, ready))
    process.start()
    assert ready.wait(10)
    yield process
    process.kill()
    process.join()


def _keep(folder, ready):
    with Lease(folder):
        ready.set()
        time.sleep(60)


@pytest.mark.parametrize("days", [-1, 1, 20_000])
def test_a_clock_that_is_days_ahead_or_behind_takes_no_live_lease(tmp_path, holder, monkeypatch, days):
    monkeypatch.setattr(time, "time", lambda now=time.time: now() + days * 86_400)
    with pytest.raises(LeaseHeld), Lease(tmp_path):
        pass


def test_a_killed_process_that_nobody_waited_for_holds_nothing(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 10_000.0)  # waiting for it to grow old would not do
    os.kill(holder.pid, signal.SIGKILL)
    with Lease(tmp_path) as lease:
        assert lease.is_held


def test_a_reused_process_id_holds_nothing(tmp_path, holder):
    lease = changed(tmp_path, lambda lease: lease["process"].update(pid=os.getpid()))
    os.kill(holder.pid, signal.SIGKILL)
    with Lease(tmp_path) as mine:
        assert mine.is_held and json.loads((tmp_path / "lease.json").read_text())["token"] == lease["token"] + 1


@pytest.mark.parametrize("where", ["another machine", "another container of this machine"])
def test_a_lease_whose_process_cannot_be_seen_is_free_when_it_stays_as_it_is(tmp_path, holder, monkeypatch, where):
    os.kill(holder.pid, signal.SIGKILL)

    def move(lease):
        boot, _, space = lease["process"]["machine"].partition("/")
        places = {"another machine": f"b/{space}", "another container of this machine": f"{boot}/pid:[1]"}
        lease["process"]["machine"] = places[where]

    changed(tmp_path, move)
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.5)
    started = time.monotonic()
    with Lease(tmp_path) as lease:
        assert lease.is_held and time.monotonic() - started >= 0.5


def changed(folder, change):
    """What a holder elsewhere would have written: its lease, with the part that tells where it is put in its place."""
    lease = json.loads((folder / "lease.json").read_text())
    change(lease)
    (folder / "lease.json").write_text(json.dumps(lease))
    return lease


def test_work_that_gives_no_sign_of_life_loses_its_lease_and_may_not_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(lease_module, "RENEW_SECONDS", 0.05)
    with Lease(tmp_path, lambda: False) as hung:
        monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.5)
        with Lease(tmp_path) as next_one:
            assert next_one.is_held
            with pytest.raises(LeaseHeld), hung.kept():
                pass


def test_a_sign_of_life_is_a_line_or_cpu_time():
    lines = [0]
    signs = SignsOfLife(lambda: lines[0], 0.4)
    assert signs()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        before = signs._since
        while signs._since == before:  # ends when the CPU time of the child counts, however late it gets some
            time.sleep(0.05)
            signs()
        assert signs()
        busy.kill()
    while signs():
        time.sleep(0.05)
    lines[0] += 1
    assert signs()


def test_nothing_of_a_lease_is_left(tmp_path):
    with Lease(tmp_path), pytest.raises(LeaseHeld), Lease(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def test_a_stopped_process_that_goes_on_later_does_not_write_over_the_next_ones_lease(tmp_path, holder, monkeypatch):
    os.kill(holder.pid, signal.SIGSTOP)
    monkeypatch.setattr(lease_module, "LEASE_SECONDS", 0.5)
    with Lease(tmp_path) as lease:
        os.kill(holder.pid, signal.SIGCONT)
        while len(os.listdir(f"/proc/{holder.pid}/task")) > 1:  # it wants to renew, and finds that it has nothing
            time.sleep(0.02)
        assert lease.is_held
