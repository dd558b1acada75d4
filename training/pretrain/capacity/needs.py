"""What a run needs, in closed form: bytes by purpose and operations, from the recipe's settings and a layout. No torch.

A layout is a profile's size or a job's run settings. Weights, gradients and optimizer state are exact where the degrees
divide a model evenly, and activations are those that autograd keeps, which a test counts. The head, gathered weights, a
layer at work, and keys and values are coarse. On tensors without content, the stages' own code holds what is stated
here of it within TOLERANCE (`pedigree plan --measure`).

Refused before a start is only what is certainly needed: weights, gradients, optimizer, activations and models beside
them; of post-training and scoring, with rows of one token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from training.generate.passes.pass_rows import PASS_LOGITS, PASS_TOKENS, SAMPLE_ROWS, rows_in_pass
from training.pretrain.models.account import FILE_BYTES, FP32, Recompute, evaluated_rows, parameter_shapes
from training.pretrain.models.shape import ModelConfig
from training.pretrain.optim.optimizer import Optimizer
from training.pretrain.optim.optimizers import OPTIMIZERS
from training.pretrain.parallel.degrees import MESSAGE_NUMBERS, Degrees, micro_batches_in
from training.pretrain.settings import PretrainRecipe

if TYPE_CHECKING:
    from training.order.batch_settings import BatchPhase
    from training.order.batches import PlannedPhase

TOLERANCE = 0.15  # of the stated sum
BF16 = 2
# Positions whose logits exist at once; so many logits on a GPU, if that is more; a CPU's gradients (losses).
LOSS_CHUNK, LOSS_LOGITS, LOSS_TILE = 1024, 2**27, 64
# Of a process on a CPU Python, torch and numpy, measured; on a GPU CUDA and NCCL's buffers, not measured.
LIBRARIES, CUDA_CONTEXT = 430_000_000, 1_500_000_000
TRANSFORMERS_LIBRARIES = 480_000_000  # with transformers and TRL, or transformers and lm-eval, measured
OF_A_ROLLBACK = 2  # checkpoints that are kept for a rollback, in addition to the newest ones
HEAD_TILE, HEAD_ROWS = 32_768, 2_048  # words and positions whose logits exist at once in TRL's fused head
MLP_STATES, STATES, FP32_STATES = 7, 9, 4  # numbers of a position in transformers' layer at work, times its widths
READ_MLP_STATES, READ_STATES = 3, 4  # … and in a pass without gradients
OPTIM, MOMENTS = "adamw_torch_fused", {"adamw_torch_fused": 2, "adamw_torch": 2, "sgd": 0}  # numbers of a weight
RANK, LEARNED = 8, "learned"  # of adapters, where the recipe names none; the reward that a reward model gives

Needed = dict[str, int]  # bytes that a process needs at one moment, by purpose


def most(moments: list[Needed]) -> Needed:
    """Return the moment that needs most, without what it does not need."""
    return {name: size for name, size in max(moments, key=lambda one: sum(one.values())).items() if size}


@lru_cache(maxsize=1024)
def numbers_of(config: ModelConfig, degrees: Degrees) -> tuple[int, int, int]:
    """Return how many weights a process has before `shard` divides them: outside of layers, in the largest, in all."""
    outside, layers = 0, dict[str, int]()
    for name, shape in parameter_shapes(config):
        parts = {2: degrees.tensor, 3: degrees.expert}.get(len(shape), 1)
        if name.startswith("blocks."):
            layer = name.split(".")[1]
            layers[layer] = layers.get(layer, 0) + prod(shape) // parts
        else:
            outside += prod(shape)
    if degrees.pipeline > 1 and not config.tied_embeddings:
        outside //= 2  # the first process has the embedding, the last one the head
    return outside, max(layers.values()), sum(layers.values()) // degrees.pipeline


@lru_cache(maxsize=64)
def bf16_copies(config: ModelConfig) -> int:
    """Return the bytes of bf16 copies of the layers' matrices, of which products are made."""
    shapes = ((name, shape) for name, shape in parameter_shapes(config) if len(shape) > 1)
    return BF16 * sum(prod(shape) for name, shape in shapes if name.startswith("blocks."))


