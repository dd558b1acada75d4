"""Slices for later phases, of files that the store of a root alone has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import job_by_hand
from tests.training.contract.files.test_stored_root import machine
from training.contract import artifact
from training.contract.files.stored_root import bring_marks
from training.contract.job import Job
from training.contract.running.marks import Clock, finished_rank, write_mark
from training.contract.running.ranks import work_in
from training.data.dedup.shuffle import SliceDamaged, name_of, read_slice, writing_slices

SLICE_BYTES, NUMBER = 100_000, 8


@pytest.fixture
def elsewhere(store, tmp_path) -> Job:
    """The job on a machine that has nothing; another machine finished a rank of eight slices."""
    job = job_by_hand("toy", machine(store, tmp_path / "here"), {}, ())
    with writing_slices(job, work_in(Path(job.output), enabled=False), "spread", 0) as slices:
        for number in range(NUMBER):
            slices.add(bytes([number]) * SLICE_BYTES)
    files = artifact.manifest(Path(job.output), [name_of("spread", 0)])
    write_mark(job, "spread", 0, {"files": files, "result": {"made": 1}}, Clock())
    there = machine(store, tmp_path / "there")
    bring_marks(there)
    return job_by_hand("toy", there, {}, ())


def read(job: Job, number: int) -> bytes:
    return read_slice(job, work_in(Path(job.output), enabled=False), "spread", 0, number)


def test_a_rank_brings_the_table_and_its_own_slices(store, elsewhere, monkeypatch):
    does, brought = store.answer, []

    def answer(*asked):
        said = does(*asked)
        brought.append(len(said[1]))
        return said

    monkeypatch.setattr(store, "answer", answer)
    folder = Path(elsewhere.output)
    assert finished_rank(folder, 0, "spread") == {"made": 1}
    assert [read(elsewhere, number)[:1] for number in (2, 5, NUMBER - 1)] == [b"\2", b"\5", b"\7"]
    assert not (folder / name_of("spread", 0)).exists()
    assert 3 * SLICE_BYTES < sum(brought) < 4 * SLICE_BYTES, "and the end of the file once, in which the table is"


def test_a_slice_that_is_damaged_in_the_store_is_noticed_and_its_rank_is_made_again(store, elsewhere):
    (key,) = (key for key in store.objects if "/files/" in key)
    data = bytearray(store.objects[key])
    data[SLICE_BYTES + 50] ^= 1
    store.objects[key] = bytes(data)
    assert read(elsewhere, 0) == bytes(SLICE_BYTES)
    with pytest.raises(SliceDamaged, match="slice 1, which rank 0 of the phase spread wrote"):
        read(elsewhere, 1)
    bring_marks(Path(elsewhere.output))
    assert finished_rank(Path(elsewhere.output), 0, "spread") is None


def test_a_file_that_the_store_lost_is_a_rank_that_is_missing(store, elsewhere):
    (key,) = (key for key in store.objects if "/files/" in key)
    del store.objects[key]
    assert finished_rank(Path(elsewhere.output), 0, "spread") is None
    with pytest.raises(SliceDamaged):
        read(elsewhere, 0)
