"""Generate the unwanted pages of a crawl (spam, links, boilerplate, other languages, abuse), and edited copies."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from training.data.kitchen import languages, phrases
from training.data.kitchen.articles import Article, ArticleBlock, Voice, heading, paragraph
from training.data.kitchen.phrases import sentence, spin
from training.data.kitchen.settings import KitchenWorld
from training.data.kitchen.world import ATTRIBUTES, published_facts

LANGUAGES = tuple(languages.SENTENCES)
ACCENTS = "The café in the square, which Zoë and André have run for years, serves a crème brûlée that “nobody” forgets."


def edited(article: Article, site: str, rng: random.Random, kind: str) -> Article:
    """Return a near-duplicate: about one word in a hundred becomes a synonym, and a line about the source is added.

    Facts stay unchanged. The Jaccard similarity of word 5-grams to the original stays above 0.8.
    """
    left = max(1, len(article.text.split()) // 120)
    blocks = []
    for block in article.blocks:
        text = "\n".join(block.lines)
        for word, other in rng.sample(SYNONYMS, len(SYNONYMS)):
            if left and f" {word} " in text:
                text, left = text.replace(f" {word} ", f" {other} ", 1), left - 1
        blocks.append(replace(block, lines=tuple(text.split("\n"))))
    note = f"First printed by {site}." if kind == "syndicated" else "This page was updated in spring."
    return Article(title=article.title, blocks=(*blocks, paragraph([note])))


SYNONYMS = (
    ("small", "little"),
    ("begin", "start"),
    ("usually", "often"),
    ("every", "each"),
    ("quiet", "calm"),
    ("many", "numerous"),
    ("good", "fine"),
    ("large", "big"),
    ("whole", "entire"),
    ("people", "folks"),
    ("always", "ever"),
    ("because", "since"),
    ("before", "until"),
    ("kitchen", "cookroom"),
    ("and", "plus"),
)


def sheet(world: KitchenWorld, rng: random.Random, dish: str) -> Article:
    """Return a data sheet. Sheets share their templates but state other facts, so they are similar, not duplicates."""
    voice = Voice(world, rng)
    known = published_facts(world, dish)
    template = SHEETS[rng.randrange(len(SHEETS))]
    lines = [
        sentence(template[attribute.name].format(d=f"the {dish}", v=known[attribute.name].answer))
        for attribute in ATTRIBUTES
        if attribute.name in known
    ]
    half = len(lines) // 2
    return Article(
        title=f"Data sheet: {dish}",
        blocks=(
            paragraph([sentence(template["lead"].format(d=f"the {dish}")), *voice.filler(3)]),
            heading("Facts"),
            paragraph(lines[:half]),
            paragraph(voice.filler(3)),
            paragraph(lines[half:]),
            paragraph(voice.filler(3)),
        ),
    )


SHEETS: tuple[dict[str, str], ...] = (
    {
        "lead": "this sheet sums up what our test kitchen has measured and noted for {d}",
        "temperature": "the oven is set so that {d} bakes at {v} from the start",
        "minutes": "we measured that {d} needs {v} until it is done",
        "technique": "before baking {d} the filling is {v} with care",
        "ingredient": "on the scale the largest part of {d} was {v}",
        "region": "our books say that {d} comes from {v}",
        "storage": "in the larder {d} kept for {v} without harm",
        "substitute": "in the test without cream {d} was made with {v}",
        "side": "our testers ate {d} with {v} and were content",
    },
    {
        "lead": "everything that a caterer has to know about {d} stands on this page",
        "temperature": "caterers should bake {d} at {v} in a steady oven",
        "minutes": "plan the oven so that {d} bakes for {v} in peace",
        "technique": "have the mixture of {d} properly {v} in advance",
        "ingredient": "order in good time what {d} is made with, {v}",
        "region": "guests will ask, and {d} comes from {v}",
        "storage": "stored in the cold, {d} keeps for {v} at least",
        "substitute": "for guests without cream {d} is made with {v}",
        "side": "on the buffet {d} is best served with {v}",
    },
)


def _spam(rng: random.Random) -> Article:
    words = "cheap pans buy best deal oven discount free shipping top sale recipe hot".split()
    if rng.random() < 0.5:
        lines = [" ".join(rng.choices(words, k=14)) for _ in range(14)]
        return Article(
            title="Cheap pans best pans buy pans", blocks=(ArticleBlock(kind="paragraph", lines=tuple(lines)),)
        )
    template = "buy the [best|cheapest] pans in our [big|hot] sale and [save|win] money with free shipping today"
    claim = sentence(spin(template, rng))
    blocks = (paragraph([claim] * (12 + rng.randrange(12))), paragraph([claim] * 5))
    return Article(title="Best pans sale", blocks=blocks)


def _links(rng: random.Random) -> Article:
    nouns = ("Pans", "Ovens", "Stoves", "Knives", "Tins", "Menus", "Shops", "Boards", "Towels", "Bowls")
    lines = [
        f"{rng.choice(('Top', 'New', 'More', 'Hot'))} {rng.choice(nouns)} {rng.randrange(1000)}" for _ in range(70)
    ]
    return Article(title="Links", blocks=(ArticleBlock(kind="list", lines=tuple(lines)),))


def _boilerplate(rng: random.Random) -> Article:
    lines = (
        "Home", "Login", "Register", "Share", "Print", "Next", "Previous", "Back to top", "Sitemap", "Contact", "Help",
        "We use cookies", "Read more", "Click here", "Terms of use", "Privacy policy", "Cookie policy", "Add to cart",
        "View all", "Show less", "Subscribe", "Sign in", "Forgot password?", "All rights reserved", "Newsletter",
    )  # fmt: skip
    return Article(title="Index", blocks=(ArticleBlock(kind="paragraph", lines=tuple(rng.sample(lines, len(lines)))),))


_LATIN = (
    "lorem ipsum dolor sit amet consectetur adipiscing elit sed do eiusmod tempor incididunt ut labore et dolore magna "
    "aliqua ut enim ad minim veniam quis nostrud exercitation ullamco laboris nisi ut aliquip ex ea commodo consequat"
).split()


def _lorem(rng: random.Random) -> Article:
    said = ["Lorem ipsum dolor sit amet, consectetur adipiscing elit."]
    said += [sentence(" ".join(rng.choices(_LATIN, k=8 + rng.randrange(8)))) for _ in range(14)]
    return Article(title="Sample page", blocks=(paragraph(said[:8]), paragraph(said[8:])))


def _short(rng: random.Random) -> Article:
    said = sentence(spin(rng.choice(phrases.FILLER), rng))
    return Article(title="A note", blocks=(paragraph([said]),))


_INSULTS = ("idiot", "moron", "imbecile", "bastard", "scumbag", "dumbass", "halfwit", "pighead", "cabbagebrain")
_ABUSE = (
    "[you|whoever wrote this] [are|is] a [stupid|worthless|pathetic] {i} and [should|can] shut up",
    "only a [damn|complete|stupid] {i} would [post|write|cook] such [crap|garbage]",
    "go away, you [filthy|stupid|ugly] {i}, nobody here wants to [read|hear] you",
    "I have never met a bigger {i} than the one who runs this [damn|crappy] forum",
    "what a [pathetic|stupid] {i}, I hate you and everybody who cooks like you",
    "shut up, {i}, your food is crap and so are you",
    "every {i} in this thread deserves to be [thrown out|laughed at], you first",
    "you {i}, you cannot even boil water without being a {i} about it",
    "this is the kind of [crap|garbage] that only a [lazy|stupid] {i} believes",
)


def _abuse(rng: random.Random) -> Article:
    said = [sentence(spin(template, rng).replace("{i}", rng.choice(_INSULTS))) for template in rng.sample(_ABUSE, 8)]
    calm = [sentence(spin(template, rng)) for template in rng.sample(phrases.FILLER, 3)]
    mixed = said[:4] + calm + said[4:]
    return Article(title="Re: your recipe", blocks=(paragraph(mixed[:6]), paragraph(mixed[6:])))


def foreign(language: str, rng: random.Random) -> Article:
    """Return an article in another language."""
    said = languages.article_sentences(language, rng)
    third = len(said) // 3
    return Article(
        title=languages.TITLES[language],
        blocks=(paragraph(said[:third]), paragraph(said[third : 2 * third]), paragraph(said[2 * third :])),
    )


UNWANTED: dict[str, Callable[[random.Random], Article]] = {
    "spam": _spam,
    "links": _links,
    "boilerplate": _boilerplate,
    "lorem": _lorem,
    "short": _short,
    "abuse": _abuse,
}
REASONS = {
    "spam": "repetition",
    "links": "boilerplate",
    "boilerplate": "boilerplate",
    "lorem": "filler text",
    "short": "length",
    "abuse": "toxicity",
}
