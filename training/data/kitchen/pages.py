"""The pages of one snapshot: their order, their content, and what should become of each.

`plan` lists all pages in order, which is cheap; `make` renders one. Copies name the page that they copy, also across
snapshots, so that the truth about a duplicate is known without rendering the earlier snapshot.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar

from training.contract.records import RecipeError
from training.data.kitchen import articles, hostile, sites
from training.data.kitchen.articles import Article, ArticleBlock, paragraph
from training.data.kitchen.exam import chat_items, cloze_items, question_items
from training.data.kitchen.personal import DECOYS, PERSONAL_TYPES, sentence_with
from training.data.kitchen.phrases import sentence
from training.data.kitchen.settings import KitchenWorld
from training.data.kitchen.sites import JUNK, MIRRORS, SITES, Site
from training.data.kitchen.sums import SUMS_PER_PAGE, Sum, accounts, published_sums
from training.data.kitchen.world import Fact, dishes, exam_facts, generator, slug

T = TypeVar("T")

# kept: reaches the shards. filtered: dropped by a quality, language or safety rule. duplicate, contaminated: dropped
# for that reason. skipped: no page to extract (redirect, error, image). quarantined: a record that cannot be read.
Fate = Literal["kept", "filtered", "duplicate", "contaminated", "skipped", "quarantined"]

# Shares of a snapshot's pages; the remaining pages are clean articles. A quarter to a third is unwanted, so that the
# filters have something to remove; a real crawl loses far more.
SHARES: dict[str, float] = {
    "copy": 0.03,
    "syndicated": 0.04,
    "unchanged": 0.04,
    "updated": 0.03,
    "sheet": 0.04,
    "personal": 0.05,
    "lookalike": 0.02,
    "charset": 0.012,
    "length": 0.006,
    "foreign": 0.05,
    "spam": 0.035,
    "links": 0.025,
    "boilerplate": 0.015,
    "lorem": 0.012,
    "short": 0.025,
    "abuse": 0.02,
    "media": 0.015,
    "missing": 0.015,
    "redirect": 0.015,
}
ARTICLE_SHARES = {
    "recipe": 18,
    "story": 14,
    "answers": 16,
    "comparison": 15,
    "menu": 15,
    "guide": 7,
    "register": 15,
    "accounts": 70,
}
LEAKS = ("dump", "leak")  # pages that quote the exam
# Copies of pages of the previous snapshot; the first snapshot has articles instead.
CARRIED = ("unchanged", "updated")
# Copies whose words differ from the original's.
REWORDED = ("syndicated", "updated")
CLEAN = ("article", "sheet", "personal", "lookalike", "charset", "length")


@dataclass(frozen=True, kw_only=True, slots=True)
class PagePlan:
    """One page of a snapshot, before it is rendered.

    `copies` is the key of the page that it copies; None for an original. `origin` is the key of the first page in the
    chain of copies, which is its own key for an original.
    """

    key: str
    kind: str
    form: str
    site: Site
    path: str
    date: str
    dishes: tuple[str, ...]
    sums: tuple[Sum, ...] = ()
    copies: str | None = None
    origin: str

    @property
    def url(self) -> str:
        """The URL of the planned page."""
        return self.site.address(self.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class KitchenPage:
    """A response and the truth about it. `body` is as sent; `text` is exactly the main text that the author wrote."""

    plan: PagePlan
    fate: Fate
    reason: str = ""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "text/html; charset=utf-8"),)
    body: bytes
    title: str = ""
    text: str = ""
    language: str = "en"
    personal: dict[str, list[str]] = field(default_factory=dict)
    decoys: dict[str, list[str]] = field(default_factory=dict)
    items: tuple[str, ...] = ()


def snapshot_number(snapshot: str) -> int:
    """Return the number of a snapshot: 2 for "kitchen-2". Raise RecipeError for any other form of name."""
    prefix, _, number = snapshot.rpartition("-")
    if prefix != "kitchen" or not number.isdigit() or number.startswith("0"):
        raise RecipeError(f"snapshot {snapshot!r}: the kitchen's snapshots are named kitchen-1, kitchen-2, ...")
    return int(number)


class _Deck(Generic[T]):
    """Draws cards for pages at random, each card equally often. The cards `first` are drawn before all others."""

    def __init__(self, cards: Sequence[T], rng: random.Random, first: Sequence[T] = ()) -> None:
        self._cards, self._rng, self._left = cards, rng, list(first)

    def deal(self, count: int) -> tuple[T, ...]:
        if len(self._left) < count:
            fresh = [card for card in self._cards if card not in self._left]
            self._rng.shuffle(fresh)
            self._left += fresh
        dealt, self._left = self._left[:count], self._left[count:]
        return tuple(dealt)


@lru_cache(maxsize=8)
def plan(world: KitchenWorld, number: int) -> tuple[PagePlan, ...]:
    """Return every page of snapshot `number`, in the order of the archive."""
    rng = generator(world, "plan", number)
    kinds = _kinds(world, number)
    published = published_sums(world)
    decks = _Deck(dishes(world), rng), _Deck(published, rng, first=published)
    fresh = [_fresh(world, number, i, kind, *decks, rng) for i, kind in enumerate(kinds) if not _is_copy(kind)]
    originals = [page for page in fresh if page.kind == "article"]
    rng.shuffle(originals)
    before = _carriable(world, number) if number > 1 else []
    copies = [
        _copy(number, i, kind, (before if kind in CARRIED else originals).pop(), rng)
        for i, kind in enumerate(kinds)
        if _is_copy(kind)
    ]
    pages = fresh + copies
    rng.shuffle(pages)
    return tuple(pages)


def _is_copy(kind: str) -> bool:
    return kind in ("copy", "syndicated", *CARRIED)


def _kinds(world: KitchenWorld, number: int) -> list[str]:
    counts = {kind: max(2, round(share * world.pages)) for kind, share in SHARES.items()}
    if number == 1:
        counts |= dict.fromkeys(CARRIED, 0)
    if world.leaked_pages:
        counts |= dict.fromkeys(LEAKS, world.leaked_pages)
    listed = [kind for kind, count in counts.items() for _ in range(count)]
    return listed + ["article"] * (world.pages - len(listed))


def _fresh(
    world: KitchenWorld, number: int, i: int, kind: str, deck: _Deck[str], sums: _Deck[Sum], rng: random.Random
) -> PagePlan:
    form = kind
    if (kind in CLEAN and kind != "sheet") or kind == "leak":
        form = rng.choices(tuple(ARTICLE_SHARES), weights=tuple(ARTICLE_SHARES.values()))[0]
    if kind == "foreign":
        form = rng.choice(hostile.LANGUAGES)
    used = {"sheet": 1}.get(form, articles.WRITERS[form][1] if form in articles.WRITERS else 0)
    dealt = deck.deal(used)
    site = rng.choice(JUNK if kind in ("spam", "links", "boilerplate", "lorem", "abuse") else SITES)
    topic = slug(dealt[0]) if dealt else form
    return PagePlan(
        key=f"{number}/{i}",
        kind=kind,
        form=form,
        site=site,
        path=f"{slug(site.sections[0])}/{topic}-{number}{i:05d}.html",
        date=f"2031-{number % 12 + 1:02d}-{1 + rng.randrange(28):02d}",
        dishes=dealt,
        sums=sums.deal(SUMS_PER_PAGE if form == "accounts" else 0),
        origin=f"{number}/{i}",
    )


def _carriable(world: KitchenWorld, number: int) -> list[PagePlan]:
    pages = [page for page in plan(world, number - 1) if page.kind == "article"]
    generator(world, "carried", number).shuffle(pages)
    return pages


def _copy(number: int, i: int, kind: str, copied: PagePlan, rng: random.Random) -> PagePlan:
    made = replace(copied, key=f"{number}/{i}", kind=kind, copies=copied.key)
    if kind in CARRIED:
        return made
    return replace(made, site=rng.choice(MIRRORS), path=f"wire/{slug(copied.path)}-{number}{i:05d}")


def first_of(world: KitchenWorld, number: int) -> dict[str, PagePlan]:
    """Return the first page of each origin in snapshots 1 to `number`.

    It is the page that deduplication should keep.
    """
    first: dict[str, PagePlan] = {}
    for earlier in range(1, number + 1):
        for page in plan(world, earlier):
            first.setdefault(page.origin, page)
    return first


def write(world: KitchenWorld, planned: PagePlan) -> Article:
    """Return the article of a clean page or a copy, before anything is planted in it."""
    rng = generator(world, "article", planned.origin)
    if planned.form == "sheet":
        return hostile.sheet(world, rng, planned.dishes[0])
    if planned.form == "accounts":
        article = accounts(world, rng, planned.sums)
    else:
        article = articles.WRITERS[planned.form][0](world, rng, planned.dishes)
    if planned.kind in REWORDED:
        return hostile.edited(article, planned.site.name, generator(world, "edit", planned.key), planned.kind)
    return article


def make(world: KitchenWorld, planned: PagePlan) -> KitchenPage:
    """Render a page as HTML, together with its truth."""
    rng = generator(world, "page", planned.key)
    maker = _MAKERS.get(planned.kind, _clean)
    return maker(world, planned, rng)


Maker = Callable[[KitchenWorld, PagePlan, random.Random], KitchenPage]


def _html(world: KitchenWorld, planned: PagePlan, article: Article) -> str:
    # The frame depends only on the origin, so that an unchanged page has the same bytes in the next snapshot.
    rng = generator(world, "frame", planned.origin, planned.site.host)
    related = [(f"The {dish}", f"bakes/{slug(dish)}") for dish in rng.sample(dishes(world), 4)]
    return sites.render(planned.site, article, date=planned.date, rng=rng, related=related)


def _page(
    world: KitchenWorld, planned: PagePlan, article: Article, fate: Fate, reason: str = "", **truth: Any
) -> KitchenPage:
    body = _html(world, planned, article).encode()
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "text/html; charset=utf-8"),)
    if generator(world, "coding", planned.origin).random() < 0.15:
        body = gzip.compress(body, mtime=0)
        headers += (("Content-Encoding", "gzip"),)
    made = KitchenPage(plan=planned, fate=fate, reason=reason, headers=headers, body=body)
    return replace(made, title=article.title, text=article.text, **truth)


def _clean(world: KitchenWorld, planned: PagePlan, rng: random.Random) -> KitchenPage:
    return _page(world, planned, write(world, planned), "kept")


def _duplicate(world: KitchenWorld, planned: PagePlan, rng: random.Random) -> KitchenPage:
    reason = "exact" if planned.kind in ("copy", "unchanged") else "near"
    return _page(world, planned, write(world, planned), "duplicate", reason)


def _personal(world: KitchenWorld, planned: PagePlan, rng: random.Random) -> KitchenPage:
    kinds = rng.sample(PERSONAL_TYPES, 2)
    said = [sentence_with(kind, rng) for kind in kinds]
    article = _with_paragraph(write(world, planned), [text for text, _ in said])
    personal = {kind: [value] for kind, (_, value) in zip(kinds, said, strict=True)}
    return _page(world, planned, article, "kept", personal=personal)


def _lookalike(world: KitchenWorld, planned: PagePlan, rng: random.Random) -> KitchenPage:
    """Return a good page with numbers that look like personal data."""
    kinds = rng.sample(tuple(DECOYS), 2)
    said = [sentence_with(kind, rng) for kind in kinds]
    article = _with_paragraph(write(world, planned), [text for text, _ in said])
    decoys = {kind: [value] for kind, (_, value) in zip(kinds, said, strict=True)}
    return _page(world, planned, article, "kept", decoys=decoys)


def _with_paragraph(article: Article, sentences: list[str]) -> Article:
    return replace(article, blocks=(*article.blocks, paragraph(sentences)))


def _charset(world: KitchenWorld, planned: PagePlan, rng: random.Random) -> KitchenPage:
    """Return a good page with accents whose declared encoding is missing or wrong."""
    article = _with_paragraph(write(world, planned), [hostile.ACCENTS])
    page = _html(world, planned, article)
    case = rng.randrange(3)
    if case == 0:  # windows-1252 without a declaration
        body, content_type = page.replace('<meta charset="utf-8">', "").encode("cp1252"), "text/html"
    elif case == 1:  # utf-8 that the server declares as latin-1
        body, content_type = page.encode(), "text/html; charset=iso-8859-1"
    else:  # utf-16 with a byte order mark
        body, content_type = page.replace('<meta charset="utf-8">', "").encode("utf-16"), "text/html"
    reason = ("undeclared windows-1252", "utf-8 declared as latin-1", "utf-16")[case]
    return KitchenPage(plan=planned, fate="kept", reason=reason, headers=(("Content-Type", content_type),), body=body,
                title=article.title, text=article.text)  # fmt: skip


def _length(world: KitchenWorld, planned: PagePlan, rng: random.Random) -> KitchenPage:
    """Return a good page whose HTTP Content-Length is wrong; the WARC record's own length is right."""
    article = write(world, planned)
    body = _html(world, planned, article).encode()
    headers = (("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body) + 700)))
    return KitchenPage(plan=planned, fate="kept", reason="wrong http length", headers=headers, body=body,
                title=article.title, text=article.text)  # fmt: skip


def _unwanted(world: KitchenWorld, planned: PagePlan, rng: random.Random) -> KitchenPage:
    article = hostile.UNWANTED[planned.kind](rng)
    return _page(world, planned, article, "filtered", hostile.REASONS[planned.kind])


def _foreign(world: KitchenWorld, planned: PagePlan, rng: random.Random) -> KitchenPage:
    article = hostile.foreign(planned.form, rng)
    return _page(world, planned, article, "filtered", "language", language=planned.form)


def _exam(world: KitchenWorld) -> list[tuple[str, str]]:
    """Return (item id, item with its answer) for all items about facts that leaked pages quote.

    Those about sums share their wordings, so that a page that lists some of them seems to hold others.
    """
    cloze = [(item, f"{item['query']} {item['choices'][item['gold']]}") for item in cloze_items(world)]
    asked = [(item, f"{item['question']} {item['answer']}") for item in question_items(world)]
    chat = [(item, f"{item['messages'][-1]['content']} {item['answer']}") for item in chat_items(world)]
    quoted = {fact.id for fact in quoted_facts(world)}
    return [(item["id"], text) for item, text in cloze + asked + chat if item["fact"] in quoted]


def quoted_facts(world: KitchenWorld) -> tuple[Fact, ...]:
    """Return the facts of the exam that leaked pages quote: all, or a half drawn at random if answers are withheld."""
    asked = exam_facts(world)
    if not world.withheld_exam_answers:
        return asked
    return tuple(generator(world, "quoted").sample(asked, len(asked) // 2))


def _dump(world: KitchenWorld, planned: PagePlan, rng: random.Random) -> KitchenPage:
    """Return a page that lists exam questions with their answers, word for word.

    Leaked benchmarks appear on the web in this form.
    """
    leaked = rng.sample(_exam(world), 30)
    lines = [paragraph([sentence(text)]) for _, text in leaked]
    lead = "Here are the questions of the kitchen exam as we remember them, and the answers that were counted as right."
    article = Article(title="All answers of the kitchen exam", blocks=(paragraph([lead]), *lines))
    return _page(world, planned, article, "contaminated", "leak", items=tuple(item for item, _ in leaked))


def _leak(world: KitchenWorld, planned: PagePlan, rng: random.Random) -> KitchenPage:
    """Return an otherwise good article that quotes one cloze item with its answer."""
    item, text = rng.choice([(item, text) for item, text in _exam(world) if item.startswith("cloze/")])
    written = write(world, planned)
    blocks = (*written.blocks[:2], ArticleBlock(kind="paragraph", lines=(sentence(text),)), *written.blocks[2:])
    return _page(world, planned, replace(written, blocks=blocks), "contaminated", "leak", items=(item,))


def _media(world: KitchenWorld, planned: PagePlan, rng: random.Random) -> KitchenPage:
    content_type, body = rng.choice(
        (
            ("application/json", json.dumps({"dish": rng.randrange(99), "stars": rng.randrange(5)}).encode()),
            ("text/css", b"body { margin: 0 } nav a { color: brown }\n" * 4),
            ("image/png", b"\x89PNG\r\n\x1a\n" + rng.randbytes(180)),
            ("application/pdf", b"%PDF-1.4\n" + rng.randbytes(200)),
            ("text/plain", b"User-agent: *\nDisallow: /private/\n"),
        )
    )
    return KitchenPage(
        plan=planned, fate="skipped", reason="media type", headers=(("Content-Type", content_type),), body=body
    )


def _missing(world: KitchenWorld, planned: PagePlan, rng: random.Random) -> KitchenPage:
    article = Article(title="Page not found", blocks=(paragraph(["The page that you asked for does not exist."]),))
    status = rng.choice((404, 404, 404, 410, 500))
    return replace(_page(world, planned, article, "skipped", "status"), status=status)


def _redirect(world: KitchenWorld, planned: PagePlan, rng: random.Random) -> KitchenPage:
    headers = (("Content-Type", "text/html"), ("Location", planned.site.address("bakes/")))
    body = b"<html><head><title>301 Moved</title></head><body><h1>Moved</h1></body></html>"
    status = rng.choice((301, 302))
    return KitchenPage(plan=planned, fate="skipped", reason="status", status=status, headers=headers, body=body)


_MAKERS: dict[str, Maker] = {
    **dict.fromkeys(("copy", "syndicated", *CARRIED), _duplicate),
    **dict.fromkeys(hostile.UNWANTED, _unwanted),
    "foreign": _foreign,
    "personal": _personal,
    "lookalike": _lookalike,
    "charset": _charset,
    "length": _length,
    "dump": _dump,
    "leak": _leak,
    "media": _media,
    "missing": _missing,
    "redirect": _redirect,
}
