"""Trainer state on disk: safetensors and JSON, whole or not at all, verified when read.

`step-00000012/` holds `tensors-00001-of-00002.safetensors`, one of each process, `state.json` and a manifest with the
sha256 of all of them. Of a weight that is spread over processes each file has the part of its process, and its header
says where that lies (`places`). A save blocks for a copy in memory only: a thread writes the copy under another name,
and the folder gets its name at a later step boundary, when every process has written. So a killed save leaves nothing
that counts. Any number of processes, however the model is spread over them, reads what any other wrote.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from training.artifact import digest_of, sha256_of, write_json, write_text
from training.files import Unsealed
from training.job import RefusedInput
from training.order.batches import Plan
from training.order.ledger import LEDGER_FILE, Ledger, keep_ledger, read_entries, read_ledger
from training.pretrain.mesh import Piece, pieces_of, reshard
from training.pretrain.models.decoder import Decoder
from training.pretrain.parallel import WHOLE, World
from training.records import differences

STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
KEPT = 2
FORMAT = 3  # of what is in a checkpoint; another one is passed over like a broken one
OTHER_VERSION = "another version of this package wrote it"


PLACES = "places"  # in the header of a file of tensors


class Place(NamedTuple):
    """Where a tensor begins in a whole of `shape`; processes along `copies` have the same part of it."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    copies: tuple[str, ...]


