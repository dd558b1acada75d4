"""MLflow through the spool, against a real store: nothing lost, nothing doubled, whatever dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from resources.tracking import process, versions
from resources.tracking.errors import TrackingError
from resources.tracking.loadable import Score
from resources.tracking.registry import Registry
from resources.tracking.reports import Tracking
from resources.tracking.spool import APPLIED_FILE, READ_BYTES, SPOOL_FILE, append_line
from resources.tracking.store import (
    KEY_TAG,
    KIND_TAG,
    default_uri,
    experiments,
    files_of,
    make_client,
    server_command,
    shown,
    write_page_address,
)
from resources.tracking.versions import registered_versions
from resources.tracking.writer import REJECTED_FILE

FINGERPRINT = "0123456789abcdef" * 4


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """The URI of one sqlite store for all tests: importing MLflow and making its tables takes many seconds."""
    root = tmp_path_factory.mktemp("store")
    uri = default_uri(root)
    make_client(uri, root).create_experiment("pedigree", artifact_location=(root / "mlflow-artifacts").as_uri())
    return uri


@pytest.fixture
def client(store):
    return make_client(store, Path())


@pytest.fixture
def tracking(store, tmp_path):
    """Reports of a root of its own; they are sent when a test says so."""
    return Tracking(store, tmp_path, in_background=False)


@pytest.fixture
def launch(request):
    """An id that no other test uses."""
    return f"{abs(hash(request.node.nodeid)):016x}"


def stage_run(tracking, launch, asset="filtered_documents", **tags):
    return tracking.stage_run(launch, asset=asset, partition="toy@2024", fingerprint=FINGERPRINT, tags=tags)


def run_of(client, key):
    """The one run with this key."""
    found = client.search_runs(experiments(client), f"tags.`{KEY_TAG}` = '{key}'")
    assert len(found) == 1, f"{len(found)} runs with key {key}"
    return found[0]


def history(client, run, name):
    return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]


def toy_export(folder):
    """What MLflow's description of a model is made from."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "model.safetensors").write_text("weights")
    return folder


def lines_of(path):
    return path.read_text().splitlines()


def rows(start, stop):
    return [{"time": 1000.0 + step, "step": step, "loss": float(step)} for step in range(start, stop)]


def test_a_materialization_is_a_run_under_its_launch(tracking, client, launch, tmp_path):
    (tmp_path / "report.txt").write_text("report")
    tracking.launch(launch, "toy", "digest-of-recipe")
    stage = stage_run(tracking, launch, **{"dagster/run_id": "r1"})
    upstream = {"partition": "toy@2024", "fingerprint": "ff", "path": "/runs/x", "digest": "d" * 64}
    named = [("extracted_documents", "extracted_documents"), ("data_contamination", "guard: data_contamination")]
    stage.log_inputs([{**upstream, "asset": asset, "context": context} for asset, context in named])
    suites = [{"name": "arc", "uri": "https://user:hunter22@host/arc"}]
    stage.log_params({"min_words": 5, "text": "x" * 1000, "evaluation": {"suites": suites, "empty": [], "none": None}})
    stage.log_text("recipe.yaml", "name: toy")
    stage.log_metrics([{"time": 1000.0, "step": 1, "kept@1 %": 0.5, "note": "no number", "flag": True}])
    stage.log_metrics(rows(0, 3))
    stage.set_tags({"digest": "abc"})
    stage.log_artifact(tmp_path / "report.txt")
    stage.finish("FINISHED")
    tracking.finish_launch(launch, "FINISHED")
    assert stage.key in stage.url  # a search, until there is a run
    assert tracking.replay()
    assert tracking.pending() == 0

    run, parent = run_of(client, stage.key), run_of(client, f"launch-{launch}")
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert parent.data.tags["recipe"] == "toy"
    assert parent.data.tags["recipe_digest"] == "digest-of-recipe"
    assert (run.info.status, parent.info.status) == ("FINISHED", "FINISHED")
    assert run.info.run_name == "filtered_documents [toy@2024]"
    expected = {"asset": "filtered_documents", "partition": "toy@2024", "fingerprint": FINGERPRINT, "recipe": "toy"}
    assert {**expected, "dagster/run_id": "r1", "digest": "abc"}.items() <= run.data.tags.items()
    assert history(client, run, "loss") == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert history(client, run, "kept_1 _") == [(1, 0.5)]
    assert run.data.metrics.keys() == {"loss", "kept_1 _"}
    assert run.data.params == {
        "min_words": "5",
        "text": f"{'x' * 499}…",
        "evaluation.suites.arc.uri": "https://***@host/arc",
        "evaluation.empty": "[]",
        "evaluation.none": "null",
    }
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {"recipe.yaml", "report.txt"}
    guard, entry = sorted(run.inputs.dataset_inputs, key=lambda one: one.dataset.name)
    assert [tag.value for tag in guard.tags] == ["guard: data_contamination"]
    assert entry.dataset.name == "extracted_documents toy@2024"
    assert json.loads(entry.dataset.source) == {"uri": "/runs/x", "fingerprint": "ff", "digest": "d" * 64}
    assert not (tmp_path / "tracking" / REJECTED_FILE).exists()
    assert stage.url.endswith(f"/runs/{run.info.run_id}")


