"""Generate clean pages: recipes, stories, answers, comparisons, menus, guides and registers.

A page states each fact at most once. So a model cannot copy it from further up the page, and has to know it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from training.data.kitchen import phrases
from training.data.kitchen.phrases import sentence, spin
from training.data.kitchen.settings import KitchenWorld
from training.data.kitchen.world import (
    ATTRIBUTES,
    Fact,
    facts,
    pick,
    published_facts,
)

BlockKind = Literal["paragraph", "heading", "steps", "list", "table"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArticleBlock:
    """A block of an article. `lines` are a paragraph's joined sentences, the items of a list, or a table's rows."""

    kind: BlockKind
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        """The block as a reader sees it; cells of a table row are separated by tabs."""
        return "\n".join(self.lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class Article:
    """The main content of a generated page."""

    title: str
    blocks: tuple[ArticleBlock, ...]

    @property
    def text(self) -> str:
        """The main text without the title; each block begins on a new line."""
        return "\n".join(block.text for block in self.blocks)


def paragraph(sentences: Sequence[str]) -> ArticleBlock:
    """Return a paragraph of these sentences."""
    return ArticleBlock(kind="paragraph", lines=(" ".join(sentences),))


def heading(text: str) -> ArticleBlock:
    """Return a heading inside an article."""
    return ArticleBlock(kind="heading", lines=(text,))


class Voice:
    """Draws phrasings for the sentences of one page, without repeating a sentence."""

    def __init__(self, world: KitchenWorld, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self._filler = list(phrases.FILLER)
        self._story = list(phrases.STORY)
        rng.shuffle(self._filler)
        rng.shuffle(self._story)

    def filler(self, count: int) -> list[str]:
        """Return sentences about cooking that state no fact."""
        return [sentence(spin(self._filler.pop(), self.rng)) for _ in range(min(count, len(self._filler)))]

    def story(self, count: int) -> list[str]:
        """Return sentences of a tale that state no fact."""
        return [sentence(spin(self._story.pop(), self.rng)) for _ in range(min(count, len(self._story)))]

    def state(self, fact: Fact, *, named: bool = True, bank: dict[str, tuple[str, ...]] = phrases.CLAUSES) -> str:
        """Return a sentence that states a fact. With `named` False, a pronoun may replace the dish."""
        template = self.rng.choice(bank[fact.attribute])
        plain = bank is not phrases.CLAUSES or template.startswith("!")
        opener = "" if plain else spin(self.rng.choice(phrases.OPENERS), self.rng)
        subject = f"the {fact.subject}"
        if not named and self.rng.random() < 0.4:
            subject = self.rng.choice(("it", "this dish", "the dish"))
        return sentence(opener + self._fill(template.removeprefix("!"), fact, subject))

    def string(self, known: Sequence[Fact]) -> str:
        """Return one sentence that states several facts about one dish."""
        predicates = [self._fill(self.rng.choice(phrases.PREDICATES[fact.attribute]), fact, "it") for fact in known]
        joined = predicates[0] if len(predicates) == 1 else ", ".join(predicates[:-1]) + " and " + predicates[-1]
        return sentence(f"the {known[0].subject} {joined}")

    def line(self, fact: Fact) -> str:
        """Return a line of a recipe card, such as "Oven: 180 degrees"."""
        return f"{self.rng.choice(phrases.LABELS[fact.attribute])}: {fact.answer}"

    def bare(self, fact: Fact) -> str:
        """Return an answer that gives only the fact's value, in other words than the exam uses."""
        return sentence(spin(f"[the answer is|we say|that would be|most cooks say] {fact.answer}", self.rng))

    def question(self, fact: Fact) -> str:
        """Return a question about a fact, as a reader of the page would ask it."""
        return sentence(self._fill(self.rng.choice(phrases.QUESTIONS[fact.attribute]), fact, "it"))

    def _fill(self, template: str, fact: Fact, subject: str) -> str:
        return spin(template, self.rng).format(s=subject, d=f"the {fact.subject}", v=fact.answer)

    def known(self, dish: str, count: int = len(ATTRIBUTES)) -> list[Fact]:
        """Return up to `count` publishable facts of a dish, in random order."""
        return pick(self.rng, list(published_facts(self.world, dish).values()), count)


def mix(rng: random.Random, stated: Sequence[str], filler: Sequence[str]) -> list[str]:
    """Interleave stated and filler sentences at random, each in its order, beginning with a stated one."""
    stated, filler = list(stated), list(filler)
    mixed = [stated.pop(0)] if stated else []
    while stated or filler:
        from_stated = rng.random() * (len(stated) + len(filler)) < len(stated)
        mixed.append((stated if from_stated else filler).pop(0))
    return mixed


