"""A file that a takedown overwrote is a state of its own; every other change of it, or of the list, is damage."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from assets.state.references import look
from assets.state.tombstones import Tombstone, append, erased_by, note_overwritten
from tests.training.data import chain
from training.contract.artifact import check_input, check_record, commit_record, damaged_files, find, manifest
from training.contract.files import checked
from training.contract.files.erased import ERASED_FILE, NO_LIST, ErasedState, list_digest, note_erased
from training.contract.job import InputArtifact, RefusedInput
from training.data.documents import read_documents
from training.provenance.erase import Withdrawn, erase_rows
from training.provenance.swap import Swap, Unchanged

NAME = "documents/00000.parquet"


@pytest.fixture
def item(tmp_path) -> InputArtifact:
    return chain.documents(tmp_path, "one", [["a withdrawn text", "a text that stays"]])


def rows_in(folder: Path) -> list[dict[str, Any]]:
    return list(read_documents(folder / NAME))


def erased(item: InputArtifact) -> Path:
    gone, root = Withdrawn(ids=frozenset({rows_in(Path(item.path))[0]["id"]})), Path(item.path).parents[1]
    append(root, *(Tombstone(number=one, time="2026-01-01", reason="asked", entries=()) for one in range(1, 5)))
    with Swap(takedown=4, note=partial(note_overwritten, root, 4)) as swap:
        assert erase_rows(Path(item.path), NAME, gone, swap) == 1
        swap.commit()
        assert erase_rows(Path(item.path), NAME, gone, swap) == 0  # a second time nothing is left to do
    return Path(item.path)


def problems(item: InputArtifact) -> list[str]:
    made = find(Path(item.path))
    assert made is not None
    return damaged_files(made)


def test_an_erased_file_is_sound_and_its_rows_stay_without_text(item):
    before = chain.rows(item)
    erased(item)
    after = chain.rows(item)
    assert [row["text"] for row in after] == ["", "a text that stays"] and not problems(item)
    for name in ("id", "url", "warc_file", "warc_offset", "source"):
        assert [row[name] for row in after] == [row[name] for row in before]


def test_nothing_is_made_from_erased_documents(item):
    check_record(item)
    folder = erased(item)
    with pytest.raises(RefusedInput, match="takedown 4 "):
        check_record(item)
    found = look(folder, item.asset, set())
    assert found.artifact is None and "takedown 4" in found.damage


def test_a_job_reads_no_file_of_a_list_other_than_the_one_that_was_judged(item):
    """Whoever writes file and list anew while a job waits or runs deceives it no more, nor by removing the list."""
    for judged, is_list in ((NO_LIST, True), ("0" * 64, True), ("0" * 64, False)):
        named = replace(item, erased=judged)
        if is_list:
            state = ErasedState(takedown=1, bytes=1, sha256="0" * 64, is_input=True, pages=1)
            note_erased(Path(item.path), NAME, state)
            check_record(replace(item, erased=list_digest(Path(item.path)))), item.file(NAME)
        for read in (partial(named.file, NAME), partial(check_record, named)):
            with pytest.raises(RefusedInput, match="not the list that the job was written for"):
                read()
        Path(item.path, ERASED_FILE).unlink(missing_ok=True)
    assert replace(item, erased=NO_LIST).file(NAME).exists()


def test_a_list_that_is_forged_and_put_back_while_a_file_is_read_deceives_no_job(item, monkeypatch):
    """What excuses a file are the bytes that were judged, not a list that is right before or after the file is read."""
    folder, read = Path(item.path), checked.sha256_of
    (folder / NAME).write_bytes(b"a forged file")
    state = ErasedState(takedown=1, bytes=13, sha256=read(folder / NAME), is_input=True, pages=1)
    note_erased(folder, NAME, state)

    def put_back_and_read(path: Path) -> str:
        (folder / ERASED_FILE).unlink(missing_ok=True)
        return read(path)

    monkeypatch.setattr(checked, "sha256_of", put_back_and_read)
    for ask in (lambda it: it.file(NAME), check_input):
        note_erased(folder, NAME, state)
        with pytest.raises(RefusedInput):
            ask(replace(item, erased=NO_LIST))


def test_a_changed_file_beside_those_of_the_manifest_is_damage(item):
    folder = Path(item.path)
    (folder / "kept.bin").write_bytes(b"kept")
    commit_record(folder, item.record() | {"beside": manifest(folder, ["kept.bin"])})
    assert not problems(item)
    (folder / "kept.bin").write_bytes(b"KEPT")
    assert "kept.bin: content differs" in problems(item)[0]
    (folder / "kept.bin").unlink()
    assert not problems(item)  # as a takedown leaves an index
    (folder / "kept.bin").symlink_to(folder / "gone.bin")
    assert "kept.bin" in problems(item)[0]


def test_another_change_of_an_erased_file_or_of_the_list_is_damage(item):
    folder = erased(item)
    data = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(data[:-9] + b"X" + data[-8:])
    assert problems(item)
    (folder / NAME).write_bytes(data)
    assert not problems(item)
    text = (folder / ERASED_FILE).read_text()
    (folder / ERASED_FILE).write_text(text.replace('"takedown": 4', '"takedown": 5'))
    assert problems(item) and "checksum differs" in look(folder, item.asset, set()).damage


def test_who_is_killed_between_the_list_and_the_file_leaves_a_sound_artifact(item):
    folder = Path(item.path)
    data = (folder / NAME).read_bytes()
    erased(item)
    (folder / NAME).write_bytes(data)
    assert not problems(item)
    with Swap(takedown=5, note=lambda files, records: None) as swap:
        with swap.overwriting(folder, NAME):
            raise Unchanged
        swap.commit()
    assert (folder / NAME).read_bytes() == data


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_a_list_that_is_no_file_is_told_of_and_waits_for_nobody(item, make):
    folder = Path(item.path)
    make(folder / ERASED_FILE)
    assert list_digest(folder) == NO_LIST
    assert "erased.json is no regular file" in look(folder, item.asset, {item.digest}).damage
    with pytest.raises(RefusedInput, match=r"erased\.json is no regular file"):
        replace(item, erased=NO_LIST).file(NAME)


@pytest.mark.parametrize("is_aside", [False, True], ids=["where it is", "in a folder that was set aside"])
def test_a_takedown_excuses_no_file_that_somebody_had_changed_before_it(item, is_aside):
    """In the second case what the takedown makes of a foreign folder of the same name is copied into the artifact."""
    folder = Path(item.path)
    foreign = chain.documents(folder.parents[1] / "x", "one", [["a withdrawn text", "somebody's"]])
    place = folder.with_name(f"{folder.name}.damaged-1") if is_aside else folder
    if is_aside:
        shutil.copytree(folder, place)
    shutil.copyfile(Path(foreign.path) / NAME, place / NAME)
    erased(replace(item, path=str(place)))
    for name in (NAME, ERASED_FILE) if is_aside else ():
        shutil.copyfile(place / name, folder / name)
    made = find(folder)
    assert made is not None and [row["text"] for row in rows_in(folder)] == ["", "somebody's"]
    known, unknown = erased_by(made)
    assert not known and len(unknown) == 1 and "that takedown does not" in unknown[0]


def test_a_file_is_known_after_several_takedowns_and_in_an_artifact_that_was_finished_between_them(item):
    folder = erased(item)
    made = find(folder)
    assert made is not None
    with Swap(takedown=3, note=partial(note_overwritten, folder.parents[1], 3)) as swap:
        assert erase_rows(folder, NAME, Withdrawn(ids=frozenset({chain.rows(item)[1]["id"]})), swap) == 1
        swap.commit()
    assert [line.split()[1] for line in erased_by(made)[0]] == ["4", "3"] and not erased_by(made)[1]
    finished = replace(made, record=made.record | {"files": manifest(folder, [NAME])})
    assert len(erased_by(finished)[0]) == 2 and not erased_by(finished)[1]
