"""Replaces personal data by placeholders and counts it; drops nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass

from training.data.filter.rule import KEPT, Answer, Column, CommonSettings, Page, Rule, Tools

KINDS = ("email", "phone", "ip", "card", "iban", "api_key", "national_id")


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """The kinds of personal data to replace."""

    personal_data: tuple[str, ...] = ("email", "phone", "ip", "card", "iban", "api_key")


def measure(settings: Settings, tools: Tools) -> Answer:
    """Return a function that replaces personal data in the text and writes the number of each kind as JSON."""
    from training.data.filter.personal_data import redact

    def measured(page: Page) -> str:
        text = page.text
        page.text, page.redactions = redact(text, settings.personal_data, language=page.language, url=page.url)
        page.redacted = (text, page.text)
        if page.redactions:
            page.columns["redactions"] = json.dumps(page.redactions, sort_keys=True)
        return KEPT

    return measured


RULE = Rule(
    settings=Settings,
    measured_by=("personal_data",),
    columns=(Column("redactions", is_text=True, on_document=True),),
    measure=measure,
)
