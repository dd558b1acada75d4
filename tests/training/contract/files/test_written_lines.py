"""What a job writes on a node that does not see its root's folder, and what is read of it elsewhere."""

from __future__ import annotations

from tests.cluster import minis3
from tests.training.contract.files.test_stored_root import machine
from training.contract.files import written_lines
from training.contract.files.written_lines import Follower, Sender, send_what_is_here

LOG, METRICS = "log.txt", "metrics.jsonl"


def add(folder, name, text):
    (folder / name).parent.mkdir(exist_ok=True)
    with (folder / name).open("a") as stream:
        stream.write(text)


def brought(folder, name):
    Follower(folder).bring()
    return (folder / name).read_text()


def test_a_file_comes_as_it_grows_and_is_asked_for_only_where_it_grew(store, tmp_path, monkeypatch):
    monkeypatch.setattr(written_lines, "PIECE_BYTES", 8)
    here, node = machine(store, tmp_path / "here"), machine(store, tmp_path / "node")
    sender, follower = Sender(node, "8.0"), Follower(here)
    whole = ""
    for text in ("one\n", "two\nthree\nfour\n", "five\n"):
        add(node, LOG, text)
        sender.send([LOG, METRICS])
        follower.bring()
        whole += text
        assert (here / LOG).read_text() == whole
    assert not (here / METRICS).exists()
    before = store.counted()["GET"]
    sender.send([LOG])
    follower.bring()
    assert store.counted()["GET"] == before + 1, "one list"
    third = machine(store, tmp_path / "third")
    assert brought(third, LOG) == whole


def test_a_store_whose_tags_are_no_checksums_is_asked_once_for_each_piece(store, tmp_path, monkeypatch):
    monkeypatch.setattr(minis3, "_tag", lambda data: f'"{len(data)}-encrypted"')
    here, node = machine(store, tmp_path / "here"), machine(store, tmp_path / "node")
    add(node, LOG, "one\n")
    Sender(node, "8.0").send([LOG])
    follower = Follower(here)
    follower.bring()
    before = store.counted()["GET"]
    follower.bring()
    assert (here / LOG).read_text() == "one\n"
    assert store.counted()["GET"] == before + 1, "one list"


def test_a_later_attempt_adds_to_the_file_whatever_the_one_before_still_writes(store, tmp_path):
    here, first, second = (machine(store, tmp_path / name) for name in ("here", "first", "second"))
    dead, alive = Sender(first, "8.0"), None
    add(first, METRICS, "1\n2\n")
    dead.send([METRICS])
    alive = Sender(second, "8.1")
    add(second, METRICS, "2\n3\n")
    alive.send([METRICS])
    assert brought(here, METRICS) == "1\n2\n2\n3\n"
    add(first, METRICS, "9\n")
    dead.send([METRICS])
    add(second, METRICS, "4\n")
    alive.send([METRICS])
    assert brought(here, METRICS) == "1\n2\n9\n2\n3\n4\n"


def test_a_record_that_is_written_anew_is_replaced(store, tmp_path):
    here, node = machine(store, tmp_path / "here"), machine(store, tmp_path / "node")
    sender, name = Sender(node, "8.0"), "attempts/8.0.json"
    for text in ('{"ended": null, "host": "node1"}', '{"ended": 1}'):
        (node / "attempts").mkdir(exist_ok=True)
        (node / name).write_text(text)
        sender.send([name])
        assert brought(here, name) == text


def test_what_earlier_attempts_wrote_here_stays_before_what_nodes_add(store, tmp_path):
    here, node = machine(store, tmp_path / "here"), machine(store, tmp_path / "node")
    add(here, LOG, "of this machine\n")
    send_what_is_here(here)
    add(node, LOG, "earlier\n--- attempt 8.0 on n\n")
    Sender(node, "8.0", {LOG: len("earlier\n")}).send([LOG])
    send_what_is_here(here)
    assert brought(here, LOG) == "of this machine\n--- attempt 8.0 on n\n"


def test_a_key_that_somebody_made_up_is_not_written_here(store, tmp_path):
    here = machine(store, tmp_path / "here")
    prefix = "/".join(("bucket/root", here.parent.name, here.name, "written"))
    names = ("../../evil.txt", "attempts/../../../evil.json", "job.json", "log.txt/../evil")
    store.objects |= {f"{prefix}/{name}/00000-8.0": b"evil" for name in names}
    store.objects[f"{prefix}/log.txt/evil"] = b"evil"
    Follower(here).bring()
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "store.json"] == []
