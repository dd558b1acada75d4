from __future__ import annotations

import copy
import os

import pytest

from tests.jobs import commit_by_hand
from training.contract import artifact
from training.contract.job import RefusedInput


def commit(folder, *, gates=(), text="hello"):
    """A tiny committed artifact."""
    artifact.write_text(folder / "data.txt", text)
    return commit_by_hand(folder, "a", ["data.txt"], partition="p", fingerprint="f", gates=list(gates))


def test_a_fingerprint_depends_on_everything_asked_for_and_on_nothing_else():
    asked = {
        "stage": "s",
        "version": "1",
        "settings": {"b": 1, "a": 2},
        "libraries": {"x": "1"},
        "inputs": [("i", "f")],
        "seed": 0,
    }
    first = artifact.fingerprint(**asked)
    assert artifact.fingerprint(**{**asked, "settings": {"a": 2, "b": 1}}) == first
    for change in (
        {"version": "2"},
        {"settings": {"a": 2}},
        {"libraries": {"x": "2"}},
        {"inputs": [("i", "g")]},
        {"seed": 1},
    ):
        assert artifact.fingerprint(**{**asked, **change}) != first


RECORD = {
    "asset": "a",
    "stage": "s",
    "stage_version": "1",
    "recipe": "r",
    "partition": "r@one",
    "fingerprint": "f",
    "digest": "d",
    "inputs": [
        {"asset": "i", "partition": "r@one", "fingerprint": "g", "digest": "e", "record_digest": "h", "path": "/here"}
    ],
    "settings": {"least": 1},
    "seed": 0,
    "libraries": {"x": "1"},
    "code_revision": "c",
    "counts": {"in": 2, "kept": 1, "dropped": {"short": 1}, "quarantined": {}},
    "metrics": {"loss": 0.5, "tokens_per_second": 7.0, "training_seconds": 1.0},
    "gates": [{"name": "g", "passed": False, "evidence": {"found": 3}}],
    "notes": {"why": "because"},
    "files": [{"path": "data.txt", "bytes": 5, "sha256": "s"}],
    "seconds": 1.0,
    "cost": {"cpu_seconds": 1.0},
}
WHO_AND_HOW_FAST = {("recipe",), ("partition",), ("seconds",), ("cost",), ("inputs", 0, "path")} | {
    ("metrics", name) for name in ("tokens_per_second", "training_seconds")
}


def each_leaf(value, where=()):
    """Where every single value of nested plain data stands."""
    if not isinstance(value, dict | list):
        yield where
        return
    for name, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from each_leaf(part, (*where, name))


def test_a_record_digest_covers_what_was_decided_and_neither_who_asked_nor_how_fast():
    for where in each_leaf(RECORD):
        changed = copy.deepcopy(RECORD)
        part = changed
        for name in where[:-1]:
            part = part[name]
        part[where[-1]] = not part[where[-1]] if isinstance(part[where[-1]], bool) else "another"
        is_left_out = any(where[: len(left_out)] == left_out for left_out in WHO_AND_HOW_FAST)
        assert (artifact.record_digest(changed) == artifact.record_digest(RECORD)) == is_left_out, where
    assert artifact.record_digest(RECORD | {"class": "of a later version"}) != artifact.record_digest(RECORD)


def test_an_unfinished_folder_is_no_artifact(tmp_path):
    artifact.write_text(tmp_path / "data.txt", "half")
    assert artifact.find(tmp_path) is None


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "file"
    artifact.write_text(path, "old")
    with pytest.raises(RuntimeError), artifact.written(path) as stream:
        stream.write(b"new")
        raise RuntimeError("killed")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_a_sound_input_is_accepted(tmp_path):
    assert artifact.check_input(commit(tmp_path)).fingerprint == "f"


def test_an_input_with_a_failed_gate_is_refused_with_its_evidence(tmp_path):
    item = commit(tmp_path, gates=[{"name": "clean", "passed": False, "evidence": {"url": "http://x"}}])
    with pytest.raises(RefusedInput, match=r"gate clean .*http://x"):
        artifact.check_input(item)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_input_is_refused_by_name(tmp_path, damage):
    item = commit(tmp_path)
    path = tmp_path / "data.txt"
    {"flip": lambda: path.write_text("jello"), "truncate": lambda: path.write_text("hel"), "remove": path.unlink}[
        damage
    ]()
    with pytest.raises(RefusedInput, match=r"data\.txt"):
        artifact.check_input(item)


def test_an_input_made_again_with_another_result_is_refused(tmp_path):
    item = commit(tmp_path / "a")
    commit(tmp_path / "a", text="other")
    with pytest.raises(RefusedInput, match="is not the"):
        artifact.check_input(item)
