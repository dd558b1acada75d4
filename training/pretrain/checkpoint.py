"""The trainer's state on disk, as safetensors and JSON: complete or absent, and verified when it is read.

`step-00000012/` holds `tensors-00001-of-00002.safetensors`, one file for each process, `state.json`, `parts.json` and a
manifest with the sha256 of all of them. If a weight is spread over processes, each file has the part of its process.
`parts.json` gives the position of every part, so that a process opens only the files that overlap its own. A save
blocks only while the state is copied in memory: a thread writes the copy under a temporary name, and the folder gets
its final name at a later step boundary, when every process has written. So a save that is killed leaves nothing that is
taken for a checkpoint. A checkpoint can be read by any number of processes, however the model is spread over them. A
save that fails, such as on a full disk, does not end the run: it is reported, and tried again.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from training.contract.artifact import digest_of, sha256_of, write_json, write_text
from training.contract.files.checksums import sha256_of_written
from training.contract.files.writing import Unsealed
from training.contract.job import RefusedInput
from training.contract.records import differences
from training.contract.stored_state import StateSender
from training.order.batches import Plan
from training.order.ledger import LEDGER_FILE, Ledger, keep_ledger, read_entries, read_ledger
from training.pretrain.models.decoder import Decoder
from training.pretrain.parallel.degrees import WHOLE
from training.pretrain.parallel.mesh import Piece, pieces_of, reshard
from training.pretrain.parallel.world import World
from training.pretrain.tensor_files import Saved, TensorPlace, own_parts, parts_of_all, read_parts, save_tensors

STATE_FILE = "state.json"
PARTS_FILE = "parts.json"
MANIFEST_FILE = "manifest.json"
KEPT = 2
RETRY_SECONDS = 60.0  # from a save that failed to the next one, unless checkpoints are due sooner
FORMAT = 4  # version of a checkpoint's content; a checkpoint of another version is skipped like a broken one
OTHER_VERSION = "another version of this package wrote it"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadCheckpoint:
    """A checkpoint that was read, with one line of text for each newer checkpoint that could not be read."""

    tensors: Saved
    state: dict[str, Any]
    broken: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Begun:
    """A checkpoint that is being written.

    `needed_step` is the last step to which the run may still have to roll back.
    """

    step: int
    needed_step: int | None


class Store:
    """The checkpoints in a folder, which are also sent to the root's store unless `is_sent` is False.

    At most one is being written at a time, and every process must call the same methods.
    """

    def __init__(self, folder: Path, world: World, *, kept: int = KEPT, is_sent: bool = True) -> None:
        self.folder, self.world, self.kept, self._is_sent = folder, world, kept, is_sent
        self._sender = StateSender(folder.parent.parent)  # of the artifact, in whose scratch folder the store's is
        self._copies: dict[str, Tensor] = {}
        self._places: dict[str, TensorPlace] = {}
        self._begun: _Begun | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.failed: tuple[str, ...] = ()  # a line for each save that failed and was not yet told by `tell_failed`
        self._read: set[Path] = set()  # `tidy` verified these, so `newest` need not read them again
        self.lost: tuple[str, ...] = ()  # a line for each broken checkpoint set aside because none was whole

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        """Wait for the writing thread, and publish its checkpoint if no exception was raised."""
        with self._sender:
            if kind is None:
                self.settle()
            elif self._thread is not None:
                self._thread.join()

    # Writing

    @property
    def is_pending(self) -> bool:
        """Whether a checkpoint was begun and not yet committed; the same on every process."""
        return self._begun is not None

    @property
    def is_writing(self) -> bool:
        """Whether this process is still writing its part of the pending checkpoint."""
        return self._thread is not None and self._thread.is_alive()

    def begin(
        self,
        *,
        step: int,
        tensors: Mapping[str, Tensor],
        own: Mapping[str, Tensor],
        state: dict[str, Any],
        needed_step: int | None = None,
        places: Mapping[str, TensorPlace] | None = None,
    ) -> None:
        """Copy this process's share of the state before `step` and its `own` tensors, and let a thread write them.

        `places` gives the position of each tensor that is a part of a larger one. The newest checkpoint at or before
        `needed_step` is kept in addition to the newest `kept` ones.
        """
        assert not self.is_pending, "a checkpoint is being written"
        share = share_of(tensors, self.world, places or {})
        self._copy({**share, **own})
        self._places = {name: place for name, place in (places or {}).items() if name in share}
        self._begun = _Begun(step=step, needed_step=needed_step)
        own_state = {"format": FORMAT, "step": step, **state} if self.world.is_first else None
        self._thread = threading.Thread(target=self._write, args=(step, own_state), name="checkpoint")
        self._thread.start()

    def commit(self) -> None:
        """Publish the pending checkpoint once every process has written its part. Do nothing if none is pending.

        If a file could not be written on any process, such as on a full disk, `failed` says so on all of them, and the
        files of this save are removed. Raise any other error that occurred while writing.
        """
        if self._begun is None or self._thread is None:
            return
        self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None and not isinstance(error, OSError):
            raise error
        begun, self._begun = self._begun, None
        said = self.world.first_said("" if error is None else str(error))
        if said := said or self.world.first_said(self._published(begun)):
            self.failed += (f"the checkpoint of step {begun.step} could not be written: {said}",)
            if self.world.is_first:
                shutil.rmtree(self._temporary(begun.step), ignore_errors=True)

    def _published(self, begun: _Begun) -> str:
        """Let the first process publish the checkpoint that all processes wrote.

        The result is the error if that failed, else "".
        """
        if not self.world.is_first:
            return ""
        try:
            _publish(self._temporary(begun.step), self.folder / checkpoint_name(begun.step))
        except OSError as error:
            return str(error)
        self._prune(begun)
        if self._is_sent:
            self._sender.send(begun.step)
        return ""

    def tell_failed(self, tell: Callable[[str], None]) -> bool:
        """Pass a line to `tell` for each save that failed since the last call; return whether there was one.

        The result is the same on every process.
        """
        lines, self.failed = self.failed, ()
        for line in lines:
            newest = next((_step_of(path) for path in checkpoints(self.folder)), 0)
            tell(f"{line}. The newest checkpoint is of step {newest}; training goes on, and saving is tried again")
        return bool(lines)

    def settle(self) -> None:
        """Wait until no checkpoint is pending on any process."""
        if self._begun is not None and self._thread is not None:
            self._thread.join()
            self.world.wait()
            self.commit()
        self.world.wait()

    def _copy(self, share: Mapping[str, Tensor]) -> None:
        """Copy the tensors' present values into memory that is reused from one save to the next."""
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
        """Write this process's files of the checkpoint; runs in the writing thread."""
        try:
            folder = self._temporary(step)
            folder.mkdir(parents=True, exist_ok=True)
            name = tensors_file(self.world.rank, self.world.size)
            save_tensors(self._copies, folder / name)
            if state is not None:
                write_json(folder / STATE_FILE, state)
            # Written last: it shows that the file is whole and spares the first process reading it.
            note = {"sha256": sha256_of_written(folder / name), "parts": own_parts(self._copies, self._places)}
            write_json(folder / f"{name}.json", note)
        except BaseException as error:  # raised again by `commit`, in the thread that trains
            self._error = error

    def _temporary(self, step: int) -> Path:
        return self.folder / f".{checkpoint_name(step)}.tmp"

    def _prune(self, begun: _Begun) -> None:
        """Remove old checkpoints, but keep the newest ones and those that a rollback may need.

        A rollback may need the newest checkpoint at or before `needed_step`, and later the oldest one after it.
        Checkpoints of steps after the present one are removed, because they were already damaged when the run
        began.
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
        """Remove files that are not part of the run, and return the run's ledger (the list of skipped steps).

        Removed are the leftovers of a killed save, and checkpoints of steps that a later rollback abandoned. If no
        checkpoint is whole, the broken ones are set aside and the run begins at step 0. Raise RefusedInput if a
        checkpoint was made under another ledger.
        """
        if self.world.is_first and self.folder.exists():
            for path in self.folder.glob(".step-*"):
                shutil.rmtree(path, ignore_errors=True)
            ledger = self._own_ledger()
            for path in checkpoints(self.folder):
                ledger = self._compared(path, ledger)
        self.world.wait()
        self._set_broken_aside()
        self.world.wait()
        return read_ledger(self.folder)

    def _own_ledger(self) -> Ledger:
        """Return the ledger stored beside the checkpoints; rename a damaged file and return an empty ledger.

        A damaged file loses nothing: checkpoints contain the ledger too, and when the run repeats the steps
        after the newest checkpoint, it finds their entries again.
        """
        try:
            return read_ledger(self.folder)
        except Unsealed as error:
            self.lost += (f"{error}; set aside as {_aside(self.folder / LEDGER_FILE).name}",)
            return Ledger()

    def _set_broken_aside(self) -> None:
        """Rename all checkpoints if none is intact, so that nothing is deleted and the run can begin at step 0.

        Every process verifies part of the files; the first process renames.
        """
        broken = []
        for path in checkpoints(self.folder):
            problem = None if path in self._read else _problem_by_share(path, self.world)
            if problem in (None, OTHER_VERSION):
                self._read = {path} if problem is None else set()
                return
            broken.append((path, problem))
        for path, problem in broken if self.world.is_first else []:
            self.lost += (f"{path.name}: {problem}; set aside as {_aside(path).name}",)
        if broken and self.world.is_first:
            self.lost += ("no checkpoint is whole: training begins at step 0 again",)

    def _compared(self, path: Path, ledger: Ledger) -> Ledger:
        """Return the ledger, restored from the checkpoint at `path` if the ledger's file was lost.

        The checkpoint is removed if a rollback abandoned its steps.
        """
        if _problem(path, only=STATE_FILE) is not None:
            return ledger  # broken: this is reported when checkpoints are read
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

    def newest(self) -> ReadCheckpoint | None:
        """Return the newest whole checkpoint; None if there has never been a checkpoint.

        Raise RefusedInput if there are checkpoints and none can be used. `tidy` sets damaged checkpoints aside and
        reports them, but leaves those that another version of the stage wrote, because that version can still use them.
        """
        broken: list[str] = []
        for candidate in checkpoints(self.folder):
            problem = None if candidate in self._read else _problem_by_share(candidate, self.world)
            if problem is None:
                self._read = set()
                state = json.loads((candidate / STATE_FILE).read_text("utf-8"))
                parts = read_parts(json.loads((candidate / PARTS_FILE).read_text("utf-8")))
                return ReadCheckpoint(tensors=Saved(candidate, parts), state=state, broken=tuple(broken))
            broken.append(f"{candidate.name}: {problem}")
        if broken:
            raise RefusedInput(
                f"{self.folder}: no checkpoint is whole ({'; '.join(broken)}); remove the folder to start again from"
                " step 0"
            )
        return None


def data_identity(plan: Plan) -> dict[str, str]:
    """Return digests of the data that a checkpoint was trained on: plan, tokenizer, and all shards of the plan."""
    shards = digest_of([[shard.artifact, shard.path, shard.sha256] for shard in plan.record.shards])
    return {"plan": plan.digest, "tokenizer": plan.record.tokenizer_digest, "shards": shards}


def check_identity(state: Mapping[str, Any], own: Mapping[str, Any], folder: Path) -> None:
    """Raise RefusedInput if a checkpoint's `data` or `settings` differ from the job's (`own`)."""
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


def pass_on(folder: Path, before: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Make a checkpoint of one training, whose `data` and `settings` are `before`, one of another training (`own`).

    Raise RefusedInput, and change nothing, if it belongs to neither of the two.
    """
    state = json.loads((folder / STATE_FILE).read_text("utf-8"))
    try:
        check_identity(state, own, folder)
    except RefusedInput:
        check_identity(state, before, folder)
        files = json.loads((folder / MANIFEST_FILE).read_text("utf-8"))["files"]
        write_json(folder / STATE_FILE, state | own)
        write_text(folder / MANIFEST_FILE, _manifest(files | {STATE_FILE: sha256_of(folder / STATE_FILE)}))


