"""What a run was, through the real command, where the last thing that it was asked for was refused or is not there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import dagster as dg
import pytest

from assets.registry.standing import Standing
from assets.run.result import Ended, Goal, report_of
from assets.services.stores import opened_instance
from assets.state.cell import Comparison
from assets.state.chain import CHAIN
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from resources import notify
from resources.compute.local import PROCESS_FILE
from resources.compute.size import Size
from resources.tracking.registry import somebody
from resources.tracking.spool import SPOOL_FILE
from tests.assets.fabricate import make_all
from tests.commands import said
from training.contract.process.exit_codes import BAD_INPUT, FAILED, OK, REFUSED

pytestmark = pytest.mark.usefixtures("without_writer")

GATE = "loss_finite_and_falling"
LADDER = str(Path(__file__).parents[3] / "examples" / "recipes" / "kitchen-ladder.yaml")


@pytest.fixture(scope="module")
def refused(kitchen, tmp_path_factory):
    root = tmp_path_factory.mktemp("refused")
    make_all(kitchen, root, failing={"base_model": GATE, "corpus_summary": "counts_balance"})
    return root


def run(monkeypatch, capsys, *arguments: str) -> tuple[int, dict[str, Any], str]:
    code, answer, errors = said(monkeypatch, capsys, "run", *arguments, "--json")
    notify.finish()
    return code, json.loads(answer), errors


@pytest.mark.parametrize("until", ["base_model", "corpus_summary"])
def test_a_run_up_to_a_refused_asset_is_refused_everywhere(refused, monkeypatch, capsys, profile, hook, until):
    arguments = ("kitchen", "--until", until, "--root", str(refused), "--profile", profile)
    code, answer, errors = run(monkeypatch, capsys, *arguments)
    assert code == REFUSED and answer["ok"] is False
    assert [(one["asset"], one["partition"]) for one in answer["refusals"]] == [(until, "kitchen")]
    assert f"of {until} [kitchen]" in errors
    (message,) = hook.messages
    assert (message["kind"], message["asset"], message["link"]) == ("refused", until, "https://ui.example/runs")
    assert f"refused by gate {answer['refusals'][0]['gate']}" in message["cause"]


def test_a_run_that_was_not_asked_for_the_refused_asset_is_ok(refused, monkeypatch, capsys, profile, hook):
    arguments = ("kitchen", "--until", "training_plan", "--root", str(refused), "--profile", profile)
    code, answer, _ = run(monkeypatch, capsys, *arguments)
    assert (code, answer["ok"], answer["refusals"], hook.messages) == (OK, True, [], [])


def test_the_command_of_the_documentation_for_a_ladder_says_that_the_fit_was_refused(tmp_path, monkeypatch, capsys):
    gate = CHAIN["scaling_fit"].stage.gates[0]
    make_all(load_recipe(LADDER), tmp_path, failing={"scaling_fit": gate})
    code, answer, _ = run(monkeypatch, capsys, LADDER, "--until", "scaling_fit", "--root", str(tmp_path))
    assert (code, answer["ok"], answer["refusals"][0]["gate"]) == (REFUSED, False, gate)


def test_mlflow_and_dagster_hear_who_launched_and_that_it_was_refused(refused, tmp_path, monkeypatch, capsys):
    """The reference is gone, so that Dagster takes up the refused artifact once more."""
    monkeypatch.setenv("LOGNAME", "ada")
    root = shutil.copytree(refused, tmp_path / "root")
    (root / "refs" / "corpus_summary" / "kitchen.json").unlink()
    code, _, _ = run(monkeypatch, capsys, "kitchen", "--until", "corpus_summary", "--root", str(root))
    assert code == REFUSED
    lines = (root / "tracking" / SPOOL_FILE).read_text("utf-8").splitlines()
    spooled = [json.loads(line) for line in lines if line]
    assert [line["status"] for line in spooled if line.get("do") == "finish"] == ["FAILED"]
    assert [line["tags"]["mlflow.user"] for line in spooled if line.get("do") == "run"] == [somebody()]
    with opened_instance(root) as instance:
        (one,) = instance.get_runs()
        events = instance.all_logs(one.run_id, dg.DagsterEventType.ENGINE_EVENT)
    assert one.status == dg.DagsterRunStatus.FAILURE and one.tags["user"] == somebody()
    assert somebody().startswith("ada@")
    assert "ended: refused by gate counts_balance of corpus_summary [kitchen]" in events[-1].message


def test_of_two_gates_all_name_the_first_of_the_record(kitchen, tmp_path, monkeypatch, capsys, profile, hook):
    """A stage declares the balance of its records first, and it is checked last."""
    root = tmp_path / "root"
    make_all(kitchen, root, failing={"training_plan": "shares counts_balance"})
    (root / "refs" / "training_plan" / "kitchen.json").unlink()
    arguments = ("kitchen", "--until", "training_plan", "--root", str(root), "--profile", profile)
    code, answer, errors = run(monkeypatch, capsys, *arguments)
    assert code == REFUSED and [one["gate"] for one in answer["refusals"]] == ["shares"]
    assert "refused by gate shares of training_plan [kitchen]" in errors
    (message,) = hook.messages
    assert "refused by gate shares of" in message["cause"]
    with opened_instance(root) as instance:
        (one,) = instance.get_runs()
        checks = instance.all_logs(one.run_id, dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    told = [check.dagster_event.asset_check_evaluation_data.check_name for check in checks]
    assert told[:2] == ["shares", "counts_balance"]


# Ways to end, each told alike by exit code, object, terminal, webhook and Dagster

MADE_OF_NOTHING = "training_plan"  # of fabricated shards, among which its stage finds no listing


def absent(root: Path, made: Path) -> Path:
    """A recipe that names a file that is not there."""
    return of_file(root, "absent.warc.gz")


def unreadable(root: Path, made: Path) -> Path:
    """A recipe of a file that is no archive."""
    (root / "broken.warc.gz").write_bytes(bytes(range(256)) * 9)
    return of_file(root, "broken.warc.gz")


def in_quarantine(root: Path, made: Path) -> Path:
    """A recipe of an archive of which no record can be read to its end."""
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Encoding: gzip\r\n\r\n" + bytes(range(200))
    head = f"WARC-Target-URI: https://a.test/\r\nWARC-Date: 2026-01-01T00:00:00Z\r\nContent-Length: {len(page)}"
    record = f"WARC/1.0\r\nWARC-Type: response\r\n{head}\r\n\r\n".encode() + page + b"\r\n\r\n"
    (root / "all.warc").write_bytes(record * 3)
    return of_file(root, "all.warc")


def of_file(root: Path, name: str) -> Path:
    recipe = root / "one.yaml"
    recipe.write_text(f"extends: base\nname: one\nsnapshots: [{{name: a, source: warc, paths: ['{root / name}']}}]\n")
    return recipe


def raising(root: Path, made: Path) -> str:
    """The kitchen without one artifact, whose stage cannot read the fabricated ones before it."""
    shutil.copytree(made, root, dirs_exist_ok=True)
    shutil.rmtree(root / MADE_OF_NOTHING)
    return "kitchen"


def whole_already(root: Path, made: Path) -> str:
    shutil.copytree(made, root, dirs_exist_ok=True)
    return "kitchen"


def killed(root: Path, made: Path) -> str:
    """The kitchen on an empty root, with somebody who kills its first stage as often as it begins."""
    Thread(target=kill_stages, args=(root / "crawl_archives",), daemon=True).start()
    return "kitchen"


def kill_stages(folder: Path) -> None:
    seen = set[int]()
    while len(seen) <= Size().retries:
        for place in folder.glob(f"*/{PROCESS_FILE}"):
            with suppress(OSError, ValueError):
                process = json.loads(place.read_text("utf-8"))["pid"]
                if process not in seen:
                    os.kill(process, signal.SIGKILL)
                    seen.add(process)
        time.sleep(0.001)


ENDS = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE}


@pytest.mark.parametrize(
    ("prepared", "until", "code", "asset"),
    [
        (absent, "token_shards", BAD_INPUT, ""),
        (unreadable, "token_shards", BAD_INPUT, "crawl_archives"),
        (in_quarantine, "extracted_documents", OK, ""),
        (raising, MADE_OF_NOTHING, FAILED, MADE_OF_NOTHING),
        (whole_already, "base_model", OK, ""),
        (killed, "crawl_archives", FAILED, "crawl_archives"),
    ],
)
def test_a_run_has_one_result(made, tmp_path, monkeypatch, capsys, profile, hook, prepared, until, code, asset):
    root = tmp_path / "root"
    root.mkdir()
    recipe = prepared(root, made)
    arguments = (str(recipe), "--until", until, "--root", str(root), "--profile", profile)
    ended, answer, errors = run(monkeypatch, capsys, *arguments)
    assert (ended, answer["ok"], answer["refusals"], answer["promoted"]) == (code, code == OK, [], False), errors
    assert bool(answer["error"]) == (code != OK) and answer["error"] in errors.replace("error: ", "")
    assert {one["kind"] for one in hook.messages} == (set() if code == OK else {"failed"})
    assert not asset or {one["asset"] for one in hook.messages} == {asset}
    with opened_instance(root) as instance:
        states = {one.status for one in instance.get_runs()}
    assert (dg.DagsterRunStatus.FAILURE in states) == bool(asset) and states <= ENDS


# Each cell, each way to end


def with_state(comparison: Comparison, asset: str, **changes: Any) -> Comparison:
    """The comparison with one asset's cells changed; `failed` is a gate that refused them."""
    failed = changes.pop("failed", "")
    cells = dict(comparison.cells)
    for key, cell in cells.items():
        if cell.asset == asset:
            made = cell.artifact
            if failed:
                gates = [{"name": failed, "passed": False, "evidence": {"why": "a test"}}]
                made = replace(made, record={**made.record, "gates": gates})
            cells[key] = replace(cell, **({"artifact": made} | changes))
    return replace(comparison, cells=cells)


