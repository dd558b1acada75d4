"""Models whose weights are divided among the processes of a job, and work that these processes share out.

transformers opens a model for FSDP: each process reads its share of every weight, and a layer's weights are gathered
only while the layer is computed. So all processes must make the same number of forward passes, although they have
different rows: a process without rows goes along with passes over one token. Where a process has room for the whole
model, all weights can stay gathered while answers are drawn.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from training.contract.process.fsdp_internals import groups_of, sent_in_bf16
from training.contract.process.memory_release import return_large_blocks
from training.contract.records import RecipeError

GATHERED_BYTES = 1 << 16  # of the smallest gathered weight that is worth giving back

Batch = TypeVar("Batch")
Result = TypeVar("Result")


def is_first() -> bool:
    """Whether this is the process of its job that writes files."""
    return int(os.environ.get("RANK", "0")) == 0


def is_spread(model: Any) -> bool:
    """Whether the weights of a model are divided among processes."""
    return getattr(model, "is_distributed_loading_by_transformers", False)


def options_for(shard: int) -> dict[str, Any]:
    """Return the options with which transformers opens a model that each `shard` processes of this job share.

    There are none if each process has the whole model. Raise RecipeError if the processes are no multiple of `shard`.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes % shard:
        raise RecipeError(
            f"shard={shard}, but this stage runs in {processes} processes (nodes * processes), which is no multiple of"
            " it; set `shard` or `processes` for this stage under `stages` in the profile"
        )
    if shard == 1:
        return {}
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(fsdp_size=shard, dp_replicate_size=processes // shard)}


def prepare(model: Any) -> None:
    """Let a model that was opened with these options hold its shares alone, except during a pass.

    transformers would leave the last norm and the head gathered after a pass without gradients, and an optimizer that
    is made then would train these copies. On a CPU the shares are parts of mapped files, and are copied into memory;
    and the weights that FSDP gathers and frees, one block of memory each, go back to the system.

    Raise RecipeError for tied embeddings that do not divide evenly: FSDP pads the shares of embedding and head apart.
    """
    from torch.distributed.tensor import DTensor

    rows, shard = model.get_input_embeddings().weight.shape[0], model.config.distributed_config.fsdp_size
    if model.get_output_embeddings() is not None and model.config.tie_word_embeddings and rows % shard:
        raise RecipeError(
            f"shard={shard}: the model's tied embeddings have {rows} rows, which is no multiple of it; set a `shard`"
            " that divides them for this stage under `stages` in the profile"
        )
    model.set_reshard_after_forward(True)
    for weight in model.parameters():
        if isinstance(weight, DTensor) and weight.device.type == "cpu":
            weight._local_tensor = weight._local_tensor.clone()
    if model.device.type == "cpu":
        return_large_blocks(GATHERED_BYTES)


def shared_out(
    batches: Iterable[Batch],
    made: Callable[[Batch], Result],
    *,
    model: Any,
    before_training: bool = False,
    gathers: bool = False,
) -> Iterator[tuple[Batch, Result]]:
    """Yield every batch with its result, in every process of the job; each process computes every n-th batch.

    `made` computes a batch by the model: in torch's inference mode or, if a training follows, without gradients. FSDP
    keeps tensors between passes, and refuses those of the other mode. The batches do not depend on the number of
    processes, and so no result does. `gathers`: whether the weights of a spread model stay gathered for all batches.
    """
    if not dist.is_initialized():
        yield from ((batch, made(batch)) for batch in batches)
        return
    listed, rank, size = list(batches), dist.get_rank(), dist.get_world_size()
    mode = torch.no_grad() if before_training else torch.inference_mode()
    with gathered(model, mode) if gathers else in_step(model, mode):
        own = {number: made(listed[number]) for number in range(rank, len(listed), size)}
    told: list[dict[int, Result]] = [{}] * size
    dist.all_gather_object(told, own)
    results = {number: result for some in told for number, result in some.items()}
    yield from ((batch, results[number]) for number, batch in enumerate(listed))


@contextmanager
def in_step(model: Any, mode: AbstractContextManager[None]) -> Iterator[None]:
    """Let each process make its own forward passes of a spread model; at the end, wait until all have made theirs.

    The passes for which it waits are made in `mode`. A process that raises an error does not wait: the launcher ends
    the others.
    """
    if not is_spread(model):
        yield
        return

    def announce(*_: Any) -> None:
        _passes_in_any(model, mine=True)

    hook = model.register_forward_pre_hook(announce, prepend=True)
    try:
        yield
    finally:
        hook.remove()
    with mode:
        while _passes_in_any(model, mine=False):
            model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=model.device), use_cache=False)


@contextmanager
def gathered(model: Any, mode: AbstractContextManager[None], *, bf16: bool = False) -> Iterator[None]:
    """Keep all weights of a spread model gathered, so that its passes wait for no other process.

    All processes gather them together, in `mode`, and each gives them back by itself. With `bf16`, for passes that
    autocast makes in it, weights of linear layers are sent and kept in bf16: autocast would make the same numbers of
    them in each pass.
    """
    if not is_spread(model):
        yield
        return
    modules = [one for one in model.modules() if isinstance(one, FSDPModule)]
    groups, root = groups_of(modules), modules[0]
    with sent_in_bf16(groups, _is_of_products) if bf16 else nullcontext():
        root.set_reshard_after_forward(False)
        try:
            with mode:
                for group in groups:
                    group.unshard()
                    group.wait_for_unshard()
            yield
        finally:
            root.set_reshard_after_forward(True)
            root.reset_iter_state()


def _is_of_products(module: torch.nn.Module, name: str) -> bool:
    """Whether a weight takes part in the products of a linear layer alone."""
    # FSDP gives some modules a class of their own
    return name == "weight" and type(module).forward is torch.nn.Linear.forward


def _passes_in_any(model: Any, *, mine: bool) -> bool:
    """Return whether any process makes a pass for rows of its own now. All processes call this before each pass."""
    passes = torch.tensor(int(mine), device=model.device)
    dist.all_reduce(passes, dist.ReduceOp.MAX)
    return bool(passes)
