"""Rewrite a page's markup where its text is carried by markup that extractors lose, before any of them reads it.

Formulas become TeX (`formulas`), exponents get their `^`, signs of footnotes and deleted words
go, and code in `pre` has lines that end where its elements do, blanks that are blanks, and no line numbers.

One pass from left to right; its time is linear in the page. What is not closed is left as it is.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache
from html import escape, unescape
from itertools import accumulate, pairwise

import numpy as np

from training.data.extract.pages.formulas import (
    CLOSE,
    MATH,
    OPEN,
    Formula,
    attributes_of,
    element,
    of_image,
    of_math,
    of_script,
    of_wrapper,
)
from training.data.words.native import native

FORMULA_SIGNS = (
    *(b"<math", b"<MATH", b"MathJax", b"mjx-", b"math/", b"math-tex", b"mathtex", b"e-math", b"t-math", b"p-math"),
    *(
        b":math",
        b"a-math",
        b"l-formula",
        b"atex",
        b"tex=",
        b"cht=tx",
        b"tex.cgi",
        b"data-equation",
        b"a-formula",
        b"texrender",
    ),
    *(b'="math', b"='math", b'="tex"', b"='tex'"),
    *(b'alt="$', b'ALT="$', b"alt='$", b'alt="\\'),
)
OTHER_SIGNS = (
    b"<sup",
    b"<SUP",
    b"<pre",
    b"<PRE",
    b"<del",
    b"<DEL",
    b"<xmp",
    b"<XMP",
    b"</s>",
    b"<strike",
    *(b"noteref", b"note-back", b"note-anchor", b"reversefootnote"),
)
NUM_FORMULA_SIGNS = len(FORMULA_SIGNS)
BEGINS = 4
PLAIN_NAMES = "pre xmp script style textarea sup del s strike"
FORMULA_NAMES = rf"{PLAIN_NAMES} (?:\w{{1,8}}:)?math img span div mjx-container amp-mathml"
TAG = re.compile(r"""<([a-z][^\s/>]*)((?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?+)*+)>""", re.IGNORECASE)
ANY_TAG = re.compile(r"<[^<>]*>")
WRAPPER = re.compile(
    r"(?:^|\s)(katex(?:-display)?|mwe-math-element\S*|ztext-math|MathJax\S*|mjx-\S+|math-tex|ql-formula)(?:\s|$)"
)
HOLDS_TEX = re.compile(r"\sdata-(?:tex|latex|math|formula)\s*=")
CODE_END = re.compile(r"(?<!\s)\s*+</(?:div|p|li|tr)\s*>", re.IGNORECASE)
CODE_BLOCK = re.compile(r"</?(?:div|p|li|tr|ol|ul|table|tbody|td|th|section)\b[^>]*>", re.IGNORECASE)
CODE_LINE = re.compile(
    r"(?<!\n)</(?:span|code)>(?=<(?:span\b[^<>]{0,500}\bclass\s*=\s*[\"']?(?:[^<>\"']{0,500}[\s-])?line[\s\"'>]|code\b))",
    re.IGNORECASE,
)
CODE_BREAK = re.compile(r"<br\b[^>]*>", re.IGNORECASE)
CODE_NUMBER = re.compile(
    r"<(span|td|a|i)\b[^>]{0,500}\bclass\s*=\s*[\"']?[^\"'>]{0,500}(?:line-?num|lineno|gutter|blob-num|\bln\b|\blnum|hljs-ln-n)[^>]*>"
    r"(?:[\s\d]|&nbsp;|<(?!/?\1\b)[^<>]*+>)*+</\1\s*>",
    re.IGNORECASE,
)
BLANK = re.compile(r"&nbsp;|&#160;|&#x0*a0;|\xa0", re.IGNORECASE)
NOTE = re.compile(r"\[[^\[\]]{1,24}\]|\(?[*†‡§¶#]{1,3}\)?|\(?[0-9]{1,3}\)?(?:[,–-]\s?[0-9]{1,3})*|[a-z]")
NOTE_ADDRESS = re.compile(
    r"href\s*=\s*[\"']?[^\"'\s>]*#|(?:class|epub:type|role)\s*=\s*[\"']?[^\"'>]*(?:note|ref)", re.I
)
NOTE_BEFORE = re.compile(r"<a\b[^>]*href\s*=\s*[\"']?[^\"'\s>]*#[^>]*>$", re.IGNORECASE)
NOTE_LINK = re.compile(
    r"<a\b(?=[^<>]*(?:noteref|footnote-(?:back|anchor)|reversefootnote))[^<>]*+>\s*+(?:<sup\b[^<>]*>\s*+)?"
    r"\[?[\da-z*†‡§^↩↑\ufe0e]{1,5}\]?\s*+(?:</sup>\s*+)?</a>",
    re.IGNORECASE,
)
EXPONENT = re.compile(
    r"[+\-−–]?\d{1,6}(?:[.,/]\d+)?|\d?[+\-−]|[+\-−]?(?:\d*[a-z]|[A-Z])(?:\s?[+\-−*/]\s?\w{1,3})?|\w\s?[+\-−]\s?\w"
)
ORDINALS = frozenset("st nd rd th er re e ème eme o a os as r s me mes lle lles TM SM ® ™".split())
GLUED = re.compile(r"[^\W\d_\u0e00-\uffff]{2}")  # letters of two words, in scripts that put blanks between words
UNITS = frozenset("mile miles metre metres meter meters inch inches foot feet yard yards sinh cosh tanh".split())
MAX_SUP, MAX_DELETED, MAX_STRUCK = 400, 4000, 300
CLOSING = frozenset(".,;:!?)")
MAX_WRAPPED = 50_000  # characters of markup that a script drew for a formula
MAX_DRAWN = 1000  # characters of its text
LONGEST = {
    "sup": MAX_SUP,
    "del": MAX_DELETED,
    "s": MAX_STRUCK,
    "strike": MAX_STRUCK,
    **dict.fromkeys(("span", "div", "mjx-container", "amp-mathml"), MAX_WRAPPED),
}
FORMULA_FIGURE = re.compile(  # a figure is a paragraph where it holds a formula and nothing else
    rf"<figure\b[^<>]*>(?:\s|</?(?:div|span|p|a)\b[^<>]*>)*+({OPEN}[^<>]*{CLOSE})(?:\s|</?(?:div|span|p|a)\b[^<>]*>)*+"
    r"</figure>",
    re.IGNORECASE,
)
INLINE = re.compile(r"</?(?:i|em|b|strong|span|var|a|sub|small|font|code|u)\b[^<>]*>", re.IGNORECASE)
NUMBERS = re.compile(r"\s*\d+(?:\s+\d+)+\s*")


def rewritten(html: str, body: bytes = b"") -> str:
    """Return a page's HTML as extractors should read it; the same object if nothing in it needs this.

    `body` is the page in UTF-8, if it is at hand.
    """
    found = _first_sign(np.frombuffer(body or html.encode("utf-8", "replace"), np.uint8), *_signs())
    if found < 0:
        return html
    has_formulas = found < NUM_FORMULA_SIGNS
    if OPEN in html or CLOSE in html:
        html = html.replace(OPEN, "").replace(CLOSE, "")
    if "note" in html:
        html = NOTE_LINK.sub("", html)
    made = _Rewriting(html, _starts(FORMULA_NAMES if has_formulas else PLAIN_NAMES)).made()
    return FORMULA_FIGURE.sub(r"<p>\1</p>", made) if has_formulas and "<figure" in made else made


@lru_cache(maxsize=1)
def _signs() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return what each two bytes, as a number, say of signs; the bytes of all signs; and where each sign begins.

    A sign has four bytes or more. Two bytes that are not among the first four of any let three places be skipped (Wu
    and Manber, "A fast algorithm for multi-pattern searching", 1994). With two that begin a sign, BEGINS is added.
    """
    signs = (*FORMULA_SIGNS, *OTHER_SIGNS)
    pairs = np.full(1 << 16, 3, np.uint8)
    for at in (0, 1, 2):  # the places that may be skipped are fewer for later ones
        pairs[[one[at] << 8 | one[at + 1] for one in signs]] = 2 - at
    pairs[[one[0] << 8 | one[1] for one in signs]] |= BEGINS
    return pairs, np.frombuffer(b"".join(signs), np.uint8), np.array([0, *accumulate(map(len, signs))])