def test_each_recipe_has_an_experiment_and_links_lead_to_the_server_that_runs(tracking, client, launch, tmp_path):
    place = {"asset": "tokenizer", "fingerprint": FINGERPRINT, "tags": {}}
    runs = [tracking.stage_run(name + launch, partition=name, **place) for name in ("one", "two")]
    tracking.replay()
    found = [run_of(client, run.key).info for run in runs]
    names = [client.get_experiment(run.experiment_id).name for run in found]
    assert names == ["pedigree/one", "pedigree/two"]
    assert runs[1].url == f"http://127.0.0.1:5000/#/experiments/{found[1].experiment_id}/runs/{found[1].run_id}"
    write_page_address(tmp_path, 5017)
    assert runs[1].url.startswith("http://127.0.0.1:5017/#/experiments/")
    assert tracking.run_url("none", "one").startswith(f"http://127.0.0.1:5017/#/experiments/{found[0].experiment_id}/")


@pytest.mark.parametrize("status", ["FAILED", "KILLED"])
def test_a_run_ends_with_the_status_that_is_true(tracking, client, launch, status):
    stage = stage_run(tracking, launch)
    stage.finish(status)
    tracking.replay()
    assert run_of(client, stage.key).info.status == status


def test_a_launch_that_nobody_opened_lasts_from_its_first_stage_to_its_last(tracking, client, launch):
    first = stage_run(tracking, launch, recipe_digest="abc")
    second = stage_run(tracking, launch, asset="tokenizer")
    first.finish("FAILED")
    tracking.replay()
    parent = run_of(client, f"launch-{launch}")
    assert parent.info.status == "RUNNING"
    assert (parent.info.run_name, parent.data.tags["recipe_digest"]) == ("toy", "abc")
    second.finish("FINISHED")
    tracking.replay()
    assert run_of(client, f"launch-{launch}").info.status == "FAILED"
    stage_run(tracking, launch).finish("FINISHED")  # tried again, and well
    tracking.replay()
    assert run_of(client, f"launch-{launch}").info.status == "FINISHED"


def test_sending_everything_again_doubles_nothing(tracking, client, launch, tmp_path):
    stage_run(tracking, launch, asset="tokenizer").log_text("long.txt", "x " * READ_BYTES)  # what follows is read later
    stage = stage_run(tracking, launch)
    stage.log_metrics([*rows(0, 5), {"time": 2000.0, "step": 9, "loss": float("nan")}])
    stage.log_inputs([{"asset": "a", "partition": "p", "fingerprint": "f", "digest": "d", "path": "/p"}])
    stage.finish("FINISHED")
    tracking.replay()
    (tmp_path / "tracking" / APPLIED_FILE).unlink()
    assert tracking.pending() > 0
    tracking.replay()
    run = run_of(client, stage.key)
    assert len(history(client, run, "loss")) == 6
    assert len(run.inputs.dataset_inputs) == 1
    assert run.info.status == "FINISHED"


def test_another_store_gets_everything(tracking, client, launch, store, tmp_path):
    """The spool is the truth: what one store took does not count for the next."""
    stage_run(tracking, launch).finish("FINISHED")
    tracking.replay()
    assert tracking.pending() == 0
    assert Tracking(f"{store}?cache=private", tmp_path, in_background=False).pending() > 0


