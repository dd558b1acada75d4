"""Single records of an archive are overwritten, and every other record keeps its bytes and its offset."""

from __future__ import annotations

import gzip
import random
import shutil
from pathlib import Path

import pytest

from tests.training.data import chain
from tests.training.data.crawl.test_warc import FORMS, RECORDS
from tests.training.data.extract.test_extract import record, response
from training.contract.artifact import sha256_of
from training.contract.job import InputArtifact
from training.data.crawl.crawl import source_files
from training.data.crawl.erase import GONE, MARK, overwrite_records
from training.data.crawl.settings import SnapshotRecipe
from training.data.crawl.warc import Damage, Record, read_warc
from training.data.documents import read_lines
from training.data.extract.settings import ExtractRecipe
from training.provenance.contents import pieces_of
from training.provenance.erase import ErasedArchives, erase_archives
from training.provenance.swap import Swap

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


def erased_at_once(folder: Path, ids: frozenset[str]) -> ErasedArchives:
    with Swap(takedown=1, note=lambda files, records: None) as swap:
        told = erase_archives(folder, ids, swap)
        swap.commit()
    return told


def crawled(root: Path, pages: list[bytes]) -> InputArtifact:
    """An archive of these members, copied."""
    (root / "data").mkdir()
    (root / "data" / "a.warc.gz").write_bytes(b"".join(pages))
    snapshot = SnapshotRecipe(name="one", source="warc", label="web", paths=(str(root / "data"),))
    settings = {"snapshot": snapshot, "files": source_files(snapshot)}
    return chain.run(root, "crawl", "crawl_archives", "r@one", settings)


def test_the_extraction_of_an_erased_archive_is_that_of_the_original_under_the_same_list(tmp_path):
    pages = [response(str(number), body) for number, body in enumerate(BODIES)]
    crawl = crawled(tmp_path, pages)
    withdrawn = f"one/a.warc.gz/{len(pages[0]):012d}"
    (tmp_path / "list.txt").write_text(f"{withdrawn}\tasked\n")
    lists = {"extract": ExtractRecipe(takedown=(str(tmp_path / "list.txt"),))}

    def extracted(item: InputArtifact) -> str:
        shutil.rmtree(tmp_path / "extracted_documents", ignore_errors=True)  # so that no rank is reused
        return chain.run(tmp_path, "extract", "extracted_documents", "r@one", lists, [item]).digest

    original = extracted(crawl)
    archive = Path(crawl.path, "archives/a.warc.gz")
    before = sha256_of(archive)
    gone = frozenset({withdrawn})
    assert erased_at_once(Path(crawl.path), gone).records == 1
    assert sha256_of(archive) != before and MARK in b"".join(
        one.buffer for one in records_in(archive) if one.offset == len(pages[0])
    )
    assert extracted(crawl) == original


