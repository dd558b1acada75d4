"""From any token to its page and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.training.data import chain
from training.data.tokens import provenance
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.data.tokens.tokenizer import load_tokenizer
from training.data.tokens.tokenizer_settings import TokenizerRecipe
from training.job import DataError, InputArtifact

TEXTS = [f"page {i} says bake the bread {'very ' * i}well" for i in range(12)]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[InputArtifact, InputArtifact, InputArtifact]:
    """Documents, tokenizer, shards (several, as each holds 100 tokens)."""
    root = tmp_path_factory.mktemp("shards")
    recipe = TokenizerRecipe(snapshots=("one",), vocabulary=300, min_bytes_per_token=1.0)
    source = chain.documents(root, "one", [TEXTS[:6], TEXTS[6:]], asset="decontaminated_documents")
    tokenizer = chain.run(root, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [source])
    settings = {"shards": ShardsRecipe(max_shard_tokens=100)}
    return source, tokenizer, chain.run(root, "tokenize", "token_shards", "tiny@one", settings, [source, tokenizer])


def test_every_document_is_found_by_url_and_its_tokens_are_its_own(made):
    source, tokenizer, shards = made
    plain = load_tokenizer(tokenizer.file("tokenizer.json"))
    for document in chain.rows(source):
        (found,) = provenance.rows(Path(shards.path), url=document["url"])
        tokens = np.fromfile(shards.file(f"shards/{found.shard}.bin"), "<u2")[found.start : found.start + found.length]
        assert plain.decode(tokens[:-1].tolist(), skip_special_tokens=False) == document["text"]
        assert found.document["id"] == document["id"]
        for offset in (found.start, found.start + found.length - 1):
            assert provenance.document_of(Path(shards.path), found.shard, offset)["id"] == document["id"]


def test_a_document_is_found_by_id_and_an_unknown_url_nowhere(made):
    source, _, shards = made
    wanted = chain.rows(source)[7]
    (found,) = provenance.rows(Path(shards.path), document_id=wanted["id"])
    assert found.document["url"] == wanted["url"]
    assert list(provenance.rows(Path(shards.path), url="https://nowhere.test/")) == []


def test_what_is_not_there_is_named(made):
    _, tokenizer, shards = made
    with pytest.raises(DataError, match="there is none at"):
        provenance.document_of(Path(shards.path), "00000", 10**6)
    with pytest.raises(DataError, match=r"'00099'.* 00000"):
        provenance.document_of(Path(shards.path), "00099", 0)
    with pytest.raises(DataError, match=r"shards\.json"):
        list(provenance.rows(Path(tokenizer.path), url="x"))
