"""The benchmark of memory runs the phases over its generated signatures, and their candidates are the copies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from benchmarks import dedup_memory
from training.data.dedup import dedup


def test_the_copies_are_the_candidates(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dedup_memory, "PER_FILE", 500)
    dedup_memory.measure(tmp_path / "told", 1000)
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(": 1 ranks, largest peak ")[0] for line in told] == [
        f"1000 documents, {name}" for name in dedup_memory.PHASES
    ]
    job = dedup_memory.snapshot(tmp_path / "made", 1000)
    work = SimpleNamespace(path=Path(job.output))
    results = [phase.run_rank(job, work, 0) for phase in dedup.PHASES if phase.name in dedup_memory.PHASES]
    assert results[1]["longest_run"] == 2  # a copy in each of the two files


def test_one_range_of_a_snapshot_after_others_has_the_keys_of_all(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dedup_memory, "PER_FILE", 500)
    dedup_memory.measure_one_range(tmp_path / "told", 1000, earlier=3)
    assert "3 earlier snapshots, 1000 documents, candidates: 1 ranks" in capsys.readouterr().out
    job = dedup_memory.one_range(tmp_path / "made", 1000, earlier=3)
    (candidates,) = (phase for phase in dedup.PHASES if phase.name == "candidates")
    result = candidates.run_rank(job, SimpleNamespace(path=Path(job.output)), 0)
    assert result["longest_run"] == 2  # a copy in a snapshot before
