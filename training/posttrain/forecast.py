"""Predict the memory of a post-training whose model GPUs share, or that one GPU has whole. Imports no torch.

The arithmetic describes FSDP as transformers sets it up, TRL's fused head, and layers that are computed twice. `python
-m benchmarks.fake_tuning` compares it with the stages' own code, without a device. Nothing here was compared with a
GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from math import prod

from training.generate.pass_rows import MERGED_ROWS, PASS_LOGITS, PASS_TOKENS, SAMPLE_ROWS, START_ROWS
from training.pretrain.memory import Needed
from training.pretrain.models.account import FP32, numbers_of_units, parameter_shapes
from training.pretrain.models.shape import ModelConfig

BF16 = 2
GATHERED_SHARE = 0.8  # of a GPU, up to which weights stay gathered while answers are drawn
COPIES = "weights of all layers in bf16"
HEAD_TILE = 32_768  # entries of the vocabulary whose logits exist at once (TRL's fused head)
HEAD_ROWS = 2_048  # … and positions of which they exist
# Numbers of a layer that is computed again and goes backward, for each position: times the width of the MLP, and of the
# model. Counted in benchmarks.fake_tuning; the residual stream and the norms are in fp32.
MLP_STATES, STATES, FP32_STATES = 7, 9, 4
FROZEN_MLP_STATES = 5  # … times the MLP's width, if nothing of the MLP is trained: its inputs are not kept
# … and if all its adapters have magnitudes (DoRA), when the last one's matrix is made; also times its keys and values.
DORA_MLP_STATES, DORA_STATES, DORA_KEYS = 8, 10, 2
DORA_MLP_CASTS, DORA_CASTS = 2, 6  # … and of the adapters' inputs in another format, unless all is in fp32
DROPPED_BYTES = 5  # of a number before an adapter that has dropout: itself in fp32, and whether it is dropped
# The layers that may have adapters, by transformers' names, with those of this package.
LAYERS = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "query_key_value")
MLP_LAYERS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
LAYERS |= {"o_proj": "output"} | MLP_LAYERS
SCORED_MLP_STATES, SCORED_STATES = 3, 4  # … and of a layer in a pass without gradients, in its MLP


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTuning:
    """What is tuned or scored: the model's shape, the processes that share it, and what a pass reads.

    positions: of all rows of a pass. longest: of its longest row. recomputes: whether layers are computed twice.
    adapters: numbers of the adapters, which each process has whole; 0: all weights are trained. is_reward: whether the
    head gives one number and not the vocabulary. number_bytes: of a number in the products of a training. dropped:
    widths of the inputs of a layer's adapters, if these have dropout. moments: numbers that the optimizer keeps of each
    trained weight. accumulates: whether a step has several passes, whose gradients are summed. replicas: how many
    processes have the same weights. updates_together: whether the optimizer's step makes a temporary as large as all
    trained weights. has_magnitudes: whether the adapters are those of DoRA, which all layers have then. learns_in_mlp:
    whether weights or adapters of the MLP are trained.
    """

    shape: ModelConfig
    shard: int
    positions: int
    longest: int
    recomputes: bool = True
    adapters: int = 0
    is_reward: bool = False
    number_bytes: int = BF16
    dropped: int = 0
    moments: int = 2
    accumulates: bool = True
    replicas: int = 1
    updates_together: bool = False
    has_magnitudes: bool = False
    learns_in_mlp: bool = True

    @property
    def share(self) -> int:
        """Bytes of a process's weights, which are in fp32."""
        absent = 0 if self.shape.tied_embeddings or not self.is_reward else self.shape.vocab_size * self.shape.width
        return FP32 * (self.shape.parameter_count - absent) // self.shard

    @property
    def head(self) -> int:
        """Bytes of the whole head, and so of the embedding."""
        return FP32 * self.shape.vocab_size * self.shape.width

    @property
    def residual(self) -> int:
        """Bytes of the residual stream, which autocast leaves in fp32."""
        return FP32 * self.positions * self.shape.width

    @property
    def block(self) -> int:
        """Bytes of a layer's weights, which FSDP gathers in fp32."""
        return FP32 * max(size for unit, size in numbers_of_units(self.shape).items() if unit)

    @property
    def copies(self) -> int:
        """Bytes of the bf16 copies of all layers, of which autocast makes the products; 0 in fp32."""
        return BF16 * (self.shape.parameter_count - 2 * self.head // FP32) if self.number_bytes < FP32 else 0

    @property
    def kept_copies(self) -> Needed:
        """These copies, if they are kept through a pass without gradients: those of a whole model that is trained.

        autocast keeps no copies of frozen weights.
        """
        return {COPIES: self.copies} if self.shard == 1 and self.copies and not self.adapters else {}

    @property
    def trained(self) -> int:
        """Bytes of the weights that this process trains: its adapters, or its share of the model."""
        return FP32 * self.adapters or self.share

    @property
    def messages(self) -> int:
        """Bytes of DDP's messages, which it keeps from its first to its last step."""
        return self.trained if self.shard == 1 < self.replicas else 0

    @property
    def keys(self) -> int:
        """Bytes of the key-value cache for one position of one row, all layers together."""
        widths = self.shape.head_widths
        return FP32 * self.shape.layers * (widths.keys + widths.values)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSampling:
    """A tuning by sampled answers, which are drawn in one go for all passes of a step.

    drawn: positions of all prompts and answers of a process in a step. has_reference: whether the initial policy is
    beside the policy. has_judge: whether the reward model is. gathers: whether weights that processes share stay
    gathered while answers are drawn.
    """

    policy: PlannedTuning
    drawn: int
    has_reference: bool
    has_judge: bool
    gathers: bool = False


def numbers_of_adapters(shape: ModelConfig, rank: int, targets: Collection[str] | None = None) -> int:
    """Return the number of weights in LoRA adapters of a rank, one on every linear layer except the head.

    `targets` names the layers that have one, as transformers does; None: all. A layer's experts are not counted.
    """
    return rank * sum(given + made for given, made in _adapted(shape, targets))


def numbers_of_magnitudes(shape: ModelConfig) -> int:
    """Return the number of magnitudes in DoRA's adapters on every linear layer: one for each output."""
    return sum(made for _, made in _adapted(shape, None))


def inputs_of_adapters(shape: ModelConfig, targets: Collection[str] | None = None) -> int:
    """Return the widths of the inputs of all adapters, one layer with another."""
    return sum(given for given, _ in _adapted(shape, targets)) // shape.layers


def is_adapted(shape: ModelConfig, targets: Collection[str]) -> bool:
    """Whether the names of layers that have adapters are known of a shape."""
    return set(targets) <= LAYERS.keys() and shape.own_layers is None and not shape.experts.count


def learns_in_mlp(targets: Collection[str] | None) -> bool:
    """Whether any adapter is on a linear layer of the MLP.

    targets: transformers' names of the layers that have adapters; None: all of them.
    """
    return targets is None or not MLP_LAYERS.keys().isdisjoint(targets)


def _adapted(shape: ModelConfig, targets: Collection[str] | None) -> Iterator[tuple[int, int]]:
    """Yield the widths of input and output of each layer that has an adapter.

    transformers has queries, keys and values in layers of their own.
    """
    widths = shape.head_widths
    for name, sides in parameter_shapes(shape):
        layer = name.rpartition(".")[2]
        if not name.startswith("blocks.") or len(sides) != 2:
            continue
        parts = {"q_proj": widths.queries, "k_proj": widths.keys, "v_proj": widths.values}
        known = parts if layer == "query_key_value" else {one: sides[0] for one, own in LAYERS.items() if own == layer}
        yield from (
            (sides[1], made) for one, made in (known or {"": sides[0]}).items() if targets is None or one in targets
        )


def memory_of_steps(planned: PlannedTuning, *, reads_first: bool = False) -> Needed:
    """Return the bytes that a process needs in the steps of SFT, a reward model, DPO or KTO, by purpose.

    It is the most of the moments at the head, at the embedding, and in a layer. Unless layers are computed twice it is
    a lower bound: autograd keeps their weights in bf16 for the backward pass, which are counted, and their states,
    which are not. `reads_first`: a pass without gradients goes before, as for the divergence of KTO.
    """
    moments = [*_moments_of_steps(planned), _at_update(planned)]
    if planned.shard > 1 and not planned.adapters and not planned.is_reward:
        # A loss or a reference was computed before the first step, which has no optimizer's state yet.
        at_embedding = _at_embedding(planned, moments[0])
        moments.append(at_embedding if reads_first else at_embedding | {"optimizer": 0})
    if reads_first:
        held = {name: moments[0][name] for name in ("weights", "adapters", "gradients", "optimizer")}
        moments.append(held | planned.kept_copies | _scored(planned, planned.number_bytes))
    return _most(moments)


def _at_embedding(planned: PlannedTuning, step: Needed) -> Needed:
    """Return what is needed at the end of a backward pass before which a pass without gradients went.

    FSDP fetches the head once more there.
    """
    held = {name: step[name] for name in ("weights", "gradients", "optimizer")}
    return held | {"states of all layers": planned.residual, "gathered weights": 3 * planned.head + planned.block}


def _at_update(planned: PlannedTuning) -> Needed:
    """Return what is needed while the optimizer updates the weights.

    Shares are updated one after the other. The gradients are DDP's messages then.
    """
    return {
        "weights": planned.share,
        "adapters": FP32 * planned.adapters,
        "gradients": planned.trained,
        "optimizer": planned.moments * planned.trained,
        "update of all weights": planned.trained if planned.updates_together and planned.shard == 1 else 0,
    }


def _moments_of_steps(planned: PlannedTuning) -> list[Needed]:
    shape = planned.shape
    held = {
        "weights": planned.share,
        "adapters": FP32 * planned.adapters,
        "gradients": planned.trained,
        "optimizer": planned.moments * planned.trained,
        "states of all layers": planned.residual * (shape.layers + 1),
    }
    copies = {COPIES: planned.copies} if planned.copies else {}
    tile = min(HEAD_TILE, shape.vocab_size)
    loss = planned.number_bytes * tile * (shape.width + min(HEAD_ROWS, planned.positions)) + 3 * planned.residual
    if planned.shard == 1:
        return _moments_of_whole(planned, held, copies, loss)
    held |= {} if planned.recomputes else copies
    # The head with its gradient and the next layer or, beside adapters, the message in place of the gradient.
    head = {"gathered weights": 2 * planned.head + planned.block, "head and loss": loss}
    # A layer's weights, the gradient of what is above it, which is being summed, and the message of what is below it.
    # One of these may be the head or the embedding.
    beside = max(planned.head, planned.block) + planned.block
    layer = {
        "gathered weights": beside + planned.block,
        "weights of a layer in bf16": planned.block * BF16 // FP32 if planned.number_bytes < FP32 else 0,
        "states of a layer": planned.positions * _states_of_a_layer(planned),
    }
    # At its end there is its own gradient.
    end = {"gathered weights": beside + 2 * planned.block, "states of a layer": 2 * planned.residual}
    if planned.adapters:
        end = {"gathered weights": _gathered_in_turn(planned)}  # in the forward pass
        head = max(
            {"gathered weights": 2 * planned.head + planned.block},
            {"gathered weights": planned.head + planned.block, "head and loss": loss},
            key=_sum,
        )
        layer["gathered weights"] = planned.block + max(planned.head, planned.block)
    if planned.is_reward:  # the embedding, its gradient and the first layer; the head is small
        head = {"gathered weights": 2 * planned.head + planned.block}
    return [held | head, held | layer, held | end]


def _states_of_a_layer(planned: PlannedTuning) -> int:
    """Return the bytes of a position in a layer that is computed again and goes backward."""
    shape = planned.shape
    wide = MLP_STATES if planned.learns_in_mlp else FROZEN_MLP_STATES
    states = planned.number_bytes * (wide * shape.mlp_width + STATES * shape.width)
    if planned.has_magnitudes:
        keys = shape.head_widths.keys + shape.head_widths.values
        states = DORA_MLP_STATES * shape.mlp_width + DORA_STATES * shape.width + DORA_KEYS * keys
        if planned.number_bytes < FP32:
            states += DORA_MLP_CASTS * shape.mlp_width + DORA_CASTS * shape.width
        states *= planned.number_bytes
    return states + FP32 * FP32_STATES * shape.width + DROPPED_BYTES * planned.dropped


def _matrices_of_dora(planned: PlannedTuning) -> tuple[int, int]:
    """Return the bytes of DoRA's matrices that are kept for the backward pass, and of those that exist for a moment.

    Each adapter is multiplied with an identity matrix as wide as its inputs, in fp32; autograd keeps its copy in bf16,
    or itself. Beside the widest one is the product, as large as the layer's weight.
    """
    if not planned.has_magnitudes:
        return 0, 0
    layers, adapted = planned.shape.layers, list(_adapted(planned.shape, None))
    kept = planned.number_bytes * sum(given**2 for given, _ in adapted) // (layers if planned.recomputes else 1)
    cast = FP32 if planned.number_bytes < FP32 else 0
    return kept, max(cast * given**2 + planned.number_bytes * given * made for given, made in adapted)


def _moments_of_whole(planned: PlannedTuning, held: Needed, copies: Needed, loss: int) -> list[Needed]:
    """Return what a process needs in a step that has the whole model: at the head, in a layer, at the embedding.

    autocast keeps the bf16 `copies` of all layers until the end of the forward pass, and autograd until the backward
    pass of each, unless layers are computed twice. The gradient of a pass is beside the sum of those before it; in one
    pass a step, gradients take the place of states.
    """
    is_cast = planned.number_bytes < FP32
    largest = _largest_weight(planned.shape)
    of_a_layer = {"weights of a layer in bf16": planned.block * BF16 // FP32} if is_cast else {}
    gradient = 0 if planned.adapters else largest * (FP32 + (BF16 if is_cast else 0))
    end = 0 if planned.adapters else planned.head
    head = {} if planned.is_reward else {"a gradient": end, "head and loss": loss}
    kept, made = _matrices_of_dora(planned)
    layer = {"a gradient": gradient, "states of a layer": planned.positions * _states_of_a_layer(planned)}
    layer |= {"matrices of DoRA": kept + made}
    head |= {} if planned.recomputes else {"matrices of DoRA": kept}
    last = held | {"states of all layers": planned.residual}
    if not planned.accumulates and not planned.adapters:  # at the head there are no others, and in the first layer most
        first = last | of_a_layer | layer | ({} if planned.messages else {"gradients": held["gradients"] - end})
        return [held | copies | head | {"gradients": planned.messages}, first, last]
    if planned.accumulates:  # gradients are summed apart from the messages, into which the last pass copies them
        held, last = (one | {"messages of gradients": planned.messages} for one in (held, last))
    at_head = {} if planned.adapters and planned.recomputes else copies
    in_layer = of_a_layer if planned.recomputes else copies
    return [held | at_head | head, held | in_layer | layer, last | {"a gradient": end}]


def memory_of_sampling(planned: PlannedSampling) -> Needed:
    """Return the bytes that a process needs in the steps of GRPO or RLOO, by purpose."""
    policy, beside = planned.policy, models_beside(planned)
    moments = [*_moments_of_steps(policy), _at_update(policy)]
    if not policy.adapters and policy.shard > 1 and not planned.gathers:  # which forgets the passes of the drawing
        moments.append(_at_embedding(policy, moments[0]))
    return _most([*(one | beside for one in moments), memory_of_drawing(planned), memory_of_judging(planned)])


def memory_of_drawing(planned: PlannedSampling) -> Needed:
    """Return the bytes that a process needs while the policy draws its answers, by purpose."""
    policy = planned.policy
    if planned.gathers:
        drawn = replace(policy, positions=planned.drawn)
        return _held_between_steps(planned) | _drawn_with_gathered(drawn, policy.number_bytes)
    kept = {"keys and values": planned.drawn * policy.keys} | policy.kept_copies
    return _held_between_steps(planned) | kept | _scored(replace(policy, positions=planned.drawn), policy.number_bytes)


def memory_of_gathered_sampling(planned: PlannedSampling) -> Needed:
    """Return the same if the weights stay gathered meanwhile, by which it is decided whether they do."""
    return memory_of_drawing(replace(planned, gathers=True))


def memory_of_judging(planned: PlannedSampling) -> Needed:
    """Return the bytes that a process needs while the reward model reads the answers, by purpose."""
    held = _held_between_steps(planned)
    return held | (_scored(_judge(planned)) if planned.has_judge else {})


def _judge(planned: PlannedSampling) -> PlannedTuning:
    policy = planned.policy
    positions = max(policy.longest, min(PASS_TOKENS, planned.drawn))
    return PlannedTuning(
        shape=policy.shape, shard=policy.shard, positions=positions, longest=policy.longest, is_reward=True
    )


def _held_between_steps(planned: PlannedSampling) -> Needed:
    policy = planned.policy
    return {
        "weights": policy.share,
        "adapters": FP32 * policy.adapters,
        "optimizer": policy.moments * policy.trained,
        "messages of gradients": policy.messages,
    } | models_beside(planned)


def models_beside(planned: PlannedSampling) -> Needed:
    """Return the bytes of a process's shares of the models that are beside the policy."""
    return {
        "initial policy": planned.policy.share if planned.has_reference else 0,
        "reward model": _judge(planned).share if planned.has_judge else 0,
    }


def memory_without_steps(planned: PlannedTuning) -> dict[str, Needed]:
    """Return the bytes that a process needs at the other moments: of a tuning, and of scoring by log-likelihoods.

    Prompts with their `answers`, of which keys and values are kept, and the conversations of `rewards` are read in
    passes of PASS_TOKENS at most.
    """
    shape = planned.shape
    adapters = FP32 * planned.adapters
    opened = {"weights": planned.share, "adapters": adapters}
    held = opened | {"optimizer": planned.moments * (adapters or planned.share)}
    bounded = replace(planned, positions=max(planned.longest, min(planned.positions, PASS_TOKENS)))
    read = _scored(bounded) | {"keys and values": bounded.positions * planned.keys}
    with_logits = min(PASS_TOKENS, PASS_LOGITS // shape.vocab_size)
    windows = replace(planned, positions=max(planned.longest, min(planned.positions, with_logits)))
    sample = replace(planned, positions=max(planned.longest, min(SAMPLE_ROWS * planned.longest, with_logits)))
    whole = max(planned.head, FP32 * _largest_weight(shape))
    return {
        "open": opened,
        "loss of a sample": opened | _read_to_logits(sample),
        "save": held,
        "loss after the steps": held | _read_to_logits(replace(sample, adapters=0)),  # which are merged
        "export": held | {"whole weight": 2 * whole},
        "scores": opened | _most([_scored(windows), *_contexts(planned)]),
        "whole windows": opened | _read_to_logits(windows),
        "answers": opened | read,
        "answers with all weights gathered": opened | _drawn_with_gathered(bounded, FP32),
        "rewards": opened | _scored(bounded),
    }


def memory_beside_steps(planned: PlannedTuning, learns_from: str) -> dict[str, Needed]:
    """Return the bytes that a process needs before and after the steps of a tuning, by moment.

    learns_from: what its method learns from, "conversations", "pairs", "answers" or "samples". How a whole model is
    merged and written is not predicted.
    """
    moments = memory_without_steps(planned)
    held, shared = moments["save"], planned.shard > 1

    def reading(most: int, number_bytes: int = FP32, *, rows: int = 1) -> Needed:
        """Return what a pass needs that reads rows until they have so many positions."""
        positions = max(planned.longest * rows, most // (planned.longest * rows) * planned.longest * rows)
        return _scored(replace(planned, positions=positions), number_bytes)

    found: dict[str, Needed] = {"export": moments["export"]} if shared else {}
    if planned.adapters and shared:
        found["merge"] = held | reading(min(MERGED_ROWS * planned.longest, PASS_TOKENS))
    if learns_from == "conversations":
        found["loss after the steps"] = moments["loss after the steps"]
    elif planned.is_reward:
        found["scores of pairs"] = held | reading(PASS_TOKENS)
    elif learns_from != "samples":
        # A row counts with both its answers. Those of a pair are read at once; an answer, and the one before it in the
        # batch, one after the other.
        both = min(2 * START_ROWS * planned.longest, PASS_TOKENS)
        read = reading(both, planned.number_bytes, rows=2)
        if learns_from == "answers":
            read = reading(both // 2, planned.number_bytes)
        found["start"] = moments["open"] | planned.kept_copies | read
    return found


def memory_of_answers(shape: ModelConfig, *, shard: int, rows: int, models: int = 1) -> Needed:
    """Return the bytes that answers of the model's full length need while all weights stay gathered in fp32.

    Of each of `models` models, of which one answers, the process has its share.
    """
    length = shape.max_length
    planned = PlannedTuning(shape=shape, shard=shard, positions=rows * length, longest=length)
    return memory_without_steps(planned)["answers with all weights gathered"] | {"weights": models * planned.share}


def memory_before_and_after(planned: PlannedTuning, *, gathers: bool = False) -> Needed:
    """Return the bytes that a process needs to compare the SFT model with the aligned one, beside the reward model.

    `gathers`: whether the weights of a model stay gathered while it draws answers.
    """
    moments = memory_without_steps(planned)
    models = {"weights": 2 * planned.share, "reward model": replace(planned, is_reward=True).share}
    answers = "answers with all weights gathered" if gathers else "answers"
    return _most([moments[name] | models for name in (answers, "whole windows")])


def gathering(setting: str, *, shard: int, needed: Needed | None = None, room: int | None = None) -> tuple[bool, str]:
    """Return whether weights stay gathered while answers are drawn, and why in words; none if no weight is divided.

    `setting` is the profile's `answer_weights`. `needed` is the memory with all weights gathered, for rows that are as
    long as they may be, and `room` that of a GPU; None: it is not predicted, or there is no known GPU. A job that
    decides by itself gathers them if they need at most GATHERED_SHARE of the GPU: the rest is for the allocator and
    what is not predicted. Nothing here depends on what is free at the moment.
    """
    if shard == 1:
        return False, ""
    if setting != "auto":
        return setting == "gathered", f"{setting}, by the profile"
    if room is None:
        return False, "sharded, because the memory of a GPU is not known"
    if needed is None:
        return False, "sharded, because the memory with all weights gathered is not predicted"
    most, allowed = _sum(needed), GATHERED_SHARE * room
    gathers = most <= allowed
    said = (
        f"all gathered weights and what is beside them take {most / 1e9:.1f} GB, and {allowed / 1e9:.1f} GB are allowed"
    )
    return gathers, f"{'gathered' if gathers else 'sharded'}, because {said} ({GATHERED_SHARE:.0%} of the GPU)"


def _drawn_with_gathered(planned: PlannedTuning, number_bytes: int) -> Needed:
    """Return what drawing needs beside the shares of a model whose weights stay gathered.

    Weights of linear layers are gathered in the format of the products, the embedding in fp32. At its end there
    is also the message of the head; after it keys and values are kept, beside the states of the prompts.
    """
    shape = planned.shape
    words = shape.vocab_size * shape.width
    layers = shape.parameter_count - words * (1 if shape.tied_embeddings else 2)
    drawn = {"keys and values": planned.positions * planned.keys} | _scored(replace(planned, shard=1), number_bytes)
    weights = {"all gathered weights": number_bytes * (layers + words) + FP32 * words}
    return weights | max({"gathered weights": number_bytes * words}, drawn, key=_sum)


def _scored(planned: PlannedTuning, number_bytes: int = FP32) -> Needed:
    """Return what a pass without gradients needs beside the weights: at the head, or in a layer's MLP.

    number_bytes: of a number in the products; autocast to bf16 leaves the residual stream in fp32.
    """
    shape = planned.shape
    wide = SCORED_MLP_STATES + (planned.adapters > 0)  # a layer's output, and that of its adapter
    states = planned.positions * (number_bytes * wide * shape.mlp_width + FP32 * SCORED_STATES * shape.width)
    if planned.shard == 1:  # nothing is gathered
        return {"states": states}
    copied = number_bytes * _largest_weight(shape) if number_bytes < FP32 else 0  # for its product
    return max(
        {"gathered weights": _gathered_in_turn(planned), "states": 2 * planned.residual},
        {"gathered weights": 2 * planned.block + copied, "states": states},
        key=_sum,
    )


def _gathered_in_turn(planned: PlannedTuning) -> int:
    """Return the most bytes of weights that FSDP has gathered at one time in a forward pass.

    At the beginning of a layer or the head they are in a message and copied from it, and the message before is still
    there. A reward model's head is small.
    """
    layers = max(planned.block, planned.head if planned.is_reward else 0) + 2 * planned.block
    return max(layers, 2 * planned.head + (0 if planned.is_reward else planned.block))


def _read_to_logits(planned: PlannedTuning) -> Needed:
    """Return the bytes, beside the weights, of a forward pass that keeps the logits of all positions.

    It is the most of those in a layer, at the head, and after it, where a row's logarithms of probabilities are beside
    the logits.
    """
    of_a_position = FP32 * planned.shape.vocab_size
    logits = of_a_position * planned.positions
    at_head = {"gathered weights": 0 if planned.shard == 1 else 2 * planned.head, "logits": logits}
    after = {"logits": logits + of_a_position * planned.longest}
    return _most([_scored(planned), at_head, after])


def _contexts(planned: PlannedTuning) -> Iterator[Needed]:
    """Yield the bytes, beside the weights, of scoring multiple choice: of passes over contexts and over continuations.

    Each context has two continuations or more. A pass reads at most PASS_TOKENS of contexts, or of continuations with
    their contexts, for which keys and values are copied. Those of the contexts stay until the last of several such
    passes.
    """
    if planned.positions == planned.longest:  # a batch of one
        return
    contexts = max(planned.longest, min(planned.positions // 2, PASS_TOKENS))
    rows = max(planned.longest, min(planned.positions, PASS_TOKENS))
    kept = contexts if planned.positions > PASS_TOKENS else 0
    gathered = 0 if planned.shard == 1 else _gathered_in_turn(planned)
    yield _scored(replace(planned, positions=contexts)) | {"keys and values": contexts * planned.keys}
    yield {"gathered weights": gathered, "keys and values": (kept + rows) * planned.keys}


def _largest_weight(shape: ModelConfig) -> int:
    """Return the number of elements of the largest weight of a layer."""
    return max(prod(sides) for name, sides in parameter_shapes(shape) if name.startswith("blocks."))


def _sum(parts: Needed) -> int:
    return sum(parts.values())


def _most(moments: list[Needed]) -> Needed:
    return {name: size for name, size in max(moments, key=_sum).items() if size}
