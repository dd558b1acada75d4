"""One decoder: grouped-query attention, rotary positions, RMSNorm, SwiGLU, optional QK-norm, tied or untied head.

Shape letters: B rows, L positions in a row, D width, H query heads, K key-value heads, G = H / K query heads that share
one key-value head, E width of one head, F width of the MLP, V vocabulary.

Parameters are fp32 masters; `Decoder.forward` computes in the dtype it is asked for, casting each weight once a pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.pretrain.attention import DocumentMask, attend
from training.records import RecipeError


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The shape of a decoder."""

    vocab_size: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    mlp_width: int
    max_length: int
    rope_theta: float = 10_000.0
    qk_norm: bool = False
    tied: bool = True
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "layers", "heads", "kv_heads", "mlp_width", "max_length"):
            if getattr(self, name) < 1:
                raise RecipeError(f"model: {name}={getattr(self, name)}; it must be at least 1")
        if self.width % self.heads or self.head_width % 2:
            raise RecipeError(f"model: width={self.width} over heads={self.heads} must be a whole, even head width")
        if self.heads % self.kv_heads:
            raise RecipeError(f"model: heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")

    @property
    def head_width(self) -> int:
        """E: numbers in one head."""
        return self.width // self.heads

    @property
    def group(self) -> int:
        """G: query heads that share one key-value head."""
        return self.heads // self.kv_heads

    @property
    def matrix_parameters(self) -> int:
        """Weights that take part in a matrix product for each token: the layers' and the head's, not the lookup's."""
        attention = self.width * self.head_width * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.width * self.mlp_width) + self.vocab_size * self.width

    @property
    def parameter_count(self) -> int:
        """Trained numbers, exactly. Llama-3-8B's shape gives 8,030,261,248; 70B's gives 70,553,706,496."""
        norms = self.width * (2 * self.layers + 1)
        if self.qk_norm:
            norms += 2 * self.head_width * self.layers
        lookup = 0 if self.tied else self.vocab_size * self.width
        return self.matrix_parameters + norms + lookup

    def training_flops_per_token(self, length: int) -> float:
        """Floating-point operations of one forward and backward pass for a token in a row of `length` positions.

        Six for each matrix weight, and 6 · layers · width · length for causal attention (half of the full square), as
        in arXiv 2204.02311, appendix B. Recomputation and elementwise work are not counted.
        """
        return 6 * self.matrix_parameters + 6 * self.layers * self.width * length


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """`x` scaled to unit root mean square over its last axis (arXiv 1910.07467, without the gain)."""
    return _UnitRMS.apply(x, eps) if x.device.type == "cpu" else F.rms_norm(x, (x.shape[-1],), eps=eps)


class _UnitRMS(torch.autograd.Function):
    """By hand on a CPU, where torch has no fused form: its own takes twice the passes over memory."""

    @staticmethod
    def forward(ctx, x, eps):  # type: ignore[no-untyped-def]
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float32))
        inverse = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_().to(x.dtype)
        unit = x * inverse
        ctx.save_for_backward(unit, inverse)
        return unit

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        unit, inverse = ctx.saved_tensors
        along = (grad * unit).mean(dim=-1, keepdim=True)
        return (unit * along).neg_().add_(grad).mul_(inverse), None


def linear(x: Tensor, weight: Tensor, gain: Tensor | None = None) -> Tensor:
    """`weight` applied to `x`, in the dtype of `x`.

    `gain` is that of the norm before it. Multiplying the weight's columns by it is the same as multiplying `x`, and a
    pass over the weight is cheaper than one over the activations.
    """
    return F.linear(x, (weight if gain is None else weight * gain).to(x.dtype))


