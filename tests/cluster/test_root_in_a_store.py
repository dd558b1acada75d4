"""Roots in an object store: the same digests as in a folder, found on a machine that has nothing of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
import pytest

from assets.materialize.jobs import hand_over
from assets.services.sent import NOTE, sent_to
from tests.cluster.store_servers import SERVERS, Store, azurite_account, lacking
from tests.groups import PROJECT
from tests.small_kitchen import COMMAND, RECIPES, pedigree
from tests.toys import toy_task
from tests.training.contract.test_stored_state import STORED, files_in, trained_to
from training.contract.artifact import find
from training.contract.errors import DataError
from training.contract.files.objects import Objects, StoreDown
from training.contract.files.stored_root import is_copy, make_stored_root
from training.contract.job import read_job, write_job
from training.contract.stored_state import StateSender, bring_state, forget_state, saved_step
from training.data.documents import read_documents

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning"),  # of Azure's own package
]

UNTIL = "extracted_documents"
AZURE_CODES = {
    401: "InvalidAuthenticationInfo",
    403: "AuthorizationFailure",
    404: "ContainerNotFound",
    503: "ServerBusy",
}


@pytest.fixture(scope="module", params=SERVERS)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return an empty bucket of a server; this process's commands now talk to it."""
    if why := lacking(request.param):
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="store-"))  # sockets have paths of at most 108 characters
    with SERVERS[request.param](folder) as store, pytest.MonkeyPatch.context() as patch:
        for name, value in {**store.environment, "PEDIGREE_RECIPES": str(RECIPES)}.items():
            patch.setenv(name, value)
        yield store
    shutil.rmtree(folder)


def digests(answer: dict) -> dict[str, dict[str, str]]:
    return {asset: {key: one["digest"] for key, one in some.items()} for asset, some in answer["assets"].items()}


def in_a_folder() -> dict[str, dict[str, str]]:
    """Return what the recipe makes in a root that is a folder."""
    known = json.loads((PROJECT / "tests" / "golden.json").read_text("utf-8"))["kitchen-small"]
    return {asset: known[asset] for asset in ("crawl_archives", "extracted_documents")}


def test_what_a_store_must_do(store, tmp_path):
    objects = Objects(f"{store.address}/contract", store.endpoint)
    objects.check_conditions()
    assert objects.listed("a") == {} and objects.get("a/b") is None and not objects.get_file("a/b", tmp_path / "none")
    assert objects.create("a/b", b"first") and not objects.create("a/b", b"second") and objects.get("a/b") == b"first"
    objects.put("a/b", b"third")
    objects.put("ab/c", b"")
    (tmp_path / "b").write_bytes(b"third")
    assert is_copy(tmp_path / "b", objects.listed("a")["a/b"]), "so a list tells that it need not be read again"
    large = tmp_path / "large"
    large.write_bytes(b"0123456789abcdef" * (7 << 20))  # 117 MB: above what is written in one piece
    objects.put_file("a/large", large)
    assert {key: one["size"] for key, one in objects.listed("a").items()} == {"a/b": 5, "a/large": 16 * (7 << 20)}
    assert objects.get_file("a/large", tmp_path / "back") and (tmp_path / "back").read_bytes() == large.read_bytes()
    assert objects.get_range("a/large", (7 << 20) + 8, (7 << 20) + 13) == b"89abc"
    assert objects.get_range("a/none", 0, 4) is None
    objects.move("a/b", "moved/b")
    objects.move("a/b", "moved/b")
    objects.remove(["a/large", "a/none", "ab/c"])
    assert objects.get("moved/b") == b"third" and objects.listed("a") == {}


def test_a_bucket_that_is_not_there_is_none_that_is_empty(store, request):
    if request.node.callspec.params["store"] == "mini":
        pytest.skip("our small server has every bucket")
    with pytest.raises(DataError, match="there is no bucket absent: make it"):
        Objects(f"{store.address.replace('bucket', 'absent')}/root", store.endpoint).listed("takedowns")


