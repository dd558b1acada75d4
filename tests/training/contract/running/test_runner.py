"""The runner with real small stages, written as modules of their own so that worker processes import them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.jobs import job_by_hand
from tests.outside import importable
from training.contract import artifact
from training.contract.engines.workers import each_result
from training.contract.files.writing import write_sealed, written
from training.contract.job import DataError, InputArtifact, RefusedInput, write_job
from training.contract.parts.code import identified
from training.contract.parts.outside import OutsidePart
from training.contract.process.exit_codes import BUSY
from training.contract.progress import read_metrics
from training.contract.run_settings import RunSettings
from training.contract.running import commit
from training.contract.running.command_line import main
from training.contract.running.lease import Lease
from training.contract.running.leftovers import remove_state
from training.contract.running.marks import mark_path
from training.contract.running.runner import run_job
from training.contract.stage import Stage

STAGE_MODULE = """
import os, time
import numpy as np
from pathlib import Path
from training.contract.artifact import write_text, written
from training.contract.files.writing import write_sealed, written
from training.contract.job import Counts, Gate, Outcome

def num_ranks(job):
    return job.settings["ranks"]

def run_rank(job, work, rank):
    name = f"{job.settings.get('place', '')}part-{rank}.txt"
    time.sleep(job.settings.get("seconds", 0))
    if rank == job.settings.get("breaks_at") and not os.path.exists(job.settings["mended"]):
        raise RuntimeError("broken rank")
    if job.settings.get("fills"):
        np.arange(100_000).tofile("/dev/full")  # an OSError without a number
    with open(Path(job.output).parent / "log", "a") as log:
        log.write(f"{rank}\\n")
    if job.settings.get("dies_at") == rank and not os.path.exists(job.settings["mended"]):
        write_text(work.path / f"parts/other-{os.getpid()}.txt", "what no other attempt makes")
        with written(work.path / name) as stream:
            stream.write(b"half")
            stream.flush()
            os.kill(os.getpid(), 9)
    write_text(work.path / name, f"rank {rank}\\n")
    return {"files": [name], "counts": {"in": 2, "kept": 1, "dropped": {"short": 1}, "quarantined": {}}}

def finish(job, work, ranks):
    files = tuple(name for rank in ranks for name in rank["files"])
    lost = job.settings.get("lost", 0)
    counts = Counts(records_in=2 * len(ranks) + lost, kept=len(ranks), dropped={"short": len(ranks)})
    return Outcome(files=files, counts=counts, metrics={"parts": len(ranks)}, gates=(Gate(name="fine", passed=True),))
