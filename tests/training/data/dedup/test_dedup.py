"""Deduplication: the rule, its independence of everything else, and recall on published truth."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import tracemalloc
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from benchmarks import dedup_memory
from tests.training.data import chain
from training.contract import artifact
from training.contract.files import checked
from training.contract.files.checked import noting_opened
from training.contract.job import DataError, InputArtifact, read_job, write_job
from training.contract.running.ranks import run_rank
from training.contract.running.runner import run_job
from training.data.crawl.crawl import source_files
from training.data.crawl.settings import SnapshotRecipe
from training.data.crawl.warc import Record, read_warc
from training.data.dedup import corpus, dedup, duplicates
from training.data.dedup import sign as signatures
from training.data.dedup.settings import DedupRecipe
from training.data.dedup.shuffle import SliceDamaged, SliceFile, name_of
from training.data.extract.extract import _response
from training.data.extract.pages.html import extract_html
from training.data.extract.responses import payload
from training.data.extract.settings import ExtractRecipe
from training.data.words.ngrams import jaccard, ngram_set, words
from training.stages import STAGES

# Eleven words once the hyphen separates two; seven 5-grams each, six shared: similarity 6/8.
LEFT = "Bake the well-risen loaf until its crust sounds hollow below"
RIGHT = "Bake the well-risen loaf until its crust sounds hollow inside"


def deduplicated(root: Path, snapshots: dict[str, list[list[str]]], recipe: DedupRecipe) -> list[InputArtifact]:
    """The deduplicated artifact of each snapshot, each made from itself and the earlier ones."""
    return deduplicated_of(root, [chain.documents(root, name, files) for name, files in snapshots.items()], recipe)


def deduplicated_of(
    root: Path, sources: list[InputArtifact], recipe: DedupRecipe, *, workers: int = 1
) -> list[InputArtifact]:
    """The same for documents that are made already."""
    signed, made = [], []
    for place, source in enumerate(sources, 1):
        how = {"partition": source.partition, "settings": {"dedup": recipe}, "workers": workers}
        signed.append(chain.run(root, "sign", "document_signatures", inputs=[source], **how))
        made.append(chain.run(root, "dedup", "deduplicated_documents", inputs=[*sources[:place], *signed], **how))
    return made


def removed(item: InputArtifact) -> dict[str, str]:
    """Id → duplicate_of of the removed documents."""
    return {row["id"]: row["duplicate_of"] for row in chain.rows(item, "dropped")}


@pytest.mark.parametrize(("min_similarity", "merged"), [(0.7, True), (0.75, True), (0.8, False)])
def test_a_pair_of_similarity_three_quarters_merges_only_at_or_below_it(tmp_path, min_similarity, merged):
    recipe = DedupRecipe(min_similarity=min_similarity, buckets=64, hashes_per_bucket=1)
    (made,) = deduplicated(tmp_path, {"one": [[LEFT, RIGHT]]}, recipe)
    dropped = chain.rows(made, "dropped")
    assert bool(dropped) is merged
    if merged:
        assert dropped[0]["similarity"] == 0.75 and dropped[0]["reason"] == "near_duplicate"


def edited(text: str, generator: random.Random, changes: int) -> str:
    spelled = text.split()
    for _ in range(changes):
        spelled[generator.randrange(len(spelled))] = generator.choice("pqrstuvw") * 3
    return " ".join(spelled)


def random_corpus(seed: int) -> dict[str, list[list[str]]]:
    """Three snapshots of two files: edited copies, exact copies, equal words in other dress, texts without a word."""
    generator = random.Random(seed)
    bases = [" ".join(generator.choices([f"w{i}" for i in range(50)], k=60)) for _ in range(6)]
    snapshots = {}
    for name in ("one", "two", "three"):
        texts = [edited(generator.choice(bases), generator, generator.randrange(5)) for _ in range(20)]
        texts += [generator.choice(bases), generator.choice(bases).upper() + "!", "", "?!", "short text"]
        generator.shuffle(texts)
        snapshots[name] = [texts[:12], texts[12:]]
    return snapshots


def removed_by_rule(snapshots: dict[str, list[list[str]]], recipe: DedupRecipe) -> dict[str, tuple[str, str]]:
    """Id → (duplicate_of, reason), by comparing every document with every earlier one."""
    seen: list[tuple[str, str, np.ndarray]] = []
    expected = {}
    for name, files in snapshots.items():
        for number, texts in enumerate(files):
            for place, text in enumerate(texts):
                key = chain.document(name, f"file-{number}.warc.gz", 100 * place, text)["id"]
                ngrams = ngram_set(text, recipe.ngram_words)
                exact = [other for other, words, _ in seen if words == text]
                equal = [other for other, _, theirs in seen if len(ngrams) and np.array_equal(theirs, ngrams)]
                near = [other for other, _, theirs in seen if jaccard(theirs, ngrams) >= recipe.min_similarity]
                if exact:
                    expected[key] = exact[0], "exact_duplicate"
                elif equal or near:
                    expected[key] = (equal or near)[0], "near_duplicate"
                seen.append((key, text, ngrams))
    return expected


@pytest.mark.parametrize(("seed", "compiled"), [(0, False), (1, False), (2, True), (3, True)])
def test_removal_is_exactly_the_rule_written_out(tmp_path, monkeypatch, seed, compiled):
    if compiled:
        monkeypatch.setattr(signatures, "COMPILED_FROM_BYTES", 0)
        monkeypatch.setattr(corpus, "GROUP_BYTES", 1)  # a group for each file, and several ranges
        monkeypatch.setattr(corpus, "RANGE_BYTES", 10_000)
        monkeypatch.setattr(duplicates, "SETS_BYTES", 1)  # a batch for each group
    recipe = DedupRecipe(buckets=64, hashes_per_bucket=1)  # a pair of similarity 0.7 is missed once in 10^33
    snapshots = random_corpus(seed)
    found = {}
    for item in deduplicated(tmp_path, snapshots, recipe):
        found |= {row["id"]: (row["duplicate_of"], row["reason"]) for row in chain.rows(item, "dropped")}
    assert found == removed_by_rule(snapshots, recipe)
    assert len(found) > 10


def test_a_snapshot_does_not_change_when_a_newer_one_comes(tmp_path):
    snapshots = random_corpus(9)
    first_two = dict(list(snapshots.items())[:2])
    before = [item.digest for item in deduplicated(tmp_path / "a", first_two, DedupRecipe())]
    after = [item.digest for item in deduplicated(tmp_path / "b", snapshots, DedupRecipe())]
    assert before == after[:2]


def test_the_recipe_chooses_which_duplicate_of_a_snapshot_stays(tmp_path):
    """Of three near-duplicates in one snapshot the policy's one stays; newer copies in the next one change nothing."""
    columns = [  # date, quality_score, language_score, text
        ("2020-01-01", 0.2, 0.5, LEFT),
        ("2022-01-01", 0.8, 0.6, RIGHT),
        ("2021-01-01", 0.1, 0.9, f"{LEFT} the"),
    ]
    rows = [
        chain.document("one", "file.warc.gz", 100 * place, text)
        | {"date": date, "quality_score": quality, "language_score": language}
        for place, (date, quality, language, text) in enumerate(columns)
    ]
    later = [row | {"id": f"two-{row['id']}", "snapshot": "two", "date": "2030-01-01"} for row in rows]
    stays = {
        "newest": (1, "2022-01-01, not 2020-01-01"),
        "longest": (2, "64, not 60"),
        "best_score": (1, "0.8, not 0.2"),
        "own_language": (2, "0.9, not 0.5"),
        "first": (0, ""),
    }
    for policy, (wanted, why) in stays.items():
        extra = (pa.field("quality_score", pa.float32()),)
        sources = [
            chain.documents_of(tmp_path / policy, name, [documents], extra=extra)
            for name, documents in (("one", rows), ("two", later))
        ]
        made = deduplicated_of(tmp_path / policy, sources, DedupRecipe(survivor=policy, min_similarity=0.5))
        assert [row["id"] for item in made for row in chain.rows(item, "documents")] == [rows[wanted]["id"]]
        gone = list(chain.rows(made[0], "dropped"))
        if policy == "first":
            assert "survivor" not in gone[0]  # the same columns as before there was a choice
            continue
        assert gone[0]["survivor"] == f"{policy}: {why}"
        assert gone[0]["duplicate_of"] == rows[wanted]["id"] and gone[0]["similarity"] > 0.5
        assert {row["survivor"] for row in chain.rows(made[1], "dropped")} == {"an earlier snapshot"}