def test_torn_and_unusable_lines_are_set_aside_and_the_rest_arrives(tracking, client, launch, tmp_path):
    stage = stage_run(tracking, launch)
    with open(tmp_path / "tracking" / SPOOL_FILE, "ab") as spool:
        spool.write(b'\n{"do": "metrics", "run": "' + stage.key.encode())  # killed in the middle of a line
    stage.log_metrics(rows(0, 2))
    append_line(tmp_path / "tracking", {"do": "tags", "run": "never-opened", "tags": {"a": "b"}})
    stage.log_params({"width": 1})
    stage.log_params({"width": 2})  # MLflow does not change a param
    stage.finish("FINISHED")
    tracking.replay()
    run = run_of(client, stage.key)
    assert history(client, run, "loss") == [(0, 0.0), (1, 1.0)]
    assert (run.info.status, run.data.params) == ("FINISHED", {"width": "1"})
    reasons = [json.loads(line)["reason"] for line in lines_of(tmp_path / "tracking" / REJECTED_FILE)]
    assert len(reasons) == 3
    assert reasons[0].startswith("torn")
    assert "never opened" in reasons[1]
    assert reasons[2].startswith("INVALID_PARAMETER_VALUE")


def test_an_outage_costs_no_report(store, client, launch, tmp_path):
    nowhere = Tracking("http://127.0.0.1:9", tmp_path, in_background=False)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # whoever asks it waits for ever, so a stage asks nothing
        waits = Tracking(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path, in_background=False)
        stage = stage_run(waits, launch)
        for step in range(200):
            stage.log_metrics(rows(step, step + 1))
        stage.finish("FINISHED")
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):
            silent.accept()
    with pytest.raises(TrackingError, match=r"127\.0\.0\.1:9 .* \d+ bytes"):
        nowhere.flush(0.3)
    back = Tracking(store, tmp_path, in_background=False)
    back.replay()
    run = run_of(client, stage.key)
    assert history(client, run, "loss") == [(step, float(step)) for step in range(200)]
    assert run.info.status == "FINISHED"


REPORT_AND_KILL = """
import os, signal, sys, time
from pathlib import Path
from resources.tracking import process
from resources.tracking.reports import Tracking

process.RETRY_SECONDS = 0.0
uri, root, launch = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
tracking = Tracking(uri, root)
tracking.launch(launch, "toy", "digest")
run = tracking.stage_run(launch, asset="a", partition="toy", fingerprint="f" * 64, tags={})
while tracking.pending():
    time.sleep(0.05)
for step in range(300):
    run.log_metrics([{"time": 1000.0 + step, "step": step, "loss": float(step)}])
    if step == 200:
        time.sleep(0.35)  # a writer looks every 0.3 s: it is sending now
        writer = process._WRITERS[tracking.uri, root][0]
        writer.kill()
        writer.wait()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_is_replaced_and_closes_what_its_killed_parent_left_open(store, client, launch, tmp_path):
    arguments = [sys.executable, "-c", REPORT_AND_KILL, store, str(tmp_path), launch]
    assert subprocess.run(arguments, timeout=200).returncode == -signal.SIGKILL
    deadline = time.monotonic() + 100
    while not (applied := json.loads((tmp_path / "tracking" / APPLIED_FILE).read_text()))["runs"] or applied["open"]:
        assert time.monotonic() < deadline, (tmp_path / "tracking" / "writer.log").read_text()
        time.sleep(0.2)
    run = run_of(client, f"a-{'f' * 16}-{launch[:12]}")
    assert history(client, run, "loss") == [(step, float(step)) for step in range(300)]
    assert (run.info.status, run_of(client, f"launch-{launch}").info.status) == ("KILLED", "KILLED")


REPORT_AND_END = """
import sys
from pathlib import Path
from resources.tracking import process

