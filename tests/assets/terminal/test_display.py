"""What `pedigree run` shows while it runs, with a clock of the tests'; tests/end_to_end/test_chain.py reads a run's."""

from __future__ import annotations

import json
import os
import pty
import shutil
import sys

import pytest

from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe
from assets.terminal.display import Display, _divided
from assets.terminal.first_run import Rate
from assets.terminal.time_left import earlier_seconds, in_words, roughly
from resources.profile import load_profile
from tests.assets.fabricate import make_all
from tests.screen import Screen, read_now, resize
from training.contract import artifact


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory):
    """A comparison in which every asset was made, each 60 s after its job was submitted; then the model changed."""
    root = tmp_path_factory.mktemp("root")
    path = root / "own.yaml"
    path.write_text("extends: kitchen\nname: own\n")
    for cell in make_all(load_recipe(str(path)), root).cells.values():
        recipe = cell.artifact.path / "recipe.json"
        recipe.touch()
        committed = (cell.artifact.path / artifact.ARTIFACT_FILE).stat().st_mtime
        os.utime(recipe, (committed - 60, committed - 60))
    path.write_text("extends: kitchen\nname: own\npretrain: {learning_rate: 0.001}\n")
    return compare(load_recipe(str(path)), root)


def begun(kitchen, display):
    """The cells that are left to make; the first of them, the base model, is begun."""
    left = kitchen.to_do()
    for cell in left:
        display.announce("planned", cell, {})
    assert left[0].asset == "base_model"
    display.announce("started", left[0], {})
    return left


def test_without_a_terminal_a_line_every_thirty_seconds_says_how_far_it_is(kitchen, capsys):
    clock = Clock()
    display = Display(kitchen.recipe, kitchen.root, clock)
    left = begun(kitchen, display)

    def ticked(*rows, seconds):
        for row in rows:
            display.announce("progress", left[0], row)
        clock.now += seconds
        display.tick()
        return capsys.readouterr().err

    others = len(left) - 1
    assert ticked(seconds=29) == ""
    # Nobody has reported yet: the earlier artifact says what is left.
    assert ticked(seconds=1) == (
        f"  30.0 s  base_model [own]: running for 30 s, time left: 30 s;"
        f" of the recipe: {in_words(30 + 60 * others)} (asset 1 of {len(left)})\n"
    )
    assert ticked({"step": 10, "steps": 100, "loss": 3.0}, seconds=20) == ""
    assert "step 20 of 100, loss 2.5, time left: 2 min 30 s;" in ticked(
        {"step": 20, "steps": 100, "loss": 2.5}, {"step": 20, "held_out": 1.0}, seconds=10
    )  # a step in 2 s, 80 steps, 10 s of them gone
    display.announce("waits", left[0], {"for": "its place in the queue: Resources"})
    assert "base_model [own] waits for its place in the queue: Resources, for 40 s, " in ticked(seconds=40)
    display.announce("made", left[0], {"seconds": 7.0})
    assert "base_model [own]: 7.0 s\n" in capsys.readouterr().err
    display.say("starting a run in Dagster")
    assert ticked(seconds=29) == "" and ticked(seconds=1) == " 130.0 s  own: starting a run in Dagster\n"
    display.announce("started", left[0], {})
    ticked({"step": 1, "ranks": 4, "documents": 100.0}, seconds=10)
    assert "rank 3 of 4, 20 documents/s, time left: 0 s; " in ticked(
        {"step": 3, "ranks": 4, "documents": 300.0}, seconds=30
    )


def test_after_the_last_step_the_phase_is_named_with_the_time_that_it_took_before(kitchen, tmp_path, capsys):
    clock = Clock()
    cell = next(cell for cell in kitchen.to_do() if cell.asset == "base_model")
    earlier = max((kitchen.root / "base_model").glob("*/artifact.json"))
    rows = [{"time": earlier.stat().st_mtime - 25, "step": 99, "steps": 100}, {"time": 1, "step": 100, "held_out": 1}]
    metrics = earlier.with_name("metrics.jsonl")
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    display = Display(kitchen.recipe, kitchen.root, clock)
    begun(kitchen, display)
    metrics.unlink()
    display.announce("progress", cell, {"step": 10, "steps": 100})
    clock.now += 10
    display.announce("progress", cell, {"step": 60, "steps": 100})
    assert "time left: 33 s; " in display._times(), "8 s of steps and 25 s after them"
    clock.now += 8
    display.announce("progress", cell, {"step": 100, "steps": 100})
    assert display._what() == "base_model [own]: 100 steps done, finishing" and "left: 25 s; " in display._times()
    display.announce("phase", cell, {"name": "checking and writing the model"})
    clock.now += 5
    assert display._what() == "base_model [own]: checking and writing the model for 5 s"
    assert display._times().startswith("time left: 20 s; of the recipe: ")
    clock.now += 30
    assert display._times().startswith("time left of the recipe: more than "), "no false number"
    clock.now += 30
    assert display._times().startswith("longer than last time; of the recipe more than ")


