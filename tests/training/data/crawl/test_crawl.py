"""Stage `crawl`: files brought together whole, from every source, and what cannot be read set aside."""

from __future__ import annotations

import codecs
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peak import peak
from tests.training.data import chain
from tests.training.data.crawl.web_server import Server
from training.contract.artifact import check_input
from training.contract.job import DataError, InputArtifact
from training.contract.records import RecipeError
from training.data.crawl.crawl import read_listing, source_files
from training.data.crawl.download import Manners, fetch
from training.data.crawl.settings import SnapshotRecipe
from training.data.documents import MAX_LINE_BYTES, read_lines
from training.data.kitchen.settings import KitchenWorld


def warc_bytes(number: int) -> bytes:
    """One gzip member with a resource record."""
    block = f"text number {number}".encode()
    uri = f"http://a.test/{number}"
    head = f"WARC/1.0\r\nWARC-Type: resource\r\nWARC-Target-URI: {uri}\r\nContent-Length: {len(block)}\r\n"
    return gzip.compress(head.encode() + b"\r\n" + block + b"\r\n\r\n", mtime=0)


def crawl(root: Path, snapshot: SnapshotRecipe, **settings: Any) -> InputArtifact:
    """The crawl artifact of `snapshot`, by a job as the chain writes it."""
    if snapshot.source not in ("kitchen", "commoncrawl"):
        settings = {"files": source_files(snapshot), **settings}
    return chain.run(root, "crawl", "crawl_archives", f"tiny@{snapshot.name}", {"snapshot": snapshot, **settings})


def warc_folder(folder: Path, names: list[str]) -> Path:
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        (folder / name).write_bytes(warc_bytes(number))
    return folder


def names_of(item: InputArtifact) -> list[str]:
    return [entry["name"] for entry in read_listing(Path(item.path))["files"]]


def test_a_folder_of_warcs_is_listed_by_name_and_stands_by_itself(tmp_path: Path):
    folder = warc_folder(tmp_path / "in", ["b.warc.gz", "a.warc.gz"])
    (folder / "a.cdx.gz").write_bytes(b"an index is no archive")
    made = crawl(tmp_path, SnapshotRecipe(name="s", source="warc", paths=(str(folder),)))
    assert names_of(made) == ["a.warc.gz", "b.warc.gz"]
    (folder / "a.warc.gz").unlink()
    with (folder / "b.warc.gz").open("ab") as stream:
        stream.write(warc_bytes(2))
    left = {"no text is read from this format": 1}
    assert check_input(made).record["counts"] == {"in": 3, "kept": 2, "dropped": left, "quarantined": {}}


def test_an_empty_and_an_unreadable_file_are_set_aside_and_the_rest_is_kept(tmp_path: Path):
    folder = warc_folder(tmp_path / "in", ["good.warc.gz"])
    (folder / "empty.warc.gz").write_bytes(b"")
    (folder / "noise.warc").write_bytes(b"this is no archive\n" * 50)
    made = crawl(tmp_path, SnapshotRecipe(name="s", source="warc", paths=(str(folder),)))
    assert names_of(made) == ["good.warc.gz"]
    assert made.record()["counts"] == {
        "in": 3, "kept": 1, "dropped": {}, "quarantined": {"empty": 1, "unreadable": 1}
    }  # fmt: skip
    quarantined = {line["warc_file"]: line["reason"] for line in read_lines(made.file("quarantine/00000.jsonl"))}
    assert quarantined == {"empty.warc.gz": "empty", "noise.warc": "unreadable"}


def test_a_snapshot_without_one_readable_file_is_an_error_that_names_the_file(tmp_path: Path):
    (tmp_path / "noise.warc").write_bytes(b"this is no archive\n" * 50)
    with pytest.raises(DataError, match=r"noise\.warc is unreadable"):
        crawl(tmp_path, SnapshotRecipe(name="s", source="warc", paths=(str(tmp_path / "noise.warc"),)))


def test_rows_behind_a_first_line_that_is_none_are_kept(tmp_path: Path):
    (tmp_path / "in").mkdir()
    for name, first in {"bad": b"{", "marked": codecs.BOM_UTF8, "long": b"x" * (MAX_LINE_BYTES + 1)}.items():
        (tmp_path / f"in/{name}.jsonl").write_bytes(first + b'\n{"text": "a"}\n')
    (tmp_path / "in/none.jsonl").write_bytes(b"[1]\n2\n")
    with peak() as found:
        made = crawl(tmp_path, SnapshotRecipe(name="s", source="jsonl", paths=(str(tmp_path / "in"),)))
    assert names_of(made) == ["bad.jsonl", "long.jsonl", "marked.jsonl"] and found[0] < 4 * MAX_LINE_BYTES
    (left,) = read_lines(made.file("quarantine/00000.jsonl"))
    assert (left["reason"], left["detail"]) == ("unreadable", "line 1 is no JSON object but list")


