"""The benchmark of memory runs a phase over its generated keys, and the candidates are the copies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from benchmarks import dedup_memory
from training.data.dedup import dedup


def test_one_range_of_a_snapshot_after_others_has_the_keys_of_all(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dedup_memory, "PER_FILE", 500)
    dedup_memory.measure_one_range(tmp_path / "told", 1000, earlier=3)
    assert "3 earlier snapshots, 1000 documents, candidates: 1 ranks" in capsys.readouterr().out
    job = dedup_memory.one_range(tmp_path / "made", 1000, earlier=3)
    (candidates,) = (phase for phase in dedup.PHASES if phase.name == "candidates")
    result = candidates.run_rank(job, SimpleNamespace(path=Path(job.output)), 0)
    assert result["longest_run"] == 2  # a copy in a snapshot before