def test_a_first_run_is_estimated_by_the_plan_and_corrected_by_its_own_pace(kitchen, tmp_path, monkeypatch, capsys):
    rates = {"base_model": Rate(start=10, each=1e-12, unit="flop"), "tokenizer": Rate(start=40)}
    monkeypatch.setattr("assets.terminal.first_run.rates", lambda: rates)
    clock, cells = Clock(), kitchen.cells
    tokenizer, model, others = cells["tokenizer", "own"], cells["base_model", "own"], cells["model_card", "own"]
    display = Display(kitchen.recipe, tmp_path, clock, load_profile("local"))
    for cell in (tokenizer, model):
        display.announce("planned", cell, {})
    display.announce("started", tokenizer, {})
    shape = kitchen.recipe.model.shape(vocab_size=kitchen.recipe.tokenizer.vocabulary)
    flop = kitchen.recipe.pretrain.tokens * shape.training_flops_per_token(kitchen.recipe.pretrain.sequence_length)
    training = 10 + 1e-12 * flop
    assert display._times() == f"time left by plan: 40 s; of the recipe: {roughly(40 + training)} (asset 1 of 2)"
    clock.now += 90
    assert display._times() == f"longer than planned; of the recipe more than {roughly(training)} left (asset 1 of 2)"
    display.announce("made", tokenizer, {"seconds": 90.0})
    display.announce("started", model, {})
    assert display._times().startswith(f"time left by plan: {roughly(2 * training)}; "), "it is twice as slow"
    display.announce("planned", others, {})
    assert "; of the recipe: more than " in display._times(), "nothing is known of the card"
    for step in (1, 2):
        display.announce("progress", model, {"step": step, "steps": 12})
        clock.now += 10 * (step == 1)
    assert display._times().startswith("time left: 1 min 40 s; of the recipe: ")


def test_what_neither_progress_nor_an_earlier_artifact_nor_the_plan_tells_is_unknown(kitchen, tmp_path, capsys):
    clock = Clock()
    display = Display(kitchen.recipe, tmp_path, clock)
    begun(kitchen, display)
    clock.now += 30
    display.tick()
    assert "time left: unknown; of the recipe: unknown (asset 1 of " in capsys.readouterr().err


def test_what_a_first_run_has_made_of_one_snapshot_tells_how_long_another_takes(tmp_path, capsys):
    recipe = load_recipe("kitchen")
    cells = make_all(recipe, tmp_path / "made").cells
    display = Display(recipe, tmp_path / "root", Clock())
    first, second = (cells["crawl_archives", f"kitchen@kitchen-{number}"] for number in (1, 2))
    for cell in (first, second, cells["tokenizer", "kitchen"]):
        display.announce("planned", cell, {})
    display.announce("started", first, {})
    recipe_file = tmp_path / "root" / first.artifact.path.relative_to(tmp_path / "made") / "recipe.json"
    shutil.copytree(first.artifact.path, recipe_file.parent)
    recipe_file.touch()
    committed = (recipe_file.parent / artifact.ARTIFACT_FILE).stat().st_mtime
    os.utime(recipe_file, (committed - 60, committed - 60))
    display.announce("made", first, {"seconds": 60.0})
    display.announce("started", second, {})
    assert "time left: 1 min 00 s; of the recipe: more than 1 min 00 s (asset 2 of 3)" in display._times()


@pytest.mark.parametrize("width", [80, 64, 20])
def test_a_line_that_is_too_wide_is_divided_after_commas_and_never_in_a_phrase(width):
    line = " 123.4 s  decontaminated_documents [kitchen@kitchen-1]: 1.1 s, reused 3 of 4 ranks, 1,234 of 1,264 kept"
    divided = _divided(line, width).split("\n")
    assert divided[-1].endswith("1,234 of 1,264 kept") and all(one.startswith(" " * 10) for one in divided[1:])
    assert " ".join(one.strip() for one in divided) == line.strip()
    assert width == 20 or all(len(one) <= width for one in divided)