@native
def _first_sign(text, pairs, signs, begins):
    """Return the number of a sign of formulas in a text of bytes; if none is there, that of another sign, or -1.

    This is one pass. One for each sign took longer than all else that is done with a page.
    """
    found = -1
    at = 0
    while at + 3 < text.size:
        skip = pairs[np.int64(text[at + 2]) << 8 | np.int64(text[at + 3])] & 3
        if skip:
            at += skip
            continue
        if pairs[np.int64(text[at]) << 8 | np.int64(text[at + 1])] & BEGINS:
            for sign in range(begins.size - 1):
                size = begins[sign + 1] - begins[sign]
                same = 0
                while same < size and at + same < text.size and text[at + same] == signs[begins[sign] + same]:
                    same += 1
                if same == size:
                    if sign < NUM_FORMULA_SIGNS:
                        return sign
                    found = sign
        at += 1
    return found


@lru_cache(maxsize=4)
def _starts(names: str) -> re.Pattern[str]:
    return re.compile(rf"<(?:!--|({'|'.join(names.split())})(?=[\s>/]))", re.IGNORECASE)


@lru_cache(maxsize=32)
def _edges(name: str) -> re.Pattern[str]:
    return re.compile(rf"<(/?){name}(?=[\s>/])", re.IGNORECASE)


