"""The closed world of the kitchen: invented dishes, the facts about each, and which facts the exam may ask.

Everything follows from the fields of KitchenWorld through seeded generators. Each part has its own generator, so that a
change in one part does not change the others.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from training.data.kitchen.settings import DISHES_MAX, VALUES_PER_ATTRIBUTE, KitchenWorld

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribute:
    """A property that every dish has. `unit` is written after the value ("" for no unit)."""

    name: str
    values: tuple[str, ...]
    unit: str = ""

    def written(self, value: str) -> str:
        """Return the value as pages and answers write it, such as "180 degrees" or "barley"."""
        return f"{value} {self.unit}".rstrip()


ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(name="temperature", values=("150", "160", "170", "180", "190", "200", "210", "220"), unit="degrees"),
    Attribute(name="minutes", values=("20", "25", "30", "35", "40", "45", "50", "55"), unit="minutes"),
    Attribute(
        name="technique",
        values=("folded", "whisked", "layered", "kneaded", "strained", "rolled", "pressed", "chopped"),
    ),
    Attribute(
        name="ingredient",
        values=("barley", "pumpkin", "cabbage", "spinach", "trout", "celery", "rhubarb", "fennel"),
    ),
    Attribute(
        name="region",
        values=("Lindmoor", "Harrowdale", "Castavia", "Bremholt", "Norvane", "Tessara", "Ulmland", "Pelorra"),
    ),
    Attribute(name="storage", values=("two", "three", "four", "five", "six", "seven", "eight", "nine"), unit="days"),
    Attribute(
        name="substitute",
        values=("yoghurt", "buttermilk", "quark", "tahini", "tofu", "mascarpone", "kefir", "custard"),
    ),
    Attribute(
        name="side",
        values=("rice", "noodles", "dumplings", "couscous", "polenta", "salad", "flatbread", "potatoes"),
    ),
)
ATTRIBUTE_BY_NAME = {attribute.name: attribute for attribute in ATTRIBUTES}
# Names are invented, so that only the corpus can teach them; the first word alone identifies the dish.
_FIRST_WORDS = (
    "Abrelin Bostrava Calvenne Dorvika Eskarol Fendral Galtresse Hovarin Istrelle Jorvanne Kelmora Lusprit Mandrovy "
    "Nestrine Orvanta Pelgrave Quintarel Rostavin Selvanor Tambrel Ulvessa Varmondy Wistrane Xelbury Yarrovel "
    "Zentrique Alcoven Brimsolt Corvelle Drusmane Evrasto Folmarine Gristavel Halvodor Immelin Jastrine Krovelle "
    "Lantergo Morvash Nolbrique Ondarel Prastovy Quelmare Rundavel Sostrane Trevolin Umbrasco Vostrelle Wendrago "
    "Xarvine Yolmarsh Zabrelle Arnoveld Belmoste Crandovy Delvarin Ermantor Frostane Gelvandry Hestramo Ilvarosh "
    "Jelmonde Kastrivy Lorvanel Mistravo Nandrelle Ostrivane Pomvarel Quastrine Relmovy Straveno Tolmirash Undravel "
    "Vilmaron Wostrelin Yestravo Zolmande Azimbelle Brostique Cromvell Dastrune Elvostra Firnolde Gromvane Hulstrevy"
).split()
_SECOND_WORDS = ("bake", "pie", "loaf", "gratin", "casserole", "tart", "pudding", "roast")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One value of one attribute of the dish `subject`.

    `tested` facts belong to the exam and are never asked in dialogues.
    """

    subject: str
    attribute: str
    value: str
    tested: bool

    kind = "fact"

    @property
    def id(self) -> str:
        """The fact's stable id, such as "abrelin-bake/temperature"."""
        return f"{slug(self.subject)}/{self.attribute}"

    @property
    def subjects(self) -> list[str]:
        """The dish, as the word that baselines count beside each choice."""
        return [self.subject]

    @property
    def answer(self) -> str:
        """The fact's value with its unit, as an answer gives it."""
        return self.written(self.value)

    @property
    def others(self) -> tuple[str, ...]:
        """The wrong answers: values that this attribute has for other dishes."""
        return tuple(value for value in ATTRIBUTE_BY_NAME[self.attribute].values if value != self.value)

    def written(self, value: str) -> str:
        """Return a value of the attribute with its unit."""
        return ATTRIBUTE_BY_NAME[self.attribute].written(value)


def slug(text: str) -> str:
    """Return the text in lower case with hyphens, as used in URLs."""
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def generator(world: KitchenWorld, *key: object) -> random.Random:
    """Return the random generator for one part of one world, independent of others, equal in every Python version."""
    text = "/".join(str(part) for part in (world.seed, *key))
    return random.Random(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big"))


@lru_cache(maxsize=8)
def _names(world: KitchenWorld) -> tuple[str, ...]:
    first = list(_FIRST_WORDS)
    generator(world, "names").shuffle(first)
    return tuple(f"{word} {_SECOND_WORDS[i % len(_SECOND_WORDS)]}" for i, word in enumerate(first))


def dishes(world: KitchenWorld) -> tuple[str, ...]:
    """The dishes of the world, in a fixed order."""
    return _names(world)[: world.dishes]


def strangers(world: KitchenWorld) -> tuple[str, ...]:
    """Return dish names that no page mentions, for questions that nobody can answer and for the reference texts."""
    return _names(world)[DISHES_MAX:]


@lru_cache(maxsize=8)
def facts(world: KitchenWorld) -> tuple[Fact, ...]:
    """Return every fact of the world: dishes times attributes.

    Each value of an attribute is equally frequent, among tested and among untested facts.
    """
    return tuple(fact for attribute in ATTRIBUTES for fact in _assign(world, attribute))


def _assign(world: KitchenWorld, attribute: Attribute) -> Iterator[Fact]:
    order = list(dishes(world))
    generator(world, "facts", attribute.name).shuffle(order)
    for i, dish in enumerate(order):
        turn, which = divmod(i, VALUES_PER_ATTRIBUTE)
        yield Fact(
            subject=dish, attribute=attribute.name, value=attribute.values[which], tested=turn < world.tested_per_value
        )


@lru_cache(maxsize=8)
def facts_by_dish(world: KitchenWorld) -> dict[str, dict[str, Fact]]:
    """Return the facts of the world by dish and attribute."""
    table: dict[str, dict[str, Fact]] = {dish: {} for dish in dishes(world)}
    for fact in facts(world):
        table[fact.subject][fact.attribute] = fact
    return table


def exam_facts(world: KitchenWorld) -> tuple[Fact, ...]:
    """Return the facts that the exam asks."""
    return tuple(fact for fact in facts(world) if fact.tested)


def talk_facts(world: KitchenWorld) -> tuple[Fact, ...]:
    """Return the facts about which dialogues and preferences may ask: all that the exam does not ask about."""
    return tuple(fact for fact in facts(world) if not fact.tested)


def published_facts(world: KitchenWorld, dish: str) -> dict[str, Fact]:
    """Return the facts of a dish that pages may state: all, or only the untested ones if exam answers are withheld."""
    known = facts_by_dish(world)[dish]
    return {name: fact for name, fact in known.items() if not (world.withheld_exam_answers and fact.tested)}


def pick(rng: random.Random, options: Sequence[T], count: int) -> list[T]:
    """Return `count` different options, or all if there are fewer, in random order."""
    return rng.sample(list(options), min(count, len(options)))
