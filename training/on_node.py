"""`python -m training.on_node ADDRESS ENDPOINT FOLDER COMMAND…`: run a job where its root's folder is not seen.

The root is in the object store ADDRESS, and FOLDER is the artifact's folder on this node, in a folder of the root. The
job's file is brought from the store, the command runs, and what it writes beside its artifact is sent while it runs.
Exit code and signals are those of the command.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.contract import artifact
from training.contract.files.objects import Objects
from training.contract.files.stored_root import StoredRoot, make_stored_root, stored_root
from training.contract.files.stored_takedowns import FOLDER, bring_takedowns
from training.contract.files.writing import Unsealed, unsealed, write_text
from training.contract.files.written_lines import SEND_SECONDS, Sender
from training.contract.job import DataError, InputArtifact, Job, write_job
from training.contract.process.exit_codes import BAD_INPUT, FAILED
from training.contract.progress import MESSAGES_FILE, METRICS_FILE
from training.contract.records import RecipeError, read_record
from training.contract.running.attempt import ATTEMPTS_FOLDER, Attempt, attempt_name
from training.contract.running.versions import versions_file
from training.contract.secrets import masked_errors, masked_output

log = logging.getLogger(__name__)

JOB_FILE = "job.json"
ATTEMPT_MARK = "--- attempt "  # with which backends begin an attempt in a log: resources.compute.base.ATTEMPT_MARK
PASSED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def main(arguments: Sequence[str]) -> int:
    """Run the command of a job; return its exit code. Secrets are masked in everything that is said of the store."""
    address, endpoint, place, *command = arguments
    with masked_errors(), masked_output():
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        folder = Path(place)
        try:
            make_stored_root(folder.parents[1], Objects(address, endpoint))
            sender = Sender(folder, attempt_name(), _begins(folder))
            code = _ran(command, folder, sender)
        except (DataError, OSError) as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            return BAD_INPUT if isinstance(error, DataError) else FAILED
    if code < 0:  # by a signal: whoever started this shall see the same
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    return code


def _ran(command: Sequence[str], folder: Path, sender: Sender) -> int:
    """Bring the job, run the command and send what it writes; return its exit code, below 0 for a signal."""
    try:
        bring_job(folder)
    except (DataError, RecipeError) as error:
        code = Attempt(folder).failed(BAD_INPUT, error)
    else:
        code = _followed(command, folder, sender)
    _send(folder, sender)
    return code


def bring_job(folder: Path) -> None:
    """Write the job's file, as its store has it, for the folders of this node; and the versions that it names.

    Raise DataError if the store lacks it, or RecipeError if it is not what was written.
    """
    root = stored_root(folder)
    assert root is not None
    there = root.objects.get(root.key(folder / JOB_FILE))
    if there is None:
        raise DataError(f"{root.objects.address}: {root.key(folder / JOB_FILE)} is not there; run again")
    try:
        fields = unsealed(there, JOB_FILE)
    except Unsealed as error:
        raise RecipeError(f"{root.objects.address}: {error}; run again, which writes the job anew") from None
    fields.pop("checksum", None)
    bring_takedowns(root.folder)
    job = in_root(read_record(Job, fields, where="job"), root.folder)
    _forget_former(job, root)
    write_job(job, folder / JOB_FILE)
    if (versions := root.objects.get(root.key(versions_file(job)))) is not None:
        write_text(versions_file(job), versions.decode("utf-8"))


def _forget_former(job: Job, root: StoredRoot) -> None:
    """Remove this node's records of artifacts that were set aside since, so that they are made or brought again."""
    former = [] if root.objects.get(root.key_of_record(Path(job.output))) is not None else [Path(job.output)]
    for item in (*job.inputs, *job.guards):
        with suppress(artifact.Damaged):
            if (made := artifact.find(Path(item.path))) is not None and made.digest != item.digest:
                former.append(made.path)
    for path in former:
        for name in (artifact.ARTIFACT_FILE, artifact.COPY_FILE):
            (path / name).unlink(missing_ok=True)


def in_root(job: Job, root: Path) -> Job:
    """Return the job with the folders that its artifacts have in the root's folder of this node."""

    def moved(items: tuple[InputArtifact, ...]) -> tuple[InputArtifact, ...]:
        return tuple(replace(one, path=str(artifact.folder_of(root, one.asset, one.fingerprint))) for one in items)

    def with_lists(value: Any) -> Any:
        """Return a setting, in which a list of withdrawn pages or rows is named by its path."""
        if isinstance(value, Mapping):
            return {name: with_lists(one) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [with_lists(one) for one in value]
        return str(root / FOLDER / Path(value).name) if isinstance(value, str) and value.startswith(lists) else value

    lists = f"{Path(job.output).parents[1]}/{FOLDER}/"
    return replace(
        job,
        settings=with_lists(job.settings),
        inputs=moved(job.inputs),
        guards=moved(job.guards),
        output=str(artifact.folder_of(root, job.asset, job.fingerprint)),
        on_the_way=tuple(in_root(one, root) for one in job.on_the_way),
        goes_on_from=None if job.goes_on_from is None else moved((job.goes_on_from,))[0],
    )


def _followed(command: Sequence[str], folder: Path, sender: Sender) -> int:
    """Run the command, hand signals on to it, and send what it writes every SEND_SECONDS."""
    asked: list[int] = []
    running: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, _: object) -> None:
        asked.append(number)
        for one in running:
            one.send_signal(number)

    for number in PASSED_SIGNALS:
        signal.signal(number, hand_on)
    process = subprocess.Popen(command)
    running.append(process)
    for number in asked:  # before it was started
        process.send_signal(number)
    while True:
        try:
            return process.wait(timeout=SEND_SECONDS)
        except subprocess.TimeoutExpired:
            _send(folder, sender)


def _send(folder: Path, sender: Sender) -> None:
    try:
        sender.send(_names(folder))
    except (OSError, DataError) as error:  # the job goes on: its artifact does not depend on it
        log.warning("%s: what the job wrote was not sent: %s", folder, error)


def _names(folder: Path) -> Iterator[str]:
    """Yield the names of the files that this attempt writes beside its artifact."""
    if (own := _log_of(folder)) is not None:
        yield own.name
    yield METRICS_FILE
    yield MESSAGES_FILE
    for path in sorted((folder / ATTEMPTS_FOLDER).glob(f"{attempt_name()}.*json")):
        yield f"{ATTEMPTS_FOLDER}/{path.name}"


def _log_of(folder: Path) -> Path | None:
    """Return the file that holds this process's standard error; None if it is none of the artifact's folder."""
    path = Path(os.readlink("/proc/self/fd/2"))
    return folder / path.name if path.parent == folder.resolve() else None


def _begins(folder: Path) -> dict[str, int]:
    """Return where each file begins that an earlier attempt on this node has begun: its own attempt sent the rest."""
    begins = {name: path.stat().st_size for name in (METRICS_FILE, MESSAGES_FILE) if (path := folder / name).exists()}
    if (own := _log_of(folder)) is not None:
        begins[own.name] = max(0, own.read_bytes().rfind(f"{ATTEMPT_MARK}{attempt_name()} ".encode()))
    return begins


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
