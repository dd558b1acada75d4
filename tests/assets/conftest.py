"""The kitchen's recipe, and a root of each module's own with all its artifacts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hook import Hook, webhook
from training.recipe.recipe import Recipe


@pytest.fixture(scope="module")
def kitchen() -> Recipe:
    from assets.state.recipe_folders import load_recipe

    return load_recipe("kitchen")


@pytest.fixture(scope="module")
def made(kitchen: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.assets.fabricate import make_all

    root = tmp_path_factory.mktemp("root")
    make_all(kitchen, root)
    return root


@pytest.fixture
def without_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run in this process starts a writer to MLflow, 3 s of processor time: who waits for reports sends them."""
    from resources.tracking import reports
    from tests.assets.promotable import WithoutWriter

    monkeypatch.setattr(reports, "start_writer", lambda uri, root: None)
    monkeypatch.setattr(reports.Tracking, "flush", WithoutWriter.flush)


@pytest.fixture
def hook() -> Iterator[Hook]:
    with webhook() as served:
        yield served


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: Hook) -> str:
    """The path of a profile that tells the webhook."""
    monkeypatch.setenv("HOOK", hook.address)
    path = tmp_path / "told.yaml"
    path.write_text('{name: told, notify: {webhook: "${HOOK}", ui: "https://ui.example/"}}')
    return str(path)