def tensors_file(rank: int, size: int) -> str:
    """Return the name of the checkpoint file that one process writes."""
    return f"tensors-{rank + 1:05d}-of-{size:05d}.safetensors"


def share_of(
    tensors: Mapping[str, Tensor], world: World, places: Mapping[str, TensorPlace] | None = None
) -> dict[str, Tensor]:
    """Return the tensors that this process writes.

    Processes that hold the same tensors divide them among themselves, so that each writes about as many bytes.
    """
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
    """Return the checkpoint folders, newest first, including broken ones."""
    return sorted(folder.glob("step-*"), reverse=True)


def checkpoint_name(step: int) -> str:
    """Return the name of the folder of a checkpoint."""
    return f"step-{step:08d}"


def _aside(path: Path) -> Path:
    """Rename a damaged file or folder to `damaged-…`, and return its new path.

    Nothing reads files with such names.
    """
    return path.rename(path.with_name(f"damaged-{path.name}-{time.time_ns() // 1_000_000}"))


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _publish(temporary: Path, final: Path) -> None:
    """Write the parts and the manifest of all processes' files, and give the folder its final name."""
    paths = sorted(temporary.glob("*.safetensors.json"))
    notes = {path.name.removesuffix(".json"): json.loads(path.read_text("utf-8")) for path in paths}
    parts = parts_of_all({file: note["parts"] for file, note in notes.items()})
    write_text(temporary / PARTS_FILE, json.dumps(parts, separators=(",", ":"), ensure_ascii=False))
    files = {file: note["sha256"] for file, note in notes.items()}
    files |= {name: sha256_of_written(temporary / name) for name in (STATE_FILE, PARTS_FILE)}
    for path in paths:
        path.unlink()
    write_text(temporary / MANIFEST_FILE, _manifest(files))
    old = final.with_name(f".{final.name}.old")
    if final.exists():  # a broken checkpoint of the same step, or one from before a rollback
        os.replace(final, old)
    os.replace(temporary, final)
    shutil.rmtree(old, ignore_errors=True)


