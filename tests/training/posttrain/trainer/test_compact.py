"""Passes without padding have the outputs and gradients of TRL's passes, and it is said where they cannot be made."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from tests.training.posttrain import tiny
from tests.training.posttrain.align.test_align import DPO, RL, inputs
from tests.training.posttrain.conftest import SFT
from training.contract.progress import MESSAGES_FILE, METRICS_FILE, read_metrics
from training.generate.passes import compact as passes
from training.posttrain.trainer import compact

OUTPUTS = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")
SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 1,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2}


def both_of(family, outputs=OUTPUTS, temperature=1.0, **options):
    """A random model that makes compact passes, and a copy that makes TRL's."""
    from trl.trainer.utils import add_fused_lm_head

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**{**SIZES, **options}))
    padded = copy.deepcopy(model)
    module = SimpleNamespace(add_fused_lm_head=add_fused_lm_head)
    compact.without_padding(module)
    module.add_fused_lm_head(model, outputs=outputs, temperature=temperature)
    add_fused_lm_head(padded, outputs=outputs, temperature=temperature)
    return model, padded


def batch(*, left=False):
    """Rows of many lengths: three begin alike, two are equal, others have almost one length, one has nothing trained.

    Of the three and the two rows of almost one length, the two are longer than a block.
    """
    generator = torch.Generator().manual_seed(1)
    lengths = [70, 100, 90, 63, 63, 300, 20, 45, 47, 47, 298]
    ids = torch.randint(2, 300, (len(lengths), max(lengths)), generator=generator)
    ids[1, :60], ids[2, :55], ids[4] = ids[0, :60], ids[0, :55], ids[3]
    mask = torch.stack([torch.arange(max(lengths)) < length for length in lengths]).long()
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :18], labels[2, 80:], labels[6] = -100, -100, -100
    if left:
        ids, mask, labels = (
            torch.stack([row.roll(max(lengths) - length) for row, length in zip(one, lengths, strict=True)])
            for one in (ids, mask, labels)
        )
    return {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask, "labels": labels}


def gradients(model, found):
    """Of a weighted sum of log-probabilities and entropies, as in the losses of TRL."""
    weights = torch.randn(found.log_probs.shape, generator=torch.Generator().manual_seed(2))
    (found.log_probs * weights + 0.1 * found.entropy * weights.flip(0)).sum().backward()
    return {name: weight.grad for name, weight in model.named_parameters()}


def assert_alike(model, padded, given, *, limit=2e-6):
    """`limit` is of the largest log-probability, and of the largest number in the gradients of all weights.

    It allows for fp32's rounding of sums in another order: 1.1e-6 was seen.
    """
    one, other = (each(**given, fused_lm_head=True, use_cache=False) for each in (model, padded))
    assert torch.equal(one.label_mask, other.label_mask) and torch.equal(one.is_top1, other.is_top1)
    for name in OUTPUTS[:-1]:
        difference = (getattr(one, name) - getattr(other, name)).detach().abs().max()
        assert difference <= limit * max(1, float(getattr(other, name).detach().abs().max())), name
    theirs = gradients(padded, other)
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    for name, gradient in gradients(model, one).items():
        assert float((gradient - theirs[name]).abs().max()) <= limit * largest, name


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("family", passes.FAMILIES)
def test_a_compact_pass_has_the_outputs_and_gradients_of_trl(family, left):
    options = EXPERTS if family == "qwen3_moe" else {"sliding_window": 512} if family == "olmo3" else {}
    model, padded = both_of(family, temperature=0.7, **options)
    assert passes.why_padded(model) == ""
    assert_alike(model, padded, batch(left=left))


def test_more_probabilities_than_may_be_kept_are_computed_twice(monkeypatch):
    monkeypatch.setattr(compact, "KEPT_LOGITS", 300)
    assert_alike(*both_of("llama"), batch())


def test_in_bf16_the_log_probabilities_are_those_of_trl_up_to_its_rounding():
    model, padded = both_of("llama")
    padded.set_attn_implementation("eager")
    given = {**batch(), "fused_lm_head": True, "use_cache": False}
    exact = padded(**given).log_probs
    with torch.autocast("cpu", torch.bfloat16):
        one, other = (each(**given) for each in (model, padded))
    theirs = float((other.log_probs - exact).detach().abs().max())
    assert 0 < float((one.log_probs - exact).detach().abs().max()) < 2 * theirs
    mine = gradients(model, one)
    for name, gradient in gradients(padded, other).items():
        assert torch.nn.functional.cosine_similarity(mine[name].flatten(), gradient.flatten(), dim=0) > 0.999, name


