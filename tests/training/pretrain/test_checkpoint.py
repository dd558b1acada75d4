"""Checkpoints on disk: whole or passed over, written beside training, read by any number of processes."""

from __future__ import annotations

import dataclasses
import json
import random
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.training.pretrain import tiny
from training.contract.artifact import sha256_of
from training.contract.files.checksums import sha256_of_written
from training.contract.job import RefusedInput
from training.order.ledger import Ledger
from training.pretrain import checkpoint, tensor_files
from training.pretrain.checkpoint import Store, share_of
from training.pretrain.parallel.world import World
from training.pretrain.stages import pretrain as stage
from training.pretrain.step import Trainer

SIZES = {"a": 300, "b": 7, "c": 50, "d": 90, "e": 1, "f": 64}
TENSORS = {f"model.{name}": torch.arange(size, dtype=torch.float32) for name, size in SIZES.items()}


class Alone(World):
    """A process whose fellows are in this process too, and have nothing to say."""

    def first_said(self, said: str) -> str:
        return said


def world(rank=0, size=1):
    return Alone(rank=rank, size=size, device=torch.device("cpu"))


def written(folder, step, *, size=1, tensors=TENSORS, **more):
    """A checkpoint by `size` processes, the first of which commits last."""
    stores = [Store(folder, world(rank, size)) for rank in range(size)]
    for rank, store in enumerate(stores):
        own = {f"random.cpu.{rank}": torch.full((4,), rank, dtype=torch.uint8)}
        store.begin(step=step, tensors=tensors, own=own, state={"ledger": [], **more})
    for store in reversed(stores):
        store.commit()
    return folder / f"step-{step:08d}"


def places(size):
    """The ends of a file and some bytes between them."""
    chance = random.Random(size)
    return sorted({0, 1, 7, 8, size - 2, size - 1, *(chance.randrange(size) for _ in range(40))} & set(range(size)))


@pytest.mark.parametrize("size", [1, 2])
def test_a_flip_or_a_cut_at_any_byte_leads_to_the_checkpoint_before(tmp_path, size):
    written(tmp_path, 2, size=size)
    newest = written(tmp_path, 4, size=size)
    store = Store(tmp_path, world())
    assert store.newest().state["step"] == 4
    for path in sorted(newest.iterdir()):
        whole = path.read_bytes()
        for place in places(len(whole)):
            flipped = bytes([whole[place] ^ (1 << place % 8)])
            for damaged in (whole[:place], whole[:place] + flipped + whole[place + 1 :]):
                path.write_bytes(damaged)
                found = store.newest()
                assert found.state["step"] == 2 and found.broken[0].startswith("step-00000004"), (path, place)
        path.write_bytes(whole)
    assert store.newest().state["step"] == 4


def test_a_flip_or_a_cut_of_a_trainers_own_checkpoint_is_always_noticed(tmp_path):
    """At every byte of its JSON; at some 900 of its tensors, of which every seventh of the header's."""
    shape = dataclasses.replace(tiny.MODEL, width=16, layers=1, heads=2, kv_heads=1, mlp_width=16)
    recipe = dataclasses.replace(tiny.PRETRAIN, optimizer="adamw", max_skipped_steps=5)
    chain = tiny.TinyChain(tmp_path / "chain", pretrain=recipe)
    model = tiny.built(stage.model_shape(shape, Path(chain.tokenizer.path)), recipe)
    trainer = Trainer(model, recipe, chain.plan, chain.open_shards(), world())
    trainer.state.resume(Store(tmp_path / "kept", world()))
    trainer.run_step()
    trainer.state.save()
    trainer.state.store.settle()
    (newest,) = checkpoint.checkpoints(tmp_path / "kept")
    assert checkpoint._problem(newest) is None
    tried = 0
    for path in sorted(newest.iterdir()):
        whole = path.read_bytes()
        chance = random.Random(path.name)
        tensors = {*range(0, 2000, 7), *(chance.randrange(len(whole)) for _ in range(600)), len(whole) - 1}
        for place in range(len(whole)) if path.suffix == ".json" else sorted(tensors):
            flipped = bytes([whole[place] ^ (1 << place % 8)])
            for damaged in (whole[:place], whole[:place] + flipped + whole[place + 1 :]):
                path.write_bytes(damaged)
                assert checkpoint._problem(newest) is not None, (path, place)
                tried += 1
        path.write_bytes(whole)
    assert checkpoint._problem(newest) is None and tried > 3000


