"""Count the kernels that a training step starts on a GPU and the bytes that it moves, from torch's compiled graphs.

A layer is traced as `compile: blocks` traces it: torch.compile's ahead-of-time graphs, forward and backward, after
inductor's decompositions and with its partitioner's choice of what is kept. They are traced on tensors without content,
and stop before inductor's scheduler, which needs a device. A rule (`kernels`) takes its place: products and attention
are kernels of their own; all other operations that depend on each other with no product between them are one kernel,
except that a sum over tokens ends a kernel; a value that only one later kernel reads is computed in that kernel. The
bytes are each kernel's inputs and outputs, counted once, without regard to caches and repeated reads. So the figures
are what compiling could give; nothing is measured.

The arithmetic of the loss between the head's products is traced in the same way. The parts that `compile: blocks` does
not compile (lookup, rotations, last norm, sums of chunks, clipping, AdamW) are counted operation by operation.
Attention counts as one kernel forward and one backward, with one stored number per query and head; flex_attention has
some more.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from training.pretrain import distill, loss
from training.pretrain.loss import next_token_loss
from training.pretrain.models.attention import one_document
from training.pretrain.models.decoder import Block, Decoder
from training.pretrain.models.shape import ModelConfig
from training.pretrain.optim.clipping import clip_gradients, gradient_norm
from training.pretrain.optim.make import make_optimizers
from training.pretrain.settings import PretrainRecipe

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
ATTENTION = frozenset({"attention", "attention_backward"})
# Of one norm, one clipping and one AdamW, each in fp32: gradient read; read and written; weight, gradient and two means
# read, all but the gradient written.
UPDATE_BYTES = 4 * (1 + 2 + 7)
WITHOUT_CONTENT = "a name in a graph: it is traced on tensors without content and computes nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Counts of kernels by kind, the bytes that they read and write, and the operations of products.

    Attention's operations are not included.
    """

    products: int = 0
    attention: int = 0
    fused: int = 0
    product_bytes: int = 0
    attention_bytes: int = 0
    fused_bytes: int = 0
    product_flops: int = 0

    @property
    def kernels(self) -> int:
        """The number of kernels of all kinds."""
        return self.products + self.attention + self.fused

    @property
    def bytes(self) -> int:
        """The bytes of kernels of all kinds."""
        return self.product_bytes + self.attention_bytes + self.fused_bytes

    def __add__(self, other: Work) -> Work:
        return Work(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})

    def __mul__(self, times: int) -> Work:
        return Work(**{name: getattr(self, name) * times for name in self.__slots__})


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The counts of a training step of one pass.

    They are those of all compiled layers, of everything around them, and of clipping with AdamW.
    """

    layer: Work
    layers: int
    around: Work
    update: Work

    @property
    def whole(self) -> Work:
        """The counts of the whole step."""
        return self.layer * self.layers + self.around + self.update


def step_of(shape: ModelConfig, *, rows: int, length: int) -> Step:
    """Count a step in bf16 of a model without experts, in one process and one pass; each row is one document."""
    layer = sum((work_of(graph) for graph in layer_graphs(shape, rows=rows, length=length)), Work())
    return Step(layer=layer, layers=shape.layers, around=around(shape, rows=rows, length=length), update=update(shape))


# A layer's graphs


def layer_graphs(shape: ModelConfig, *, rows: int, length: int) -> list[fx.Graph]:
    """Return the forward and the backward graph of one layer, as torch gives them to a compiler."""
    graphs, backend = _graphs_and_backend()
    with torch.device("meta"):
        block = Block(shape, 0)
        x = torch.zeros(rows, length, shape.width, dtype=torch.bfloat16, requires_grad=True)
        tokens = torch.zeros(rows, length, dtype=torch.long)
        shape_of_table = (rows, 1, 1, length, shape.head_width // 2)
        table = torch.zeros(shape_of_table, dtype=torch.bfloat16), torch.zeros(shape_of_table, dtype=torch.bfloat16)
    mask = one_document(tokens, dtype=torch.bfloat16, kind="causal")
    torch.compiler.reset()
    with patch("training.pretrain.models.decoder.attend", _attend), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own ways of tracing
        made, _ = torch.compile(block, backend=backend, fullgraph=True)(x, table, mask)
        made.sum().backward()
    torch.compiler.reset()
    return graphs


def _graphs_and_backend() -> tuple[list[fx.Graph], Any]:
    """Return a list, and a compiler for torch that does nothing but append its graphs to the list."""
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    graphs: list[fx.Graph] = []

    def kept(module: fx.GraphModule, _: Any) -> Any:
        graphs.append(module.graph)
        return make_boxed_func(module.forward)

    backend = aot_autograd(
        fw_compiler=kept,
        bw_compiler=kept,
        inference_compiler=kept,
        decompositions=select_decomp_table(),
        partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
    )
    return graphs, backend


def _attend(query_key: Tensor, value: Tensor, _: Any) -> Tensor:
    return attention(query_key, value)[0]


@torch.library.custom_op("pedigree::attention", mutates_args=())
def attention(query_key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of attention, as one operation of a graph.

    It is the mixed values, and the logarithm of each softmax's denominator.
    """
    raise TypeError(WITHOUT_CONTENT)


