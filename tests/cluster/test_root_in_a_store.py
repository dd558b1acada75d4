"""Roots in an object store: the same digests as in a folder, found on a machine that has nothing of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.s3_servers import KEY, SECRET, SERVERS, lacking
from tests.groups import PROJECT
from tests.small_kitchen import COMMAND, RECIPES, pedigree
from training.contract.files.objects import Objects

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

UNTIL = "extracted_documents"


@pytest.fixture(scope="module", params=SERVERS)
def endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return the endpoint of a server with an empty bucket; this process's commands now talk to it."""
    if why := lacking(request.param):
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="s3-"))  # sockets have paths of at most 108 characters
    with SERVERS[request.param](folder) as endpoint, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("PEDIGREE_RECIPES", str(RECIPES))
        if request.param != "mini":
            import boto3

            boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="bucket")
        yield endpoint
    shutil.rmtree(folder)


def digests(answer: dict) -> dict[str, dict[str, str]]:
    return {asset: {key: one["digest"] for key, one in some.items()} for asset, some in answer["assets"].items()}


def in_a_folder() -> dict[str, dict[str, str]]:
    """Return what the recipe makes in a root that is a folder."""
    known = json.loads((PROJECT / "tests" / "golden.json").read_text("utf-8"))["kitchen-small"]
    return {asset: known[asset] for asset in ("crawl_archives", "extracted_documents")}


def test_what_a_store_must_do(endpoint, tmp_path):
    objects = Objects("s3://bucket/contract", endpoint)
    objects.check_conditions()
    assert objects.listed("a") == {} and objects.get("a/b") is None and not objects.get_file("a/b", tmp_path / "none")
    assert objects.create("a/b", b"first") and not objects.create("a/b", b"second") and objects.get("a/b") == b"first"
    objects.put("a/b", b"third")
    objects.put("ab/c", b"")
    large = tmp_path / "large"
    large.write_bytes(b"0123456789abcdef" * (7 << 20))  # 117 MB: above what is written in one piece
    objects.put_file("a/large", large)
    assert {key: one["size"] for key, one in objects.listed("a").items()} == {"a/b": 5, "a/large": 16 * (7 << 20)}
    assert objects.get_file("a/large", tmp_path / "back") and (tmp_path / "back").read_bytes() == large.read_bytes()
    objects.move("a/b", "moved/b")
    objects.move("a/b", "moved/b")
    objects.remove(["a/large", "a/none", "ab/c"])
    assert objects.get("moved/b") == b"third" and objects.listed("a") == {}


def test_a_recipe_in_a_store_gives_the_digests_of_a_folder_and_is_found_without_its_cache(
    endpoint, tmp_path, monkeypatch
):
    monkeypatch.setenv("PEDIGREE_CACHE", str(tmp_path / "here"))
    monkeypatch.setenv("PEDIGREE_CACHE_MAX_GB", "1e-6")
    root = "s3://bucket/chain"
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
    refused = pedigree("takedown", "--url", "http://a.example/", "--reason", "r", "--yes", root=root)
    assert refused.code == 2 and "root in an object store" in " ".join(refused.errors.split())
    freed = pedigree("gc", "--yes", root=root)
    assert freed.code == 0 and freed.answer["bytes"] and not list(there.rglob("*.parquet"))
    assert pedigree("verify", "kitchen-small", root=root).answer["problems"] == []


def test_two_machines_that_make_one_recipe_give_one_result(endpoint, tmp_path):
    argv = [*COMMAND, "run", "kitchen-small", "--until", "extracted_documents", "--root", "s3://bucket/two", "--json"]
    both = [
        subprocess.Popen(["env", f"PEDIGREE_CACHE={tmp_path / name}", *argv], stdout=subprocess.PIPE, text=True)
        for name in ("one", "other")
    ]
    said = [json.loads(process.communicate()[0].strip().splitlines()[-1]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert digests(said[0]) == digests(said[1]) == in_a_folder()
    records = Objects("s3://bucket/two", endpoint).listed("records")
    assert len(records) == 4, "two snapshots, two assets"
