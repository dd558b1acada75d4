"""A base model with random weights, as an objective that sees ahead leaves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.pretrain.objectives.settings import MASK_TOKEN, sentinel_token

SPECIAL = (MASK_TOKEN, *map(sentinel_token, range(6)))


@pytest.fixture(scope="session")
def own_folder(tmp_path_factory) -> Path:
    """The folder of an artifact with a model in Pedigree's own layout, every layer of which changes something."""
    import torch

    from tests.training.pretrain import tiny
    from training.pretrain.models import export
    from training.pretrain.stages.pretrain import model_shape

    root = tmp_path_factory.mktemp("own")
    tokenizer = Path(tiny.make_tokenizer(root / "tokenizer", more=SPECIAL).path)
    model, draw = tiny.built(model_shape(tiny.MODEL, tokenizer), tiny.PRETRAIN), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=draw) * 0.3)
    export.write_model(model, root / "model", tokenizer=tokenizer, eos_id=tiny.EOS, own_layout=True)
    return root
