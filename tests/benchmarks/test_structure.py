"""The measure of code and tables: what it reads from a page, and when a line or a cell counts as kept."""

from __future__ import annotations

from benchmarks.structure import has_some, kept, paragraphs, structure

PAGE = (
    b"<nav><table><tr><td>a<td>b<tr><td>c<td>d</table></nav><pre>x = 1\n\n  y = 2</pre><pre hidden>z = 3</pre>"
    b"<table><tr><td>strcat<td>joins two strings<tr><td>strlen<td>counts</table><table><tr><td>alone</table>"
)


def test_lines_and_cells_are_those_that_the_page_shows():
    page = structure(PAGE)
    assert page.lines == ["x=1", "y=2"]
    assert page.cells == ["strcat", "joinstwostrings", "strlen", "counts"]


def test_a_line_of_the_text_answers_for_one_line_only_and_a_cell_stands_between_tabs():
    page = structure(PAGE.replace(b"y = 2", b"x = 1"))
    assert kept(page, "x = 1\nstrcat\tjoins two strings\n• strlen\tcounts") == (1, 4)
    assert kept(page, "x = 1\n  x = 1\nas strcat joins two strings") == (2, 0)


def test_paragraphs_are_long_sentences_outside_of_navigation_and_one_of_them_is_enough():
    said = [f"The {thing} rests until it has <em>doubled</em> in size. {'It takes an hour. ' * 4}" for thing in "abc"]
    link = f"<p><a href=x>{said[0]}</a> Yes.</p>"
    html = f"<nav><p>{said[0]}</p></nav>{link}<p>Short.</p><p>{said[1]}</p><div><p>{said[2]} and so on</p></div>"
    (prose,) = paragraphs(html.encode())
    assert prose.startswith("Thebrestsuntilithasdoubledinsize.")
    assert has_some([prose, "x" * 99], "• The b\trests until it has doubled\nin size")
    assert not has_some([prose], "The b")
