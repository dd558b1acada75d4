"""What may go wrong around a real chain: an MLflow that hangs and dies, a killed command, a full disk.

Two cheap stages of one snapshot are enough: what is tested lies between the stages.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from assets.services.stores import opened_instance
from assets.state.liveness import sign_of_launch, sign_of_life
from resources.tracking.reports import Tracking
from resources.tracking.store import make_client
from tests.end_to_end.dagster_dev import services, wait_for
from tests.screen import Screen
from tests.small_kitchen import RECIPES, pedigree, pedigree_in_terminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ARGUMENTS = ("run", "kitchen-small", "--snapshots", "kitchen-1", "--until", "extracted_documents")
DISK_BYTES = 24 << 20


def hang_and_die(server: socket.socket) -> None:
    """Take whoever asks first, say nothing for two seconds, and be gone."""
    with contextlib.suppress(OSError), server:
        asking, _ = server.accept()
        with asking:
            time.sleep(2.0)


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Iterator[Path]:
    """A profile whose MLflow hangs when the first run asks it, and is refused from then on."""
    server = socket.create_server(("127.0.0.1", 0))
    uri = f"http://127.0.0.1:{server.getsockname()[1]}"
    mlflow = threading.Thread(target=hang_and_die, args=(server,))
    mlflow.start()
    path = tmp_path_factory.mktemp("profile") / "faulty.yaml"
    path.write_text(f"name: faulty\ntracking_uri: {uri}\ndefault: {{workers: 1, retries: 0}}\n")
    yield path
    with contextlib.suppress(OSError):
        server.shutdown(socket.SHUT_RDWR)
    mlflow.join()


@pytest.fixture(scope="module")
def undisturbed(profile, tmp_path_factory):
    """The root and the answer of a run without a fault but MLflow's."""
    root = tmp_path_factory.mktemp("undisturbed")
    return root, pedigree(*ARGUMENTS, "--profile", str(profile), root=root)


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory) -> Iterator[Path]:
    """A folder that is a file system of its own where that may be made; else a folder."""
    place = tmp_path_factory.mktemp("disk")
    options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    may_mount = os.geteuid() == 0
    mounted = may_mount and subprocess.run(["mount", *options], check=False, capture_output=True).returncode == 0
    yield place
    if mounted:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def digests(ran):
    made = ran.answer["assets"]
    return {(asset, key): entry["digest"] for asset, cells in made.items() for key, entry in cells.items()}


def runs_in(tracking: Tracking, root: Path):
    """The runs of the small kitchen in the store, launches and stages."""
    client = make_client(tracking.uri, root)
    (experiment,) = (one for one in client.search_experiments() if one.name == "pedigree/kitchen-small")
    return client.search_runs([experiment.experiment_id])


def test_an_mlflow_that_hangs_and_dies_stops_nothing_and_another_hears_all_of_it(undisturbed, tmp_path):
    root, ran = undisturbed
    assert ran.code == 0 and len(digests(ran)) == 2, ran.errors
    shutil.copytree(root / "tracking", tmp_path / "tracking")  # beside it the run's own writer goes on asking a while
    later = Tracking("", tmp_path, in_background=False)
    assert later.replay() and later.pending() == 0
    runs = {run.info.run_name: run for run in runs_in(later, tmp_path)}
    assert set(runs) == {"kitchen-small", *(f"{asset} [{key}]" for asset, key in digests(ran))}
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


def test_a_command_killed_in_the_middle_is_run_again_and_nothing_differs(undisturbed, small_disk, profile):
    root = small_disk / "runs"
    command = [sys.executable, "-c", "from assets.commands.cli import main; main()", *ARGUMENTS]
    process = subprocess.Popen(
        [*command, "--profile", str(profile), "--root", str(root)],
        env={**os.environ, "PEDIGREE_RECIPES": str(RECIPES)},
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: list(root.glob("extracted_documents/*/process.json")), 300)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with opened_instance(root) as instance:
        assert [run.status.value for run in instance.get_runs()].count("STARTED") == 1
    again = pedigree(*ARGUMENTS, "--profile", str(profile), root=root)
    with opened_instance(root) as instance:
        statuses = Counter(run.status.value for run in instance.get_runs())
    assert statuses["FAILURE"] == 1 and statuses.keys() == {"FAILURE", "SUCCESS"}
    assert not any((root / "dagster" / "launches").iterdir())
    assert again.code == 0, again.errors
    assert again.answer["assets"]["crawl_archives"]["kitchen-small@kitchen-1"]["reused"]
    assert digests(again) == digests(undisturbed[1])


def test_a_run_of_the_ui_that_was_killed_with_dev_is_told_and_ended_by_the_next_command(tmp_path):
    with services(tmp_path) as running:
        running.launch_backfill(["crawl_archives", "extracted_documents"], ["kitchen-small@kitchen-1"])
        wait_for(lambda: list(tmp_path.glob("extracted_documents/*/process.json")), 300)
        running.kill_all()
    with opened_instance(tmp_path) as instance:
        (begun,) = (run for run in instance.get_runs() if run.status.value == "STARTED")
    (told,) = pedigree("status", "kitchen-small", root=tmp_path).answer["killed"]
    assert told["launch"] == begun.run_id
    made = pedigree("run", "kitchen-small", "--until", "crawl_archives", "--snapshots", "kitchen-1", root=tmp_path)
    assert made.code == 0 and f"run {begun.run_id[:8]} of the UI" in made.errors, made.errors
    assert pedigree("status", "kitchen-small", root=tmp_path).answer["killed"] == []
    with opened_instance(tmp_path) as instance:
        ended = instance.get_run_by_id(begun.run_id)
    assert ended is not None and ended.status.value == "FAILURE"
    tracking = Tracking("", tmp_path)
    tracking.flush(60)
    assert {run.info.status for run in runs_in(tracking, tmp_path)} <= {"KILLED", "FINISHED"}