@lru_cache(maxsize=64)
def optimizer_bytes(config: ModelConfig, optimizer: str | Optimizer) -> int:
    """Return the bytes of an optimizer's fp32 state. Pedigree's optimizers may be given by name."""
    part = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    return FP32 * sum(part.numbers(name, shape) for name, shape in parameter_shapes(config))


def activation_bytes(
    config: ModelConfig,
    *,
    rows: int,
    length: int,
    recompute: Recompute = "none",
    number_bytes: int = 2,
    probabilities: bool = True,
) -> int:
    """Return the bytes that the layers keep for the backward pass, for `rows` of `length` positions in one pass.

    Attention keeps its `probabilities` on a CPU; a fused kernel keeps two numbers for each head instead, which are not
    counted. With `full` recomputation, the states between layers are kept, and one layer at work is added. Experts drop
    no token, so their bytes do not depend on the routing. Not counted are the head's chunk, the table of rotations,
    the order of tokens by expert, and the cast weights.
    """
    tokens, at_work = rows * length, "none" if recompute == "full" else recompute
    kept = [_layer_bytes(config, n, rows, length, at_work, number_bytes, probabilities) for n in range(config.layers)]
    between = number_bytes * config.layers * config.width * tokens
    return (between + max(kept) if recompute == "full" else sum(kept)) + number_bytes * (config.width + 1) * tokens


def _layer_bytes(
    config: ModelConfig, layer: int, rows: int, length: int, recompute: str, size: int, pairs: bool
) -> int:
    D, widths = config.width, config.head_widths
    heads = widths.queries + widths.keys
    normed = heads + config.heads + config.kv_heads if config.qk_norm else 0  # unit heads and their scales
    # `selective` keeps queries and keys before rotation, and values. Other kinds keep rotated queries and keys, values,
    # and scaled queries.
    core = heads + widths.values + (0 if recompute == "selective" else widths.queries)
    more = 0 if (own := config.own_layers) is None else own.kept(config, layer)
    attention = size * (D + 1 + normed + core + widths.mixed + more)
    kept = rows * length * (attention + _mlp_bytes(config, layer, recompute, size))
    if not pairs or recompute == "selective":
        return kept
    from training.pretrain.models.attention import query_blocks

    # Each block of queries is computed against all keys that any of its queries sees.
    blocks = query_blocks(length, window=config.window if config.is_windowed(layer) else 0)
    return kept + size * rows * config.heads * sum(
        (stop - start) * (last - first) for start, stop, first, last in blocks
    )


def _mlp_bytes(config: ModelConfig, layer: int, recompute: str, number_bytes: int) -> int:
    """Return the bytes that the MLP or the experts of a layer keep for one token; the router's numbers are fp32."""
    gated, experts, D = config.activation == "swiglu", config.experts, config.width
    # Gate and up, or up alone; the input of down; and silu(gate) unless it is recomputed. Without a gate, relu(up) is
    # kept in place of up.
    between = (3 if recompute == "selective" else 4) if gated else 2
    if not config.has_experts(layer):
        return number_bytes * ((D + 1) + between * config.mlp_width)
    k = experts.active
    # For each active expert: its input, its inner numbers, its output, and the output's weight in the sum.
    dispatched = k * (D + between * experts.width + D + 1)
    shared = between * experts.shared * experts.width
    # The router's input, all scores, and the chosen scores with their sum.
    routed = FP32 * (D + experts.count + (k + 1 if experts.normalize_weights else 0))
    return number_bytes * ((D + 1) + dispatched + shared) + routed


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretraining:
    """What is trained: shape, settings, the phase whose steps need most, and a teacher beside it."""

    shape: ModelConfig
    recipe: PretrainRecipe
    phase: BatchPhase | PlannedPhase
    teacher: ModelConfig | None = None

    @property
    def number_bytes(self) -> int:
        """Bytes of a number in the layers' products; fp8 keeps its states in bf16."""
        return FP32 if self.recipe.precision == "fp32" else BF16

    def passes(self, run: Any) -> tuple[int, int]:
        """Return the rows of a micro-batch and a process's most passes in a step; RecipeError if they do not divide."""
        sets = Degrees.of(run).row_sets(run.nodes * run.processes)
        count = micro_batches_in(
            global_batch_tokens=self.phase.global_batch_tokens,
            sequence_length=self.phase.sequence_length,
            micro_batch_tokens=run.micro_batch_tokens,
            data_parallel=sets,
        )
        return self.phase.rows // count, -(-count // sets)