"""

MAIN = """
import sys
from training.contract.running.command_line import main
from training.contract.stage import Stage
sys.exit(main(sys.argv[1:], {"toy": Stage(name="toy", version="1", module="toy_stage")}))
"""


@pytest.fixture
def stages(tmp_path):
    with importable(tmp_path / "modules", "toy_stage", STAGE_MODULE):
        yield {"toy": Stage(name="toy", version="1", module="toy_stage")}


def toy_job(tmp_path, *, workers=1, price=0.0, inputs=(), name="out", **settings):
    settings = {"ranks": 3, "mended": str(tmp_path / "mended"), **settings}
    run = RunSettings(workers=workers, price_per_hour=price)
    return job_by_hand("toy", tmp_path / name / "f", settings, inputs, run=run)


def ranks_run(tmp_path, name="out"):
    return sorted((tmp_path / name / "log").read_text().split())


def test_a_job_ends_in_an_artifact_that_accounts_for_every_record(tmp_path, stages):
    assert run_job(toy_job(tmp_path), stages) == 0
    made = artifact.find(tmp_path / "out" / "f")
    assert made.record["counts"] == {"in": 6, "kept": 3, "dropped": {"short": 3}, "quarantined": {}}
    assert [gate["name"] for gate in made.record["gates"] if gate["passed"]] == ["fine", "counts_balance"]
    assert artifact.damaged_files(made) == []


@pytest.mark.parametrize("ranks", ["", "0"])
def test_a_job_asks_for_the_code_of_parts_from_outside(tmp_path, stages, ranks):
    parts = identified({"mine": OutsidePart("toy_stage:Counts")})
    other = {"mine": {**parts["mine"], "code": "0" * 64}}
    with pytest.raises(DataError, match=r"mine \(toy_stage:Counts\): .* 00"):
        run_job(toy_job(tmp_path, parts=other), stages, ranks=ranks)
    assert run_job(toy_job(tmp_path, parts=parts), stages, ranks=ranks) == 0


def test_a_lost_record_fails_the_balance_gate(tmp_path, stages):
    run_job(toy_job(tmp_path, lost=1), stages)
    assert [gate["name"] for gate in artifact.find(tmp_path / "out" / "f").failed_gates] == ["counts_balance"]


def test_the_number_of_workers_changes_nothing(tmp_path, stages):
    run_job(toy_job(tmp_path, workers=1, name="one"), stages)
    run_job(toy_job(tmp_path, workers=2, name="two"), stages)
    one, two = (artifact.find(tmp_path / name / "f") for name in ("one", "two"))
    assert one.digest == two.digest
    assert one.record["record_digest"] == one.record_digest == two.record_digest  # two honest runs decide the same


def test_a_price_is_in_the_cost_and_nowhere_else(tmp_path, stages):
    run_job(toy_job(tmp_path, name="free"), stages)
    run_job(toy_job(tmp_path, price=3600.0, name="priced"), stages)
    free, priced = (artifact.find(tmp_path / name / "f") for name in ("free", "priced"))
    assert "price" not in free.record["cost"]
    assert priced.record["cost"]["price"] == pytest.approx(priced.record["seconds"], abs=0.01)  # one a second
    assert priced.digest == free.digest and priced.fingerprint == free.fingerprint


def test_processor_time_is_that_of_the_job_its_ended_children_and_ranks_in_other_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "times", lambda: os.times_result((1, 2, 4, 8, 0)))
    for rank, pid in enumerate((os.getpid(), 1)):
        spent = {"pid": pid, "cpu_seconds": 16, "peak_memory_bytes": 0}
        write_sealed(mark_path(tmp_path, rank), {"spent": spent})
    assert commit._cost(tmp_path, 1.0, 0.5)["cpu_seconds"] == 1 + 2 + 4 + 8 - 0.5 + 16


def test_what_earlier_ranks_took_is_paid_too(tmp_path, stages):
    job = toy_job(tmp_path, price=3600.0, seconds=0.1)
    run_job(job, stages, ranks="0,1,2")
    run_job(job, stages)
    assert artifact.find(tmp_path / "out" / "f").record["cost"]["price"] > 0.3


def test_finished_work_is_left_as_it_is(tmp_path, stages):
    run_job(toy_job(tmp_path), stages)
    run_job(toy_job(tmp_path), stages)
    assert ranks_run(tmp_path) == ["0", "1", "2"]


def test_after_a_failure_only_the_missing_ranks_run(tmp_path, stages):
    with pytest.raises(RuntimeError, match="broken rank"):
        run_job(toy_job(tmp_path, breaks_at=2), stages)
    assert artifact.find(tmp_path / "out" / "f") is None
    (tmp_path / "mended").touch()
    run_job(toy_job(tmp_path, breaks_at=2), stages)
    assert ranks_run(tmp_path) == ["0", "1", "2"]
    told = read_metrics(tmp_path / "out" / "f" / "metrics.jsonl")  # each rank once
    assert [(row["step"], row["documents"]) for row in told] == [(1, 2), (2, 4), (3, 6)]


def test_a_failure_in_a_worker_comes_as_it_is_and_no_further_rank_begins(tmp_path, stages):
    job = toy_job(tmp_path, workers=2, ranks=9, breaks_at=1, seconds=0.05)
    with pytest.raises(RuntimeError, match="broken rank") as caught:
        run_job(job, stages)
    assert "in run_rank" in caught.value.__notes__[0]
    assert "0" in ranks_run(tmp_path) and "8" not in ranks_run(tmp_path)


class Unmakeable(Exception):
    def __init__(self, *, code):
        super().__init__(f"code {code}")


def raise_unmakeable(_):
    raise Unmakeable(code=7)


def test_an_error_that_cannot_be_sent_comes_as_its_words(tmp_path):
    with pytest.raises(RuntimeError, match="Unmakeable: code 7"):
        list(each_result(raise_unmakeable, [0, 1], workers=2, modules=[], begin=os.getpid))
    with pytest.raises(RuntimeError, match=r"pickle|local"):
        list(each_result(lambda_of, [0, 1], workers=2, modules=[], begin=os.getpid))


def lambda_of(_):
    return lambda: None


def test_a_finished_rank_whose_file_was_damaged_runs_again(tmp_path, stages):
    with pytest.raises(RuntimeError):
        run_job(toy_job(tmp_path, breaks_at=2), stages)
    (tmp_path / "out" / "f" / "part-0.txt").write_text("damaged")
    (tmp_path / "mended").touch()
    run_job(toy_job(tmp_path, breaks_at=2), stages)
    assert ranks_run(tmp_path) == ["0", "0", "1", "2"]
    assert (tmp_path / "out" / "f" / "part-0.txt").read_text() == "rank 0\n"


def test_array_tasks_do_their_ranks_and_the_plain_command_commits(tmp_path, stages):
    for ranks in ("0/2", "1/2", "0,7"):  # of the last, one is done and one is none of the job's
        run_job(toy_job(tmp_path), stages, ranks=ranks)
        assert artifact.find(tmp_path / "out" / "f") is None
    run_job(toy_job(tmp_path), stages)
    assert ranks_run(tmp_path) == ["0", "1", "2"] and artifact.find(tmp_path / "out" / "f") is not None


def test_a_finishing_job_makes_the_share_of_the_ranks_that_it_may_and_no_rank_more(tmp_path, stages, capsys):
    job = toy_job(tmp_path)
    write_job(job, tmp_path / "job.json")
    run_job(job, stages, ranks="0,2")
    assert main([str(tmp_path / "job.json"), "--finish", "0.3"], stages) == 4
    assert "error: 1 of 3 ranks were not made: 1\n" in capsys.readouterr().err
    assert ranks_run(tmp_path) == ["0", "2"] and artifact.find(tmp_path / "out" / "f") is None
    assert main([str(tmp_path / "job.json"), "--finish", "0.34"], stages) == 0
    assert ranks_run(tmp_path) == ["0", "1", "2"] and artifact.find(tmp_path / "out" / "f") is not None


def test_an_input_that_is_not_there_is_refused_before_any_work(tmp_path, stages):
    missing = InputArtifact(asset="x", partition="p", fingerprint="f", digest="d", path=str(tmp_path / "nothing"))
    with pytest.raises(RefusedInput, match="materialize x first"):
        run_job(toy_job(tmp_path, inputs=(missing,)), stages)
    assert not (tmp_path / "out").exists()


def test_a_job_killed_at_any_moment_gives_the_same_artifact_when_run_again(tmp_path, stages):
    run_job(toy_job(tmp_path, name="reference", seconds=0.1), stages)
    job_file = tmp_path / "job.json"
    job = toy_job(tmp_path, name="killed", seconds=0.1)
    write_job(job, job_file)
    for delay in (0.35, 0.5, 0.65):
        process = subprocess.Popen([sys.executable, "-c", MAIN, str(job_file)], start_new_session=True)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert subprocess.run([sys.executable, "-c", MAIN, str(job_file)], check=False).returncode == 0
    killed, reference = (artifact.find(tmp_path / name / "f") for name in ("killed", "reference"))
    assert killed.digest == reference.digest and killed.record["counts"] == reference.record["counts"]


def test_of_several_processes_only_the_first_makes_what_one_can_make(tmp_path, stages, monkeypatch, caplog):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert run_job(toy_job(tmp_path), stages) == 0
    assert not (tmp_path / "out").exists()
    monkeypatch.setenv("RANK", "0")
    assert run_job(toy_job(tmp_path), stages) == 0
    assert artifact.find(tmp_path / "out" / "f") is not None
    assert "stage toy runs in one process" in caplog.text


JOINS_A_GROUP = """
import torch.distributed as dist
from training.contract.artifact import write_text
from training.contract.job import Outcome

