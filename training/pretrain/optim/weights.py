"""The weights that an optimizer updates, in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from training.pretrain.models.decoder import MLP, Attention, BaseAttention, Decoder
from training.pretrain.models.experts import Experts
from training.pretrain.optim.settings import UpdateRecipe

if TYPE_CHECKING:
    from training.pretrain.parallel.mesh import Pieces

Parts = Callable[[Tensor], Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameters of a model, or this process's `pieces` of them if the model is spread over processes."""

    model: Decoder
    pieces: Pieces | None = None
    taken: frozenset[int] = frozenset()  # parameters, by `id`, that another optimizer updates

    def own(self, parameter: Tensor) -> Tensor:
        """Return the tensor of a parameter that this process updates.

        It is this process's own part if the model is spread over processes.
        """
        return parameter if self.pieces is None else self.pieces.of(parameter).own

    def without(self, parameters: Iterable[Tensor]) -> Weights:
        """Return these weights without the given parameters."""
        return replace(self, taken=self.taken.union(map(id, parameters)))

    def groups(self, recipe: UpdateRecipe) -> list[dict[str, Any]]:
        """Return groups for a torch optimizer: parameters with weight decay, then norm gains and others without."""
        rest = [(name, one) for name, one in self.model.named_parameters() if id(one) not in self.taken]
        kept = () if recipe.decay_embeddings else ("embedding", "head")
        decaying = [self.own(parameter) for name, parameter in rest if parameter.dim() > 1 and name not in kept]
        others = [self.own(parameter) for name, parameter in rest if parameter.dim() <= 1 or name in kept]
        groups = [{"params": decaying, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    def matrices(self) -> list[tuple[Tensor, Parts]]:
        """Return the layers' parameters that consist of matrices, each with a function that returns its matrices."""
        return [one for module in self.model.modules() for one in _matrices_in(module)]


def _matrices_in(module: Any) -> list[tuple[Tensor, Parts]]:
    if isinstance(module, Attention):
        heads = partial(query_key_value, kv_heads=module.config.kv_heads, group=module.config.group)
        return [(module.query_key_value, heads), (module.output, whole)]
    if isinstance(module, BaseAttention):
        return [(weight, whole) for weight in module.parameters() if weight.dim() > 1]
    if isinstance(module, MLP):
        return [(weight, whole) for weight in (module.gate, module.up, module.down) if weight is not None]
    if isinstance(module, Experts):
        routed = [(weight, each) for weight in (module.gate, module.up, module.down) if weight is not None]
        shared = (getattr(module, f"shared_{part}", None) for part in ("gate", "up", "down"))
        return [*routed, *((weight, whole) for weight in shared if weight is not None)]
    return []


def whole(weight: Tensor) -> Sequence[Tensor]:
    """Return a parameter that is a single matrix, as the one matrix to update."""
    return (weight,)


def each(weight: Tensor) -> Sequence[Tensor]:
    """Return the matrix of each expert as a view of the parameter `[experts, …, …]`."""
    return weight.unbind()


def query_key_value(weight: Tensor, *, kv_heads: int, group: int) -> Sequence[Tensor]:
    """Return the query, key and value matrices in a fused projection, as views."""
    heads = weight.view(kv_heads, group + 2, -1, weight.shape[-1])
    return heads[:, :group], heads[:, group], heads[:, group + 1]