@pytest.mark.parametrize("name", ["azurite", "testbench"])
@pytest.mark.parametrize(
    ("status", "tries", "said"),
    [
        (503, 3, "given up after 2 more tries"),
        (403, 1, "; give the (credential of the AZURE|account of GOOGLE)"),
        (401, 1, "; .*renew"),
        (404, 1, "; there is no bucket bucket: make it"),
    ],
)
def test_a_package_of_another_store_is_obeyed_in_what_may_pass_and_tries_no_more_by_itself(
    name, status, tries, said, tmp_path, monkeypatch
):
    if why := lacking(name):
        pytest.skip(why)
    monkeypatch.setattr("training.contract.files.objects.WAITS_SECONDS", (0.0, 0.0))
    with refusing(status) as (endpoint, asked):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite_account(endpoint))
        scheme = {"azurite": "az", "testbench": "gs"}[name]
        objects = Objects(f"{scheme}://bucket/root")
        fsspec.get_filesystem_class(scheme).clear_instance_cache()  # else it is the one of another endpoint
        (tmp_path / "file").write_bytes(b"1")
        calls = [lambda: objects.create("a", b"1"), lambda: objects.put("a", b"1")]
        if status != 404:  # else Google's answer is that of an object which is not there; Azure's package asks twice
            calls += [lambda: objects.get("a"), lambda: objects.put_file("a", tmp_path / "file")]
        for call in calls:
            asked.clear()
            with pytest.raises((StoreDown, DataError), match=said):
                call()
            assert len(asked) == tries
        fsspec.get_filesystem_class(scheme).clear_instance_cache()


@contextmanager
def refusing(status: int) -> Iterator[tuple[str, list[str]]]:
    """Give the endpoint of a server that answers everything with a status, and the requests that came."""
    asked = list[str]()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            asked.append(self.path)
            self.send_response(status)
            self.send_header("x-ms-error-code", AZURE_CODES[status])
            self.send_header("content-length", "0")
            self.end_headers()

        do_GET = do_PUT = do_POST = do_HEAD = answer

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def test_a_recipe_in_a_store_gives_the_digests_of_a_folder_and_is_found_without_its_cache(store, tmp_path, monkeypatch):
    monkeypatch.setenv("PEDIGREE_CACHE", str(tmp_path / "here"))
    monkeypatch.setenv("PEDIGREE_CACHE_MAX_GB", "1e-6")
    root = f"{store.address}/chain"
    made = pedigree("run", "kitchen-small", "--until", UNTIL, root=root)
    assert made.code == 0 and digests(made.answer) == in_a_folder(), made.errors
    assert not list((tmp_path / "here").rglob("*.parquet")), "no more stays here than the limit allows"
    monkeypatch.delenv("PEDIGREE_CACHE_MAX_GB")
    monkeypatch.setenv("PEDIGREE_CACHE", str(tmp_path / "there"))
    states = pedigree("status", "kitchen-small", root=root).answer["assets"]
    seen = {asset for asset, some in states.items() if all(one["state"] == "made" for one in some.values())}
    assert seen == in_a_folder().keys()
    (there,) = (tmp_path / "there").iterdir()
    assert not list(there.rglob("*.parquet")), "to see what is made, nothing but records is brought"
    again = pedigree("run", "kitchen-small", "--until", UNTIL, root=root)
    assert again.code == 0 and digests(again.answer) == in_a_folder()
    assert all(one["reused"] for some in again.answer["assets"].values() for one in some.values())
    checked = pedigree("verify", "kitchen-small", root=root)
    assert checked.code == 0 and checked.answer["problems"] == []
    assert list(there.rglob("*.parquet")), "what is verified is read"
    url = next(read_documents(next(there.glob("extracted_documents/*/documents/*.parquet")), ["url"]))["url"]
    strangers, page = Objects(root, store.endpoint), next(there.glob("extracted_documents/*/documents/*.parquet"))
    strangers.put("backup/page.parquet", page.read_bytes())
    withdrawal = ("takedown", "--domain", urlsplit(url).hostname, "--reason", "r", "--yes")
    left = pedigree(*withdrawal, root=root)
    proof = left.answer["report"]["proof"]
    assert left.code == 1 and not proof["is_proved"] and proof["hits"][0]["path"] == f"{root}/backup/page.parquet"
    strangers.remove(["backup/page.parquet"])
    gone = pedigree(*withdrawal, root=root)
    report = gone.answer["report"]
    assert gone.code == 0 and report["proof"]["is_proved"] and report["proof"]["runs"] > 50, gone.errors
    assert report["store"]["objects"] > 20 and any("Uploads in parts" in one for one in report["unreachable"])
    outdated = pedigree("status", "kitchen-small", root=root, PEDIGREE_CACHE=str(tmp_path / "third")).answer["assets"]
    assert "outdated" in {one["state"] for one in outdated["extracted_documents"].values()}, "the tombstone is there"
    freed = pedigree("gc", "--yes", root=root)
    assert freed.code == 0 and freed.answer["bytes"] and not list(there.rglob("*.parquet"))
    assert pedigree("verify", "kitchen-small", root=root).answer["problems"] == []


