"""Tombstones: a file that only grows, and the partitions whose identity holds them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from assets.state import tombstones
from assets.state.compare import compare
from assets.state.kept_models import LEARNED
from assets.state.recipe_folders import load_recipe
from assets.state.tombstones import (
    FILE,
    HEAD_FILE,
    Entry,
    Tombstone,
    append,
    is_masked,
    note_overwritten,
    read_tombstones,
)
from tests.assets.fabricate import make_all
from training.contract.artifact import Artifact, digest_of
from training.contract.files.writing import sealed_text
from training.contract.job import DataError
from training.provenance.swap import MaskedRecord
from training.recipe.settings.withdrawals import WithdrawalRecipe

KITCHEN = load_recipe("kitchen")
FIRST, SECOND = (f"kitchen@{one.name}" for one in KITCHEN.snapshots[:2])


def stone(number: int, *entries: Entry, looked_at: tuple[str, ...] = (), reason: str = "asked by its owner"):
    time = "2026-11-23T00:00:00+00:00"
    return Tombstone(number=number, time=time, reason=reason, entries=entries, looked_at=looked_at)


DOMAIN = Entry(entry="=org,example,", touches=(0,))


def fingerprints(root: Path, recipe=KITCHEN) -> dict[tuple[str, str], str]:
    return {key: cell.fingerprint for key, cell in compare(recipe, root, skip_unavailable=True).cells.items()}


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path


def test_lines_are_read_as_they_were_appended(root):
    stones = (stone(1, DOMAIN, looked_at=("a",)), stone(2, Entry(entry="one/a.warc.gz/000000000007", cluster=True)))
    append(root, *stones)
    assert read_tombstones(root) == stones
    with pytest.raises(DataError, match="has 2 lines"):
        append(root, stone(2, DOMAIN))


def edited(line: str) -> str:
    return line.replace("asked by its owner", "asked by a friend")


def edited_and_sealed(line: str) -> str:
    fields = json.loads(edited(line))
    before, _ = fields.pop("before"), fields.pop("digest")
    return json.dumps({**fields, "before": before, "digest": digest_of([fields, before])})


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [edited(lines[0]), *lines[1:]],
        lambda lines: [edited_and_sealed(lines[0]), *lines[1:]],
        lambda lines: [*lines[:2], edited_and_sealed(lines[2])],
        lambda lines: lines[1:],
        lambda lines: lines[:1],
        lambda lines: [lines[0], lines[2]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [*lines, "not JSON"],
        lambda lines: [*lines, "[]"],
        lambda lines: [],
    ],
    ids="edited edited-and-sealed last-sealed first-gone two-gone one-gone again no-json no-mapping empty".split(),
)
def test_a_file_that_was_edited_by_hand_is_refused_by_every_comparison(root, change):
    for number in (1, 2, 3):
        append(root, stone(number, DOMAIN))
    lines = (root / FILE).read_text().splitlines()
    (root / FILE).write_text("".join(f"{line}\n" for line in change(lines)))
    with pytest.raises(DataError, match="by hand"):
        compare(KITCHEN, root, skip_unavailable=True)


def test_a_changed_or_missing_head_is_refused(root):
    append(root, stone(1, DOMAIN))
    append(root, stone(2, DOMAIN))
    head = (root / HEAD_FILE).read_text()
    (root / HEAD_FILE).write_text(sealed_text({"digest": "0" * 64}))
    with pytest.raises(DataError, match="not end as"):
        read_tombstones(root)
    (root / HEAD_FILE).unlink()
    with pytest.raises(DataError, match="not end as"):
        read_tombstones(root)
    (root / HEAD_FILE).write_text(head)
    assert len(read_tombstones(root)) == 2


def test_a_root_that_lost_all_its_tombstones_is_refused(root):
    append(root, stone(1, DOMAIN))
    compare(KITCHEN, root, skip_unavailable=True)
    for name in (FILE, HEAD_FILE):
        (root / name).unlink()
    with pytest.raises(DataError, match=r"takedowns.jsonl: is gone"):
        compare(KITCHEN, root, skip_unavailable=True)


def masked(root: Path, before: str, after: str, *, takedown: int = 1) -> None:
    """Note that a takedown made the record `after` of the record `before`."""
    folder = root / "base_model" / ("a" * 32)
    note_overwritten(root, takedown, [], [MaskedRecord(folder=folder, before=before, after=after)])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda one: one.write_text(one.read_text().replace("held", "mine")), "is not what was written"),
        (lambda one: one.write_bytes(b"\xff"), "cannot be read"),
        (Path.unlink, "cannot be read"),
    ],
    ids="edited no-text gone".split(),
)
def test_a_changed_or_missing_list_of_what_was_overwritten_is_refused(root, change, sentence):
    append(root, stone(1, DOMAIN))
    masked(root, "held", "now")
    (noted,) = (root / "takedowns").glob("*.overwritten.json")
    change(noted)
    with pytest.raises(DataError, match=sentence):
        is_masked(Artifact(path=root / "base_model" / ("a" * 32), record={}), "held")


def test_a_root_that_lost_its_tombstones_and_keeps_a_list_of_what_was_overwritten_is_refused(root):
    append(root, stone(1, DOMAIN))
    masked(root, "held", "now")
    for name in (FILE, HEAD_FILE):
        (root / name).unlink()
    with pytest.raises(DataError, match=r"takedowns.jsonl: is gone"):
        read_tombstones(root)


@pytest.mark.parametrize("takedown", [0, 2])
def test_a_line_of_what_a_takedown_overwrote_that_comes_before_it_is_refused(root, takedown):
    append(root, stone(1, DOMAIN))
    masked(root, "held", "now", takedown=takedown)
    with pytest.raises(DataError, match="line 2: is not what was written"):
        read_tombstones(root)


def test_a_record_that_was_masked_in_another_way_after_a_kill_still_stands_for_the_former_one(root):
    """The first takedown noted a record that it did not write any more; the second one had more words."""
    made = Artifact(path=root / "base_model" / ("a" * 32), record={"seed": 1})
    append(root, stone(1, DOMAIN), stone(2, DOMAIN))
    masked(root, "held", "never written")
    masked(root, "held", made.record_digest, takedown=2)
    assert is_masked(made, "held") and not is_masked(made, "never written") and not is_masked(made, "other")


@pytest.mark.parametrize("number", [1, 2])
def test_a_kill_between_line_and_head_leaves_a_tombstone_in_force(root, number):
    append(root, stone(1, DOMAIN))
    lines = (root / FILE).read_text()
    heads = []

    def remember_lines(path: Path, text: str) -> None:
        heads.append(text) if path.name == HEAD_FILE else path.write_text(text)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tombstones, "remember", remember_lines)
        append(root, *(stone(2 + one, DOMAIN) for one in range(number)))
    (root / HEAD_FILE).write_text(heads[0])  # and the second head was never written
    assert len(read_tombstones(root)) == 1 + number
    (root / FILE).write_text(lines)  # nor were the lines
    assert len(read_tombstones(root)) == 1
    append(root, stone(2, DOMAIN))
    assert len(read_tombstones(root)) == 2


def test_only_a_snapshot_that_a_tombstone_touches_gets_another_identity(root):
    before = fingerprints(root)
    crawls = before["crawl_archives", FIRST], before["crawl_archives", SECOND]
    append(root, stone(1, DOMAIN, looked_at=crawls))
    after = fingerprints(root)
    assert {key for key in before if key[1] in (FIRST, SECOND) and before[key] == after[key]} >= {
        (asset, SECOND) for asset in ("crawl_archives", "extracted_documents")
    } | {("crawl_archives", FIRST)}
    assert before["extracted_documents", FIRST] != after["extracted_documents", FIRST]
    append(root, stone(2, replace(DOMAIN, touches=()), looked_at=crawls))
    assert fingerprints(root) == after


def test_a_snapshot_that_nobody_looked_at_gets_every_address_and_its_own_ids(root):
    before = fingerprints(root)
    crawl = before["crawl_archives", FIRST]
    append(root, stone(1, DOMAIN, looked_at=(crawl,)))
    assert before["extracted_documents", SECOND] != (now := fingerprints(root))["extracted_documents", SECOND]
    page = Entry(entry=f"{KITCHEN.snapshots[0].name}/a.warc.gz/000000000007", touches=(0,))
    append(root, stone(2, page, looked_at=(crawl,)))
    assert fingerprints(root)["extracted_documents", SECOND] == now["extracted_documents", SECOND]


def test_the_place_of_a_root_is_in_no_identity(tmp_path):
    found = []
    for name in ("one", "two"):
        append(tmp_path / name, stone(1, DOMAIN))
        found.append(fingerprints(tmp_path / name))
    assert found[0] == found[1]


def test_duplicates_of_withdrawn_pages_stay_if_the_recipe_wants_their_twins(root):
    crawl = fingerprints(root)["crawl_archives", FIRST]
    page = Entry(entry=f"{KITCHEN.snapshots[0].name}/a.warc.gz/000000000007", touches=(0,), cluster=True)
    before = fingerprints(root)
    append(root, stone(1, page, looked_at=(crawl,)))
    twin = replace(KITCHEN, withdrawals=WithdrawalRecipe(duplicates="twin"))
    assert fingerprints(root, twin)["extracted_documents", FIRST] == before["extracted_documents", FIRST]
    assert fingerprints(root)["extracted_documents", FIRST] != before["extracted_documents", FIRST]


def test_a_list_that_was_changed_under_the_root_is_written_again(root):
    append(root, stone(1, DOMAIN))
    before = fingerprints(root)
    (path,) = (root / "takedowns").glob("*.txt")
    assert path.read_text() == "=org,example,\tasked by its owner\n"
    path.write_text("")
    assert fingerprints(root) == before


def test_models_of_the_corpus_are_kept_through_takedowns_and_made_again_where_the_recipe_wants_it(root):
    made = make_all(KITCHEN, root).cells
    crawls = tuple(made["crawl_archives", part].fingerprint for part in (FIRST, SECOND))
    for number in (1, 2, 3):  # the second touches nothing
        append(
            root, stone(number, Entry(entry=f"=org,{number},", touches=() if number == 2 else (0,)), looked_at=crawls)
        )
    kept = compare(KITCHEN, root).cells
    models = [key for key in made if key[0] in LEARNED]
    assert models and all(kept[key].artifact == made[key].artifact and kept[key].state == "made" for key in models)
    assert all(kept[key].kept_from == 0 and "takedown 1 withdrew" in kept[key].remark for key in models)
    assert kept["filtered_documents", SECOND].fingerprint == made["filtered_documents", SECOND].fingerprint
    assert kept["filtered_documents", FIRST].state == "outdated"
    after = make_all(KITCHEN, root)
    assert not after.to_do() and all(after.cells[key].is_kept for key in models)
    again = replace(KITCHEN, withdrawals=WithdrawalRecipe(models="retrain"))
    assert {compare(again, root).cells[key].state for key in models} == {"outdated"}
    retrained = make_all(again, root).cells  # from then on these are the ones that are kept
    append(root, stone(4, Entry(entry="=org,4,", touches=(1,)), looked_at=crawls))
    append(root, stone(5, Entry(entry="=org,5,", touches=(0,)), looked_at=crawls))
    latest = compare(KITCHEN, root).cells
    assert all(latest[key].artifact == retrained[key].artifact for key in models)
    assert {latest[key].kept_from for key in models} <= {3, 4}


def test_a_model_is_not_kept_if_the_recipe_changed_too_and_is_kept_without_its_inputs(root):
    made = make_all(KITCHEN, root).cells
    append(root, stone(1, DOMAIN, looked_at=(made["crawl_archives", FIRST].fingerprint,)))
    other = replace(KITCHEN, tokenizer=replace(KITCHEN.tokenizer, sample_bytes=KITCHEN.tokenizer.sample_bytes + 1))
    assert compare(other, root).cells["tokenizer", "kitchen"].state == "outdated"
    for one in made["filtered_documents", FIRST], made["extracted_documents", FIRST]:
        assert one.artifact is not None
        shutil.rmtree(one.artifact.path)
    assert compare(KITCHEN, root).cells["tokenizer", "kitchen"].is_kept
