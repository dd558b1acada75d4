"""Pages about made-up harbours, as a crawl of one's own: a WARC file, and an exam."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

PLACES = ("Aldby", "Brenna", "Corrow", "Dunmore", "Eastle", "Farrow", "Gilden", "Harrel", "Inver", "Jolby")
GOODS = ("salt", "timber", "wool", "copper", "barley", "slate", "linen", "honey", "glass", "oil")
WORDS = (
    "the the the the of of of and and to to in in a a was with for on had were from by as that it his her they we then"
    " pilot keeper baker sailor teacher weaver mason farmer clerk captain smith fisher lantern rope barrel chart window"
    " letter wagon bridge garden ladder kettle mirror carried painted counted mended borrowed measured followed washed"
    " slowly carefully twice again never often before after dawn rain winter summer morning evening north south small"
    " great quiet broken golden heavy empty young brother daughter uncle market chapel pier ferry arch mill road hill"
    " boat sail wind water stone bread apple candle winter silver story song promise question answer journey question"
).split()


def sentence(rng: random.Random) -> str:
    """A sentence of 8 to 14 words drawn at random: no two pages repeat each other, and the words are English."""
    words = rng.choices(WORDS, k=rng.randint(8, 14))
    return f"{' '.join(words).capitalize()} {rng.choice(GOODS)}."


def sentences(seed: object, number: int = 18) -> str:
    """Prose that is the same for the same seed."""
    rng = random.Random(str(seed))
    return " ".join(sentence(rng) for _ in range(number))


def page(number: int) -> str:
    """The HTML of page `number`: what its harbour sends abroad, and what happened there."""
    rng = random.Random(f"harbour {number}")
    place = PLACES[number % len(PLACES)]
    fact = f"The harbour of {place} sends {GOODS[number % len(GOODS)]} abroad every year."
    paragraphs = [f"<p>{fact} {' '.join(sentence(rng) for _ in range(6))}</p>" for _ in range(3)]
    title = f"{place}, report {number}"
    head = f"<html lang=en><head><title>{title}</title></head>"
    return f"{head}<body><main><h1>{title}</h1>{''.join(paragraphs)}</main></body></html>"


def write_warc(path: Path, *, pages: int = 60) -> None:
    """Write the pages as responses of one WARC file."""
    from warcio.statusandheaders import StatusAndHeaders
    from warcio.warcwriter import WARCWriter

    with path.open("wb") as stream:
        writer = WARCWriter(stream, gzip=True)
        for number in range(pages):
            headers = StatusAndHeaders("200 OK", [("Content-Type", "text/html; charset=utf-8")], protocol="HTTP/1.1")
            writer.write_record(
                writer.create_warc_record(
                    f"https://harbours.example/{number}",
                    "response",
                    payload=io.BytesIO(page(number).encode()),
                    http_headers=headers,
                )
            )


NUMBERS = "zero one two three four five six seven eight nine ten".split()


def write_exam(path: Path) -> None:
    """Write an exam of sums, which no page mentions."""
    rows = [
        {"question": f"How much are {NUMBERS[a]} and {NUMBERS[b]} together?", "choices": NUMBERS, "gold": a + b}
        for a in range(2, 6)
        for b in range(a, 11 - a)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
