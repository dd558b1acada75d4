"""The study of vocabulary sizes is made on the tokenizer's own sample and says what that tokenizer's report says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.data import chain
from tests.training.data.test_tokenizer import texts
from training.data.vocabularies import main, study
from training.job import read_job
from training.recipe import TokenizerRecipe


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    root = tmp_path_factory.mktemp("tokenizer")
    source = chain.documents(root, "one", [texts(200)], asset="decontaminated_documents")
    small = TokenizerRecipe(snapshots=("one",), vocabulary=300, min_bytes_per_token=1.0)
    other = chain.run(root / "other", "tokenizer", "tokenizer", "tiny", {"tokenizer": small}, [source])
    recipe = TokenizerRecipe(
        snapshots=("one",), vocabulary=320, min_bytes_per_token=1.0, reference=str(other.file("tokenizer.json"))
    )
    return chain.run(root, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [source])


def test_more_pieces_make_fewer_tokens_and_the_recipes_own_size_is_as_it_was_measured(tokenizer):
    rows = study(read_job(tokenizer.file("job.json")), [270, 280, 300])
    assert [row.name for row in rows] == ["270", "280", "300", "320", "reference"]
    sizes = rows[:4]
    assert [row.size for row in sizes] == [270, 280, 300, 320]
    assert [row.bytes_per_token for row in sizes] == sorted({row.bytes_per_token for row in sizes})
    own = tokenizer.record()["metrics"]
    assert (rows[3].bytes_per_token, rows[3].tokens_per_word) == (own["bytes_per_token"], own["tokens_per_word"])
    assert rows[4].bytes_per_token == rows[2].bytes_per_token and rows[4].size == 300


def test_the_command_prints_a_table_and_says_what_is_wrong(tokenizer, capsys, tmp_path):
    assert main([tokenizer.path, "300"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[2].split()[0] == "320" and lines[2].rstrip().endswith("%")
    assert main([str(Path(tmp_path)), "300"]) == 2
    assert "job.json" in capsys.readouterr().err
    assert main([tokenizer.path, "20"]) == 2
    assert "256 bytes and the special tokens" in capsys.readouterr().err
