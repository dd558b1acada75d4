"""Tables of text: their width, what is divided or left out, and characters that take two columns."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from training.contract.tables import folded, markdown_table, table_lines

HEAD = ("recipe", "documents", "why")


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_end_at_one_place():
    assert table_lines([("a", "7", "kept"), ("kitchen", "1,200", "")], head=HEAD, indent=2, right={1}) == [
        "  recipe   documents  why",
        "  a                7  kept",
        "  kitchen      1,200",
    ]


def test_a_wide_character_takes_two_columns():
    lines = table_lines([("日本", "1"), ("a", "2")])
    assert lines == ["日本  1", "a     2"]


@pytest.mark.parametrize("text", ["the words of a reason " * 8, "x" * 200, "料理の記事 " * 30])
def test_no_line_is_wider_than_the_terminal_and_nothing_is_lost(text):
    lines = table_lines([("kitchen", "1,200", text)], head=HEAD, indent=2)
    assert max(map(cell_len, lines)) <= 80 and "kitchen  1,200" in lines[1]
    assert "".join(line[20:] for line in lines[1:]).replace(" ", "") == text.replace(" ", "")


def test_no_number_is_divided_from_its_unit():
    lines = table_lines([("1.0 MB", "word " * 20)], indent=2, right={0})
    assert lines[0].startswith("  1.0 MB  word word")


def test_no_number_is_divided():
    row = ("some-name", "1,234,567,890", "deduplicated_documents")
    divided = table_lines([row], width=30, right={1})
    assert len(divided) > 1 and "1,234,567,890" in divided[0]


def test_markup_in_a_cell_or_in_the_title_is_text():
    lines = table_lines([("[bold]a[/bold]", ":smile:")], title="under /a[/b]/[red]")
    assert lines[0] == "under /a[/b]/[red]" and lines[-1] == "[bold]a[/bold]  :smile:"


def test_no_rows_are_no_lines():
    assert table_lines([], head=HEAD) == []


def test_a_long_line_is_folded_below_its_own_indent():
    assert folded("  " + "word " * 20) == ["  " + " ".join(["word"] * 15), "      " + " ".join(["word"] * 5)]
    assert folded("") == [""]


def test_a_table_in_markdown():
    assert markdown_table(("exam", "score"), [("chat", "0.5")]) == ["| exam | score |", "|---|---|", "| chat | 0.5 |"]