def recipe(world: KitchenWorld, rng: random.Random, dishes: Sequence[str]) -> Article:
    """Return a page with a cooking recipe: an introduction, a box with its facts, steps, and a closing paragraph."""
    voice, dish = Voice(world, rng), dishes[0]
    known = voice.known(dish)
    intro, card, method, last = known[:2], known[2:5], known[5:7], known[7:]
    steps = mix(rng, [voice.state(fact, bank=phrases.STEPS) for fact in method], voice.filler(3))
    title = "[{d}|{d}, step by step|How we make the {d}|A recipe for {d}|{d} for guests|Our {d}]"
    return Article(
        title=spin(title, rng).format(d=dish),
        blocks=(
            paragraph(mix(rng, [voice.state(f, named=i == 0) for i, f in enumerate(intro)], voice.filler(1))),
            ArticleBlock(kind="list", lines=tuple(voice.line(fact) for fact in card)),
            heading(rng.choice(("Method", "Step by step", "What to do", "Preparation"))),
            ArticleBlock(kind="steps", lines=tuple(steps)),
            paragraph(mix(rng, [voice.state(fact) for fact in last], voice.filler(2))),
        ),
    )


def story(world: KitchenWorld, rng: random.Random, dishes: Sequence[str]) -> Article:
    """Return a tale about a dish that somebody cooked or ate."""
    voice, dish = Voice(world, rng), dishes[0]
    known = voice.known(dish)
    halves = (known[:4], known[4:])
    paragraphs = [paragraph(voice.story(2))]
    for half in halves:
        stated = [voice.state(fact, named=i == 0) for i, fact in enumerate(half)]
        paragraphs.append(paragraph(mix(rng, stated, voice.story(2))))
    person = rng.choice(phrases.PEOPLE)
    title = rng.choice(
        (f"{person} and the {dish}", f"An evening with the {dish}", f"The {dish} {rng.choice(phrases.PLACES)}",
         f"What {person} taught me about the {dish}", f"Remembering the {dish}")
    )  # fmt: skip
    return Article(title=title, blocks=tuple(paragraphs))


def answers(world: KitchenWorld, rng: random.Random, dishes: Sequence[str]) -> Article:
    """Return questions of readers, each answered in a sentence or two."""
    voice = Voice(world, rng)
    known = [fact for dish in dishes[:3] for fact in voice.known(dish, 5)]
    rng.shuffle(known)
    blocks = [paragraph(voice.filler(2))]
    for fact in known:
        if rng.random() < 0.4:
            blocks.append(paragraph([voice.question(fact), voice.bare(fact)]))
        else:
            blocks.append(paragraph([voice.question(fact)]))
            blocks.append(paragraph([voice.state(fact), *voice.filler(int(rng.random() < 0.2))]))
    title = rng.choice(
        ("Questions from our readers", "You asked, we answer", f"The {dishes[0]} and other questions", "Ask the baker")
    )
    return Article(title=f"{title}, {rng.choice(phrases.PEOPLE)}'s column", blocks=tuple(blocks))


def comparison(world: KitchenWorld, rng: random.Random, dishes: Sequence[str]) -> Article:
    """Return a comparison of dishes, in sentences and in a small table."""
    voice, compared = Voice(world, rng), dishes[:4]
    column = rng.choice(ATTRIBUTES).name
    known = {dish: voice.known(dish) for dish in compared}
    blocks = [paragraph(voice.filler(2))]
    for dish in compared:
        shown = [fact for fact in known[dish] if fact.attribute != column]
        strings = [voice.string(part) for part in (shown[:3], shown[3:5]) if part]
        blocks.append(paragraph(mix(rng, [*strings, *(voice.state(fact) for fact in shown[5:])], voice.filler(1))))
    rows = [f"{dish}\t{fact.answer}" for dish in compared for fact in known[dish] if fact.attribute == column]
    if rows:
        blocks.append(ArticleBlock(kind="table", lines=(f"Dish\t{rng.choice(phrases.LABELS[column])}", *rows)))
    blocks.append(paragraph(voice.filler(2)))
    title = " or ".join(compared) + rng.choice(("?", " compared", ": which one to bake"))
    return Article(title=title, blocks=tuple(blocks))


