"""The limit on the norm of all gradients."""

from __future__ import annotations

import pytest
import torch

from training.pretrain.optim.clipping import clip_gradients, gradient_norm


def test_clipping_is_by_the_norm_of_all_gradients_together():
    parameters = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    parameters[0].grad, parameters[1].grad = torch.tensor([2.0, 2.0]), torch.tensor([1.0])
    norm = gradient_norm(parameters).item()
    assert norm == pytest.approx(3.0)
    clip_gradients(parameters, norm=norm, limit=1.5)
    assert gradient_norm(parameters).item() == pytest.approx(1.5)
    clip_gradients(parameters, norm=1.5, limit=None)
    assert gradient_norm(parameters).item() == pytest.approx(1.5)
