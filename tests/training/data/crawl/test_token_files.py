"""Token shards of this and of other programs are read as documents, with the tokenizer that made them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.own_model import write_tokenizer
from tests.own_pages import sentences
from tests.training.data import chain
from tests.training.data.crawl.test_erase import erased_at_once
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.data.crawl.crawl import PROVENANCE_FILE, source_files
from training.data.crawl.settings import SnapshotRecipe
from training.data.crawl.token_files import open_token_file, read_spelling
from training.data.documents import document_id
from training.data.extract.settings import ExtractRecipe
from training.data.tokens.tokenize_settings import ShardsRecipe

TEXTS = [*(sentences(f"shard {number}", 4) for number in range(60)), "naïve 日本 \N{THUMBS UP SIGN}", "a"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return folder


def datatrove_documents():
    from datatrove.data import Document

    return [Document(text=text, id=str(number)) for number, text in enumerate(TEXTS)]


def write_datatrove(folder: Path, tokenizer: Path) -> None:
    from datatrove.pipeline.tokens import DocumentTokenizer

    step = DocumentTokenizer(
        str(folder), tokenizer_name_or_path=str(tokenizer / "tokenizer.json"), eos_token="</s>", shuffle_documents=False
    )
    step.run(iter(datatrove_documents()), 0, 1)


def write_megatron(folder: Path, tokenizer: Path) -> None:
    from datatrove.pipeline.tokens import MegatronDocumentTokenizer

    step = MegatronDocumentTokenizer(
        str(folder), tokenizer_name_or_path=str(tokenizer / "tokenizer.json"), eos_token="</s>"
    )
    step.run(iter(datatrove_documents()), 0, 1)


WRITERS = {"datatrove": write_datatrove, "megatron": write_megatron}


@pytest.fixture(scope="module", params=list(WRITERS))
def shards(request, tmp_path_factory, tokenizer) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    WRITERS[request.param](folder, tokenizer)
    return folder


def snapshot_of(folder: Path, tokenizer: Path, **fields) -> SnapshotRecipe:
    return SnapshotRecipe(name="s", source="shards", paths=(str(folder),), tokenizer=str(tokenizer), **fields)


def extracted(root: Path, snapshot: SnapshotRecipe):
    settings = {"snapshot": snapshot, "files": source_files(snapshot)}
    archives = chain.run(root, "crawl", "crawl_archives", "tiny@s", settings)
    return archives, chain.run(root, "extract", "extracted_documents", "tiny@s", {"extract": {}}, [archives])


def test_the_documents_of_other_programs_shards_come_back_and_are_counted(tmp_path, shards, tokenizer):
    archives, documents = extracted(tmp_path, snapshot_of(shards, tokenizer))
    assert [row["text"] for row in chain.rows(documents)] == TEXTS
    assert documents.record()["counts"]["in"] == len(TEXTS)
    gate = next(one for one in documents.record()["gates"] if one["name"] == "tokens_return")
    assert gate["passed"] and gate["evidence"]["documents"] == 51 and gate["evidence"]["same_fraction"] == 1
    said = json.loads(archives.file(PROVENANCE_FILE).read_text())
    assert any("address" in one for one in said["not_known"])


def test_shards_of_this_project_bring_the_addresses_of_their_pages(tmp_path, tokenizer):
    made, vocabulary, rows = own_shards(tmp_path, tokenizer)
    place = snapshot_of(made.file("shards"), vocabulary.file("tokenizer.json"))
    archives, documents = extracted(tmp_path, place)
    assert [(row["text"], row["url"]) for row in chain.rows(documents)] == [(row["text"], row["url"]) for row in rows]
    assert not any("address" in one for one in json.loads(archives.file(PROVENANCE_FILE).read_text())["not_known"])
    again = chain.run(
        tmp_path, "tokenize", "token_shards", "tiny@s", {"shards": ShardsRecipe()},
        [moved(documents), vocabulary],
    )  # fmt: skip
    same = [item.file("shards/00000.bin").read_bytes() for item in (made, again)]
    assert same[0] == same[1]  # the tokens that the shards had


def test_a_changed_token_of_this_project_s_shards_is_noticed(tmp_path, tokenizer):
    made, vocabulary, _ = own_shards(tmp_path, tokenizer)
    shutil.copytree(made.file("shards"), tmp_path / "changed")
    tokens = np.memmap(tmp_path / "changed" / "00000.bin", "<u2", "r+")
    tokens[1] += 1
    tokens.flush()
    _, documents = extracted(tmp_path, snapshot_of(tmp_path / "changed", vocabulary.file("tokenizer.json")))
    assert documents.record()["counts"]["quarantined"] == {"wrong_digest": 1}


def own_shards(root: Path, tokenizer: Path):
    """Shards made by this project with an adopted tokenizer, that tokenizer, and the documents' rows."""
    rows = [chain.document("old", "file-0.warc.gz", 100 * place, text) for place, text in enumerate(TEXTS)]
    given = chain.documents_of(root, "old", [rows], asset="decontaminated_documents")
    vocabulary = adopted_tokenizer(root, tokenizer, given)
    settings = {"shards": ShardsRecipe()}
    return chain.run(root, "tokenize", "token_shards", "tiny@old", settings, [given, vocabulary]), vocabulary, rows