def test_a_survivor_by_a_score_that_documents_lack_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match=r"best_score.* quality_score"):
        deduplicated(tmp_path, {"one": [[LEFT, LEFT]]}, DedupRecipe(survivor="best_score"))


@pytest.mark.parametrize("late", ["one", "two"])
def test_a_late_older_snapshot_changes_only_newer_ones(tmp_path, late):
    snapshots = random_corpus(9) | {"one": [file[:2] for file in random_corpus(9)["one"]]}
    there = {name: files for name, files in snapshots.items() if name != late}
    before = dict(zip(there, deduplicated(tmp_path / "a", there, DedupRecipe()), strict=True))
    after = dict(zip(snapshots, deduplicated(tmp_path / "b", snapshots, DedupRecipe()), strict=True))
    older = list(snapshots)[: list(snapshots).index(late)]
    assert all(after[name].digest == before[name].digest for name in older)
    for name in there.keys() - older:
        assert removed(before[name]).keys() <= removed(after[name]).keys()
        # What a newer one loses besides, it loses to the late one.
        gone = removed(after[name]).keys() - removed(before[name]).keys()
        assert {removed(after[name])[key].partition("/")[0] for key in gone} == {late}, name


def test_how_documents_lie_in_files_and_how_many_work_changes_nothing(tmp_path):
    texts = [text for file in random_corpus(5)["one"] for text in file]
    rows = [chain.document("one", "web.warc.gz", place, text) for place, text in enumerate(texts)]
    found = []
    for number, cuts in enumerate(([0, 25], [0, 3, 4, 20, 25], [0, 0, 25])):
        root = tmp_path / str(number)
        source = chain.documents_of(root, "one", [rows[start:end] for start, end in pairwise(cuts)])
        (made,) = deduplicated_of(root, [source], DedupRecipe(), workers=1 + number % 2)
        found.append((removed(made), [row["id"] for row in chain.rows(made)]))
    assert found[0] == found[1] == found[2]


