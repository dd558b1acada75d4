"""The tokenizer: every text comes back, special tokens stay outside of text, training depends on nothing else."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.training.data import chain
from training.contract.artifact import check_input
from training.contract.job import DataError, InputArtifact, RefusedInput
from training.contract.records import RecipeError
from training.data import bottom_k_sample as lowest_module
from training.data.tokens import tokenizer as stage
from training.data.tokens.tokenizer_settings import TokenizerRecipe

RECIPE = TokenizerRecipe(snapshots=("one",), vocabulary=400, min_bytes_per_token=1.0)
WORDS = "the oven bread flour water salt bake knead warm hour until golden brown crust 180 25 minutes".split()


def texts(number: int, seed: int = 0) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=30)) + "." for _ in range(number)]


def made(root: Path, files: list[list[str]], recipe: TokenizerRecipe = RECIPE) -> InputArtifact:
    source = chain.documents(root, "one", files, asset="decontaminated_documents")
    return chain.run(root, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [source])


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> InputArtifact:
    return made(tmp_path_factory.mktemp("tokenizer"), [texts(60)])


def test_special_tokens_have_the_first_ids_and_never_come_from_text(trained):
    plain = stage.load_tokenizer(trained.file("tokenizer.json"))
    assert [plain.token_to_id(token) for token in RECIPE.special_tokens] == list(range(6))
    for text in stage.look_alikes(RECIPE.special_tokens):
        ids = plain.encode(text).ids
        assert min(ids) >= 6 and plain.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("text", [*stage.HARD_STRINGS, stage.every_byte()], ids=range(len(stage.HARD_STRINGS) + 1))
def test_a_text_comes_back_as_it_was(trained, text):
    plain = stage.load_tokenizer(trained.file("tokenizer.json"))
    assert plain.decode(plain.encode(text).ids, skip_special_tokens=False) == text


def test_the_probe_text_has_every_byte_that_utf8_can_have():
    # C0, C1 and F5 to FF never occur in UTF-8.
    assert set(range(256)) - set(stage.every_byte().encode()) == {0xC0, 0xC1, *range(0xF5, 0x100)}


def test_digits_are_tokens_of_their_own(trained):
    plain = stage.load_tokenizer(trained.file("tokenizer.json"))
    assert len(plain.encode("180180").ids) == 6


@pytest.mark.parametrize("model", ["bpe", "unigram"])
def test_how_documents_lie_in_files_changes_nothing(tmp_path, model):
    recipe = replace(RECIPE, model=model)
    rows = [chain.document("one", "f", i, text) for i, text in enumerate(texts(40))]
    digests = set()
    for number, cut in enumerate((0, 7, 39)):
        root = tmp_path / str(number)
        source = chain.documents_of(root, "one", [rows[:cut], rows[cut:]], asset="decontaminated_documents")
        digests.add(chain.run(root, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [source]).digest)
    assert len(digests) == 1


def test_the_sample_is_as_large_as_asked_and_leaves_the_held_out_documents_alone(tmp_path):
    rows = [chain.document("one", "f", i, text) for i, text in enumerate(texts(200))]
    source = chain.documents_of(tmp_path, "one", [rows], asset="decontaminated_documents")
    files = [source.file("documents/00000.parquet")]
    for asked in (2000, 10_000, 10**9):
        recipe = TokenizerRecipe(snapshots=("one",), vocabulary=400, sample_bytes=asked)
        sample = stage.TokenizerSample.choose(files, recipe)
        training, held_out = list(sample.training_texts()), [row["text"] for row in sample.held_out_rows()]
        assert sum(len(text) for text in training) == sample.train_bytes <= asked
        assert sample.train_bytes > min(asked, 20_000) * 0.85
        assert len(held_out) == 4 and not set(held_out) & set(training)


@pytest.mark.parametrize("number", [1, 2, 30, 400])
@pytest.mark.parametrize("most_bytes", [0, 300, 10**9])
def test_the_lowest_hashes_are_those_of_all_documents_sorted(monkeypatch, number, most_bytes):
    monkeypatch.setattr(lowest_module, "SORTED_AT_ONCE", 7)
    generator = np.random.default_rng(number)
    hashes, sizes = generator.integers(2**64, size=number, dtype=np.uint64), generator.integers(50, size=number)
    lowest, held = lowest_module.Lowest(most_bytes), []
    for start in range(0, number, 10):
        lowest.add(hashes[start : start + 10], sizes[start : start + 10])
        held.append(lowest.held)
    order = np.argsort(hashes)
    fitting = int(np.searchsorted(np.cumsum(sizes[order]), most_bytes, "right"))
    assert lowest.fitting() == fitting
    assert [list(column) for column in lowest.documents()] == [list(c[order][: fitting + 1]) for c in (hashes, sizes)]
    assert most_bytes > 300 or max(held) <= 2 * (fitting + 1) + 60


def test_unigram_spells_a_word_by_its_most_probable_pieces_and_gives_every_text_back(tmp_path):
    item = made(tmp_path, [texts(60)], replace(RECIPE, model="unigram", special_tokens=("<|end|>", "bread")))
    assert all(gate["passed"] for gate in item.record()["gates"])
    plain = stage.load_tokenizer(item.file("tokenizer.json"))
    for text in [*stage.HARD_STRINGS, "a" * 5000, stage.every_byte(), " bread bread"]:
        assert plain.decode(plain.encode(text).ids, skip_special_tokens=False) == text
    spelled = stage.token_bytes(plain)
    scores = {spelled[n]: score for n, (_, score) in enumerate(json.loads(plain.to_str())["model"]["vocab"]) if n > 1}
    for word in ("bread", " bread", " breadwater", " ungolden", "crusté"):
        content = word.encode()
        best = [0.0]  # of the first bytes, by all their last pieces
        for end in range(1, len(content) + 1):
            pieces = ((start, content[start:end]) for start in range(end))
            best.append(max(best[start] + scores[piece] for start, piece in pieces if piece in scores))
        ids = plain.encode(word).ids
        assert min(ids) > 1 and sum(scores[spelled[n]] for n in ids) == pytest.approx(best[-1])


def test_wordpiece_takes_the_longest_piece_and_gives_every_text_back(tmp_path):
    recipe = TokenizerRecipe(snapshots=("one",), vocabulary=400, min_bytes_per_token=1.0, model="wordpiece")
    item = made(tmp_path, [texts(60)], recipe)
    assert all(gate["passed"] for gate in item.record()["gates"])
    plain = stage.load_tokenizer(item.file("tokenizer.json"))
    for text in [*stage.HARD_STRINGS, "a" * 5000, "unheard-of " * 300, stage.every_byte()]:
        assert plain.decode(plain.encode(text).ids, skip_special_tokens=False) == text
    spelled = set(stage.token_bytes(plain))
    rest = b" breadwater"
    for number in plain.encode(" breadwater").ids:
        longest = max((rest[:end] for end in range(1, len(rest) + 1) if rest[:end] in spelled), key=len)
        assert stage.token_bytes(plain)[number] == longest
        rest = rest[len(longest) :]


def test_fertility_is_told_by_language_and_source_beside_a_reference(tmp_path, trained):
    words = texts(200)
    rows = [
        chain.document("one", "f", i, text, language=("en", "de")[i % 2], source=("web", "code")[i % 4 == 0])
        for i, text in enumerate(words)
    ]
    source = chain.documents_of(tmp_path, "one", [rows], asset="decontaminated_documents")
    recipe = TokenizerRecipe(
        snapshots=("one",), vocabulary=300, min_bytes_per_token=1.0, reference=str(trained.file("tokenizer.json"))
    )
    item = chain.run(tmp_path, "tokenizer", "tokenizer", "tiny", {"tokenizer": recipe}, [source])
    table = {(entry["of"], entry["name"]): entry for entry in item.record()["notes"]["fertility"]}
    assert {"all", "language", "source"} == {kind for kind, _ in table}
    languages = [entry["documents"] for (kind, _), entry in table.items() if kind == "language"]
    assert sum(languages) == table["all", ""]["documents"] == 4
    for entry in table.values():  # more words in the vocabulary, fewer tokens
        assert entry["reference"]["bytes_per_token"] > entry["bytes_per_token"] > 1


@pytest.mark.parametrize("content", ["[1]", "{}"])
def test_a_reference_that_is_no_tokenizer_is_named(tmp_path, content):
    (tmp_path / "other.json").write_text(content)
    recipe = TokenizerRecipe(snapshots=("one",), vocabulary=400, reference=str(tmp_path / "other.json"))
    with pytest.raises(DataError, match=r"other\.json"):
        made(tmp_path, [texts(20)], recipe)


def test_a_single_document_trains_and_measures(tmp_path):
    assert made(tmp_path, [texts(1)]).record()["metrics"]["held_out_documents"] == 1


def test_no_document_is_an_error_that_says_so(tmp_path):
    with pytest.raises(DataError, match=r"tokenizer\.snapshots"):
        made(tmp_path, [[]])


def test_a_snapshot_that_is_not_an_input_is_named(tmp_path):
    with pytest.raises(DataError, match=r"'two' .* one"):
        made(tmp_path, [["text"]], TokenizerRecipe(snapshots=("two",), vocabulary=400))


def test_fertility_below_the_gate_is_refused_by_the_next_stage(tmp_path):
    item = made(tmp_path, [texts(60)], TokenizerRecipe(snapshots=("one",), vocabulary=262, min_bytes_per_token=1.5))
    gates = {gate["name"]: gate for gate in item.record()["gates"]}
    assert gates["all_bytes"]["passed"] and gates["round_trip"]["passed"] and not gates["fertility"]["passed"]
    with pytest.raises(RefusedInput, match="gate fertility"):
        check_input(item)


def test_a_tokenizer_that_lacks_a_byte_or_changes_text_does_not_pass(trained):
    content = json.loads(stage.plain_text_json(trained.file("tokenizer.json")))
    content["model"]["vocab"]["changed"] = content["model"]["vocab"].pop("!")
    lacking = Tokenizer.from_str(json.dumps(content))
    assert not stage._all_bytes_gate(lacking).passed
    assert not stage._round_trip_gate(lacking, ["a!b"], RECIPE, is_adopted=False).passed


def test_a_special_token_in_text_does_not_pass(trained):
    taking = Tokenizer.from_file(str(trained.file("tokenizer.json")))
    gate = stage._round_trip_gate(taking, ["text"], RECIPE, is_adopted=False)
    assert not gate.passed and gate.evidence["with_special_tokens"]


def test_one_special_token_or_a_repeated_one_is_refused():
    for tokens in (("<|end|>",), ("<|end|>", "<|end|>")):
        with pytest.raises(RecipeError, match="at least two"):
            TokenizerRecipe(snapshots=("one",), vocabulary=400, special_tokens=tokens)


def test_a_file_that_is_no_tokenizer_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text("[1]")
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        stage.load_tokenizer(tmp_path / "tokenizer.json")


def test_transformers_loads_it_with_its_special_tokens(trained):
    transformers = pytest.importorskip("transformers")
    loaded = transformers.AutoTokenizer.from_pretrained(trained.path)
    assert (loaded.eos_token_id, loaded.bos_token_id, loaded.pad_token_id) == (0, 0, 1)
    plain = stage.load_tokenizer(trained.file("tokenizer.json"))
    assert loaded("bake until golden")["input_ids"] == plain.encode("bake until golden").ids
    assert loaded.decode(loaded("bake 's .")["input_ids"]) == "bake 's ."