class _Rewriting:
    """One pass over a page: pieces of the result, and where the page was copied up to."""

    def __init__(self, html: str, starts: re.Pattern[str]) -> None:
        self.html, self.starts = html, starts
        self.pieces: list[str] = []
        self.tail = ""  # the last characters of the pieces
        self.copied = 0
        self.closed: dict[str, dict[int, tuple[int, int]]] = {}
        self.tag_ends: list[int] = []
        self.tag_sizes: list[int] = []  # characters of the first tags
        self.searched = 0  # up to here no wrapper holds a formula
        self.last: tuple[int, int, Formula] | None = None  # piece, end in the page, and formula
        self.has_scripts = "math/tex" in html or "math/mml" in html

    def made(self) -> str:
        at = 0
        while found := self.starts.search(self.html, at):
            at = self.step(found)
            if at < 0:
                break
        if not self.pieces:
            return self.html
        return "".join([*self.pieces, self.html[self.copied :]])

    def step(self, found: re.Match[str]) -> int:
        """Handle one start tag or comment; return where to go on, or -1 to stop."""
        if not found[1]:
            end = self.html.find("-->", found.end())
            return end + 3 if end >= 0 else -1
        tag = TAG.match(self.html, found.start())
        if not tag:
            return -1
        name = found[1].lower()
        if name == "img":
            self.write_formula(of_image(tag[2]), tag.start(), tag.end())
            return tag.end()
        if name in ("span", "div", "mjx-container", "amp-mathml") and not self.is_wrapper(name, tag[2]):
            return tag.end()
        inner, outer = self.ends(name, tag.start())
        if outer < 0 or inner - tag.end() > LONGEST.get(name, inner):
            return tag.end()
        content = self.html[tag.end() : inner]
        if name in ("script", "style", "textarea"):
            if name == "script" and "math/" in tag[2]:
                self.write_script(tag, content, outer)
            return outer
        if name.endswith("math"):
            self.write_formula(of_math(tag[2], content), tag.start(), outer)
            return outer
        if name in ("pre", "xmp"):
            self.write_code(name, tag, content, inner, outer)
            return outer
        if name in ("sup", "del", "s", "strike"):
            return self.write_words(name, tag, content, outer)
        is_drawn = "MathJax" in tag[2] and self.has_scripts and "math/tex" not in content
        is_searched = outer <= self.searched  # by the wrapper around this one
        made = None
        if not is_drawn:
            is_short = self.text_characters(tag.end(), inner) <= MAX_DRAWN
            made = of_wrapper(tag[2], content, has_scripts=self.has_scripts, is_searched=is_searched, is_short=is_short)
        self.searched = max(self.searched, outer)
        if made or is_drawn:
            self.write_formula(made, tag.start(), outer, is_dropped=is_drawn)
            return outer
        return tag.end()

    def write_script(self, tag: re.Match[str], content: str, outer: int) -> None:
        """Write the formula of a script; AsciiMath is written as it is."""
        if "math/tex" in tag[2]:
            self.write_formula(of_script(tag[2], content), tag.start(), outer)
        elif "math/mml" in tag[2] and (found := element(MATH, content)):
            self.write_formula(of_math(*found), tag.start(), outer)
        elif "math/asciimath" in tag[2]:
            self.write(escape(unescape(content), quote=False), tag.start(), outer)

    @staticmethod
    def is_wrapper(name: str, tag: str) -> bool:
        if name in ("mjx-container", "amp-mathml"):
            return True
        if "ath" in tag or "katex" in tag or "ql-formula" in tag:
            return WRAPPER.search(attributes_of(tag).get("class", "")) is not None or HOLDS_TEX.search(tag) is not None
        return "data-" in tag and HOLDS_TEX.search(tag) is not None

    def text_characters(self, start: int, end: int) -> int:
        """Return how many characters between two places are outside tags; one pass over the page counts for all."""
        if not self.tag_ends:
            tags = [tag.span() for tag in ANY_TAG.finditer(self.html)]
            self.tag_ends = [end for _, end in tags]
            self.tag_sizes = list(accumulate((end - start for start, end in tags), initial=0))
        first, last = bisect_right(self.tag_ends, start), bisect_right(self.tag_ends, end)
        return end - start - (self.tag_sizes[last] - self.tag_sizes[first])

    def ends(self, name: str, start: int) -> tuple[int, int]:
        """Return where the content of an element that begins here and where it ends; -1 if it is not closed."""
        if name not in self.closed:
            self.closed[name] = self.all_ends(name)
        return self.closed[name].get(start, (-1, -1))

    def all_ends(self, name: str) -> dict[int, tuple[int, int]]:
        """Return, by where elements of a name begin, where their contents and where they end. One pass finds all.

        Of elements that cannot hold their own kind, all that are open end with the next end tag.
        """
        nests = name in ("span", "div", "mjx-container", "sup", "del")
        found: dict[int, tuple[int, int]] = {}
        opened: list[int] = []
        for edge in _edges(name).finditer(self.html):
            if not edge[1]:
                opened.append(edge.start())
            elif opened:
                close = self.html.find(">", edge.end())
                if close < 0:
                    break
                ended = [opened.pop()] if nests else opened
                found |= dict.fromkeys(ended, (edge.start(), close + 1))
                opened = opened if nests else []
        return found

    def write(self, text: str, start: int, end: int) -> None:
        copied = self.html[self.copied : start]
        self.tail = (self.tail + copied[-MAX_SUP:] + text)[-MAX_SUP:]
        self.pieces += [copied, text]
        self.copied = end

    def write_formula(self, made: Formula | None, start: int, end: int, *, is_dropped: bool = False) -> None:
        if made is None:
            if is_dropped:
                self.write("", start, end)
            return
        if self.last and made.is_image != self.last[2].is_image and _same(made.tex) == _same(self.last[2].tex):
            between = self.html[self.last[1] : start]
            if len(between) < MAX_SUP and not ANY_TAG.sub("", between).strip():
                self.pieces[self.last[0]] = ""  # the same formula again, as a picture; the first one may be hidden
        self.write(f" {made.marked} " if made.is_display else made.marked, start, end)
        self.last = len(self.pieces) - 1, end, made

    def write_code(self, name: str, tag: re.Match[str], content: str, inner: int, outer: int) -> None:
        if name == "xmp":
            self.write(f"<pre>{escape(content, quote=False)}</pre>", tag.start(), outer)
            return
        plain = _code(content)
        if plain != content:
            self.write(plain, tag.end(), inner)

    def write_words(self, name: str, tag: re.Match[str], content: str, outer: int) -> int:
        if name == "sup":
            since = self.html[max(self.copied, tag.start() - MAX_SUP) : tag.start()]
            before = (self.tail + since)[-MAX_SUP:]
            said = _raised(before, tag[2], content)
            if said is None:
                return tag.end()
            start = tag.start()
            link = NOTE_BEFORE.search(self.html, max(self.copied, start - MAX_SUP), start)
            if not said and link and self.html.startswith("</a>", outer):  # a footnote's sign inside its link
                start, outer = link.start(), outer + len("</a>")
            after = self.html[outer : outer + 1]
            while not said and after in CLOSING and start > self.copied and self.html[start - 1] in " \n\t":
                start -= 1  # the blank before a footnote's sign that is followed by a full stop
            is_between = GLUED.fullmatch(before[-1:] + after)
            self.write(" " if is_between and not said else said, start, outer)
            return outer
        if name != "del" and "<p" in content:
            return tag.end()
        self.write("", tag.start(), outer)
        return outer