def test_every_document_is_kept_or_dropped_with_its_reason_and_canonical(tmp_path):
    snapshots = {"one": [[LEFT, "other words entirely", LEFT]], "two": [["other words entirely", LEFT.upper(), "new"]]}
    one, two = deduplicated(tmp_path, snapshots, DedupRecipe())
    record = two.record()
    assert record["counts"] == {
        "in": 3,
        "kept": 1,
        "dropped": {"exact_duplicate": 1, "near_duplicate": 1},
        "quarantined": {},
    }
    assert [row["text"] for row in chain.rows(two)] == ["new"]
    assert removed(two) == {
        "two/file-0.warc.gz/000000000000": "one/file-0.warc.gz/000000000100",
        "two/file-0.warc.gz/000000000100": "one/file-0.warc.gz/000000000000",
    }
    assert record["metrics"]["removed_cross_snapshot"] == 2 and record["metrics"]["largest_cluster"] == 2
    assert one.record()["metrics"]["removed_exact"] == 1


def test_a_page_repeated_in_an_earlier_snapshot_is_compared_once(tmp_path):
    text = " ".join(f"w{i}" for i in range(30))
    earlier = [f"{text}{'.' * i}" for i in range(300)]
    recipe = DedupRecipe(min_similarity=0.99, buckets=20, hashes_per_bucket=1)  # all are compared, none is enough
    _, made = deduplicated(tmp_path, {"one": [earlier], "two": [[text.replace("w15", "x")]]}, recipe)
    lines = [json.loads(line) for line in Path(made.path, "metrics.jsonl").read_text().splitlines()]
    compared = max(line["verified_pairs"] for line in lines if "verified_pairs" in line)
    assert 0 < compared <= 20 and removed(made) == {}  # at most once for each bucket


