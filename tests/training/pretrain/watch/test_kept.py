"""Steps of a training that are kept as artifacts of their own."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from assets.state.chain import CHAIN, parts_of
from assets.state.recipe_folders import load_recipe
from tests.jobs import commit_by_hand
from tests.training.pretrain import tiny
from training.contract.artifact import decided_of, find, problems_of
from training.contract.job import InputArtifact, write_job
from training.contract.records import RecipeError
from training.contract.running.lease import Lease
from training.contract.running.runner import run_job
from training.pretrain.watch.keep_settings import KeepRecipe
from training.provenance.lineage import Lineage, Node, averaged_before, trainings_of
from training.stages import STAGES

PLAIN = dataclasses.replace(tiny.PRETRAIN, precision="fp32", optimizer="adamw")
STEPS = (3, 7)


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return tiny.TinyChain(tmp_path_factory.mktemp("chain"), pretrain=PLAIN)


def keeping(chain, name, steps=STEPS):
    """The job of a training that keeps steps on its way."""
    job = chain.job(name, threads=1, checkpoint_seconds=0.0)
    return dataclasses.replace(job, on_the_way=tuple(kept(chain, job, step) for step in steps))


def kept(chain, job, step):
    """The job of one kept step."""
    called = {"asset": "kept_steps", "partition": f"tiny@step-{step}", "fingerprint": f"{job.fingerprint}-{step}"}
    output = str(chain.root / "kept_steps" / called["fingerprint"])
    return dataclasses.replace(job, **called, settings=job.settings | {"kept": {"step": step}}, output=output)


@pytest.fixture(scope="module")
def straight(chain):
    """A training that kept its steps without a stop."""
    job = keeping(chain, "straight")
    assert run_job(job, STAGES) == 0
    return job


def made(job):
    return [find(Path(one.output)) for one in (*job.on_the_way, job)]


def test_a_training_keeps_its_steps_and_makes_the_same_model(chain, straight):
    plain = chain.job("plain", threads=1)
    assert run_job(plain, STAGES) == 0
    *steps, last = made(straight)
    assert last.digest == find(Path(plain.output)).digest
    for step, one in zip(STEPS, steps, strict=True):
        assert (one.record["asset"], one.record["partition"]) == ("kept_steps", f"tiny@step-{step}")
        assert one.record["metrics"]["steps"] == step and one.record["metrics"]["tokens"] == step * 256
        assert all(gate["passed"] for gate in one.record["gates"]) and one.record["numerics"] == last.record["numerics"]
        assert [item["asset"] for item in one.record["inputs"]] == ["training_plan", "token_shards", "tokenizer"]
    assert len({one.digest for one in (*steps, last)}) == 3


def test_a_step_that_is_asked_for_later_is_the_same_artifact(chain, straight):
    alone = dataclasses.replace(straight.on_the_way[1], output=str(chain.root / "kept_steps" / "alone"))
    assert run_job(alone, STAGES) == 0
    ours, theirs = find(Path(alone.output)), made(straight)[1]
    assert ours.digest == theirs.digest
    assert ours.record["metrics"].keys() == theirs.record["metrics"].keys()
    alike = {"numerics": None}  # the later run is in a process that has loaded more
    assert decided_of(ours.record) | alike == decided_of(theirs.record) | alike


def test_the_steps_after_a_kept_one_did_not_train_it(chain):
    plan = chain.plan_artifact
    step = commit_by_hand(chain.root / "kept_steps" / "by-hand", "kept_steps", settings={"kept": {"step": 3}})
    nodes = {
        one.fingerprint: Node(item=one, made=find(Path(one.path)), inputs=behind)
        for one, behind in ((step, (plan.fingerprint,)), (plan, ()))
    }
    (training,) = trainings_of(Lineage(chain.root, nodes))
    assert training.name == "kept_steps" and training.ledger.steps == list(range(3, training.plan.record.steps))
    assert training.ledger.reasons(3) == {"later"} and 2 not in training.ledger


def test_of_averaged_steps_the_last_one_was_trained_on_all_that_the_mean_read(chain):
    plan, held = chain.plan_artifact, {"by-hand-9": 9, "by-hand-10": 10}
    steps = [
        commit_by_hand(
            chain.root / "kept_steps" / name, "kept_steps", partition=name, settings={"kept": {"step": step}}
        )
        for name, step in held.items()
    ]
    mean = commit_by_hand(chain.root / "averaged_model" / "by-hand", "averaged_model")
    behind = {mean: tuple(one.fingerprint for one in steps), plan: ()} | dict.fromkeys(steps, (plan.fingerprint,))
    nodes = {
        one.fingerprint: Node(item=one, made=find(Path(one.path)), inputs=behind[one]) for one in (mean, *steps, plan)
    }
    lineage = Lineage(chain.root, nodes)
    (training,) = trainings_of(lineage)
    assert training.node.item == steps[1] and averaged_before(lineage) == {steps[0].fingerprint}


def with_state(job):
    """The job of a kept step that also keeps the optimizer's state."""
    return dataclasses.replace(job, settings=job.settings | {"optimizer": True})


