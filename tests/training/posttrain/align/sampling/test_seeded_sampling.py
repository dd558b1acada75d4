"""Random draws of answers: by their probabilities, and each from its own seed."""

from __future__ import annotations

import pytest
import torch

from training.posttrain.align.sampling.sampled import prompt_order
from training.posttrain.align.settings import AlignRecipe


def drawn(logits, seeds, tmp_path, *, steps=1, **settings):
    from trl.trainer.grpo_config import GRPOConfig

    from training.posttrain.align.sampling.seeded_sampling import Drawn

    args = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, max_completion_length=steps, **settings)
    draw = Drawn(args, [[0]] * len(seeds), seeds, fill=0, device=torch.device("cpu"))
    rows = torch.tensor(logits).expand(len(seeds), -1)
    return torch.stack([draw(rows) for _ in range(steps)], dim=1)


def test_tokens_are_drawn_by_their_probabilities(tmp_path):
    logits, number = [0.0, 1.0, 2.0, -9.0, 0.5], 40_000
    found = drawn(logits, range(number), tmp_path, temperature=0.7).flatten().bincount(minlength=5) / number
    expected = (torch.tensor(logits) / 0.7).softmax(-1)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=4 * (0.25 / number) ** 0.5)


@pytest.mark.parametrize("settings", [{"top_k": 2}, {"top_p": 0.7}, {"min_p": 0.3}], ids=str)
def test_tokens_are_drawn_only_from_those_that_the_settings_leave(settings, tmp_path):
    assert set(drawn([0.0, 1.0, 2.0, -9.0, 0.5], range(500), tmp_path, **settings).flatten().tolist()) == {1, 2}


def test_an_answer_is_drawn_alike_among_other_answers(tmp_path):
    together = drawn([0.1, 0.3, 0.2], [7, 8, 9], tmp_path, steps=20)
    assert torch.equal(drawn([0.1, 0.3, 0.2], [9, 4], tmp_path, steps=20)[0], together[2])
    assert not torch.equal(together[0], together[1])


def test_each_epoch_has_every_prompt_once_in_another_order():
    recipe = AlignRecipe(method="grpo", epochs=2.5, batch_size=8, num_generations=4)
    order = prompt_order(10, recipe)
    assert len(order) == 25 and sorted(order[:10]) == sorted(order[10:20]) == list(range(10))
    assert order[:10] != order[10:20] and order[:10] != list(range(10))
    steps = AlignRecipe(method="grpo", max_steps=3, batch_size=8, num_generations=4)
    assert prompt_order(10, steps) == order[:6]
    plain = AlignRecipe(method="grpo", max_steps=6, num_generations=4, batch_size=8, trl={"shuffle_dataset": False})
    assert prompt_order(10, plain) == [*range(10), 0, 1]