def test_tensors_are_written_as_the_library_writes_them_with_the_checksum_taken_on_the_way(tmp_path):
    values = torch.arange(24).reshape(2, 3, 4)
    tensors = {str(dtype): values.to(dtype) for dtype in tensor_files._TYPES}
    tensors |= {"turned": values.float().mT, "none": torch.zeros(0, 3), "one": torch.tensor(2.5), "é": values.half()}
    checkpoint.save_tensors(tensors, tmp_path / "ours")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "theirs", {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    (tmp_path / "ours").chmod(0)  # the checksum is known without reading
    assert sha256_of_written(tmp_path / "ours") == sha256_of(tmp_path / "theirs")


def test_random_states_of_device_and_cpu_come_back_to_the_process_that_had_them(monkeypatch):
    device, put_back = torch.device("cuda", 1), {}
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda at: torch.tensor([7 + at.index], dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, at: put_back.update({at: state.tolist()}))
    first, second = (World(rank=rank, size=2, device=torch.device("cuda", rank)) for rank in (0, 1))
    states = checkpoint.pack_own(first) | checkpoint.pack_own(second)
    assert sorted(states) == ["random.cpu.0", "random.cpu.1", "random.cuda.0", "random.cuda.1"]
    expected = torch.rand(3)
    torch.rand(5)
    checkpoint.unpack_own(states, second)
    assert put_back == {device: [8]} and torch.equal(torch.rand(3), expected)
    assert list(checkpoint.pack_own(world())) == ["random.cpu.0"]


@pytest.mark.parametrize("before", [1, 2, 3, 4, 8])
def test_any_number_of_processes_reads_what_another_number_wrote(tmp_path, before):
    folder = written(tmp_path, 3, size=before)
    assert len(list(folder.glob("*.safetensors"))) == before
    tensors = Store(tmp_path, world()).newest().tensors
    assert {name for name in tensors if name.startswith("random")} == {f"random.cpu.{rank}" for rank in range(before)}
    assert all(torch.equal(tensors[name], tensor) for name, tensor in TENSORS.items())


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_processes_share_out_every_tensor_once(size):
    big = {str(number): torch.zeros(100 + number) for number in range(40)}
    shares = [share_of(big, world(rank, size)) for rank in range(size)]
    assert sorted(name for share in shares for name in share) == sorted(big)
    sizes = [sum(tensor.nbytes for tensor in share.values()) for share in shares]
    assert max(sizes) - min(sizes) <= 2 * 4 * 140


def test_parts_of_one_tensor_that_processes_hold_alone_are_all_written(tmp_path):
    whole = torch.arange(8.0)
    stores = [Store(tmp_path, world(rank, 2)) for rank in range(2)]
    for rank, store in enumerate(stores):
        place = tensor_files.TensorPlace(start=(4 * rank,), shape=(8,), copies=())
        part = {"weight": whole[4 * rank :][:4]}
        store.begin(step=3, tensors=part, own={}, state={"ledger": []}, places={"weight": place})
    for store in reversed(stores):
        store.commit()
    assert torch.equal(Store(tmp_path, world()).newest().tensors["weight"], whole)


def test_a_process_opens_only_the_files_that_overlap_its_part(tmp_path):
    """The kernel's list of mapped files shows which; 4 rows of 8 from 16 files of 4 overlap 2 or 3."""
    stores = [Store(tmp_path, world(rank, 16)) for rank in range(16)]
    for rank, store in enumerate(stores):
        place = tensor_files.TensorPlace(start=(4 * rank,), shape=(64,), copies=())
        part = {"weight": torch.arange(64.0)[4 * rank :][:4]}
        own = {f"random.cpu.{rank}": torch.zeros(3, dtype=torch.uint8)}
        store.begin(step=3, tensors=part, own=own, state={"ledger": []}, places={"weight": place})
    for store in reversed(stores):
        store.commit()
    tensors = Store(tmp_path, world()).newest().tensors
    assert torch.equal(tensors.part("weight", (10,), (8,)), torch.arange(10.0, 18.0))
    assert tensors["random.cpu.4"].shape == (3,) and tensors.shape("weight") == (64,) and len(tensors) == 17
    mapped = {
        Path(line.split()[-1]).name for line in Path("/proc/self/maps").read_text().splitlines() if "tensors-" in line
    }
    assert mapped == {checkpoint.tensors_file(rank, 16) for rank in (2, 3, 4)}


def test_what_is_saved_is_the_state_at_the_step_boundary_and_counts_when_committed(tmp_path, monkeypatch):
    tensors, go = {"model.a": torch.zeros(1000)}, threading.Event()
    plain = checkpoint.save_tensors

    def slow(*arguments):
        assert go.wait(10)
        plain(*arguments)

    monkeypatch.setattr(checkpoint, "save_tensors", slow)
    store = Store(tmp_path, world())
    store.begin(step=7, tensors=tensors, own={}, state={"ledger": []})
    tensors["model.a"].fill_(9.0)  # the next step, while the thread waits
    assert store.is_writing and store.is_pending and store.newest() is None
    go.set()
    store.settle()
    assert not store.is_writing and not store.is_pending
    assert store.newest().tensors["model.a"].sum() == 0


def test_memory_for_the_copy_is_kept_and_follows_the_tensors(tmp_path):
    store = Store(tmp_path, world())
    for step, tensors in enumerate(
        ({"a": torch.zeros(5)}, {"a": torch.ones(5)}, {"a": torch.ones(6), "b": torch.ones(1)})
    ):
        store.begin(step=step, tensors=tensors, own={}, state={"ledger": []})
        store.settle()
        found = store.newest().tensors
        assert found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("place", [".step-00000002.tmp", ".step-00000002.tmp/manifest.json"])
def test_a_save_that_fails_is_told_once_and_the_next_one_counts(tmp_path, place):
    """It fails where the tensors are written, in the thread, and where the checkpoint is published."""
    written(tmp_path, 1)
    in_the_way = tmp_path / place
    in_the_way.mkdir(parents=True)
    if in_the_way.parent == tmp_path:
        in_the_way.rmdir()
        in_the_way.write_text("no folder")
    store, told = Store(tmp_path, world()), []
    store.begin(step=2, tensors=TENSORS, own={}, state={"ledger": []})
    store.settle()
    assert not store.is_pending and store.newest().state["step"] == 1
    assert store.tell_failed(told.append) and not store.tell_failed(told.append)
    (line,) = told
    assert line.startswith("the checkpoint of step 2 could not be written: [Errno ")
    assert line.endswith(". The newest checkpoint is of step 1; training goes on, and saving is tried again")
    in_the_way.unlink(missing_ok=True)
    store.begin(step=3, tensors=TENSORS, own={}, state={"ledger": []})
    store.settle()
    assert not store.failed and store.newest().state["step"] == 3
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000001", "step-00000003"}


def test_what_is_no_fault_of_the_disk_ends_the_training(tmp_path, monkeypatch):
    def broken(*_):
        raise ValueError("no tensor")

    monkeypatch.setattr(checkpoint, "save_tensors", broken)
    store = Store(tmp_path, world())
    store.begin(step=2, tensors=TENSORS, own={}, state={"ledger": []})
    with pytest.raises(ValueError, match="no tensor"):
        store.settle()


def test_what_a_killed_save_left_is_no_checkpoint_and_goes(tmp_path):
    written(tmp_path, 1)
    store = Store(tmp_path, world())
    store.begin(step=2, tensors=TENSORS, own={}, state={"ledger": []})
    store._thread.join()  # killed before the commit
    again = Store(tmp_path, world())
    assert again.newest().state["step"] == 1
    again.tidy()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001"]


def test_a_checkpoint_under_way_counts_when_its_run_ends_unless_by_an_error(tmp_path):
    with Store(tmp_path, world()) as store:
        store.begin(step=1, tensors=TENSORS, own={}, state={"ledger": []})
    with pytest.raises(KeyError), Store(tmp_path, world()) as store:
        store.begin(step=2, tensors=TENSORS, own={}, state={"ledger": []})
        raise KeyError
    assert Store(tmp_path, world()).newest().state["step"] == 1


@pytest.mark.parametrize(("back", "at_last"), [(20, [119, 112, 105, 98]), (21, [119, 112, 105, 98])])
def test_a_run_may_always_go_back_some_steps_though_few_checkpoints_are_kept(tmp_path, back, at_last):
    store = Store(tmp_path, world())
    for step in range(0, 120, 7):
        store.begin(step=step, tensors=TENSORS, own={}, state={"ledger": []}, needed_step=max(0, step - back))
        store.settle()
        kept = [int(path.name[-8:]) for path in checkpoint.checkpoints(tmp_path)]
        assert kept[:2] == [one for one in (step, step - 7) if one >= 0] and len(kept) <= 4
        assert max(one for one in kept if one <= max(0, step - back)) >= step - 2 * back - 7
    assert kept == at_last


def test_a_ledger_in_a_broken_checkpoint_is_not_believed(tmp_path):
    entry = {"first": 30, "last": 35, "reason": "spike", "onset": 33, "seen_at": 35, "loss": 1.0, "gradient_norm": 1.0}
    written(tmp_path, 2)
    newest = written(tmp_path, 4)
    state = newest / checkpoint.STATE_FILE
    state.write_text(json.dumps(json.loads(state.read_text()) | {"ledger": [entry]}))
    assert Store(tmp_path, world()).tidy() == Ledger()
    assert Store(tmp_path, world()).newest().state["step"] == 2


def test_a_broken_checkpoint_does_not_take_the_place_of_a_whole_one(tmp_path):
    written(tmp_path, 2)
    (written(tmp_path, 9) / checkpoint.STATE_FILE).unlink()
    written(tmp_path, 4)
    written(tmp_path, 6)
    assert [path.name[-1] for path in checkpoint.checkpoints(tmp_path)] == ["6", "4"]


def test_a_checkpoint_in_another_form_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 1)
    written(tmp_path, 1)
    monkeypatch.undo()
    with pytest.raises(RefusedInput, match=r"another version"):
        Store(tmp_path, world()).newest()
