"""Jobs and artifacts written by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from training.contract import artifact
from training.contract.job import InputArtifact, Job


def job_by_hand(
    stage: str,
    output: Path | str = "",
    settings: dict[str, Any] | None = None,
    inputs: Iterable[InputArtifact] = (),
    **fields: Any,
) -> Job:
    """A job as the bridge would write it; `fields` replace what it is called."""
    called = {"asset": "toys", "partition": "r", "recipe": "r", "fingerprint": "f", "stage_version": "1"}
    given = {"stage": stage, "output": str(output), "settings": settings or {}, "inputs": tuple(inputs)}
    return Job(**(called | given | fields))


def commit_by_hand(
    folder: Path, asset: str, names: Iterable[str] = (), *, partition: str = "r", fingerprint: str = "", **fields: Any
) -> InputArtifact:
    """Make the files `names` in a folder, or else all, an artifact; `fields` are further ones of its record."""
    there = names or [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    files = artifact.manifest(folder, [name for name in there if not name.startswith("artifact.")])
    known = {"asset": asset, "partition": partition, "digest": artifact.digest_of_files(files)}
    known["fingerprint"] = fingerprint or artifact.digest_of(list(known.values()))[:32]
    artifact.commit_record(folder, known | {"files": files, "counts": None, "gates": []} | fields)
    return InputArtifact(**known, path=str(folder))
