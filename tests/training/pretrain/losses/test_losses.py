"""Losses in chunks: each form against the definition, by hand, compiled, and from the user's own environment."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.training.pretrain import tiny
from training.contract.parts.outside import NoSettings, PartFailed
from training.contract.records import RecipeError
from training.order.loss_mask import IGNORED
from training.pretrain.losses import chunked
from training.pretrain.losses.chunked import ChunkedLoss, Taught, target_scores, token_losses
from training.pretrain.losses.distillation import DISTILLATION
from training.pretrain.losses.loss import ChosenLoss, LogitRows, Loss
from training.pretrain.losses.settings import DistillRecipe, LossRecipe
from training.pretrain.losses.terms import LOSSES
from training.pretrain.settings import PretrainRecipe

FORMS = {**LOSSES, "distillation": DISTILLATION}


def loss_of(part: Loss = LOSSES["cross_entropy"], softcap: float = 0.0, teacher_softcap: float = 0.0, **recipe):
    chosen = ChosenLoss(part=part, recipe=LossRecipe(**recipe), settings=NoSettings())
    return ChunkedLoss(chosen, softcap=softcap, teacher_softcap=teacher_softcap)


def draws(count: int, *, vocabulary: int = 20, width: int = 8, seed: int = 0):
    """Hidden states, a head, and targets of which every seventh is IGNORED."""
    generator = torch.Generator().manual_seed(seed)
    hidden, head = (torch.randn(n, width, generator=generator, requires_grad=True) for n in (count, vocabulary))
    targets = torch.randint(vocabulary, (count,), generator=generator)
    targets[::7] = IGNORED
    return hidden, head, targets


@pytest.fixture(params=["by hand", "to be compiled"])
def form(request, monkeypatch):
    """Whether the loss is computed in the form that is given to the compiler, here without it."""
    monkeypatch.setattr(torch, "compile", lambda call: call)
    return {"compiled": request.param == "to be compiled"}


def assert_same(ours, plain, *by):
    assert torch.allclose(ours, plain)
    for one, other in zip(torch.autograd.grad(ours, by), torch.autograd.grad(plain, by), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("chunk", [None, 2048, 4096])
def test_chunked_loss_and_its_gradients_equal_the_plain_ones(form, chunk, monkeypatch):
    if chunk:  # as on a GPU
        monkeypatch.setattr(chunked, "chunk_rows", lambda vocabulary, on_gpu: chunk)
    hidden, head, targets = draws(2500)
    plain = torch.nn.functional.cross_entropy(hidden @ head.t(), targets, reduction="sum", ignore_index=IGNORED) / 100
    assert_same(loss_of()(hidden, head, targets, scale=0.01, **form)[0], plain, hidden, head)
    assert torch.allclose(token_losses(hidden, head, targets).sum() / 100, plain)


def test_a_gpu_has_more_rows_at_once_if_the_vocabulary_is_small():
    assert chunked.chunk_rows(32_768, on_gpu=True) == 4096
    assert chunked.chunk_rows(128_256, on_gpu=True) == 1046 and chunked.chunk_rows(300_000, on_gpu=True) == 1024
    assert chunked.chunk_rows(32_768, on_gpu=False) == 1024


@pytest.mark.parametrize(("softcap", "z_loss"), [(0.0, 0.01), (3.0, 0.0), (3.0, 0.01)])
def test_softcap_and_z_loss_equal_their_definitions(softcap, z_loss, form):
    hidden, head, targets = draws(30)
    logits = hidden @ head.t()
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    trained = targets != IGNORED
    likelihood = torch.nn.functional.cross_entropy(logits[trained], targets[trained], reduction="sum") * 0.1
    plain = likelihood + 0.1 * z_loss * logits[trained].logsumexp(-1).square().sum()
    ours, reported, each = loss_of(softcap=softcap, z_loss=z_loss)(hidden, head, targets, scale=0.1, **form)
    assert torch.allclose(reported, likelihood) and not reported.requires_grad
    assert_same(ours, plain, hidden, head)
    losses = token_losses(hidden, head, targets, softcap=softcap)
    assert torch.allclose(losses.sum() * 0.1, likelihood) and torch.allclose(each, losses) and not each.requires_grad
    found, others = target_scores(hidden, head, targets, softcap=softcap)
    assert torch.allclose(found, losses) and (others[~trained] == 0).all()
    assert (others[trained].bool() == (logits.argmax(-1) != targets)[trained]).all()


@pytest.mark.parametrize("name", [name for name, part in FORMS.items() if part.gradients])
@pytest.mark.parametrize("recipe", [LossRecipe(), LossRecipe(z_loss=0.1, distill=DistillRecipe(temperature=2.5))])
def test_the_form_by_hand_is_the_derivative_of_the_values(name, recipe):
    part, (hidden, head, targets) = FORMS[name], draws(30)
    logits = (hidden @ head.t()).detach().requires_grad_()
    rows = LogitRows(logits, targets, torch.randn(logits.shape, generator=torch.Generator().manual_seed(1)))
    weights = (targets != IGNORED) * torch.linspace(0.5, 2.0, len(targets))
    values = part.values(rows, recipe, part.settings())
    (expected,) = torch.autograd.grad((values * weights).sum(), logits)
    with torch.no_grad():
        made = part.gradients(rows, weights, recipe, part.settings())
    trained = weights > 0
    assert torch.allclose(made.values[trained], values[trained], atol=1e-6)
    assert torch.allclose(made.gradients, expected, atol=1e-6)
    assert torch.allclose(made.nats[trained], token_losses(hidden, head, targets)[trained], atol=1e-6)


# while it traces, torch hides warnings about what it does itself; here they would be errors before that
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FORMS)
def test_a_loss_is_compiled_once_for_all_steps(name, monkeypatch, compile_counter):
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call: compiler(call, backend=compile_counter))
    hidden, head, targets = draws(128)
    loss = loss_of(FORMS[name], distill=DistillRecipe(temperature=2.0))
    taught = Taught(*(one.detach() for one in draws(128, width=9, seed=1)[:2])) if name == "distillation" else None
    for scale in (0.1, 0.2, 0.3):  # of a step with another number of trained tokens
        given = {"scale": scale, "taught": taught}
        assert_same(*(loss(hidden, head, targets, **given, compiled=form)[0] for form in (True, False)), hidden, head)
    assert 1 <= compile_counter.frame_count <= 2  # the second is for any scale


def test_z_loss_by_hand():
    # Logits 0 and log 3: Z = 4, so the loss of the second is log(4 / 3), and z adds 0.5 · log²4.
    head = torch.tensor([[0.0], [3.0]]).log().nan_to_num(neginf=0.0)
    ours, likelihood, _ = loss_of(z_loss=0.5)(torch.ones(1, 1), head, torch.tensor([1]), scale=1.0)
    assert likelihood.item() == pytest.approx(math.log(4 / 3))
    assert ours.item() == pytest.approx(math.log(4 / 3) + 0.5 * math.log(4) ** 2)


def test_a_token_that_was_ruled_out_has_the_loss_of_its_logit(form):
    # its probability is below all fp32 numbers
    head = torch.tensor([[0.0], [200.0]])
    loss, *_ = loss_of()(torch.ones(1, 1), head, torch.tensor([0]), scale=1.0, **form)
    assert loss.item() == pytest.approx(200.0)


# From the user's own environment


def pretrain(place: str, **given) -> PretrainRecipe:
    return replace(tiny.PRETRAIN, loss="mine", parts={"mine": {"from": place, **given}})


@pytest.mark.usefixtures("examples")
def test_a_loss_from_outside_is_differentiated_and_logs_the_likelihood(form):
    hidden, head, targets = draws(100)
    loss = ChunkedLoss(pretrain("focal:loss", gamma=2.0).chosen_loss)
    ours, likelihood, _ = loss(hidden, head, targets, scale=0.5, **form)
    nats = torch.nn.functional.cross_entropy(hidden @ head.t(), targets, reduction="none", ignore_index=IGNORED)
    assert_same(ours, 0.5 * ((1 - torch.exp(-nats)) ** 2 * nats).sum(), hidden, head)
    assert likelihood.item() == pytest.approx(0.5 * nats.sum().item(), rel=1e-6)


LOSS = """
from training.pretrain.losses.loss import Gradients, Loss, nats
def values(rows, recipe, settings):
    {values}