class Saved(Mapping[str, Tensor]):
    """The tensors of a checkpoint by name, put together from the parts that are in its files."""

    def __init__(self, folder: Path) -> None:
        self._parts: dict[str, list[tuple[Any, tuple[int, ...]]]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for path in sorted(folder.glob("*.safetensors")):
            file = safe_open(path, framework="pt")
            places = json.loads((file.metadata() or {}).get(PLACES, "{}"))
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                shape = tuple(file.get_slice(name).get_shape())
                start, whole = places.get(name, ([0] * len(shape), shape))
                self._parts.setdefault(name, []).append((file, tuple(start)))
                self._shapes[name] = tuple(whole)

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        return self.part(name, (0,) * len(shape), shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor."""
        return self._shapes[name]

    def part(self, name: str, start: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Of the whole tensor what begins at `start`; nothing else is read."""
        stored = self._parts[name]
        file, _ = stored[0]
        if tuple(shape) == self._shapes[name] == tuple(file.get_slice(name).get_shape()):
            return file.get_tensor(name)
        made: Tensor | None = None
        for file, begin in stored:
            source = file.get_slice(name)
            low = [max(a, b) for a, b in zip(start, begin, strict=True)]
            high = [min(a + n, b + m) for a, n, b, m in zip(start, shape, begin, source.get_shape(), strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            given = source[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, begin, strict=True))]
            made = torch.empty(tuple(shape), dtype=given.dtype) if made is None else made
            made[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, start, strict=True))] = given
        return torch.empty(tuple(shape)) if made is None else made  # of no numbers: a part may be empty


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What was read, and one line for each newer checkpoint that could not be."""

    tensors: Saved
    state: dict[str, Any]
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Begun:
    """A checkpoint that is being written. `needed_step` is the last one that a run may still have to go back to."""

    step: int
    needed_step: int | None


class Store:
    """The checkpoints in a folder. At most one is being written; every process makes the same calls."""

    def __init__(self, folder: Path, world: World, *, kept: int = KEPT) -> None:
        self.folder, self.world, self.kept = folder, world, kept
        self._copies: dict[str, Tensor] = {}
        self._places: dict[str, Place] = {}
        self._begun: _Begun | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._read: set[Path] = set()  # found whole by `tidy`, which `newest` need not read again
        self.lost: tuple[str, ...] = ()  # a line for each broken checkpoint that was set aside, none being whole

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        """Wait for the thread; what it wrote counts only if nothing went wrong."""
        if kind is None:
            self.settle()
        elif self._thread is not None:
            self._thread.join()

    # Writing

    @property
    def is_pending(self) -> bool:
        """Whether a checkpoint was begun and does not count yet; the same on every process."""
        return self._begun is not None

    @property
    def is_writing(self) -> bool:
        """Whether this process has not yet written its part of the pending one."""
        return self._thread is not None and self._thread.is_alive()

    def begin(
        self,
        *,
        step: int,
        tensors: Mapping[str, Tensor],
        own: Mapping[str, Tensor],
        state: dict[str, Any],
        needed_step: int | None = None,
        places: Mapping[str, Place] | None = None,
    ) -> None:
        """Copy this process's share of the state before `step` and its `own` tensors, and let a thread write them.

        `places` are those of tensors that are parts of something. The newest checkpoint at or before `needed_step`
        stays beside the newest `kept`.
        """
        assert not self.is_pending, "a checkpoint is being written"
        share = share_of(tensors, self.world, places or {})
        self._copy(share | own)
        self._places = {name: place for name, place in (places or {}).items() if name in share}
        self._begun = _Begun(step=step, needed_step=needed_step)
        own_state = {"format": FORMAT, "step": step, **state} if self.world.is_first else None
        self._thread = threading.Thread(target=self._write, args=(step, own_state), name="checkpoint")
        self._thread.start()

    def commit(self) -> None:
        """Make the pending checkpoint count; every process must have written its part. Nothing pending: nothing done.

        Raises what went wrong while writing: OSError, as for any file, when the disk is full.
        """
        if self._begun is None or self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if self._error is not None:
            raise self._error
        begun, self._begun = self._begun, None
        if self.world.is_first:
            _publish(self._temporary(begun.step), self.folder / _name(begun.step))
            self._prune(begun)

    def settle(self) -> None:
        """Return when nothing is pending on any process."""
        if self._begun is not None and self._thread is not None:
            self._thread.join()
            self.world.wait()
            self.commit()
        self.world.wait()

    def _copy(self, share: Mapping[str, Tensor]) -> None:
        """The tensors as they are now, in memory that is kept from one save to the next."""
        for name in self._copies.keys() - share.keys():
            del self._copies[name]
        for name, tensor in share.items():
            copy = self._copies.get(name)
            if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
                copy = self._copies[name] = torch.empty(
                    tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda"
                )
            copy.copy_(tensor.detach(), non_blocking=True)
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)

    def _write(self, step: int, state: dict[str, Any] | None) -> None:
        """This process's files; runs in the thread."""
        try:
            folder = self._temporary(step)
            folder.mkdir(parents=True, exist_ok=True)
            name = tensors_file(self.world.rank, self.world.size)
            save_tensors(self._copies, folder / name, self._places)
            if state is not None:
                write_json(folder / STATE_FILE, state)
            # Last: says that the file is whole, and spares the first process reading it.
            write_json(folder / f"{name}.json", {"sha256": sha256_of(folder / name)})
        except BaseException as error:  # raised again by `commit`, in the thread that trains
            self._error = error

    def _temporary(self, step: int) -> Path:
        return self.folder / f".{_name(step)}.tmp"

    def _prune(self, begun: _Begun) -> None:
        """Remove all but the newest, the one that a run may go back to, and the one that will be that next.

        Of a later step than the present one are only those that were broken when the run began.
        """
        found = checkpoints(self.folder)
        past = [path for path in found if _step_of(path) <= begun.step]
        kept = set(past[: self.kept])
        if begun.needed_step is not None:
            old = [path for path in past if _step_of(path) <= begun.needed_step]
            kept |= {*old[:1], *past[: len(past) - len(old)][-1:]}
        for path in found:
            if path not in kept:
                shutil.rmtree(path)

    # Reading

    def tidy(self) -> Ledger:
        """The run's ledger, after what is no part of the run was removed.

        That is what a killed save left, and checkpoints taken on a way that was given up later. Where no checkpoint is
        whole the broken ones are set aside and the run begins at step 0. RefusedInput when a checkpoint was made under
        another ledger.
        """
        if self.world.is_first and self.folder.exists():
            for path in self.folder.glob(".step-*"):
                shutil.rmtree(path, ignore_errors=True)
            ledger = self._own_ledger()
            for path in checkpoints(self.folder):
                ledger = self._compared(path, ledger)
            self._set_broken_aside()
        self.world.wait()
        return read_ledger(self.folder)

    def _own_ledger(self) -> Ledger:
        """The ledger beside the checkpoints. A damaged one is set aside: the checkpoints have it too, and what was
        entered after the newest is found again by training on the same steps."""
        try:
            return read_ledger(self.folder)
        except Unsealed as error:
            self.lost += (f"{error}; set aside as {_aside(self.folder / LEDGER_FILE).name}",)
            return Ledger()

    def _set_broken_aside(self) -> None:
        """Nothing is thrown away, and nothing stands still: without a whole checkpoint a run begins at step 0."""
        broken = []
        for path in checkpoints(self.folder):
            problem = None if path in self._read else _problem(path)
            if problem in (None, OTHER_VERSION):
                self._read = {path} if problem is None else set()
                return
            broken.append((path, problem))
        for path, problem in broken:
            self.lost += (f"{path.name}: {problem}; set aside as {_aside(path).name}",)
        if broken:
            self.lost += ("no checkpoint is whole: training begins at step 0 again",)

    def _compared(self, path: Path, ledger: Ledger) -> Ledger:
        """The ledger, filled up from that of a checkpoint if the file was lost; removes a checkpoint off the way."""
        if _problem(path, only=STATE_FILE) is not None:
            return ledger  # broken: said so when checkpoints are read
        own = read_entries(json.loads((path / STATE_FILE).read_text("utf-8"))["ledger"])
        if own.entries[: len(ledger.entries)] == ledger.entries:
            if own != ledger:
                keep_ledger(self.folder, own)
            return own
        if own.entries != ledger.entries[: len(own.entries)]:
            raise RefusedInput(
                f"{path}: made under another ledger than the one beside it; remove {self.folder} to start again from"
                " step 0"
            )
        if not ledger.knows(own, step=_step_of(path)):
            shutil.rmtree(path)
        return ledger

    def newest(self) -> Found | None:
        """The newest checkpoint that is whole; None when there never was one.

        RefusedInput when checkpoints are there and none can be used: `tidy` sets the damaged ones aside and says so,
        while those of another version are still of use to that version.
        """
        broken: list[str] = []
        for candidate in checkpoints(self.folder):
            problem = None if candidate in self._read else _problem(candidate)
            if problem is None:
                self._read = set()
                state = json.loads((candidate / STATE_FILE).read_text("utf-8"))
                return Found(tensors=Saved(candidate), state=state, broken=tuple(broken))
            broken.append(f"{candidate.name}: {problem}")
        if broken:
            raise RefusedInput(
                f"{self.folder}: no checkpoint is whole ({'; '.join(broken)}); remove the folder to start again from"
                " step 0"
            )
        return None


