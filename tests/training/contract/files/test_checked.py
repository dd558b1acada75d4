"""What the processes of a stage read of its inputs: each its own files, once, and no file that is not what was made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs import commit_by_hand, job_by_hand
from training.contract import artifact
from training.contract.files import checked
from training.contract.files.checksums import sha256_of_written
from training.contract.job import Job, RefusedInput, write_job
from training.contract.running.runner import run_job
from training.contract.stage import Stage

COPY = """
import mmap, sys
from pathlib import Path
from training.contract.artifact import written
from training.contract.job import Outcome
from training.contract.running.command_line import main
from training.contract.stage import Stage

STAGE = Stage(name="copy", version="1", module="copy_stage", in_ranks=True)

def num_ranks(job):
    return len(job.input_of("texts").files())

def run_rank(job, work, rank):
    name = sorted(job.input_of("texts").files())[rank]
    with open(job.input_of("texts").file(name), "rb") as stream, written(work.path / name) as copy:
        copy.write(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    return {"files": [name]}

def finish(job, work, results):
    return Outcome(files=tuple(name for result in results for name in result["files"]))

def chars_read():
    return int(Path("/proc/self/io").read_text().split()[1])

if __name__ == "__main__":
    before = chars_read()
    code = main(sys.argv[1:], {"copy": STAGE})
    print(chars_read() - before)
    sys.exit(code)
"""
RANKS = 6
FILE_BYTES = 4 << 20


@pytest.fixture
def job(tmp_path, monkeypatch) -> Job:
    """A job of a stage with one rank per file, which copies it."""
    (tmp_path / "copy_stage.py").write_text(COPY)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "texts" / "g"
    for number in range(RANKS):
        artifact.write_text(folder / f"{number}.txt", f"{number}" * FILE_BYTES)
    given = commit_by_hand(folder, "texts", fingerprint="g")
    made = job_by_hand("copy", tmp_path / "copies" / "f", inputs=[given], asset="copies")
    write_job(made, Path(made.output) / "job.json")
    yield made
    sys.modules.pop("copy_stage", None)


STAGES = {"copy": Stage(name="copy", version="1", module="copy_stage", in_ranks=True)}


def flip(path: Path) -> None:
    """Change one bit in the middle of a file; its size stays."""
    with open(path, "r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        byte = stream.read(1)[0]
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 1]))


def test_all_tasks_together_read_the_inputs_once(tmp_path, job):
    asked = [["--ranks", "0/2"], ["--ranks", "1/2"], []]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    read = [
        int(
            subprocess.run(
                [sys.executable, "-m", "copy_stage", f"{job.output}/job.json", *options],
                env={**os.environ, "PYTHONPATH": path},
                stdout=subprocess.PIPE,
                check=True,
            ).stdout
        )
        for options in asked
    ]
    of_the_finish = read[-1] / (RANKS * FILE_BYTES)
    made = artifact.find(Path(job.output))
    assert made.digest == job.inputs[0].digest and artifact.damaged_files(made) == []
    assert sum(read) / (RANKS * FILE_BYTES) < 1.2
    assert of_the_finish < 0.1  # code and records, and no output


def test_a_damaged_file_stops_the_rank_that_reads_it_and_no_other(job):
    flip(Path(job.inputs[0].path, "3.txt"))
    run_job(job, STAGES, ranks="0/2")
    with pytest.raises(RefusedInput, match=r"texts \[r\]: .*3\.txt: .* `pedigree verify r --mend`"):
        run_job(job, STAGES, ranks="1/2")
    with pytest.raises(RefusedInput, match=r"3\.txt"):
        run_job(job, STAGES)
    assert artifact.find(Path(job.output)) is None


def test_a_changed_output_of_a_finished_rank_is_made_again(job):
    run_job(job, STAGES, ranks="0/1")
    os.utime(Path(job.output, "1.txt"))
    flip(Path(job.output, "2.txt"))
    run_job(job, STAGES)
    assert artifact.find(Path(job.output)).digest == job.inputs[0].digest


def test_a_file_that_changed_after_its_check_is_checked_again(job):
    item = job.inputs[0]
    item.file("0.txt")
    flip(Path(item.path, "0.txt"))
    with pytest.raises(RefusedInput, match=r"0\.txt"):
        item.file("0.txt")
    with pytest.raises(RefusedInput, match=r"0\.txt"):
        item.folder  # noqa: B018 - all of its files


def test_another_manifest_than_that_of_the_job_is_refused(job):
    item = job.inputs[0]
    assert not item.file("absent.txt").exists()
    flip(Path(item.path, artifact.ARTIFACT_FILE))
    checked._manifest.cache_clear()
    with pytest.raises(RefusedInput, match=r"checksums give digest|artifact\.json"):
        item.file("1.txt")


def test_a_checksum_taken_while_writing_holds_only_for_what_was_written(tmp_path):
    path = tmp_path / "file"
    with artifact.written(path) as stream:
        stream.write(b"one")
        stream.seek(0)
        stream.write(b"two")
    assert sha256_of_written(path) == artifact.sha256_of(path)  # overwritten: read
    artifact.write_text(path, "whole")
    assert sha256_of_written(path) == artifact.sha256_of(path)
    path.write_text("other")
    assert sha256_of_written(path) == artifact.sha256_of(path)  # changed by somebody else: read
