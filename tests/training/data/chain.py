"""Small committed artifacts for tests of data stages: documents made by hand, and stages run over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.jobs import commit_by_hand
from training.contract import artifact
from training.contract.job import Counts, InputArtifact, Job
from training.contract.records import write_record
from training.contract.run_settings import RunSettings
from training.contract.running.runner import run_job
from training.data.documents import DocumentWriter, document_files, document_id, read_documents
from training.stages import STAGES


def document(snapshot: str, warc_file: str, offset: int, text: str, **fields: Any) -> dict[str, Any]:
    """One document row; `fields` replace the defaults."""
    return {
        "id": document_id(snapshot, warc_file, offset),
        "text": text,
        "url": f"https://example.test/{warc_file}/{offset}",
        "snapshot": snapshot,
        "warc_file": warc_file,
        "warc_offset": offset,
        "date": "2026-01-01T00:00:00Z",
        "title": "",
        "language": "en",
        "language_score": 1.0,
        "source": "web",
    } | fields


def documents(
    root: Path, snapshot: str, files: Sequence[Sequence[str]], *, asset: str = "filtered_documents"
) -> InputArtifact:
    """A committed artifact whose document files hold the given texts, in order."""
    digits = len(str(len(files) - 1))  # names ascend as the files do
    rows = [
        [document(snapshot, f"file-{number:0{digits}}.warc.gz", 100 * place, text) for place, text in enumerate(texts)]
        for number, texts in enumerate(files)
    ]
    return documents_of(root, snapshot, rows, asset=asset)


def documents_of(
    root: Path,
    snapshot: str,
    files: Sequence[Sequence[Mapping[str, Any]]],
    *,
    asset: str = "filtered_documents",
    extra: Sequence[str | pa.Field] = (),
) -> InputArtifact:
    """A committed artifact whose document files hold the given rows, in order; `extra` are their further columns."""
    folder = root / asset / snapshot
    names = [f"documents/{number:05d}.parquet" for number in range(len(files))]
    for name, rows in zip(names, files, strict=True):
        with DocumentWriter(folder / name, extra=extra) as writer:
            for row in rows:
                writer.write(row)
    return committed(folder, asset, f"tiny@{snapshot}", names, kept=sum(map(len, files)))


def committed(
    folder: Path, asset: str, partition: str, names: Sequence[str], *, kept: int | None = None
) -> InputArtifact:
    """The files `names` in `folder`, made an artifact by hand that `kept` so many records."""
    counts = None if kept is None else Counts(records_in=kept, kept=kept).as_json()
    return commit_by_hand(folder, asset, names, partition=partition, counts=counts)


def run(
    root: Path,
    stage: str,
    asset: str,
    partition: str,
    settings: Mapping[str, Any],
    inputs: Sequence[InputArtifact] = (),
    *,
    workers: int = 1,
    hang_seconds: float = 1800.0,
) -> InputArtifact:
    """Run a stage as its job says and return what it committed. `settings` may hold records."""
    how = RunSettings(workers=workers, hang_seconds=hang_seconds)
    job = job_of(root, stage, asset, partition, settings, inputs, run=how)
    assert run_job(job, STAGES) == 0
    return made_by(job)


def job_of(
    root: Path,
    stage: str,
    asset: str,
    partition: str,
    settings: Mapping[str, Any],
    inputs: Sequence[InputArtifact] = (),
    *,
    run: RunSettings,
) -> Job:
    """The job that makes an asset under a root. `settings` may hold records."""
    plain = {name: write_record(value) for name, value in settings.items()}
    fingerprint = artifact.fingerprint(
        stage=stage,
        version="1",
        settings=plain,
        libraries={},
        inputs=[(item.asset, item.fingerprint) for item in inputs],
        seed=0,
    )
    return Job(
        stage=stage,
        asset=asset,
        partition=partition,
        recipe="tiny",
        fingerprint=fingerprint,
        stage_version="1",
        settings=plain,
        inputs=tuple(inputs),
        output=str(artifact.folder_of(root, asset, fingerprint)),
        run=run,
    )


def made_by(job: Job) -> InputArtifact:
    """What a job committed."""
    made = artifact.find(Path(job.output))
    assert made is not None
    return InputArtifact(
        asset=job.asset,
        partition=job.partition,
        fingerprint=job.fingerprint,
        digest=made.digest,
        path=job.output,
    )


def rows(item: InputArtifact, folder: str = "documents") -> list[dict[str, Any]]:
    """Every document row of an artifact."""
    return [row for path in document_files(item, folder) for row in read_documents(path)]