Path("tracking").mkdir()
process.start_writer("sqlite:///none.db", Path.cwd())
print(process._WRITERS["sqlite:///none.db", Path.cwd()][0].pid)
"""


def test_a_process_that_ends_before_its_writer_leaves_nothing_open(tmp_path):
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", REPORT_AND_END]
    place = {**os.environ, "PYTHONPATH": str(process.PROJECT)}
    done = subprocess.run(command, cwd=tmp_path, env=place, capture_output=True, text=True, check=True)
    os.kill(int(done.stdout), signal.SIGKILL)  # it lives on, as it should
    assert done.stderr == ""


def test_a_version_is_registered_once_and_found_by_its_digest(tracking, client, launch, tmp_path):
    name, model = f"toy-{launch}", toy_export(tmp_path / "export")
    stage = stage_run(tracking, launch, asset="aligned_model")
    tracking.replay()
    registry = Registry(tracking, name)
    assert registry.version_of("d1") is None
    assert registry.holder("champion") is None
    key = f"aligned_model-{FINGERPRINT[:16]}"
    version = registry.register(model, run_key=key, tags={"digest": "d1", "recipe": "toy"})
    assert registry.version_of("d1").version == version
    assert registry.version_of("d2") is None
    assert registry.holder("champion") is None
    registry.set_alias("champion", version)
    champion = registry.holder("champion")
    assert champion.version == version and {"digest": "d1", "recipe": "toy"}.items() <= champion.tags.items()
    registered = client.get_model_version_by_alias(name, "champion")
    run = run_of(client, stage.key)
    registry.score(version, [Score(suite="cloze", value=0.5, exam="e" * 64, source="{}")])
    logged = client.get_logged_model(champion.tags["logged_model"])
    assert (logged.status, logged.source_run_id) == ("READY", run.info.run_id)
    assert [(one.key, one.value, one.dataset_name, one.run_id) for one in logged.metrics] == [
        ("eval/cloze", 0.5, "cloze", run.info.run_id)
    ]
    assert registered.source == logged.artifact_location
    assert registered.run_id == run.info.run_id  # from the version to its run
    assert run.data.tags["registered_model"] == f"{name}/{version}"  # and back
    told = [one for one in registered_versions(tracking) if one.name == name]
    assert [(one.version, one.aliases, dict(one.tags)) for one in told] == [
        (version, ("champion",), dict(client.get_model_version(name, version).tags))
    ]
    assert [one for one in versions.of_client(tracking) if one.name == name] == told  # as MLflow says it
    client.delete_model_version(name, version)
    assert not [one for one in registered_versions(tracking) if one.name == name]


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_store_of_a_moved_root_follows_it_unless_it_names_the_models_of_another_root(
    tmp_path, store, launch, is_shared
):
    (root := tmp_path / "a root").mkdir()
    shutil.copy(store.removeprefix("sqlite:///"), root / "mlflow.db")
    with closing(sqlite3.connect(root / "mlflow.db")) as database, database:
        database.execute("UPDATE experiments SET artifact_location = ?", (files_of(root),))
        database.execute("DELETE FROM logged_models")
        database.execute("DELETE FROM model_versions")
    tracking = Tracking("", root, in_background=False)
    stage = stage_run(tracking, launch, asset="aligned_model")
    tracking.replay()
    key = f"aligned_model-{FINGERPRINT[:16]}"
    Registry(tracking, "toy").register(toy_export(tmp_path / "export"), run_key=key, tags={"digest": "d1"})
    moved = root.rename(tmp_path / "moved")
    if is_shared:
        (moved / "mlflow-artifacts").rename(tmp_path / "of another root")
    client = make_client(default_uri(moved), moved)
    run = run_of(client, stage.key)
    version = client.get_model_version("toy", "1")
    places = {client.get_experiment(run.info.experiment_id).artifact_location, run.info.artifact_uri, version.source}
    kept = files_of(root if is_shared else moved)
    assert [one.removeprefix(kept) for one in sorted(places, key=len)] == [
        "",
        f"/{run.info.run_id}/artifacts",
        f"/models/{client.get_model_version('toy', '1').tags['logged_model']}/artifacts",
    ]


def test_a_copied_root_sends_nothing_again_and_of_what_waits_its_own_files(tmp_path, store, launch):
    (root := tmp_path / "root").mkdir()
    shutil.copy(store.removeprefix("sqlite:///"), root / "mlflow.db")
    tracking = Tracking("", root, in_background=False)
    stage = stage_run(tracking, launch)
    tracking.replay()
    (root / "report.txt").write_text("of the root")
    stage.log_artifact(root / "report.txt")
    copy = shutil.copytree(root, tmp_path / "copy")
    (copy / "report.txt").write_text("of the copy")
    copied = Tracking("", copy, in_background=False)
    assert copied.pending() == tracking.pending() > 0
    copied.replay()
    client = make_client(default_uri(copy), copy)
    sent = client.download_artifacts(run_of(client, stage.key).info.run_id, "report.txt", str(tmp_path))
    assert Path(sent).read_text() == "of the copy"


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "it's"])
def test_a_model_name_that_mlflow_cannot_search_is_refused(tracking, name):
    with pytest.raises(TrackingError, match="empty or hold"):
        Registry(tracking, name)


def test_nothing_is_started_or_imported_when_nothing_is_reported(tmp_path):
    check = (
        "import sys\n"
        "from pathlib import Path\n"
        "from resources.tracking.process import _WRITERS\n"
        "from resources.tracking.reports import Tracking\n"
        "tracking = Tracking('', Path(sys.argv[1]))\n"
        "assert tracking.pending() == 0\n"
        "tracking.flush(1.0)\n"
        "tracking.run_url('key')\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'mlflow']\n"
        "assert not _WRITERS"
    )
    subprocess.run([sys.executable, "-c", check, str(tmp_path)], check=True)
    assert not list(tmp_path.iterdir())


def test_no_password_leaves_the_process(tmp_path):
    uri = "postgresql+psycopg2://user:hunter2@db:5432/mlflow"
    argv, environment = server_command(uri, tmp_path, 5000)
    assert "hunter2" not in " ".join(argv)
    assert environment["MLFLOW_BACKEND_STORE_URI"] == uri
    assert shown(uri) == "postgresql+psycopg2://db:5432/mlflow"
    assert "hunter2" not in Tracking("https://user:hunter2@mlflow", tmp_path).run_url("key")


@pytest.mark.slow
def test_through_a_server_reports_arrive_and_models_are_uploaded(tmp_path, store, launch):
    """The server starts late, over a copy of the store with no experiment of ours."""
    from tests.cluster.minislurm import free_ports

    (port,) = free_ports(1)
    uri = f"http://127.0.0.1:{port}"
    tracking = Tracking(uri, tmp_path, in_background=False)
    stage = stage_run(tracking, launch, asset="aligned_model")
    stage.log_metrics(rows(0, 50))
    model = toy_export(tmp_path / "export")

    shutil.copy(store.removeprefix("sqlite:///"), tmp_path / "mlflow.db")
    copied = make_client(default_uri(tmp_path), tmp_path)
    for place in experiments(copied):
        copied.rename_experiment(place, f"of another team {place}")
    argv, environment = server_command("", tmp_path, port)
    with open(tmp_path / "server.log", "wb") as output:
        server = subprocess.Popen(
            argv, env={**os.environ, **environment}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 150
        while not answers(uri):
            assert time.monotonic() < deadline and server.poll() is None, (tmp_path / "server.log").read_text()
            time.sleep(0.5)
        stage.finish("FINISHED")
        tracking.replay()
        client = make_client(uri, tmp_path)
        run = run_of(client, stage.key)
        assert history(client, run, "loss") == [(step, float(step)) for step in range(50)]
        link = f"{uri}/#/experiments/{run.info.experiment_id}/runs"
        assert tracking.run_url(stage.key) == tracking.run_url(stage.key[:-5]) == f"{link}/{run.info.run_id}"
        assert tracking.run_url("not-yet").startswith(f"{link}?workflowType=machine_learning&searchFilter=")
        assert client.get_experiment(run.info.experiment_id).tags[KIND_TAG] == "custom_model_development"
        key = f"aligned_model-{FINGERPRINT[:16]}"
        registry = Registry(tracking, "toy-served")
        version = registry.register(model, run_key=key, tags={"digest": "d1"})
        assert registry.version_of("d1").version == version
        served = registry.folder_of(registry.version(version))
        assert (served / "model" / "config.json").read_bytes() == (model / "config.json").read_bytes()
        assert (served / "MLmodel").is_file() and not (served / "components" / "model.safetensors").exists()
        assert "Warning: " not in (tmp_path / "server.log").read_text()
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answers(uri):
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"{uri}/health", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False
