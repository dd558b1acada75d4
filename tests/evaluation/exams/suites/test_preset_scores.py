"""`pedigree evaluate MODEL --preset NAME` scores a folder of anybody's, and names what it cannot score."""

from __future__ import annotations

import gzip
import json
import shutil
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests import commands
from training.data.sources import read_rows

pytestmark = pytest.mark.data


@pytest.fixture
def folder(tmp_path, chat_folder, monkeypatch) -> Path:
    """A model of 1,024 positions beside a few rows of three files."""
    rows = tmp_path / "data" / "benchmarks"
    rows.mkdir(parents=True)
    for name in ("mmlu_test", "gsm8k_test", "truthfulqa"):
        some = list(islice(read_rows(f"data://benchmarks/{name}.jsonl.gz"), 3))
        (rows / f"{name}.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in some).encode()))
    monkeypatch.setenv("PEDIGREE_DATA", str(rows.parent))
    shutil.copytree(chat_folder, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1024}))
    return tmp_path / "model"


def test_a_folder_is_scored_on_what_is_at_hand_and_the_rest_is_named(folder, tmp_path, monkeypatch, capsys):
    root = ("--root", str(tmp_path / "root"))
    code, said, _ = commands.said(monkeypatch, capsys, "evaluate", str(folder), "--preset", "chat", "--json", *root)
    answer = json.loads(said)
    assert code == 0 and list(answer["scores"]) == ["mmlu", "truthfulqa_mc1"]
    assert [one["n"] for one in answer["scores"].values()] == [3, 3]
    missed = answer["not_scored"]
    assert set(missed) == {"triviaqa", "ifeval", "gsm8k_cot"}
    assert missed["gsm8k_cot"] == "none of 3 items fits with its answer into the 1024 positions of the model"
    assert missed["triviaqa"] == "data://benchmarks/triviaqa_sm_sub.jsonl.gz is not there"
    for arguments, problem in (
        (("--preset", "code"), "no suite can be scored here: humaneval: data://benchmarks/human_eval.jsonl.gz is not"),
        (("--preset", "chats"), "--preset: 'chats' is not one of 'base', 'chat', 'code', 'full'; did you mean"),
        ((), "name --suites or --preset, one of them"),
        (("--preset", "chat", "--suites", "kitchen"), "name --suites or --preset, one of them"),
    ):
        code, said, _ = commands.said(monkeypatch, capsys, "evaluate", str(folder), *arguments, "--json", *root)
        assert code == 2 and problem in json.loads(said)["error"], said
