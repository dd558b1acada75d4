"""The parts of the proofs on the real crawl that need no model: a planted item, and checks that can fail."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator

from benchmarks import proofs
from benchmarks.proofs import Place, Proof, decoded, flip, members, of_new_snapshot, plant, state_of_file
from tests.own_pages import page, write_warc

ITEM = "Which of these planted words is a question? The last one."


@pytest.fixture
def archive(tmp_path) -> Path:
    write_warc(tmp_path / "own.warc.gz", pages=5)
    return tmp_path / "own.warc.gz"


def test_an_item_is_planted_into_one_record_and_all_others_stay(archive):
    before, content = members(archive), archive.read_bytes()
    offset = plant(archive, "https://harbours.example/3", ITEM)
    after = members(archive)
    assert [one.url for one in after] == [one.url for one in before]
    assert offset == next(one.start for one in before if one.url.endswith("/3"))
    for old, new in zip(before, after, strict=True):
        same = archive.read_bytes()[new.start : new.stop] == content[old.start : old.stop]
        assert same == (new.start != offset)
    with archive.open("rb") as stream:
        stream.seek(offset)
        record = next(iter(ArchiveIterator(stream, parse_http=True)))
        body = record.reader.read().decode()
    assert ITEM in body and body.replace(f"\n<p>{ITEM}</p>\n", "") == page(3)
    assert int(record.http_headers["Content-Length"]) == len(body.encode())


def test_a_body_in_chunks_and_packed_is_decoded():
    packed = gzip.compress(b"<p>text</p>")
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (packed[:7], packed[7:])) + b"0\r\n\r\n"
    assert decoded({"transfer-encoding": "chunked", "content-encoding": "gzip"}, chunks) == b"<p>text</p>"
    assert decoded({}, b"<p>text</p>") == b"<p>text</p>"


def test_a_control_that_is_not_noticed_is_a_problem():
    proof = Proof()
    proof.control("a changed byte", is_noticed=True)
    proof.same("steps", [1, 2], [1, 2])
    assert (proof.controls, proof.problems) == (1, [])
    proof.control("a changed byte", is_noticed=False)
    proof.same("steps", [1, 2], [1, 3])
    proof.check(0, "no step reads the page")
    wanted = ["control: a changed byte was not noticed", "steps: [1, 2], not [1, 3]", "no step reads the page"]
    assert proof.problems == wanted


def test_a_changed_file_has_another_state(archive):
    before = state_of_file(archive)
    flip(archive)
    assert state_of_file(archive) != before and state_of_file(archive.with_name("none")) == (0, 0, 0)


def test_what_depends_on_a_new_snapshot_is_told_by_the_graph():
    cells = {
        "extracted_documents": {"r@snapshot-1": {}, "r@snapshot-2": {}},
        "tokenizer": {"r": {}},
        "benchmark_index": {"r": {}},
        "training_plan": {"r": {}},
    }
    assert of_new_snapshot(cells) == {("extracted_documents", "r@snapshot-2"), ("training_plan", "r")}


def test_the_recipes_are_valid(tmp_path, monkeypatch):
    data = tmp_path / "data"
    for number in (1, 2):
        (data / "crawl" / f"snapshot-{number}").mkdir(parents=True)
        write_warc(data / "crawl" / f"snapshot-{number}" / "web-01-00000.warc.gz", pages=2)
    monkeypatch.setenv("PEDIGREE_DATA", str(data))
    place = Place(tmp_path / "place", data)
    proofs.prepare(place, None)
    (place.folder / "recipes").mkdir(exist_ok=True)
    recipe = proofs.load_recipe(proofs.TWO, (place.folder / "recipes", proofs.SHIPPED))
    assert [one.name for one in recipe.snapshots] == ["pages", "snapshot-1", "snapshot-2"]
    assert recipe.decontaminate.action == "off" and recipe.evaluation.contamination == "after"
    assert set(recipe.mixture.weights) == {"pages", "web"} and not recipe.sft.data
    assert proofs.without_pages(place, ["harbours.example", "nowhere.example", "example"]) == ["nowhere.example"]
