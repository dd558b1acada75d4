"""Trainer state on disk: safetensors and JSON, whole or not at all, verified when read.

`step-00000012/` holds `tensors-00001-of-00002.safetensors`, one of each process, `state.json` and a manifest with the
sha256 of all of them. A save blocks for a copy in memory only: a thread writes the copy under another name, and the
folder gets its name at a later step boundary, when every process has written. So a killed save leaves nothing that
counts. Any number of processes reads what any other number wrote.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.artifact import sha256_of, write_json, write_text
from training.job import RefusedInput
from training.pretrain.ledger import Ledger, read_entries, read_ledger, write_ledger
from training.pretrain.parallel import World

STATE_FILE = "state.json"
MANIFEST_FILE = "manifest.json"
KEPT = 2
FORMAT = 2  # of what is in a checkpoint; another one is passed over like a broken one


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What was read, and one line for each newer checkpoint that could not be."""

    tensors: dict[str, Tensor]
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
        self._begun: _Begun | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

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
    ) -> None:
        """Copy this process's share of the state before `step` and its `own` tensors, and let a thread write them.

        The newest checkpoint at or before `needed_step` stays beside the newest `kept`.
        """
        assert not self.is_pending, "a checkpoint is being written"
        self._copy(share_of(tensors, self.world) | own)
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
            save_tensors(self._copies, folder / name)
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

        That is what a killed save left, and checkpoints taken on a way that was given up later. RefusedInput when a
        checkpoint was made under another ledger.
        """
        if self.world.is_first and self.folder.exists():
            for path in self.folder.glob(".step-*"):
                shutil.rmtree(path, ignore_errors=True)
            ledger = read_ledger(self.folder)
            for path in checkpoints(self.folder):
                ledger = self._compared(path, ledger)
        self.world.wait()
        return read_ledger(self.folder)

    def _compared(self, path: Path, ledger: Ledger) -> Ledger:
        """The ledger, filled up from that of a checkpoint if the file was lost; removes a checkpoint off the way."""
        if _problem(path, only=STATE_FILE) is not None:
            return ledger  # broken: said so when checkpoints are read
        own = read_entries(json.loads((path / STATE_FILE).read_text("utf-8"))["ledger"])
        if own.entries[: len(ledger.entries)] == ledger.entries:
            if own != ledger:
                write_ledger(self.folder, own)
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

        RefusedInput when checkpoints are there and all are broken: starting from zero would silently throw work away.
        """
        broken: list[str] = []
        for candidate in checkpoints(self.folder):
            problem = _problem(candidate)
            if problem is None:
                state = json.loads((candidate / STATE_FILE).read_text("utf-8"))
                return Found(tensors=_tensors_in(candidate), state=state, broken=tuple(broken))
            broken.append(f"{candidate.name}: {problem}")
        if broken:
            raise RefusedInput(
                f"{self.folder}: no checkpoint is whole ({'; '.join(broken)}); remove the folder to start again from"
                " step 0"
            )
        return None


def tensors_file(rank: int, size: int) -> str:
    """The name of one process's part."""
    return f"tensors-{rank + 1:05d}-of-{size:05d}.safetensors"


def share_of(tensors: Mapping[str, Tensor], world: World) -> dict[str, Tensor]:
    """The part of the tensors that this process writes: about as many bytes as every other one's."""
    total = max(1, sum(tensor.nbytes for tensor in tensors.values()))
    own, before = {}, 0
    for name in sorted(tensors):
        if before * world.size // total == world.rank:
            own[name] = tensors[name]
        before += tensors[name].nbytes
    return own


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoint folders, newest first, whole or not."""
    return sorted(folder.glob("step-*"), reverse=True)


def _name(step: int) -> str:
    return f"step-{step:08d}"


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
        return "another version of this package wrote it"
    return None


def _tensors_in(folder: Path) -> dict[str, Tensor]:
    """The tensors of every process's part."""
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file and see it on the disk. OSError, as for any file, when the disk is full."""
    try:
        save_file(tensors, path, metadata={"format": "pt"})
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


def pack(model: torch.nn.Module, optimizers: dict[str, torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Every tensor that the next step depends on and that all processes hold: weights and optimizer state, by name."""
    tensors = {f"model.{name}": tensor for name, tensor in _model_tensors(model).items()}
    names = {parameter: name for name, parameter in model.named_parameters()}
    for optimizer_name, optimizer in optimizers.items():
        for parameter, state in optimizer.state.items():
            for field_name, value in state.items():
                tensors[f"{optimizer_name}.{names[parameter]}.{field_name}"] = value
    return tensors


def pack_own(world: World) -> dict[str, Tensor]:
    """What a process does not share with the others: torch's random state."""
    return {f"random.cpu.{world.rank}": torch.get_rng_state()}


def _model_tensors(model: torch.nn.Module) -> dict[str, Tensor]:
    """Weights, and what else the model carries from step to step (routers' biases)."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


@torch.no_grad()
def unpack(
    tensors: dict[str, Tensor], model: torch.nn.Module, optimizers: dict[str, torch.optim.Optimizer], world: World
) -> None:
    """Put back what `pack` and `pack_own` gave, in the place of all that is there.

    A process that the checkpoint's run did not have keeps its random state. RefusedInput when the model's weights are
    not exactly those in the checkpoint.
    """
    parameters = _model_tensors(model)
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    saved = {
        name.removeprefix("model."): tuple(tensor.shape)
        for name, tensor in tensors.items()
        if name.startswith("model.")
    }
    if saved != shapes:
        differing = sorted(name for name in saved.keys() | shapes.keys() if saved.get(name) != shapes.get(name))
        raise RefusedInput(
            f"checkpoint: {differing[0]} has shape {saved.get(differing[0])}, the model wants"
            f" {shapes.get(differing[0])}"
        )
    for name, parameter in parameters.items():
        parameter.copy_(tensors[f"model.{name}"])
    for optimizer in optimizers.values():
        optimizer.state.clear()
    for name, tensor in tensors.items():
        optimizer = optimizers.get(name.partition(".")[0])
        if optimizer is not None:
            parameter_name, _, field_name = name.partition(".")[2].rpartition(".")
            parameter = parameters[parameter_name]
            # AdamW's fused form keeps its step beside the weights; every other field follows the weight as well.
            optimizer.state[parameter][field_name] = tensor.to(parameter.device)
    for name in pack_own(world).keys() & tensors.keys():
        torch.set_rng_state(tensors[name])
