"""Checkpoints, merging and export of a model that is spread over processes: no process ever holds the whole of it.

transformers' Trainer trains such a model, but saves weights and optimizer only after gathering them. Here each process
saves its own part, as in pretraining, and the export gathers one weight at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers.core_model_loading import revert_weight_conversion

from training.contract.artifact import write_json, written
from training.contract.job import RefusedInput
from training.contract.model_files import INDEX, WEIGHTS
from training.contract.records import RecipeError
from training.generate.spread import is_first, is_spread
from training.pretrain.tensor_files import Saved, TensorPlace, header, parts_in_headers, save_tensors, write_tensor

PARTS_FOLDER = "parts"
SCHEDULE_FILE = "scheduler.json"
FILE_BYTES = 5 * 10**9  # of one file of an exported model, as in pretraining
WEIGHT, STATE = "weight.", "optimizer."  # with which the names of saved tensors begin


def saving_parts(trainer_class: type) -> Any:
    """Return transformers' class of trainers, changed so that it saves a spread model and its optimizer in parts.

    A checkpoint of parts can be loaded by another number of processes. Beside a spread model, each process has whole
    adapters, of which transformers averages the gradients.
    """

    class SavesParts(trainer_class):
        def __init__(self, *, model: Any, **given: Any) -> None:
            self._has_shares = is_spread(model)
            if self._has_shares and given.get("peft_config"):
                _let_peft_ask_for_features()
            try:
                super().__init__(model=model, **given)
            except (ValueError, IndexError, AttributeError) as error:
                if given.get("peft_config") is None:
                    raise
                raise RecipeError(f"peft: {str(error).splitlines()[0]}") from error
            if is_spread(self.model):
                _join_copies(self.model)

        def create_accelerator_and_postprocess(self) -> None:
            from accelerate.utils import AutocastKwargs

            super().create_accelerator_and_postprocess()
            if self._has_shares:
                # autocast would keep the copy that it makes of each gathered weight until the end of the pass, and so
                # all layers at once.
                self.accelerator.autocast_handler = AutocastKwargs(cache_enabled=False)

        def _defer_fsdp_gradient_reduction(self) -> AbstractContextManager[None]:
            # To sum the gradients after the last pass only, each process would keep all of them whole until then.
            return nullcontext()

        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
            if not is_spread(self.model):  # else the weights are saved with the optimizer
                super().save_model(output_dir, _internal_call)

        def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
            if _has_parts(resume_from_checkpoint):
                return
            if is_spread(self.model):
                raise RefusedInput(
                    f"{resume_from_checkpoint}: processes that had the whole model each saved this checkpoint; go on"
                    " with shard=1, or remove it"
                )
            super()._load_from_checkpoint(resume_from_checkpoint, model)

        def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
            if not is_spread(self.model):
                super()._save_optimizer_and_scheduler(output_dir)
                return
            _save_parts(self.model, self.optimizer.optimizer, Path(output_dir, PARTS_FOLDER))
            if is_first():
                write_json(Path(output_dir, SCHEDULE_FILE), self.lr_scheduler.state_dict())

        def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
            if checkpoint is None or not _has_parts(checkpoint):
                super()._load_optimizer_and_scheduler(checkpoint)
                return
            _load_parts(self.model, self.optimizer.optimizer, Path(checkpoint, PARTS_FOLDER))
            self.lr_scheduler.load_state_dict(json.loads(Path(checkpoint, SCHEDULE_FILE).read_text("utf-8")))
            for group, rate in zip(self.optimizer.param_groups, self.lr_scheduler.get_last_lr(), strict=True):
                group["lr"] = rate  # else the next step would be made with the rate of the first one

    return type(trainer_class.__name__, (SavesParts,), {})


def _has_parts(checkpoint: str) -> bool:
    return Path(checkpoint, PARTS_FOLDER).is_dir()


def _save_parts(model: Any, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    own = {name: tensor for name, tensor in _tensors(model, optimizer) if _is_kept(tensor)}
    places = {name: _place(tensor) for name, tensor in own.items() if isinstance(tensor, DTensor)}
    file = folder / f"tensors-{dist.get_rank():05d}.safetensors"
    save_tensors({name: _local(tensor) for name, tensor in own.items()}, file, places)


@torch.no_grad()
def _load_parts(model: Any, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Load the parts of this process. Raise RefusedInput if a weight that is trained is missing."""
    saved = Saved(folder, parts_in_headers(folder))
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if missing := sorted(name for name in weights if f"{WEIGHT}{name}" not in saved):
        raise RefusedInput(f"{folder}: {missing[0]} is missing")
    optimizer.state.clear()
    for name in saved:
        if name.startswith(WEIGHT):
            weight = weights[name.removeprefix(WEIGHT)]
            _local(weight).copy_(_part(saved, name, weight))
            continue
        weight_name, _, field = name.removeprefix(STATE).rpartition(".")
        weight = weights[weight_name]
        is_part = saved.shape(name) == tuple(weight.shape)
        optimizer.state[weight][field] = (
            _like(weight, _part(saved, name, weight)) if is_part else saved[name].to(weight.device)
        )


def _reshard(model: Any) -> None:
    """Let all modules hold their shares alone."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _tensors(model: Any, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of each weight and optimizer state."""
    _reshard(model)
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            yield f"{WEIGHT}{name}", weight
            for field, value in optimizer.state.get(weight, {}).items():
                yield f"{STATE}{name}.{field}", value


