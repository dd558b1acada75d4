"""What a run says of itself while it goes on, and that being watched changes nothing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.training.pretrain.tiny import TinyChain, work_in  # noqa: E402
from training.contract.progress import METRICS_FILE, read_metrics  # noqa: E402
from training.pretrain.stages import pretrain as stage  # noqa: E402


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> TinyChain:
    return TinyChain(tmp_path_factory.mktemp("watch"))


def made(chain: TinyChain, name: str, **run: int):
    folder = chain.root / "base_model" / name
    work, said = work_in(folder), []
    work.progress.message = lambda text, **_: said.append(text)
    stage.run(chain.job(name, **run), work)
    return read_metrics(folder / METRICS_FILE), (folder / "model" / "model.safetensors").read_bytes(), said


def test_a_run_says_how_it_goes_as_often_as_asked_and_its_weights_stay_the_same(chain):
    rows, weights, _ = made(chain, "a")
    often, same, said = made(chain, "b", sample_steps=5, evaluation_steps=2)
    assert weights == same
    steps = [row["step"] for row in rows if "loss" in row]
    assert steps == list(range(1, 13))
    for row in rows:
        if "loss" in row:
            assert 0 < row["data_wait_seconds"] < 5 and row["peak_memory_bytes"] > 50e6
            assert {"gradient_norm", "learning_rate", "tokens_per_second", "teraflops_per_second"} <= set(row)
    assert [row["step"] for row in rows if "sample" in row] == [3, 6, 9, 12]
    assert [row["step"] for row in often if "sample" in row] == [5, 10, 12]
    looked = [row["step"] for row in often if "held_out_bits_per_byte_web" in row]
    assert looked == [2, 4, 6, 8, 10, 12]
    # A line in Dagster's log at each look at held-out text, but the last, which is the artifact's metrics.
    lines = [line for line in said if " of 12: " in line]
    assert [line.partition(" of ")[0] for line in lines] == [f"step {step}" for step in looked[:-1]]
    for name in (
        "loss",
        "gradient norm",
        "learning rate",
        "tokens per second",
        "data wait seconds",
        "peak memory bytes",
    ):
        assert all(f"{name} " in line for line in lines)
    assert all("held out bits per byte web " in line for line in lines)
