"""The study of vocabulary sizes is made on the tokenizer's own sample and says what that tokenizer's report says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.data import chain
from tests.training.data.tokens.test_tokenizer import texts
from training.contract.job import read_job
from training.contract.records import RecipeError
from training.data.tokens.tokenizer_settings import TokenizerRecipe
from training.data.tokens.vocabularies import main, study_of


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
    rows = study_of(Path(tokenizer.path), [270, 280, 300])
    assert [row["name"] for row in rows] == ["270", "280", "300", "320", "reference"]
    sizes = rows[:4]
    assert [row["pieces"] for row in sizes] == [270, 280, 300, 320]
    assert [row["bytes_per_token"] for row in sizes] == sorted({row["bytes_per_token"] for row in sizes})
    own = tokenizer.record()["metrics"]
    assert all(rows[3][name] == own[name] for name in ("bytes_per_token", "tokens_per_word"))
    # the reference was trained by itself, on the same sample, at the size of the third
    assert all(rows[4][name] == rows[2][name] for name in ("pieces", "bytes_per_token", "tokens_per_word"))


def test_the_recipes_study_stands_in_the_artifact_and_changes_no_file(tokenizer):
    job = read_job(tokenizer.file("job.json"))
    recipe = replace(job.settings_as(TokenizerRecipe, "tokenizer"), study=(300, 270))
    made = chain.run(
        Path(tokenizer.path) / "studied", "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, job.inputs
    )
    assert made.digest == tokenizer.digest and "study" not in tokenizer.record()["notes"]
    table = made.record()["notes"]["study"]
    assert [row["vocabulary"] for row in table] == [270, 300, 320]
    assert [{"name": str(row["vocabulary"]), **row} for row in table] == study_of(Path(made.path), [270, 300])[:3]
    with pytest.raises(RecipeError, match=r"tokenizer\.study=20; 256 bytes"):
        replace(recipe, study=(20,))


def test_the_command_prints_a_table_and_says_what_is_wrong(tokenizer, capsys, tmp_path):
    assert main([tokenizer.path, "300"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[2].split()[0] == "320" and lines[2].rstrip().endswith("%")
    assert main([str(Path(tmp_path)), "300"]) == 2
    assert "job.json" in capsys.readouterr().err
    assert main([tokenizer.path, "20"]) == 2
    assert "256 bytes and the special tokens" in capsys.readouterr().err
