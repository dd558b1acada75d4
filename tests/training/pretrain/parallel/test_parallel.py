"""A model spread over two processes trains as in one; what cannot be spread is refused.

test_meshes.py is the long form.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from benchmarks import parallel
from benchmarks.parallel import ALONE, LIMIT, MODELS, Combination
from tests.training.pretrain import spread, tiny
from training.contract.job import write_job
from training.contract.process.without_content import alone_of
from training.contract.progress import read_metrics
from training.contract.records import RecipeError
from training.pretrain.capacity.divisible import check_degrees
from training.pretrain.models.attention import one_document
from training.pretrain.models.decoder import Decoder
from training.pretrain.parallel import audit
from training.pretrain.parallel.alone import first_alone
from training.pretrain.parallel.degrees import Degrees
from training.pretrain.parallel.input_verification import own_share
from training.pretrain.parallel.pipeline import schedule
from training.pretrain.parallel.watchdog import Watchdog
from training.pretrain.parallel.world import World, make_world, micro_batches
from training.pretrain.stages import pretrain as stage

# Each degree alone, and each kind of model, recomputation and a few optimizers with one of them.
COMBINATIONS = [
    Combination(processes=2, degrees=degrees, model=model, recompute=recompute, optimizer=optimizer)
    for degrees, model, recompute, optimizer in (
        (Degrees(), "experts", "none", "adamw"),
        (Degrees(shard=2), "dense", "selective", "lion"),
        (Degrees(shard=2, zero_stage=1), "deepseek_v3", "full", "muon"),
        (Degrees(shard=2, zero_stage=2), "experts", "none", "lion"),
        (Degrees(tensor=2), "dense", "full", "muon"),
        (Degrees(context=2), "deepseek_v3", "selective", "adamw"),
        (Degrees(expert=2), "experts", "full", "sgd"),
        (Degrees(pipeline=2, pipeline_chunks=2), "experts", "none", "adafactor"),
    )
]
# Four micro-batches over three: 2, 1 and 1. The last two go along with an empty pass.
UNEQUAL = Combination(processes=3, degrees=Degrees(shard=3), model="experts")
MESHES = {"shard": Degrees(shard=2), "stages": Degrees(pipeline=2)}
AUDITED = {"is_audited": True, "micro_batch_tokens": 32}
SKIPPING = (Degrees(), Degrees(shard=2))
BF16_MODEL = "experts"
MESSAGES = (2**26, 5_000)  # the whole model; a few weights, and each larger one alone


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return parallel.make_data(tmp_path_factory.mktemp("chain"))


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    """Everything that needs several processes, by one set of them."""
    folder = tmp_path_factory.mktemp("processes")
    alone = spread.saved_and_trained_on(data, folder / "one", Degrees(), 0, 1)
    tasks = {one: (one.processes, partial(parallel.compare, one, data)) for one in (*COMBINATIONS, UNEQUAL)}
    for name, degrees in MESHES.items():
        tasks["saved", name] = (2, partial(spread.saved_and_trained_on, data, folder / name, degrees))
        tasks["from one", name] = (2, partial(spread.resumed, data, folder / "one", degrees))
    tasks["from shares", "context"] = (2, partial(spread.resumed, data, folder / "shard", Degrees(context=2)))
    for degrees in SKIPPING:
        tasks["skipping", degrees] = (2, partial(spread.skipping, data, degrees))
    spread.write_shared(folder / "shared")
    tasks["shared"] = (2, partial(spread.checked_by_share, folder / "shared"))
    tasks["audited"] = (2, partial(spread.audited, data))
    for numbers in MESSAGES:
        tasks["small messages", numbers] = (2, partial(spread.in_small_messages, data, numbers))
    for gather_dtype in ("fp32", "bf16"):
        degrees = Degrees(shard=2, gather_dtype=gather_dtype)
        tasks["in bf16", gather_dtype] = (2, partial(spread.in_bf16, data, BF16_MODEL, degrees))
    tasks["orthogonalized", 2] = (2, partial(spread.orthogonalized, data))
    results = parallel.in_processes(list(tasks.values()), folder)
    made = dict(zip(tasks, results, strict=True))
    made["in bf16", 1] = spread.in_bf16(data, BF16_MODEL, Degrees(), 0, 1)
    made["orthogonalized", 1] = spread.orthogonalized(data, 0, 1)
    made |= {("to one", name): spread.resumed(data, folder / name, Degrees(), 0, 1) for name in MESHES}
    return made | {"alone": alone}


def test_every_degree_trains_like_one_process(done):
    differences = {str(one): (done[one], one.limit) for one in COMBINATIONS}
    assert {name: value for name, (value, limit) in differences.items() if not value <= limit} == {}


def test_unequal_numbers_of_passes_change_nothing(done):
    assert [len(passes_of(rank)) for rank in range(3)] == [2, 1, 1]
    assert done[UNEQUAL] <= LIMIT


def passes_of(rank):
    world = World(rank=rank, size=3, device=ALONE.device)
    return micro_batches(parallel.ROWS, sequence_length=32, micro_batch_tokens=32, world=world)


def test_gradients_in_several_messages_are_those_in_one(done):
    (whole, of_one), (parts, of_many) = (done["small messages", numbers] for numbers in MESSAGES)
    assert whole <= LIMIT and parts <= LIMIT
    assert of_many >= of_one + 5


def test_a_checkpoint_of_any_mesh_goes_on_in_any_other(done):
    others = {
        key: value
        for key, value in done.items()
        if isinstance(key, tuple) and key[0] in ("saved", "from one", "from shares", "to one")
    }
    assert len(others) == 3 * len(MESHES) + 1
    spread.assert_goes_on_alike(done["alone"], others)


def test_weights_sent_in_bf16_are_half_the_bytes_and_train_like_one_process(done):
    spread.assert_half_the_bytes(BF16_MODEL, *(done["in bf16", key] for key in ("fp32", "bf16", 1)))


def test_the_logits_of_the_exported_model_are_in_fp32_though_weights_are_sent_in_bf16(done):
    _, _, _, logits, weights = done["in bf16", "bf16"]
    model = Decoder(MODELS[BF16_MODEL])
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})
    tokens = torch.arange(2, 13)[None]
    mask = one_document(tokens, dtype=torch.float32, window=model.config.window)
    assert torch.allclose(model.logits(tokens, mask)[0], torch.from_numpy(logits), atol=1e-5)


def test_each_process_orthogonalizes_its_share_of_the_matrices(done):
    (whole,), shares = done["orthogonalized", 1], done["orthogonalized", 2]
    assert sum(shares) == whole and max(shares) < 0.6 * whole


def test_a_gradient_that_is_not_finite_in_one_process_is_skipped_by_all(done):
    for degrees in SKIPPING:
        assert done["skipping", degrees] == 2 * [([False, True, False], True, [1])], degrees


def test_a_damaged_file_is_read_by_one_process_and_refused_by_all(done):
    one, other = done["shared"]
    assert one == other
    told, step, broken = one
    assert told == [
        "",
        *(f"{name}: content differs from its checksum {CHECKSUM[:12]}…" for name in spread.SHARED["shards"]),
    ]
    assert step == 1
    assert broken == ("step-00000002: tensors-00002-of-00002.safetensors differs from its checksum",)


CHECKSUM = hashlib.sha256(b"o" * 4000).hexdigest()


@pytest.mark.parametrize("size", [1, 2, 3, 8, 64])
def test_processes_check_each_file_once_and_about_as_many_bytes(tmp_path, size):
    for number in range(40):
        (tmp_path / f"{number}.bin").write_bytes(bytes(100 + number))
    item = tiny.commit(tmp_path, "token_shards", [f"{number}.bin" for number in range(40)])
    files = [(item, *file) for file in item.files().items()]
    shares = [own_share(files, rank=rank, size=size) for rank in range(size)]
    assert sorted(name for share in shares for _, name, _ in share) == sorted(item.files())
    sizes = [sum(entry["bytes"] for _, _, entry in share) for share in shares]
    assert max(sizes) <= sum(sizes) / size + 2 * 140


def test_an_audited_run_gives_the_same_bits_for_any_number_of_processes(done, data):
    assert done["audited"] == spread.audited(data, 0, 1) != spread.audited(data, 0, 1, is_audited=False)


@pytest.mark.parametrize("count", [1, 2, 5, 6, 8, 13])
def test_an_audited_runs_processes_share_out_every_micro_batch_in_order(count):
    for size in (1, 2, 4):
        worlds = [World(rank=rank, size=size, device=ALONE.device) for rank in range(size)]
        if count >= size:
            assert [number for world in worlds for number in audit.leaves(count, world)] == list(range(count))


def test_a_tree_of_sums_holds_every_leaf_once_and_one_order():
    def leaf(number):
        return torch.tensor([10.0**number])

    assert audit.subtree(leaf, 0, 8, count=6).item() == 111111
    assert audit.subtree(leaf, 4, 8, count=6).item() == 110000


@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize(("stages", "count"), [(2, 2), (2, 8), (3, 3), (4, 8)])
def test_a_pipelines_passes_meet_in_order_and_few_are_kept(stages, count, chunks):
    orders = [schedule(place, stages=stages, chunks=chunks, count=count) for place in range(stages)]
    channels, at, kept = {}, [0] * stages, [0] * stages
    while at != [len(order) for order in orders]:
        before = list(at)
        for place, order in enumerate(orders):
            if at[place] < len(order) and taken(order[at[place]], place, stages, chunks, channels):
                at[place] += 1
                kept[place] = max(kept[place], sum(1 if one.is_forward else -1 for one in order[: at[place]]))
        assert at != before, "every process waits"
    assert all(not channel for channel in channels.values())
    assert [len(set(order)) for order in orders] == [2 * count * chunks] * stages
    if chunks == 1:
        assert kept == [min(count, stages - place) for place in range(stages)]


def taken(action, place, stages, chunks, channels):
    """Whether what an action waits for is the next to come; then it is done, and what it makes is sent."""
    step = 1 if action.is_forward else -1
    number = action.chunk * stages + place
    first, last = (0, stages * chunks - 1)[::step]
    inbox = channels.setdefault((place, step), [])
    if number != first:
        if not inbox:
            return False
        assert inbox.pop(0) == (number, action.number)
    if number != last:
        channels.setdefault(((place + step) % stages, step), []).append((number + step, action.number))
    return True


# Refusals


@pytest.mark.parametrize(
    ("model", "degrees", "processes", "changes", "message"),
    [
        (
            "dense",
            {"tensor": 3},
            3,
            {},
            r"tensor=3: model.kv_heads=4 is not a multiple of it; 1 would be right",
        ),
        ("dense", {"tensor": 8}, 8, {}, r"tensor=8: model.kv_heads=4 is not a multiple of it; 1, 2 or 4 would be"),
        ("dense", {"shard": 4, "tensor": 8}, 32, {}, r"kv_heads=4 is not a multiple of it; 1, 2 or 4 would be"),
        (
            "dense",
            {"shard": 2, "context": 3},
            4,
            {},
            r"shard=2 \* context=3 = 6 does not divide .* = 4; .*; context=2 would work",
        ),
        ("dense", {"context": 3}, 3, {}, r"context \* tensor=3: pretrain.sequence_length=32 is not a multiple"),
        ("dense", {"expert": 2}, 2, {}, r"expert=2: the model has no experts"),
        ("experts", {"expert": 4}, 4, {}, r"expert=4: model.experts.count=6 is not a multiple of it; 1 or 2 would be"),
        ("dense", {"pipeline": 3}, 3, {}, r"pipeline_chunks=3: model.layers=4 is not a multiple of it; 1 would be"),
        ("dense", {"pipeline": 6}, 6, {}, r"pipeline_chunks=6: model.layers=4 is not a multiple of it; 1 or 2 would"),
        (
            "dense",
            {"pipeline": 4, "pipeline_chunks": 2},
            4,
            {},
            r"pipeline_chunks=8: model.layers=4 is not a multiple of it; 1 or 4 would",
        ),
        ("dense", {"gather_dtype": "bf16"}, 1, {}, r"gather_dtype=bf16 with shard=1: .* fp32 is right"),
        ("dense", {"pipeline_chunks": 2}, 1, {}, r"pipeline_chunks=2 with pipeline=1: 1 is right"),
        ("dense", {"shard": 2}, 2, {"optimizer": "adafactor"}, r"shard=2: pretrain.optimizer=adafactor"),
        ("dense", {"shard": 2}, 2, AUDITED, r"audit=true with shard=2: .* data parallel only"),
        ("dense", {}, 3, AUDITED, r"audit=true with processes \* nodes = 3: .* a power of two"),
        ("dense", {}, 2, {"is_audited": True}, r"audit=true without micro_batch_tokens"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_the_arithmetic(model, degrees, processes, changes, message):
    given = {"phases": [tiny.PRETRAIN], "optimizer": "adamw", "processes": processes, **changes}
    with pytest.raises(RecipeError, match=message):
        check_degrees(Degrees(**degrees), MODELS[model], **given)


def test_a_job_that_cannot_be_spread_is_refused_before_the_first_step(tmp_path):
    chain = tiny.TinyChain(tmp_path)
    job = chain.job(shard=2, processes=2)  # but this is one process
    with pytest.raises(RecipeError, match=r"shard=2 .*nodes = 1"):
        stage.run(job, tiny.work_in(Path(job.output)))


@pytest.mark.parametrize("size", [64, 256, 1024, 16384])
@pytest.mark.parametrize(
    ("degrees", "most"),
    [(Degrees(shard=8), 3), (Degrees(tensor=8), 3), (Degrees(pipeline=4, shard=2, tensor=4), 9)],
)
def test_a_process_makes_its_own_groups_alone_however_many_there_are(monkeypatch, size, degrees, most):
    made, make = [], distributed_c10d._new_group_with_tag
    monkeypatch.setattr(distributed_c10d, "_new_group_with_tag", lambda *a, **k: made.append(a[0]) or make(*a, **k))
    rank = size // 2 + 1
    with alone_of(size, rank=rank):
        world = make_world(degrees, rank=rank, size=size, device=torch.device("cpu"))
        assert len(made) <= most and all(rank in ranks for ranks in made)
        for axes, group in world.groups.items():
            ranks = dist.get_process_group_ranks(group)
            assert len(ranks) == world.length(*axes) and ranks[world.place(*axes)] == rank


# Processes that stand still


class Board:
    """A store of torch's own, with the count of what was asked of it."""

    def __init__(self):
        self.store, self.asked = dist.HashStore(), 0

    def __getattr__(self, name):
        self.asked += 1
        return getattr(self.store, name)