def _manifest(files: dict[str, str]) -> str:
    return json.dumps({"files": files}, indent=1, sort_keys=True) + "\n"


def _problem(folder: Path, *, only: str = "") -> str | None:
    """Return why a checkpoint cannot be used, or None if it can; if `only` names a file, only this file is verified."""
    files = _files_in(folder)
    if isinstance(files, str):
        return files
    return _damage(folder, {name: files[name] for name in files if only in ("", name)}) or _version_problem(folder)


def _problem_by_share(folder: Path, world: World) -> str | None:
    """Return why a checkpoint cannot be used, or None.

    The files are divided among the processes, and all processes get the answer. A process verifies the files that
    it is going to load, which the process of the same rank saved.
    """
    files = _files_in(folder)
    if isinstance(files, str):
        said = files
    else:
        names = sorted(files, key=lambda name: (name == STATE_FILE, name))
        said = _damage(folder, {name: files[name] for name in names[world.rank :: world.size]})
    return world.first_said(said) or _version_problem(folder)


def _files_in(folder: Path) -> dict[str, str] | str:
    """Return the checksums in a checkpoint's manifest by file, or what is wrong with the manifest."""
    try:
        text = (folder / MANIFEST_FILE).read_text("utf-8")
        files = json.loads(text)["files"]
        return files if _manifest(files) == text else f"{MANIFEST_FILE} cannot be read"
    except FileNotFoundError:
        return f"{MANIFEST_FILE} is missing"
    except (ValueError, KeyError, TypeError):
        return f"{MANIFEST_FILE} cannot be read"


