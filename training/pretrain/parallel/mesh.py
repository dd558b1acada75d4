"""A model spread over the device mesh: which part of each weight a process holds, and how parts are joined again.

Layers split by `tensor` and `expert` hold plain, smaller weights; `shard` is torch's FSDP2 on top of them. Optimizers,
checkpoints and norms see only pieces: plain tensors, each with its position in a named whole weight. If nothing is
split, a piece is the parameter itself.

Weights that `tensor` does not split (embedding, head, norms, routers, experts) are applied by every process of the
group to its own positions, so their gradients are partial sums, as with different rows. That is why computing the
head's logits needs no group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from training.contract.process.fsdp_internals import send_in_fp32
from training.contract.process.memory_release import return_large_blocks
from training.pretrain.models.collectives import join, join_at_first
from training.pretrain.models.decoder import MLP, Attention, BaseAttention, Block, Decoder, meta_decoder
from training.pretrain.models.experts import Experts
from training.pretrain.optim.clipping import gradient_norm
from training.pretrain.optim.gradient import gradient_of
from training.pretrain.parallel.degrees import (
    AXES,
    MESSAGE_NUMBERS,
    OF_A_TENSOR,
    OF_AN_EXPERT,
    TENSOR_CUTS,
    WHOLE,
    shard_axis,
)
from training.pretrain.parallel.pipeline import PipelinePart
from training.pretrain.parallel.world import World

# The axis of each weight along which a kind of parallelism cuts it. Rows of the fused projection are grouped by
# key-value head, so cutting its rows separates heads.
CUTS_OF_TENSOR: dict[type[nn.Module], dict[str, int]] = {
    Attention: TENSOR_CUTS["attention"],
    MLP: TENSOR_CUTS["mlp"],
}
CUTS_OF_EXPERT: dict[type[nn.Module], dict[str, int]] = {Experts: {"gate": 0, "up": 0, "down": 0}}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Piece:
    """This process's part of a named weight.

    own: the tensor that the optimizers update.
    held: the tensor in the module between passes, which is `own` unless FSDP shards it.
    shape: of the whole weight; start: the index in it at which `own` begins.
    cut: the process axis and the axis of the weight along which a layer's processes divide it; None if they do not.
    at_both_ends: whether the pipeline's first and last process hold it: an embedding that is also the head.
    sums: process axes along which others hold the same piece; its gradient is the sum over these processes.
    """

    name: str
    own: Tensor
    held: Tensor
    shape: tuple[int, ...]
    start: tuple[int, ...]
    cut: tuple[str, int] | None = None
    sums: tuple[str, ...] = WHOLE
    at_both_ends: bool = False

    @property
    def is_spread(self) -> bool:
        """Whether another process holds a different part of the weight."""
        return self.own is not self.held or self.cut is not None

    @property
    def place(self) -> tuple[slice, ...]:
        """The slices of the whole weight that this process's part `own` covers."""
        return tuple(slice(start, start + size) for start, size in zip(self.start, self.own.shape, strict=True))