def test_two_files_of_one_name_are_refused(tmp_path: Path):
    for folder in ("x", "y"):
        warc_folder(tmp_path / folder, ["a.warc.gz"])
    with pytest.raises(RecipeError, match="same name"):
        source_files(SnapshotRecipe(name="s", source="warc", paths=(f"{tmp_path}/x", f"{tmp_path}/y")))


def test_a_path_that_leads_nowhere_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="nothing-here"):
        source_files(SnapshotRecipe(name="s", source="warc", paths=(f"{tmp_path}/nothing-here/*.warc.gz",)))


def test_a_file_that_changed_since_the_job_was_written_is_refused(tmp_path: Path):
    folder = warc_folder(tmp_path / "in", ["a.warc.gz"])
    snapshot = SnapshotRecipe(name="s", source="warc", paths=(str(folder),))
    files = source_files(snapshot)
    (folder / "a.warc.gz").write_bytes(warc_bytes(7))
    with pytest.raises(DataError, match="run again"):
        crawl(tmp_path, snapshot, files=files)


def test_parquet_without_the_text_column_says_which_columns_there_are(tmp_path: Path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"content": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(RecipeError, match=r"text_field: a\.parquet .*'text'.* content"):
        crawl(tmp_path, SnapshotRecipe(name="s", source="parquet", paths=(str(tmp_path / "a.parquet"),)))


def test_any_fsspec_url_is_fetched(tmp_path: Path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/a.warc.gz", warc_bytes(1))
    made = crawl(tmp_path, SnapshotRecipe(name="s", source="warc", paths=("memory://bucket/*.warc.gz",)))
    assert made.file("archives/a.warc.gz").read_bytes() == warc_bytes(1)


def test_the_kitchen_is_generated_with_its_truth_aside(tmp_path: Path):
    world = KitchenWorld(pages=100, files=2)
    made = crawl(tmp_path, SnapshotRecipe(name="kitchen-1", source="kitchen"), kitchen=world)
    again = crawl(tmp_path / "again", SnapshotRecipe(name="kitchen-1", source="kitchen"), kitchen=world)
    assert len(names_of(made)) == 2
    assert made.digest == again.digest
    truth = [entry["path"] for entry in made.record()["files"] if entry["path"].startswith("truth/")]
    assert truth and not any("truth" in name for name in names_of(made))


def test_the_record_names_the_kitchen_s_code_where_the_kitchen_wrote_the_archives(tmp_path: Path):
    world = KitchenWorld(pages=100, files=1)
    made = crawl(tmp_path / "made", SnapshotRecipe(name="kitchen-1", source="kitchen"), kitchen=world)
    folder = warc_folder(tmp_path / "in", ["a.warc.gz"])
    found = crawl(tmp_path / "found", SnapshotRecipe(name="s", source="warc", paths=(str(folder),)))
    kitchen = [{part for part in one.record()["code"]["modules"] if ".kitchen." in part} for one in (made, found)]
    assert {"training.data.kitchen.talk", "training.data.kitchen.pages"} <= kitchen[0] and not kitchen[1]


# Common Crawl, from a local server that misbehaves as real ones do


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("PEDIGREE_FETCH_ALLOW", "127.0.0.1")
    paths = [f"crawl-data/CC-MAIN-2031-01/segments/1.{i}/warc/CC-MAIN-{i:05d}.warc.gz" for i in range(4)]
    files = {path: b"".join(warc_bytes(100 * i + j) for j in range(300)) for i, path in enumerate(paths)}
    files["crawl-data/CC-MAIN-2031-01/warc.paths.gz"] = gzip.compress("\n".join(paths).encode() + b"\n")
    made = Server(files)
    yield made
    made.close()


def common_crawl(server: Server, **fields: Any) -> SnapshotRecipe:
    return SnapshotRecipe(name="cc", source="commoncrawl", crawl="CC-MAIN-2031-01", base_url=server.url, **fields)


def test_the_chosen_files_of_a_common_crawl_listing_are_fetched(tmp_path: Path, server: Server):
    made = crawl(tmp_path, common_crawl(server, first_file=1, num_files=2))
    assert names_of(made) == ["CC-MAIN-00001.warc.gz", "CC-MAIN-00002.warc.gz"]
    for path, content in server.files.items():
        if path.endswith(("1.warc.gz", "2.warc.gz")):
            assert made.file(f"archives/{path.rpartition('/')[2]}").read_bytes() == content
    assert all(headers["user-agent"].startswith("pedigree/") for _, headers in server.requests)


def test_a_dropped_connection_is_resumed_and_a_refusal_waited_out(tmp_path: Path, server: Server):
    first, second = [path for path in server.files if path.endswith("warc.gz")][:2]
    server.cut[first] = 5000
    server.refuse[second] = [(503, {"Retry-After": "0"}), (429, {"Retry-After": "0"})]
    made = crawl(tmp_path, common_crawl(server, num_files=2))
    assert made.file("archives/CC-MAIN-00000.warc.gz").read_bytes() == server.files[first]
    assert made.file("archives/CC-MAIN-00001.warc.gz").read_bytes() == server.files[second]
    ranges = [headers.get("range") for path, headers in server.requests if path == first]
    assert ranges == [None, "bytes=5000-"]
    assert [path for path, _ in server.requests].count(second) == 3


def test_files_beyond_the_listing_are_refused_with_its_length(tmp_path: Path, server: Server):
    with pytest.raises(RecipeError, match="lists 4 files"):
        crawl(tmp_path, common_crawl(server, first_file=3, num_files=2))


def test_what_an_earlier_run_fetched_is_not_fetched_again(tmp_path: Path, server: Server):
    path = next(path for path in server.files if path.endswith("warc.gz"))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "a.warc.gz.part").write_bytes(server.files[path][:1234])
    fetch(server.url + path, tmp_path / "a.warc.gz", scratch, Manners())
    assert (tmp_path / "a.warc.gz").read_bytes() == server.files[path]
    assert [headers.get("range") for _, headers in server.requests] == ["bytes=1234-"]
    (scratch / "b.warc.gz.part").write_bytes(server.files[path])
    fetch(server.url + path, tmp_path / "b.warc.gz", scratch, Manners())
    assert (tmp_path / "b.warc.gz").read_bytes() == server.files[path]


def test_a_server_that_keeps_refusing_is_given_up_with_its_last_answer(tmp_path: Path, server: Server):
    path = next(path for path in server.files if path.endswith("warc.gz"))
    server.refuse[path] = [(403, {})] * 10
    manners = Manners(attempts=3, first_wait_seconds=0.001)
    with pytest.raises(DataError, match=r"3 attempts.* 403"):
        fetch(server.url + path, tmp_path / "a.warc.gz", tmp_path, manners)
    assert len(server.requests) == 3


def test_a_file_that_is_not_there_is_asked_for_once(tmp_path: Path, server: Server):
    with pytest.raises(DataError, match="HTTP 404"):
        fetch(server.url + "no-such.warc.gz", tmp_path / "a.warc.gz", tmp_path, Manners())
    assert len(server.requests) == 1


def test_waits_grow_and_what_the_server_asks_for_comes_first():
    manners = Manners()
    assert [manners.wait_seconds(attempt, None) <= 2**attempt for attempt in range(6)] == [True] * 6
    assert manners.wait_seconds(5, None) >= 16
    assert manners.wait_seconds(0, 42.0) == 42.0


def test_files_behind_plain_http_urls_are_a_warc_source_too(tmp_path: Path, server: Server):
    path = next(path for path in server.files if path.endswith("warc.gz"))
    snapshot = SnapshotRecipe(name="s", source="warc", paths=(server.url + path,))
    assert source_files(snapshot) == [{"name": "CC-MAIN-00000.warc.gz", "bytes": len(server.files[path]), "sha256": ""}]
    made = crawl(tmp_path, snapshot)
    assert made.file("archives/CC-MAIN-00000.warc.gz").read_bytes() == server.files[path]


def test_the_listing_says_what_the_files_hold(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"body": "text"}) + "\n")
    snapshot = SnapshotRecipe(
        name="s", source="jsonl", label="books", paths=(str(tmp_path / "a.jsonl"),), text_field="body"
    )
    listing = read_listing(Path(crawl(tmp_path, snapshot).path))
    assert {key: listing[key] for key in ("snapshot", "label", "form", "text_field", "url_field")} == {
        "snapshot": "s", "label": "books", "form": "jsonl", "text_field": "body", "url_field": "url"
    }  # fmt: skip
