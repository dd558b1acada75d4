"""Optimizers, the learning-rate schedule, and means of the weights.

AdamW, Adafactor (arXiv 1804.04235) and SGD are torch's; its SGD adds weight decay to the gradient, the others take it
from the weight. Muon orthogonalizes the update of each weight matrix; embeddings, routers, head and norms are AdamW's.
Muon is written here although torch has one: matrices of one shape go through one batched product, and fused
projections are taken apart first, so that what is orthogonalized is what transformers calls a matrix. On a single plain
matrix it equals `torch.optim.Muon` (tested).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from training.pretrain.models.decoder import MLP, Attention, Decoder
from training.pretrain.models.experts import Experts
from training.pretrain.settings import AverageRecipe, PretrainRecipe

if TYPE_CHECKING:
    from training.pretrain.mesh import Pieces

Parts = Callable[[Tensor], Sequence[Tensor]]


def learning_rate_factor(
    step: int,
    *,
    steps: int,
    schedule: Literal["cosine", "linear", "wsd"],
    warmup_fraction: float,
    decay_fraction: float,
    final_fraction: float,
) -> float:
    """What the peak learning rate is multiplied by at `step` (from 0); a pure function, so resuming needs no state.

    Linear warmup reaches 1 at the last warmup step. `cosine` and `linear` fall from there to `final_fraction` at the
    last step; `wsd` stays at 1 and falls linearly over the last `decay_fraction` of all steps (arXiv 2404.06395).
    """
    warmup = round(warmup_fraction * steps)
    if step < warmup:
        return (step + 1) / warmup
    decay = max(1, round(decay_fraction * steps)) if schedule == "wsd" else max(1, steps - warmup)
    done = max(0, step + 1 - (steps - decay)) / decay  # above 0 to 1 over the fall
    if schedule == "cosine":
        return final_fraction + (1 - final_fraction) * (1 + cos(pi * done)) / 2
    return 1 - (1 - final_fraction) * done


def scheduled_factor(step: int, *, steps: int, recipe: PretrainRecipe) -> float:
    """`learning_rate_factor` by the recipe's schedule."""
    return learning_rate_factor(
        step,
        steps=steps,
        schedule=recipe.schedule,
        warmup_fraction=recipe.warmup_fraction,
        decay_fraction=recipe.decay_fraction,
        final_fraction=recipe.final_learning_rate_fraction,
    )


