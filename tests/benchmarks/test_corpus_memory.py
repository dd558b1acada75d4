"""The benchmark of a corpus's memory makes its stages over generated documents, and sees each process."""

from __future__ import annotations

from benchmarks import corpus_memory
from tests.training.data import chain
from training.data.dedup.settings import DedupRecipe
from training.data.documents import document_files, read_documents
from training.run_settings import RunSettings


def test_one_document_in_ten_is_a_copy_in_a_distant_file_and_every_second_copy_has_another_word():
    first, second = (corpus_memory.texts_of_file(file, 2, 40).to_pylist() for file in range(2))
    assert [row for row in range(40) if first[row] == second[row]] == [10, 30]
    words = [(first[row].split(" "), second[row].split(" ")) for row in (0, 20)]
    assert [sum(one != other for one, other in zip(*both, strict=True)) for both in words] == [1, 1]


def test_each_phase_and_the_end_of_a_stage_are_processes_of_their_own(tmp_path):
    made = corpus_memory.generated(tmp_path, 50, 20)
    ids = [row["id"] for path in document_files(made) for row in read_documents(path)]
    assert len(ids) == 50 and ids == sorted(ids)
    few = corpus_memory.renamed(made, "filtered_documents", files=2)
    assert few.record()["counts"]["kept"] == 40

    run = RunSettings(workers=1)
    settings = {"dedup": DedupRecipe()}
    job = chain.job_of(tmp_path, "sign", "document_signatures", "tiny@one", settings, [few], run=run)
    told = list(corpus_memory.peaks(job))
    assert [row[:3] for row in told] == [("sign", "", 2), ("sign", "", 0)]
    assert all(row[3]["peak_bytes"] > 10_000_000 and row[3]["seconds"] > 0 for row in told)
    assert len(chain.made_by(job).files()) == 2
