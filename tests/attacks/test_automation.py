"""Attacks on what goes on without a person: cancelled runs, killed watchers, automation that nobody asked for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg
import pytest

from tests.end_to_end.conftest import RECIPES
from tests.end_to_end.dagster_dev import wait_for

ARGUMENTS = ("run", "kitchen-small", "--snapshots", "kitchen-1", "--until", "crawl_archives", "--json")


def start(root: Path) -> subprocess.Popen[str]:
    """`pedigree run` of one short stage, as a person starts it in a terminal."""
    return subprocess.Popen(
        [sys.executable, "-c", "from assets.cli import main; main()", *ARGUMENTS, "--root", str(root)],
        env={**os.environ, "PEDIGREE_RECIPES": str(RECIPES)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def stopped_job(root: Path) -> Iterator[int]:
    """The job that runs under `root`, held still from the moment it appears, so that nothing depends on its speed."""
    (process_file,) = wait_for(lambda: list(root.glob("crawl_archives/*/process.json")), 120, every=0.01)
    pid = json.loads(process_file.read_text("utf-8"))["pid"]
    os.killpg(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGCONT)


def said(root: Path, words: str) -> list[str]:
    """The lines with these words in the logs of Dagster's runs of this root."""
    with dg.DagsterInstance.from_config(str(root / "dagster")) as instance:
        entries = [entry for run in instance.get_runs() for entry in instance.all_logs(run.run_id)]
    return [entry.user_message for entry in entries if words in entry.user_message]


@pytest.mark.slow
def test_a_job_that_two_terminals_wait_for_outlives_the_ctrl_c_in_one_of_them(tmp_path):
    first = start(tmp_path)
    with stopped_job(tmp_path) as job:
        second = start(tmp_path)
        wait_for(lambda: said(tmp_path, "going on watching it"), 120, every=0.1)
        first.send_signal(signal.SIGINT)
        _, errors = first.communicate(timeout=120)
        assert first.returncode not in (0, None)
        os.kill(job, 0)  # it is there
    out, other_errors = second.communicate(timeout=120)
    assert second.returncode == 0, (out, other_errors)
    made = json.loads(out.splitlines()[-1])["assets"]["crawl_archives"]["kitchen-small@kitchen-1"]
    assert "the job goes on, watched by run " in errors and "error: interrupted" in errors, errors
    assert "has left; the job goes on" in other_errors
    assert not list(Path(made["uri"]).glob("watchers*")) and said(tmp_path, "submitted crawl_archives")[1:] == []
