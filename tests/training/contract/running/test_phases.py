"""Stages in phases: a toy stage that shuffles words by their first letter, run by the real runner."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs import job_by_hand
from tests.outside import importable
from training.contract import artifact
from training.contract.job import write_job
from training.contract.run_settings import RunSettings
from training.contract.running.command_line import main
from training.contract.running.marks import finished_rank, num_finished
from training.contract.running.ranks import RanksMissing
from training.contract.running.runner import run_job
from training.contract.stage import Stage
from training.data.dedup.shuffle import SliceDamaged, name_of
from training.stages import STAGES

MODULE = """
import os, signal, sys
from pathlib import Path
from training.contract.artifact import write_text
from training.contract.job import Outcome
from training.contract.running.phase import Phase
from training.contract.running.command_line import main
from training.data.dedup.shuffle import name_of, read_slice, writing_slices
from training.contract.stage import Stage

TEXTS = ["cherry apple banana", "blueberry", "avocado cranberry apple"]
LETTERS = "abc"

def note(job, phase, rank):
    with open(Path(job.output).parent / "log", "a") as log:
        log.write(f"{phase}{rank}\\n")
    if [phase, rank] == job.settings["dies_at"] and not os.path.exists(job.settings["mended"]):
        os.kill(os.getpid(), signal.SIGKILL)

def cut(job, work, rank):
    words = TEXTS[rank].split()
    with writing_slices(job, work, "cut", rank) as slices:
        for letter in LETTERS:
            slices.add(" ".join(word for word in words if word[0] == letter).encode())
        note(job, "cut", rank)
    return {"files": [name_of("cut", rank)], "words": len(words)}

def sort(job, work, rank):
    found = [read_slice(job, work, "cut", other, rank).decode().split() for other in range(len(TEXTS))]
    name = f"words/{LETTERS[rank]}.txt"
    write_text(work.path / name, " ".join(sorted(word for words in found for word in words)))
    note(job, "sort", rank)
    return {"files": [name]}

PHASES = (
    Phase(name="cut", num_ranks=lambda job: len(TEXTS), run_rank=cut),
    Phase(name="none", num_ranks=lambda job: 0, run_rank=cut),
    Phase(name="sort", num_ranks=lambda job: len(LETTERS), run_rank=sort),
)

