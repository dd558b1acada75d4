"""Show in a page's tree what a click shows, for extractors that leave out what is hidden, and its heading with it.

Lists of nodes are copied (`[:]`), because each step of their own iterators is linear in their length.

The rule is that of the extractor `blocks`: what is hidden is content if it stands behind a heading or switch that has
no other text, and only the next heading stands behind it, save behind the last of several. Panels of tabs are content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from resiliparse.parse.html import ElementNode, HTMLTree, Node, NodeType

HIDDEN = "[hidden], [aria-hidden=true], [style*=display], [style*=visibility], .collapse, .hidden, .hide"
HIDING_STYLE = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
CLASSES = frozenset({"collapse", "hidden", "hide"})
HEADINGS = ("h2", "h3", "h4", "h5", "h6", "dt")
SWITCHES = (
    "button, summary, [role=button], [role=tab], [data-toggle=collapse], [data-bs-toggle=collapse], [aria-expanded]"
)
TITLES = f"{', '.join(HEADINGS)}, {SWITCHES}"
BLOCKS = ("div", "section", "article", "p", "ul", "ol", "dl", "dd", "table", "blockquote", "pre", "aside")
ANY_BLOCK = ", ".join((*BLOCKS, *HEADINGS))
NO_TEXT = "nav, header, footer, form, dialog, [role=navigation], [role=search], [role=dialog]"
ATTRIBUTES = ("hidden", "aria-hidden", "style", "class", "id")


def unfolded(tree: HTMLTree, html: str) -> str:
    """Return a page's HTML with what a click shows; `html` itself if there is nothing. The tree may be changed."""
    several = set[Node | None]()
    shown: list[tuple[ElementNode, ElementNode | None]] = []
    for node in tree.document.query_selector_all(HIDDEN)[:] if tree.document else ():
        if node.tag not in BLOCKS or not _is_hidden(node) or not _words(node) or _is_menu(node):
            continue
        heading, after = _heading(node), next(_beside(node), None)
        is_next = after is None or node.parent in several or _begins_with_title(after)
        if heading is not None and is_next:
            several.add(node.parent)
        if node.getattr("role") == "tabpanel" or (heading is not None and is_next):
            shown.append((node, heading))
    inside = set[Node]()
    for node, heading in shown:
        _show(tree, node, heading)
        if node not in inside:
            _make_plain(tree, node)
            inside |= set(node.query_selector_all(", ".join(BLOCKS))[:])
    return str(tree) if shown else html


def _is_hidden(node: ElementNode) -> bool:
    if node.has_attribute("hidden") or node.getattr("aria-hidden") == "true":
        return True
    return HIDING_STYLE.search(node.getattr("style") or "") is not None or not CLASSES.isdisjoint(node.class_list)


def _is_menu(node: ElementNode) -> bool:
    """Whether an element holds a form, is in a part of the page that is no text, or has most letters in links."""
    if node.closest(NO_TEXT) is not None or node.query_selector("form, input, select") is not None:
        return True
    return 2 * sum(len(_words(link)) for link in node.query_selector_all("a")[:]) > len(_words(node))


def _words(node: Node) -> str:
    return " ".join((node.text or "").split())


def _beside(node: Node, *, back: bool = False) -> Iterator[Node]:
    """Yield the nodes with text before or behind a node, the nearest first."""
    one = node.previous_sibling if back else node.next_sibling
    while one is not None:
        if one.type in (NodeType.ELEMENT, NodeType.TEXT) and _words(one):
            yield one
        one = one.previous_sibling if back else one.next_sibling


def _title(node: ElementNode, kinds: str = TITLES) -> ElementNode | None:
    """Return the first heading or switch that an element is or holds."""
    return node if node.matches(kinds) else node.query_selector(kinds)


def _heading(node: ElementNode) -> ElementNode | None:
    """Return what stands before a hidden element if a heading or switch is all of its text, and nothing hides it."""
    before = next(_beside(node, back=True), None)
    if not isinstance(before, ElementNode):
        return None
    title = _title(before, SWITCHES if node.tag == "p" else TITLES)
    if title is None or _words(title) != _words(before):
        return None
    return before if title.tag == "button" or not _is_hidden(before) else None


def _begins_with_title(node: Node) -> bool:
    title = _title(node) if isinstance(node, ElementNode) else None
    return title is not None and _words(title) != "" and _words(node).startswith(_words(title))


def _show(tree: HTMLTree, node: ElementNode, heading: ElementNode | None) -> None:
    """Take from an element what hides it, and make its title a heading."""
    if heading is not None:
        made, text = _element(tree, heading.tag if heading.tag in (*HEADINGS, "summary") else "h3"), _words(heading)
        heading.replace_with(made)
        made.append_child(_text(tree, text))
    for name in ATTRIBUTES:
        node.delattr(name)


def _make_plain(tree: HTMLTree, node: ElementNode) -> None:
    """Take from the elements in a shown one the names that may hide them, and make bare text a paragraph."""
    for one in node.query_selector_all("[class], [id]")[:]:
        for name in ATTRIBUTES:
            one.delattr(name)
    for one in (node, *node.query_selector_all("div")[:]):
        if one.tag == "div" and one.query_selector(ANY_BLOCK) is None:
            made = _element(tree, "p")
            for child in one.child_nodes[:]:
                made.append_child(child)
            one.append_child(made)


def _element(tree: HTMLTree, name: str | None) -> ElementNode:
    made = tree.create_element(name or "")
    assert isinstance(made, ElementNode), "a tree makes elements of its own"
    return made


def _text(tree: HTMLTree, text: str) -> Node:
    made = tree.create_text_node(text)
    assert made is not None, "a tree makes texts of its own"
    return made