@pytest.fixture(scope="module")
def stateful(chain, straight):
    """A step with the optimizer's state beside it, as an input of another job."""
    job = with_state(dataclasses.replace(straight.on_the_way[1], output=str(chain.root / "kept_steps" / "stateful")))
    assert run_job(job, STAGES) == 0
    made = find(Path(job.output))
    called = {"asset": "kept_steps", "partition": job.partition, "fingerprint": job.fingerprint}
    return InputArtifact(**called, digest=made.digest, path=job.output)


def test_a_state_is_beside_the_step_and_the_step_is_the_same(chain, straight, stateful):
    made = find(Path(stateful.path))
    assert made.digest == find(Path(straight.on_the_way[1].output)).digest
    assert {Path(one["path"]).parent.name for one in made.record["beside"]} == {"optimizer"} and not problems_of(made)
    job = keeping(chain, "with-state")
    job = dataclasses.replace(job, on_the_way=tuple(map(with_state, job.on_the_way)))
    assert run_job(job, STAGES) == 0
    on_the_way = find(Path(job.on_the_way[1].output))
    assert (on_the_way.record["beside"], on_the_way.digest) == (made.record["beside"], made.digest)
    assert find(Path(job.output)).digest == find(Path(straight.output)).digest
    assert not Path(job.output, "scratch").exists() and not Path(job.on_the_way[1].output, "scratch").exists()


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_later_step_from_a_kept_state_is_the_step_from_the_beginning(chain, straight, stateful, tmp_path, is_changed):
    nine = kept(chain, straight, 9)
    if not Path(nine.output).exists():
        assert run_job(nine, STAGES) == 0
    copy = shutil.copytree(stateful.path, tmp_path / "step")
    if is_changed:
        (copy / "optimizer" / "state.json").write_text("{}")
    job = dataclasses.replace(
        nine, output=str(tmp_path / "nine"), goes_on_from=dataclasses.replace(stateful, path=str(copy))
    )
    assert run_job(job, STAGES) == 0
    ours, theirs = find(Path(job.output)), find(Path(nine.output))
    assert ours.digest == theirs.digest and ours.record["metrics"]["steps"] == 9
    assert ours.record["notes"].get("resumed_at_step") == (None if is_changed else 7)
    said = Path(job.output, "messages.jsonl").read_text()
    assert ("was changed; training begins at step 0" in said) == is_changed


