"""What Dagster shows of a materialization."""

from __future__ import annotations

from assets.graph.result import _count_metadata

ROOM = 24  # letters that the overview of an asset has for them at 1,280 pixels


def test_the_funnel_names_rules_by_number_and_fits_the_page():
    dropped = {"gopher_repetition:top_2_gram": 3, "gopher_repetition:top_4_gram": 4, "language:other_language": 5}
    counts = {"in": 15, "kept": 2, "dropped": dropped, "quarantined": {"truncated": 1}}
    shown = [(row.data["number"], row.data["records"]) for row in _count_metadata(counts)["funnel"].records]
    assert shown[:2] == [(15, "in"), (2, "kept")]
    assert shown[2:] == [(7, "gopher_repetition"), (5, "language"), (1, "truncated, quarantined")]
    assert max(len(words) for _, words in shown) <= ROOM