def gradients(rows, weights, recipe, settings):
    {gradients}
loss = Loss(values=values, gradients={by_hand})
"""


@pytest.mark.parametrize(
    ("values", "gradients", "said"),
    [
        ("return 1 / 0", "", "failed: ZeroDivisionError"),
        ("return nats(rows).sum()", "", r"returned the shapes \[\(\)\]; they must be \[\(6,\)\]"),
        (
            "return nats(rows)",
            "return Gradients(nats(rows), nats(rows), nats(rows))",
            r"returned the shapes .*\(6, 20\)",
        ),
    ],
)
def test_what_fails_in_a_loss_is_told_under_its_name(write, values, gradients, said):
    module = write(
        LOSS.format(values=values, gradients=gradients or "pass", by_hand="gradients" if gradients else None)
    )
    loss = ChunkedLoss(pretrain(f"{module}:loss").chosen_loss)
    with pytest.raises(PartFailed, match=f"loss mine {said}"):
        loss(*draws(6), scale=1.0)


@pytest.mark.usefixtures("examples")
def test_a_loss_is_checked_when_the_recipe_is_read():
    with pytest.raises(RecipeError, match=r"pretrain\.distill: not with .* loss mine"):
        replace(pretrain("focal:loss"), distill=DistillRecipe(teacher="x"))
    with pytest.raises(RecipeError, match=r"pretrain\.parts\.cross_entropy: .* is a part of Pedigree's"):
        replace(tiny.PRETRAIN, parts={"cross_entropy": {"from": "focal:loss"}})
