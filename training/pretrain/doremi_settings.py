"""The section `doremi`."""

from __future__ import annotations

from dataclasses import dataclass

from training.records import RecipeError, formerly


@dataclass(frozen=True, kw_only=True, slots=True)
class DoremiRecipe:
    """Weights of the sources found by two small models, in place of `mixture.weights` (DoReMi, arXiv 2305.10429).

    The reference is trained on `mixture.weights`; the proxy, as large and as long, shows where there is most to gain.
    """

    tokens: int = 0  # of either model; 0: the recipe's weights are taken as they are
    # None: inherit from `model`
    width: int | None = formerly(0)
    layers: int | None = formerly(0)
    heads: int | None = formerly(0)
    kv_heads: int | None = formerly(0)
    mlp_width: int | None = formerly(0)
    # None: inherit from `pretrain`
    global_batch_tokens: int | None = formerly(0)
    learning_rate: float | None = formerly(0.0)
    muon_learning_rate: float | None = formerly(0.0)
    step_size: float = 1.0  # of the weights, the paper's η
    smoothing: float = 1e-3  # towards equal weights, the paper's c
    seed: int = 1  # of the proxy's weights and of its order of documents

    def __post_init__(self) -> None:
        if self.step_size <= 0 or not 0 <= self.smoothing < 1:
            raise RecipeError(
                f"doremi: step_size={self.step_size} must be above 0, smoothing={self.smoothing} from 0 and below 1"
            )