def moved(item):
    return replace(item, asset="decontaminated_documents")


def adopted_tokenizer(root: Path, tokenizer: Path, documents):
    from training.data.tokens.adopted_folder import tokenizer_digest
    from training.data.tokens.tokenizer_settings import TokenizerRecipe

    recipe = TokenizerRecipe(snapshots=("old",), vocabulary=406, min_bytes_per_token=1.0)
    adopted = {
        "name": "",
        "revision": "",
        "licence": "mit",
        "digest": tokenizer_digest(tokenizer),
        "path": str(tokenizer),
    }
    return chain.run(root, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe, "adopted": adopted}, [documents])


def test_only_a_folder_of_the_data_needs_the_variable_that_says_where_they_are(tokenizer, monkeypatch):
    from training.data.tokens.adopted_folder import folder_here

    monkeypatch.setenv("PEDIGREE_DATA", str(tokenizer.parent))
    assert folder_here(f"data://{tokenizer.name}", field="tokenizer") == tokenizer.resolve()
    monkeypatch.delenv("PEDIGREE_DATA")
    assert folder_here(f"data://{tokenizer.name}", field="tokenizer") is None
    assert folder_here(str(tokenizer), field="tokenizer") == tokenizer.resolve()


def test_a_tokenizer_is_adopted_without_a_model(tmp_path, tokenizer):
    rows = [[chain.document("old", "file-0.warc.gz", 100 * place, text) for place, text in enumerate(TEXTS)]]
    made = adopted_tokenizer(
        tmp_path, tokenizer, chain.documents_of(tmp_path, "old", rows, asset="decontaminated_documents")
    )
    assert all(gate["passed"] for gate in made.record()["gates"])
    before, after = (
        Tokenizer.from_file(str(path)) for path in (tokenizer / "tokenizer.json", made.file("tokenizer.json"))
    )
    assert [before.encode(text, add_special_tokens=False).ids for text in TEXTS] == [
        after.encode(text, add_special_tokens=False).ids for text in TEXTS
    ]
    said = json.loads(made.file("provenance.json").read_text())
    assert (said["name"], said["licence"]) == ("not stated", "mit") and said["not_known"] and said["changes"]