def finish(job, work, results):
    words = sum(result["words"] for result in results["cut"])
    files = tuple(name for result in results["sort"] for name in result["files"])
    return Outcome(files=files, metrics={"words": words})

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], {"sorted": Stage(name="sorted", version="1", module="phased_stage")}))
"""
ALL = ["cut0", "cut1", "cut2", "sort0", "sort1", "sort2"]


@pytest.fixture
def stages(tmp_path):
    with importable(tmp_path / "modules", "phased_stage", MODULE):
        yield {"sorted": Stage(name="sorted", version="1", module="phased_stage", in_ranks=True)}


def job_of(tmp_path, name="out", *, workers=1, dies_at=()):
    settings = {"dies_at": list(dies_at), "mended": str(tmp_path / "mended")}
    return job_by_hand("sorted", tmp_path / name / "f", settings, run=RunSettings(workers=workers))


def ranks_run(tmp_path, name="out"):
    return sorted((tmp_path / name / "log").read_text().split())


def words_of(tmp_path, name="out"):
    made = artifact.find(tmp_path / name / "f")
    assert artifact.damaged_files(made) == []
    return {entry["path"]: (made.path / entry["path"]).read_text() for entry in made.record["files"]}


SORTED = {
    "words/a.txt": "apple apple avocado",
    "words/b.txt": "banana blueberry",
    "words/c.txt": "cherry cranberry",
}


@pytest.mark.parametrize("workers", [1, 2])
def test_each_phase_reads_what_the_one_before_wrote_and_its_files_go_at_the_commit(tmp_path, stages, workers):
    run_job(job_of(tmp_path, workers=workers), stages)
    assert words_of(tmp_path) == SORTED and ranks_run(tmp_path) == ALL
    assert artifact.find(tmp_path / "out" / "f").record["metrics"] == {"words": 7}
    assert not [path for path in ("scratch", "ranks") if (tmp_path / "out" / "f" / path).exists()]


@pytest.mark.parametrize("dies_at", [("cut", 1), ("sort", 0), ("sort", 2)])
def test_a_job_that_was_killed_in_any_phase_makes_only_what_is_missing(tmp_path, stages, dies_at):
    job = job_of(tmp_path, dies_at=dies_at)
    write_job(job, tmp_path / "job.json")
    command = [sys.executable, "-m", "phased_stage", str(tmp_path / "job.json")]
    assert subprocess.run(command, check=False, capture_output=True).returncode == -9
    (tmp_path / "mended").touch()
    run_job(job, stages)
    killed = "".join(map(str, dies_at))
    assert words_of(tmp_path) == SORTED and ranks_run(tmp_path) == sorted([*ALL, killed])


def test_tasks_of_a_phase_wait_for_all_ranks_of_the_phases_before(tmp_path, stages):
    job = job_of(tmp_path)
    run_job(job, stages, ranks="0/2", phase="cut")
    with pytest.raises(RanksMissing, match=r"1 of 3 ranks .* cut .*: 1; .* sort"):
        run_job(job, stages, ranks="0/2", phase="sort")
    with pytest.raises(RanksMissing, match=r"1 of 3 ranks .* cut .*: 1$"):
        run_job(job, stages, missing_share=0)
    run_job(job, stages, ranks="1/2", phase="cut")
    for task in ("0/2", "1/2"):
        run_job(job, stages, ranks=task, phase="sort")
    assert num_finished(Path(job.output)) == 6
    assert (tmp_path / "out" / "f" / "ranks" / "total.json").read_text() == '{\n "ranks": 6\n}\n'
    run_job(job, stages, missing_share=0)
    assert words_of(tmp_path) == SORTED and ranks_run(tmp_path) == ALL


def test_a_phase_that_the_stage_lacks_is_refused_by_name(tmp_path, stages, capsys):
    write_job(job_of(tmp_path), tmp_path / "job.json")
    assert main([str(tmp_path / "job.json"), "--ranks", "0", "--phase", "paint"], stages) == 2
    assert "cut, none, sort" in capsys.readouterr().err
    assert main([str(tmp_path / "job.json"), "--ranks", "0"], stages) == 2


@pytest.mark.parametrize("fault", ["byte", "cut", "missing", "of another rank"])
def test_a_damaged_slice_is_found_by_its_reader_and_its_rank_is_made_again(tmp_path, stages, fault):
    job = job_of(tmp_path)
    run_job(job, stages, ranks="0,1,2", phase="cut")
    path, other = (Path(job.output, name_of("cut", rank)) for rank in (2, 0))
    before, data = path.stat(), path.read_bytes()
    assert data.startswith(b"avocado apple")
    if fault == "byte":
        path.write_bytes(data.replace(b"avocado", b"avocada"))
    elif fault == "cut":
        path.write_bytes(data[:-1] + b"\x09")
    elif fault == "missing":
        path.write_bytes(b"")
    else:
        path.write_bytes(other.read_bytes())
    # Size and time of change may be the old ones, as when a disk loses a bit.
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SliceDamaged, match=r"slice 0, .* rank 2 "):
        run_job(job, stages, ranks="0", phase="sort")
    assert finished_rank(Path(job.output), 2, "cut") is None
    run_job(job, stages)
    assert words_of(tmp_path) == SORTED and ranks_run(tmp_path) == sorted([*ALL, "cut2"])


def test_every_stage_declares_the_phases_of_its_module():
    for stage in STAGES.values():
        found = importlib.import_module(stage.module)
        assert stage.phases == (tuple(phase.name for phase in found.PHASES) if hasattr(found, "PHASES") else ())
        assert stage.in_ranks or not stage.phases, stage.name
