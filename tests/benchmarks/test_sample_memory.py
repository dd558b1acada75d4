"""The benchmark of samples does the work of the stages over its generated documents."""

from __future__ import annotations

from benchmarks import samples


def test_each_piece_of_work_is_done_over_all_documents(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "PER_FILE", 150)
    samples.generate(tmp_path, 400)
    files = sorted((tmp_path / "documents").iterdir())
    assert len(files) == 3
    assert samples.choose_for_tokenizer(tmp_path, files).documents == 400
    assert samples.in_a_child("quality", tmp_path, samples.HERE)["peak_bytes"] > 10_000_000
    assert samples.in_a_child("hits", tmp_path, samples.HERE)["seconds"] > 0
    assert (tmp_path / "hits.parquet").exists()
