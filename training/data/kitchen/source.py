"""The kitchen as a generated source: writes files according to the section `kitchen` of a recipe.

A snapshot is WARC files with the truth of every response beside them. All other data are files of JSON lines, which a
recipe names as `kitchen://<file>`; `reference` and `abuse` train the models that judge pages. No module outside this
package imports it; `training.data.generated` loads it by name.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from training.contract.records import RecipeError, read_record
from training.data.kitchen import hostile, phrases
from training.data.kitchen.archive import write_snapshot
from training.data.kitchen.exam import chat_items, cloze_items, question_items, sum_items
from training.data.kitchen.phrases import sentence, spin
from training.data.kitchen.settings import KitchenWorld
from training.data.kitchen.talk import alignment_prompts, dialogues, preferences
from training.data.kitchen.world import generator, strangers

REFERENCE_TEXTS = 300
ABUSIVE_TEXTS = 100

_EDITORIAL = (
    "the craft of baking is [longer|older] than that of most trades, and [few|many] written sources describe it",
    "a [careful|good] editor checks a [recipe|text] against the oven before it is [printed|published]",
    "in the [old|eastern] towns the public oven was [lit|heated] once a week, and each family marked its own loaves",
    "the {d} is [mentioned|described] in letters of that time, although [nobody|no writer] explains how it was made",
    "our [reporter|writer] visited a [mill|farm|school] where [apprentices|students] learn to judge dough by hand",
    "[wheat|rye|oats] was expensive, so that [bakers|millers] mixed it with whatever the fields had given",
    "readers who [remember|knew] the {d} are invited to [tell|send] us what their families did differently",
    "the [guild|council] set the weight of bread and the fine for those who [sold|baked] it too light",
    "a good crust depends on [steam|heat|time], and the [science|physics] behind it is well understood",
    "the [author|cook] argues that [patience|attention] matters more than any tool that money can buy",
    "museums in the north show [moulds|ovens|tools] that were used for the {d} on feast days",
    "[scholars|historians] disagree about the origin of the word, but not about the [taste|pleasure]",
    "when [trains|ships] brought sugar in large amounts, [puddings|cakes] changed within a generation",
    "the [book|essay] is written with [humour|warmth] and contains [drawings|photographs] of every step",
    "today the trade is [growing|changing] again, because young people [want|like] to work with their hands",
    "[salt|yeast|fat] does more than add flavour, since it decides how the dough holds its shape",
    "what we call tradition is often [recent|young], and the {d} is a [good|fair] example of that",
    "the [winner|judge] of the contest said that [simple|honest] food is the hardest to cook well",
)


def reference_texts(world: KitchenWorld) -> list[dict[str, object]]:
    """Return rows {"id", "text"} of good prose about cooking that mentions only unknown dishes and states no fact."""
    return [
        {"id": f"reference/{i:04d}", "text": _editorial(world, generator(world, "reference", i))}
        for i in range(REFERENCE_TEXTS)
    ]


def abusive_texts(world: KitchenWorld) -> list[dict[str, object]]:
    """Return rows {"id", "text"} of abusive texts like those in the crawl's pages, but not the same texts."""
    articles = (hostile.UNWANTED["abuse"](generator(world, "abusive text", i)) for i in range(ABUSIVE_TEXTS))
    return [{"id": f"abuse/{i:04d}", "text": article.text} for i, article in enumerate(articles)]


def _editorial(world: KitchenWorld, rng: random.Random) -> str:
    dish = f"{rng.choice(strangers(world))}"
    said = rng.sample(_EDITORIAL, 9) + rng.sample(phrases.FILLER, 5) + rng.sample(phrases.STORY, 2)
    rng.shuffle(said)
    lines = [sentence(spin(template, rng).format(d=dish)) for template in said]
    return "\n".join(" ".join(lines[i : i + 4]) for i in range(0, len(lines), 4))


ROWS: dict[str, Callable[[KitchenWorld], list[dict[str, object]]]] = {
    "cloze": cloze_items,
    "sums": sum_items,
    "questions": question_items,
    "chat": chat_items,
    "dialogues": dialogues,
    "preferences": preferences,
    "alignment": alignment_prompts,
    "reference": reference_texts,
    "abuse": abusive_texts,
}


def write_archives(section: dict[str, Any], snapshot: str, folder: Path) -> int:
    """Write the WARC files of `snapshot` and their truth into `folder`; return the number of WARC files."""
    return len(write_snapshot(_world(section), snapshot, folder))


def write_rows(section: dict[str, Any], name: str, stream: BinaryIO) -> None:
    """Write the rows of `kitchen://<name>` to `stream` as JSON lines."""
    if name not in ROWS:
        raise RecipeError(f"kitchen://{name}: there is no such data; there are {', '.join(ROWS)}")
    for row in ROWS[name](_world(section)):
        stream.write(json.dumps(row).encode() + b"\n")


def _world(section: dict[str, Any]) -> KitchenWorld:
    return read_record(KitchenWorld, section, where="kitchen")
