"""The toy chain up to the reward model, made once: importing the trainers costs more than training these models."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import pytest

from tests.training.posttrain import tiny

SFT = {
    "epochs": 12,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "max_length": 96,
    "precision": "fp32",
    "data": [{"uri": "x"}],
}
REWARD = {"epochs": 6, "batch_size": 8, "learning_rate": 3e-3, "max_length": 96, "precision": "fp32"}


@pytest.fixture(autouse=True)
def libraries_warn():
    """What the libraries say about their own future is theirs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def make_chain(root: Path) -> Path:
    """Make base_model, instruction_data, preference_data, sft_model and reward_model under `root`, and return it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny.write_model(root / "base_model" / "model")
        base = tiny.commit(root, "base_model")
        sft_source = tiny.write_rows(root / "sft.jsonl", tiny.conversations())
        pair_source = tiny.write_rows(root / "pairs.jsonl", tiny.preference_rows())
        tiny.run("instructions", root / "instruction_data", {"sft": {"data": [{"uri": sft_source}]}})
        tiny.run(
            "preferences",
            root / "preference_data",
            {"preferences": {"data": [{"uri": pair_source, "format": "chosen_rejected"}], "held_out_fraction": 0.25}},
        )
        tiny.run("sft", root / "sft_model", {"sft": SFT}, (base, tiny.made(root, "instruction_data")))
        sft, pairs = tiny.made(root, "sft_model"), tiny.made(root, "preference_data")
        tiny.run("reward", root / "reward_model", {"reward": REWARD}, (sft, pairs))
    return root


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with base_model, instruction_data, preference_data, sft_model and reward_model."""
    return make_chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture
def killed_at(monkeypatch: pytest.MonkeyPatch):
    """A context in which a trainer dies at a step, as if its process were gone; nothing is saved on the way out."""

    @contextlib.contextmanager
    def context(step: int):
        from training.posttrain.trainer import fit

        original = fit.Reporter.on_step_end

        def die(self, args, state, control, **more):
            if state.global_step == step:
                raise KeyboardInterrupt
            return original(self, args, state, control, **more)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(fit.Reporter, "on_step_end", die)
            yield

    return context
