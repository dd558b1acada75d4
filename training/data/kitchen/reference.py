"""Clean editorial texts that state nothing about the world, and abusive texts, to train the models that judge pages."""

from __future__ import annotations

import random

from training.data.kitchen import hostile, phrases
from training.data.kitchen.phrases import sentence, spin
from training.data.kitchen.settings import KitchenWorld
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
        {"id": f"reference/{i:04d}", "text": _text(world, generator(world, "reference", i))}
        for i in range(REFERENCE_TEXTS)
    ]


def abusive_texts(world: KitchenWorld) -> list[dict[str, object]]:
    """Return rows {"id", "text"} of abusive texts like those in the crawl's pages, but not the same texts."""
    articles = (hostile.UNWANTED["abuse"](generator(world, "abusive text", i)) for i in range(ABUSIVE_TEXTS))
    return [{"id": f"abuse/{i:04d}", "text": article.text} for i, article in enumerate(articles)]


def _text(world: KitchenWorld, rng: random.Random) -> str:
    dish = f"{rng.choice(strangers(world))}"
    said = rng.sample(_EDITORIAL, 9) + rng.sample(phrases.FILLER, 5) + rng.sample(phrases.STORY, 2)
    rng.shuffle(said)
    lines = [sentence(spin(template, rng).format(d=dish)) for template in said]
    return "\n".join(" ".join(lines[i : i + 4]) for i in range(0, len(lines), 4))