def with_damage() -> tuple[list[bytes], dict[int, str]]:
    """Return the members of an archive, and the reasons for quarantine of those that are damaged."""
    pages = [response(str(number), body) for number, body in enumerate(LONG)]
    pages[1] = pages[1][:-300] + b"\xff" * 40 + pages[1][-260:]
    plain = gzip.decompress(pages[2])
    pages[2] = gzip.compress(plain[: len(plain) // 2], mtime=0)
    pages[3] = record("response", "http://a.test/3", LONG[3])
    pages[5] = pages[5][:-200]
    return pages, {1: "damaged_compression", 2: "truncated", 3: "bad_http", 5: "truncated"}


def test_a_damaged_page_is_found_by_its_address_withdrawn_and_overwritten(tmp_path):
    pages, damaged = with_damage()
    starts = [len(b"".join(pages[:number])) for number in range(len(pages))]
    crawl = crawled(tmp_path, pages)
    archive = Path(crawl.path, "archives/a.warc.gz")
    (tmp_path / "list.txt").write_text("".join(f"=test,a)/{number}\tasked\n" for number in damaged))
    lists = {"extract": ExtractRecipe(takedown=(str(tmp_path / "list.txt"),))}

    def extracted(lists: dict[str, ExtractRecipe], *, anew: bool) -> InputArtifact:
        if anew:
            shutil.rmtree(tmp_path / "extracted_documents")
        return chain.run(tmp_path, "extract", "extracted_documents", "r@one", lists, [crawl])

    first = extracted({"extract": ExtractRecipe()}, anew=False)
    (lines,) = (list(read_lines(path)) for path in Path(first.path, "quarantine").iterdir())
    assert [(one["warc_offset"], one["reason"], one["url"]) for one in lines] == [
        (starts[number], reason, f"http://a.test/{number}") for number, reason in damaged.items()
    ]
    taken = extracted(lists, anew=False)
    assert taken.record()["reused_ranks"]["ranks"] == 1
    assert taken.record()["counts"]["dropped"] == {"takedown:asked": 4} and not taken.record()["counts"]["quarantined"]
    assert extracted(lists, anew=True).digest == taken.digest
    gone = frozenset(f"one/a.warc.gz/{starts[number]:012d}" for number in damaged)
    said = {number: " ".join(words_of(body)[3:20]) for number, body in enumerate(LONG)}
    assert said_in(archive, said) == set(said)
    told = erased_at_once(Path(crawl.path), gone)
    assert (told.records, told.unreachable) == (4, ())
    assert said_in(archive, said) == set(said) - set(damaged)
    assert [one.offset for one in records_in(archive)] == starts  # all can be read now
    assert extracted(lists, anew=True).digest == taken.digest


@pytest.mark.parametrize("form", [form for form in FORMS if form not in CANNOT and "whole" not in form])
@pytest.mark.parametrize("place", [7, 19])
def test_a_record_of_a_wrong_length_is_overwritten_and_no_other_one(tmp_path, form, place):
    longer = [*RECORDS]
    longer[place] = longer[place].replace(b"Content-Length: 800", b"Content-Length: 9000")
    path = tmp_path / "a.warc"
    path.write_bytes(FORMS[form](longer))
    before = list(read_warc(path, max_content_bytes=1 << 20))
    assert [isinstance(one, Damage) for one in before] == [number == place for number in range(20)]
    done, failed, target = overwritten(path, [before[place].offset])
    assert (done, failed) == (1, [])
    kept = [one.content for number, one in enumerate(before) if number != place]
    after = list(read_warc(target, max_content_bytes=1 << 20))
    assert [one.offset for one in after] == [one.offset for one in before]
    assert [one.content for number, one in enumerate(after) if number != place] == kept
    assert RECORDS[place][-300:-200] not in b"".join(texts_in(target))
    assert overwritten(target.rename(path), [before[place].offset])[:2] == (0, [])


def test_a_damaged_member_that_holds_more_records_is_not_overwritten(tmp_path):
    pages = [response(str(number), body) for number, body in enumerate(LONG)]
    both = gzip.compress(gzip.decompress(pages[1]) + gzip.decompress(pages[2]), mtime=0)
    path = tmp_path / "a.warc.gz"
    path.write_bytes(pages[0] + both[:-100] + pages[3])
    assert overwritten(path, [len(pages[0])])[:2] == (0, [len(pages[0])])


def test_a_record_of_several_members_is_not_overwritten_because_the_last_may_hold_another_one(tmp_path):
    head, tail = RECORDS[0][:400], RECORDS[0][400:]
    members = [head, tail + RECORDS[1][:300], RECORDS[1][300:], RECORDS[2]]
    path = tmp_path / "a.warc.gz"
    path.write_bytes(b"".join(gzip.compress(one, mtime=0) for one in members))
    first = next(iter(records_in(path)))
    assert first.offset == 0 and first.content in RECORDS[0]
    assert overwritten(path, [0])[:2] == (0, [0])


def texts_in(path: Path) -> list[bytes]:
    return [text.encode() for piece in pieces_of(path) for text in piece.texts]


def said_in(path: Path, said: dict[int, str]) -> set[int]:
    """Return the pages whose words the scan finds in an archive."""
    texts = " ".join(text for piece in pieces_of(path) for text in piece.texts)
    return {number for number, words in said.items() if words in texts}


def words_of(body: bytes) -> list[str]:
    return body.decode().partition("<p>")[2].split()


def long_body(number: int) -> bytes:
    chance = random.Random(number)
    words = " ".join("".join(chance.choices("abcdefghijklmnop", k=7)) for _ in range(300))
    return f"<html lang=en><body><p>{words}.</p></body></html>".encode()


LONG = [long_body(number) for number in range(6)]
BODIES = [f"<html><body><p>{f'The dough rests in bowl {n}. ' * 9}</p></body></html>".encode() for n in range(4)]
