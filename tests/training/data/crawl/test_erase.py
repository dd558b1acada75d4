"""Single records of an archive are overwritten, and every other record keeps its bytes and its offset."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.training.data import chain
from tests.training.data.crawl.test_warc import FORMS, RECORDS
from tests.training.data.extract.test_extract import response
from training.artifact import sha256_of
from training.data.crawl.crawl import source_files
from training.data.crawl.erase import GONE, MARK, overwrite_records
from training.data.crawl.settings import SnapshotRecipe
from training.data.crawl.warc import Record, read_warc
from training.data.extract.settings import ExtractRecipe
from training.job import InputArtifact
from training.provenance.erase import Withdrawn, erase_archives

CANNOT = ("gzip in blocks", "lz4 by record", *(form for form in FORMS if "dictionary" in form))


def records_in(path: Path) -> list[Record]:
    return [one for one in read_warc(path, max_content_bytes=1 << 20) if isinstance(one, Record)]


def overwritten(path: Path, offsets: list[int]) -> tuple[int, list[int], Path]:
    target = path.with_name("erased.warc")
    with open(target, "w+b") as out:
        done, failed = overwrite_records(path, offsets, out)
    return done, failed, target


@pytest.mark.parametrize("form", FORMS)
def test_a_record_is_overwritten_and_the_others_stay_where_they_were(tmp_path, form):
    path = tmp_path / "a.warc"
    path.write_bytes(FORMS[form](RECORDS))
    before = records_in(path)
    wanted = [before[7].offset, before[19].offset]
    done, failed, target = overwritten(path, wanted)
    after = records_in(target)
    if form in CANNOT:
        assert (done, failed) == (0, wanted) and [one.content for one in after] == [one.content for one in before]
        return
    assert (done, failed) == (2, [])
    assert [one.offset for one in after] == [one.offset for one in before]
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        assert new.content.strip() == (GONE.strip() if number in (7, 19) else old.content)
    assert form.endswith("whole") or target.stat().st_size == path.stat().st_size
    assert before[7].content[:100] not in target.read_bytes()
    assert overwritten(target.rename(path), wanted)[:2] == (0, [])  # a second time nothing is left to do


def test_the_extraction_of_an_erased_archive_is_that_of_the_original_under_the_same_list(tmp_path):
    pages = [response(str(number), body) for number, body in enumerate(BODIES)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.warc.gz").write_bytes(b"".join(pages))
    snapshot = SnapshotRecipe(name="one", source="warc", label="web", paths=(str(tmp_path / "data"),))
    settings = {"snapshot": snapshot, "files": source_files(snapshot)}
    crawl = chain.run(tmp_path, "crawl", "crawl_archives", "r@one", settings, [])
    withdrawn = f"one/a.warc.gz/{len(pages[0]):012d}"
    (tmp_path / "list.txt").write_text(f"{withdrawn}\tasked\n")
    lists = {"extract": ExtractRecipe(takedown=(str(tmp_path / "list.txt"),))}

    def extracted(item: InputArtifact) -> str:
        shutil.rmtree(tmp_path / "extracted_documents", ignore_errors=True)  # so that no rank is taken over
        return chain.run(tmp_path, "extract", "extracted_documents", "r@one", lists, [item]).digest

    original = extracted(crawl)
    archive = Path(crawl.path, "archives/a.warc.gz")
    before = sha256_of(archive)
    gone = Withdrawn(takedown=1, ids=frozenset({withdrawn}))
    assert erase_archives(Path(crawl.path), gone, gone.ids).records == 1
    assert sha256_of(archive) != before and MARK in b"".join(
        one.buffer for one in records_in(archive) if one.offset == len(pages[0])
    )
    assert extracted(crawl) == original


BODIES = [f"<html><body><p>{f'The dough rests in bowl {n}. ' * 9}</p></body></html>".encode() for n in range(4)]