def said_by(board, *, counts, silent=()):
    """What the first of three processes says when nothing goes on.

    The others write their ticks while the first one waits for them, however slow the machine is.
    """
    said, ended = [], threading.Event()
    others = [Watchdog(board, rank=rank, size=3, seconds=100.0, end=said.append) for rank in (1, 2)]

    def let_the_others_tell(_: float) -> None:
        for dog in others:
            if dog._rank not in silent:
                dog._tell()

    def end(why: str) -> None:
        said.append(why)
        ended.set()

    first = Watchdog(board, rank=0, size=3, seconds=0.2, end=end, sleep=let_the_others_tell)
    for dog in (first, *others):
        for _ in range(counts[dog._rank]):
            dog.count()
        dog._tell()
    first.start()
    assert ended.wait(60)
    first.stop()
    return said[0]


def test_the_process_that_stopped_is_named_or_else_the_one_that_is_behind():
    assert "process 2 of 3 (host" in (said := said_by(Board(), counts=[4, 4, 4], silent=[2])) and "1 of 3" not in said
    assert "process 1 of 3 (host" in (said := said_by(Board(), counts=[4, 3, 4])) and "is behind" in said
    assert "same point" in said_by(Board(), counts=[4, 4, 4])


def alone_for(seconds, work):
    """What two watchdogs say while the first process does `work(dogs, said)` alone and the second one waits for it."""
    board, said = dist.HashStore(), []
    dogs = [Watchdog(board, rank=rank, size=2, seconds=seconds, end=said.append) for rank in (0, 1)]

    def alone(rank: int) -> AbstractContextManager[None]:
        return first_alone(board, "work", is_first=rank == 0, alive=dogs[rank].count, seconds=seconds)

    def wait() -> None:
        with alone(1):
            pass

    for dog in dogs:
        dog.start()
    waiting = threading.Thread(target=wait)
    waiting.start()
    with alone(0):
        work(dogs, said)
    waiting.join()
    for dog in dogs:
        dog.stop()
    return said


