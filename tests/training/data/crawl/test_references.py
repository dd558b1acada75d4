"""Archives that stay where they are: the same documents, each byte fetched once, and nothing else taken for them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.data import chain
from tests.training.data.crawl.web_server import Server
from training.contract.job import DataError, InputArtifact, Work
from training.contract.progress import Progress
from training.contract.records import RecipeError
from training.data.crawl.crawl import index_files, read_listing, source_files
from training.data.crawl.download import Manners, fetch, fetch_range
from training.data.crawl.references import Selection, at_hand
from training.data.crawl.settings import SelectionRecipe, SnapshotRecipe
from training.data.documents import document_files, read_lines
from training.data.extract.settings import ExtractRecipe

HASTY = Manners(attempts=3, first_wait_seconds=0.001)
HOSTS = ("bread.test", "www.bread.test", "soup.test")
LANGUAGES = ("eng", "deu,eng", "deu", None)


def page(number: int) -> tuple[str, bytes]:
    """The address of a page, and its record as a gzip member."""
    text = f"<html><body><p>{f'Number {number}: the miller brings the flour and the baker kneads it. ' * 4}</p></body>"
    url = f"http://{HOSTS[number % 3]}/{number}"
    head = f"WARC/1.0\r\nWARC-Type: resource\r\nWARC-Target-URI: {url}\r\nContent-Type: text/html\r\n"
    member = f"{head}Content-Length: {len(text)}\r\n\r\n{text}\r\n\r\n".encode()
    return url, gzip.compress(member, mtime=0)


def archive(first: int, pages: int = 40) -> tuple[bytes, list[dict[str, Any]]]:
    """An archive of pages, and its records as a CDX file describes them."""
    content, lines = b"", []
    for number in range(first, first + pages):
        url, member = page(number)
        line = {"url": url, "mime": "text/html", "mime-detected": "text/html", "status": "200"}
        languages = {"languages": LANGUAGES[number % 4]} if LANGUAGES[number % 4] else {}
        lines.append({**line, **languages, "length": str(len(member)), "offset": str(len(content))})
        content += member
    return content, lines


NAMES = ("a.warc.gz", "b.warc.gz")
ARCHIVES = {name: archive(100 * number) for number, name in enumerate(NAMES)}
FILES = {name: content for name, (content, _) in ARCHIVES.items()}
CDX = [{**line, "filename": f"crawl-data/x/{name}"} for name, (_, lines) in ARCHIVES.items() for line in lines]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("PEDIGREE_FETCH_ALLOW", "127.0.0.1")
    made = Server(dict(FILES), has_tags=True)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "in"
    place.mkdir()
    for name, content in FILES.items():
        (place / name).write_bytes(content)
    return place


def referenced(*paths: object, **fields: Any) -> SnapshotRecipe:
    fields = {"source": "warc", "archives": "referenced", **fields}
    return SnapshotRecipe(name="s", paths=tuple(map(str, paths)), **fields)


def at(server: Server) -> SnapshotRecipe:
    return referenced(*(server.url + name for name in NAMES))


def crawl(root: Path, snapshot: SnapshotRecipe) -> InputArtifact:
    settings = {"snapshot": snapshot, "files": source_files(snapshot), "index": index_files(snapshot)}
    return chain.run(root, "crawl", "crawl_archives", "tiny@s", settings)


def extract(root: Path, archives: InputArtifact, **settings: Any) -> InputArtifact:
    return chain.run(
        root, "extract", "extracted_documents", "tiny@s", {"extract": ExtractRecipe(**settings)}, [archives]
    )


def extracted(root: Path, snapshot: SnapshotRecipe) -> InputArtifact:
    return extract(root, crawl(root, snapshot))


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> InputArtifact:
    """The documents of both archives, extracted from copies."""
    root = tmp_path_factory.mktemp("copied")
    for name, content in FILES.items():
        (root / name).write_bytes(content)
    return extracted(root, SnapshotRecipe(name="s", source="warc", paths=tuple(str(root / name) for name in NAMES)))


def quarantined(item: InputArtifact) -> list[str]:
    return [line["reason"] for path in document_files(item, "quarantine") for line in read_lines(path)]


def test_local_archives_are_read_in_place_to_the_same_digest(tmp_path: Path, folder: Path, copied: InputArtifact):
    archives = crawl(tmp_path, referenced(folder))
    assert not list(Path(archives.path).rglob("*.warc.gz"))
    made = extract(tmp_path, archives)
    assert made.digest == copied.digest and len(chain.rows(made)) == 80
    assert {path.name for path in folder.iterdir()} == set(NAMES)


def test_remote_archives_are_streamed_once_to_the_same_digest(tmp_path: Path, server: Server, copied: InputArtifact):
    archives = crawl(tmp_path, at(server))
    assert server.sent.total() == 0
    made = extract(tmp_path, archives)
    assert made.digest == copied.digest
    assert {name: server.sent[name] for name in NAMES} == {name: len(FILES[name]) for name in NAMES}
    assert not list(Path(made.path).rglob("*.warc.gz"))
    assert made.record()["notes"]["archives"]["requests"] == 2


def test_objects_of_a_store_are_streamed_to_the_same_digest(tmp_path: Path, copied: InputArtifact):
    import fsspec

    for name, content in FILES.items():
        fsspec.filesystem("memory").pipe(f"/shelf/{name}", content)
    assert extracted(tmp_path, referenced("memory://shelf/*.warc.gz")).digest == copied.digest


def test_a_common_crawl_snapshot_is_listed_without_a_request_for_its_files(
    tmp_path: Path, server: Server, copied: InputArtifact
):
    server.files["crawl-data/x/warc.paths.gz"] = gzip.compress("\n".join(NAMES).encode())
    snapshot = SnapshotRecipe(
        name="s", source="commoncrawl", crawl="x", num_files=2, base_url=server.url, archives="referenced"
    )
    archives = chain.run(tmp_path, "crawl", "crawl_archives", "tiny@s", {"snapshot": snapshot})
    assert [path for path, _ in server.requests] == ["crawl-data/x/warc.paths.gz"]
    assert extract(tmp_path, archives).digest == copied.digest


def test_a_folder_of_the_data_is_named_by_its_uri_and_found_elsewhere(tmp_path, folder, monkeypatch):
    monkeypatch.setenv("PEDIGREE_DATA", str(folder))
    archives = crawl(tmp_path, referenced("data://*.warc.gz"))
    assert [entry["uri"] for entry in read_listing(Path(archives.path))["files"]] == [f"data://{n}" for n in NAMES]
    folder.rename(tmp_path / "moved")
    monkeypatch.setenv("PEDIGREE_DATA", str(tmp_path / "moved"))
    assert len(chain.rows(extract(tmp_path, archives))) == 80


# Connections and files that change


def test_a_connection_cut_inside_a_member_resumes_and_nothing_is_truncated(
    tmp_path: Path, server: Server, copied: InputArtifact
):
    server.cut["a.warc.gz"] = len(page(0)[1]) + 30
    made = extracted(tmp_path, at(server))
    assert made.digest == copied.digest and quarantined(made) == []
    assert server.ranges_of("a.warc.gz") == [None, None, f"bytes={len(page(0)[1]) + 30}-"]
    assert server.requests[-2][1].get("if-range", "") in ("", server.tag_of("a.warc.gz"))
    assert server.sent["a.warc.gz"] == len(FILES["a.warc.gz"])


def test_a_file_that_changes_while_it_is_streamed_is_refused(tmp_path: Path, server: Server):
    server.cut["a.warc.gz"], server.replace_after_cut["a.warc.gz"] = 700, FILES["b.warc.gz"]
    tag = server.tag_of("a.warc.gz")
    with pytest.raises(DataError, match=r"a\.warc\.gz: .* ETag"):
        fetch(server.url + "a.warc.gz", tmp_path / "a", tmp_path, HASTY, tag=tag)
    assert server.requests[-1][1]["if-range"] == tag


def test_of_a_file_whose_tag_was_not_known_one_edition_is_read_whole(tmp_path: Path, server: Server):
    server.cut["a.warc.gz"], server.replace_after_cut["a.warc.gz"] = 700, FILES["b.warc.gz"]
    fetch(server.url + "a.warc.gz", tmp_path / "a", tmp_path, HASTY, is_lasting=False)
    assert (tmp_path / "a").read_bytes() == FILES["b.warc.gz"]


def test_without_a_strong_tag_an_interrupted_stream_begins_anew(tmp_path: Path, server: Server):
    server.has_tags = False
    server.cut["a.warc.gz"] = 700
    fetch(server.url + "a.warc.gz", tmp_path / "a", tmp_path, HASTY, is_lasting=False)
    assert server.ranges_of("a.warc.gz") == [None, None]
    assert (tmp_path / "a").read_bytes() == FILES["a.warc.gz"]


def test_a_server_that_cuts_again_and_again_is_asked_as_long_as_it_gives_more(tmp_path: Path, server: Server):
    server.files["a.warc.gz"] = bytes(1 << 20) * 8
    server.cut["a.warc.gz"] = [1 << 20] * 6
    calls = fetch(server.url + "a.warc.gz", tmp_path / "a", tmp_path, HASTY)
    assert calls == 7 and (tmp_path / "a").stat().st_size == 8 << 20


def test_any_refusal_that_says_when_to_come_back_is_waited_out(tmp_path: Path, server: Server):
    server.refuse["a.warc.gz"] = [(404, {"Retry-After": "0"})]
    assert fetch(server.url + "a.warc.gz", tmp_path / "a", tmp_path, HASTY) == 2


def changed(content: bytes) -> bytes:
    """Another archive of the same size."""
    return page(77)[1] + content[len(page(77)[1]) :]


def test_a_local_file_that_changed_after_the_listing_is_refused_by_name(tmp_path: Path, folder: Path):
    archives = crawl(tmp_path, referenced(folder))
    (folder / "b.warc.gz").write_bytes(changed(FILES["b.warc.gz"]))
    with pytest.raises(DataError, match=r"in/b\.warc\.gz: sha256 .* changed"):
        extract(tmp_path, archives)
    (folder / "b.warc.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"in/b\.warc\.gz: 0 bytes"):
        extract(tmp_path, archives)
    (folder / "b.warc.gz").unlink()
    with pytest.raises(DataError, match=r"in/b\.warc\.gz: .* gone"):
        extract(tmp_path, archives)


def test_a_remote_file_that_changed_after_the_listing_is_refused_by_name(tmp_path: Path, server: Server):
    archives = crawl(tmp_path, at(server))
    server.files["b.warc.gz"] = changed(FILES["b.warc.gz"])
    with pytest.raises(DataError, match=r"b\.warc\.gz: .* changed"):
        extract(tmp_path, archives)


def test_a_file_that_changed_between_two_readings_is_refused_though_its_server_has_no_tags(
    tmp_path: Path, server: Server
):
    server.has_tags = False
    archives = crawl(tmp_path, at(server))
    for reading in ("first", "second"):
        extract(tmp_path / reading, archives)
    server.files["b.warc.gz"] = changed(FILES["b.warc.gz"])
    with pytest.raises(DataError, match=r"b\.warc\.gz: sha256 .* readings"):
        extract(tmp_path / "third", archives)


def test_an_object_that_changed_after_the_listing_is_refused(tmp_path: Path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/other/a.warc.gz", FILES["a.warc.gz"])
    archives = crawl(tmp_path, referenced("memory://other/a.warc.gz"))
    memory.pipe("/other/a.warc.gz", FILES["a.warc.gz"] + page(7)[1])
    with pytest.raises(DataError, match=r"other/a\.warc\.gz: \d+ bytes, ETag none"):
        extract(tmp_path, archives)


def test_a_local_file_that_changes_while_it_is_read_is_refused_by_name(tmp_path: Path, folder: Path):
    archives = crawl(tmp_path, referenced(folder))
    entry = read_listing(Path(archives.path))["files"][0]
    work = Work(path=tmp_path, scratch=tmp_path / "scratch", progress=Progress(tmp_path, enabled=False))
    with (
        pytest.raises(DataError, match=r"in/a\.warc\.gz: .* while it was read"),
        at_hand(entry, archives, work, 0) as given,
    ):
        given.path.write_bytes(changed(FILES["a.warc.gz"]))


def test_an_empty_file_that_is_no_longer_empty_is_refused_though_its_server_has_no_tags(tmp_path: Path, server: Server):
    server.has_tags, server.files["late.warc"] = False, b""
    archives = crawl(tmp_path, referenced(server.url + "late.warc"))
    server.files["late.warc"] = FILES["a.warc.gz"]
    with pytest.raises(DataError, match=r"late\.warc: bytes \d+"):
        extract(tmp_path, archives)


def test_rows_are_extracted_by_reference_as_by_copy(tmp_path: Path, server: Server):
    rows = [{"text": f"The miller brings sack number {n}.", "url": f"http://a.test/{n}"} for n in range(20)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for form in ("parquet", "jsonl"):
        name = f"a.{form}"
        server.files[name] = (tmp_path / name).read_bytes()
        copy = SnapshotRecipe(name="s", source=form, paths=(str(tmp_path / name),))
        digests = {
            extracted(tmp_path / f"{form}-{number}", snapshot).digest
            for number, snapshot in enumerate(
                [copy, replace(copy, archives="referenced"), referenced(server.url + name, source=form)]
            )
        }
        assert len(digests) == 1 and server.sent[name] == len(server.files[name])


def test_an_archive_that_another_process_still_reads_is_read_into_a_folder_of_its_own(tmp_path: Path, server: Server):
    archives = crawl(tmp_path, at(server))
    entry = read_listing(Path(archives.path))["files"][0]
    place = tmp_path / "scratch" / "archives"
    work = Work(path=tmp_path, scratch=tmp_path / "scratch", progress=Progress(tmp_path, enabled=False))
    with at_hand(entry, archives, work, 0) as first, at_hand(entry, archives, work, 0) as second:
        assert first.path != second.path and first.path.read_bytes() == second.path.read_bytes()
        assert {first.path.parent.name, second.path.parent.name} == {
            path.name for path in place.iterdir() if path.is_dir()
        }
    assert [path.name for path in place.iterdir()] == ["00000.lock"]


def test_a_remote_file_that_is_no_archive_is_quarantined_whole(tmp_path: Path, server: Server):
    server.files |= {"noise.warc": b"this is no archive\n" * 50, "empty.warc": b""}
    snapshot = at(server)
    odd = [server.url + name for name in ("noise.warc", "empty.warc")]
    made = extracted(tmp_path, replace(snapshot, paths=(*snapshot.paths, *odd)))
    assert made.record()["counts"]["quarantined"] == {"empty": 1, "unreadable": 1}
    assert len(chain.rows(made)) == 80
    with pytest.raises(DataError, match="no readable archive"):
        extracted(tmp_path / "odd", replace(snapshot, paths=tuple(odd)))


# Selection of records


def cdx_file(path: Path, lines: list[dict[str, Any]]) -> Path:
    text = "".join(f"test,bread)/{n} 20310101000000 {json.dumps(line)}\n" for n, line in enumerate(lines))
    path.write_bytes(gzip.compress(text.encode()))
    return path


def parquet_file(path: Path, lines: list[dict[str, Any]]) -> Path:
    rows = [
        {
            "url_host_name": line["url"].split("/")[2],
            "content_languages": line.get("languages"),
            "content_mime_detected": line["mime-detected"],
            "warc_filename": line["filename"],
            "warc_record_offset": int(line["offset"]),
            "warc_record_length": int(line["length"]),
        }
        for line in lines
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def selected(server: Server, index: Path, **filters: Any) -> SnapshotRecipe:
    return replace(at(server), select=SelectionRecipe(index=(str(index),), **filters))


WANTED = {"hosts": ("*.Bread.test",), "languages": ("eng",), "mime_types": ("text/html",), "max_gap_bytes": 0}


def wanted_ids(item: InputArtifact) -> list[dict[str, Any]]:
    chosen = {
        (line["filename"].rpartition("/")[2], int(line["offset"]))
        for line in CDX
        if "bread.test" in line["url"] and "eng" in (line.get("languages") or "")
    }
    return [row for row in chain.rows(item) if (row["warc_file"], row["warc_offset"]) in chosen]


def test_selected_records_give_the_documents_of_a_filter_over_the_whole(tmp_path, server, folder, copied):
    expected = wanted_ids(copied)
    indexes = {"cdx": cdx_file(tmp_path / "i.cdx.gz", CDX), "table": parquet_file(tmp_path / "i.parquet", CDX)}
    for kind, index in indexes.items():
        server.sent.clear()
        made = extracted(tmp_path / kind, selected(server, index, **WANTED))
        assert chain.rows(made) == expected and 20 < len(expected) < 40
        lengths = {(line["filename"], line["offset"]): int(line["length"]) for line in CDX}
        needed = sum(lengths[f"crawl-data/x/{row['warc_file']}", str(row["warc_offset"])] for row in expected)
        assert sum(server.sent[name] for name in NAMES) == needed
    local = replace(referenced(folder), select=SelectionRecipe(index=(str(indexes["cdx"]),), **WANTED))
    assert chain.rows(extracted(tmp_path / "local", local)) == expected


def test_neighbours_below_the_gap_limit_are_requested_together():
    chosen = Selection(offsets=[0, 10, 30, 100], lengths=[10, 10, 5, 1], max_gap_bytes=10)
    assert chosen.ranges() == [(0, 35), (100, 101)]
    assert replace(chosen, max_gap_bytes=9).ranges() == [(0, 20), (30, 35), (100, 101)]


def test_joined_ranges_give_the_same_documents_in_fewer_requests(tmp_path, server, copied):
    index = cdx_file(tmp_path / "i.cdx.gz", CDX)
    made = extracted(tmp_path, selected(server, index, **WANTED | {"max_gap_bytes": 10**6}))
    assert chain.rows(made) == wanted_ids(copied)
    assert made.record()["notes"]["archives"]["requests"] == 2


def test_archives_without_a_selected_record_are_counted_and_not_requested(tmp_path, server):
    index = cdx_file(tmp_path / "i.cdx.gz", [line for line in CDX if line["filename"].endswith("b.warc.gz")])
    archives = crawl(tmp_path, selected(server, index))
    assert archives.record()["counts"] == {"in": 2, "kept": 1, "dropped": {"not_selected": 1}, "quarantined": {}}
    assert archives.record()["notes"]["index"] == {"records": 40, "selected": 40}
    assert len(chain.rows(extract(tmp_path, archives))) == 40 and server.sent["a.warc.gz"] == 0


def without(name: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key != name} for line in CDX]


def test_an_index_that_answers_half_is_refused_by_name(tmp_path: Path, server: Server):
    whole = cdx_file(tmp_path / "whole.cdx.gz", CDX).read_bytes()
    (tmp_path / "early.cdx.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "line.cdx").write_bytes(gzip.decompress(whole)[:-40])
    (tmp_path / "none.cdx").write_bytes(b"")
    (tmp_path / "early.parquet").write_bytes(parquet_file(tmp_path / "i.parquet", CDX).read_bytes()[:-200])
    pq.write_table(pq.read_table(tmp_path / "i.parquet").drop(["content_languages"]), tmp_path / "thin.parquet")
    cdx_file(tmp_path / "no-language.cdx.gz", without("languages"))
    cdx_file(tmp_path / "no-offset.cdx.gz", without("offset"))
    cdx_file(tmp_path / "word.cdx.gz", [line | {"offset": "many"} for line in CDX])
    cdx_file(tmp_path / "overlap.cdx.gz", [line | {"length": "5000"} for line in CDX])
    cdx_file(tmp_path / "foreign.cdx.gz", [line | {"filename": "c.warc.gz"} for line in CDX])
    for name, sentence in {
        "early.cdx.gz": "ends early",
        "line.cdx": "ends early|middle of a line",
        "none.cdx": "no records",
        "early.parquet": "early.parquet: not a readable parquet file: .* it was cut",
        "thin.parquet": "'content_languages'.* url_host_name",
        "no-language.cdx.gz": "80 records .*'languages'.* snapshots.select.languages",
        "no-offset.cdx.gz": "line 1: no 'offset'",
        "word.cdx.gz": "no place",
        "overlap.cdx.gz": "a.warc.gz: .* 5000 bytes",
        "foreign.cdx.gz": "2 archives",
    }.items():
        with pytest.raises(DataError, match=sentence):
            crawl(tmp_path, selected(server, tmp_path / name, languages=("eng",)))


@pytest.mark.parametrize(("place", "sentence"), [(10**6, "ends before byte|416"), (7, "none begins there")])
def test_an_index_of_another_archive_is_refused_by_the_rank(tmp_path, server, place, sentence):
    wrong = [CDX[0] | {"offset": str(place)}]
    archives = crawl(tmp_path, selected(server, cdx_file(tmp_path / "i.cdx.gz", wrong)))
    with pytest.raises(DataError, match=sentence):
        extract(tmp_path, archives)


def test_a_range_is_resumed_within_itself(tmp_path: Path, server: Server):
    server.cut["a.warc.gz"] = 100
    for tag in (server.tag_of("a.warc.gz"), ""):
        (tmp_path / "part").unlink(missing_ok=True)
        fetch_range(server.url + "a.warc.gz", tmp_path / "part", 50, 450, HASTY, tag=tag)
        assert (tmp_path / "part").read_bytes() == FILES["a.warc.gz"][50:450]
    assert server.ranges_of("a.warc.gz") == ["bytes=50-449", "bytes=150-449", "bytes=50-449"]
    with pytest.raises(DataError, match="the file changed"):
        fetch_range(server.url + "a.warc.gz", tmp_path / "part", 50, 450, HASTY, tag='"another"')


def test_settings_that_would_have_no_effect_are_refused():
    with pytest.raises(RecipeError, match="nothing to refer"):
        SnapshotRecipe(name="s", source="kitchen", archives="referenced")
    for fields in ({"archives": "copied", "source": "warc"}, {"archives": "referenced", "source": "jsonl"}):
        with pytest.raises(RecipeError, match="single records"):
            SnapshotRecipe(name="s", paths=("x",), select=SelectionRecipe(index=("i",)), **fields)
    with pytest.raises(RecipeError, match="lower-case"):
        SelectionRecipe(index=("i",), languages=("Eng",))
    with pytest.raises(RecipeError, match=r"snapshots\.select\.hosts: 'bread\.test/a': is the entry of a url"):
        SelectionRecipe(index=("i",), hosts=("bread.test/a",))
