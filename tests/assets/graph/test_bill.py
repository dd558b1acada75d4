"""What a job took: every attempt counts, also one that was killed, and the record has the sums."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from assets.graph.bill import BILL_FILE, Bill, attempts, elapsed_seconds, settled, settled_late
from resources.compute.base import HANDLE_FILE, Allocation, Status, write_json
from resources.compute.local import LocalBackend
from resources.compute.slurm import SlurmBackend, SlurmSettings
from resources.compute.slurm_accounting import status_of_rows
from resources.compute.supervise import PROCESS_FILE
from tests.attacks.test_processes import toy_task
from tests.toys import made_of
from training.contract.artifact import ARTIFACT_FILE, Artifact, find, find_copy
from training.contract.running import attempt


def test_a_backend_that_knows_no_end_does_not_say_that_it_was_seen(tmp_path):
    told = Allocation(attempt="8.0", begin=10.0, end=None)
    bill = Bill(tmp_path, backend="kubernetes", run="r")
    for state in ("running", "failed"):
        bill.follow(Status(state=state, allocations=(told,)))
    assert not Bill(tmp_path, backend="kubernetes", run="s").note([told]) and attempts(tmp_path)[0]["least"]
    Bill(tmp_path, backend="kubernetes", run="s").note([replace(told, end=20.0)])
    (row,) = attempts(tmp_path)
    assert (row["end"], row["least"]) == (20.0, False)


def test_a_killed_attempt_is_in_the_bill_beside_the_one_that_made_the_artifact(tmp_path):
    task = toy_task(tmp_path, "together")
    task = replace(task, size=replace(task.size, retries=1, price_per_hour=3600.0))
    place = tmp_path / "toys" / "f"

    def kill_the_first() -> None:
        while not (place / BILL_FILE).exists():  # its first poll is written
            time.sleep(0.01)
        os.kill(json.loads((place / PROCESS_FILE).read_text())["pid"], signal.SIGKILL)

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    made, said = made_of(task, LocalBackend(poll_seconds=0.02))
    killer.join()
    assert isinstance(made, Artifact), said
    cost = find(made.path).record["cost"]
    assert [one["cause"] for one in cost["attempts"]] == ["lost", "completed"]
    seconds = sum(one["end"] - one["begin"] for one in cost["attempts"])
    assert cost["price"] == pytest.approx(seconds, abs=0.01) and cost["elapsed_seconds"] == pytest.approx(
        seconds, abs=0.01
    )
    assert cost["work_node_hours"] < cost["node_hours"] and cost["least"] == 1  # nobody saw the first one's end
    assert all(one["state"] == "absent" or one["joules"] >= 0 for one in cost["energy"].values())


def test_the_record_keeps_its_identity_its_time_and_its_copy(tmp_path):
    made, _ = made_of(toy_task(tmp_path, "together"), LocalBackend(poll_seconds=0.02))
    before, stamp = find(made.path), (made.path / ARTIFACT_FILE).stat().st_mtime_ns
    Bill(made.path, backend="slurm", run="r").note([Allocation(attempt="8.0", begin=10.0, end=20.0, nodes=4)])
    after = settled(before, None)
    assert after.record["cost"]["node_hours"] > 40 / 3600
    assert (after.digest, after.record_digest) == (before.digest, before.record_digest)
    assert find(made.path).record["cost"] == find_copy(made.path).record["cost"] == after.record["cost"]
    assert (made.path / ARTIFACT_FILE).stat().st_mtime_ns == stamp
    assert settled(find(made.path), None).record == find(made.path).record  # a second time changes nothing
    assert after.record["cost"]["work_node_hours"] == before.record["cost"]["work_node_hours"]


def test_a_job_that_ended_while_nobody_followed_it_is_billed_when_it_is_found(tmp_path):
    task, backend = toy_task(tmp_path, "together"), LocalBackend()
    handle = backend.submit(task)
    place = tmp_path / "toys" / "f"
    write_json(place / HANDLE_FILE, handle.as_json())
    while not backend.poll(handle).is_over:
        time.sleep(0.02)
    found = find(place)
    assert "attempts" not in found.record["cost"]
    billed = settled_late(found, backend, run="r", price_per_hour=None)
    (row,) = billed.record["cost"]["attempts"]
    assert row["cause"] == "completed" and billed.record["cost"]["node_hours"] > found.record["cost"]["node_hours"]
    assert settled_late(billed, SlurmBackend(SlurmSettings()), run="r", price_per_hour=None) is billed


def test_a_later_word_completes_an_attempt_and_takes_nothing_back(tmp_path):
    bill = Bill(tmp_path, backend="slurm", run="r")
    bill.note([Allocation(attempt="8.0", begin=10.0, nodes=2, names="n[1-2]")])
    bill.note([Allocation(attempt="8.0", begin=10.0, nodes=2, names="n[1-2]", cause="preempted")])
    assert bill.note([Allocation(attempt="8.0", begin=None, end=25.0, nodes=2, cause="requeued")])
    assert not bill.note([Allocation(attempt="8.0", begin=None, end=25.0, nodes=2, cause="requeued")])
    with open(tmp_path / BILL_FILE, "a") as stream:
        stream.write('{"attempt": "8.1", "beg')  # torn by a kill
    bill.note([Allocation(attempt="8.2", begin=30.0, end=31.0, nodes=2)])
    row, _ = attempts(tmp_path)
    assert (row["begin"], row["end"], row["names"], row["cause"]) == (10.0, 25.0, "n[1-2]", "preempted")
    assert bill.node_hours() == 2 * 16 / 3600
    assert Bill(tmp_path, backend="slurm", run="another run").node_hours() == 0.0


@pytest.mark.parametrize(
    ("told", "own", "expected"),
    [
        ({"begin": 100.0}, None, (100.0, 100.0, "nobody")),
        ({"begin": None, "end": 150.0}, None, (None, 150.0, "nobody")),
        ({"begin": 100.0}, {"started": 105.0, "alive": 160.0}, (100.0, 160.0, "its own processes")),
        ({"begin": 100.0}, {"started": 105.0, "alive": 160.0, "ended": 140.0}, (100.0, 140.0, "its own processes")),
        ({"begin": None, "end": 150.0}, {"started": 105.0, "alive": 149.0}, (105.0, 150.0, "its own processes")),
        (None, {"started": 105.0, "alive": 160.0}, (105.0, 160.0, "its own processes")),
    ],
)
def test_an_attempt_whose_end_no_backend_tells_counts_to_its_last_sign_of_life(tmp_path, told, own, expected):
    made, _ = made_of(toy_task(tmp_path, "together"), LocalBackend(poll_seconds=0.02))
    alone = made.record["cost"]["node_hours"]
    if told:
        Bill(made.path, backend="slurm", run="r").note([Allocation(attempt="8.0", **told)])
    if own:
        said = {"attempt": "8.0", "rank": 0, "host": "n1", "started": own["started"], "ended": own.get("ended")}
        write_json(made.path / "attempts" / "8.0.json", said)
        os.utime(made.path / "attempts" / "8.0.json", (own["alive"], own["alive"]))
    cost = settled(made, None).record["cost"]
    (row,) = (one for one in cost["attempts"] if one["attempt"] == "8.0")
    begin, end, _ = expected
    assert (row["begin"], row["end"], row["told_by"]) == expected and cost["least"] == 1
    assert cost["node_hours"] - alone == pytest.approx((end - (begin or end)) / 3600, abs=2e-6)


def test_a_living_process_shows_it_and_a_backend_that_forgets_a_job_leaves_the_time_it_was_last_asked(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(attempt, "SIGN_SECONDS", 0.01)
    monkeypatch.setenv(attempt.VARIABLE, "8.0")
    process = attempt.Attempt(tmp_path)
    os.utime(tmp_path / "attempts" / "8.0.json", (0, 0))
    process.show_life()
    while not (tmp_path / "attempts" / "8.0.json").stat().st_mtime:
        time.sleep(0.01)
    process.ended(0)
    monkeypatch.setattr("assets.graph.bill.time", SimpleNamespace(time=lambda: 50.0))
    bill = Bill(tmp_path, backend="slurm", run="r")
    bill.follow(Status(state="running", allocations=(Allocation(attempt="8.0", begin=10.0),)))
    bill.follow(Status(state="lost"))
    (row,) = attempts(tmp_path)
    assert row["end"] == 50.0 and row["least"]


def test_tasks_that_run_side_by_side_pass_the_same_time_once():
    rows = [{"begin": begin, "end": end} for begin, end in ((0, 10), (5, 12), (20, 21), (6, 7), (30, None))]
    assert elapsed_seconds(rows) == 13


# What `sacct --duplicates` of Slurm 22.05 with slurmdbd printed of jobs that were made to end so, on two nodes.
ACCOUNTED = """\
1|COMPLETED|0:0|2026-11-28T18:22:59|2026-11-28T18:23:00|00:10:00|1|node1|
3|FAILED|0:15|2026-11-28T18:23:01|2026-11-28T18:23:02|00:10:00|1|node1|
4|CANCELLED by 0|0:0|2026-11-28T18:23:02|2026-11-28T18:23:02|00:10:00|1|node1|
5|CANCELLED by 0|0:0|2026-11-28T18:23:02|2026-11-28T18:23:02|00:10:00|1|None assigned|0
7|REQUEUED|0:0|2026-11-28T18:23:12|2026-11-28T18:23:13|00:10:00|1|node1|
7|REQUEUED|0:0|2026-11-28T18:23:19|2026-11-28T18:23:20|00:10:00|1|node1|
7|COMPLETED|0:0|2026-11-28T18:23:26|2026-11-28T18:23:26|00:10:00|1|node1|
8|PREEMPTED|0:0|2026-11-28T18:23:27|2026-11-28T18:23:41|00:10:00|2|node[1-2]|
8|COMPLETED|0:0|2026-11-28T18:23:47|2026-11-28T18:23:47|00:10:00|2|node[1-2]|
13_0|CANCELLED by 0|0:0|2026-11-28T18:23:48|2026-11-28T18:23:50|00:10:00|1|node1|
13_1|REQUEUED|0:0|2026-11-28T18:23:48|2026-11-28T18:23:49|00:10:00|1|node1|
13_1|COMPLETED|0:0|2026-11-28T18:23:55|2026-11-28T18:23:55|00:10:00|1|node1|
15_[0-3%1]|CANCELLED by 0|0:0|2026-11-28T18:23:56|2026-11-28T18:23:56|00:10:00|1|None assigned|0
16|NODE_FAIL|1:0|2026-11-28T18:23:56|2026-11-28T18:24:32|00:10:00|1|node2|
16|COMPLETED|0:0|2026-11-28T18:24:38|2026-11-28T18:24:38|00:10:00|1|node2|
17|NODE_FAIL|0:0|2026-11-28T18:24:39|2026-11-28T18:25:05|00:10:00|1|node2|
18|REQUEUED|0:0|2026-11-28T18:25:06|2026-11-28T18:25:07|00:10:00|1|node1|
18|PENDING|0:0|Unknown|Unknown|00:10:00|1|None assigned|0
19|RUNNING|0:0|2026-11-28T18:25:12|Unknown|00:10:00|1|node1|
20|TIMEOUT|0:0|2026-11-28T18:25:13|2026-11-28T18:26:27|00:01:00|1|node1|
""".splitlines()


@pytest.mark.parametrize(
    ("job", "arrays", "state", "told"),
    [
        ("1", (), "succeeded", [("1.0", 1, 1, "completed")]),
        ("3", (), "failed", [("3.0", 1, 1, "failed")]),
        ("4", (), "cancelled", [("4.0", 0, 1, "cancelled")]),
        ("5", (), "cancelled", []),  # it never had a node
        ("7", (), "succeeded", [("7.0", 1, 1, "requeued"), ("7.1", 1, 1, "requeued"), ("7.2", 0, 1, "completed")]),
        ("8", (), "succeeded", [("8.0", 14, 2, "preempted"), ("8.1", 0, 2, "completed")]),
        ("16", (), "succeeded", [("16.0", 36, 1, "node_fail"), ("16.1", 0, 1, "completed")]),
        ("17", (), "failed", [("17.0", 26, 1, "node_fail")]),
        ("18", (), "pending", [("18.0", 1, 1, "requeued")]),
        ("19", (), "running", [("19.0", None, 1, "")]),
        ("20", (), "failed", [("20.0", 74, 1, "timeout")]),
        # The finishing job of a fan-out, with the tasks of its array and of one that never began.
        (
            "17",
            ("13", "15"),
            "failed",
            [
                ("13_0.0", 2, 1, "cancelled"),
                ("13_1.0", 1, 1, "requeued"),
                ("13_1.1", 0, 1, "completed"),
                ("17.0", 26, 1, "node_fail"),
            ],
        ),
    ],
)
def test_accounting_tells_every_attempt_of_a_job_and_of_its_arrays(job, arrays, state, told):
    own = [one for one in ACCOUNTED if one.partition("|")[0].partition("_")[0] in (job, *arrays)]
    status = status_of_rows(job, own)
    assert status is not None and status.state == state
    attempts = [(one.attempt, one.end and one.end - one.begin, one.nodes, one.cause) for one in status.allocations]
    assert attempts == told
    metered = status_of_rows(job, [f"{line.rpartition('|')[0]}|4500" for line in own])
    assert metered is not None and all(dict(one.energy) == {"nodes": 4500.0} for one in metered.allocations)
    assert status_of_rows("99", own) is None