def test_the_earlier_artifact_is_of_the_partition_or_another_snapshot_or_has_equal_settings(kitchen, tmp_path):
    def seconds(asset, partition, text):
        (tmp_path / "other.yaml").write_text(f"extends: kitchen\n{text}\n")
        cells = compare(load_recipe(str(tmp_path / "other.yaml")), tmp_path).cells
        found = earlier_seconds(cells[asset, partition], kitchen.root)
        return found and round(found)

    new = "snapshots: [{name: new, source: kitchen, label: web}]\n"
    new += "tokenizer: {snapshots: [new]}\nquality: {snapshots: [new]}"
    assert round(earlier_seconds(kitchen.cells["tokenizer", "own"], kitchen.root)) == 60
    assert seconds("crawl_archives", "own@new", f"name: own\n{new}") == 60
    assert seconds("crawl_archives", "other@new", f"name: other\n{new}") is None
    assert seconds("base_model", "other", "name: other") == 60
    assert seconds("base_model", "other", "name: other\npretrain: {learning_rate: 0.005}") is None
    (record,) = kitchen.root.glob(f"base_model/*/{artifact.ARTIFACT_FILE}")
    record.rename(record.with_name("apart"))
    os.mkfifo(record)
    assert seconds("base_model", "other", "name: other") is None
    record.with_name("apart").rename(record)


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("colour", [True, False])
def test_in_a_terminal_a_bar_stays_below_the_lines_of_what_is_finished(kitchen, monkeypatch, columns, colour):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not colour:
        monkeypatch.setenv("NO_COLOR", "1")
    ours, theirs = pty.openpty()
    resize(theirs, columns)
    screen, clock = Screen(columns), Clock()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Display(kitchen.recipe, kitchen.root, clock) as display:
            # Dagster does this during a step.
            log = os.open(os.devnull, os.O_WRONLY)
            os.dup2(log, theirs)
            left = begun(kitchen, display)
            display.announce("progress", left[0], {"step": 10, "steps": 100, "loss": 3.0})
            clock.now += 20
            display.announce("progress", left[0], {"step": 50, "steps": 100, "loss": 2.0})
            display.refresh()
            said = read_now(ours)
            screen.feed(said)
            shown = [line for line in screen.lines if line.strip()]
            assert shown[0].startswith("base_model [own]: step 50 of 100, loss 2 ━")
            assert shown[1].startswith("  time left: 25 s; of the recipe: ")
            assert sum("base_model" in line for line in shown) == sum("time left" in line for line in shown) == 1
            assert ("\x1b[38;5;" in said) == colour and all(len(line) <= columns for line in shown)
            display.announce("made", left[0], {"seconds": 20.0})
            display.announce("started", left[1], {})
        screen.feed(read_now(ours))
    os.close(ours)
    os.close(log)
    assert screen.lines[0] == "  20.0 s  base_model [own]: 20.0 s"
    assert not any("time left" in line or "━" in line for line in screen.lines)


def test_in_a_terminal_each_of_the_cells_side_by_side_says_that_it_is_held_or_lost_its_node(kitchen, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    ours, theirs = pty.openpty()
    resize(theirs, 100)
    screen = Screen(100)
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Display(kitchen.recipe, kitchen.root, Clock()) as display:
            one, two = begun(kitchen, display)[:2]
            display.announce("started", two, {})
            display.announce("told", one, {"text": "attempt 4.0 was preempted after 9 s on node1"})
            held = {"state": "pending", "reason": "JobHeldAdmin: an administrator holds it", "seconds": 2.0}
            display.announce("waiting", two, {**held, "is_stuck": True})
            display.announce("waiting", one, {**held, "reason": "Resources", "is_stuck": False})  # the bar has it
        screen.feed(read_now(ours))
    os.close(ours)
    assert [line for line in screen.lines if line.strip()] == [
        "   0.0 s  base_model [own]: attempt 4.0 was preempted after 9 s on node1",
        f"   0.0 s  {two.asset} [own]: pending for 2 s: JobHeldAdmin: an administrator holds it",
    ]