def data_identity(plan: Plan) -> dict[str, str]:
    """What a checkpoint was trained on: the digests of the plan, the tokenizer, and all the plan's shards together."""
    shards = digest_of([[shard.artifact, shard.path, shard.sha256] for shard in plan.record.shards])
    return {"plan": plan.digest, "tokenizer": plan.record.tokenizer_digest, "shards": shards}


def check_identity(state: Mapping[str, Any], own: Mapping[str, Any], folder: Path) -> None:
    """RefusedInput when a checkpoint's `data` or `settings` are not the job's `own`."""
    for name, digest in own["data"].items():
        if state["data"][name] != digest:
            raise RefusedInput(
                f"{folder}: checkpoints of {name} {state['data'][name][:12]}, the job's is {digest[:12]}; remove the"
                " folder to start again from step 0"
            )
    differing = differences(state["settings"], own["settings"])
    if differing:
        raise RefusedInput(
            f"{folder}: checkpoints made with other settings than the job's: {'; '.join(differing)}. Give back the old"
            " ones, or remove the folder to start again from step 0"
        )


def tensors_file(rank: int, size: int) -> str:
    """The name of one process's part."""
    return f"tensors-{rank + 1:05d}-of-{size:05d}.safetensors"


def share_of(
    tensors: Mapping[str, Tensor], world: World, places: Mapping[str, Place] | None = None
) -> dict[str, Tensor]:
    """The tensors that this process writes: of tensors that several processes hold, each writes about as many bytes."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(tensors):
        kinds.setdefault(places[name].copies if places and name in places else (*WHOLE, "shard"), []).append(name)
    own: dict[str, Tensor] = {}
    for axes, names in kinds.items():
        copies, copy = world.length(*axes), world.place(*axes)
        total, before = max(1, sum(tensors[name].nbytes for name in names)), 0
        for name in names:
            if before * copies // total == copy:
                own[name] = tensors[name]
            before += tensors[name].nbytes
    return own


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, newest first, whole or not."""
    return sorted(folder.glob("step-*"), reverse=True)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _aside(path: Path) -> Path:
    """Give what is damaged a name that nothing looks for; returns it."""
    return path.rename(path.with_name(f"damaged-{path.name}-{time.time_ns() // 1_000_000}"))


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _publish(temporary: Path, final: Path) -> None:
    """Seal what all processes wrote and give it its name."""
    notes = sorted(temporary.glob("*.safetensors.json"))
    files = {path.name.removesuffix(".json"): json.loads(path.read_text("utf-8"))["sha256"] for path in notes}
    files[STATE_FILE] = sha256_of(temporary / STATE_FILE)
    for path in notes:
        path.unlink()
    write_text(temporary / MANIFEST_FILE, _manifest(files))
    old = final.with_name(f".{final.name}.old")
    if final.exists():  # a broken one of the same step, or one that a run went back behind
        os.replace(final, old)
    os.replace(temporary, final)
    shutil.rmtree(old, ignore_errors=True)


