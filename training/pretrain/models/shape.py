"""The shape of a decoder: its settings in a recipe, its parameter counts and operations.

Standard library only: reading a recipe needs it, and counting a 70B model needs no memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from importlib import import_module
from math import log, prod
from typing import Any, Literal, TypeVar

from training.contract.parts.outside import OutsidePart, PartsOf
from training.contract.records import RecipeError, check_above_zero

T = TypeVar("T")


def _families() -> Any:
    """Return the model families, which are written in terms of this module's records."""
    return import_module("training.pretrain.models.families")


@dataclass(frozen=True, kw_only=True, slots=True)
class RotaryScaling:
    """The scaling of rotary positions to texts longer than those that a model was first trained on.

    `linear` divides every angle by `factor` (arXiv 2306.15595); `ntk` raises the base so that the slowest angle is
    divided by it (NTK-aware, the static form); `yarn` divides slow angles, keeps fast ones and sharpens attention
    (arXiv 2309.00071); `llama3` is Llama 3.1's ramp between dividing and keeping (arXiv 2407.21783). `original_length`
    is in positions.
    """

    kind: Literal["none", "linear", "ntk", "yarn", "llama3"] = "none"
    factor: float = 1.0
    original_length: int = 0  # yarn, llama3: the length before stretching
    beta_fast: float = 32.0  # yarn: an angle with more turns than this over the original length is kept
    beta_slow: float = 1.0  # yarn: an angle with fewer turns is divided
    low_frequency_factor: float = 1.0  # llama3: below this original_length / wavelength an angle is divided
    high_frequency_factor: float = 4.0  # llama3: above this an angle is kept

    def __post_init__(self) -> None:
        if self.factor < 1 or (self.kind == "none" and self.factor != 1):
            raise RecipeError(
                f"model.rope_scaling: kind={self.kind!r} with factor={self.factor}; at least 1, and 1 without a kind"
            )
        if self.kind in ("yarn", "llama3") and self.original_length < 1:
            raise RecipeError(f"model.rope_scaling.original_length={self.original_length}; {self.kind} needs it")
        if self.beta_slow >= self.beta_fast or self.low_frequency_factor >= self.high_frequency_factor:
            raise RecipeError(
                "model.rope_scaling: beta_slow must be below beta_fast, low_frequency_factor below"
                " high_frequency_factor"
            )

    def base(self, theta: float, *, head_width: int) -> float:
        """Return the base of the angles: for `ntk` raised, so that the slowest pair turns `factor` times slower.

        The fastest pair is unchanged. For other kinds it is `theta`.
        """
        raised = self.kind == "ntk" and head_width > 2
        return theta * self.factor ** (head_width / (head_width - 2)) if raised else theta

    @property
    def attention_factor(self) -> float:
        """The factor of cosine and sine: above 1 for yarn, which sharpens attention."""
        return 0.1 * log(self.factor) + 1.0 if self.kind == "yarn" else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertLayers:
    """Mixture of experts in place of the MLP: every token is sent to the best `active` of `count` experts.

    No token is dropped. The router's weights are a softmax over all experts, as in Qwen3-MoE.

    Balancing: `auxiliary` adds `balance_weight` times the load-balancing loss of Switch Transformers (arXiv
    2101.03961), computed for each row of the batch. `bias` adds to each expert's score a bias that affects only the
    choice and moves by `balance_weight` in each step against the load (arXiv 2408.15664).
    """

    count: int = 0  # 0: every layer has a plain MLP
    active: int = 2
    width: int = 0  # of one expert's MLP
    shared: int = 0  # experts of the same width that every token passes through (arXiv 2401.06066)
    first_layer: int = 0  # layers before it keep a plain MLP
    balancing: Literal["none", "auxiliary", "bias"] = "auxiliary"
    balance_weight: float = 0.01
    normalize_weights: bool = True  # the weights of the active experts sum to 1

    def __post_init__(self) -> None:
        if self.count and not (1 <= self.active <= self.count and self.width >= 1 and self.shared >= 0):
            raise RecipeError(
                f"model.experts: count={self.count}, active={self.active} (1 to count), width={self.width} (at least"
                f" 1), shared={self.shared} (not negative)"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadWidths:
    """The widths of all heads of a layer's attention together, for one token."""

    queries: int
    keys: int
    values: int
    mixed: int  # of the mixed values, which the output matrix takes


_ABSENT = {"head_width": 0, "window": 0, "logit_softcap": 0.0, "family": ""}  # in a `ModelConfig` for absent fields


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRecipe:
    """The recipe section `model`: the decoder's shape. The vocabulary is the tokenizer's.

    In a recipe file, `preset` may select a known shape (`training/pretrain/models/presets.py`). Its fields are filled
    in while the file is read; fields that the file gives take precedence.
    """

    width: int
    layers: int
    heads: int
    kv_heads: int
    mlp_width: int
    max_length: int
    head_width: int | None = None  # None: width / heads
    rope_theta: float = 10_000.0
    rope_scaling: RotaryScaling = field(default_factory=RotaryScaling)
    norm_epsilon: float = 1e-5
    qk_norm: bool = False
    tied_embeddings: bool = True
    activation: Literal["swiglu", "relu2"] = "swiglu"
    window: int | None = None  # positions that a windowed layer looks back, itself included; None: no windows
    window_pattern: tuple[Literal["full", "window"], ...] = ("full",)  # repeated over the layers
    logit_softcap: float | None = None  # logits become cap · tanh(logits / cap); None: unchanged
    experts: ExpertLayers = field(default_factory=ExpertLayers)
    family: str | None = None  # with layers of its own, of models/families or from outside; None: by the shape
    # Settings of the family by its name; of one from outside also `from`.
    parts: dict[str, dict[str, Any]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_above_zero(self, "model", "head_width", "window", "logit_softcap")
        _ = self.shape(vocab_size=1)  # checks itself

    def outside_parts(self) -> dict[str, OutsidePart]:
        """Return the model family by name if it is not Pedigree's."""
        return _families().outside_family(self.family or "", self.parts)

    def shape(self, *, vocab_size: int) -> ModelConfig:
        """Return the decoder's shape with a vocabulary size. Raise RecipeError if its fields do not fit together."""
        given: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(ModelRecipe)}
        given |= {name: number for name, number in _ABSENT.items() if given[name] is None}
        return ModelConfig(**given, vocab_size=vocab_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig(ModelRecipe):
    """The shape of a decoder with a vocabulary; fields that may be null in a recipe have their final numbers here."""

    vocab_size: int
    head_width: int = 0  # E, width of one head; 0 is replaced by width / heads
    window: int = 0  # 0: no windows
    logit_softcap: float = 0.0  # 0: logits are not capped
    family: str = ""  # empty: the one of Pedigree's families to which the shape belongs

    def __post_init__(self) -> None:
        self._check_sizes()
        if not self.head_width:
            object.__setattr__(self, "head_width", self.width // self.heads)
        self._check_shape()

    def _check_sizes(self) -> None:
        for name in ("vocab_size", "width", "layers", "heads", "kv_heads", "mlp_width", "max_length"):
            if getattr(self, name) < 1:
                raise RecipeError(f"model: {name}={getattr(self, name)}; it must be at least 1")
        if not self.head_width and self.width % self.heads:
            raise RecipeError(f"model: width={self.width} must be a multiple of heads={self.heads} without head_width")

    def _check_shape(self) -> None:
        if self.head_width < 2 or self.head_width % 2:
            raise RecipeError(f"model: head_width={self.head_width}; it must be even, and at least 2")
        if self.heads % self.kv_heads:
            raise RecipeError(f"model: heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")
        if not self.window_pattern or (self.window > 0) != ("window" in self.window_pattern) or self.window < 0:
            raise RecipeError(
                f"model: window={self.window} with window_pattern={list(self.window_pattern)}; a window needs a layer"
                " that has it, and such a layer a window of at least 1"
            )
        if self.logit_softcap < 0:
            raise RecipeError(f"model: logit_softcap={self.logit_softcap}; null for none, or a positive number")
        if self.family or self.parts:
            _families().check_family(self)

    def section(self) -> ModelRecipe:
        """Return the section `model` of a recipe that gives this shape."""
        given: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(ModelRecipe)}
        given |= {name: None for name in _ABSENT if not given[name]}
        return ModelRecipe(**given)

    @property
    def own_layers(self) -> Any:
        """The layers (`Layers`) of the model family; None if they are built like those of Llama and Qwen3."""
        return _families().find_family(self).layers if self.family else None

    def settings_of(self, cls: type[T]) -> T:
        """Return what `parts` sets for the model family, read as a settings record of the class `cls`."""
        return PartsOf("model", self.parts).settings(self.family, cls)

    @property
    def group(self) -> int:
        """The number G of query heads that share one key-value head."""
        return self.heads // self.kv_heads

    @property
    def attention_width(self) -> int:
        """The width H · E of all attention heads together."""
        return self.heads * self.head_width

    @property
    def head_widths(self) -> HeadWidths:
        """The widths that attention multiplies."""
        own = self.own_layers
        if own is not None and own.head_widths is not None:
            return own.head_widths(self)
        keys = self.kv_heads * self.head_width
        return HeadWidths(queries=self.attention_width, keys=keys, values=keys, mixed=self.attention_width)

    def is_windowed(self, layer: int) -> bool:
        """Whether `layer` (from 0) sees only the last `window` positions."""
        return self.window_pattern[layer % len(self.window_pattern)] == "window"

    def has_experts(self, layer: int) -> bool:
        """Whether `layer` (from 0) has experts instead of a plain MLP."""
        return bool(self.experts.count) and layer >= self.experts.first_layer

    @property
    def expert_layers(self) -> int:
        """The number of layers that have experts."""
        return sum(self.has_experts(layer) for layer in range(self.layers))

    # Counts

    @property
    def _attention_matrices(self) -> int:
        return self.width * self.head_width * (2 * self.heads + 2 * self.kv_heads)

    def _mlp_matrices(self, width: int) -> int:
        return (3 if self.activation == "swiglu" else 2) * self.width * width

    def _expert_matrices(self, counted: int) -> int:
        """Return the weights of one expert layer: router, shared experts, and `counted` routed experts."""
        experts = self.experts
        return self.width * experts.count + (counted + experts.shared) * self._mlp_matrices(experts.width)

    def _matrices(self, counted_experts: int) -> int:
        sparse = self.expert_layers
        if (own := self.own_layers) is not None:
            shapes = [shape for layer in range(self.layers) for _, shape in own.weights(self, layer)]
            plain = sum(prod(shape) for shape in shapes if len(shape) == 2)
            of_experts = sum(prod(shape[1:]) for shape in shapes if len(shape) == 3)
            return plain + counted_experts * of_experts + self.vocab_size * self.width
        return (
            self.layers * self._attention_matrices
            + (self.layers - sparse) * self._mlp_matrices(self.mlp_width)
            + sparse * self._expert_matrices(counted_experts)
            + self.vocab_size * self.width
        )

    @property
    def matrix_parameters(self) -> int:
        """Number of weights that take part in a matrix product for each token.

        The weights of the layers and of the head count; the embedding's do not, because it is a lookup. Of the
        routed experts, only the active ones count.
        """
        return self._matrices(self.experts.active)

    @property
    def parameter_count(self) -> int:
        """Exact number of trained parameters. Llama-3-8B's shape gives 8,030,261,248; 70B's gives 70,553,706,496."""
        norms = self.width * (2 * self.layers + 1)
        if (own := self.own_layers) is not None:
            shapes = (shape for layer in range(self.layers) for _, shape in own.weights(self, layer))
            norms = self.width + sum(prod(shape) for shape in shapes if len(shape) == 1)
        elif self.qk_norm:
            norms += 2 * self.head_width * self.layers
        lookup = 0 if self.tied_embeddings else self.vocab_size * self.width
        return self._matrices(self.experts.count) + norms + lookup

    @property
    def active_parameter_count(self) -> int:
        """Number of trained parameters used for one token: all but those of experts that the token is not sent to."""
        idle = self.expert_layers * (self.experts.count - self.experts.active)
        return self.parameter_count - idle * self._mlp_matrices(self.experts.width)

    def mean_context(self, layer: int, length: int) -> float:
        """Return the mean number of positions that a position sees in `layer`, in a row of `length`.

        It is length / 2 when there is no window.
        """
        seen = min(self.window, length) if self.is_windowed(layer) else length
        return seen * (1 - seen / (2 * length))

    def training_flops_per_token(self, length: int) -> float:
        """Return the floating-point operations of one forward and backward pass for one token.

        The token is in a row of `length` positions. There are six operations for each matrix weight, and for
        attention six · (width of all queries + width of all mixed values) · context, where the context is half the row
        (causal) or less with a window; as in arXiv 2204.02311, appendix B. Recomputation and elementwise work are not
        counted.
        """
        context = sum(self.mean_context(layer, length) for layer in range(self.layers))
        widths = self.head_widths
        return 6 * self.matrix_parameters + 6 * (widths.queries + widths.mixed) * context
