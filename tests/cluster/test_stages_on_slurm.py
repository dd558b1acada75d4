"""Two stages of the small kitchen on a real Slurm, by its profile alone; test_chain_on_slurm.py is the long form."""

from __future__ import annotations

import pytest

from tests.cluster.minislurm import MiniSlurm
from tests.small_kitchen import Ran, pedigree

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

TWO_STAGES = ("run", "kitchen-small", "--snapshots", "kitchen-1", "--until", "extracted_documents")


def digests(ran: Ran) -> dict[str, str]:
    """The digest of each asset's only partition."""
    assert ran.code == 0, ran.errors
    return {asset: cell["digest"] for asset, cells in ran.answer["assets"].items() for cell in cells.values()}


def test_stages_run_on_the_cluster_by_changing_the_profile_alone(slurm: MiniSlurm, tmp_path):
    profile = slurm.write_profile(tmp_path / "cluster.yaml", stages={"extracted_documents": {"nodes": 2}})
    there = digests(pedigree(*TWO_STAGES, "--profile", str(profile), root=tmp_path / "there"))
    jobs = slurm.call("scontrol", "-o", "show", "job").splitlines()
    own = [job for job in jobs if str(tmp_path / "there") in job]  # and not those of other tests
    extracting = [job for job in own if "JobName=extracted_documents" in job]
    assert sum("ArrayTaskId=" in job for job in extracting) == 2  # one for each node
    assert sum("ArrayTaskId=" not in job for job in extracting) == 1  # which finishes
    assert there == digests(pedigree(*TWO_STAGES, root=tmp_path / "here")) and len(there) == 2
