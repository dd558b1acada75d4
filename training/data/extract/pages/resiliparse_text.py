"""The main text of a page by resiliparse, with repairs of what its version 2.0 drops.

The generated kitchen is extracted with it. For other crawls docs/extraction.md recommends other extractors.
"""

from __future__ import annotations

import re
from html import unescape

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import DOMNode, HTMLTree

# Boilerplate that resiliparse does not recognize: permalinks of headings, tables of contents, DocBook's headers and
# footers, Drupal's book pager, MediaWiki's edit links, lists of comments, languages and path in Apache's documentation.
# Mostly classes, not ids, because documentation generators turn headings into ids such as `comments`.
BOILERPLATE = [
    "a.headerlink", "a.permalink", "a.header-anchor", "a.hash-link", "a.mark", "a.anchorjs-link",
    ".toc", "details#toc", "nav#toc", "ul#toc", ".minitoc", ".navheader", ".navfooter", ".book-navigation",
    ".mw-editsection", ".comments", ".comment-list", ".commentlist", ".toplang", ".bottomlang", "body > #path",
]  # fmt: skip

GUARD = "\U0010fffd"  # a private-use character
SINGLE_SIGN = re.compile(r"(>\s*)([^\x00-\x7f\s]|&(?!nbsp;|#160;|#x[aA]0;)#?\w{1,32};)(\s*<)")
LISTS_NEAR_BODY = "body > ul, body > * > ul, body > * > * > ul"
MENU_CHARACTERS_PER_LINK = 40  # a list with less text for each of its links is a menu
MANY_NEWLINES = re.compile(r"\n{3,}")
MANY_TABS = re.compile(r"\t{2,}")


def resiliparse_text(html: str) -> str:
    """Return the main text of a page; "" if it has none."""
    tree = HTMLTree.parse(html if GUARD in html else _with_guards(html))
    _deepen_lists(tree)
    text = extract_plain_text(
        tree, main_content=True, preserve_formatting=True, alt_texts=False, skip_elements=BOILERPLATE
    )
    text = "\n".join(line.rstrip() for line in text.replace(GUARD, "").split("\n"))
    if "\t\t" in text:
        text = MANY_TABS.sub("\t", text)
    return MANY_NEWLINES.sub("\n\n", text) if "\n\n\n" in text else text


def _with_guards(html: str) -> str:
    """Add a guard character wherever the text between two tags is a single non-ASCII character.

    resiliparse 2.0 takes such text for an ornament, drops it and joins its neighbours: "PL/pgSQL</b> — <b>SQL" becomes
    "PL/pgSQLSQL". The same happens to quotation marks, words of one Chinese character and digits of most scripts. The
    second character, removed afterwards, prevents this. In links and buttons a sign that is not a letter really is an
    ornament, and gets no guard.
    """

    def guarded(found: re.Match[str]) -> str:
        tag = html[html.rfind("<", 0, found.start()) + 1 : found.start()].lower()
        if tag.partition(" ")[0] in ("a", "button") and not unescape(found[2]).isalnum():
            return found[0]
        return f"{found[1]}{found[2]}{GUARD}{found[3]}"

    return SINGLE_SIGN.sub(guarded, html)


def _deepen_lists(tree: HTMLTree) -> None:
    """Nest lists that are near the body and are not menus three elements deeper.

    resiliparse 2.0 takes every `ul` fewer than four levels below the body for a menu, including ingredients and steps.
    On the labelled pages of article-extraction-benchmark this change leaves precision and recall as they are.
    """
    for item in tree.document.query_selector_all(LISTS_NEAR_BODY)[:] if tree.document else ():
        parent = item.parent
        if parent is None or len(item.text or "") < MENU_CHARACTERS_PER_LINK * len(item.query_selector_all("a")):
            continue
        outer = _division(tree)
        parent.replace_child(outer, item)
        for _ in range(2):
            inner = _division(tree)
            outer.append_child(inner)
            outer = inner
        outer.append_child(item)


def _division(tree: HTMLTree) -> DOMNode:
    made = tree.create_element("div")
    assert made is not None, "a tree makes elements of its own"
    return made