def _damage(folder: Path, files: Mapping[str, str]) -> str:
    """Return the first file that is missing or differs from its checksum; empty if there is none."""
    for name, checksum in files.items():
        if not (folder / name).exists():
            return f"{name} is missing"
        if sha256_of(folder / name) != checksum:
            return f"{name} differs from its checksum"
    return ""


def _version_problem(folder: Path) -> str | None:
    is_ours = json.loads((folder / STATE_FILE).read_text("utf-8")).get("format") == FORMAT
    return None if is_ours else OTHER_VERSION


# Model and optimizers as named tensors


def pack(model: Decoder, optimizers: dict[str, torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return this process's part of every tensor on which the next step depends: weights and optimizer states."""
    return {name: tensor for name, tensor, _ in _packed(model, optimizers)}


def places(model: Decoder, optimizers: dict[str, torch.optim.Optimizer]) -> dict[str, TensorPlace]:
    """Return, by name, the position of each tensor that is a part of a larger one or that only some processes hold."""
    return {
        name: TensorPlace(piece.start if is_part else (), piece.shape if is_part else (), piece.sums)
        for name, tensor, piece in _packed(model, optimizers)
        if piece is not None and piece.is_spread
        for is_part in [tensor.shape == piece.own.shape]
    }


def _packed(model: Decoder, optimizers: dict[str, torch.optim.Optimizer]) -> Iterator[tuple[str, Tensor, Piece | None]]:
    """Yield name and tensor of each weight, buffer and optimizer state, with the piece that the tensor belongs to."""
    pieces = pieces_of(model)
    for piece in pieces:
        yield f"model.{piece.name}", piece.own, piece
    for name, buffer in model.named_buffers():  # the routers' biases, which change from step to step too
        yield f"model.{name}", buffer, None
    for optimizer_name, optimizer in optimizers.items():
        for parameter, state in optimizer.state.items():
            piece = pieces.of(parameter)
            for field_name, value in state.items():
                yield f"{optimizer_name}.{piece.name}.{field_name}", value, piece


def pack_own(world: World) -> dict[str, Tensor]:
    """Return the state that differs between processes: torch's random state on the CPU and on the process's device."""
    states = {f"random.cpu.{world.rank}": torch.get_rng_state()}
    if world.device.type == "cuda":
        states[f"random.cuda.{world.rank}"] = torch.cuda.get_rng_state(world.device)
    return states


def unpack_own(tensors: Mapping[str, Tensor], world: World) -> None:
    """Restore this process's random state from a checkpoint; a process without a saved state keeps its present one."""
    for name in pack_own(world).keys() & tensors.keys():
        if name.startswith("random.cuda."):
            torch.cuda.set_rng_state(tensors[name], world.device)
        else:
            torch.set_rng_state(tensors[name])


@torch.no_grad()
def unpack(tensors: Saved, model: Decoder, optimizers: dict[str, torch.optim.Optimizer], world: World) -> None:
    """Restore what `pack` and `pack_own` returned, replacing all present values.

    A process that the checkpoint's run did not have keeps its random state. Raise RefusedInput if the model's weights
    are not exactly those in the checkpoint.
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
            # All fields go to the weight's device, as fused AdamW's step counter does. A copy, because what is read may
            # be a view of the file, which would stay mapped as a whole.
            optimizers[optimizer_name].state[piece.own][field_name] = value.to(piece.own.device, copy=True)
    unpack_own(tensors, world)


def _check_shapes(
    tensors: Saved, weights: Mapping[str, tuple[int, ...]], buffers: Mapping[str, Tensor], model: Decoder
) -> None:
    """Raise RefusedInput if the model's tensors are not exactly those in the checkpoint."""
    shapes = dict(weights) | {name: tuple(buffer.shape) for name, buffer in buffers.items()}
    saved = {name.removeprefix("model."): tensors.shape(name) for name in tensors if name.startswith("model.")}
    if pieces_of(model).world.length("pipeline") > 1:  # other processes hold the other layers
        saved = {name: shape for name, shape in saved.items() if name in shapes}
    differing = sorted(name for name in saved.keys() | shapes.keys() if saved.get(name) != shapes.get(name))
    if differing:
        raise RefusedInput(
            f"checkpoint: {differing[0]} has shape {saved.get(differing[0])}, the model wants"
            f" {shapes.get(differing[0])}"
        )