def rotary_table(positions: Tensor, *, head_width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each `[*positions.shape, E/2]` in fp32, of the angles of rotary embedding (arXiv 2104.09864).

    Dimension i is paired with i + E/2, as in transformers; interleaved pairs are a fixed permutation of the same thing.
    """
    frequencies = theta ** (-torch.arange(0, head_width, 2, device=positions.device, dtype=torch.float32) / head_width)
    angles = positions.float()[..., None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """`x` with each pair (i, i + E/2) of its last axis turned by its angle; tables broadcast against half of `x`."""
    return _Rotation.apply(x, cosine, sine)


class _Rotation(torch.autograd.Function):
    """The gradient of a rotation is the rotation backwards."""

    @staticmethod
    def forward(ctx, x, cosine, sine):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(cosine, sine)
        return _turned(x, cosine, sine)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        cosine, sine = ctx.saved_tensors
        return _turned(grad, cosine, -sine), None, None


def _turned(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    # Halves of a head are a few numbers wide, too short for vectors. Copied out, a whole sequence is one run: 5 times
    # as fast.
    first, second = (half.contiguous() for half in x.chunk(2, dim=-1))
    return torch.cat(((first * cosine).sub_(second * sine), (second * cosine).add_(first * sine)), dim=-1)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up (arXiv 2002.05202)."""
    return F.silu(gate) * up


class Attention(nn.Module):
    """Causal grouped-query attention within documents."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        rows = (config.heads + 2 * config.kv_heads) * config.head_width
        self.norm = nn.Parameter(torch.ones(config.width))
        # One product for all three. Rows are grouped by key-value head: its G query heads, its key, its value.
        self.query_key_value = nn.Parameter(torch.empty(rows, config.width))
        self.output = nn.Parameter(torch.empty(config.width, config.width))
        if config.qk_norm:
            self.query_norm = nn.Parameter(torch.ones(config.head_width))
            self.key_norm = nn.Parameter(torch.ones(config.head_width))

    def forward(self, x_BLD: Tensor, table: tuple[Tensor, Tensor], mask: DocumentMask) -> Tensor:
        config, (B, L, D) = self.config, x_BLD.shape
        fused = linear(unit_rms(x_BLD, config.norm_eps), self.query_key_value, self.norm)
        heads = fused.view(B, L, config.kv_heads, config.group + 2, config.head_width).permute(0, 2, 3, 1, 4)
        query_key, value = (
            part.contiguous() for part in heads.split((config.group + 1, 1), dim=2)
        )  # [B, K, G + 1 or 1, L, E]
        if config.qk_norm:
            query_key = unit_rms(query_key, config.norm_eps) * self._query_key_gains().to(x_BLD.dtype)
        mixed = attend(rotate(query_key, *table), value, mask)
        return linear(mixed.permute(0, 3, 1, 2, 4).reshape(B, L, D), self.output)

    def _query_key_gains(self) -> Tensor:
        """`[G + 1, 1, E]`: the gain of each query head of a group, then of its key."""
        return torch.stack((*[self.query_norm] * self.config.group, self.key_norm))[:, None]


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)). Gate and up are two products: the halves of a joint one are slower to read."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.norm = nn.Parameter(torch.ones(config.width))
        self.gate = nn.Parameter(torch.empty(config.mlp_width, config.width))
        self.up = nn.Parameter(torch.empty(config.mlp_width, config.width))
        self.down = nn.Parameter(torch.empty(config.width, config.mlp_width))

    def forward(self, x_BLD: Tensor) -> Tensor:
        unit = unit_rms(x_BLD, self.eps)
        return linear(swiglu(linear(unit, self.gate, self.norm), linear(unit, self.up, self.norm)), self.down)


class Block(nn.Module):
    """One pre-norm layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.mlp = MLP(config)

    def forward(self, x_BLD: Tensor, table: tuple[Tensor, Tensor], mask: DocumentMask) -> Tensor:
        x_BLD = x_BLD + self.attention(x_BLD, table, mask)
        return x_BLD + self.mlp(x_BLD)


class Decoder(nn.Module):
    """Tokens in, hidden states out; `head_weight` turns hidden states into logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.Parameter(torch.ones(config.width))
        if not config.tied:
            self.head = nn.Parameter(torch.empty(config.vocab_size, config.width))

    @property
    def head_weight(self) -> Tensor:
        """`[V, D]`, the embedding itself when tied."""
        return self.embedding if self.config.tied else self.head

    def forward(self, tokens_BL: Tensor, mask: DocumentMask, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Final normed hidden states `[B, L, D]` in `dtype`."""
        config = self.config
        table = rotary_table(mask.positions, head_width=config.head_width, theta=config.rope_theta)
        table = tuple(part.to(dtype)[:, None, None] for part in table)  # [B, 1, 1, L, E/2]
        x_BLD = F.embedding(tokens_BL, self.embedding).to(dtype)
        for block in self.blocks:
            x_BLD = block(x_BLD, table, mask)
        return unit_rms(x_BLD, config.norm_eps) * self.norm.to(dtype)

    def logits(self, tokens_BL: Tensor, mask: DocumentMask, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """`[B, L, V]`; for generation and checks. Training never holds these at once: see `loss.py`."""
        return F.linear(self(tokens_BL, mask, dtype=dtype), self.head_weight.to(dtype))


EMBEDDING_DEVIATION = 0.02


@torch.no_grad()
def initialise(model: Decoder, *, zero_outputs: bool, generator: torch.Generator) -> None:
    """Fill every weight from `generator`, in the order of `named_parameters`, so that a seed fixes a model.

    Embedding and head are normal with deviation 0.02; the matrices of the layers with 1 / sqrt(inputs), which keeps the
    size of what flows through them at any width. Those that write into the residual stream are divided by sqrt(2 ·
    layers) (GPT-2), or zero when `zero_outputs`, which makes each block start as the identity. Norm gains are 1.
    """
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        elif name in ("embedding", "head"):
            parameter.normal_(0.0, EMBEDDING_DEVIATION, generator=generator)
        elif not name.endswith(("attention.output", "mlp.down")):
            parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
        elif zero_outputs:
            parameter.zero_()
        else:
            parameter.normal_(0.0, (2 * model.config.layers * parameter.shape[1]) ** -0.5, generator=generator)