@pytest.fixture(scope="module")
def whole(kitchen, made) -> Comparison:
    return compare(kitchen, made)


PROMOTED = Standing(model_name="kitchen", promoted=True)


def result(comparison: Comparison, until: str | None = None, standing: Standing | None = PROMOTED, *ended: Ended):
    report = report_of(comparison, Goal(until=until), ended=ended, standing=standing)
    assert (report.exit_code == OK) == report.as_json()["ok"] == report.sentence.startswith("ok: ")
    return report.exit_code, [one["asset"] for one in report.refusals], report.error


@pytest.mark.parametrize("asset", [name for name, one in CHAIN.items() if one.scope in ("snapshot", "recipe")])
def test_no_refused_asset_is_passed_over_by_a_run_up_to_it_or_to_the_end(whole, asset):
    refused = with_state(whole, asset, failed="a gate")
    for until in (asset, None):
        code, assets, error = result(refused, until)
        assert code == REFUSED and set(assets) == {asset} and not error


@pytest.mark.parametrize("state", ["missing", "outdated", "damaged", "unavailable"])
def test_what_is_not_made_at_the_end_is_no_success(whole, state):
    for asset in ("base_model", "promoted_model"):
        lacking = with_state(whole, asset, state=state, artifact=None, reasons=("why",))
        code, _, error = result(lacking, asset)
        assert code == FAILED and error == f"{asset} [kitchen] is {state} at the end of the run (why)"
        assert result(lacking, "training_plan")[0] == OK
    unrecorded = with_state(whole, "base_model", is_recorded=False)
    assert result(unrecorded)[0] == FAILED