def _same(tex: str) -> str:
    return re.sub(r"[\s{}]|\\(?:displaystyle|,|;|!)", "", tex)


def _code(content: str) -> str:
    """Return the content of `pre` with a line end where an element or `br` ends a line, and without line numbers."""
    made = BLANK.sub(" ", content) if "\xa0" in content or "&" in content else content
    if "<" not in made:
        return "" if _are_line_numbers(made) else made
    made = CODE_NUMBER.sub("", made)
    made = CODE_LINE.sub("\n", CODE_BREAK.sub("\n", made))
    if CODE_BLOCK.search(made):
        made = CODE_BLOCK.sub("", CODE_END.sub("\n", made))
    return "" if _are_line_numbers(ANY_TAG.sub("", made)) else made


def _are_line_numbers(text: str) -> bool:
    if not NUMBERS.fullmatch(text):
        return False
    numbers = [int(one[:9]) for one in text.split()]
    return all(after == before + 1 for before, after in pairwise(numbers))


def _raised(before: str, tag: str, content: str) -> str | None:
    """Return what a `sup` element becomes as plain text: nothing for a footnote's sign; None to leave it as it is.

    `before` is what stands before it.
    """
    if OPEN in content or "<img" in content or "<math" in content:
        return None
    text = unescape(ANY_TAG.sub("", content)).strip()
    word = _last_word(before)
    shut = before.rstrip()
    is_linked = NOTE_ADDRESS.search(tag + content) or NOTE_BEFORE.match(shut, max(shut.rfind("<"), 0))
    if NOTE.fullmatch(text) and (is_linked or text.startswith("[")):
        return "" if word or INLINE.sub("", before).rstrip()[-1:] not in (">", "") else None
    if text in ORDINALS or not word:
        return None
    if re.fullmatch(r"\d{1,3}(?:\s?[,–-]\s?\d{1,3})*", text) and (
        (not word[-1].isalnum() and word[-1] not in ")]}") or _is_word(word)
    ):
        return ""
    if re.fullmatch(r"\d\d", text) and re.search(r"[$€£¥]\s?\d+$", unescape(before[-12:])):
        return f".{text}"
    if EXPONENT.fullmatch(text) and word[-1] not in ".,;:!?\"'":
        return f"^{text}" if re.fullmatch(r"[+\-−–]?\w+|\d?[+\-−]", text) else f"^({text})"
    return None


def _last_word(before: str) -> str:
    """Return the characters right before a place, without tags; empty at the beginning of a block."""
    found = re.search(r"[^\s<>]+$", INLINE.sub("", before))
    return unescape(found[0]) if found else ""


def _is_word(word: str) -> bool:
    """Whether the end of a text is a word of at least four letters, of which a raised number is no exponent."""
    letters = re.search(r"[^\W\d_]+$", word)
    return letters is not None and len(letters[0]) >= 4 and letters[0].lower() not in UNITS