def test_a_training_that_another_machine_began_goes_on_from_its_newest_checkpoint(store, tmp_path):
    objects = Objects(f"{store.address}/state", store.endpoint)
    here, there = (tmp_path / name / "base_model" / ("0" * 32) for name in ("here", "there"))
    for folder in (here, there):
        make_stored_root(folder.parents[1], objects)
        folder.mkdir(parents=True)
    with StateSender(here) as sender:
        for step in (5, 7):
            trained_to(here, step)
            sender.send(step)
    assert saved_step(there) == 7
    place = f"base_model/{here.name}"
    named = json.loads(objects.get(f"{place}/state.json") or b"")["files"]
    stored = {key.rpartition("/")[2] for key in objects.listed(f"{place}/state")}
    assert stored == {one["sha256"] for one in named}, "of step 5 nothing stays"
    bring_state(there)
    assert {name: "".join(text.split()) for name, text in files_in(there).items()} == STORED
    forget_state(there)
    assert objects.listed("") == {}


class Dying(Objects):
    """A sender that is killed before the last file."""

    def put_file(self, key: str, file: Path) -> None:
        if key == "config.json":
            assert self.get("model.safetensors") == b"weights", "the last file is sent when all others are there"
            raise KeyboardInterrupt
        super().put_file(key, file)


def test_an_export_that_was_killed_is_no_model_and_is_gone_on_with(store):
    address, files = f"{store.address}/export", {"model.safetensors": b"weights", "config.json": b"{}"}

    def send(objects: Objects, what: str = "base_model") -> None:
        with sent_to(objects, what, last="config.json") as folder:
            for name, data in files.items():
                (folder / name).write_bytes(data)

    with pytest.raises(KeyboardInterrupt):
        send(Dying(address, store.endpoint))
    objects = Objects(address, store.endpoint)
    assert objects.listed("").keys() == {"model.safetensors", NOTE}
    with pytest.raises(DataError, match="holds a part of an export of base_model"):
        send(objects, "sft_model")
    send(objects)
    assert {name: objects.get(name) for name in objects.listed("")} == files


def test_nodes_that_have_nothing_but_the_address_make_what_a_folder_makes(store, tmp_path):
    task = toy_task(tmp_path, ranks=4, faults=[], phases=("make", "gather"))
    environment = {**os.environ, **task.environment}
    subprocess.run([sys.executable, *task.argv], env=environment, check=True, capture_output=True)
    objects, output = Objects(f"{store.address}/nodes", store.endpoint), tmp_path / "here" / "toys" / "f"
    make_stored_root(output.parents[1], objects)
    write_job(replace(read_job(Path(task.folder) / "job.json"), output=str(output)), output / "job.json")
    hand_over(replace(task, folder=str(output)))

    def node(number: int, *argv: str) -> subprocess.Popen[bytes]:
        place = str(tmp_path / f"node-{number}" / "toys" / "f")
        command = [sys.executable, "-m", "toy_ranks", f"{place}/job.json", *argv]
        own = environment | {"PEDIGREE_ATTEMPT": f"{number}.0"}
        return subprocess.Popen(
            [sys.executable, "-m", "training.on_node", objects.address, objects.endpoint, place, *command], env=own
        )

    for phase in task.phases:
        both = [node(number, "--ranks", f"{number}/2", "--claims", "job", "--phase", phase) for number in (0, 1)]
        assert [process.wait() for process in both] == [0, 0]
    assert node(2).wait() == 0
    here, there = find(output), find(Path(task.folder))
    assert here is not None and there is not None and here.digest == there.digest
    assert here.file("all-3.txt").read_text() == there.file("all-3.txt").read_text()
    assert objects.listed("toys/f/ranks") == {}, "marks and claims go with the commit"
    assert not list((tmp_path / "node-2").rglob("all-*.txt")), "nothing is brought to end a stage that reads nothing"


def test_two_machines_that_make_one_recipe_give_one_result(store, tmp_path):
    argv = [*COMMAND, "run", "kitchen-small", "--until", UNTIL, "--root", f"{store.address}/two", "--json"]
    both = [
        subprocess.Popen(["env", f"PEDIGREE_CACHE={tmp_path / name}", *argv], stdout=subprocess.PIPE, text=True)
        for name in ("one", "other")
    ]
    said = [json.loads(process.communicate()[0].strip().splitlines()[-1]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert digests(said[0]) == digests(said[1]) == in_a_folder()
    records = Objects(f"{store.address}/two", store.endpoint).listed("records")
    assert len(records) == 4, "two snapshots, two assets"