def test_what_the_first_process_does_alone_may_take_longer_than_the_limit():
    def busy(dogs, said):
        while dogs[1]._count < 12 and not said:  # the second one looks four times within the limit
            sum(range(10_000))

    assert alone_for(2.0, busy) == []


def test_a_first_process_that_does_nothing_alone_is_said_to_hang():
    def idle(dogs, said):
        while not said:
            time.sleep(0.05)

    said = alone_for(0.4, idle)
    assert all(one.startswith("no progress for") for one in said)


@pytest.mark.parametrize("size", [3, 100])
def test_one_process_asks_for_all_and_another_does_where_it_gives_no_answer(size):
    board = Board()
    dogs = [Watchdog(board, rank=rank, size=size, seconds=1.0, end=print, sleep=lambda _: None) for rank in range(size)]
    for dog in dogs:
        dog._tell()
    asked = board.asked
    said = dogs[1]._answer()
    silent = [f"process {rank} of {size} (host" in said for rank in range(size)]
    assert silent == [rank != 1 for rank in range(size)]
    assert board.asked - asked <= 10
    asked = board.asked
    others = [dog for dog in dogs if dog is not dogs[1]]
    assert {dog._answer() for dog in others} == {said} and board.asked - asked <= 4 * size
    board.delete_key("pedigree/answer")  # as if the one that asks were stopped
    assert f"process 1 of {size} (host" in dogs[2]._answer()


