"""The one place that uses what torch's FSDP keeps private, which any release may move, rename or change.

FSDP has one number format for a whole group of weights, chosen when the group is made. What is below has no public
counterpart in the release `READ_FROM`, from which its use was read; `WHAT_BREAKS` says what stops working without it. A
test holds that release against the installed one, and that no other module of ours uses a private part of FSDP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

READ_FROM = "2.13"  # release of torch

WHAT_BREAKS = {
    "FSDPParamGroup send_in_fp32": "routers of experts are sent in bf16, or compiled blocks break at their hooks",
    "groups_of": "answers are not drawn with gathered weights",
    "sent_in_bf16": "gathered weights of linear layers take twice the memory and messages under autocast",
}
"""Names of this module, separated by blanks, and what does not work if torch changes what they use."""


def send_in_fp32(block: FSDPModule, weights: list[nn.Parameter]) -> None:
    """Let FSDP divide weights that it ignored in a block too, and send them with the block, in messages of their own.

    torch makes several groups of a block only for several meshes. A module of its own for a router would have hooks
    within the block, at which its compiled form would break.
    """
    state = block._get_fsdp_state()
    [rest] = state._fsdp_param_groups
    state._fsdp_param_groups.append(
        FSDPParamGroup(
            params=weights,
            modules=rest.modules,
            mesh_info=rest.mesh_info,
            post_forward_mesh_info=rest.post_forward_mesh_info,
            device=rest.device,
            shard_placement_fn=None,
            mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False),
            offload_policy=rest.offload_policy,
        )
    )


def groups_of(modules: Sequence[FSDPModule]) -> list[FSDPParamGroup]:
    """Return the groups of weights of a model's modules, the root first, with the formats of its first pass."""
    modules[0]._get_fsdp_state()._lazy_init()  # else the first pass would set the formats anew
    states = dict.fromkeys(one._get_fsdp_state() for one in modules)
    return [group for state in states for group in state._fsdp_param_groups]


@contextmanager
def sent_in_bf16(groups: Sequence[FSDPParamGroup], is_chosen: Callable[[nn.Module, str], bool]) -> Iterator[None]:
    """Send and keep some weights in bf16 for a while: those in fp32 that one module alone has and that are chosen.

    `is_chosen` is asked for a module and the name of its weight.
    """
    cast = [one for group in groups for one in group.fsdp_params if _is_castable(one, is_chosen)]
    kept = [(one, one.all_gather_outputs, one.__dict__.pop("_unsharded_param", None)) for one in cast]
    for one in cast:
        one.param_dtype, one.all_gather_outputs = torch.bfloat16, []
    try:
        yield
    finally:
        for one, outputs, weight in kept:
            one.param_dtype, one.all_gather_outputs = None, outputs
            del one._unsharded_param
            if weight is not None:
                one._unsharded_param = weight


def _is_castable(weight: Any, is_chosen: Callable[[nn.Module, str], bool]) -> bool:
    of = weight._module_info
    is_alone = not of.shared_modules and weight.sharded_param.dtype is torch.float32
    return is_alone and is_chosen(of.module, of.param_name)