def test_what_rows_share_and_what_follows_their_last_trained_token_is_not_computed():
    given = batch()
    packed = passes.pack(given["input_ids"], given["attention_mask"].bool(), given["labels"][:, 1:] != -100)
    # Each row without its last token, after which nothing is trained; 55 tokens that three rows share, and a row twice.
    needed = (69 + 99 + 79 - 2 * 55) + 62 + (299 + 297) + (44 + 46 + 46)
    padding = 2 + 2
    assert len(packed.tokens_N) == needed + padding
    assert sum(piece.tokens for piece in packed.pieces) == len(packed.tokens_N)
    assert sorted(piece.length for piece in packed.pieces if piece.start >= 0) == [14, 24, 44]
    assert [(piece.rows, piece.length) for piece in packed.pieces if piece.rows > 1] == [(2, 299), (3, 46)]


REASONS = {
    "models of the family gpt2": lambda model: setattr(model.config, "model_type", "gpt2"),
    "has dropout": lambda model: setattr(model.config, "attention_dropout", 0.1),
    "a window of 16 tokens": lambda model: setattr(model.config, "sliding_window", 16),
    "the router's balance": lambda model: setattr(model.config, "output_router_logits", True),
    "computes each layer twice": lambda model: model.gradient_checkpointing_enable(),
}


@pytest.mark.parametrize("reason", REASONS)
def test_a_model_that_needs_padding_makes_the_passes_of_trl(reason, monkeypatch):
    model, padded = both_of("llama")
    REASONS[reason](model.train())
    assert reason in passes.why_padded(model)
    monkeypatch.setattr(passes, "pack", lambda *_: pytest.fail("the pass is compact"))
    if "window" in reason or "twice" in reason:
        assert_alike(model, padded, batch())
    elif "router" not in reason:
        model(**batch(), fused_lm_head=True)


def test_a_model_that_is_divided_among_processes_makes_the_passes_of_trl(monkeypatch):
    monkeypatch.setattr(passes, "is_spread", lambda _: True)
    assert "divided" in passes.why_padded(both_of("llama")[0])


def test_a_pass_without_trained_tokens_is_that_of_trl():
    model, padded = both_of("llama")
    given = {**batch(), "fused_lm_head": True, "use_cache": False}
    given["labels"] = torch.full_like(given["labels"], -100)
    assert torch.equal(model(**given).log_probs, padded(**given).log_probs)


STAGES = {
    "sft": ("sft", {**SFT, "epochs": 2}),
    "dpo": ("align", {**DPO, "epochs": 1}),
    "kto": ("align", {**DPO, "epochs": 1, "method": "kto"}),
    "grpo": ("align", RL),
    "rloo": ("align", {**RL, "method": "rloo"}),
    "dpo-adapters": ("align", {**DPO, "epochs": 1, "peft": {"r": 4}}),
}


@pytest.mark.parametrize("name", STAGES)
def test_a_training_has_the_losses_and_metrics_of_trl_and_says_whose_passes_it_made(chain, tmp_path, monkeypatch, name):
    stage, settings = STAGES[name]
    read = (
        tuple(tiny.made(chain, asset) for asset in ("base_model", "instruction_data"))
        if stage == "sft"
        else inputs(chain, settings["method"])
    )
    own = tiny.run(stage, tmp_path / "own", {stage: settings}, read)
    monkeypatch.setattr(compact, "why_padded", lambda model: "a test wants it")
    theirs = tiny.run(stage, tmp_path / "theirs", {stage: settings}, read)
    sides = [tmp_path / side for side in ("own", "theirs")]
    steps = [[numbers for numbers in read_metrics(side / METRICS_FILE) if "loss" in numbers] for side in sides]
    assert len(steps[0]) == len(steps[1]) > 0
    for one, other in zip(*steps, strict=True):
        assert one.keys() == other.keys()
        for measured in one.keys() - {"time", "step_time"}:
            assert one[measured] == pytest.approx(other[measured], rel=1e-3, abs=1e-4), measured
    assert "padded_passes" not in own["notes"] and theirs["notes"]["padded_passes"] == "a test wants it"
    assert ["compute padding" in (side / MESSAGES_FILE).read_text() for side in sides] == [False, True]
