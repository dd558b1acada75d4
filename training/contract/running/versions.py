"""Compare the code, Python and libraries of a node with those with which its job was submitted."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from training.contract.artifact import SCRATCH_FOLDER
from training.contract.engines.version_differences import differing
from training.contract.files.checksums import digest_of
from training.contract.files.writing import write_json
from training.contract.identity import made_by
from training.contract.job import Job
from training.contract.records import RecipeError
from training.contract.running import reuse
from training.contract.stage import Stage, modules_of

VARIABLE = "PEDIGREE_VERSIONS"  # names the file to compare with; set for jobs that run on other machines
VERSIONS_FILE = "versions.json"
_RUNNING = sorted(Path(__file__).parent.glob("*.py"))  # what runs ranks is in no closure of a stage


def versions_of(job: Job, stage: Stage) -> dict[str, str]:
    """Return, by name, the versions of Python and libraries and the digests of modules with which ranks are made."""
    return {
        **reuse.versions(),
        **stage.library_versions(),
        **made_by.own_code(*modules_of(stage, job.settings)),
        **{f"{__package__}.{path.stem}": digest_of(path.read_text("utf-8")) for path in _RUNNING},
    }


def write_versions(job: Job, stage: Stage) -> Path:
    """Write the versions of this process into the job's scratch folder; return the file."""
    path = versions_file(job)
    write_json(path, versions_of(job, stage))
    return path


def versions_file(job: Job) -> Path:
    """Return where the versions are kept with which a job was submitted."""
    return Path(job.output) / SCRATCH_FOLDER / VERSIONS_FILE


def check_versions(job: Job, stage: Stage) -> None:
    """Raise RecipeError if this process has other versions than those in the file that PEDIGREE_VERSIONS names."""
    named = os.environ.get(VARIABLE)
    if not named:
        return
    said = differing(versions_of(job, stage), json.loads(Path(named).read_text("utf-8")))
    if said:
        raise RecipeError(
            f"node {socket.gethostname()} has other versions than the machine that submitted this job: {said}; install"
            " the same ones there, or name an interpreter that has them in the profile (`parts.slurm.python`)"
        )
