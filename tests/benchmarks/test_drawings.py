"""The pictures of README.md: whole SVG files that fetch nothing and say what the run said."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from rich.text import Text

from benchmarks import pictures
from tests.test_project import PROJECT

STAGES = {"s": [{"asset": "extracted_documents", "in": 9, "kept": 7, "dropped": {"a:b": 2}, "quarantined": {}}]}
FINDINGS = [
    {"item": f"chat/{number}", "text": "Which?", "url": "https://a.example", "warc_file": "w", "warc_offset": 1}
    for number in range(5)
]
REFUSAL = {"gate": "contamination", "asset": "data_contamination", "partition": "r"}


def words_in(picture: str) -> str:
    root = ElementTree.fromstring(picture)
    return " ".join("".join(element.itertext()) for element in root.iter() if element.tag.endswith("}text"))


def test_a_terminal_s_lines_are_text_and_nothing_is_fetched():
    picture = pictures.terminal([Text("107 k <parameters> & more", style="bold green"), Text("x" * 80)])
    said = words_in(picture).replace("\N{NO-BREAK SPACE}", " ")
    assert "107 k <parameters> & more" in said and "x" * 80 in said
    assert set(re.findall(r"https?://[^\"' )]*", picture)) == {"http://www.w3.org/2000/svg"}


def test_the_funnel_is_a_file_of_its_own():
    assert "9 crawl records" in words_in(pictures.funnel(STAGES)) and "2 a" in words_in(pictures.funnel(STAGES))


def test_a_leak_is_shown_by_its_first_findings():
    lines = pictures.leak_lines({**REFUSAL, "evidence": {"reason": "5 items", "findings": FINDINGS, "texts": 900}})
    assert lines[0] == "refused by gate contamination of data_contamination [r]:" and lines[1] == "5 items"
    assert sum(line.startswith("item") for line in lines) == pictures.FINDINGS and "texts" not in " ".join(lines)


def test_every_picture_of_the_docs_is_shown_and_fetches_nothing():
    shown = {
        (page.parent / place).resolve()
        for page in (PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md"))
        for place in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text("utf-8"))
    }
    assert shown == set((PROJECT / "docs" / "images").iterdir())
    for picture in shown:
        if picture.suffix == ".svg":
            text = picture.read_text("utf-8")
            assert ElementTree.fromstring(text) is not None and not re.search(r"href|url\((?!#)", text)
