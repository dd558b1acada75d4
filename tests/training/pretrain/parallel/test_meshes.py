"""A model spread over three and four processes in many ways: the same training as in one.

`make test` has test_parallel.py, with two processes.
"""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest

from benchmarks import parallel
from benchmarks.parallel import LIMIT, MODELS, Combination
from tests.training.pretrain import spread
from training.pretrain.parallel.degrees import Degrees

UNEQUAL = [Combination(processes=3, degrees=Degrees(shard=shard), model=model) for shard in (1, 3) for model in MODELS]
# Of three experts each of two processes has a part of each, and Muon joins whole ones.
PARTS_OF_EXPERTS = Combination(
    processes=4, degrees=Degrees(shard=2, expert=2), model="experts", optimizer="muon", recompute="full"
)
MESHES = {
    "experts": (4, Degrees(shard=2, expert=2)),  # three experts for two processes: a part of each
    "four": (4, Degrees(shard=2, tensor=2)),
    "stages": (4, Degrees(pipeline=2, shard=2)),
}
BF16_MODELS = ("dense", "experts")
BF16_MESH = Degrees(shard=2, expert=2, zero_stage=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return parallel.make_data(tmp_path_factory.mktemp("chain"))


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    """Everything that needs several processes, by one set of them."""
    folder = tmp_path_factory.mktemp("processes")
    alone = spread.saved_and_trained_on(data, folder / "one", Degrees(), 0, 1)
    tasks = {
        one: (one.processes, partial(parallel.compare, one, data))
        for one in (*parallel.pairwise(), *UNEQUAL, PARTS_OF_EXPERTS)
    }
    for name, (size, degrees) in MESHES.items():
        tasks["saved", name] = (size, partial(spread.saved_and_trained_on, data, folder / name, degrees))
    for name, (size, degrees) in MESHES.items():
        tasks["from one", name] = (size, partial(spread.resumed, data, folder / "one", degrees))
    tasks["from four", "experts"] = (2, partial(spread.resumed, data, folder / "four", Degrees(context=2)))
    tasks["audited"] = (4, partial(spread.audited, data))
    more = parallel.make_data(folder / "more", rows=2 * parallel.ROWS)  # two passes of each of four processes
    for zero_stage in (1, 2, 3):
        tasks["messages", zero_stage] = (4, partial(spread.messages_of, more, zero_stage))
    for gather_dtype in ("fp32", "bf16"):
        degrees = dataclasses.replace(BF16_MESH, gather_dtype=gather_dtype)
        tasks["in bf16", "mesh", gather_dtype] = (4, partial(spread.in_bf16, data, "experts", degrees))
        for model in BF16_MODELS:
            degrees = Degrees(shard=2, gather_dtype=gather_dtype)
            tasks["in bf16", model, gather_dtype] = (2, partial(spread.in_bf16, data, model, degrees))
    tasks["held", 4] = (4, partial(spread.held, data))
    tasks["held whole", 4] = (4, partial(spread.held, data, builds_whole=True))
    results = parallel.in_processes(list(tasks.values()), folder)
    made = dict(zip(tasks, results, strict=True))
    made["held", 1] = spread.held(data, 0, 1)
    made |= {("in bf16", model, 1): spread.in_bf16(data, model, Degrees(), 0, 1) for model in BF16_MODELS}
    made |= {("to one", name): spread.resumed(data, folder / name, Degrees(), 0, 1) for name in MESHES}
    return made | {"alone": alone}


def test_every_pair_of_settings_trains_like_one_process(done):
    differences = {one: value for one, value in done.items() if isinstance(one, Combination)}
    assert len(differences) > 12
    assert {str(one): value for one, value in differences.items() if not value <= one.limit} == {}


def test_unequal_numbers_of_passes_change_nothing(done):
    assert all(done[one] <= LIMIT for one in UNEQUAL)


def test_a_checkpoint_of_any_mesh_goes_on_in_any_other(done):
    others = {
        key: value
        for key, value in done.items()
        if isinstance(key, tuple) and key[0] in ("saved", "from one", "from four", "to one")
    }
    assert len(others) == 3 * len(MESHES) + 1
    spread.assert_goes_on_alike(done["alone"], others)


def test_an_audited_run_gives_the_same_bits_for_four_processes(done, data):
    assert done["audited"] == spread.audited(data, 0, 1)


def test_a_lower_zero_stage_gathers_and_sums_once_a_step_and_trains_alike(done):
    assert all(done["messages", number][0] <= LIMIT for number in (1, 2, 3))
    counts = [{name: count for name, (count, _) in done["messages", number][1].items()} for number in (3, 2, 1)]
    gathers, sums, over_replicas = zip(*([one[name] for name in spread.KINDS] for one in counts), strict=True)
    units, passes, steps = 5, 2, 2  # four layers, and embedding, head and last norm; these stay gathered for a pass
    more = steps * (passes * (2 * units - 1) - units)
    assert gathers == (gathers[2] + more, gathers[2], gathers[2])
    assert sums == (steps * passes * units, steps * passes * units, steps * units)
    # Replicas are summed once a step at every stage, and so are the loss and the norm.
    assert set(over_replicas) == {steps * (units + 2)}


@pytest.mark.parametrize("model", BF16_MODELS)
def test_weights_sent_in_bf16_are_half_the_bytes_and_train_like_one_process(done, model):
    spread.assert_half_the_bytes(model, *(done["in bf16", model, key] for key in ("fp32", "bf16", 1)))


def test_experts_of_several_processes_are_sent_in_bf16_too(done):
    wide, narrow = (done["in bf16", "mesh", key] for key in ("fp32", "bf16"))
    spread.assert_begins_alike(narrow, wide)
    assert narrow[0] == pytest.approx(wide[0], rel=2e-3)
    # A process has half of the experts; it gathers all it has once in each of four steps.
    own = [weight.size // (2 if weight.ndim == 3 else 1) for name, weight in wide[4].items() if "router" not in name]
    assert wide[2]["allgather_base"][1] - narrow[2]["allgather_base"][1] == 4 * 2 * sum(own)


def test_no_process_ever_holds_the_whole_of_a_spread_model(done):
    whole = 4 * spread.WIDE.parameter_count
    beginning, joined, *same = done["held", 4]
    assert beginning < 0.85 * whole < whole < done["held whole", 4][0]
    assert joined <= 2
    # It begins with the same weights, and writes the same text.
    assert tuple(same) == done["held whole", 4][2:] == done["held", 1][2:]
