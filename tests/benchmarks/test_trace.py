"""The benchmark of provenance at toy size, and whether it notices a step that is not the document's."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import trace
from training.provenance.steps import Steps


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> argparse.Namespace:
    place = tmp_path_factory.mktemp("trace")
    given = argparse.Namespace(place=place, pages=3_000, both_ways=30)
    assert trace.generate(given)["pages"] == 3_000
    assert 10 < trace.build(given)["bytes_a_page"] < 60
    return given


def test_documents_go_both_ways_and_questions_are_timed(options, monkeypatch):
    monkeypatch.setattr(trace, "TIMED", 2)
    told = trace.ask(options)
    assert told["both_ways"] == 30 and 1 < told["of_them_in_steps"] < 30
    assert all(
        told[f"{name}_{how}_ms"] > 0 for name in ("step", "url", "domain", "takedown") for how in ("cold", "warm")
    )


def test_a_wrong_step_ends_the_benchmark(options, monkeypatch, capsys):
    seen = Steps.seen
    monkeypatch.setattr(
        Steps,
        "seen",
        lambda self, documents: {
            name: [one._replace(row=one.row + 1) for one in some] for name, some in seen(self, documents).items()
        },
    )
    with pytest.raises(SystemExit):
        trace.ask(options)
    assert "differs" in capsys.readouterr().err
