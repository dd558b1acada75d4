"""The benchmark of rates: a line through what an asset took with little and with much work."""

from __future__ import annotations

from benchmarks.rates import LEAST_SECONDS, line, unit_of


def test_a_rate_is_the_line_through_the_least_and_the_most_work():
    assert line([(300, 5.0), (100, 3.0), (200, 9.0)], "tokenizer") == {"start": 2.0, "each": 0.01, "unit": "pages"}
    assert line([(100, 3.0)], "tokenizer") == {"start": 3.0, "each": 0.0, "unit": "pages"}
    assert line([(100, 3.0), (200, 1.0)], "tokenizer") == {"start": 1.0, "each": 0.0, "unit": "pages"}, "never negative"
    assert line([(0, 0.1)], "promoted_model") == {"start": LEAST_SECONDS}


def test_work_is_counted_in_pages_operations_or_weights():
    assert [unit_of(asset) for asset in ("token_shards", "base_model", "sft_model", "model_card")] == [
        "pages",
        "flop",
        "weights_times_examples",
        "",
    ]