def test_a_process_that_is_stopped_ends_the_others_and_is_named(tmp_path):
    recipe = dataclasses.replace(tiny.PRETRAIN, tokens=4000 * 256)
    mixture = tiny.MixtureRecipe(max_epochs=1000, held_out_fraction=0.1)
    chain = tiny.TinyChain(tmp_path, pretrain=recipe, mixture=mixture)
    job = chain.job(processes=2, shard=2, hang_seconds=10.0, threads=1)
    write_job(job, tmp_path / "job.json")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = os.environ | {"OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    argv = [sys.executable, "-m", "training", str(tmp_path / "job.json")]
    running = [
        subprocess.Popen(argv, env=common | {"RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    try:
        metrics = Path(job.output, "metrics.jsonl")
        while not read_metrics(metrics):
            assert all(one.poll() is None for one in running)
            time.sleep(0.05)
        running[1].send_signal(signal.SIGSTOP)
        _, said = running[0].communicate(timeout=60)
        assert running[0].returncode == 1
        assert (
            f"process 1 of 2 (host {socket.gethostname()}, pid {running[1].pid}" in said and "does not answer" in said
        )
        assert not Path(job.output, "artifact.json").exists()
        assert any("slowest_process" in row for row in read_metrics(metrics))
        (kept,) = Path(job.output, "hangs").glob("*.rank-0.json")  # the messages that it sent and waits for
        assert str(kept) in said
        names = [one["profiling_name"] for one in json.loads(kept.read_text())["entries"]]
        assert names and all(name.startswith("gloo:") for name in names)
    finally:
        for one in running:
            one.kill()
            one.communicate()
