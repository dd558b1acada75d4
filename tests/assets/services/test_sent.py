"""Folders sent into an object store: whole or nothing that is read, gone on with, and over nothing else."""

from __future__ import annotations

import re

import pytest

from assets.services.sent import NOTE, sent_to
from training.contract.files.objects import Objects
from training.contract.job import DataError

FILES = {"model.safetensors": b"weights", "data/part.txt": b"a part", "time.txt": b"12:00", "config.json": b"{}"}
WHAT = "base_model of kitchen"


def send(store, files=FILES, what=WHAT):
    with sent_to(Objects("s3://bucket/export", store.endpoint), what, last="config.json") as folder:
        for name, data in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)


def there(store) -> dict[str, bytes]:
    return {name.removeprefix("bucket/export/"): data for name, data in store.objects.items()}


def puts(store) -> list[str]:
    return [place.removeprefix("bucket/export/") for method, place in store.requests if method == "PUT"]


def test_all_files_are_sent_and_the_one_that_makes_them_whole_is_the_last(store):
    send(store)
    assert there(store) == FILES
    assert puts(store)[0] == NOTE and puts(store)[-1] == "config.json" and len(puts(store)) == 5


def killed(store, after: int) -> None:
    """Send, and let the store refuse all that comes after this many requests."""
    store.faults = [0] * after + [403] * 99
    with pytest.raises(DataError):
        send(store)
    store.faults = []


def test_an_export_that_was_killed_anywhere_reads_as_no_model_and_is_gone_on_with(store):
    send(store)
    num_requests = len(store.requests)
    for after in range(num_requests):
        store.objects.clear()
        killed(store, after)
        assert "config.json" not in there(store) or after >= num_requests - 2
        later = FILES | {"time.txt": b"12:01"}
        store.requests.clear()
        send(store, later)
        assert there(store) == later, after
        if after >= num_requests - 3:  # all but the last file were there; which of them comes first is left to threads
            assert "model.safetensors" not in puts(store) and "time.txt" in puts(store)


def test_a_file_that_the_next_attempt_lays_out_no_more_does_not_stay(store):
    send(store)
    killed_at = len(store.requests) - 3
    store.objects.clear()
    killed(store, killed_at)
    rest = {name: data for name, data in FILES.items() if name != "data/part.txt"}
    send(store, rest)
    assert there(store) == rest


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ({"notes.txt": b"mine"}, "holds notes.txt, and nothing is overwritten"),
        (FILES, "holds config.json, and nothing is overwritten"),
        ({NOTE: b"{}"}, "a part of an export of something unknown"),
    ],
)
def test_nothing_else_is_overwritten(store, objects, said):
    store.objects |= {f"bucket/export/{name}": data for name, data in objects.items()}
    with pytest.raises(DataError, match=re.escape(said)):
        send(store)
    assert there(store) == objects and not puts(store)


def test_neither_another_export_s_part_nor_a_stranger_beside_it_is_taken(store):
    killed(store, 8)
    with pytest.raises(DataError, match=f"a part of an export of {WHAT}; go on with that one"):
        send(store, what="sft_model of kitchen")
    store.objects["bucket/export/mine.txt"] = b""
    with pytest.raises(DataError, match=r"holds mine\.txt"):
        send(store)


@pytest.mark.parametrize("meanwhile", [NOTE, "time.txt"])
def test_an_export_that_finds_another_one_at_work_ends_without_the_last_file(store, monkeypatch, meanwhile):
    answer = store.answer

    def begun_by_another(method, target, headers, data):
        if (method, target) == ("PUT", f"/bucket/export/{meanwhile}"):
            store.objects[f"bucket/export/{NOTE}"] = b"of another"
        return answer(method, target, headers, data)

    monkeypatch.setattr(store, "answer", begun_by_another)
    with pytest.raises(DataError, match="another export into it began meanwhile"):
        send(store)
    assert there(store)[NOTE] == b"of another" and "config.json" not in there(store)


def test_what_lies_beside_the_prefix_is_no_part_of_it(store):
    store.objects |= {"bucket/exported": b"", "bucket/export/": b""}  # the second is a browser's empty folder
    send(store)
    assert there(store).keys() - {"bucket/exported", ""} == FILES.keys()