def orthogonalize(matrices: Tensor, *, steps: int = 5) -> Tensor:
    """Matrices `[N, R, C]` with R ≤ C, their singular values moved close to 1 (roughly 0.7 to 1.2).

    Newton-Schulz iteration in bf16 with the quintic coefficients of Keller Jordan's Muon, as in torch.optim.Muon.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalized, with decoupled weight decay.

    `parts` says into which matrices a parameter falls. Each part's step is scaled by sqrt(max(1, rows / columns)), the
    original adjustment. Where `pieces` of matrices lie in several processes each of these joins and orthogonalizes them
    all, one parameter after the other, and takes its part.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[Tensor, Parts]],
        *,
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        pieces: Pieces | None = None,
    ) -> None:
        pairs, self._pieces = list(parameters), pieces
        super().__init__(
            [parameter for parameter, _ in pairs], {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        )
        self._parts = dict(pairs)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            given = [p for p in group["params"] if p.grad is not None]
            # Together they share batches; one at a time no more than one is ever whole.
            for some in [given] if self._pieces is None else [[p] for p in given]:
                updates = {p: self._matrix(p, self._momentum(p, group["momentum"])) for p in some}
                _orthogonalize_in_place([part for p, update in updates.items() for part in self._parts[p](update)])
                for p, update in updates.items():
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(self._own(p, update), alpha=-group["lr"])

    def _matrix(self, parameter: Tensor, update: Tensor) -> Tensor:
        return update if self._pieces is None else self._pieces.matrix(self._pieces.of(parameter), update)

    def _own(self, parameter: Tensor, update: Tensor) -> Tensor:
        return update if self._pieces is None else self._pieces.part(self._pieces.of(parameter), update)

    def _momentum(self, parameter: Tensor, momentum: float) -> Tensor:
        """The Nesterov update before it is orthogonalized; advances the buffer."""
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = state["momentum_buffer"]
        buffer.lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(buffer, momentum)


def _orthogonalize_in_place(parts: list[Tensor]) -> None:
    """Replace each part (any view `[..., C]`, seen as a matrix `[R, C]`) by its orthogonalized, scaled self.

    Tall matrices are turned, so that all of one shape up to turning share a batch.
    """
    batches: dict[tuple[int, int], list[tuple[Tensor, bool]]] = {}
    for part in parts:
        rows, columns = part.numel() // part.shape[-1], part.shape[-1]
        batches.setdefault((min(rows, columns), max(rows, columns)), []).append((part, rows > columns))
    for batch in batches.values():
        stacked = torch.stack([_as_matrix(part, is_tall) for part, is_tall in batch])
        for (part, is_tall), done in zip(batch, orthogonalize(stacked), strict=True):
            rows, columns = part.numel() // part.shape[-1], part.shape[-1]
            part.copy_((done.t() if is_tall else done).reshape(part.shape)).mul_(max(1.0, rows / columns) ** 0.5)


def _as_matrix(part: Tensor, is_tall: bool) -> Tensor:
    matrix = part.reshape(-1, part.shape[-1])
    return matrix.t() if is_tall else matrix


def whole(weight: Tensor) -> Sequence[Tensor]:
    """A parameter that is one matrix."""
    return (weight,)


def each(weight: Tensor) -> Sequence[Tensor]:
    """The matrices of experts, one after the other."""
    return weight.unbind()


@dataclass(frozen=True, slots=True)
class QueryKeyValue:
    """The query, key and value matrices inside the fused projection, as views."""

    kv_heads: int
    group: int

    def __call__(self, weight: Tensor) -> Sequence[Tensor]:
        heads = weight.view(self.kv_heads, self.group + 2, -1, weight.shape[-1])
        return heads[:, : self.group], heads[:, self.group], heads[:, self.group + 1]


def matrices_of(model: Decoder) -> list[tuple[Tensor, Parts]]:
    """The weights that Muon trains, and the matrices in each."""
    found: list[tuple[Tensor, Parts]] = []
    for module in model.modules():
        if isinstance(module, Attention):
            found += [
                (module.query_key_value, QueryKeyValue(module.config.kv_heads, module.config.group)),
                (module.output, whole),
            ]
        elif isinstance(module, MLP):
            found += [(weight, whole) for weight in (module.gate, module.up, module.down) if weight is not None]
        elif isinstance(module, Experts):
            found += [(weight, each) for weight in (module.gate, module.up, module.down) if weight is not None]
            shared = (f"shared_{part}" for part in ("gate", "up", "down"))
            found += [(weight, whole) for name in shared if (weight := getattr(module, name, None)) is not None]
    return found


class Lion(torch.optim.Optimizer):
    """The sign of an interpolated momentum, with decoupled weight decay (arXiv 2302.06675, algorithm 2)."""

    def __init__(self, parameters: Iterable[Any], *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                buffer = state["momentum_buffer"]
                direction = buffer.lerp(parameter.grad, 1 - beta1).sign_()
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(direction, alpha=-group["lr"])
                buffer.lerp_(parameter.grad, 1 - beta2)


class Average(torch.optim.Optimizer):
    """An optimizer that changes nothing: it keeps a mean of each weight, and is saved and resumed like the others."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"share": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Move the mean towards the present weights by the group's `share`; the first time it becomes them."""
        for group in self.param_groups:
            for parameter in group["params"] if group["share"] else ():
                if parameter in self.state:
                    self.state[parameter]["mean"].lerp_(parameter, group["share"])
                else:
                    self.state[parameter]["mean"] = parameter.detach().clone()

    @torch.no_grad()
    def apply(self) -> None:
        """Put the means in the place of the weights."""
        for parameter, state in self.state.items():
            parameter.copy_(state["mean"])