def _manifest(files: dict[str, str]) -> str:
    return json.dumps({"files": files}, indent=1, sort_keys=True) + "\n"


def _problem(folder: Path, *, only: str = "") -> str | None:
    """Why a checkpoint, or `only` one of its files, cannot be used; None when it can."""
    try:
        text = (folder / MANIFEST_FILE).read_text("utf-8")
        files = json.loads(text)["files"]
        if _manifest(files) != text:
            return f"{MANIFEST_FILE} cannot be read"
    except FileNotFoundError:
        return f"{MANIFEST_FILE} is missing"
    except (ValueError, KeyError, TypeError):
        return f"{MANIFEST_FILE} cannot be read"
    for name, checksum in files.items():
        if only and name != only:
            continue
        if not (folder / name).exists():
            return f"{name} is missing"
        if sha256_of(folder / name) != checksum:
            return f"{name} differs from its checksum"
    if json.loads((folder / STATE_FILE).read_text("utf-8")).get("format") != FORMAT:
        return OTHER_VERSION
    return None


def save_tensors(tensors: dict[str, Tensor], path: Path, places: Mapping[str, Place] | None = None) -> None:
    """Write a safetensors file and see it on the disk. OSError, as for any file, when the disk is full."""
    header = {name: (place.start, place.shape) for name, place in (places or {}).items()}
    metadata = {"format": "pt"} | ({PLACES: json.dumps(header, sort_keys=True)} if header else {})
    try:
        save_file(tensors, path, metadata=metadata)
    except SafetensorError as error:
        if f"code: {errno.ENOSPC}" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Model and optimizers as named tensors


def pack(model: Decoder, optimizers: dict[str, torch.optim.Optimizer]) -> dict[str, Tensor]:
    """What this process holds of every tensor that the next step depends on: weights and optimizer state, by name."""
    return {name: tensor for name, tensor, _ in _packed(model, optimizers)}


def places(model: Decoder, optimizers: dict[str, torch.optim.Optimizer]) -> dict[str, Place]:
    """Where those lie that are parts of something, or that not every process has."""
    return {
        name: Place(piece.start if is_part else (), piece.shape if is_part else (), piece.sums)
        for name, tensor, piece in _packed(model, optimizers)
        if piece is not None and piece.is_spread
        for is_part in [tensor.shape == piece.own.shape]
    }


