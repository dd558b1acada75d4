"""Lines and substrings that repeat are cut out of the documents that stay."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from tests.training.data import chain
from tests.training.data.dedup.test_dedup import deduplicated
from training.contract.job import InputArtifact
from training.contract.records import RecipeError
from training.data.dedup import edits, substrings
from training.data.dedup.settings import DedupRecipe


def kept_texts(item: InputArtifact) -> list[str]:
    return [row["text"] for row in chain.rows(item)]


def made(root: Path, files: list[list[str]], **settings) -> InputArtifact:
    return deduplicated(root, {"one": files}, DedupRecipe(**settings))[0]


FOOTER = "All rights reserved; see our terms of use."
PAGES = [f"page {number} speaks of {thing}\n{FOOTER}" for number, thing in enumerate(("bread", "soup", "salt"))]


def test_a_line_goes_when_it_occurs_more_often_than_allowed(tmp_path):
    assert kept_texts(made(tmp_path / "a", [PAGES], max_line_copies=3)) == PAGES
    cut = made(tmp_path / "b", [PAGES], max_line_copies=2)
    assert kept_texts(cut) == [page.split("\n")[0] for page in PAGES]
    metrics = cut.record()["metrics"]
    assert metrics["removed_lines"] == 3 and metrics["removed_line_bytes"] == 3 * len(FOOTER)


def test_lines_are_compared_by_their_words(tmp_path):
    pages = ["one\nAll  RIGHTS reserved.", "two\n- all rights reserved -", "three\nreserved all rights"]
    texts = kept_texts(made(tmp_path, [pages], max_line_copies=1))
    assert texts == ["one", "two", "three\nreserved all rights"]


def test_a_document_of_repeated_lines_alone_is_dropped_with_the_text_it_had(tmp_path):
    item = made(tmp_path, [[*PAGES, FOOTER + "\n\n" + FOOTER]], max_line_copies=2)
    (row,) = chain.rows(item, "dropped")
    assert (row["reason"], row["duplicate_of"], row["similarity"]) == ("repeated_lines", None, None)
    assert row["text"] == FOOTER + "\n\n" + FOOTER
    assert item.record()["counts"] == {"in": 4, "kept": 3, "dropped": {"repeated_lines": 1}, "quarantined": {}}


def test_a_paragraph_may_repeat_its_lines_but_not_itself(tmp_path):
    pages = [f"head {n}\n\nshared first\nshared second\n\nend {n}\nshared first" for n in ("a", "b", "c")]
    texts = kept_texts(made(tmp_path, [pages], max_line_copies=2, line_unit="paragraph"))
    assert texts == [f"head {n}\nend {n}\nshared first" for n in ("a", "b", "c")]


def test_removed_documents_are_not_counted_and_groups_are_counted_apart(tmp_path):
    pages = [PAGES[0], PAGES[0], PAGES[1], PAGES[2]]
    assert kept_texts(made(tmp_path / "a", [pages], max_line_copies=3)) == PAGES
    texts = kept_texts(made(tmp_path / "b", [pages[1:]], max_line_copies=1, group_documents=2))
    assert texts == [PAGES[0].split("\n")[0], PAGES[1].split("\n")[0], PAGES[2]]


LONG = "a sentence of some length that was copied, with ümläuts at its end: äöü"


def test_a_substring_goes_where_it_occurred_before_and_whole_characters_stay(tmp_path):
    pages = [f"first {LONG} tail", f"second words {LONG} other", f"third ö {LONG[10:]}"]
    item = made(tmp_path, [pages], min_substring_bytes=40)
    # The spaces round the sentence belong to the second one's copied run; the third one's begins at the tenth letter.
    assert kept_texts(item) == [pages[0], "second words\nother", "third ö "]
    assert item.record()["metrics"]["removed_substring_bytes"] == 2 * len(LONG.encode()) - 10 + 2


def test_lines_go_before_substrings_are_compared(tmp_path):
    both = {"max_line_copies": 2, "min_substring_bytes": 20}
    texts = kept_texts(made(tmp_path, [PAGES], **both))
    assert texts == [page.split("\n")[0] for page in PAGES]


def test_a_document_that_repeats_another_in_full_is_dropped(tmp_path):
    pages = [f"{' '.join(f'w{n}' for n in range(20))} {LONG}", LONG]
    item = made(tmp_path, [pages], min_substring_bytes=40)
    assert [row["reason"] for row in chain.rows(item, "dropped")] == ["repeated_substrings"]


def test_cuts_do_not_depend_on_how_documents_lie_in_files(tmp_path):
    generator = random.Random(0)
    lines = [" ".join(generator.choices("bread soup salt oil flour".split(), k=6)) for _ in range(20)]
    pages = ["\n".join(generator.choices(lines, k=5)) for _ in range(30)]
    found = []
    for number, cuts in enumerate(([0, 30], [0, 7, 8, 30])):
        rows = [chain.document("one", "f", place, page) for place, page in enumerate(pages)]
        files = [rows[start:end] for start, end in itertools.pairwise(cuts)]
        recipe = DedupRecipe(max_line_copies=9, min_substring_bytes=30)
        source = chain.documents_of(tmp_path / str(number), "one", files)
        inputs = [source]
        for stage, asset in (("sign", "document_signatures"), ("dedup", "deduplicated_documents")):
            inputs.append(chain.run(tmp_path / str(number), stage, asset, "tiny@one", {"dedup": recipe}, inputs[:2]))
        found.append([(row["id"], row["text"]) for row in chain.rows(inputs[-1])])
    assert found[0] == found[1] and any(len(text) < 60 for _, text in found[0])


def laid_out(texts: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)])


@pytest.mark.parametrize("first_too", [False, True])
def test_compiled_and_plain_ways_cover_the_same_bytes(first_too):
    generator = random.Random(0)
    for trial in range(120):
        letters = b"ab" if trial % 3 == 0 else b"abcdefgh"
        base = bytes(generator.choices(letters, k=200))
        texts = [b"a" * 100, b"ab" * 50] if trial % 5 == 0 else []
        for _ in range(generator.randrange(1, 8)):
            start = generator.randrange(200)
            text = bytes(generator.choices(letters, k=generator.randrange(60)))
            texts.append(text + base[start : start + generator.randrange(80)] + text[: generator.randrange(30)])
        length = generator.choice([1, 5, 10, 11, 20, 31])
        laid = laid_out(texts)
        plain = substrings.repeats_plainly(*laid, length, first_too=first_too)
        assert np.array_equal(substrings.repeats(*laid, length, first_too=first_too), plain)


def test_characters_that_are_covered_in_part_stay_whole():
    data = np.frombuffer("aäbö".encode(), np.uint8)
    covered = np.array([0, 1, 0, 1, 1, 1], np.bool_)
    assert edits.whole_characters(data, covered).tolist() == [0, 0, 0, 1, 1, 1]


def test_limits_below_zero_are_refused():
    with pytest.raises(RecipeError, match="max_line_copies=-1"):
        DedupRecipe(max_line_copies=-1)