def _is_kept(tensor: Tensor) -> bool:
    """Whether this process saves the tensor: of those that hold the same part, the first one does."""
    if not isinstance(tensor, DTensor):
        return is_first()
    place = tensor.device_mesh.get_coordinate()
    assert place is not None
    return not any(at for at, placement in zip(place, tensor.placements, strict=True) if placement.is_replicate())


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _place(tensor: DTensor) -> TensorPlace:
    _, start = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return TensorPlace(tuple(start), tuple(tensor.shape), ())


def _part(saved: Saved, name: str, weight: Tensor) -> Tensor:
    """Return the part of a saved tensor that this process holds of `weight`."""
    start = _place(weight).start if isinstance(weight, DTensor) else (0,) * weight.dim()
    return saved.part(name, start, tuple(_local(weight).shape)).to(weight.device)


def _like(weight: Tensor, part: Tensor) -> Tensor:
    """Return a tensor that is divided as `weight`, of which this process holds `part`."""
    if not isinstance(weight, DTensor):
        return part
    mesh, shape, stride = weight.device_mesh, weight.shape, weight.stride()
    return DTensor.from_local(part, mesh, weight.placements, run_check=False, shape=shape, stride=stride)


# Adapters


def _let_peft_ask_for_features() -> None:
    """Let peft make adapters of a layer's whole width: of a model with replicas it would take the share's."""
    from peft.tuners.lora import LoraLayer

    asked = LoraLayer._get_in_out_features

    def features(self: Any, module: torch.nn.Module) -> tuple[int, int] | tuple[None, None]:
        if isinstance(module, torch.nn.Linear):
            return module.in_features, module.out_features
        return asked(self, module)

    LoraLayer._get_in_out_features = features


@torch.no_grad()
def _join_copies(model: Any) -> None:
    """Join the weights of layers that peft copied to train them, such as the head of a reward model.

    FSDP does not know the copies, and so would not join them in a pass.
    """
    from peft.utils.other import ModulesToSaveWrapper

    for wrapper in model.modules():
        if isinstance(wrapper, ModulesToSaveWrapper):
            for copied in wrapper.modules_to_save.modules():
                for name, weight in list(copied.named_parameters(recurse=False)):
                    if isinstance(weight, DTensor):
                        setattr(copied, name, torch.nn.Parameter(weight.full_tensor()))


@torch.no_grad()
def merge_adapters(model: Any) -> Any:
    """Merge the adapters of a spread peft model, and return the model without them; all processes must call this.

    One layer's weights at a time are gathered.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    _reshard(model)
    for layer in model.modules():
        if isinstance(layer, BaseTunerLayer):
            with _gathered(layer.get_base_layer()):
                layer.merge()
    return model.unload()


@contextmanager
def _gathered(module: torch.nn.Module) -> Iterator[None]:
    """Give a module whole weights, and take over this process's part of them at the end."""
    shares = {name: weight for name, weight in module.named_parameters(recurse=False) if isinstance(weight, DTensor)}
    for name, share in shares.items():
        setattr(module, name, torch.nn.Parameter(share.full_tensor(), requires_grad=False))
    yield
    for name, share in shares.items():
        start, own = _place(share).start, share.to_local()
        part = tuple(slice(first, first + size) for first, size in zip(start, own.shape, strict=True))
        own.copy_(getattr(module, name)[part])
        setattr(module, name, share)


# Export


@torch.no_grad()
def write_weights(model: Any, folder: Path, *, file_bytes: int = FILE_BYTES) -> None:
    """Write the weights of a spread model as transformers' `save_pretrained` does; all processes must call this.

    One weight at a time is gathered. The first process writes them into files of up to `file_bytes`, with an index if
    there are several.
    """
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    weights = {name: weight for name, weight in sorted(model.state_dict().items()) if name not in tied}
    names = {name: _reverted(model, name, _meta(weight)) for name, weight in weights.items()}
    files = in_files(names, file_bytes)
    for number, some in enumerate(files, start=1):
        path = folder / file_name(number, len(files))
        with written(path) if is_first() else nullcontext() as stream:
            if stream is not None:
                stream.write(header([part for name in some for part in names[name].items()]))
            for name in some:
                _write_whole(model, name, weights[name], stream)
    if is_first() and len(files) > 1:
        listed = {
            part: file_name(at, len(files)) for at, some in enumerate(files, 1) for n in some for part in names[n]
        }
        size = sum(part.nbytes for parts in names.values() for part in parts.values())
        write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": listed})


def _write_whole(model: Any, name: str, weight: Tensor, stream: IO[bytes] | None) -> None:
    """Gather a weight and write it. It is freed at the end, so that no two weights are gathered at the same time."""
    whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
    if stream is not None:
        for part in _reverted(model, name, whole).values():
            write_tensor(stream, part)


def _meta(weight: Tensor) -> Tensor:
    return torch.empty(weight.shape, dtype=weight.dtype, device="meta")


def _reverted(model: Any, name: str, weight: Tensor) -> dict[str, Tensor]:
    """Return the tensors of the files, by name, that transformers makes one weight of, such as a layer's experts."""
    return dict(revert_weight_conversion(model, {name: weight}))


def in_files(names: dict[str, dict[str, Tensor]], file_bytes: int) -> list[list[str]]:
    files: list[list[str]] = [[]]
    room = file_bytes
    for name, parts in names.items():
        size = sum(part.nbytes for part in parts.values())
        if size > room and files[-1]:
            files.append([])
            room = file_bytes
        files[-1].append(name)
        room -= size
    return files


def file_name(number: int, count: int) -> str:
    return WEIGHTS if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