def test_the_wrong_tokenizer_is_noticed(tmp_path, shards, tokenizer):
    content = json.loads((tokenizer / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    long = sorted(token for token, number in vocabulary.items() if number > 300)
    vocabulary |= dict(zip(long, sorted(vocabulary[token] for token in long), strict=True))  # the ids in another order
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text(json.dumps(content))
    _, documents = extracted(tmp_path, snapshot_of(shards, other))
    gate = next(one for one in documents.record()["gates"] if one["name"] == "tokens_return")
    assert not gate["passed"] and gate["evidence"]["same_fraction"] < 0.5


def test_what_cannot_be_decoded_is_quarantined_with_the_reason(tmp_path, tokenizer):
    library = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    good = library.encode(TEXTS[0], add_special_tokens=False).ids
    documents = [
        good,
        [*good, 0, *good],
        [*good, 9999],
        library.encode("日", add_special_tokens=False).ids[:1],
        [*good, 1],
    ]
    np.array([one for ids in documents for one in ids], "<u2").tofile(tmp_path / "a.ds")
    np.cumsum([len(ids) for ids in documents]).astype("<u8").tofile(tmp_path / "a.ds.index")
    _, made = extracted(tmp_path / "root", snapshot_of(tmp_path / "a.ds", tokenizer))
    counts = made.record()["counts"]
    assert counts["kept"] == 2 and counts["quarantined"] == {"not_utf8": 1, "special_token": 1, "unknown_token": 1}


@pytest.mark.parametrize("kind", list(WRITERS))
def test_a_file_that_was_cut_off_or_has_nothing_beside_it_is_refused(tmp_path, tokenizer, kind):
    WRITERS[kind](tmp_path, tokenizer)
    file = next(path for path in tmp_path.iterdir() if path.suffix in (".bin", ".ds"))
    index = next(path for path in tmp_path.iterdir() if path.suffix in (".idx", ".index"))
    content = file.read_bytes()
    for broken in (content[:-2], content + b"\0\0"):
        file.write_bytes(broken)
        with pytest.raises(DataError, match=r"cut off|bytes"):
            open_token_file(file)
    file.write_bytes(content)
    index.write_bytes(index.read_bytes()[:-5])
    with pytest.raises(DataError, match="cut off"):
        open_token_file(file)
    index.unlink()
    with pytest.raises(DataError, match="which sa"):
        open_token_file(file)


def test_a_snapshot_of_shards_needs_its_tokenizer_and_no_other_has_one(tmp_path, tokenizer):
    with pytest.raises(RecipeError, match="tokenizer: empty"):
        SnapshotRecipe(name="s", source="shards", paths=("x",))
    with pytest.raises(RecipeError, match="tokenizer: without effect"):
        SnapshotRecipe(name="s", source="parquet", paths=("x",), tokenizer="y")
    with pytest.raises(RecipeError, match="copied"):
        snapshot_of(tmp_path, tokenizer, archives="referenced")
    content = json.loads((tokenizer / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"pre_tokenizer": None, "decoder": None}))
    with pytest.raises(DataError, match="not byte-level"):
        read_spelling(tmp_path / "tokenizer.json")


def test_moving_the_shards_changes_no_identity(tmp_path, shards, tokenizer):
    shutil.copytree(shards, tmp_path / "moved")
    assert source_files(snapshot_of(shards, tokenizer)) == source_files(snapshot_of(tmp_path / "moved", tokenizer))


@pytest.mark.parametrize("kind", ["datatrove", "megatron", "pedigree"])
def test_an_erased_document_is_gone_from_the_shard_and_the_extraction_stays_the_same(tmp_path, tokenizer, kind):
    place, spelled = tmp_path / "given", tokenizer
    if kind == "pedigree":
        made, vocabulary, _ = own_shards(tmp_path, tokenizer)
        place, spelled = made.file("shards"), vocabulary.file("tokenizer.json")
    else:
        WRITERS[kind](place, tokenizer)
    snapshot = snapshot_of(place, spelled)
    crawl = chain.run(
        tmp_path, "crawl", "crawl_archives", "tiny@s", {"snapshot": snapshot, "files": source_files(snapshot)}
    )
    archive = next(path for path in Path(crawl.path, "archives").iterdir() if path.suffix in (".bin", ".ds"))
    withdrawn = document_id("s", archive.name, 7)
    (tmp_path / "list.txt").write_text(f"{withdrawn}\tasked\n")
    lists = {"extract": ExtractRecipe(takedown=(str(tmp_path / "list.txt"),))}

    def extracted_again():
        shutil.rmtree(tmp_path / "extracted_documents", ignore_errors=True)  # so that no rank is reused
        return chain.run(tmp_path, "extract", "extracted_documents", "tiny@s", lists, [crawl])

    original, before = extracted_again().digest, list(open_token_file(archive).documents())
    gone = frozenset({withdrawn})
    assert erased_at_once(Path(crawl.path), gone).records == 1
    after = list(open_token_file(archive).documents())
    assert [one for number, one in enumerate(after) if number != 7] == before[:7] + before[8:]
    assert len(set(after[7].ids)) == 1 and len(after[7].ids) == len(before[7].ids) and not after[7].sha256
    assert extracted_again().digest == original
    assert erased_at_once(Path(crawl.path), gone).records == 0  # a second time nothing is left to do