def test_a_command_killed_with_its_writer_is_told_and_ended_by_the_next_one_and_a_living_one_is_not(tmp_path):
    root, living = tmp_path / "runs", "living"
    command = [sys.executable, "-c", "from assets.commands.cli import main; main()", *ARGUMENTS, "--root", str(root)]
    process = subprocess.Popen(command, env={**os.environ, "PEDIGREE_RECIPES": str(RECIPES)}, stderr=subprocess.DEVNULL)
    wait_for(lambda: list(root.glob("extracted_documents/*/process.json")), 300)
    itself = psutil.Process(process.pid)
    for one in (itself, *itself.children(recursive=True)):
        one.kill()  # as a machine does that loses its power
    process.wait()
    with opened_instance(root) as instance:
        assert [run.status.value for run in instance.get_runs()] == ["STARTED"]
    (told,) = pedigree("status", "kitchen-small", root=root).answer["killed"]
    assert (told["pid"], told["host"]) == (process.pid, socket.gethostname())
    tracking = Tracking("", root)
    with sign_of_life(sign_of_launch(root, living)):
        tracking.launch(living, "kitchen-small", "")
        made = pedigree("run", "kitchen-small", "--until", "crawl_archives", "--snapshots", "kitchen-1", root=root)
        assert made.code == 0 and f"(process {process.pid} on " in made.errors, made.errors
        tracking.flush(60)
        assert os.listdir(root / "dagster" / "launches") == [f"{living}.lock"]
    with opened_instance(root) as instance:
        assert [run.status.value for run in instance.get_runs()] == ["FAILURE"]
    runs = runs_in(tracking, root)
    ended = {run.info.run_name: run.info.status for run in runs if run.info.status != "RUNNING"}
    assert len(runs) == 4 and set(ended.values()) == {"KILLED", "FINISHED"} and ended["kitchen-small"] == "KILLED"
    assert [run.data.tags["pedigree/key"] for run in runs if run.info.status == "RUNNING"] == [f"launch-{living}"]
    assert pedigree("status", "kitchen-small", root=root).answer["killed"] == []


STOPPED = {signal.SIGINT: (130, "interrupted by Ctrl-C"), signal.SIGTERM: (143, "ended by SIGTERM")}


def test_ctrl_c_and_sigterm_end_a_run_with_a_sentence_and_mlflow_shows_it_as_killed(profile, tmp_path):
    root, replayed = tmp_path / "runs", tmp_path / "replayed"
    for number, (code, sentence) in STOPPED.items():
        ran = pedigree_in_terminal(
            *(*ARGUMENTS, "--profile", str(profile)), root=root, strike=(is_extracting(root), number)
        )
        assert ran.code == code and f"error: {sentence}; what is finished" in ran.errors, ran.errors
        assert "Traceback" not in ran.errors
    shutil.copytree(root / "tracking", replayed / "tracking")
    later = Tracking("", replayed, in_background=False)
    assert later.replay() and later.pending() == 0
    ended = sorted((run.info.run_name, run.info.status) for run in runs_in(later, replayed))
    extracted = "extracted_documents [kitchen-small@kitchen-1]"
    assert ended == [
        ("crawl_archives [kitchen-small@kitchen-1]", "FINISHED"),
        *[(extracted, "KILLED")] * 2,
        *[("kitchen-small", "KILLED")] * 2,
    ]


def is_extracting(root: Path) -> Callable[[Screen], bool]:
    """Return a condition that holds once the job of the extraction has started and its line is on the screen."""

    def holds(screen: Screen) -> bool:
        return any("extracted_documents" in line for line in screen.lines[-3:]) and any(
            root.glob("extracted_documents/*/process.json")
        )

    return holds


def test_a_full_disk_is_said_with_its_place_and_costs_nothing_that_was_done(undisturbed, small_disk, profile, tmp_path):
    if not os.path.ismount(small_disk):
        pytest.skip("needs a disk to fill: root, and a mount of tmpfs that is allowed")
    root, ballast = small_disk / "runs", small_disk / "ballast"
    shutil.rmtree(root / "extracted_documents")
    ballast.write_bytes(bytes(free_bytes(small_disk) - (100 << 10)))
    says_that_the_disk_is_full(root, profile)  # Dagster's database notices first
    for name in ("dagster", "tracking"):
        shutil.copytree(root / name, tmp_path / name)
        (root / name).rename(small_disk / name)
        (root / name).symlink_to(tmp_path / name)
    says_that_the_disk_is_full(root, profile)  # the stage does
    ballast.unlink()
    again = pedigree(*ARGUMENTS, "--profile", str(profile), root=root)
    assert again.code == 0 and digests(again) == digests(undisturbed[1]), again.errors


def says_that_the_disk_is_full(root, profile):
    full = pedigree(*ARGUMENTS, "--profile", str(profile), root=root)
    assert full.code == 1 and not full.answer["ok"] and "Traceback" not in full.errors, full.errors
    assert "disk full" in full.errors and str(root) in full.errors and "run again" in full.errors.lower()
    assert not list(root.glob("extracted_documents/*/artifact.json"))


def free_bytes(place: Path) -> int:
    state = os.statvfs(place)
    return state.f_bavail * state.f_frsize
