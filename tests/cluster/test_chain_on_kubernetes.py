"""The chain of the small kitchen on a real Kubernetes API server (`make kubernetes`): what comes out is as of a folder.

The backend's jobs are tried in test_jobs_on_kubernetes.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from assets.state.chain import descendants
from resources.compute.kubernetes import KEY_LABEL
from tests.cluster.minikubernetes import MiniKubernetes, processes_of
from tests.cluster.minis3 import MiniS3
from tests.cluster.store_servers import KEY, SECRET
from tests.cluster.test_nodes_apart import check_digests, put_into_store
from tests.small_kitchen import Ran, linked_copy, pedigree
from training.contract.files.objects import Objects

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

# All cores of a node, so that trainings have the numerics of a local root.
WHOLE = {"backend": "kubernetes", "hours": 0.5}
FANNED_OUT = ("extracted_documents", "deduplicated_documents", "token_shards")


def digests(ran: Ran) -> dict[tuple[str, str], str]:
    """The digest of each artifact that a command names."""
    return {(asset, part): one["digest"] for asset, some in ran.answer["assets"].items() for part, one in some.items()}


def pod_of(kubernetes: MiniKubernetes, asset: str, run: Future[Ran]) -> dict:
    """A running pod of an asset that a run makes, as soon as there is one."""

    def running() -> list[dict]:
        assert not run.done(), run.result()
        mine = [one for one in kubernetes.pods() if one["metadata"]["labels"][KEY_LABEL].startswith(asset)]
        return [one for one in mine if one["status"].get("phase") == "Running"]

    kubernetes.wait_until(lambda: bool(running()), f"a pod of {asset} runs", seconds=900)
    return running()[0]


def test_the_whole_chain_has_the_digests_of_a_folder_whatever_meets_its_pods(
    kubernetes: MiniKubernetes, tmp_path, request
):
    """A pod is evicted, the program of one is killed, and the node of one that trains is drained."""
    stages = {asset: {"nodes": 2} for asset in FANNED_OUT}
    profile = kubernetes.write_profile(tmp_path / "cluster.yaml", default=WHOLE, partitions_at_once=2, stages=stages)
    root, own = kubernetes.root / "runs", {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with ThreadPoolExecutor() as beside:
        run = beside.submit(pedigree, "run", "kitchen-small", "--profile", str(profile), root=root, **own)
        kubernetes.evict(pod_of(kubernetes, "quality_models", run)["metadata"]["name"])
        pod_of(kubernetes, "tokenizer", run)
        kubernetes.wait_until(lambda: bool(processes_of(root / "tokenizer")), "its program runs")
        for process in processes_of(root / "tokenizer"):
            os.kill(process, signal.SIGKILL)
        kubernetes.drain(pod_of(kubernetes, "base_model", run)["spec"]["nodeName"])
        there = run.result()
    assert there.code == 0, there.errors
    here = request.getfixturevalue("first")  # asked for last: another process may still be making it
    assert digests(there) == digests(here) and ("promoted_model", "kitchen-small") in digests(there)
    for asset, cause in {"quality_models": "preempted", "tokenizer": "error", "base_model": "preempted"}.items():
        (one,) = there.answer["assets"][asset].values()
        attempts = json.loads((Path(one["uri"]) / "artifact.json").read_text())["cost"]["attempts"]
        assert [one["cause"] for one in attempts] == [cause, "completed"], (asset, attempts)


def test_a_training_over_two_nodes_has_the_digest_of_two_processes_here(
    kubernetes: MiniKubernetes, tmp_path, first, untouched
):
    profiles = {
        "here": local_profile(tmp_path / "here.yaml", {"processes": 2, "threads": 1}),
        "there": kubernetes.write_profile(
            tmp_path / "there.yaml", default=WHOLE, stages={"base_model": {"nodes": 2, "threads": 1}}
        ),
    }
    made = {}
    for name, profile in profiles.items():
        root = linked_copy(untouched, kubernetes.root / f"two-{name}")
        for asset in ("base_model", *descendants("base_model")):
            for place in (root / asset, root / "refs" / asset):
                shutil.rmtree(place, ignore_errors=True)
        made[name] = pedigree("run", "kitchen-small", "--until", "base_model", "--profile", str(profile), root=root)
        assert made[name].code == 0, made[name].errors
    assert digests(made["there"]) == digests(made["here"])
    (model,) = made["there"].answer["assets"]["base_model"].values()
    assert not model["reused"] and digests(first)["base_model", "kitchen-small"] != model["digest"]


def local_profile(path: Path, training: dict[str, int]) -> Path:
    """A profile whose base model is trained here, at this size."""
    sizes = {"default": {"backend": "local"}, "stages": {"base_model": training}}
    path.write_text(yaml.safe_dump({"name": "here", **sizes}), "utf-8")
    return path


def test_pods_that_see_no_shared_folder_make_the_same_up_to_the_base_model(
    kubernetes: MiniKubernetes, tmp_path, first, untouched, monkeypatch
):
    """A fan-out and a training; all that pods share with this machine is the root's store."""
    server = MiniS3()
    kubernetes.in_network(lambda: server.listen(server.port))
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1"}
    keys["AWS_ENDPOINT_URL"] = server.endpoint
    for name, value in {**keys, "PEDIGREE_CACHE": str(kubernetes.hidden)}.items():
        monkeypatch.setenv(name, value)
    kubernetes.create("v1", "Secret", "store", stringData=keys)
    again = ("extracted_documents", "token_shards", "training_plan", "base_model")
    put_into_store(untouched, Objects("s3://bucket/r", server.endpoint), (*again, *descendants("base_model")))
    scratch = kubernetes.folder / "scratch"
    scratch.mkdir()
    profile = kubernetes.write_profile(
        tmp_path / "apart.yaml",
        default={**WHOLE, "node_cache": str(scratch)},
        stages={"extracted_documents": {"nodes": 2}},
        parts={"kubernetes": kubernetes.settings(claims={}, secrets=["store"])},
    )
    check_digests(first, again, "s3://bucket/r", profile)
    assert not list(scratch.iterdir()), "what pods have is seen by nobody else"
    server.stop()
