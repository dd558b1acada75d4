"""The sites of the kitchen and their page templates: navigation, cookie banner, sidebar, comments, footer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from training.data.kitchen.articles import Article, ArticleBlock
from training.data.kitchen.phrases import PEOPLE
from training.data.kitchen.world import slug

Layout = Literal["article", "main", "classes", "old"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """One web site of the world and the layout of its pages. Hosts end in `.example`, which RFC 2606 reserves."""

    host: str
    name: str
    layout: Layout
    sections: tuple[str, ...]
    has_banner: bool = True
    has_comments: bool = False
    has_sidebar: bool = True

    def address(self, path: str) -> str:
        """The absolute URL of a path on this site."""
        return f"https://{self.host}/{path}"


SITES: tuple[Site, ...] = (
    Site(host="hearth-and-ladle.example", name="Hearth and Ladle", layout="article", has_comments=True,
         sections=("Bakes", "Stories", "Letters", "Shop")),
    Site(host="www.thebakersregister.example", name="The Baker's Register", layout="main",
         sections=("Register", "Questions", "Archive")),
    Site(host="ovenpost.example", name="Oven Post", layout="classes", has_comments=True,
         sections=("Latest", "Columns", "Plans", "About")),
    Site(host="blog.smallkitchen.example", name="Small Kitchen", layout="article", has_banner=False, has_comments=True,
         sections=("Home", "Diary", "Bakes")),
    Site(host="crustandcrumb.example", name="Crust and Crumb", layout="old", has_banner=False,
         sections=("Start", "Dishes", "Guest book")),
    Site(host="www.valleytables.example", name="Valley Tables", layout="main", has_comments=True,
         sections=("Tables", "People", "Places", "Contact")),
    Site(host="askthebaker.example", name="Ask the Baker", layout="classes",
         sections=("Ask", "Answers", "Rules")),
    Site(host="sundaycasserole.example", name="Sunday Casserole", layout="article", has_sidebar=False,
         sections=("Menus", "Notes")),
    Site(host="larder-library.example", name="The Larder Library", layout="main", has_banner=False,
         sections=("Catalogue", "Encyclopedia", "Help")),
    Site(host="innkeepersguide.example", name="The Innkeeper's Guide", layout="classes", has_comments=True,
         sections=("Inns", "Dishes", "Tales")),
    Site(host="www.goodcrust.example", name="Good Crust", layout="old",
         sections=("Bakes", "Compare", "Links")),
    Site(host="kettleandcloth.example", name="Kettle and Cloth", layout="article", has_comments=True,
         sections=("Journal", "Bakes", "Workshops")),
)  # fmt: skip
# Sites that publish copies and syndicated pages.
MIRRORS: tuple[Site, ...] = (
    Site(host="recipe-mirror.example", name="Recipe Mirror", layout="main", sections=("All", "New")),
    Site(host="kitchenwire.example", name="Kitchen Wire", layout="classes", sections=("Wire", "Partners")),
    Site(host="www.dailyplate.example", name="Daily Plate", layout="article", sections=("News", "Plates", "Jobs")),
)
JUNK: tuple[Site, ...] = (
    Site(host="best-cheap-pans.example", name="Best Cheap Pans", layout="classes", sections=("Deals", "Hot")),
    Site(host="freelinks.example", name="Free Links", layout="old", sections=("Top", "More")),
    Site(host="forum.hotstove.example", name="Hot Stove Forum", layout="main", sections=("Threads", "Rules")),
)

_COMMENTS = (
    "Made this for my sister and she asked for more!",
    "Lovely, thank you for sharing.",
    "First comment here, long time reader.",
    "My oven is too small for this :(",
    "Does anybody know where to buy that tin?",
    "Great site, greetings from the coast.",
    "I will try it at the weekend.",
)


def render(site: Site, article: Article, *, date: str, rng: random.Random, related: Sequence[tuple[str, str]]) -> str:
    """Return the page as HTML. `related` are (title, path) of other pages; `date` is ISO 8601."""
    body = "\n".join(_block(block) for block in article.blocks)
    author = rng.choice(PEOPLE)
    title = escape(article.title)
    links = "".join(f'<li><a href="/{path}">{escape(text)}</a></li>' for text, path in related)
    parts = [
        "<!DOCTYPE html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{title} - {escape(site.name)}</title>',
        f'<meta name="author" content="{author}"><meta property="article:published_time" content="{date}">',
        "<style>body{font-family:serif}nav a{margin:4px}</style></head><body>",
        _banner(site),
        _navigation(site),
        _LAYOUTS[site.layout].format(title=title, author=author, date=date, body=body),
        f'<div class="related-posts"><h3>You may also like</h3><ul>{links}</ul></div>' if links else "",
        _comments(rng) if site.has_comments else "",
        _sidebar(rng) if site.has_sidebar else "",
        _footer(site),
        "</body></html>",
    ]
    return "\n".join(part for part in parts if part)


_LAYOUTS: dict[Layout, str] = {
    "article": '<article><header><h1>{title}</h1><p class="byline">By {author} on <time datetime="{date}">{date}</time>'
    '</p></header><div class="entry-content">{body}</div></article>',
    "main": '<main id="main"><h1>{title}</h1><div class="meta">{date} | {author}</div>'
    '<section class="article-body">{body}</section></main>',
    "classes": '<div class="wrapper"><div class="post"><h1 class="post-title">{title}</h1>'
    '<div class="post-meta">Posted {date}</div><div class="post-content">{body}</div></div></div>',
    "old": '<table width="100%" border="0"><tr><td><h1>{title}</h1>\n<div id="content">{body}</div></td></tr></table>',
}


def _block(block: ArticleBlock) -> str:
    lines = [escape(line) for line in block.lines]
    if block.kind == "heading":
        return f"<h2>{lines[0]}</h2>"
    if block.kind in ("steps", "list"):
        tag = "ol" if block.kind == "steps" else "ul"
        return f"<{tag}>" + "".join(f"<li>{line}</li>" for line in lines) + f"</{tag}>"
    if block.kind == "table":
        rows = [line.split("\t") for line in lines]
        head = "".join(f"<th>{cell}</th>" for cell in rows[0])
        rest = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows[1:])
        return f"<table><tr>{head}</tr>{rest}</table>"
    return "".join(f"<p>{line}</p>" for line in lines)


def _banner(site: Site) -> str:
    if not site.has_banner:
        return ""
    return (
        '<div id="cookie-banner" class="cookie-consent" role="dialog"><p>We use cookies to improve your visit. By '
        f"staying on {escape(site.name)} you accept our privacy policy.</p><button>Accept all</button>"
        "<button>Settings</button></div>"
    )


def _navigation(site: Site) -> str:
    links = "".join(f'<li><a href="/{slug(section)}/">{section}</a></li>' for section in site.sections)
    return (
        f'<header class="site-header"><a class="logo" href="/">{escape(site.name)}</a>'
        f"<nav><ul>{links}</ul></nav></header>"
        f'<div class="breadcrumb"><a href="/">Home</a> &raquo; <a href="/{site.sections[0].lower()}/">'
        f"{site.sections[0]}</a></div>"
    )


def _sidebar(rng: random.Random) -> str:
    return (
        '<aside class="sidebar"><h3>Newsletter</h3><form><input type="email" placeholder="Your address">'
        "<button>Subscribe</button></form><h3>Popular</h3><ul>"
        + "".join(f'<li><a href="/p/{rng.randrange(900)}">Popular post {rng.randrange(90)}</a></li>' for _ in range(4))
        + "</ul></aside>"
    )


def _comments(rng: random.Random) -> str:
    said = rng.sample(_COMMENTS, 1 + rng.randrange(3))
    items = "".join(f'<li class="comment"><b>{rng.choice(PEOPLE)}</b><p>{escape(text)}</p></li>' for text in said)
    return f'<section id="comments" class="comments"><h3>Comments</h3><ol class="comment-list">{items}</ol></section>'


def _footer(site: Site) -> str:
    return (
        f'<footer class="site-footer"><p>&copy; 2031 {escape(site.name)}. All rights reserved.</p>'
        '<a href="/terms">Terms of use</a> <a href="/privacy">Privacy policy</a> <a href="/contact">Contact</a>'
        "</footer>"
    )