def _packed(model: Decoder, optimizers: dict[str, torch.optim.Optimizer]) -> Iterator[tuple[str, Tensor, Piece | None]]:
    """Name, tensor, and the piece that it is, or is the optimizer's state of."""
    pieces = pieces_of(model)
    for piece in pieces:
        yield f"model.{piece.name}", piece.own, piece
    for name, buffer in model.named_buffers():  # what else the model carries from step to step: routers' biases
        yield f"model.{name}", buffer, None
    for optimizer_name, optimizer in optimizers.items():
        for parameter, state in optimizer.state.items():
            piece = pieces.of(parameter)
            for field_name, value in state.items():
                yield f"{optimizer_name}.{piece.name}.{field_name}", value, piece


def pack_own(world: World) -> dict[str, Tensor]:
    """What a process does not share with the others: torch's random state, on the CPU and on its device."""
    states = {f"random.cpu.{world.rank}": torch.get_rng_state()}
    if world.device.type == "cuda":
        states[f"random.cuda.{world.rank}"] = torch.cuda.get_rng_state(world.device)
    return states


def unpack_own(tensors: Mapping[str, Tensor], world: World) -> None:
    """Put back what of `pack_own` a checkpoint has for this process; one that was not there keeps its own."""
    for name in pack_own(world).keys() & tensors.keys():
        if name.startswith("random.cuda."):
            torch.cuda.set_rng_state(tensors[name], world.device)
        else:
            torch.set_rng_state(tensors[name])


@torch.no_grad()
def unpack(tensors: Saved, model: Decoder, optimizers: dict[str, torch.optim.Optimizer], world: World) -> None:
    """Put back what `pack` and `pack_own` gave, in the place of all that is there.

    A process that the checkpoint's run did not have keeps its random state. RefusedInput when the model's weights are
    not exactly those in the checkpoint.
    """
    pieces, buffers = pieces_of(model), dict(model.named_buffers())
    _check_shapes(tensors, {piece.name: piece.shape for piece in pieces}, buffers, model)
    reshard(model)
    for piece in pieces:
        piece.own.copy_(tensors.part(f"model.{piece.name}", piece.start, piece.own.shape))
    for name, buffer in buffers.items():
        buffer.copy_(tensors[f"model.{name}"])
    for optimizer in optimizers.values():
        optimizer.state.clear()
    for name in tensors:
        optimizer_name, _, rest = name.partition(".")
        parameter_name, _, field_name = rest.rpartition(".")
        piece = pieces.by_name.get(parameter_name)
        if optimizer_name in optimizers and piece is not None:
            is_part = tensors.shape(name) == piece.shape
            value = tensors.part(name, piece.start, piece.own.shape) if is_part else tensors[name]
            # AdamW's fused form keeps its step beside the weights; every other field follows the weight as well.
            optimizers[optimizer_name].state[piece.own][field_name] = value.to(piece.own.device)
    unpack_own(tensors, world)


def _check_shapes(
    tensors: Saved, weights: Mapping[str, tuple[int, ...]], buffers: Mapping[str, Tensor], model: Decoder
) -> None:
    """RefusedInput when the model's tensors are not exactly those in the checkpoint."""
    shapes = dict(weights) | {name: tuple(buffer.shape) for name, buffer in buffers.items()}
    saved = {name.removeprefix("model."): tensors.shape(name) for name in tensors if name.startswith("model.")}
    if pieces_of(model).world.length("pipeline") > 1:  # other processes have the rest
        saved = {name: shape for name, shape in saved.items() if name in shapes}
    differing = sorted(name for name in saved.keys() | shapes.keys() if saved.get(name) != shapes.get(name))
    if differing:
        raise RefusedInput(
            f"checkpoint: {differing[0]} has shape {saved.get(differing[0])}, the model wants"
            f" {shapes.get(differing[0])}"
        )
