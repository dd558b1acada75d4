"""The recipe section `doremi`: shape, budget and step size of the two small models that find the mixture."""

from __future__ import annotations

from dataclasses import dataclass

from training.contract.records import RecipeError, check_above_zero


@dataclass(frozen=True, kw_only=True, slots=True)
class DoremiRecipe:
    """Settings for finding the sources' weights with two small models (DoReMi, arXiv 2305.10429).

    The weights are used instead of `mixture.weights`. The reference is trained on `mixture.weights`. The proxy, of the
    same shape and budget, shows which sources have most left to learn.
    """

    tokens: int | None = None  # budget of each model; None: use `mixture.weights` as they are
    # None: inherit from `model`
    width: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    mlp_width: int | None = None
    # None: inherit from `pretrain`
    global_batch_tokens: int | None = None
    learning_rate: float | None = None
    muon_learning_rate: float | None = None
    step_size: float = 1.0  # of the weights' update, the paper's η
    smoothing: float = 1e-3  # share of equal weights mixed in after each step, the paper's c
    seed: int = 1  # for the proxy's initial weights and its order of documents

    def __post_init__(self) -> None:
        check_above_zero(self, "doremi", "tokens", "width", "layers", "heads", "kv_heads", "mlp_width")
        check_above_zero(self, "doremi", "global_batch_tokens", "learning_rate", "muon_learning_rate")
        if self.step_size <= 0 or not 0 <= self.smoothing < 1:
            raise RecipeError(
                f"doremi: step_size={self.step_size} must be above 0, smoothing={self.smoothing} from 0 and below 1"
            )