def test_only_files_with_candidates_are_opened(tmp_path, monkeypatch):
    text = " ".join(f"w{i}" for i in range(30))
    snapshots = {"one": [["quite another text"], [text]], "two": [[f"x {text}"]]}
    opened = []
    monkeypatch.setattr(corpus, "_rows_of_file", spy(corpus._rows_of_file, opened))
    *_, two = deduplicated(tmp_path, snapshots, DedupRecipe())
    assert [path.name for path, _, column in opened if column == "text"] == ["00000.parquet"]  # its own
    opened.clear()
    assert made_again(two, tmp_path / "alone" / two.fingerprint) == two.digest
    assert [path.name for path, _, column in opened if column == "text"] == ["00001.parquet", "00000.parquet"]


def made_again(item: InputArtifact, output: Path) -> str:
    """Make an artifact again in another folder; return its digest. Only indexes beside that folder are found."""
    job = replace(read_job(Path(item.path, "job.json")), output=str(output))
    assert run_job(job, STAGES) == 0
    return artifact.find(output).digest


def flipped(path: Path, place: int) -> None:
    """Change one bit of a file, as a disk may."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


BOTH = {"filtered_documents", "document_signatures"}
INDEX_FAULTS = {
    "sound": (lambda index: None, set()),
    "removed": (shutil.rmtree, BOTH),
    "keys damaged": (lambda index: flipped(next(index.glob("*.keys")), 200), {"document_signatures"}),
    "texts damaged": (lambda index: flipped(next(index.glob("*.texts")), 60), BOTH),
    "files cut off": (lambda index: [os.truncate(path, 30) for path in index.iterdir()], BOTH),
}


@pytest.mark.parametrize(("damage", "read"), INDEX_FAULTS.values(), ids=INDEX_FAULTS)
def test_an_index_replaces_the_earlier_files_and_a_damaged_one_changes_nothing(tmp_path, monkeypatch, damage, read):
    one, two = deduplicated(tmp_path, {"one": [[LEFT, "x"], ["y"]], "two": [[RIGHT, "x"]]}, DedupRecipe(buckets=64))
    (index,) = Path(one.path, "index").iterdir()
    kept = {entry["path"]: entry["sha256"] for entry in one.record()["beside"]}
    assert kept == {f"index/{index.name}/{path.name}": artifact.sha256_of(path) for path in index.iterdir()}
    damage(index)
    earlier = {item.path: item.asset for item in read_job(Path(two.path, "job.json")).inputs if "one" in item.partition}
    opened = []
    monkeypatch.setattr(checked, "check", spy(checked.check, opened))
    assert made_again(two, Path(two.path).with_name("again")) == two.digest
    assert len(removed(two)) == 2
    assert {earlier[str(folder)] for folder, *_ in opened if str(folder) in earlier} == read


def test_an_index_that_is_too_short_for_its_number_of_slices_has_none(tmp_path):
    (tmp_path / "cut").write_bytes(b"\x7f" * 30)
    with SliceFile(tmp_path / "cut", "an index") as file:
        assert len(file) == 0 and file.read(0) is None


def test_the_index_serves_jobs_with_more_and_with_fewer_ranges(tmp_path, monkeypatch):
    snapshots = random_corpus(4)
    expected = [item.digest for item in deduplicated(tmp_path / "one range", snapshots, DedupRecipe())]
    for name, sizes in {"more": (10**9, 20_000, 5_000), "fewer": (5_000, 20_000, 10**9)}.items():
        made, ranges = list[str](), list[int]()
        for place, range_bytes in enumerate(sizes):
            monkeypatch.setattr(corpus, "RANGE_BYTES", range_bytes)
            some = dict(list(snapshots.items())[: place + 1])
            item = deduplicated(tmp_path / name, some, DedupRecipe())[-1]  # the earlier ones are there already
            ranges.append(corpus.corpus_of(read_job(Path(item.path, "job.json"))).num_ranges)
            made.append(item.digest)
        assert made == expected and len(set(ranges)) == 3


def test_a_rank_of_candidates_holds_the_keys_of_its_own_snapshot_and_no_more_for_more_earlier_ones(tmp_path):
    peaks = {}
    for earlier in (3, 12):
        job = dedup_memory.one_range(tmp_path / str(earlier), 20_000, earlier)
        work = SimpleNamespace(path=Path(job.output))
        tracemalloc.start()
        try:
            duplicates.find_candidates(job, work, 0)
            peaks[earlier] = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peaks[12] < 1.1 * peaks[3]


def spy(function, calls):
    def called(*arguments):
        calls.append(arguments)
        return function(*arguments)

    return called


def test_with_urls_a_page_seen_before_goes_whatever_it_says_now(tmp_path):
    urls = {"one": "http://www.example.test/page/", "two": "https://example.test/page#top", "three": None}
    sources = [
        chain.documents_of(tmp_path, name, [[chain.document(name, "f", 0, f"news of {name}", url=url)]])
        for name, url in urls.items()
    ]
    made = deduplicated_of(tmp_path, sources, DedupRecipe(urls=True))
    assert [item.record()["counts"]["dropped"] for item in made] == [{}, {"duplicate_url": 1}, {}]
    assert removed(made[1]) == {"two/f/000000000000": "one/f/000000000000"}


def test_a_page_repeated_many_times_is_compared_once(tmp_path):
    texts = [" ".join(f"w{i}" for i in range(30))] * 300
    (made,) = deduplicated(tmp_path, {"one": [[f"{text}{'.' * i}" for i, text in enumerate(texts)]]}, DedupRecipe())
    assert made.record()["metrics"]["removed_near"] == 299
    assert set(removed(made).values()) == {"one/file-0.warc.gz/000000000000"}


def test_only_documents_with_both_halves_of_an_ngram_set_s_hash_in_common_count_as_one():
    keys, documents = [8, 7, 7, 7, 7, 9, 8], np.array([7, 5, 4, 3, 2, 1, 0])
    halves = [2, 1, 1, 2, 1, 3, 4], [2, 1, 2, 2, 1, 3, 4]  # each column alone is equal where another is not
    keys, *halves = (np.array(column, np.uint64) for column in (keys, *halves))
    members, begins = duplicates.runs_of_equal((keys, documents, *halves), own_start=0)
    assert (members.tolist(), begins.tolist()) == ([2, 3, 4, 0, 7], [True, False, False, True, False])


def test_losing_too_much_of_a_language_is_refused(tmp_path):
    rows = [chain.document("one", "f", i, "always the same", language="de") for i in range(3)]
    rows += [chain.document("one", "g", i, f"all of these {i} are of one kind {i}") for i in range(3)]
    source = chain.documents_of(tmp_path, "one", [rows])
    (made,) = deduplicated_of(tmp_path, [source], DedupRecipe(min_kept_fraction=0.5))
    assert made.record()["notes"]["survival"] == {"web/de": {"in": 3, "kept": 1}, "web/en": {"in": 3, "kept": 3}}
    (gate,) = [gate for gate in made.record()["gates"] if gate["name"] == "survival"]
    assert not gate["passed"] and gate["evidence"]["below"] == {"web/de": pytest.approx(1 / 3, abs=1e-6)}


def test_switched_off_everything_passes_and_the_record_says_so(tmp_path):
    (made,) = deduplicated(tmp_path, {"one": [[LEFT, LEFT]]}, DedupRecipe(enabled=False))
    assert len(chain.rows(made)) == 2 and not chain.rows(made, "dropped")
    assert "off" in made.record()["notes"]["deduplication"]


@pytest.mark.parametrize(
    ("files", "said"),
    [([[("f", 5), ("f", 4)]], "must ascend"), ([[("b", 0)], [("a", 0)]], r"00001\.parquet: .* comes after b")],
)
def test_documents_and_files_out_of_order_are_refused(tmp_path, files, said):
    rows = [[chain.document("one", name, place, f"{name} at {place}") for name, place in file] for file in files]
    with pytest.raises(DataError, match=said):
        deduplicated_of(tmp_path, [chain.documents_of(tmp_path, "one", rows)], DedupRecipe())


def test_the_order_in_which_a_recipe_names_its_files_changes_nothing(tmp_path):
    texts = [text for file in random_corpus(4)["one"] for text in file if text]
    paths = []
    for name, some in (("a", texts[:10]), ("b", texts[10:15]), ("c", texts[15:])):
        paths.append(tmp_path / f"{name}.jsonl")
        paths[-1].write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    found = []
    for number, order in enumerate((paths, paths[::-1], [paths[1], paths[2], paths[0]])):
        snapshot = SnapshotRecipe(name="one", source="jsonl", paths=tuple(map(str, order)))
        settings = {"snapshot": snapshot, "files": source_files(snapshot)}
        root = tmp_path / str(number)
        crawled = chain.run(root, "crawl", "crawl_archives", "tiny@one", settings)
        extracted = chain.run(
            root, "extract", "extracted_documents", "tiny@one", {"extract": ExtractRecipe()}, [crawled]
        )
        source = replace(extracted, asset="filtered_documents")  # as a filter without a rule would leave them
        found += deduplicated_of(root, [source], DedupRecipe())
    assert len({made.digest for made in found}) == 1 and removed(found[0])


def test_a_snapshot_without_its_own_signatures_is_refused(tmp_path):
    one = chain.documents(tmp_path, "one", [["text"]])
    two = chain.documents(tmp_path, "two", [["text"]])
    signed = chain.run(tmp_path, "sign", "document_signatures", "tiny@one", {"dedup": DedupRecipe()}, [one])
    with pytest.raises(DataError, match="same snapshots"):
        chain.run(tmp_path, "dedup", "deduplicated_documents", "tiny@two", {"dedup": DedupRecipe()}, [one, two, signed])


def test_an_empty_snapshot_gives_empty_files(tmp_path):
    (made,) = deduplicated(tmp_path, {"one": [[]]}, DedupRecipe())
    assert made.record()["counts"]["in"] == 0 and chain.rows(made) == []


@pytest.mark.data
@pytest.mark.parametrize("size", [100, 1000])
def test_every_published_near_duplicate_is_found_and_nothing_else(tmp_path, size):
    folder = Path(os.environ["PEDIGREE_DATA"], "dedup")
    lines = gzip.decompress((folder / f"minhash_articles_{size}.train.gz").read_bytes()).decode().splitlines()
    names, texts = zip(*(line.split(" ", 1) for line in lines), strict=True)
    truth = {frozenset(line.split()) for line in (folder / f"minhash_articles_{size}.truth").read_text().splitlines()}
    (made,) = deduplicated(tmp_path, {"one": [texts]}, DedupRecipe())
    place = {
        row["id"]: names[row["warc_offset"] // 100]
        for folder in ("documents", "dropped")
        for row in chain.rows(made, folder)
    }
    found = {frozenset((place[left], place[right])) for left, right in removed(made).items()}
    assert found == {pair for pair in truth if pair}


# Real pages: the manual of git as two releases of Debian have it. Options are described in several pages, and every
# page ends in the same two lines.


@cache
def manual(snapshot: str) -> dict[str, str]:
    """The text of the first short pages by URL."""
    path = Path(os.environ["PEDIGREE_DATA"], "crawl", snapshot, "web-01-00000.warc.gz")
    settings = ExtractRecipe(extractor="blocks")
    texts: dict[str, str] = {}
    for item in read_warc(path, max_content_bytes=100_000):
        if isinstance(item, Record) and item.type == "response" and "git-docs.test/docs/git-" in item.target_uri:
            response = _response(item)
            if response.status == 200 and not item.is_cut and len(texts) < 24:
                body = payload(response, max_bytes=100_000)
                texts[item.target_uri] = extract_html(body, headers=response.headers, settings=settings).text
    return texts


def manual_deduplicated(root: Path, recipe: DedupRecipe, *snapshots: str) -> list[InputArtifact]:
    """The deduplicated pages of each snapshot."""
    sources = []
    for name in snapshots:
        pages = enumerate(manual(name).items())
        rows = [chain.document(name, "f", place, text, url=url) for place, (url, text) in pages]
        sources.append(chain.documents_of(root, name, [rows]))
    return deduplicated_of(root, sources, recipe)


UNLIKE = 1.0  # no page is near enough to another to go


@pytest.mark.data
def test_of_real_pages_each_url_stays_once(tmp_path):
    recipe = DedupRecipe(urls=True, min_similarity=UNLIKE)
    first, second = manual_deduplicated(tmp_path, recipe, "snapshot-1", "snapshot-2")
    again = [url for url in manual("snapshot-2") if url in manual("snapshot-1")]
    dropped = chain.rows(second, "dropped")
    assert [row["url"] for row in dropped] == again and len(again) > 10
    assert {row["reason"] for row in dropped} == {"duplicate_url"} and not removed(first)
    assert any(manual("snapshot-1")[url] != manual("snapshot-2")[url] for url in again)


@pytest.mark.data
@pytest.mark.parametrize(("unit", "mark"), [("line", "\n"), ("paragraph", "\n\n")])
def test_of_real_pages_lines_and_paragraphs_that_are_everywhere_go_and_no_others(tmp_path, unit, mark):
    recipe = DedupRecipe(min_similarity=UNLIKE, max_line_copies=6, line_unit=unit)
    (made,) = manual_deduplicated(tmp_path, recipe, "snapshot-1")
    pages = list(manual("snapshot-1").values())
    copies = Counter(tuple(words(part)) for page in pages for part in page.split(mark))
    copies[()] = 0  # what has no word is no line
    expected = [[part for part in page.split(mark) if copies[tuple(words(part))] <= 6] for page in pages]
    kept = [row["text"] for row in chain.rows(made)]
    assert [" ".join(text.split()) for text in kept] == [" ".join(" ".join(parts).split()) for parts in expected]
    assert copies[("part", "of", "the", "git", "1", "suite")] == len(pages)
    assert sum(map(len, kept)) < sum(map(len, pages))


@pytest.mark.data
def test_of_real_pages_substrings_stay_where_they_stand_first(tmp_path):
    length = 100
    recipe = DedupRecipe(min_similarity=UNLIKE, min_substring_bytes=length)
    (made,) = manual_deduplicated(tmp_path, recipe, "snapshot-1")
    seen: set[bytes] = set()
    expected = []
    for page in manual("snapshot-1").values():
        data = page.encode()
        stays = bytearray(b"\x01" * len(data))
        for start in range(len(data) - length + 1):
            window = data[start : start + length]
            if window in seen:
                stays[start : start + length] = bytes(length)
            seen.add(window)
        left = bytes(byte for byte, kept in zip(data, stays, strict=True) if kept)
        expected.append(b"".join(left.split()))
    assert [b"".join(row["text"].encode().split()) for row in chain.rows(made)] == expected
    assert made.record()["metrics"]["removed_substring_bytes"] > 1000


def divide(patch: pytest.MonkeyPatch) -> None:
    """A group of files and a batch of sets for each file, and several ranges of keys."""
    patch.setattr(corpus, "GROUP_BYTES", 1)
    patch.setattr(corpus, "RANGE_BYTES", 20_000)
    patch.setattr(duplicates, "SETS_BYTES", 1)


@pytest.fixture
def small_shares(monkeypatch):
    divide(monkeypatch)


SHARED = ("digest", "counts", "metrics", "gates", "notes")
CHOSEN = DedupRecipe(survivor="longest", urls=True, max_line_copies=2, group_documents=10, min_kept_fraction=0.1)


@pytest.mark.parametrize("recipe", [DedupRecipe(min_similarity=0.5), CHOSEN], ids=["plain", "everything"])
def test_how_the_work_is_divided_changes_no_byte_and_no_number(tmp_path, recipe, small_shares):
    divided = deduplicated(tmp_path / "a", random_corpus(5), recipe)
    assert corpus.corpus_of(read_job(Path(divided[-1].path, "job.json"))).num_ranges == 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "GROUP_BYTES", 10**9)
        patch.setattr(corpus, "RANGE_BYTES", 10**9)
        patch.setattr(duplicates, "SETS_BYTES", 10**9)
        whole = deduplicated(tmp_path / "b", random_corpus(5), recipe)
    for one, other in zip(divided, whole, strict=True):
        assert [one.record()[name] for name in SHARED] == [other.record()[name] for name in SHARED]
    assert sum(item.record()["metrics"]["clusters"] for item in whole) > 10


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> InputArtifact:
    """The last of three snapshots, made in small shares with everything that a recipe can ask for."""
    with pytest.MonkeyPatch.context() as patch:
        divide(patch)
        return deduplicated(tmp_path_factory.mktemp("made"), random_corpus(5), CHOSEN)[-1]


def test_ranks_of_each_phase_run_alone_in_any_order_and_open_the_files_of_one_group(tmp_path, made, small_shares):
    job = replace(read_job(Path(made.path, "job.json")), output=str(tmp_path / "alone" / made.fingerprint))
    stage = STAGES["dedup"]
    for phase in dedup.PHASES:
        for rank in reversed(range(phase.num_ranks(job))):
            with noting_opened() as opened:
                run_rank(job, stage, rank, phase=phase.name)
            files = {(folder, name.partition(".")[0].partition("/")[2]) for folder, name in opened}
            of_snapshot = {(Path(folder).parent.name, name) for folder, name in files}
            assert len({name for _, name in of_snapshot}) <= 1 or phase.name == "cuts", (phase.name, rank, files)
            assert phase.name != "candidates" or not opened
    assert run_job(job, STAGES, missing_share=0) == 0
    assert artifact.find(Path(job.output)).digest == made.digest


def test_a_damaged_handover_stops_the_reader_and_the_next_attempt_makes_it_again(tmp_path, made, small_shares):
    job = replace(read_job(Path(made.path, "job.json")), output=str(tmp_path / "again" / made.fingerprint))
    for phase in dedup.PHASES[:3]:
        for rank in range(phase.num_ranks(job)):
            run_rank(job, STAGES["dedup"], rank, phase=phase.name)
        path = Path(job.output, name_of(phase.name, 1))
        data, times = bytearray(path.read_bytes()), path.stat()
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as when a disk loses a bit
        with pytest.raises(SliceDamaged, match=f"rank 1 .* {phase.name} "):
            run_job(job, STAGES)
        run_job(job, STAGES, ranks=",".join(map(str, range(phase.num_ranks(job)))), phase=phase.name)
    assert run_job(job, STAGES) == 0
    assert artifact.find(Path(job.output)).digest == made.digest


# Every file gets its name by a rename, which Python's audit hooks see. Each child makes the job until it kills itself:
# before the last rank of a phase has its file or its mark, or right after the mark, when the phase is over.
KILLED_IN_EACH_PHASE = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from training.data.dedup import corpus, dedup
from training.contract.job import read_job
from training.contract.running.runner import run_job
from training.stages import STAGES

corpus.GROUP_BYTES, corpus.RANGE_BYTES = 1, 20_000
job, marks = read_job(sys.argv[1]), {}
run_job(replace(job, output=f"{job.output}-warm"), STAGES)  # what it loads is loaded in all children

def run_until(name, is_after):
    seen = []

    def watch(event, arguments):
        is_now = event == "os.rename" and str(arguments[1]).endswith(name)
        if event != "os.kill" and (seen or is_now and not is_after):
            os.kill(os.getpid(), signal.SIGKILL)
        seen.extend([name] if is_now else [])

    sys.addaudithook(watch)
    run_job(job, STAGES)

for phase in dedup.PHASES:
    rank = f"{phase.name}/{phase.num_ranks(job) - 1:05d}"
    file, mark = f"scratch/{rank}.slices", f"ranks/{rank}.json"
    for name, is_after in ((file, False), (mark, False), (mark, True)):
        child = os.fork()
        if not child:
            run_until(name, is_after)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == -signal.SIGKILL, f"exit code {code} at {name}"
        now = {path: path.read_bytes() for path in Path(job.output, "ranks").rglob("*.json")}
        assert marks.items() <= now.items(), f"a finished rank was made again before {name}"
        assert Path(job.output, name).exists() is is_after
        marks = now
print(len(marks))
"""


def test_a_job_killed_in_and_after_each_phase_goes_on_and_gives_the_same_bytes(tmp_path, made, small_shares):
    job = replace(read_job(Path(made.path, "job.json")), output=str(tmp_path / "killed" / made.fingerprint))
    write_job(job, tmp_path / "job.json")
    argv = [sys.executable, "-c", KILLED_IN_EACH_PHASE, str(tmp_path / "job.json")]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == sum(phase.num_ranks(job) for phase in dedup.PHASES)
    assert run_job(job, STAGES) == 0
    assert artifact.find(Path(job.output)).digest == made.digest
    there, undisturbed = (sorted(path.name for path in Path(of).rglob("*")) for of in (job.output, made.path))
    assert there == undisturbed
