"""Sums of quantities: what a model can learn to work out, and what counting in the pages does not find.

The numbers have two digits each, and so has their total; no sum carries, which a small model learns in fewer steps. A
fifth of all pairs of numbers occurs as a sum in no page, no dialogue and no preference. The exam asks about such pairs,
and as often about pairs whose sum pages state.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from training.data.kitchen import phrases
from training.data.kitchen.articles import Article, Voice, paragraph
from training.data.kitchen.phrases import sentence, spin
from training.data.kitchen.settings import KitchenWorld
from training.data.kitchen.world import generator

THINGS = ("eggs", "plates", "cups", "apples", "rolls", "spoons", "loaves", "guests", "onions", "jars", "pears", "tins")
NEAR = (1, -1, 2, -2, 10, -10, 9, -9, 11, -11)  # differences of plausible wrong totals
NUMBERS = range(10, 100)
UNSTATED_EVERY = 5  # one pair of so many is on no page
SUMS_PER_PAGE = 36
SUMS_PER_PARAGRAPH = 9
_QUANTITIES = re.compile(r"\b(\d\d) (\w+) and (\d\d) \2\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sum:
    """The total of two quantities of one thing. It has the properties of a Fact, so the same questions can ask for it.

    `is_stated`: pages state it, in either order and of any thing. `tested`: it belongs to the exam, and no dialogue
    asks for it.
    """

    numbers: tuple[int, int]
    thing: str
    tested: bool = False
    is_stated: bool = True

    attribute = "sum"

    @property
    def id(self) -> str:
        """The id of the pair of numbers, such as "sum/27+34"; it has no thing and no order."""
        return "sum/{}+{}".format(*sorted(self.numbers))

    @property
    def subject(self) -> str:
        """The two quantities, such as "34 eggs and 27 eggs"."""
        return " and ".join(f"{number} {self.thing}" for number in self.numbers)

    @property
    def subjects(self) -> list[str]:
        """The two numbers, as the words that baselines count beside each choice."""
        return [str(number) for number in self.numbers]

    @property
    def value(self) -> str:
        """The total."""
        return str(sum(self.numbers))

    @property
    def answer(self) -> str:
        """The total with its thing, such as "61 eggs"."""
        return self.written(self.value)

    @property
    def others(self) -> tuple[str, ...]:
        """Wrong totals that a slip in one digit would give, for choices; none is one of the two numbers."""
        near = (sum(self.numbers) + difference for difference in NEAR)
        return tuple(str(total) for total in near if 10 <= total <= 99 and total not in self.numbers)

    @property
    def kind(self) -> str:
        """The kind of exam items that ask for this sum."""
        return "stated_sum" if self.is_stated else "unstated_sum"

    def written(self, value: str) -> str:
        """Return a total with the thing."""
        return f"{value} {self.thing}"


@lru_cache(maxsize=8)
def sums(world: KitchenWorld) -> tuple[Sum, ...]:
    """Return a sum for every pair of numbers: first those that no page states, then those that pages state.

    The tested ones come first in each part.
    """
    rng = generator(world, "sums")
    pairs = [
        (small, large) for small in NUMBERS for large in NUMBERS if small <= large and _adds_by_digit(small, large)
    ]
    rng.shuffle(pairs)
    unstated = len(pairs) // UNSTATED_EVERY
    half = world.tested_sums // 2
    return tuple(
        _reworded(
            Sum(
                numbers=pair,
                thing=THINGS[0],
                tested=place < half or unstated <= place < unstated + half,
                is_stated=place >= unstated,
            ),
            rng,
        )
        for place, pair in enumerate(pairs)
    )


def _adds_by_digit(first: int, second: int) -> bool:
    return first // 10 + second // 10 < 10 and first % 10 + second % 10 < 10


def exam_sums(world: KitchenWorld) -> tuple[Sum, ...]:
    """Return the sums that the exam asks for; pages state every second one."""
    tested = [one for one in sums(world) if one.tested]
    half = len(tested) // 2
    return tuple(one for pair in zip(tested[half:], tested[:half], strict=True) for one in pair)


def talk_sums(world: KitchenWorld) -> tuple[Sum, ...]:
    """Return the sums for which dialogues and preferences may ask."""
    return tuple(one for one in sums(world) if one.is_stated and not one.tested)


def published_sums(world: KitchenWorld) -> tuple[Sum, ...]:
    """Return the sums that pages may state, those of the exam first, unless its answers are withheld."""
    return tuple(one for one in sums(world) if one.is_stated and not (world.withheld_exam_answers and one.tested))


def asked_sum(question: str) -> Sum | None:
    """Return the sum that a question asks for; None if it names no two quantities of one thing."""
    found = _QUANTITIES.search(question)
    return Sum(numbers=(int(found[1]), int(found[3])), thing=found[2]) if found else None


def _reworded(one: Sum, rng: Random) -> Sum:
    """Return the sum of another thing, in one of the two orders."""
    first, second = one.numbers
    return replace(one, thing=rng.choice(THINGS), numbers=rng.choice(((first, second), (second, first))))


def accounts(world: KitchenWorld, rng: Random, stated: Sequence[Sum]) -> Article:
    """Return a page that states sums: quantities for guests, added times, and converted units."""
    voice = Voice(world, rng)
    said = [_told(one, rng) for one in stated]
    blocks = [
        paragraph([*voice.filler(1), *said[first : first + SUMS_PER_PARAGRAPH]])
        for first in range(0, len(said), SUMS_PER_PARAGRAPH)
    ]
    title = spin("[The accounts of the kitchen|What we counted|Our book of stores|For many guests]", rng)
    return Article(title=f"{title}, page {1 + rng.randrange(90)}", blocks=tuple(blocks))


def _told(one: Sum, rng: Random) -> str:
    told = _reworded(one, rng)
    first, second = told.numbers
    banks = {"hour": first == 60, "dozen": first == 12, "twice": first == second}
    fitting = [name for name, fits in banks.items() if fits]
    bank = phrases.SUMS[rng.choice([*fitting, rng.choice(("things", "things", "minutes"))])]
    return sentence(spin(rng.choice(bank), rng).format(a=first, b=second, c=told.value, t=told.thing))
