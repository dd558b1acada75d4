"""Whatever lies in an artifact's folders and is neither a listed file nor a folder above one is foreign."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from assets.answers.gc.needed import Folders
from assets.services.stores import has_own_storage
from assets.state.liveness import WATCHERS_FOLDER, lives
from assets.state.tombstones import FILE, read_tombstones
from resources.compute import kubernetes, slurm
from training.contract.artifact import (
    Damaged,
    commit_record,
    digest_of_files,
    find,
    foreign_files,
    manifest,
    problems_of,
)
from training.contract.files.checked import Refused, check
from training.contract.files.writing import temporary_for
from training.contract.job import DataError
from training.contract.running.attempt import ATTEMPTS_FOLDER, read_attempts
from training.contract.running.lease import LEASE_FILE, holder_of

FILES = ("model/config.json", "model/sub/part.json", "card.md")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    for name in FILES:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text("{}")
    files = manifest(made, FILES)
    commit_record(made, {"files": files, "digest": digest_of_files(files)})
    return made


def put_a_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's name is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def swap(path: Path) -> None:
    """Put a link to a copy in the place of what is there."""
    elsewhere = next(one for one in path.parents if one.name == "made").with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


FOREIGN: dict[str, Callable[[Path], object]] = {
    "model/more.json": lambda path: path.write_text("{}"),
    "model/.hidden": lambda path: path.write_text("{}"),
    "model/linked.json": lambda path: path.symlink_to("config.json"),
    "model/additional_chat_templates": lambda path: path.symlink_to(path.parents[2], target_is_directory=True),
    "model/broken": lambda path: path.symlink_to("nowhere"),
    "model/pipe.jinja": os.mkfifo,
    "model/socket": put_a_socket,
    "model/empty": lambda path: path.mkdir(),
    "model/scratch": lambda path: path.mkdir(),  # a job keeps such a folder at the top alone
    "model/sub": swap,
    "model": swap,
}
AT_THE_TOP: dict[str, Callable[[Path], object]] = {
    "extra": lambda path: (path.mkdir(), (path / "config.json").write_text("{}")),
    "empty_folder": lambda path: path.mkdir(),
    "attempts/extra": lambda path: path.mkdir(parents=True),
    "log.txt": lambda path: path.symlink_to("card.md"),
    "scratch": lambda path: path.symlink_to("model"),
    "config.json": lambda path: path.write_text("{}"),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize(
    "name",
    [
        *(slurm.JOB_FILE, slurm.SCRIPT_FILE, slurm.ARRAY_SCRIPT_FILE, kubernetes.JOB_FILE, "log.txt", "log-12.txt"),
        *(f"{folder}/a.json" for folder in (WATCHERS_FOLDER, ATTEMPTS_FOLDER)),
    ],
)
def test_what_backends_and_watchers_keep_at_the_top_is_not_foreign(folder, name):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("{}")
    assert (made := find(folder)) is not None and not foreign_files(made)


@pytest.mark.parametrize("name", FOREIGN)
def test_it_is_reported_and_whoever_reads_the_folder_is_refused(folder, name):
    made = find(folder)
    assert made is not None and problems_of(made) == []
    check(folder, made.digest, "model")
    FOREIGN[name](folder / name)
    assert foreign_files(made) == [folder / name]
    with pytest.raises(Refused, match=f"{name}: is not in the manifest"):
        check(folder, made.digest, "model")
    if name in ("model", "model/sub"):
        with pytest.raises(Refused, match=f"{name}: is not in the manifest"):
            check(folder, made.digest, "model/sub/part.json")


@pytest.mark.parametrize("name", AT_THE_TOP)
def test_at_the_top_only_what_jobs_keep_there_is_left_out(folder, name):
    for own in ("job.json", "array-job-later.sh", "artifact.json.damaged-17", "attempts/12.json", "scratch/rank/x"):
        (folder / own).parent.mkdir(parents=True, exist_ok=True)
        (folder / own).write_text("{}")
    made = find(folder)
    assert made is not None and problems_of(made) == []
    if (folder / name).is_dir():
        shutil.rmtree(folder / name)
    AT_THE_TOP[name](folder / name)
    assert foreign_files(made) == [folder / name]
    with pytest.raises(Refused, match=f"{name}: is not in the manifest"):
        check(folder, made.digest, ".")


def test_a_listed_file_is_no_link_to_an_equal_one(folder):
    swap(folder / "model" / "config.json")
    with pytest.raises(Refused, match=r"config\.json: is no regular file"):
        check(folder, find(folder).digest, "model")


def test_a_file_that_somebody_is_writing_is_none(folder):
    temporary_for(folder / "model" / "config.json").write_text("{")
    assert foreign_files(find(folder)) == []


@pytest.mark.parametrize("put", [os.mkfifo, put_a_socket, lambda path: path.symlink_to("artifact.copy.json")])
def test_a_record_that_is_no_file_is_damaged_and_nobody_waits_for_it(folder, put):
    (folder / "artifact.json").unlink()
    put(folder / "artifact.json")
    with pytest.raises(Damaged, match=r"artifact\.json is no regular file"):
        find(folder)


def tombstones(root: Path) -> None:
    with pytest.raises(DataError, match=r"takedowns\.jsonl is no regular file"):
        read_tombstones(root)


READ: dict[str, Callable[[Path], object]] = {  # by whom; a value that stands for "nothing is there" is expected
    FILE: tombstones,
    f"token_shards/{'a' * 32}/job.json": lambda root: Folders(root).all()[0].partition,
    "dagster/dagster.yaml": has_own_storage,
    f"{ATTEMPTS_FOLDER}/a.json": read_attempts,
    f"{WATCHERS_FOLDER}/a.json": lambda folder: lives(folder / WATCHERS_FOLDER / "a.json"),
    LEASE_FILE: holder_of,
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", READ)
def test_a_pipe_in_the_place_of_what_commands_read_keeps_none_of_them(tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(tmp_path / name)
    assert not READ[name](tmp_path)
