"""A reader of archives or rows from the user's own environment: its records become documents as any others."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.data import chain
from tests.training.data.extract.test_extract import PAGE, quarantined
from training.contract.artifact import find
from training.contract.parts.outside import PartFailed
from training.contract.records import RecipeError, read_record
from training.data.crawl.crawl import source_files
from training.data.crawl.settings import SnapshotRecipe
from training.data.extract.settings import ExtractRecipe
from training.data.sections import with_parts

pytestmark = pytest.mark.usefixtures("examples")


@pytest.fixture
def pages(tmp_path):
    """Two zip files: one has three pages and a damaged one, the other has a page that is too large."""
    folder = tmp_path / "saved"
    folder.mkdir()
    with zipfile.ZipFile(folder / "a.zip", "w") as first:
        first.writestr("1.html", PAGE)
        first.writestr("2.html", PAGE.replace(b"</p>", b"</p><p>More words.</p>"))
        first.writestr("3.html", b"")
        first.writestr("4.html", b"<html>damaged</html>")
    whole = (folder / "a.zip").read_bytes()
    (folder / "a.zip").write_bytes(whole.replace(b"<html>damaged", b"<html>DAMAGED", 1))
    with zipfile.ZipFile(folder / "b.zip", "w") as second:
        second.writestr("1.html", PAGE + b"x" * 20_000)
    (folder / "notes.md").write_text("not a page")
    return folder


def snapshot_of(folder: Path, place: str, *, archives: str = "copied", **settings) -> SnapshotRecipe:
    data = {"name": "s", "source": "mine", "paths": [str(folder)], "archives": archives}
    return read_record(SnapshotRecipe, data | {"parts": {"mine": {"from": place, **settings}}}, where="snapshots.0")


def extracted(root: Path, snapshot: SnapshotRecipe, **options):
    """Run crawl and extraction with the settings that their assets give them."""
    settings = {"snapshot": snapshot.without_settings(), "files": source_files(snapshot)}
    crawled = chain.run(root, "crawl", "crawl_archives", "tiny@s", settings)
    settings = ExtractRecipe(extractor="resiliparse", max_html_bytes=10_000)
    asked = with_parts({"extract": settings, "reader": snapshot.reader})
    return crawled, chain.run(root, "extract", "extracted_documents", "tiny@s", asked, [crawled], **options)


@pytest.mark.parametrize("archives", ["copied", "referenced"])
def test_pages_that_a_reader_finds_are_extracted_and_accounted(tmp_path, pages, archives):
    _, made = extracted(tmp_path, snapshot_of(pages, "zipped_pages:reader", archives=archives, base="https://mine/"))
    rows = chain.rows(made)
    assert [row["url"] for row in rows] == ["https://mine/1.html", "https://mine/2.html"]
    assert [row["id"] for row in rows] == ["s/a.zip/000000000000", "s/a.zip/000000000001"] and "More words." in rows[1][
        "text"
    ]
    (line,) = quarantined(made)
    assert (line["reason"], line["url"]) == ("mine:bad_checksum", "https://mine/4.html")
    counts = find(Path(made.path)).record["counts"]
    assert counts == {
        "in": 5,
        "kept": 2,
        "dropped": {"empty": 1, "too_large": 1},
        "quarantined": {"mine:bad_checksum": 1},
    }


def test_a_setting_of_a_reader_changes_the_extraction_alone(tmp_path, pages):
    first, one = extracted(tmp_path, snapshot_of(pages, "zipped_pages:reader"))
    second, other = extracted(tmp_path, snapshot_of(pages, "zipped_pages:reader", base="https://other/"))
    assert first == second and one.fingerprint != other.fingerprint


ROWS = """
from training.data.crawl.reader import Reader
def rows(path, settings):
    for n, line in enumerate(path.read_text().splitlines()):
        {does}
        yield {{"text": line, "title": "Line " + str(n)}}
reader = Reader(rows=rows, suffixes=(".log",))
"""


@pytest.mark.parametrize(
    ("does", "problem"),
    [
        ("1 / (1 - n)", r"failed in a\.log at record 1: ZeroDivisionError"),
        ("yield line", r"gave 'one' as record 0 of a\.log; it must be a mapping with text, html or damaged"),
        ("yield {'body': line}", r"gave \{'body': 'one'\} as record 0"),
        ("open(path.parents[3] / 'stray', 'w')", r"writes outside the folder of its job: .*/stray"),
        ("import time; time.sleep(3600)", r"did not return within 1 s"),
    ],
)
def test_what_fails_in_a_reader_is_told_under_its_name(tmp_path, write, does, problem):
    module = write(ROWS.format(does=does))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.log").write_text("one\ntwo\n")
    seconds = 1.0 if "did not return" in problem else 1800.0  # a busy machine may take a second for a call that ends
    with pytest.raises(PartFailed, match=f"reader mine {problem}"):
        extracted(tmp_path, snapshot_of(tmp_path / "in", f"{module}:reader"), hang_seconds=seconds)


def test_rows_of_text_are_taken_as_they_are_and_others_are_quarantined(tmp_path, write):
    module = write(ROWS.format(does="yield {'text': None}"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.log").write_text("one\ntwo\n")
    _, made = extracted(tmp_path, snapshot_of(tmp_path / "in", f"{module}:reader"))
    assert [(row["text"], row["title"]) for row in chain.rows(made)] == [("one", "Line 0"), ("two", "Line 1")]
    assert find(Path(made.path)).record["counts"]["quarantined"] == {"missing_text": 2}


def test_a_snapshot_of_a_reader_needs_paths(tmp_path):
    with pytest.raises(RecipeError, match=r"snapshots\.s\.paths: empty"):
        replace(snapshot_of(tmp_path, "zipped_pages:reader"), paths=())
