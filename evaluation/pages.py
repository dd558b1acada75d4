"""The templates of pages, their filters for numbers and texts, and the script that draws figures."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import jinja2

from evaluation.intervals import in_percent
from evaluation.scoreboard import money

SHOWN_CHARACTERS = 700


def environment() -> jinja2.Environment:
    """The templates beside this module, escaping everything, with filters for numbers."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("evaluation"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": number,
        "percent": percent,
        "in_percent": in_percent,
        "clip": clip,
        "pretty": pretty,
        "money": money,
        "sections": sections,
    }
    return made


def plotly_script() -> str:
    """plotly.js as it comes with the plotly package, so that nothing is loaded."""
    return resources.files("plotly").joinpath("package_data/plotly.min.js").read_text("utf-8")


# Numbers and texts.


def number(value: Any, digits: int = 3) -> str:
    """Whole numbers with thousands, others with `digits`; a dash for none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.{digits}f}"


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction as percent; a dash for none."""
    return "–" if value is None else f"{100 * value:.{digits}f}"


def clip(text: Any, characters: int = SHOWN_CHARACTERS) -> str:
    """The first characters of a text, with a mark where it goes on."""
    whole = str(text)
    return whole if len(whole) <= characters else whole[:characters] + " …"


def sections(page: str) -> list[tuple[str, str]]:
    """Anchor and title of each section of the page. Texts of documents are escaped, so they contain none."""
    return re.findall(r'<h2 id="(\w+)">([^<]+)</h2>', page)


def pretty(value: Any) -> str:
    """Indented JSON."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
