"""An index finds every page of a snapshot, whatever became of it, and nothing else."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.provenance.pages import REASONS, Pages, generated, index_of
from training.contract.job import InputArtifact, RefusedInput
from training.data.urls import key_of, plain_host, reversed_host
from training.provenance import build, layout
from training.provenance.clusters import cluster_of
from training.provenance.index import (
    Index,
    RowGroups,
    check_index,
    find_id,
    find_url,
    in_order,
    read_rows,
    rows_of,
)
from training.provenance.layout import KINDS

HOSTS = 150


def opened(item: InputArtifact, pages: Pages) -> Index:
    return Index(item, {one.asset: one for one in pages.inputs}, item.folder)


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Pages:
    return generated(tmp_path_factory.mktemp("pages"), "one", ranks=3, pages=400, hosts=HOSTS)


@pytest.fixture(scope="module")
def item(pages, tmp_path_factory) -> InputArtifact:
    return index_of(tmp_path_factory.mktemp("index"), pages)


@pytest.fixture(scope="module")
def index(item, pages) -> Index:
    return opened(item, pages)


def test_every_page_is_found_by_id_and_by_url_where_it_ended_and_why(index, pages):
    for row in pages.truth.to_pylist():
        (by_id,) = find_id([index], row["id"])
        (by_url,) = find_url([index], row["url"].replace("www.", "") + "#part")
        assert by_id.place == by_url.place and by_id.place.kind == row["kind"]
        assert (by_id.row["id"], by_id.row["url"]) == (row["id"], row["url"])
        assert by_id.row.get("reason", "") == REASONS[row["kind"]]
    assert len(index) == len(pages.truth)


def test_a_page_that_is_not_there_is_not_found_by_its_hash_alone(index, pages, monkeypatch):
    assert find_id([index], "one/one-00000.warc.gz/000000000001") == []
    assert find_url([index], "https://site-1.com/other") == find_url([index], "https://none.example/") == []
    row = pages.truth.slice(5, 1).to_pylist()[0]
    monkeypatch.setattr("training.provenance.index.hash_of", lambda text: layout.hash_of(row["id"]))
    assert find_id([index], "another") == []  # its hash leads to a page, whose place says another id


def test_a_domain_is_a_range_of_hosts_and_no_other_host_is_in_it(index, pages):
    hosts = sorted({key_of(url).host for url in pages.truth["url"].to_pylist()})
    assert [name for name, _ in index.named_hosts(0, index.num_hosts)] == hosts
    for domain in ("site-1.com", "site-10.com", "co.uk", "uk", "site-2.com", "absent.org", "zz", "aa", "site"):
        wanted = sorted(
            row["id"]
            for row in pages.truth.to_pylist()
            if f".{plain_host(key_of(row['url']).host)}".endswith(f".{domain}")
        )
        ranges = index.hosts_of_domain(reversed_host(domain))
        found = [page for first, stop in ranges for page in index.rows(index.pages_of_hosts(first, stop))]
        assert sorted(page.row["id"] for page in found) == wanted, domain
        assert sum(count for first, stop in ranges for _, count in index.named_hosts(first, stop)) == len(wanted)


def test_outcomes_are_counted_without_reading_the_places(index, pages):
    kinds = np.bincount(pages.truth["kind"].to_numpy(), minlength=len(KINDS))
    assert index.outcomes(np.arange(len(index))) == {
        (kind, REASONS[kind]): count for kind, count in enumerate(kinds.tolist()) if count
    }


def by_hand(rows: list, named: set[str]) -> set[str]:
    """The cluster of pages: what is connected with them by `duplicate_of`, whichever way it points."""
    cluster = set(named)
    while True:
        more = {one.row["id"] for one in rows if one.row.get("duplicate_of") in cluster}
        more |= {one.row["duplicate_of"] for one in rows if one.row["id"] in cluster and one.row.get("duplicate_of")}
        if more <= cluster:
            return cluster - named
        cluster |= more


@pytest.mark.parametrize("finds_too_many", [False, True])
def test_a_cluster_is_found_from_the_kept_page_and_from_each_dropped_one(index, pages, monkeypatch, finds_too_many):
    every = index.rows(np.arange(len(index)))
    dropped = [one for one in every if one.place.kind == layout.DUPLICATE_KIND]
    if finds_too_many:  # as by a hash that two ids have
        copies = np.array([one.page for one in dropped])
        monkeypatch.setattr(Index, "copies_of_any", lambda self, hashes: copies)
        monkeypatch.setattr(Index, "pages_of_ids", lambda self, ids: np.arange(len(self)))
    kept = {one.row["duplicate_of"] for one in dropped[:5]}
    chosen = [*dropped[:5], *(one for one in every if one.row["id"] in kept)]
    for one in chosen:
        (found,) = cluster_of([index], [np.array([one.page])])
        assert {each["id"] for each in found.values()} == by_hand(every, {one.row["id"]}) != set()
        is_kept = {each["id"]: each["is_kept"] for each in found.values()}
        assert is_kept == {each.row["id"]: each.place.kind == 0 for each in every if each.row["id"] in is_kept}
    named = [one for one in every if "/page-1" in one.row["url"]]
    (found,) = cluster_of([index], [np.array([one.page for one in named])])
    assert {each["id"] for each in found.values()} == by_hand(every, {one.row["id"] for one in named})


def test_the_hashes_of_ids_are_known_without_the_pages(index, pages, monkeypatch):
    monkeypatch.setattr("training.provenance.index.AT_ONCE", 100)
    some = np.arange(3, len(index), 7)
    assert index.id_hashes(some).tolist() == [layout.hash_of(one.row["id"]) for one in index.rows(some)]
    assert index.id_hashes(np.empty(0, np.int64)).tolist() == []


def test_pieces_and_ranks_change_no_byte(item, pages, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "AT_ONCE", 37)
    again = index_of(tmp_path, pages)
    assert again.digest == item.digest


def test_the_account_notices_a_page_that_no_place_has(tmp_path, pages):
    other = generated(tmp_path / "other", "one", ranks=3, pages=400, hosts=HOSTS, seed=1)
    mixed = Pages((*pages.inputs[:2], other.inputs[2], *pages.inputs[3:]), pages.truth)
    gates = index_of(tmp_path, mixed).record()["gates"]
    assert [gate["passed"] for gate in gates] == [False]


def test_an_index_of_other_shards_is_refused(item, pages, tmp_path):
    made_of = {one.asset: one for one in pages.inputs}
    check_index(item, made_of)
    others = made_of | {"token_shards": replace(made_of["token_shards"], digest="0" * 64)}
    with pytest.raises(RefusedInput, match=r"token_shards .* 000000000000"):
        check_index(item, others)


@pytest.mark.parametrize("name", layout.FILES)
def test_a_damaged_file_is_refused(item, pages, tmp_path, name):
    folder = tmp_path / "copy"
    shutil.copytree(item.path, folder)
    data = bytearray((folder / name).read_bytes())
    data[-1] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(RefusedInput, match=name):
        opened(replace(item, path=str(folder)), pages)


def test_an_empty_snapshot_has_an_index(tmp_path):
    pages = generated(tmp_path, "one", ranks=1, pages=0, hosts=1)
    index = opened(index_of(tmp_path, pages), pages)
    assert len(index) == 0 and find_url([index], "https://a.example/") == [] and index.hosts_of_domain("com") == []


def test_the_files_are_what_the_page_of_the_format_says(item):
    folder = Path(item.path)
    listed = {entry["path"] for entry in item.record()["files"]}
    assert listed == set(layout.FILES) and all(f"`{name}`" in (layout.__doc__ or "") for name in listed)
    assert json.loads((folder / layout.REASON_LIST_FILE).read_text())[0] == ""


def test_row_groups_stay_in_memory_up_to_a_number_of_bytes_and_give_the_same_rows(tmp_path):
    table = pa.table({"id": [f"page {number}" for number in range(100)], "tokens": range(100)})
    files = [tmp_path / f"{name}.parquet" for name in "ab"]
    for file in files:
        pq.write_table(table, file, row_group_size=10)
    asked = [57, 3, 58, 99, 3]
    wanted = [{"id": f"page {number}", "tokens": number} for number in asked]
    one_group = pq.ParquetFile(files[0]).read_row_group(0).nbytes
    groups = RowGroups(("id", "tokens", "absent"), most_bytes=2 * one_group)
    for _ in range(2):
        for file in files:
            assert groups.rows(file, asked) == wanted == read_rows(file, asked, ("id", "tokens"))
            assert file in groups and 0 < groups.kept_bytes <= 2 * one_group
    large = RowGroups(("id",), most_bytes=1 << 20)
    assert large.rows(files[0], asked) == [{"id": one["id"]} for one in wanted]
    files[0].unlink()
    assert large.rows(files[0], asked[::-1]) == [{"id": one["id"]} for one in wanted[::-1]]  # from memory


def test_tables_of_several_files_become_one_in_the_order_that_was_asked():
    tables = [pa.table({"id": ["c", "a"], "at": [3, 1]}), pa.table({"id": ["b", "d"], "at": [2, None]})]
    wanted = [{"id": "a", "at": 1}, {"id": "b", "at": 2}, {"id": "c", "at": 3}, {"id": "d", "at": None}]
    assert rows_of(in_order(tables, [[2, 0], [1, 3]])) == wanted
    assert rows_of(in_order(tables, [[7, 2], [5, 9]])) == wanted  # only the order of the places counts
    assert rows_of(in_order(tables[:1], [[0, 1]])) == [wanted[2], wanted[0]]
