"""What a record says of the code that made it, by real jobs in processes of their own; code changes in between."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.edited_copy import copied_sources
from training.contract import artifact
from training.contract.identity import closure
from training.contract.identity.closure import Code, current_code
from training.contract.identity.made_by import in_words, other_parts
from training.contract.job import Job, write_job

STAGE = """
from toy import limits
from training.contract.artifact import write_text
from training.contract.job import Outcome
from training.contract.stage import Stage

def num_ranks(job):
    return 2

def run_rank(job, work, rank):
    write_text(work.path / f"{rank}.txt", str(limits.LIMIT))
    return {"files": [f"{rank}.txt"]}

def finish(job, work, ranks):
    return Outcome(files=("0.txt", "1.txt"))

STAGES = {"toy": Stage(name="toy", version="1", module="toy.counts")}
"""
RUN = """
import sys
from toy.counts import STAGES
from training.contract.running.command_line import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], STAGES))
"""


class Toy:
    """A stage of two modules in a folder, which a test edits between the processes that run it."""

    def __init__(self, folder):
        self.folder, self.edits = folder, 0
        (folder / "toy").mkdir()
        (folder / "toy" / "counts.py").write_text(STAGE)
        (folder / "toy" / "run.py").write_text(RUN)
        self.edit("LIMIT = 1")

    def edit(self, code):
        """Let the module that the stage imports be this."""
        path = self.folder / "toy" / "limits.py"
        path.write_text(code)
        self.edits += 1  # Python would take bytecode of another text of this size and second for this one's
        os.utime(path, (self.edits, self.edits))

    def run(self, *arguments, name="one"):
        """One process of the job; the committed artifact, if there is one then."""
        output = self.folder / name / "f"
        names = {"stage": "toy", "asset": "toys", "partition": "r", "recipe": "r", "fingerprint": "f"}
        write_job(Job(**names, stage_version="1", settings={}, output=str(output)), output / "job.json")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(self.folder), *sys.path])}
        command = [sys.executable, "-m", "toy.run", str(output / "job.json"), *arguments]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return artifact.find(output)

    def now(self):
        """The code as it lies there."""
        return Code(places={**Code().places, "toy": self.folder / "toy"}).digests("toy.counts")


@pytest.fixture
def toy(tmp_path):
    return Toy(tmp_path)


def test_a_record_names_the_code_of_its_own_process(toy):
    made = toy.run()
    modules = made.record["code"]["modules"]
    assert {"toy.counts", "training.contract.artifact", "training.contract.running.accounts"} <= modules.keys()
    assert "training.contract.stage" not in modules
    assert made.record["code"]["digest"] == artifact.digest_of(modules)
    forged = made.record | {"code": {"digest": "", "modules": {}}}
    assert artifact.record_digest(forged) != made.record_digest


def test_another_constant_is_other_code_and_another_comment_is_not(toy):
    before = toy.run()
    toy.edit("LIMIT = 1  # a comment")
    assert toy.run(name="two").record["code"] == before.record["code"]
    toy.edit("LIMIT = 2")
    assert other_parts(before.record, toy.now()) == ("toy.limits",)


def test_ranks_that_other_code_made_show_in_the_record(toy):
    toy.run("--ranks", "0")
    toy.edit("LIMIT = 2")
    made = toy.run()
    assert [(made.path / f"{rank}.txt").read_text() for rank in (0, 1)] == ["1", "2"]
    assert [name for name, digests in made.record["code"]["modules"].items() if isinstance(digests, list)] == [
        "toy.limits"
    ]
    parts = other_parts(made.record, toy.now())
    assert in_words(made.record, parts) == "made by more than one code: toy.limits"


def test_code_is_read_again_as_soon_as_one_file_is_another_one(tmp_path, monkeypatch):
    places = copied_sources(tmp_path)
    monkeypatch.setattr(closure, "place_of", places.__getitem__)
    path = places["training"] / "data" / "crawl" / "settings.py"
    before, state = current_code(), path.stat()
    first = before.digests("training.data.crawl.crawl")
    assert current_code() is before
    path.write_bytes(path.read_bytes().replace(b"1", b"2"))  # of the same length, and of the same time
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_mtime_ns == state.st_mtime_ns and path.stat().st_size == state.st_size
    second = current_code().digests("training.data.crawl.crawl")
    assert [one for one in first if first[one] != second[one]] == ["training.data.crawl.settings"]
    path.rename(path.with_name("other.py"))
    assert "training.data.crawl.settings" not in current_code().digests("training.data.crawl.crawl")
