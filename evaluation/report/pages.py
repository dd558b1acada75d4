"""The templates of pages, their filters for numbers and texts, and the script that draws figures."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import jinja2

from evaluation.decision.intervals import in_percent
from evaluation.report.scoreboard import items_told, money, node_hours

SHOWN_CHARACTERS = 700


def environment() -> jinja2.Environment:
    """Return the Jinja environment of the templates, which escapes all values and has filters for numbers."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("evaluation.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "number": number,
        "percent": percent,
        "in_percent": in_percent,
        "items_told": items_told,
        "clip": clip,
        "pretty": pretty,
        "money": money,
        "node_hours": node_hours,
        "sections": sections,
    }
    return made


def plotly_script() -> str:
    """Return the source of plotly.js from the plotly package, so that a page loads nothing from the network."""
    return resources.files("plotly").joinpath("package_data/plotly.min.js").read_text("utf-8")


# Numbers and texts.


def number(value: Any, digits: int = 3) -> str:
    """Return a number as text, whole ones with thousands separators, others with `digits` decimals; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.{digits}f}"


def percent(value: float | None, digits: int = 1) -> str:
    """Return a fraction in percent as text; a dash for None."""
    return "–" if value is None else f"{100 * value:.{digits}f}"


def clip(text: Any, characters: int = SHOWN_CHARACTERS) -> str:
    """Return the first characters of a text, with an ellipsis if the text is longer."""
    whole = str(text)
    return whole if len(whole) <= characters else whole[:characters] + " …"


def sections(page: str) -> list[tuple[str, str]]:
    """Return anchor and title of each section of an HTML page; headings inside escaped documents do not count."""
    return re.findall(r'<h2 id="(\w+)">([^<]+)</h2>', page)


def pretty(value: Any) -> str:
    """Return a value as indented JSON."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