class Pieces:
    """All pieces of this process (its parts of the model's weights), by the weight's name."""

    def __init__(self, pieces: Sequence[Piece], world: World, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.world, self.shapes = world, shapes  # of all weights, in order
        self.by_name = {piece.name: piece for piece in pieces}
        self.tensors = [piece.own for piece in pieces]
        self._of = {id(tensor): piece for piece in pieces for tensor in (piece.own, piece.held)}

    def __iter__(self) -> Iterator[Piece]:
        return iter(self.by_name.values())

    def of(self, tensor: Tensor) -> Piece:
        """Return the piece of the weight that a tensor belongs to: the optimizer's tensor or the layer's own."""
        return self._of[id(tensor)]

    # Gradients

    def forget_gradients(self) -> None:
        """Clear all gradients, before the first pass of a step."""
        for piece in self:
            piece.own.grad = piece.held.grad = None

    def sum_gradients(self, extras: Tensor) -> Tensor:
        """Sum each gradient over the whole global batch.

        Return `extras` (a few fp32 numbers) summed over all processes.

        Pieces that are shared along the same axes go together, in messages of up to MESSAGE_NUMBERS: at the model sizes
        for which replicas are used, latency costs more than the copy.
        """
        for piece in self:
            if piece.own is not piece.held:
                piece.own.grad = _local(gradient_of(piece.held))
        if self.world.size == 1:
            return extras
        groups: dict[tuple[str, ...], list[Tensor]] = {}
        before = self.world.degrees.summed_by_fsdp
        for piece in self:
            sums = tuple(axis for axis in piece.sums if axis not in before)
            groups.setdefault(sums, []).append(gradient_of(piece.own))
        everywhere = next((sums for sums in groups if self.world.length(*sums) == self.world.size), None)
        if everywhere is None:
            self.world.sum(extras)
        for sums, gradients in groups.items():
            if self.world.length(*sums) > 1:  # FSDP has summed the others
                for message in _in_messages([extras, *gradients] if sums == everywhere else gradients):
                    self._sum_together(message, sums)
        for piece in self:
            if piece.at_both_ends:
                dist.all_reduce(gradient_of(piece.own), group=self.world.ends)
        return extras

    def _sum_together(self, tensors: Sequence[Tensor], sums: tuple[str, ...]) -> None:
        """Sum each tensor along process axes, in place and in one message, which has a copy of them if they are many.

        The copy does not outlive this call.
        """
        if len(tensors) == 1 and tensors[0].is_contiguous():
            self.world.sum(tensors[0], *sums)
        else:
            flat = self.world.sum(torch.cat([tensor.reshape(-1) for tensor in tensors]), *sums)
            for tensor, summed in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(summed.view_as(tensor))

    def gradient_norm(self) -> Tensor:
        """Return the Euclidean norm over all gradients of the model.

        The result is an fp32 scalar with the same bits on every process.
        """
        if not self.world.is_split:
            return gradient_norm(self.tensors)
        squares = [torch.linalg.vector_norm(gradient_of(piece.own)).square() / self._holders(piece) for piece in self]
        return self.world.sum(torch.stack(squares).sum()).sqrt()

    def norms(self) -> dict[str, tuple[float, float]]:
        """Return the norms of each weight of the model and of its gradient, by name."""
        squares = {name: torch.zeros(2, device=self.world.device) for name in self.shapes}
        for piece in self:
            norms = [torch.linalg.vector_norm(part.detach()) for part in (piece.own, gradient_of(piece.own))]
            squares[piece.name] = torch.stack(norms).square() / (self._holders(piece) if self.world.is_split else 1)
        summed = torch.stack(list(squares.values()))
        norms = (self.world.sum(summed) if self.world.is_split else summed).sqrt().tolist()
        return {name: (norm, gradient) for name, (norm, gradient) in zip(squares, norms, strict=True)}

    def _holders(self, piece: Piece) -> int:
        """Return the number of processes that hold a copy of exactly this piece."""
        return self.world.length(*piece.sums) * (2 if piece.at_both_ends else 1)

    # Parts and wholes

    def in_layer(self, piece: Piece, part: Tensor) -> Tensor:
        """Gather a tensor that FSDP divides, such as a gradient, into the tensor that this process's layer has.

        FSDP divides the tensor in the same way as the piece.
        """
        group = self.world.group("shard")
        if group is None:
            return part
        return self._in_layer(piece, part, lambda padded, axis: join(padded, axis, group))

    def _in_layer(self, piece: Piece, part: Tensor, gather: Callable[[Tensor, int], Tensor]) -> Tensor:
        if axis := _shard_axis(piece.held, self.world):
            return gather(part, axis)
        rows = piece.held.shape[0]
        size = -(-rows // self.world.length("shard"))
        padded = part.new_zeros(size, *part.shape[1:])
        padded[: len(part)] = part
        return gather(padded, 0)[:rows]

    def matrix(self, piece: Piece, part: Tensor) -> Tensor:
        """Gather whole matrices from the parts of all processes; `part` is this process's part.

        For a weight of experts, these are the matrices of all experts in this process's layer.
        """
        return self._of_all_lanes(piece, self.in_layer(piece, part))

    def _of_all_lanes(self, piece: Piece, in_layer: Tensor) -> Tensor:
        if piece.cut is None or piece.cut[0] == "expert":
            return in_layer
        axis, dim = piece.cut
        return join(in_layer, dim, self._group(axis))

    def to_owners(self, pieces: Sequence[Piece], parts: Sequence[Tensor]) -> Tensor | None:
        """Send this process's parts of a few weights to their owners; return the matrices of its own weight.

        The n-th process along `shard` owns the n-th weight, and gets the same as from `matrix`. A process without a
        weight gets None. All processes along `shard` and `tensor` must call this with parts of the same weights.
        """
        mine = self.world.place("shard")
        piece = pieces[mine] if mine < len(pieces) else None
        received = self._portions(piece)
        flat = torch.cat([part.reshape(-1) for part in parts])
        came = self._exchange(flat, sent=[part.numel() for part in parts], received=received)
        if piece is None:
            return None
        axis, shape = _shard_axis(piece.held, self.world), list(piece.held.shape)
        if axis:  # one process's part of all experts after the other's
            shape[axis] //= self.world.length("shard")
            came = came.view(-1, *shape).movedim(0, axis).flatten(axis, axis + 1)
        return self._of_all_lanes(piece, came.view(piece.held.shape))

    def from_owners(self, pieces: Sequence[Piece], matrix: Tensor | None) -> list[Tensor]:
        """Undo `to_owners`: send the parts of this process's matrices back, and return its own parts of all weights."""
        mine = self.world.place("shard")
        piece = pieces[mine] if mine < len(pieces) else None
        flat = torch.empty(0, device=self.world.device)
        if piece is not None and matrix is not None:
            if piece.cut is not None and piece.cut[0] != "expert":
                axis, dim = piece.cut
                matrix = matrix.chunk(self.world.length(axis), dim)[self.world.place(axis)]
            if axis := _shard_axis(piece.held, self.world):
                matrix = matrix.unflatten(axis, (self.world.length("shard"), -1)).movedim(axis, 0)
            flat = matrix.reshape(-1)
        sizes = [one.own.numel() for one in pieces]
        came = self._exchange(flat, sent=self._portions(piece), received=sizes)
        return [part.view(one.own.shape) for part, one in zip(came.split(sizes), pieces, strict=True)]

    def _portions(self, piece: Piece | None) -> list[int]:
        """Return how many numbers of a layer's weight each process along `shard` has."""
        places = range(self.world.length("shard"))
        if piece is None:
            return [0 for _ in places]
        if _shard_axis(piece.held, self.world):
            return [piece.held.numel() // len(places) for _ in places]
        rows, most = piece.held.shape[0], -(-piece.held.shape[0] // len(places))
        columns = prod(piece.held.shape[1:])
        return [columns * max(0, min(rows, (place + 1) * most) - place * most) for place in places]

    def _exchange(self, flat: Tensor, *, sent: list[int], received: list[int]) -> Tensor:
        group = self.world.group("shard")
        if group is None:
            return flat
        came = flat.new_empty(sum(received))
        sent = [*sent, *[0] * (self.world.length("shard") - len(sent))]
        received = [*received, *[0] * (self.world.length("shard") - len(received))]
        dist.all_to_all_single(came, flat, received, sent, group=group)
        return came

    def whole(self, piece: Piece, part: Tensor) -> Tensor:
        """Gather a whole tensor in the first process that has layers of this stage; the others get an empty one.

        `part` is this process's part of the piece's weight, of its gradient, or of another tensor that is divided in
        the same way. It is sent towards that process once, and by one of the processes that hold the same part.
        """
        world, nothing = self.world, part.new_empty(0)
        copies = (axis for axis in piece.sums if axis != "shard")
        if any(world.place(axis) for axis in copies):
            return nothing
        part = part.detach()
        if (group := world.group("shard")) is not None:
            part = self._in_layer(piece, part, lambda padded, axis: join_at_first(padded, axis, group))
            if world.place("shard"):
                return nothing
        if piece.cut is None:
            return part
        axis, dim = piece.cut
        return join_at_first(part, 0 if axis == "expert" else dim, self._group(axis))

    def _group(self, axis: str) -> dist.ProcessGroup:
        """Return the process group along an axis that divides a weight; it always contains other processes."""
        group = self.world.group(axis)
        assert group is not None, f"no other process along {axis}"
        return group


def _shard_axis(weight: Tensor, world: World) -> int:
    """Return the axis along which FSDP shards a weight of a layer."""
    return shard_axis(tuple(weight.shape), world.length("shard"))


def _local(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor that FSDP divides, as a view of the same memory."""
    assert isinstance(tensor, DTensor), "FSDP divides every weight of a spread model"
    return tensor.to_local()


def _in_messages(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors in lists of up to MESSAGE_NUMBERS numbers together, in their order; a larger one is alone."""
    message, numbers = list[Tensor](), 0
    for tensor in tensors:
        if message and numbers + tensor.numel() > MESSAGE_NUMBERS:
            yield message
            message, numbers = [], 0
        message.append(tensor)
        numbers += tensor.numel()
    yield message


def spread(model: Decoder, world: World, *, gathers_bf16: bool = False) -> Pieces:
    """Reduce a whole model, the same on every process, to this process's part, on its device; return its pieces.

    A model on the meta device takes no memory before it is reduced. Its part then has arbitrary values: see `fill`.
    With `gathers_bf16` FSDP sends weights in bf16, except routers, and sums gradients in fp32; the model can compute in
    bf16 alone.
    """
    is_empty = model.norm.is_meta
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    cuts = dict(_cut(model, world)) if world.is_split else {}
    if world.length("pipeline") > 1:
        _drop_other_stages(model, world)
    if world.mesh is None:
        model.to_empty(device=world.device) if is_empty else model.to(world.device)
    else:  # FSDP moves one module at a time, so no device ever holds the whole model
        axes = (*(axis for axis in world.degrees.summed_by_fsdp if world.length(axis) > 1), "shard")
        policy = MixedPrecisionPolicy(cast_forward_inputs=False)
        if gathers_bf16:
            policy = replace(policy, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        frees = None if world.degrees.zero_stage == 3 else False  # None: all but embedding, head and last norm
        for module in (*(module for module in model.modules() if isinstance(module, Block)), model):
            apart = _routers(module, world.device) if gathers_bf16 and isinstance(module, Block) else []
            sharded = fully_shard(
                module,
                mesh=world.mesh[axes],
                reshard_after_forward=frees,
                shard_placement_fn=lambda weight: Shard(_shard_axis(weight, world)),
                mp_policy=policy,
                ignored_params=set(apart),
            )
            if apart:
                send_in_fp32(sharded, apart)
            # Gradients are already divided by the tokens of the whole batch, so they are summed, not averaged.
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
        model.keep_no_copies()
        if world.device.type == "cpu":
            return_large_blocks()
        if is_empty:
            model.to_empty(device=world.device)
    has_both_ends = world.length("pipeline") > 1 and model.config.tied_embeddings
    made = [
        _piece(name, held, shapes[name], cuts, world, at_both_ends=has_both_ends and name == "embedding")
        for name, held in model.named_parameters()
    ]
    pieces = Pieces(made, world, shapes)
    model.pieces = pieces  # kept here because later the module may hold the tensors that FSDP gathered
    return pieces


def _routers(block: nn.Module, device: torch.device) -> list[nn.Parameter]:
    """Return the routers' weights in a block, on the device unless they have no content yet."""
    found = [module.router for module in block.modules() if isinstance(module, Experts)]
    for router in found:
        router.data = router.data if router.is_meta else router.data.to(device)
    return found


@torch.no_grad()
def fill(model: Decoder, pieces: Pieces, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Copy this process's part of each whole weight or buffer, which are given by name, one after the other."""
    buffers = dict(model.named_buffers())
    for name, whole in weights:
        if name in pieces.by_name:
            piece = pieces.by_name[name]
            piece.own.copy_(whole[piece.place])
        elif name in buffers:
            buffers[name].copy_(whole)


def in_fp32(model: Decoder, world: World) -> Decoder:
    """Return a spread model with the same weights that FSDP sends in fp32. It takes a share of the weights more."""
    copied = meta_decoder(model.config)
    with torch.no_grad():
        for piece, own in zip(spread(copied, world), pieces_of(model), strict=True):
            piece.own.copy_(own.own)
        for buffer, own in zip(copied.buffers(), model.buffers(), strict=True):
            buffer.copy_(own)
    return copied


def pieces_of(model: nn.Module) -> Pieces:
    """Return the pieces that `spread` made or, for a model that was never spread, a piece for each whole weight."""
    spread_before = getattr(model, "pieces", None)
    if spread_before is not None:
        return spread_before
    alone = World(rank=0, size=1, device=torch.device("cpu"))
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    made = [_piece(name, held, shapes[name], {}, alone) for name, held in model.named_parameters()]
    return Pieces(made, alone, shapes)


def _cut(model: Decoder, world: World) -> Iterator[tuple[str, tuple[str, int]]]:
    """Replace weights that layers share among processes by this process's parts.

    Yields the name, the process axis and the weight axis of each.
    """
    lanes = world.lanes()
    for path, module in model.named_modules():
        if isinstance(module, (BaseAttention, MLP, Experts)):
            module.lanes = lanes
        for axis, table in (("tensor", CUTS_OF_TENSOR), ("expert", CUTS_OF_EXPERT)):
            for name, dim in _cuts_of(module, table).items():
                weight = getattr(module, name)
                if weight is not None and world.length(axis) > 1:
                    part = weight.detach().chunk(world.length(axis), dim)[world.place(axis)]
                    setattr(module, name, nn.Parameter(part.clone()))
                    yield f"{path}.{name}", (axis, dim)


def _cuts_of(module: nn.Module, table: Mapping[type[nn.Module], dict[str, int]]) -> dict[str, int]:
    return next((cuts for kind, cuts in table.items() if isinstance(module, kind)), {})


def _drop_other_stages(model: Decoder, world: World) -> None:
    """Remove the layers of other pipeline stages; the names of the remaining layers do not change."""
    pipeline = PipelinePart(world, layers=model.config.layers)
    for layer in range(model.config.layers):
        if not any(layer in layers for layers in pipeline.layers):
            model.blocks[layer] = nn.Module()
    has_start, has_end = pipeline.is_first(0), pipeline.is_last(pipeline.chunks - 1)
    if not has_start and not (has_end and model.config.tied_embeddings):
        model.register_parameter("embedding", None)
    if not has_end:
        model.register_parameter("norm", None)
        if not model.config.tied_embeddings:
            model.register_parameter("head", None)


def _piece(
    name: str,
    held: Tensor,
    shape: tuple[int, ...],
    cuts: Mapping[str, tuple[str, int]],
    world: World,
    *,
    at_both_ends: bool = False,
) -> Piece:
    start, cut = [0] * len(shape), cuts.get(name)
    if cut is not None:
        start[cut[1]] = world.place(cut[0]) * held.shape[cut[1]]
    sums = WHOLE if cut is None else OF_A_TENSOR if cut[0] == "tensor" else OF_AN_EXPERT
    own = held
    if world.mesh is not None:
        own = nn.Parameter(_local(held).detach())  # the same memory
        axis = _shard_axis(held, world)
        size = held.shape[axis]
        start[axis] += min(size, world.place("shard") * -(-size // world.length("shard")))
    return Piece(
        name=name,
        own=own,
        held=held,
        shape=shape,
        start=tuple(start),
        cut=cut,
        sums=sums,
        at_both_ends=at_both_ends,
    )


def begin_pass(model: Decoder, world: World, *, is_last: bool) -> None:
    """Say whether the next pass is this process's last one of the step, after which FSDP has summed all gradients.

    Before it, replicas are not summed, and weights and gradients stay as whole as the ZeRO stage says.
    """
    if isinstance(model, FSDPModule) and world.degrees.summed_by_fsdp:
        model.set_requires_all_reduce(is_last)
        if world.degrees.zero_stage < 3:
            model.set_reshard_after_backward(is_last)
        if world.degrees.zero_stage < 2:
            model.set_requires_gradient_sync(is_last)


def reshard(model: Decoder) -> None:
    """Free the whole weights that FSDP gathered for a pass, so that the next pass gathers them again.

    Call this before weights are changed in any other way than by an optimizer step.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def wholes(model: Decoder, pieces: Pieces) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight and buffer of a model with its name, whole, one after the other. All processes must iterate.

    The first process gets each whole tensor, and only one at a time exists; the other processes get empty ones. If
    nothing is split, they are the model's own in every process.
    """
    world = pieces.world
    if not world.is_split:
        yield from (*model.named_parameters(), *model.named_buffers())
        return
    reshard(model)  # a pass without a backward pass leaves embedding and head gathered
    for name, shape in pieces.shapes.items():
        piece = pieces.by_name.get(name)
        yield name, from_stages(None if piece is None else pieces.whole(piece, piece.own), shape, world)
    buffers = dict(model.named_buffers())
    everything = dict(meta_decoder(model.config).named_buffers())
    for name, buffer in everything.items():
        yield name, from_stages(buffers.get(name), tuple(buffer.shape), world)


def from_stages(tensor: Tensor | None, shape: tuple[int, ...], world: World) -> Tensor:
    """Return, in the first process, a tensor of `shape` that only some pipeline stages have; the others pass None.

    In each stage the process that corresponds to the first one has it. The other processes get an empty tensor.
    """
    if any(world.place(axis) for axis in AXES if axis != "pipeline"):
        return torch.empty(0)
    group = world.group("pipeline")
    if group is None:
        assert tensor is not None
        return tensor
    has = torch.tensor(float(tensor is not None), device=world.device)
    parts = torch.zeros(shape, device=world.device) if tensor is None else tensor.detach().clone()
    for one in (parts, has):
        dist.reduce(one, group=group, group_dst=0)
    return torch.empty(0) if world.place("pipeline") else parts / has
