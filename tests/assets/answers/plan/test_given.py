"""What is said of the tokens that documents give, before anything is made."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets.answers.plan.given import told_of_tokens
from assets.state.recipe_folders import load_recipe
from tests.own_pages import sentences, write_warc
from training.data.look import text_bytes

TEXTS = [sentences(number, 60) for number in range(90)]
SIZE = sum(map(len, TEXTS))


def recipe(folder, source, **changes):
    data = {"extends": "base", "name": "own", "tokenizer": {"vocabulary": 2048}, "model": {"preset": "1m"}}
    data["pretrain"] = {"sequence_length": 256, "global_batch_tokens": 2048, **changes}
    data["pretrain"]["compute_budget"] = 1e14 if changes["tokens"] == "auto" else None
    data["snapshots"] = [{"name": "own-1", "source": source, "paths": [str(folder)]}]
    (folder.parent / "own.yaml").write_text(json.dumps(data))
    return load_recipe(str(folder.parent / "own.yaml"))


def write(folder, kind):
    folder.mkdir()
    rows = [{"text": text, "n": "x"} for text in TEXTS]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
    elif kind == "jsonl":
        (folder / "a.jsonl").write_text(lines)
    elif kind == "packed":
        (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    elif kind == "warc":
        write_warc(folder / "a.warc.gz", pages=90)
    else:
        for number, text in enumerate(TEXTS):
            (folder / f"{number}.{('txt', 'py')[number % 2]}").write_text(text)
    return kind if kind in ("parquet", "jsonl", "warc") else "jsonl" if kind == "packed" else "files"


@pytest.mark.parametrize(
    ("kind", "within"), [("parquet", 0.1), ("jsonl", 0.1), ("files", 0.1), ("packed", 0.6), ("warc", 0.3)]
)
def test_the_estimate_is_near_what_the_files_hold(kind, within, tmp_path):
    source = write(tmp_path / "data", kind)
    told = told_of_tokens(recipe(tmp_path / "data", source, tokens="auto"))
    given = int(told.split(" tokens")[0].rpartition(" ")[2].replace(",", ""))
    size = SIZE / 3.2 if kind != "warc" else 90 * 1300 / 3.2
    assert size / (1 + within) < given < size * (1 + within), told


def test_too_few_tokens_are_said_with_the_settings_to_change(tmp_path):
    source = write(tmp_path / "data", "jsonl")
    enough, too_many = (recipe(tmp_path / "data", source, tokens=tokens) for tokens in (2048 * 20, 2048 * 900))
    assert told_of_tokens(enough).endswith("pretrain.tokens asks for 40,960")
    assert told_of_tokens(enough, only_problem=True) == ""
    assert "too few for pretrain.tokens 1,843,200 with mixture.max_epochs 4: write auto or" in told_of_tokens(too_many)
    assert told_of_tokens(too_many, only_problem=True) == told_of_tokens(too_many)
    (tmp_path / "data" / "a.jsonl").write_text(json.dumps({"text": TEXTS[0]}))
    few = recipe(tmp_path / "data", source, tokens="auto", global_batch_tokens=2048 * 4)
    assert "less than one batch of 8,192 with mixture.max_epochs 4; add documents" in told_of_tokens(
        few, only_problem=True
    )


@pytest.mark.parametrize("width", ["<u2", "<u4"])
def test_the_tokens_of_shards_are_counted_whatever_their_width(width, tmp_path):
    np.arange(3200, dtype=width).tofile(tmp_path / "a.ds")
    np.array([3200], "<u8").tofile(tmp_path / "a.ds.index")
    (tmp_path / "tokenizer.json").write_text("x" * 10**6)
    files = [str(tmp_path / name) for name in ("a.ds", "a.ds.index", "tokenizer.json")]
    assert text_bytes(files, "shards", "text") == 4 * 3200


def test_nothing_is_said_of_documents_that_are_not_here(tmp_path):
    assert told_of_tokens(load_recipe("kitchen")) == ""
    assert told_of_tokens(recipe(tmp_path / "data", "jsonl", tokens="auto")) == ""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.parquet").write_bytes(b"damaged")
    assert told_of_tokens(recipe(tmp_path / "data", "parquet", tokens="auto")) == ""
