"""Muon: momentum with an orthogonalized update for the weight matrices, and AdamW for the other weights.

torch has a Muon too. This one puts matrices of one shape through one batched product, and divides fused projections
first, so that it orthogonalizes the same matrices as transformers has. On a single plain matrix it equals
`torch.optim.Muon` (tested). AdamW updates embeddings, routers, head and norms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from training.contract.parts.outside import NoSettings
from training.pretrain.optim.gradient import gradient_of
from training.pretrain.optim.optimizer import Optimizer
from training.pretrain.optim.optimizers import adamw
from training.pretrain.optim.settings import UpdateRecipe

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from training.pretrain.optim.stepped import States, Stepped
    from training.pretrain.optim.weights import Parts, Weights
    from training.pretrain.parallel.mesh import Pieces

MOMENTUM = 0.95


def make(weights: Weights, recipe: UpdateRecipe, settings: NoSettings) -> Mapping[str, torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers, and AdamW for the other weights."""
    matrices = weights.matrices()
    rest = adamw.make(weights.without(parameter for parameter, _ in matrices), recipe, settings)
    if not matrices:
        return rest
    made = muon(
        [(weights.own(parameter), parts) for parameter, parts in matrices],
        lr=recipe.muon_learning_rate,
        weight_decay=recipe.weight_decay,
        pieces=weights.pieces if weights.pieces is not None and weights.pieces.world.is_split else None,
    )
    return {"muon": made, **rest}


def muon(
    parameters: Iterable[tuple[Tensor, Parts]], *, lr: float, weight_decay: float = 0.0, pieces: Pieces | None = None
) -> Stepped:
    """Return Muon for parameters, each given with a function that returns the parameter's matrices.

    If `pieces` of the matrices are in several processes, each process along `shard` joins and orthogonalizes its share
    of the matrices, one parameter at a time, and each applies its own part of every update.
    """
    from training.pretrain.optim.stepped import Stepped

    parts_of = dict(parameters)
    step = partial(update, parts_of=parts_of, pieces=pieces)
    return Stepped(list(parts_of), step, lr=lr, weight_decay=weight_decay)


def update(
    weights: list[Tensor],
    states: States,
    group: dict[str, Any],
    *,
    parts_of: dict[Tensor, Parts],
    pieces: Pieces | None,
) -> None:
    """Update the weights and optimizer states of a group in place, by one step of Muon.

    Each matrix's update is scaled by sqrt(max(1, rows / columns)), as in the original Muon.
    """
    moves = alone if pieces is None else partial(shared, pieces=pieces)
    for weight, move in moves(weights, states, parts_of=parts_of):
        weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(move, alpha=-group["lr"])


def alone(weights: list[Tensor], states: States, *, parts_of: dict[Tensor, Parts]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each weight with its orthogonalized update. All weights share batches."""
    moves = {weight: nesterov(weight, states[weight]) for weight in weights}
    orthogonalize_in_place([part for weight, move in moves.items() for part in parts_of[weight](move)])
    yield from moves.items()


def shared(
    weights: list[Tensor], states: States, *, parts_of: dict[Tensor, Parts], pieces: Pieces
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each weight's part with its part of the orthogonalized update.

    The processes along `shard` take as many weights at a time as they are, of similar sizes: each joins one of them,
    orthogonalizes it, and sends the others their parts.
    """
    at_once = pieces.world.length("shard")
    for some in batched(sorted(weights, key=lambda one: -prod(pieces.of(one).shape)), at_once):
        here = [pieces.of(weight) for weight in some]
        own = pieces.to_owners(here, [nesterov(weight, states[weight]) for weight in some])
        if own is not None:
            orthogonalize_in_place(list(parts_of[some[pieces.world.place("shard")]](own)))
        yield from zip(some, pieces.from_owners(here, own), strict=True)


def batched(weights: list[Tensor], size: int) -> Iterator[list[Tensor]]:
    """Yield the weights in lists of `size`; the last may be shorter."""
    yield from (weights[start : start + size] for start in range(0, len(weights), size))


def nesterov(weight: Tensor, state: dict[str, Tensor]) -> Tensor:
    """Return the update before it is orthogonalized, and advance the momentum in `state`."""
    if not state:
        state["momentum_buffer"] = weight.new_zeros(weight.shape)
    buffer = state["momentum_buffer"]
    gradient = gradient_of(weight)
    buffer.lerp_(gradient, 1 - MOMENTUM)
    return gradient.lerp(buffer, MOMENTUM)


def orthogonalize_in_place(parts: list[Tensor]) -> None:
    """Replace each part (a view `[..., C]`, taken as a matrix `[R, C]`) by its orthogonalized and scaled form.

    Tall matrices are transposed, so that matrices of one shape and of the transposed shape share a batch.
    """
    from torch import stack

    batches: dict[tuple[int, int], list[tuple[Tensor, bool]]] = {}
    for part in parts:
        rows, columns = part.numel() // part.shape[-1], part.shape[-1]
        batches.setdefault((min(rows, columns), max(rows, columns)), []).append((part, rows > columns))
    for batch in batches.values():
        stacked = stack([_as_matrix(part, is_tall) for part, is_tall in batch])
        for (part, is_tall), done in zip(batch, orthogonalize(stacked), strict=True):
            rows, columns = part.numel() // part.shape[-1], part.shape[-1]
            part.copy_((done.t() if is_tall else done).reshape(part.shape)).mul_(max(1.0, rows / columns) ** 0.5)


def _as_matrix(part: Tensor, is_tall: bool) -> Tensor:
    matrix = part.reshape(-1, part.shape[-1])
    return matrix.t() if is_tall else matrix


def orthogonalize(matrices: Tensor, *, steps: int = 5) -> Tensor:
    """Return the matrices `[N, R, C]`, R ≤ C, with their singular values moved close to 1 (roughly 0.7 to 1.2).

    Newton-Schulz iteration in bf16 with the quintic coefficients of Keller Jordan's Muon, as in torch.optim.Muon; in
    fp32 on a processor without fast products in bf16.
    """
    from training.contract.process.precision import lacks_bf16

    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.float() if lacks_bf16(matrices.device) else matrices.bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = x.baddbmm(gram.baddbmm(gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def numbers(name: str, shape: tuple[int, ...]) -> int:
    """Return how many numbers the optimizer stores for a weight: one per number of a matrix, two with AdamW."""
    is_matrix = len(shape) > 1 and not name.endswith(("embedding", "head", "router"))
    return prod(shape) if is_matrix else adamw.OPTIMIZER.numbers(name, shape)


OPTIMIZER = Optimizer(make=make, numbers=numbers)
