from __future__ import annotations

from assets.graph.evidence import MOST_ROWS, evidence_of


def test_numbers_stay_numbers_and_what_is_nested_is_a_table():
    shown = evidence_of({"loss": 0.5, "verdict": "clean", "findings": [], "found": {"cloze": 0.25, "chat": {"all": 0}}})
    assert (shown["loss"], shown["verdict"], shown["findings"]) == (0.5, "clean", "none")
    rows = [dict(row.data) for row in shown["found"].records]
    assert rows == [{"name": "cloze", "value": "0.25"}, {"name": "chat.all", "value": "0"}]


def test_a_list_of_findings_is_a_table_that_says_how_many_more_there_are():
    shown = evidence_of({"findings": [{"item": number, "why": "x" * 200} for number in range(MOST_ROWS + 2)]})
    table = shown["findings"]
    assert [column.name for column in table.schema.columns] == ["item", "why"]
    assert len(table.records) == MOST_ROWS + 1 and table.records[-1].data["item"] == "… 2 more"
    assert max(len(row.data["why"]) for row in table.records) == 90
