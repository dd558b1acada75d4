"""The isolation: what a page does to its extractor costs that page alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from training.contract.process.lifetime import cpu_seconds_with_children
from training.data.extract.isolation import Failure, Isolation, RawPage
from training.data.extract.pages.html import extract_html
from training.data.extract.settings import ExtractRecipe

SETTINGS = ExtractRecipe()
PROSE = b"<p>" + b"The dough rests in a bowl until it has doubled in size, which takes an hour. " * 5 + b"</p>"
HEADERS = {"content-type": "text/html", "x-robots-tag": "noai"}


def page(body: bytes) -> RawPage:
    return RawPage(body=body, headers=HEADERS)


@pytest.fixture
def isolation() -> Iterator[Isolation]:
    made = Isolation(SETTINGS)
    yield made
    made.close()


def test_answers_are_those_of_the_extractor_in_order(isolation: Isolation):
    bodies = [PROSE, b"", "<p>Brötchen</p>".encode("latin-1"), b"<title>\xff\x00 &#xD800;</title>" + PROSE * 3]
    isolation.submit([page(body) for body in bodies])
    assert isolation.collect() == [extract_html(body, headers=HEADERS, settings=SETTINGS) for body in bodies]
    isolation.submit([])
    assert isolation.collect() == []
    assert isolation.num_deaths == 0


def test_the_processor_time_of_the_child_counts_while_it_lives_and_when_it_has_ended(isolation: Isolation):
    def of_children() -> float:
        return cpu_seconds_with_children() - time.process_time()

    before = of_children()
    isolation.submit([page(PROSE)])
    isolation.collect()
    used = of_children() - before
    assert used > 0.05  # the child's imports alone take several times as much
    isolation.close()
    assert of_children() - before >= used


def test_a_child_that_was_killed_is_replaced_and_nothing_is_lost(isolation: Isolation):
    isolation.submit([page(PROSE)])
    isolation.collect()
    os.kill(isolation._child.pid, signal.SIGKILL)
    isolation._child.wait()
    isolation.submit([page(PROSE)] * 5)
    assert [found.text for found in isolation.collect()] == [extract_html(PROSE, settings=SETTINGS).text] * 5
    assert isolation.num_deaths == 1


@pytest.mark.parametrize("limit", [{"cpu_seconds": 1}, {"memory_bytes": 1 << 30}])
def test_a_page_that_takes_too_much_is_at_fault_alone(limit: dict[str, int]):
    """Extraction is quadratic in depth, and a tree needs many times the bytes of its page."""
    settings = ExtractRecipe(extractor="resiliparse", max_html_bytes=1 << 30, max_nodes=1 << 30, max_depth=1 << 30)
    costly = b"<div>" * 30_000 if "cpu_seconds" in limit else b"<b>x</b>" * 4_000_000
    isolation = Isolation(settings, **limit)
    try:
        isolation.submit([page(PROSE), page(costly), page(PROSE)])
        first, second, third = isolation.collect()
    finally:
        isolation.close()
    assert first.text and first == third
    assert isinstance(second, Failure)
