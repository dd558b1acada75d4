"""What `pedigree doctor` hears from Slurm and from Kubernetes about a profile, without submitting anything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from assets.answers.doctor.finding import Finding
from assets.answers.doctor.schedulers import look_at_schedulers
from resources.profile import load_profile
from tests.cluster.miniapi import MiniApi
from tests.cluster.minislurm import MiniSlurm

IMAGE = "example/p@sha256:1f"


def found(path: Path, backend: str, *, size: dict | None = None, **settings: object) -> dict[str, Finding]:
    """What is found with a profile of one backend; the root is beside the file."""
    plain = {"backend": backend, "workers": 1, "memory_gb": 1}
    profile = {"name": "p", "default": {**plain, **(size or {})}, "parts": {backend: settings}}
    path.write_text(yaml.safe_dump(profile), "utf-8")
    return {one.what: one for one in look_at_schedulers(load_profile(str(path)), path.parent)}


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MiniApi]:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl here")
    server = MiniApi(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))
    monkeypatch.setattr("resources.compute.kubernetes_calls.RETRY_SECONDS", ())
    told = {"spec": {"accessModes": ["ReadWriteMany"]}, "status": {"phase": "Bound"}}
    server.things["persistentvolumeclaims"]["runs"] = told
    server.things["localqueues"]["team"] = {"status": {"conditions": [{"type": "Active", "status": "True"}]}}
    yield server
    server.stop()


def test_a_cluster_that_would_take_every_job(api: MiniApi, tmp_path):
    given = {"image": IMAGE, "claims": {"runs": str(tmp_path)}, "queue": "team"}
    told = found(tmp_path / "p.yaml", "kubernetes", size={"nodes": 2}, **given)
    assert {what: one.state for what, one in told.items()} == dict.fromkeys(
        ("rights", "kubernetes", "claim", "image", "queue"), "ok"
    )
    assert not api.things["jobs"] and not api.things["services"]


@pytest.mark.parametrize(
    ("what", "state", "said", "given", "spoil"),
    [
        (
            "rights",
            "problem",
            "may not deletecollection jobs",
            {},
            lambda api: api.forbidden.add(("deletecollection", "jobs")),
        ),
        ("kubernetes", "problem", "refused", {}, MiniApi.stop),
        ("kubernetes", "problem", "tolerationz", {"pod": {"tolerationz": []}}, lambda api: None),
        ("kubernetes", "problem", "is on no volume", {"claims": {"runs": "/elsewhere"}}, lambda api: None),
        ("claim", "problem", "could not find", {}, lambda api: api.things["persistentvolumeclaims"].clear()),
        (
            "claim",
            "warning",
            "Pending",
            {},
            lambda api: api.things["persistentvolumeclaims"]["runs"]["status"].update(phase="Pending"),
        ),
        (
            "claim",
            "warning",
            "one node",
            {},
            lambda api: api.things["persistentvolumeclaims"]["runs"]["spec"].update(accessModes=["ReadWriteOnce"]),
        ),
        ("image", "warning", "p:1", {"image": "p:1"}, lambda api: None),
        (
            "queue",
            "problem",
            "closed",
            {"queue": "team"},
            lambda api: api.things["localqueues"]["team"]["status"]["conditions"][0].update(
                status="False", message="closed"
            ),
        ),
        ("queue", "problem", "could not find", {"queue": "other"}, lambda api: None),
    ],
)
def test_a_cluster_that_lacks_something(api: MiniApi, tmp_path, what, state, said, given, spoil):
    if "tolerationz" in said:
        pytest.importorskip("kubernetes_validate")
    spoil(api)
    plain = {"image": IMAGE, "claims": {"runs": str(tmp_path)}}
    one = found(tmp_path / "p.yaml", "kubernetes", **{**plain, **given})[what]
    assert one.state == state and said in one.found and one.advice
    if said == "refused":
        api.start()


@pytest.mark.cluster
def test_a_queue_is_asked_without_a_job(slurm: MiniSlurm, tmp_path):
    told = found(tmp_path / "p.yaml", "slurm", partition="main", size={"nodes": 2})
    assert (told["slurm"].state, told["sacct"].state) == ("ok", "warning") and "energy" in told["sacct"].advice
    refused = found(tmp_path / "p.yaml", "slurm", partition="other")["slurm"]
    assert refused.state == "problem" and "`parts.slurm.partition`" in refused.found
    refused = found(tmp_path / "p.yaml", "slurm", partition="main", size={"memory_gb": 1000})["slurm"]
    assert refused.state == "problem" and "`memory_gb`" in refused.found
    assert not slurm.call("squeue", "-h")