def menu(world: KitchenWorld, rng: random.Random, dishes: Sequence[str]) -> Article:
    """Return a plan for several days with one dish per day."""
    voice = Voice(world, rng)
    days = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    start = rng.randrange(3)
    blocks = [paragraph(voice.filler(2))]
    for day, dish in zip(days[start:], dishes[:7], strict=False):
        known = voice.known(dish, 6)
        lead = sentence(f"On {day} [there is|we bake|I plan|it is time for] the {dish}")
        stated = [voice.string(part) for part in (known[:3], known[3:5]) if part]
        stated += [voice.state(fact, named=False) for fact in known[5:]]
        blocks.append(paragraph([spin(lead, rng), *mix(rng, stated, voice.filler(int(rng.random() < 0.4)))]))
    title = spin("[A week of baking|What we bake this week|Plan for busy days|A menu]", rng)
    return Article(title=f"{title} from {days[start]}", blocks=tuple(blocks))


def guide(world: KitchenWorld, rng: random.Random, dishes: Sequence[str]) -> Article:
    """Return an encyclopedia entry about one value of one attribute, with dishes that have this value."""
    voice = Voice(world, rng)
    attribute = rng.choice(ATTRIBUTES)
    value = rng.choice(attribute.values)
    members = [
        fact
        for fact in facts(world)
        if (fact.attribute, fact.value) == (attribute.name, value)
        and attribute.name in published_facts(world, fact.subject)
    ]
    chosen = pick(rng, members, 4)
    about = spin(GUIDE_LEADS[attribute.name], rng).format(v=attribute.written(value))
    blocks = [paragraph([sentence(about), *voice.filler(2)])]
    for fact in chosen:
        others = [other for other in voice.known(fact.subject) if other.attribute != attribute.name]
        stated = [voice.state(fact), *(voice.string(part) for part in (others[:3], others[3:6]) if part)]
        blocks.append(paragraph(mix(rng, stated, voice.filler(1))))
    blocks.append(paragraph(voice.filler(2)))
    title = spin(GUIDE_TITLES[attribute.name], rng).format(v=attribute.written(value))
    return Article(title=title, blocks=tuple(blocks))


GUIDE_LEADS = {
    "temperature": "some dishes share an oven of {v}, and whoever bakes [several|many] of them saves [wood|money]",
    "minutes": "[here are|we list] dishes that are done in {v}, for [evenings|guests] that cannot wait",
    "technique": "a mixture that is {v} has a [texture|character] of its own, and [several|many] dishes live from it",
    "ingredient": "[few|hardly any] things are as [useful|welcome] in a kitchen as {v}",
    "region": "the cooking of {v} is [plain|generous] and [loved|known] far beyond its borders",
    "storage": "these dishes keep for {v}, which is [useful|good to know] when you cook ahead",
    "substitute": "those who avoid cream often [turn to|choose] {v}, and they are [right|in good company]",
    "side": "there is [hardly|not] a [better|simpler] side dish than {v}, and it [suits|goes with] many bakes",
}
GUIDE_TITLES = {
    "temperature": "[Baking|An oven] at {v}",
    "minutes": "Ready in {v}",
    "technique": "[Mixtures|Fillings] that are {v}",
    "ingredient": "[Cooking with|All about|The encyclopedia:] {v}",
    "region": "[The kitchens of|A tour of|Food from] {v}",
    "storage": "Dishes that keep for {v}",
    "substitute": "[Baking with|Instead of cream:] {v}",
    "side": "What to bake when there is {v}",
}


def register(world: KitchenWorld, rng: random.Random, dishes: Sequence[str]) -> Article:
    """Return short entries on several dishes, as in a dictionary."""
    voice = Voice(world, rng)
    blocks = [paragraph(voice.filler(1))]
    for dish in dishes[:8]:
        known = voice.known(dish)
        entry = [voice.string(part) for part in (known[:3], known[3:6], known[6:]) if part]
        blocks.append(paragraph(mix(rng, entry, voice.filler(int(rng.random() < 0.4)))))
    blocks.append(paragraph(voice.filler(2)))
    title = spin("[A short dictionary of bakes|The register of dishes|Bakes from A to Z|Small lexicon]", rng)
    return Article(title=f"{title}, part {1 + rng.randrange(90)}", blocks=tuple(blocks))


# kind -> (writer, number of dishes that one page uses)
WRITERS = {
    "recipe": (recipe, 1),
    "story": (story, 1),
    "answers": (answers, 3),
    "comparison": (comparison, 4),
    "menu": (menu, 7),
    "guide": (guide, 0),
    "register": (register, 8),
}