def test_a_run_with_the_decision_is_ok_only_if_the_model_is_promoted(whole):
    for until in (None, "promoted_model"):
        assert result(whole, until) == (OK, [], "")
        code, _, error = result(whole, until, Standing(model_name="kitchen", sentence="MLflow is gone", is_known=False))
        assert (code, error) == (FAILED, "kitchen is not promoted: MLflow is gone")
        former = Standing(model_name="kitchen", version="1", superseded_by="2", sentence="no longer")
        assert result(whole, until, former) == (REFUSED, ["promoted_model"], "")
    assert result(whole, "model_card", None) == (OK, [], "")


def test_a_decision_that_a_person_overrode_is_no_refusal_but_another_gate_is(whole):
    by_hand = replace(PROMOTED, by_hand=True)
    assert result(with_state(whole, "promoted_model", failed="promotion"), None, by_hand) == (OK, [], "")
    refused = with_state(whole, "corpus_summary", failed="counts_balance")
    assert result(refused, None, by_hand) == (REFUSED, ["corpus_summary"], "")


def test_an_error_decides_the_exit_code_and_refusals_are_told_beside_it(whole):
    ended = (Ended(error="disk full", exit_code=FAILED), Ended(), Ended(error="bad input", exit_code=2))
    refused = with_state(whole, "base_model", failed=GATE)
    assert result(refused, None, None, *ended) == (FAILED, ["base_model"], "disk full\nbad input")
