"""The benchmark of provenance at toy size, and whether it notices a step that is not the document's."""

from __future__ import annotations

import argparse
import gc

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


def test_the_documents_of_a_step_are_those_of_its_sidecars_and_garbage_is_collected_again(options):
    tracer, told = {}, {}

    def look(make, *_):
        tracer["made"] = made = make()
        training = made.trainings[0]
        told["step"] = made.step(0, training=training.name)["documents"]
        told["pages"] = [made.document(one["id"])["pages"][0] for one in told["step"][:20]]
        return {}

    real, trace.timed = trace.timed, look
    try:
        trace.ask(options)
    finally:
        trace.timed = real
    assert gc.isenabled() and len(told["step"]) > 3
    for one, page in zip(told["step"], told["pages"], strict=False):
        assert [one[name] for name in ("url", "warc_file", "warc_offset")] == [
            page[name] for name in ("url", "warc_file", "warc_offset")
        ]
        assert one["shard"]["document"] == page["shard"]["document"] and one["shard"]["path"] == page["shard"]["path"]
        assert one["tokens_in_batch"] == sum(piece["tokens"] for piece in one["pieces"]) > 0