@pytest.mark.parametrize("lost", ["artifact.json", "optimizer"])
def test_a_later_step_whose_state_is_gone_before_its_job_begins_is_made_from_the_beginning(
    chain, straight, stateful, tmp_path, lost
):
    copy = shutil.copytree(stateful.path, tmp_path / "step")
    for path in copy.glob(f"{lost.partition('.')[0]}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    given = dataclasses.replace(stateful, path=str(copy))
    job = dataclasses.replace(kept(chain, straight, 9), output=str(tmp_path / "nine"), goes_on_from=given)
    assert run_job(job, STAGES) == 0
    assert "resumed_at_step" not in find(Path(job.output)).record["notes"]
    assert "is missing or was changed; training begins at step 0" in Path(job.output, "messages.jsonl").read_text()


# Where a process dies: the function that it was about to call for so many times.
DYING = """
import importlib, os, signal, sys
from training.contract.job import read_job
from training.contract.running.runner import run_job
from training.stages import STAGES
place, number, job = sys.argv[1].partition(":"), int(sys.argv[2]), sys.argv[3]
module, calls = importlib.import_module(place[0]), []
called = getattr(module, place[2])
def dying(*arguments, **named):
    calls.append(1)
    if len(calls) == number:
        os.kill(os.getpid(), signal.SIGKILL)
    return called(*arguments, **named)
setattr(module, place[2], dying)
run_job(read_job(job), STAGES)
"""
MOMENTS = [
    ("training.pretrain.stages.pretrain:keep", 2),  # after step 7, before anything of it is written
    ("training.pretrain.stages.pretrain:export_model", 1),
    ("training.contract.running.runner:commit", 1),  # its files are there, and its record is not
    ("training.contract.running.runner:remove_state", 2),  # it is committed, and the checkpoint of this step is not
    ("training.contract.running.runner:commit", 3),  # both steps are committed, and the model itself is not
]


@pytest.mark.parametrize(("place", "number"), MOMENTS)
def test_a_killed_training_neither_loses_nor_doubles_a_step(chain, straight, tmp_path, place, number):
    job = keeping(chain, f"killed-{place.rpartition(':')[2]}-{number}")
    write_job(job, tmp_path / "job.json")
    argv = [sys.executable, "-c", DYING, place, str(number), str(tmp_path / "job.json")]
    died = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    records = {one.path: one.record for one in made(job) if one is not None}
    assert run_job(job, STAGES) == 0
    assert [one.digest for one in made(job)] == [one.digest for one in made(straight)]
    assert all(find(path).record == record for path, record in records.items())


def test_steps_that_do_not_fit_the_disk_are_refused_with_the_sum(chain, straight, monkeypatch):
    usage = SimpleNamespace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    job = dataclasses.replace(straight, output=str(chain.root / "base_model" / "full"))
    more = dataclasses.replace(job, on_the_way=(*job.on_the_way, kept(chain, chain.job("full"), 5)))
    with pytest.raises(RecipeError, match=r"export \S+ \+ 1 kept step \S+ = "):  # two are there already
        run_job(more, STAGES)
    more = dataclasses.replace(job, on_the_way=(*job.on_the_way, with_state(kept(chain, chain.job("full"), 5))))
    with pytest.raises(RecipeError, match=r"1 kept step \S+ \+ 1 optimizer state of them \S+ = "):
        run_job(more, STAGES)


def test_a_step_that_another_run_makes_is_left_to_it(chain):
    job = keeping(chain, "beside")
    other = Lease(Path(job.on_the_way[0].output))
    with other:
        assert run_job(job, STAGES) == 0
    first, second, last = made(job)
    assert first is None and second is not None and last is not None
    assert "tiny@step-3] is left to another run" in Path(job.output, "messages.jsonl").read_text()


def test_what_is_kept_is_in_no_fingerprint_but_those_of_the_steps():
    plain = load_recipe("kitchen")
    keeps = dataclasses.replace(plain, pretrain=dataclasses.replace(plain.pretrain, keep=KeepRecipe(steps=(3, 7))))
    for asset in (one for one in CHAIN.values() if one.name != "kept_steps"):
        for part in parts_of(asset, plain):
            assert asset.settings(keeps, part) == asset.settings(plain, part), asset.name
    steps = CHAIN["kept_steps"]
    assert parts_of(steps, keeps) == ["step-7", "step-3"] and parts_of(steps, plain) == []
    assert steps.settings(keeps, "step-3")["kept"] != steps.settings(keeps, "step-7")["kept"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"steps": "log"}, (1, 2, 3, 4, 6, 8, 11)),
        ({"every": 5}, (5, 10)),
        ({"steps": (7, 3, 7)}, (3, 7)),
        ({}, ()),
    ],
)
def test_steps_are_kept_by_logarithm_by_number_or_by_name(settings, expected):
    assert KeepRecipe(**settings).steps_of(12, "pretrain.keep") == expected


@pytest.mark.parametrize(
    ("keep", "more", "said"),
    [
        ({"steps": (3, 12)}, {}, "pretrain.keep: 12; the training ends after step 12 with its own model"),
        ({"every": 50}, {}, "pretrain.keep: 50; the training ends after step 12 with its own model"),
        ({"steps": (0, 3)}, {}, "pretrain.keep.steps: 0; at least 1 is right"),
        ({"every": 0}, {}, "pretrain.keep.every=0; at least 1 is right, or null for none"),
        ({"every": 2, "steps": "log"}, {}, "pretrain.keep: steps and every; name one of them"),
        ({"optimizer": True}, {}, "pretrain.keep.optimizer: without effect, because no step is kept"),
        ({"every": 2}, {"tokens": "auto"}, "pretrain.keep: its steps are partitions; give pretrain.tokens a number"),
    ],
)
def test_steps_that_no_training_keeps_are_refused(keep, more, said):
    with pytest.raises(RecipeError) as error:
        dataclasses.replace(PLAIN, keep=KeepRecipe(**keep), **more)
    assert said in str(error.value)
