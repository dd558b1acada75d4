"""A recorded digest that changed is said by asset and partition, and fails where nothing may change."""

from __future__ import annotations

import pytest

from assets.state.recipe_folders import SHIPPED
from tests import golden

MADE = {"tokenizer": {"kitchen": "a"}, "base_model": {"kitchen": "b"}, "model_card": {"kitchen": "c"}}


@pytest.mark.parametrize(
    ("change", "said", "matters"),
    [
        ({}, [], False),
        ({"model_card": {"kitchen": "x"}}, ["kitchen: model_card [kitchen]: c -> x"], False),
        ({"tokenizer": {"kitchen": "x"}}, ["kitchen: tokenizer [kitchen]: a -> x"], True),
        ({"base_model": {}}, ["kitchen: base_model [kitchen]: b -> not made"], True),
        ({"sft_model": {"kitchen": "d"}}, ["kitchen: sft_model [kitchen]: not recorded -> d"], True),
    ],
)
def test_a_digest_that_changed_is_said_and_counts_up_to_the_scores(change, said, matters):
    found = golden.differences("kitchen", MADE, MADE | change)
    assert [line for line, _ in found] == said and any(one for _, one in found) == matters


def test_what_was_trained_in_another_class_is_not_compared_and_what_was_not_trained_is():
    before, now = ({**MADE, "numerics": {"base_model": name}} for name in ("a machine", "another"))
    changed = now | {"base_model": {"kitchen": "x"}}
    ((line, matters),) = golden.differences("kitchen", before, changed)
    assert line == "kitchen: base_model: not compared, recorded in another numerics class" and not matters
    ((line, matters),) = golden.differences("kitchen", before, before | {"base_model": {"kitchen": "x"}})
    assert line.endswith("b -> x") and matters
    found = golden.differences("kitchen", before, changed | {"tokenizer": {"kitchen": "x"}})
    assert [matters for _, matters in found] == [False, True]


@pytest.mark.parametrize("part", ["loss of step 2", "weights", "numerics"])
def test_steps_of_which_two_runs_differ_are_not_recorded(monkeypatch, tmp_path, part):
    runs = {run: {"loss of step 1": "a", "loss of step 2": "b", "weights": "c", "numerics": "d"} for run in (0, 1)}
    (tmp_path / "job.json").write_text("{}", "utf-8")
    monkeypatch.setattr(golden, "run", lambda *_, **__: {"base_model": {"": {"uri": str(tmp_path)}}})
    monkeypatch.setattr(golden, "read_job", lambda _: None)
    monkeypatch.setattr(golden, "trained", lambda _, __, scratch: dict(runs[int(scratch.name[-1])]))
    record = tmp_path / "golden.json"
    record.write_text("{}", "utf-8")
    monkeypatch.setattr(golden, "RECORD", record)
    monkeypatch.setattr("sys.argv", ["golden", "record", "--parts", "steps"])
    assert golden.main() == 0 and "weights" in record.read_text("utf-8")
    before, runs[1][part] = record.read_bytes(), "x"
    with pytest.raises(SystemExit, match=f"from {part} on: nothing is recorded"):
        golden.main()
    assert record.read_bytes() == before


def test_what_was_recorded_is_every_part_with_twenty_losses_that_are_exact():
    recorded = golden.read_record()
    assert set(recorded) == set(golden.PARTS)
    assert all((SHIPPED / f"{name}.yaml").exists() for name in ("kitchen", "webdocs"))
    assert {*recorded["kitchen-small"]["numerics"]} == {*golden.TRAINED}
    steps = {name: bits for name, bits in recorded["steps"].items() if name != "numerics"}
    assert steps.keys() == recorded["steps"]["numerics"].keys()
    for bits in steps.values():
        assert len(bits) == golden.STEPS + 1
        assert float.fromhex(bits["loss of step 1"]) > float.fromhex(bits["loss of step 20"]) > 0