def run(job, work):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    write_text(work.path / "made.txt", "by a group")
    return Outcome(files=("made.txt",))
"""


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_process_leaves_the_process_group_that_its_stage_joined(tmp_path, stages, monkeypatch, rank):
    import torch.distributed as dist

    (tmp_path / "modules" / "toy_stage.py").write_text(JOINS_A_GROUP)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", rank)
    together = {"toy": Stage(name="toy", version="1", module="toy_stage", distributed=True)}
    assert run_job(toy_job(tmp_path), together) == 0
    assert (tmp_path / "out" / "f" / "made.txt").exists()
    assert not dist.is_initialized()


def test_a_process_stays_in_the_process_group_in_which_its_stage_found_it(tmp_path, stages):
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        (tmp_path / "modules" / "toy_stage.py").write_text(JOINS_A_GROUP.replace("dist.init", "# dist.init"))
        together = {"toy": Stage(name="toy", version="1", module="toy_stage", distributed=True)}
        assert run_job(toy_job(tmp_path), together) == 0
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_what_a_person_did_wrong_is_one_sentence_and_exit_code_2(tmp_path, stages, capsys):
    job_file = tmp_path / "job.json"
    write_sealed(job_file, {"stage": "toy", "colour": "red"})
    assert main([str(job_file)], stages) == 2
    assert "colour: unknown field" in capsys.readouterr().err


def test_a_disk_that_numpy_filled_is_one_sentence(tmp_path, stages, capsys):
    write_job(toy_job(tmp_path, fills=True), tmp_path / "job.json")
    assert main([str(tmp_path / "job.json")], stages) == 1
    assert "error: disk full while writing" in capsys.readouterr().err


def test_metrics_of_a_killed_job_are_read_without_the_torn_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    assert read_metrics(path) == [{"step": 1, "loss": 2.0}]


def test_a_second_process_says_that_the_work_is_being_done(tmp_path, stages, capsys):
    from assets.materialize.events import heard_by
    from assets.materialize.reports import Reports

    job = toy_job(tmp_path)
    write_job(job, tmp_path / "job.json")
    run = SimpleNamespace(log_metrics=lambda rows: None)
    reports = Reports(tmp_path / "out" / "f", run, SimpleNamespace(say=lambda line: None), None)
    with Lease(tmp_path / "out" / "f"):
        assert main([str(tmp_path / "job.json")], stages) == BUSY
    assert "is being made" in capsys.readouterr().err
    assert main([str(tmp_path / "job.json")], stages) == 0
    # The terminal of the run that watches the second process says meanwhile what it waits for.
    heard: list[str | None] = []
    with heard_by(lambda kind, cell, values: heard.append(values.get("for"))):
        reports.forward(is_last=False)
    assert re.match(r"a sign of life of .+, which holds the lease of f\Z", heard[1]) and heard[2:] == [""]


@pytest.mark.parametrize("place", ["", "parts/"])
def test_what_killed_writers_left_is_gone_at_the_commit(tmp_path, stages, place):
    job, job_file = toy_job(tmp_path, dies_at=1, place=place), tmp_path / "job.json"
    write_job(job, job_file)
    folder = Path(job.output)
    died = subprocess.run([sys.executable, "-c", MAIN, str(job_file)], check=False)
    assert died.returncode == -signal.SIGKILL and list(folder.rglob("*.tmp"))
    (folder / ".artifact.json.5342c7a3.tmp").write_text("half of a record, whose writer died at the commit")
    of_a_dead_watcher(folder).write_text("half of a job")
    (tmp_path / "mended").touch()
    assert run_job(job, stages) == 0
    named = {entry["path"] for entry in artifact.find(folder).record["files"]}
    beside = {"artifact.json", artifact.COPY_FILE, "job.json", "metrics.jsonl", "messages.jsonl"}
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    attempts = {path for path in there if path.startswith("attempts/")}
    other = set() if place else {path for path in there if path.startswith("parts/")}  # of a folder that is not its own
    assert there - attempts - other == named | beside


def of_a_dead_watcher(folder):
    """The temporary file of `job.json` that a killed orchestrator leaves, named by a process that has ended."""
    code = "from pathlib import Path; from training.contract.files.writing import temporary_for as t"
    code += "; print(t(Path('job.json')))"
    return folder / subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()


def test_a_commit_leaves_a_living_watcher_its_file(tmp_path, stages):
    job = toy_job(tmp_path)
    folder = Path(job.output)
    folder.mkdir(parents=True)
    with written(folder / "job.json", "w") as stream:
        assert run_job(job, stages) == 0
        stream.write("of the watcher")
    assert (folder / "job.json").read_text() == "of the watcher"


def test_what_a_job_killed_after_its_commit_left_is_removed_by_whoever_finds_the_artifact(tmp_path, stages):
    job = toy_job(tmp_path)
    run_job(job, stages)
    folder = Path(job.output)
    (folder / "attempts").mkdir()
    before = set(folder.rglob("*"))
    (folder / "scratch").mkdir()
    (folder / "ranks").mkdir()
    of_a_dead_watcher(folder).touch()
    of_a_dead_watcher(folder / "attempts").touch()  # of a rank that was killed when it recorded its end
    with Lease(folder), written(folder / "attempts" / "of-a-living-rank.json", "w"):
        remove_state(folder)
        assert len(list((folder / "attempts").glob(".*.tmp"))) == 1
    assert set(folder.rglob("*")) == before | {folder / "attempts" / "of-a-living-rank.json"}