@attention.register_fake
def _(query_key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    mixed = query_key.new_empty(query_key[:, :, :-1].shape)
    return mixed, mixed.new_empty(mixed.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("pedigree::attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor, query_key: Tensor, value: Tensor, mixed: Tensor, denominators: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of attention, as one operation of a graph."""
    raise TypeError(WITHOUT_CONTENT)


@attention_backward.register_fake
def _(grad: Tensor, query_key: Tensor, value: Tensor, mixed: Tensor, denominators: Tensor) -> tuple[Tensor, Tensor]:
    return query_key.new_empty(query_key.shape), value.new_empty(value.shape)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _back(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return attention_backward(grad, *ctx.saved_tensors)


attention.register_autograd(_back, setup_context=_keep)


# Kernels of a graph


def work_of(graph: fx.Graph) -> Work:
    """Return the kernels of a graph and the bytes that they move."""
    work = Work()
    for kernel in kernels(graph):
        name, moved = _name(kernel[0]), _bytes_of(kernel)
        if name in PRODUCTS:
            work += Work(products=1, product_bytes=moved, product_flops=_flops(kernel[0]))
        elif name in ATTENTION:
            work += Work(attention=1, attention_bytes=moved)
        else:
            work += Work(fused=1, fused_bytes=moved)
    return work


def kernels(graph: fx.Graph) -> list[list[fx.Node]]:
    """Divide the nodes that compute into kernels, by the rule that the module's docstring gives."""
    place = _places(graph)
    home: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        if not _computes(node):
            continue
        sources = [] if _is_alone(node) else [_base(one) for one in node.all_input_nodes]
        joined = {id(home[one]): home[one] for one in sources if one in home and _joins(node, one, place)}
        kernel = [member for other in joined.values() for member in other] + [node]
        home |= dict.fromkeys(kernel, kernel)
    return list({id(kernel): kernel for kernel in home.values()}.values())


def _places(graph: fx.Graph) -> dict[fx.Node, int]:
    """Return, for each node, the number of kernels that must end before it: the most on any path to it.

    A cheap node is moved to its first reader, because a kernel that computes it there need not read it from memory.
    """
    place: dict[fx.Node, int] = {}
    for node in graph.nodes:
        place[node] = max((place[one] + _ends_kernel(one) for one in map(_base, node.all_input_nodes)), default=0)
    for node in reversed(graph.nodes):
        if _computes(node) and not _is_alone(node):
            place[node] = min((place[one] - _ends_kernel(node) for one in _readers(node)), default=place[node])
    return place


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """Return the nodes that compute from this one, directly or through a view."""
    for user in node.users:
        yield from [user] if _computes(user) else _readers(user)


def _joins(node: fx.Node, source: fx.Node, place: dict[fx.Node, int]) -> bool:
    return place[node] == place[source] and not _is_alone(source) and not _ends_kernel(source)


def _is_alone(node: fx.Node) -> bool:
    return _name(node) in PRODUCTS | ATTENTION


def _ends_kernel(node: fx.Node) -> bool:
    """Whether a node ends a kernel: a product, attention, or a sum over tokens (as for a weight's gradient).

    A sum over tokens is recognized by its last axis, which stays.
    """
    if node.op != "call_function" or _is_alone(node):
        return node.op == "call_function"
    if _name(node) not in ("sum", "mean", "amax"):
        return False
    given, made = _tensors(node.args[0])[0], _tensors(node)[0]
    return given.numel() > made.numel() and made.shape[-1:] == given.shape[-1:]


def _computes(node: fx.Node) -> bool:
    """Whether a node computes: it is not a view, one of several results, or a constant."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return False
    return not node.target.is_view and _name(node) not in ("full", "scalar_tensor", "iota", "empty", "_unsafe_view")


def _name(node: fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return packet.__name__ if packet is not None else str(node.target)


def _base(node: fx.Node) -> fx.Node:
    """Return the node whose result a view shows, or of whose several results this node is one."""
    while node.op == "call_function" and not _computes(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _bytes_of(kernel: list[fx.Node]) -> int:
    """Return the bytes that a kernel reads of others, each tensor once, plus the bytes that others read of it."""
    inside, read = set(kernel), defaultdict(dict)
    for node in kernel:
        for given in node.all_input_nodes:
            if _base(given) not in inside:
                read[_base(given)][given] = _size(given)
    reads = sum(min(sum(views.values()), _size(base)) for base, views in read.items())
    return reads + sum(_size(node) for node in kernel if _is_kept(node, inside))


def _is_kept(node: fx.Node, inside: set[fx.Node]) -> bool:
    """Whether a node outside the kernel reads this one, directly or through a view."""
    return any(
        user not in inside and (_computes(user) or user.op == "output" or _is_kept(user, inside)) for user in node.users
    )


def _size(node: fx.Node) -> int:
    return sum(one.numel() * one.element_size() for one in _tensors(node))


def _tensors(node: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor)]


def _flops(node: fx.Node) -> int:
    first = _tensors(node.args[-2])[0]
    return 2 * _tensors(node)[0].numel() * first.shape[-1]


# What is not compiled


class _Counted(TorchDispatchMode):
    """Counts torch's operations as they are called, each as one kernel; views are not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.work = Work()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if function.is_view or name in ("empty", "empty_like", "detach", "_unsafe_view", "alias"):
            return made
        # What is overwritten is not read.
        given = args[1:] if name in ("copy_", "fill_", "zero_") else args
        moved = sum(one.nbytes for one in _leaves((given, {**(kwargs or {}), "out": None}, made)))
        if name in PRODUCTS:
            first, second = args[-2:]
            flops = 2 * prod(first.shape) * second.shape[-1]
            self.work += Work(products=1, product_bytes=moved, product_flops=flops)
        else:
            self.work += Work(fused=1, fused_bytes=moved)
        return made


def _leaves(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def loss_graph(shape: ModelConfig, *, positions: int = loss.CHUNK) -> fx.Graph:
    """Return the graph from a chunk of logits to their gradients, as torch gives it to a compiler."""
    return _graph_to_gradients(
        partial(loss._fused_to_gradients, scale=1.0, softcap=shape.logit_softcap, z_loss=0.0), _chunk(shape, positions)
    )


def of_a_teachers_loss(shape: ModelConfig, *, compiled: bool) -> Work:
    """Count the arithmetic between the products of a chunk of the loss with a teacher of the same vocabulary."""
    (logits, targets), (taught, _) = (_chunk(shape, loss.CHUNK) for _ in range(2))
    caps = distill.Caps(student=shape.logit_softcap, teacher=shape.logit_softcap)
    how = {"scale": 1.0, "weight": 0.5, "temperature": 2.0, "caps": caps}
    if compiled:
        given = (logits, taught, targets)
        return work_of(_graph_to_gradients(partial(distill._fused_to_gradients, **how), given))
    with _Counted() as counter, torch.no_grad():
        distill._to_gradients(logits, taught, targets, **how)
    return counter.work


def _chunk(shape: ModelConfig, positions: int) -> tuple[Tensor, Tensor]:
    with torch.device("meta"):
        logits = torch.zeros(positions, shape.vocab_size, dtype=torch.bfloat16)
        return logits, torch.zeros(positions, dtype=torch.long)


def _graph_to_gradients(to_gradients: Callable[..., Tensor], given: tuple[Tensor, ...]) -> fx.Graph:
    graphs, backend = _graphs_and_backend()
    torch.compiler.reset()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.compile(to_gradients, backend=backend, fullgraph=True)(*given)
    torch.compiler.reset()
    (graph,) = graphs
    return graph


def around(shape: ModelConfig, *, rows: int, length: int, compiled: bool = True) -> Work:
    """Count everything around the layers, forward and backward: lookup, rotations, last norm, head and loss.

    `compiled` says whether the loss is.
    """
    if compiled:
        chunk = loss.chunk_rows(shape.vocab_size, on_gpu=True)
        of_a_chunk, chunks = work_of(loss_graph(shape, positions=min(chunk, rows * length))), []

        def counted(logits: Tensor, *_: Any, **__: Any) -> Tensor:
            chunks.append(of_a_chunk)
            return torch.empty(2, device=logits.device)

        with patch.object(loss, "_to_gradients", counted):
            return around(shape, rows=rows, length=length, compiled=False) + sum(chunks, Work())
    with torch.device("meta"):
        model = Decoder(replace(shape, layers=1))
        tokens = torch.zeros(rows, length, dtype=torch.long)
    model.blocks = torch.nn.ModuleList()
    mask = one_document(tokens, dtype=torch.bfloat16, kind="causal")
    with _Counted() as counter:
        states = model(tokens, mask, dtype=torch.bfloat16, layers=range(1, 1)).states.flatten(0, 1)
        head = model.head_weight.to(torch.bfloat16)
        next_token_loss(states, head, tokens.flatten(), scale=1.0)[0].backward()
    return counter.work


def update(shape: ModelConfig) -> Work:
    """Count clipping and AdamW: the kernels from a narrow model with the same weights, the bytes by arithmetic."""
    narrow = replace(
        shape, vocab_size=8, width=2 * shape.heads, head_width=2, mlp_width=2, rope_scaling=type(shape.rope_scaling)()
    )
    model = Decoder(narrow)
    recipe = PretrainRecipe(tokens=8, sequence_length=8, global_batch_tokens=8, optimizer="adamw")
    optimizers = make_optimizers(model, recipe)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    for optimizer in optimizers.values():
        optimizer.step()  # the first makes the means
    with _Counted() as counter, torch.no_grad():
        gradient_norm(model.parameters())
        clip_gradients(model.parameters(), norm=2.0, limit=1.0)  # as of a step whose gradients are clipped
        for optimizer in optimizers.values():
            optimizer.step()
    return Work(fused=counter.work.fused, fused_bytes=UPDATE_BYTES * shape.parameter_count)


def lines_of(step: Step) -> Iterable[str]:
    """Yield the counts of a step as lines of a table."""
    yield "| part | products | attention | other kernels | GB by products | by attention | by others |"
    yield "|---|---|---|---|---|---|---|"
    parts = {
        "a layer, compiled": step.layer,
        f"{step.layers} layers": step.layer * step.layers,
        "lookup, rotations, last norm, head and loss": step.around,
        "clipping and AdamW": step.update,
        "a step": step.whole,
    }
    for name, work in parts.items():
        moved = (work.product_bytes, work.attention_bytes, work.fused_bytes)
        counts = (work.products, work.attention, work.fused)
        yield f"| {name} | {' | '.join(f'{n:,}' for n in counts)} | {' | '.join(f'{n / 1e9:.2f}' for n in moved)} |"
