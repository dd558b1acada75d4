"""`pedigree takedown` on the small kitchen: the answer, the tombstone, a command that was cut off, and the rebuild."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fastwarc.warc import ArchiveIterator

from assets.answers.status.verify import verified
from assets.answers.takedown.report import markdown_of, reports_under
from assets.answers.takedown.takedown import asked_of, held, with_tags
from assets.state.cell import last_made
from assets.state.compare import compare
from assets.state.recipe_folders import SHIPPED, load_recipe
from assets.state.tombstones import FILE, read_tombstones
from resources.tracking.reports import Tracking
from resources.tracking.versions import registered_versions
from tests.small_kitchen import COMMAND, RECIPES, linked_copy, pedigree
from training.contract import artifact
from training.contract.artifact import damaged_files
from training.contract.running.lease import Lease
from training.data.checksum_cache import known_under
from training.data.crawl.erase import GONE
from training.data.documents import document_id, read_documents, read_lines
from training.data.urls import key_of
from training.provenance.lineage import artifacts_under
from training.provenance.withdrawal import ids_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
KITCHEN = load_recipe("kitchen-small", folders=(RECIPES, SHIPPED))
WHY = ("--reason", "asked by its owner")


@pytest.fixture(scope="module")
def place(first, untouched, tmp_path_factory) -> Path:
    """A copy of the root, of links."""
    assert first.code == 0
    return linked_copy(untouched, tmp_path_factory.mktemp("takedown") / "root")


FINISH = """
import sys, pathlib
from assets.answers.takedown.report import finish
from resources.tracking.reports import Tracking
finish(root := pathlib.Path(sys.argv[1]), tracking=Tracking('', root, in_background=False), say=print)
"""


def killed_when(is_time: Callable[[], bool], argv: Sequence[str]) -> bool:
    """Start a process and kill it as soon as the root looks so; return whether it was killed before its end."""
    environment = {**os.environ, "PEDIGREE_RECIPES": str(RECIPES)}
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as started:
        while started.poll() is None and not is_time():
            time.sleep(0.005)
        started.kill()
        return started.wait() == -signal.SIGKILL


def cells(place: Path):
    return compare(KITCHEN, place).cells


def documents(place: Path, asset: str, part: str, *columns: str) -> list[dict]:
    made = cells(place)[asset, f"kitchen-small@{part}"].artifact
    return [row for file in sorted(made.path.glob("documents/*.parquet")) for row in read_documents(file, columns)]


@pytest.fixture(scope="module")
def page(place) -> dict:
    """A page of the second snapshot that is not in the first, and that the training read."""
    before = {key_of(row["url"]) for row in documents(place, "extracted_documents", "kitchen-1", "url")}
    kept = documents(place, "decontaminated_documents", "kitchen-2", "id", "url")
    new = [row for row in kept if key_of(row["url"]) not in before and row["url"].startswith("https://")]
    return next(row for row in new if was_read(place, row["url"]))


def was_read(place: Path, url: str) -> bool:
    (traced,) = pedigree("trace", "kitchen-small", "--url", url, root=place).answer["pages"]
    return sum(one["times"] for one in traced["seen"]) > 0


def test_the_answer_changes_nothing_and_agrees_with_trace(place, page):
    spelled = page["url"].replace("https://", "http://") + "/#there"
    asked = pedigree("takedown", "--url", spelled, *WHY, "--dry-run", root=place)
    assert asked.code == 0 and not (place / FILE).exists()
    (snapshot,) = asked.answer["snapshots"]
    assert snapshot["partition"] == "kitchen-small@kitchen-2" and snapshot["pages"] >= 1
    shards = sum(one["documents"] for one in snapshot["shards"])
    assert shards == snapshot["artifacts"][-1]["pages"] == 1
    (traced,) = pedigree("trace", "kitchen-small", "--url", page["url"], root=place).answer["pages"]
    (seen,), (training,) = traced["seen"], asked.answer["trainings"]
    assert (seen["times"], seen["tokens"]) == (training["times"], training["tokens"])
    assert asked.answer["rebuild"]["recipes"] == ["kitchen-small"] and asked.answer["rebuild"]["seconds"] > 0
    models, made = asked.answer["rebuild"]["models"], cells(place)
    again = {"base_model", "sft_model", "aligned_model", "model_scores"}
    priced = {one["asset"] for one in models["assets"]}
    assert again <= priced and not priced & {"benchmark_index", "instruction_data"}
    assert models["seconds"] >= sum(made[asset, "kitchen-small"].artifact.record["seconds"] for asset in again) - 0.1


@pytest.mark.parametrize("asset", ["base_model", "sft_model", "instruction_data"])
def test_of_a_version_behind_which_a_record_is_damaged_nothing_is_told_but_that(place, page, asset):
    record = cells(place)[asset, "kitchen-small"].artifact.path / artifact.ARTIFACT_FILE
    record.rename(record.with_name("apart"))
    try:
        record.write_text("{")
        told = pedigree("takedown", "--url", page["url"], *WHY, "--dry-run", root=place).answer
        traced = pedigree("trace", "kitchen-small", "--url", page["url"], root=place)
    finally:
        record.with_name("apart").rename(record)
    (version,) = told["versions"]
    if asset == "instruction_data":  # no training is behind it
        assert version["documents"] == 1 and "artifact.json cannot be read" in "".join(told["rows_not_known"])
        return
    assert version["documents"] is version["rows"] is None and "artifact.json cannot be read" in version["problem"]
    assert len(told["not_traced"]) == (asset == "base_model")
    assert traced.code == 2 and "artifact.json cannot be read" in traced.answer["error"]


def records_by_host(place: Path) -> dict[str, set[str]]:
    """Return the ids of all pages in the archives of both snapshots, by another reader of WARC files."""
    found: dict[str, set[str]] = {}
    for (asset, part), cell in cells(place).items():
        for path in sorted(cell.artifact.path.glob("archives/*")) if asset == "crawl_archives" else ():
            with path.open("rb") as stream:
                for record in ArchiveIterator(stream, parse_http=False):
                    if record.headers["WARC-Type"] == "response":
                        id_ = f"{part.partition('@')[2]}/{path.name}/{record.stream_pos:012d}"
                        found.setdefault(urlsplit(record.headers["WARC-Target-URI"]).hostname, set()).add(id_)
    return found


def of_domain(by_host: dict[str, set[str]], domain: str) -> set[str]:
    return {id_ for host, ids in by_host.items() if f".{host}".endswith(f".{domain}") for id_ in ids}


def quarantined(place: Path) -> dict[str, list[dict]]:
    """Return the damaged records of each snapshot."""
    made = {part: cell.artifact for (asset, part), cell in cells(place).items() if asset == "extracted_documents"}
    return {
        part.partition("@")[2]: [line for path in sorted(one.path.glob("quarantine/*")) for line in read_lines(path)]
        for part, one in made.items()
    }


def test_the_list_of_every_domain_is_exactly_what_the_archives_have(place):
    by_host = records_by_host(place)
    domains = {host.split(".", skipped)[-1] for host in by_host for skipped in range(host.count("."))}
    domains = {domain for domain in domains if not domain.startswith("www.")}  # which does not matter
    assert len(domains & by_host.keys()) > 5 and len(domains - by_host.keys()) > 2
    found_in_all = set[str]()
    with known_under(place):
        for domain in sorted(domains):
            asked = asked_of(url="", domain=domain, document="", file=None, reason="asked by its owner")
            _, found = held(place, asked)
            ids = [
                id_ for index, own in zip(found.indexes, found.by_target[0], strict=True) for id_ in ids_of(index, own)
            ]
            assert sorted(ids) == sorted(of_domain(by_host, domain)), domain
            found_in_all.update(ids)
    for snapshot, lines in quarantined(place).items():  # damaged records are listed too
        assert {document_id(snapshot, line["warc_file"], line["warc_offset"]) for line in lines} <= found_in_all
    domain = max(domains, key=lambda one: len(of_domain(by_host, one)))
    told = pedigree("takedown", "--domain", domain, *WHY, "--dry-run", root=place).answer
    assert told["asked"][0]["pages"] == len(of_domain(by_host, domain))
    assert told["pages"] == told["asked"][0]["pages"] + told["duplicates"]["pages"]


def test_the_answer_names_the_rows_that_repeat_pages_of_a_domain(place):
    domain = "thebakersregister.example"
    told = pedigree("takedown", "--domain", domain, *WHY, "--dry-run", root=place).answer
    its_own = re.compile(rf"https?://([^/]*\.)?{re.escape(domain)}/")
    withdrawn = {
        run
        for cell in cells(place).values()
        if cell.asset in ("decontaminated_documents", "filtered_documents", "deduplicated_documents")
        for file in cell.artifact.path.glob("d*/*.parquet")
        if file.parent.name == "dropped" or cell.asset == "decontaminated_documents"
        for row in read_documents(file, ("url", "text"))
        if its_own.match(row["url"])
        for run in runs_of_eight(row["text"])
    }
    repeating = {
        (asset, file.name, number)
        for asset in ("instruction_data", "preference_data")
        for file in cells(place)[asset, "kitchen-small"].artifact.path.glob("*.jsonl")
        if file.name in ("instructions.jsonl", "train.jsonl", "held_out.jsonl", "dropped.jsonl")
        for number, line in enumerate(file.read_text("utf-8").splitlines())
        if any(withdrawn.intersection(runs_of_eight(text)) for text in strings_in(json.loads(line)))
    }
    assert {(one["asset"], one["file"], one["line"]) for one in told["rows"]} == repeating and len(repeating) > 3
    assert told["rows_not_known"] == []


def runs_of_eight(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())
    return {tuple(words[at : at + 8]) for at in range(len(words) - 7)}


def strings_in(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in items for text in strings_in(one)]


def test_nothing_is_withdrawn_while_a_run_writes_or_with_an_index_of_other_shards(place, page):
    with Lease(place / "token_shards" / "other"):
        refused = pedigree("takedown", "--url", page["url"], *WHY, "--yes", root=place)
    assert refused.code == 2 and "made by a run at present" in refused.errors
    made = cells(place)["provenance_index", "kitchen-small@kitchen-2"].artifact
    record = (made.path / artifact.ARTIFACT_FILE).read_text()
    inputs = [one | {"digest": "0" * 64} for one in made.record["inputs"]]
    (made.path / artifact.ARTIFACT_FILE).unlink()
    try:
        artifact.commit_record(made.path, {**made.record, "inputs": inputs})
        refused = pedigree("takedown", "--url", page["url"], *WHY, "--yes", root=place)
    finally:
        artifact.write_text(made.path / artifact.ARTIFACT_FILE, record)
        artifact.write_text(made.path / artifact.COPY_FILE, record)
    assert refused.code == 2 and "of other shards" in refused.errors and "--until provenance_index" in refused.errors
    assert not (place / FILE).exists()


def test_a_page_is_withdrawn_and_only_its_snapshot_is_built_again(place, page):
    before, texts = cells(place), documents(place, "extracted_documents", "kitchen-2", "id", "text")
    cut_off = pedigree("takedown", "--url", page["url"], *WHY, "--yes", "--no-rebuild", root=place)
    assert (cut_off.code, cut_off.answer["done"], len(read_tombstones(place))) == (0, "withdrawn", 1)
    assert cells(place)["extracted_documents", "kitchen-small@kitchen-2"].state == "outdated"
    ended = pedigree("takedown", "--url", page["url"], *WHY, "--yes", root=place)
    assert (ended.code, ended.answer["done"], len(read_tombstones(place))) == (0, "was withdrawn before", 1)
    proof = ended.answer["report"]["proof"]
    assert proof["is_proved"] and proof["runs"] > 20 and proof["files"] > 500
    after = cells(place)
    same = [key for key in before if key[1] == "kitchen-small@kitchen-1"]
    assert all(after[key].artifact.digest == before[key].artifact.digest for key in same)
    assert not ended.answer["learned"]  # the models learned from the first snapshot alone
    corpus = [cell for (asset, part), cell in after.items() if asset in ("token_shards", "provenance_index")]
    assert all(cell.state == "made" for cell in corpus)
    made = after["extracted_documents", "kitchen-small@kitchen-2"].artifact
    assert made.record["reused_ranks"]["ranks"] == made.record["reused_ranks"]["of"]
    assert made.record["counts"]["dropped"]["takedown:asked_by_its_owner"] >= 1
    gone = {one.entry for stone in read_tombstones(place) for one in stone.entries if one.cluster} | {page["id"]}
    left = documents(place, "extracted_documents", "kitchen-2", "id", "text")
    assert left == [row for row in texts if row["id"] not in gone]
    (traced,) = pedigree("takedown", "--url", page["url"], *WHY, "--dry-run", root=place).answer["snapshots"]
    assert traced["withdrawn"] == traced["pages"] and not traced["shards"]


def test_versions_that_saw_the_page_are_tagged(place, page):
    (version,) = registered_versions(Tracking("", place, in_background=False))
    (told,) = json.loads(version.tags["upstream_withdrawn"])
    assert (told["takedown"], told["reason"]) == (1, "asked by its owner") and told["entries"][0].startswith("=")


def test_a_report_says_that_a_version_is_tagged_only_where_it_is(place, page):
    """Another takedown may finish the report of one that failed before it could tag."""
    (report,) = reports_under(place)
    tracking = Tracking("", place, in_background=False)
    for tag, said in (("upstream_withdrawn", "tagged"), ("other", "**not tagged**")):
        with closing(sqlite3.connect(place / "mlflow.db")) as store, store:
            store.execute("UPDATE model_version_tags SET key = ? WHERE key = 'upstream_withdrawn'", (tag,))
        found = with_tags(report["found"], {1}, tracking)
        assert f"; {said}" in "\n".join(markdown_of({**report, "found": found}))
    with closing(sqlite3.connect(place / "mlflow.db")) as store, store:
        store.execute("UPDATE model_version_tags SET key = 'upstream_withdrawn' WHERE key = 'other'")


def test_a_report_is_written_although_a_version_was_deleted_from_mlflow(place, page):
    (report,) = reports_under(place)
    gone = [{**told, "versions": [{**one, "version": "999"} for one in told["versions"]]} for told in report["found"]]
    found = with_tags(gone, {1}, Tracking("", place, in_background=False))
    assert "MLflow did not say whether it is tagged" in "\n".join(markdown_of({**report, "found": found}))


def test_a_version_that_saw_the_page_can_still_be_traced_and_its_text_is_gone(place, page):
    (traced,) = pedigree("trace", "kitchen-small/1", "--url", page["url"], root=place).answer["pages"]
    (seen,) = traced["seen"]
    assert seen["times"] > 0 and seen["steps"]
    step = ("--step", str(seen["steps"][0]["step"]), "--texts")
    batch = pedigree("trace", "kitchen-small/1", *step, root=place).answer["documents"]
    (own,) = [one for one in batch if one["id"] == page["id"]]
    assert not any(re.search(r"\w", piece["text"].replace("<|endoftext|>", "")) for piece in own["pieces"])
    folder = cells(place)["crawl_archives", "kitchen-small@kitchen-2"].artifact.path
    with open(next(folder.glob(f"archives/{page['id'].split('/')[1]}")), "rb") as stream:
        stream.seek(int(page["id"].rpartition("/")[2]))
        record = next(iter(ArchiveIterator(stream, parse_http=False)))
    assert record.headers["WARC-Target-URI"] == page["url"] and record.reader.read() == GONE
    checked = verified(compare(KITCHEN, place), Tracking("", place, in_background=False))
    assert not checked.problems and [line for _, line in checked.remarks if "takedown 1 erased" in line]


def test_a_domain_is_withdrawn_and_the_models_of_the_corpus_are_kept(place, page):
    """The page may have been withdrawn before, by another test."""
    before, recipe, earlier = cells(place), "kitchen-small", len(read_tombstones(place))
    (damaged,) = quarantined(place)["kitchen-1"]
    domain = urlsplit(damaged["url"]).hostname
    withdrawn = of_domain(records_by_host(place), domain)
    command = ("takedown", "--domain", domain, *WHY, "--yes")

    def lists() -> int:
        return len(list(place.glob("*/*/erased.json")))

    num_lists, finish = lists(), (sys.executable, "-c", FINISH, str(place))
    argv, reference = [*COMMAND, *command, "--root", str(place), "--json"], place / "refs/token_shards"
    shards = (reference / f"{recipe}@kitchen-1.json").read_bytes()
    assert killed_when(lambda: (reference / f"{recipe}@kitchen-1.json").read_bytes() != shards, argv)
    assert cells(place)["provenance_index", f"{recipe}@kitchen-1"].state == "outdated"  # no page can be searched
    assert killed_when(lambda: lists() > num_lists, argv)
    assert killed_when(lambda: lists() > num_lists + 3, finish)  # what follows the rebuild
    assert killed_when(lambda: len(list(place.glob("takedowns/*.report.md"))) > earlier, finish)
    assert all(not damaged_files(made) for made in artifacts_under(place))
    ended = pedigree(*command, root=place)
    assert ended.code == 0, ended.errors
    report = ended.answer["report"]
    assert report["takedowns"] == [earlier + 1] and report["proof"]["is_proved"] and report["proof"]["runs"] > 100
    erased = {one["asset"] for one in report["erased"]["files"] if one["pages"]}
    assert erased >= {"crawl_archives", "extracted_documents", "document_signatures", "token_shards"}
    indexes = list(place.glob("deduplicated_documents/*/index"))  # texts and keys of pages, packed
    assert indexes and not [path for path in indexes if path.with_name("erased.json").exists()]
    after = cells(place)
    models = [(model, recipe) for model in ("tokenizer", "quality_models")]
    assert {(one["asset"], one["policy"]) for one in ended.answer["learned"]} == {
        (model, "keep") for model, _ in models
    }
    assert all(after[key].is_kept and after[key].artifact == before[key].artifact for key in models)
    assert after["token_shards", f"{recipe}@kitchen-1"].state == "made"
    also = {one.entry for stone in read_tombstones(place) for one in stone.entries if one.cluster}
    also |= {page["id"]} if earlier else set()
    dropped = [
        row
        for (asset, _), cell in after.items()
        for file in (cell.artifact.path.glob("dropped/*.parquet") if asset == "extracted_documents" else ())
        for row in read_documents(file, ("id", "reason"))
    ]
    gone = [row["id"] for row in dropped if row["reason"] == "takedown:asked_by_its_owner"]
    assert sorted(gone) == sorted(withdrawn | also)
    assert quarantined(place)["kitchen-1"] == []
    (archive,) = after["crawl_archives", f"{recipe}@kitchen-1"].artifact.path.glob(f"archives/{damaged['warc_file']}")
    with open(archive, "rb") as stream:
        stream.seek(damaged["warc_offset"])
        record = next(iter(ArchiveIterator(stream, parse_http=False)))
    assert record.headers["WARC-Target-URI"] == damaged["url"] and record.reader.read() == GONE


def test_rows_are_withdrawn_by_id_and_by_text_and_their_data_is_made_without_them(place):
    """The sources lie elsewhere, so their rows are dropped at every build, and the older data is emptied."""
    before = cells(place)
    data = before["instruction_data", "kitchen-small"].artifact.path
    first, second, *_ = read_lines(data / "instructions.jsonl")
    said = " ".join(max((one["content"] for one in second["messages"]), key=len).split()[:30]).upper()
    asked = pedigree("takedown", "--document", first["id"], *WHY, "--dry-run", root=place)
    assert asked.code == 0 and [one["id"] for one in asked.answer["asked_rows"]] == [first["id"]], asked.errors
    (version,) = asked.answer["versions"]
    assert version["rows"] == 1 and not asked.answer["pages"]
    price = asked.answer["rebuild"]
    by_it, left = ({one["asset"] for one in part["assets"]} for part in (price, price["models"]))
    assert by_it == {"instruction_data", "row_index"} and {"sft_model", "model_scores"} <= left
    assert "base_model" not in left
    trained = last_made(before["sft_model", "kitchen-small"], place)
    assert trained is not None and price["models"]["seconds"] >= trained.record["seconds"] - 0.1
    assert price["seconds"] > 0
    by_text = pedigree("takedown", "--text", said, *WHY, "--dry-run", root=place)
    assert second["id"] in {one["id"] for one in by_text.answer["asked_rows"]}, by_text.errors
    ended = pedigree("takedown", "--document", first["id"], *WHY, "--yes", root=place)
    assert ended.code == 0, ended.errors
    made = cells(place)["instruction_data", "kitchen-small"].artifact
    assert made.path != data and made.record["counts"]["dropped"]["takedown:asked_by_its_owner"] == 1
    (dropped,) = [row for row in read_lines(made.path / "dropped.jsonl") if row["id"] == first["id"]]
    kept = {row["id"] for row in read_lines(made.path / "instructions.jsonl")}
    assert dropped["row"] == {} and first["id"] not in kept
    emptied = next(row for row in read_lines(data / "instructions.jsonl") if row["id"] == first["id"])
    assert emptied["messages"] == [] and cells(place)["preference_data", "kitchen-small"].state == "made"
    (version,) = registered_versions(Tracking("", place, in_background=False))
    assert first["id"] in json.loads(version.tags["upstream_withdrawn"])[-1]["entries"]
    again = pedigree("takedown", "--document", first["id"], *WHY, "--yes", root=place)
    assert again.code == 0 and again.answer["done"] == "was withdrawn before"