def average_share(step: int, *, steps: int, recipe: AverageRecipe) -> float:
    """How far the mean moves towards the weights after `step` (from 0): 0 for a step that does not count."""
    if recipe.kind == "ema":
        return 1 - recipe.decay
    until_last = steps - 1 - step
    counted = max(1, round(recipe.fraction * steps))
    if recipe.kind == "none" or until_last >= counted or until_last % recipe.every:
        return 0.0
    total, left = -(-counted // recipe.every), until_last // recipe.every
    return 1 / (total - left)


def make_optimizers(
    model: Decoder, recipe: PretrainRecipe, pieces: Pieces | None = None
) -> dict[str, torch.optim.Optimizer]:
    """The optimizers by name, in the order in which they step; `pieces` are what they update if the model is spread."""

    def own(parameter: Tensor) -> Tensor:
        return parameter if pieces is None else pieces.of(parameter).own

    made: dict[str, torch.optim.Optimizer] = {}
    muon = matrices_of(model) if recipe.optimizer == "muon" else []
    if muon:
        made["muon"] = Muon(
            [(own(parameter), parts) for parameter, parts in muon],
            lr=recipe.muon_learning_rate,
            weight_decay=recipe.weight_decay,
            pieces=pieces if pieces is not None and pieces.world.is_split else None,
        )
    taken = {id(parameter) for parameter, _ in muon}
    name = "adamw" if recipe.optimizer == "muon" else recipe.optimizer
    groups = [
        {**group, "params": [own(parameter) for parameter in group["params"]]}
        for group in decay_groups(model, recipe, taken)
    ]
    made[name] = _optimizer(name, groups, recipe)
    if recipe.average.kind != "none":
        made["average"] = Average([own(parameter) for parameter in model.parameters()])
    return made


def decay_groups(model: Decoder, recipe: PretrainRecipe, taken: Collection[int] = ()) -> list[dict[str, Any]]:
    """Parameters that are not `taken` (by `id`): those that decay, then norm gains and what else does not."""
    rest = [(name, parameter) for name, parameter in model.named_parameters() if id(parameter) not in taken]
    kept = () if recipe.decay_embeddings else ("embedding", "head")
    decaying = [parameter for name, parameter in rest if parameter.dim() > 1 and name not in kept]
    others = [parameter for name, parameter in rest if parameter.dim() <= 1 or name in kept]
    groups = [{"params": decaying, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _optimizer(name: str, groups: list[dict[str, Any]], recipe: PretrainRecipe) -> torch.optim.Optimizer:
    rate, betas = recipe.learning_rate, (recipe.beta1, recipe.beta2)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=rate, betas=betas, eps=1e-8, fused=True)
    if name == "adafactor":
        return torch.optim.Adafactor(groups, lr=rate)
    if name == "lion":
        return Lion(groups, lr=rate, betas=betas)
    return torch.optim.SGD(groups, lr=rate, momentum=recipe.momentum)


def set_learning_rates(optimizers: dict[str, torch.optim.Optimizer], recipe: PretrainRecipe, factor: float) -> None:
    """Give every group its peak rate times `factor`."""
    for name, optimizer in optimizers.items():
        for group in optimizer.param_groups:
            group["lr"] = factor * (recipe.muon_learning_rate if name == "muon" else recipe.learning_rate)


def set_average_share(optimizers: dict[str, torch.optim.Optimizer], share: float) -> None:
    """Tell the optimizer that averages, if there is one, how far to go at this step."""
    if "average" in optimizers:
        optimizers["average"].param_groups[0]["share"] = share


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Euclidean norm over all gradients together; fp32 scalar."""
    return torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(p.grad) for p in parameters if p.grad is not None])
    )


def clip_gradients(parameters: Iterable[Tensor], *, norm: float, limit: float) -> None:
    """Scale every gradient so that their norm together, now `norm`, is at most `limit`. A limit of 0 leaves them."""
    if limit and norm > limit:
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], limit / norm)