def certain_bytes(training: Pretraining, run: Any, *, probabilities: bool = False) -> Needed:
    """Return the bytes that a process certainly needs at the fullest moment of a training, by purpose.

    `probabilities`: whether attention keeps its own, as on a CPU; finding out needs torch. It is the most of the end of
    the forward pass, the end of the backward pass and, of a spread model, the export.
    """
    degrees, passes = Degrees.of(run), training.passes(run)
    forward, backward = _certain(training, degrees, run.recompute, *passes, probabilities=probabilities)
    largest = FP32 * max(prod(shape) for _, shape in parameter_shapes(training.shape))
    export = {name: backward[name] for name in ("weights", "optimizer")} | {"a whole weight and its parts": 2 * largest}
    return most([forward, backward, *([export] if degrees.product > 1 else [])])


def bytes_beside_reference(training: Pretraining, run: Any, *, probabilities: bool = False) -> Needed:
    """Return the same for DoReMi's proxy, which one process trains beside a reference model of the same shape."""
    phase = training.phase
    rows = min(phase.rows, (run.micro_batch_tokens or 0) // phase.sequence_length or phase.rows)
    moments = _certain(training, Degrees(), "none", rows, -(-phase.rows // rows), probabilities=probabilities)
    return most(list(moments)) | {"reference": FP32 * training.shape.parameter_count}


def _certain(
    training: Pretraining, degrees: Degrees, recompute: Recompute, rows: int, passes: int, *, probabilities: bool
) -> tuple[Needed, Needed]:
    """Return the bytes by purpose that a process certainly holds when the forward and when the backward pass ends."""
    config, recipe = training.shape, training.recipe
    outside, _, layers = numbers_of(config, degrees)
    own, whole = (outside + layers) // degrees.shard, config.parameter_count
    state = optimizer_bytes(config, recipe.optimizer_part) * own // whole
    held = {"weights": FP32 * own, "optimizer": state + (FP32 * own if recipe.average.kind != "none" else 0)}
    held |= {"teacher": FP32 * training.teacher.parameter_count} if training.teacher else {}
    in_flight = min(degrees.pipeline, passes)  # the first process keeps the passes of as many micro-batches as stages
    kept = in_flight * _activations(training, degrees, recompute, rows, probabilities=probabilities)
    backward = held | {"gradients": FP32 * own, "activations": 0}
    return held | {"gradients": FP32 * own if passes > 1 else 0, "activations": kept}, backward


def _activations(
    training: Pretraining, degrees: Degrees, recompute: Recompute, rows: int, *, probabilities: bool
) -> int:
    """Return the bytes that one pass keeps in a process for its backward pass, with copies of weights in bf16.

    Processes along `tensor` all have the inputs of attention and MLP, those along `context` all keys and values.
    """
    config, size = training.shape, training.number_bytes
    length, positions = training.phase.sequence_length, rows * training.phase.sequence_length
    given = {"rows": rows, "length": length, "recompute": recompute, "number_bytes": size}
    kept = activation_bytes(config, **given, probabilities=probabilities)
    if training.teacher is not None:
        kept += size * positions * training.teacher.width
        kept += size * training.teacher.vocab_size * training.teacher.width if size < FP32 else 0
    kept //= degrees.pipeline * degrees.context * degrees.tensor
    if size < FP32 and recompute != "full" and degrees.keeps_copies(precision=training.recipe.precision):
        kept += bf16_copies(config) // (degrees.pipeline * degrees.tensor)
    of_rows = 0
    if degrees.tensor > 1:
        dense = config.layers - config.expert_layers
        of_rows += (config.layers + dense) * config.width * (positions // degrees.context)
    if degrees.context > 1 and recompute != "selective":
        widths = config.head_widths
        joined = (widths.keys + widths.values) * positions - widths.values * (positions // degrees.context)
        of_rows += config.layers * joined // degrees.tensor
    return kept + size * of_rows // (config.layers if recompute == "full" else degrees.pipeline)


def training_bytes(training: Pretraining, run: Any, *, on_gpu: bool) -> dict[str, Needed]:
    """Return the bytes that the first process needs at each moment of a training, by purpose; on a GPU, those of it."""
    config, degrees, size = training.shape, Degrees.of(run), training.number_bytes
    forward, backward = _certain(training, degrees, run.recompute, *training.passes(run), probabilities=not on_gpu)
    outside, block, layers = numbers_of(config, degrees)
    positions = training.passes(run)[0] * training.phase.sequence_length // (degrees.context * degrees.tensor)
    head = config.vocab_size * config.width
    sent = BF16 if degrees.gathers_bf16(precision=training.recipe.precision) else FP32
    libraries = {"libraries": CUDA_CONTEXT if on_gpu else LIBRARIES}
    if not on_gpu:
        libraries["copy for a checkpoint"] = backward["weights"] + backward["optimizer"]
    at_head = {"head and loss": _head_bytes(config, positions, size, on_gpu=on_gpu, is_shared=degrees.shard > 1)}
    held_out = {name: forward[name] for name in forward if name != "activations"} | {"gradients": backward["gradients"]}
    held_out |= {"states and logits": _evaluation_bytes(training, degrees)}
    sizes = degrees.sizes(run.nodes * run.processes)
    steps = [forward | at_head, dict(backward)]
    if degrees.shard > 1:
        # In a step: embedding and head, or all weights; a layer with the next one and its gradient; its message.
        kept = outside if degrees.zero_stage == 3 else outside + layers
        sums = FP32 * (outside + layers) if degrees.zero_stage == 1 else 0
        gathered = sent * (kept + 3 * block) + sums
        steps[0] |= {"gathered weights": sent * kept + sums}
        steps.append(forward | {"gathered weights": gathered, "gradient of the head": sent * head})
        at_end = sent * (kept + outside) + FP32 * block + (FP32 * head if sent < FP32 else 0) + sums
        steps[1] |= {"gathered weights": at_end}
        held_out |= {"gathered weights": sent * (kept + 2 * block)}
    elif prod(sizes[axis] for axis in ("replicate", "expert", "context")) > 1:
        steps[1] |= {"message of gradients": FP32 * min(MESSAGE_NUMBERS, outside + layers)}
    moments = {"step": most(steps) | libraries, "held-out text": held_out | libraries}
    if degrees.product > 1:  # one weight is joined at a time
        largest = FP32 * max(prod(shape) for _, shape in parameter_shapes(config))
        moments["export"] = backward | libraries | {"whole weight": 2 * largest}
    return moments


def _head_bytes(config: ModelConfig, positions: int, size: int, *, on_gpu: bool, is_shared: bool) -> int:
    """Return the bytes for the head's products: a chunk of logits, its probabilities, and the head's gradient."""
    chunk = min(max(LOSS_CHUNK, LOSS_LOGITS // config.vocab_size) if on_gpu else LOSS_CHUNK, positions)
    probabilities = FP32 * (chunk if on_gpu else min(LOSS_TILE, positions)) * config.vocab_size
    head = config.vocab_size * config.width
    # Of the weights for the products, and of a chunk's gradient; or the logits, which are copied into fp32.
    copies = max(2 * size * head, probabilities if size < FP32 else 0) if is_shared else 2 * size * head
    logits = size * chunk * config.vocab_size + probabilities
    return logits + FP32 * head + copies + size * positions * config.width


def _evaluation_bytes(training: Pretraining, degrees: Degrees) -> int:
    """Return the bytes of states in a pass over held-out text, inside its largest MLP or at the head."""
    config, size, length = training.shape, training.number_bytes, training.phase.sequence_length
    positions = evaluated_rows(length) * length // (degrees.context * degrees.tensor)
    between = 4 if config.activation == "swiglu" else 2
    inner = 0 if config.experts.count and not config.experts.first_layer else between * config.mlp_width
    if config.experts.count:
        inner = max(inner, config.experts.active * (config.width + between * config.experts.width))
    entered = (degrees.tensor - 1) * config.width
    chunk = min(LOSS_CHUNK, positions)
    logits = config.vocab_size * (size * (chunk + config.width) + 2 * FP32 * chunk)
    return max(size * positions * (4 * config.width + entered + inner), logits + size * positions * config.width)


def host_bytes(training: Pretraining, run: Any) -> Needed:
    """Return the bytes of a node's own memory that its processes need together, if they train on GPUs."""
    _, held = _certain(training, Degrees.of(run), run.recompute, *training.passes(run), probabilities=False)
    copies = Degrees.of(run).sizes(run.nodes * run.processes)["replicate"]  # which divide a checkpoint
    return {
        "libraries": run.processes * LIBRARIES,
        "copies for checkpoints": run.processes * (held["weights"] + held["optimizer"]) // copies,
        "file of weights": min(FILE_BYTES, FP32 * training.shape.parameter_count),
    }


def disk_bytes(config: ModelConfig, recipe: PretrainRecipe, *, kept: int, steps: int = 0, states: int = 0) -> Needed:
    """Return the bytes of a training on disk: checkpoints, of which one is half written, the export, and kept steps.

    `states` of them are kept with the optimizer's state.
    """
    whole = FP32 * config.parameter_count
    held = whole + optimizer_bytes(config, recipe.optimizer_part) + (whole if recipe.average.kind != "none" else 0)
    checkpoints = kept + 1 + (OF_A_ROLLBACK if recipe.spikes.deviations else 0)
    steps_kept = {f"{steps} kept step{'s' if steps > 1 else ''}": steps * whole} if steps else {}
    states_kept = {f"{states} optimizer state{'s' if states > 1 else ''} of them": states * held} if states else {}
    return {f"{checkpoints} checkpoints": checkpoints * held, "export": whole, **steps_kept, **states_kept}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """What a post-training tunes, or what is scored; the model is transformers' own.

    shard: processes that share the model. positions: of all rows of a pass, of which the longest has `longest`.
    passes: of a process in a step; 0: nothing is trained. adapters: their weights; 0: all weights are trained. beside:
    weights of frozen models beside the model. drawn: positions of all prompts and answers of a process in a step.
    """

    shape: ModelConfig
    shard: int = 1
    replicas: int = 1
    positions: int = 1
    longest: int = 1
    passes: int = 1
    number_bytes: int = BF16
    recomputes: bool = False
    adapters: int = 0
    moments: int = 2
    is_reward: bool = False
    has_pairs: bool = False
    beside: int = 0
    drawn: int = 0

    @classmethod
    def of(cls, shape: ModelConfig, section: Any, run: Any, *, learns_from: str, is_reward: bool = False) -> Tuning:
        """Return what a section of a recipe tunes, in rows of `max_length` tokens: conversations, pairs or samples."""
        processes, shard = run.nodes * run.processes, run.shard if section.can_be_spread else 1
        share, row = max(1, section.batch_size // processes), section.max_length * (2 if learns_from == "pairs" else 1)
        rows = rows_in_pass(share, micro_batch_tokens=run.micro_batch_tokens, row_tokens=row)
        samples, whole = learns_from == "samples", cls(shape=shape)
        has_reference = samples and bool(section.beta) and not section.peft
        has_judge = samples and LEARNED in section.reward_weights
        return cls(
            shape=shape,
            shard=shard,
            replicas=processes // shard,
            positions=rows * row,
            longest=section.max_length,
            passes=share // rows,
            number_bytes=FP32 if section.precision == "fp32" else BF16,
            recomputes=any(section.trl.get(f"{name}_checkpointing") for name in ("activation", "gradient")),
            adapters=adapters_of(shape, section),
            moments=MOMENTS.get(section.trl.get("optim", OPTIM), 0),  # the states of others are not counted
            is_reward=is_reward,
            has_pairs=learns_from in ("pairs", "answers"),
            beside=whole.parameters * has_reference + replace(whole, is_reward=True).parameters * has_judge,
            drawn=share * section.max_length if samples else 0,
        )

    @classmethod
    def scored(cls, shape: ModelConfig, *, shard: int, rows: int, models: int = 1) -> Tuning:
        """Return a model that is scored on rows of its whole length, as one of `models` that a process holds."""
        beside = (models - 1) * shape.parameter_count
        return cls(shape=shape, shard=shard, positions=rows * shape.max_length, longest=shape.max_length, beside=beside)

    def with_rows_of(self, tokens: int) -> Tuning:
        """Return the same with rows of so many tokens."""
        positions, drawn = (number // self.longest * tokens for number in (self.positions, self.drawn))
        return replace(self, longest=tokens, positions=positions, drawn=drawn)

    @property
    def parameters(self) -> int:
        """Weights of the model; a reward model's head gives one number."""
        absent = self.is_reward and not self.shape.tied_embeddings
        return self.shape.parameter_count - (self.shape.vocab_size * self.shape.width if absent else 0)

    @property
    def head(self) -> int:
        """Bytes of the whole embedding, and so of the head."""
        return FP32 * self.shape.vocab_size * self.shape.width

    @property
    def block(self) -> int:
        """Bytes of a layer's weights, which FSDP gathers in fp32."""
        return FP32 * numbers_of(self.shape, Degrees())[1]


def adapters_of(shape: ModelConfig, section: Any) -> int:
    """Return the weights of a section's LoRA adapters, counted as if every linear layer had one; 0 if it has none.

    transformers has queries, keys and values in layers of their own. Experts are not counted.
    """
    if not section.peft:
        return 0
    sides = [sum(sides) for name, sides in parameter_shapes(shape) if name.startswith("blocks.") and len(sides) == 2]
    return section.peft.get("r", RANK) * (sum(sides) + 2 * shape.width * shape.layers)


def held_bytes(tuning: Tuning) -> Needed:
    """Return the bytes that a process of a post-training holds through its steps, by purpose."""
    share = FP32 * tuning.parameters // tuning.shard
    trained = FP32 * tuning.adapters or share
    held = {"weights": share, "adapters": FP32 * tuning.adapters, "optimizer": tuning.moments * trained}
    held |= {"gradients": trained, "models beside it": FP32 * tuning.beside // tuning.shard}
    return held | ({"messages of gradients": trained} if tuning.replicas > 1 == tuning.shard < tuning.passes else {})


def tuning_bytes(tuning: Tuning, *, gathers: bool = False) -> dict[str, Needed]:
    """Return the bytes that a process needs at each moment of a post-training on GPUs, by purpose.

    `gathers`: whether weights that processes share stay gathered while answers are drawn.
    """
    shape, held, size = tuning.shape, held_bytes(tuning), tuning.number_bytes
    residual = FP32 * tuning.positions * shape.width  # the residual stream, which autocast leaves in fp32
    layer = tuning.positions * size * (MLP_STATES * shape.mlp_width + STATES * shape.width) + FP32_STATES * residual
    loss = size * min(HEAD_TILE, shape.vocab_size) * (shape.width + min(HEAD_ROWS, tuning.positions)) + 3 * residual
    kept = residual * (shape.layers + 1)
    if not tuning.recomputes:
        kept += activation_bytes(shape, rows=1, length=tuning.positions, number_bytes=size, probabilities=False)
    copies = bf16_copies(shape) if size < FP32 else 0
    is_cast_once = tuning.shard == 1 and not tuning.adapters  # by autocast
    step = held | {
        "gradients": max(0, held["gradients"] - kept * (tuning.passes == 1)),  # those of an only pass replace states
        "states of all layers": kept,
        "a layer or the head at work": max(layer, 0 if tuning.is_reward else loss),
        "weights of all layers in bf16": copies if is_cast_once or not tuning.recomputes else 0,
    }
    if tuning.shard > 1:
        beside = max(tuning.head, tuning.block) + (1 if tuning.adapters else 3) * tuning.block
        ends = (2 - tuning.is_reward) * tuning.head + tuning.block
        step["gathered weights"] = ends if tuning.is_reward else max(ends, beside)
    elif not tuning.adapters:
        step["a gradient"] = tuning.head
    moments = {"step": step, "a pass without gradients": _between_bytes(tuning, copies * is_cast_once)}
    if tuning.drawn:
        drawn = replace(tuning, positions=tuning.drawn)
        moments["answers"] = held | {"gradients": 0} | answer_bytes(drawn, gathers=gathers)
    return moments


def with_libraries(moments: Mapping[str, Needed], *, on_gpu: bool) -> dict[str, Needed]:
    """Return the moments of post-training or scoring with what a process has before it opens a model."""
    libraries = {"libraries": CUDA_CONTEXT if on_gpu else TRANSFORMERS_LIBRARIES}
    return {name: {**needed, **libraries} for name, needed in moments.items()}


def _between_bytes(tuning: Tuning, copies: int) -> Needed:
    """Return the bytes of a pass without gradients: over a sample after the steps, or over the first pairs before."""
    held = held_bytes(tuning) | {"gradients": 0}
    words = 0 if tuning.has_pairs else tuning.shape.vocab_size  # whose logits are all there
    sample = max(tuning.longest, min(SAMPLE_ROWS * tuning.longest, PASS_TOKENS, PASS_LOGITS // max(1, words)))
    if tuning.has_pairs and not tuning.is_reward:
        held |= {"optimizer": 0, "weights of all layers in bf16": copies}
        return held | _read_bytes(replace(tuning, positions=max(sample, tuning.positions)))
    whole = replace(tuning, positions=sample, number_bytes=FP32, adapters=0)
    return held | _read_bytes(whole) | {"logits": FP32 * words * sample}


def scoring_bytes(tuning: Tuning, *, gathers: bool = False) -> dict[str, Needed]:
    """Return the bytes that a process needs to score a model: to read whole windows, and to answer.

    Products are in fp32. Rows are read in passes of PASS_TOKENS and PASS_LOGITS at most.
    """
    parts = {"weights": tuning.parameters, "models beside it": tuning.beside}
    held = {name: FP32 * number // tuning.shard for name, number in parts.items()}
    rows = max(tuning.longest, min(tuning.positions, PASS_TOKENS))
    windows = max(tuning.longest, min(rows, PASS_LOGITS // tuning.shape.vocab_size))
    read, drawn = (replace(tuning, positions=number, number_bytes=FP32) for number in (windows, rows))
    logits = FP32 * tuning.shape.vocab_size * (windows + tuning.longest)
    in_windows = held | _read_bytes(read) | {"logits": logits}
    return {"whole windows": in_windows, "answers": held | answer_bytes(drawn, gathers=gathers)}


def answer_bytes(tuning: Tuning, *, gathers: bool) -> Needed:
    """Return what drawing answers needs beside the weights that are held: keys and values, states, gathered weights."""
    shape, widths = tuning.shape, tuning.shape.head_widths
    keys = {"keys and values": FP32 * shape.layers * (widths.keys + widths.values) * tuning.positions}
    if tuning.shard == 1 or not gathers:
        return keys | _read_bytes(tuning)
    whole = tuning.number_bytes * shape.parameter_count + (FP32 - tuning.number_bytes) * tuning.head // FP32
    return keys | _read_bytes(replace(tuning, shard=1)) | {"gathered weights": whole}


def _read_bytes(tuning: Tuning) -> Needed:
    """Return what a pass without gradients needs beside the weights that are held."""
    shape = tuning.shape
    wide = READ_MLP_STATES + (tuning.adapters > 0)  # a layer's output, and that of its adapter
    states = tuning.number_bytes * wide * shape.mlp_width + FP32 * READ_STATES * shape.width
    gathered = (1 - tuning.is_reward) * tuning.head + 2 * tuning.block if tuning.shard > 1 else 0
    return {"states": tuning.positions * states, "gathered weights": gathered}


def training_operations(config: ModelConfig, phases: tuple[Any, ...]) -> float:
    """Return the operations of a pretraining, forward and backward, without recomputation."""
    batches = ((phase.steps * phase.global_batch_tokens, phase.sequence_length) for phase in phases)
    return sum(tokens * config.training_flops_per_token(length) for tokens, length in batches)


def tuning_operations(tuning: Tuning, *, tokens: float, length: int, has_reference: bool = False) -> float:
    """Return the operations of a post-training on so many tokens, in sequences of a mean `length`.

    The backward pass takes twice as many as the forward pass; below adapters no gradients of weights are computed. The
    reference reads all once.
    """
    forward = tuning.shape.training_flops_per_token(length) / 3
    return tokens * forward * (3 + tuning.recomputes - bool(tuning.adapters) + has_reference)
