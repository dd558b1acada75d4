"""Find the main text of a page by its blocks: text density, link density, and the names of their elements.

A block is the text between two places where a block element begins or ends. Blocks in elements that a page names as
navigation, comments, related pages, sharing and so on are set aside. The chosen element is the one whose subtree has
most prose compared with boilerplate. Inside it, blocks that are mostly links or lead to other pages are dropped.
Titles, lists, tables and code stay as readable text.

Ideas: link and text density (Kohlschütter, Fankhauser, Nejdl, "Boilerplate Detection using Shallow Text Features",
2010), the subtree of largest sum (Sun, Song, Liao, "DOM Based Content Extraction via Text Density", 2011). The words
(`signs`) and limits are our own and were found by hand on the development part of the labelled
pages; docs/extraction.md has the results.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from html import unescape
from itertools import accumulate, pairwise

import numpy as np

from training.data.extract.pages.markup import (
    BLOCK,
    CUSTOM,
    KIND,
    T_A,
    T_DD,
    T_DL,
    T_DT,
    T_H1,
    T_H6,
    T_LI,
    T_OL,
    T_P,
    T_PRE,
    T_TABLE,
    T_TD,
    T_TH,
    T_TR,
    T_UL,
    TAGS,
    Markup,
    Signs,
    make_signs,
    scan,
)
from training.data.extract.pages.signs import (
    ADMONITION,
    ATTRIBUTES,
    BODY,
    BYLINE,
    CAPTION,
    CODE,
    COMMENTS,
    FOOTER,
    FORM,
    HEADER,
    HIDDEN,
    INFOBOX,
    INVISIBLE,
    LINKED,
    MAIN,
    MARKED_TAGS,
    NAVIGATION,
    NOTE,
    NOTICE,
    PHRASES,
    PRESENT,
    PROMOTION,
    RELATED,
    SECTION,
    SHARING,
    SHOWN,
    SIDEBAR,
    TOGGLE,
    WANTED,
    WORDS,
)
from training.data.words.native import native


@lru_cache(maxsize=1)
def signs() -> Signs:
    """Return the automaton that finds signs of boilerplate or main text in the attributes of a page's elements.

    The signs are the patterns in WORDS, and the attributes in PRESENT, which count by their presence.
    """
    return make_signs(WORDS, ATTRIBUTES, present=PRESENT, section=SECTION)


def scan_page(html: bytes, *, max_depth: int) -> Markup:
    """Scan a page of UTF-8 bytes; return its elements and texts, and the tags that state a date or terms of use.

    Each element has signs: bits that say what its class, id and other attributes tell about its content.
    """
    return scan(html, signs(), max_depth=max_depth, wanted=WANTED)


@lru_cache(maxsize=1)
def _phrases() -> Signs:
    return make_signs(PHRASES, {}, present={})


@lru_cache(maxsize=1)
def _tag_marks() -> np.ndarray:
    marks = np.zeros(CUSTOM + 1, np.int64)
    for bit, names in MARKED_TAGS.items():
        for name in names.split():
            marks[TAGS[name]] |= 1 << bit
    return marks


_NEGATIVE = 0
for _bit in range(INVISIBLE + 1):
    _NEGATIVE |= 1 << _bit
_STRONG = 1 << COMMENTS | 1 << HIDDEN | 1 << INVISIBLE | 1 << RELATED
"""What takes an element out even where its name speaks for it too."""
_UNSEEN = 1 << HIDDEN | 1 << INVISIBLE | 1 << NOTICE | 1 << FORM
"""What takes an element out even where nothing else is left."""
_INLINE_NEGATIVE = 1 << HIDDEN | 1 << INVISIBLE | 1 << SHARING | 1 << NAVIGATION
"""What takes an inline element out; other words are common in links and spans inside a text."""
_FOR = 1 << BODY | 1 << MAIN
_BODY = 1 << BODY
_MAIN = 1 << MAIN
_LINKED = 1 << LINKED
_COMMENTS = 1 << COMMENTS
_TOGGLE = 1 << TOGGLE
_CODE, _BYLINE = 1 << CODE, 1 << BYLINE
_HIDDEN, _SHOWN, _INVISIBLE, _HEADER = 1 << HIDDEN, 1 << SHOWN, 1 << INVISIBLE, 1 << HEADER
_INFOBOX, _SIDEBAR, _NOTICE, _NAVIGATED = 1 << INFOBOX, 1 << SIDEBAR, 1 << NOTICE, 1 << NAVIGATION
_CAPTION, _PROMOTION, _NOTE, _ADMONITION = 1 << CAPTION, 1 << PROMOTION, 1 << NOTE, 1 << ADMONITION
_CERTAIN = 1 << HIDDEN | 1 << INVISIBLE | 1 << FORM | 1 << NOTICE | 1 << FOOTER
"""What is called so is not the text that is looked for, however much of it there is."""
_IN_CODE = _HIDDEN | _INVISIBLE | _LINKED
"""The only marks that count in `pre` and `code`, where other words name languages and tokens (`source-cpp`)."""
_AROUND_QUOTES = 1 << SHARING | 1 << CAPTION
"""Words for what may hold a quotation or a table, which is text then: a quoted tweet is no button for sharing."""

FEW_CHARACTERS = 100  # with less main text than this, a page is judged again less strictly
LOST_RATIO = 10  # with this many times as much prose outside the main text as in it, a page is judged again
# A page is doubtful with less main text than LITTLE_CHARACTERS, or if less than this fraction was kept:
LITTLE_CHARACTERS = 200
FOUND_FRACTION = 0.6  # of its prose
FOUND_BESIDE_COMMENTS = 0.25  # of its prose and comments together
FEW_OF_SENTENCE = 25  # a first sentence with less is a date or a name
MUCH_BELOW = 400  # with less text below it, a heading that is a link announces another page
CELLS_OF_TABLE = 6  # a table with fewer cells may be navigation
KIND_FRACTION = 0.4  # a page with more of its text than this in code, cells or items is of that kind
CODE_FRACTION = 0.9  # an element with more of its text than this in code is judged as code
T_LISTING, T_CODE, T_BUTTON = TAGS["listing"], TAGS["code"], TAGS["button"]
T_BLOCKQUOTE, T_FIGURE = TAGS["blockquote"], TAGS["figure"]
T_SPAN, T_ASIDE, T_THEAD = TAGS["span"], TAGS["aside"], TAGS["thead"]
T_DETAILS, T_SUMMARY = TAGS["details"], TAGS["summary"]


@native
def _is_stop(html, i, end):
    """Whether a punctuation mark that ends or divides sentences is at `i`.

    The marks are . , ; ! ? before a gap, and 。、！，
    """
    byte = html[i]
    if byte in (46, 33, 63, 44, 59):
        return i + 1 >= end or html[i + 1] <= 34 or html[i + 1] >= 0x80
    if i + 2 >= end:
        return False
    if byte == 0xE3:
        return html[i + 1] == 0x80 and html[i + 2] in (0x81, 0x82)
    return byte == 0xEF and html[i + 1] == 0xBC and html[i + 2] in (0x81, 0x8C)


@native
def _length(html, start, end):
    """Return the visible characters of a run of text, and the number of marks that end or divide sentences.

    A run of white space counts as one character, and a sign of East Asian scripts as two: it says as much.
    """
    chars, stops = 0, 0
    was_space = True
    i = start
    while i < end:
        byte = html[i]
        if byte == 38:  # an entity is one character; &nbsp; is a space
            j = i + 1
            while j < end and j < i + 10 and html[j] != 59 and not (html[j] == 32 or html[j] == 38):
                j += 1
            if j < end and html[j] == 59:
                is_space = (html[i + 1] == 110 and html[i + 2] == 98 and j == i + 5) or (
                    html[i + 1] == 35 and html[i + 2] == 49 and html[i + 3] == 54 and html[i + 4] == 48
                )
                i = j + 1
                if not is_space:
                    chars += 1
                    was_space = False
                elif not was_space:
                    chars += 1
                    was_space = True
                continue
        if byte == 32 or 9 <= byte <= 13 or (byte == 0xC2 and i + 1 < end and html[i + 1] == 0xA0):
            if not was_space:
                chars += 1
            was_space = True
            i += 2 if byte == 0xC2 else 1
            continue
        was_space = False
        if byte & 0xC0 != 0x80:
            chars += 2 if 0xE3 <= byte <= 0xED else 1
        if _is_stop(html, i, end):
            stops += 1
        i += 1
    return chars - (1 if was_space and chars else 0), stops


@native
def _inherit(tag, parent, signs, kind, tag_marks, owner, is_link, marks, dropped_inline, in_code):
    """Fill five arrays with the properties that each node of the page's tree inherits from the nodes above it.

    They say: the nearest block element, whether the node is in a link, its marks (bits for the signs in its
    attributes), whether an inline element drops its text, and whether the node is in code.
    """
    for n in range(tag.size):
        own = signs[n] | tag_marks[tag[n]]
        if own & _SHOWN:
            own &= ~(_HIDDEN | _INVISIBLE)
        if own & _TOGGLE or tag[n] in (T_THEAD, T_TR, T_TH, T_TD):  # of an accordion or table, not of the page
            own &= ~_HEADER
        if tag[n] == T_A and own & _LINKED == 0:  # the name of a place, such as `list-of-recommendations`
            own &= _HIDDEN | _INVISIBLE
        if own & _ADMONITION or (tag[n] == T_ASIDE and own & _NOTE):
            own &= ~_SIDEBAR
        if own & _ADMONITION or tag[n] == T_DETAILS:  # `alert alert--secondary`
            own &= ~_NOTICE
        up = parent[n]
        is_button = tag[n] == T_BUTTON and not T_H1 <= tag[up] <= T_H6
        if n and (is_button or (tag[up] == T_BUTTON and marks[up] & _HIDDEN)):
            own |= _HIDDEN
        in_code[n] = in_code[up] or tag[n] in (T_PRE, T_LISTING, T_CODE) or own & _CODE != 0
        if in_code[n]:
            own &= _IN_CODE
        is_block = n == 0 or kind[tag[n]] == BLOCK
        owner[n] = n if is_block else owner[up]
        is_link[n] = n > 0 and (is_link[up] or (tag[n] == T_A and own & _LINKED != 0))
        marks[n] = own
        if is_block:
            dropped_inline[n] = False
        else:
            against = _NEGATIVE if tag[n] == CUSTOM else _INLINE_NEGATIVE
            if signs[n] & _SHOWN or tag[n] not in (T_A, T_SPAN, T_BUTTON, CUSTOM):  # menus that a text speaks of
                against &= ~_NAVIGATED
            dropped_inline[n] = dropped_inline[up] or own & against != 0


@native
def _titles(tag, marks, filled, last, s):
    """Whether all text of an element is a heading, or the switch of what can be folded."""
    if s == 0 or filled[last[s] + 1] - filled[s] == 0:
        return False
    for n in range(s, last[s] + 1):
        is_title = T_H1 < tag[n] <= T_H6 or tag[n] in (T_DT, T_SUMMARY) or marks[n] & _TOGGLE != 0  # h1 is the page's
        if filled[last[n] + 1] - filled[n] != filled[last[s] + 1] - filled[s]:
            return False
        if is_title:
            return True
    return False


@native
def _begins_with_title(tag, marks, filled, last, s):
    """Whether the first text of an element is a heading's or a switch's."""
    for n in range(s, last[s] + 1):
        if filled[last[n] + 1] - filled[n] != 0:
            if T_H1 <= tag[n] <= T_H6 or tag[n] == T_DT or marks[n] & _TOGGLE:
                return True
            if filled[n + 1] - filled[n] != 0:  # text of its own
                return False
    return False


@native
def _switches(tag, marks, last, s):
    """Whether an element is or holds a button or switch."""
    for n in range(s, last[s] + 1):  # noqa: SIM110 - numba compiles no generator
        if tag[n] == T_BUTTON or marks[n] & _TOGGLE:
            return True
    return False


@native
def _unfold(html, tag, parent, last, kind, start, end, node, marks, is_link, dropped_inline):
    """Take the marks of hidden elements from answers that a click shows: those whose heading has no other text.

    Their headings are text too, though they are links, buttons or in a header.

    Such an element follows its heading, and nothing but the next heading follows it, except behind the last of several.
    A paragraph alone needs a heading with a button or switch.
    """
    filled = np.zeros(tag.size + 1, np.int64)  # at n: runs with text in all nodes before n
    for r in range(start.size):
        for i in range(start[r], end[r]):
            if html[i] > 32:
                filled[node[r] + 1] += 1
                break
    for n in range(tag.size):
        filled[n + 1] += filled[n]
    recent, before, after = np.zeros(tag.size, np.int32), np.zeros(tag.size, np.int32), np.zeros(tag.size, np.int32)
    for n in range(1, tag.size):
        if filled[last[n] + 1] - filled[n] == 0:
            continue
        before[n] = recent[parent[n]]
        after[before[n]] = n
        recent[parent[n]] = n
    after[0] = 0
    unfolded = np.zeros(tag.size, np.bool_)
    for n in range(1, tag.size):
        if not (marks[n] & (_HIDDEN | _INVISIBLE) and kind[tag[n]] == BLOCK and before[n]):
            continue
        is_seen = tag[before[n]] == T_BUTTON or marks[before[n]] & (_HIDDEN | _INVISIBLE) == 0
        if not is_seen or not _titles(tag, marks, filled, last, before[n]):
            continue
        if tag[n] == T_P and not _switches(tag, marks, last, before[n]):
            continue
        if after[n] == 0 or unfolded[parent[n]] or _begins_with_title(tag, marks, filled, last, after[n]):
            marks[n] &= ~(_HIDDEN | _INVISIBLE)
            unfolded[parent[n]] = True
            for m in range(before[n], last[before[n]] + 1):
                marks[m] &= ~_NEGATIVE
                is_link[m] = dropped_inline[m] = False


@native
def _is_anchor(html, at, end, holder):
    """Whether a link's text is the sign with which headings and terms link to themselves: # ¶ § or a chain."""
    if not (T_H1 <= holder <= T_H6 or holder == T_DT):
        return False
    while at < end and html[at] <= 32:
        at += 1
    while end > at and html[end - 1] <= 32:
        end -= 1
    if end - at == 1:
        return html[at] == 35
    if end - at == 2:
        return html[at] == 0xC2 and html[at + 1] in (0xB6, 0xA7)
    return end - at == 4 and html[at] == 0xF0 and html[at + 1] == 0x9F and html[at + 2] == 0x94 and html[at + 3] == 0x97


@native
def _gather(
    html, start, end, node, block, tag, owner, is_link, dropped_inline, first, until, holder, chars, linked, stops
):
    """Join runs of text into blocks and return the number of blocks.

    For each block, fill its first run and the end of its runs, the block element that holds it, its characters, its
    characters in links, and its punctuation marks.
    """
    blocks = 0
    last_number = -1
    for r in range(start.size):
        if start[r] == end[r]:
            if block[r] == last_number:
                until[blocks - 1] = r + 1
            continue
        n = node[r]
        if dropped_inline[n] or (is_link[n] and _is_anchor(html, start[r], end[r], tag[owner[n]])):
            dropped_inline[n] = True
            continue
        c, s = _length(html, start[r], end[r])
        if c == 0:
            if block[r] == last_number:
                until[blocks - 1] = r + 1
            continue
        if block[r] != last_number:
            last_number = block[r]
            first[blocks], holder[blocks] = r, owner[n]
            chars[blocks] = linked[blocks] = stops[blocks] = 0
            blocks += 1
        b = blocks - 1
        until[b] = r + 1
        chars[b] += c + (1 if chars[b] else 0)
        stops[b] += s
        if is_link[n]:
            linked[b] += c
    return blocks


@native
def _text_without_comments(parent, last, marks, text):
    """Count a page's characters outside links. Readers' comments count only if they make up nearly all of the page."""
    total = text[0]
    n = 1
    while n < parent.size:
        if marks[n] & _COMMENTS and text[n] < 0.9 * text[0]:
            total -= text[n]
            n = last[n]
        n += 1
    return max(total, 1.0)


@native
def _text_marked(parent, last, marks, text, mark):
    """Characters outside links in all elements with a given mark, such as comments; nested elements count once."""
    total = 0.0
    n = 1
    while n < parent.size:
        if marks[n] & mark and text[n] <= 0.5 * text[0]:
            total += text[n]
            n = last[n]
        n += 1
    return total


@native
def _judge_nodes(tag, parent, last, marks, text, code, own_out, out, leniency):
    """Fill two arrays that say which nodes are marked as boilerplate.

    `own_out` says whether an element's own name marks it, and `out` whether it or a parent is marked. A word that would
    drop most of a page's text is ignored, because some pages name their body `has-sidebar`. With `leniency` 1 only the
    marks in _STRONG count, with 2 only those in _UNSEEN.
    """
    total = _text_without_comments(parent, last, marks, text)
    holds_quote, holds_table = np.zeros(tag.size, np.bool_), np.zeros(tag.size, np.bool_)
    holds_body, holds_article = np.zeros(tag.size, np.bool_), np.zeros(tag.size, np.bool_)
    largest = 0.0
    for n in range(tag.size - 1, 0, -1):
        holds_quote[n] |= tag[n] == T_BLOCKQUOTE
        holds_body[parent[n]] |= holds_body[n] or (marks[n] & _BODY != 0 and text[n] > 0.3 * total)
        if marks[n] & _FOR and tag[n] != T_BODY_:
            largest = max(largest, text[n])
            holds_article[n] = True
        holds_article[parent[n]] |= holds_article[n]
        holds_table[n] |= tag[n] == T_TABLE
        holds_quote[parent[n]] |= holds_quote[n] or (holds_table[n] and tag[n] == T_FIGURE)
        holds_table[parent[n]] |= holds_table[n]
    captions = _text_marked(parent, last, marks, text, _CAPTION)
    promotions = _text_marked(parent, last, marks, text, _PROMOTION)
    in_article = np.zeros(tag.size, np.bool_)
    for n in range(1, tag.size):
        in_article[n] = in_article[parent[n]] or (marks[n] & _FOR != 0 and tag[n] != T_BODY_)
        own = marks[n] & _NEGATIVE
        if own and ((marks[n] & _FOR and text[n] > 0.2 * total) or holds_body[n]):
            own &= _STRONG
        if captions > 0.5 * total:  # a page of pictures, with its text below them
            own &= ~_CAPTION
        if promotions > 0.5 * total:
            own &= ~_PROMOTION
        if leniency or code[n] > CODE_FRACTION * text[n]:
            own &= _UNSEEN if leniency == 2 else _STRONG
        if holds_table[n]:
            own &= ~_BYLINE
        if marks[n] & _INFOBOX and tag[n] == T_TABLE:
            own |= _SIDEBAR
        if in_article[n]:
            own &= ~_HEADER
        if marks[n] & _HEADER and text[n] > 0.2 * total:
            marks[n] &= ~_HEADER
        if holds_quote[n] or (holds_table[n] and tag[n] == T_FIGURE):
            own &= ~_AROUND_QUOTES
        if own == _CAPTION and text[n] > 500:
            own = 0
        if tag[n] == T_BODY_:
            own = 0
        if own:
            limit = 0.9 if own & _INVISIBLE else 0.8 if own & _COMMENTS else 0.5
            if largest > 0.2 * total and not (holds_article[n] or in_article[n]):
                limit = 0.95  # the main text is in another element
            if text[n] > limit * (text[0] if own & _COMMENTS else total):
                own = 0
        own_out[n] = own != 0
        out[n] = out[parent[n]] or own != 0


T_BODY_ = TAGS["body"]


@native
def _add_up(parent, values):
    """Add the values of every node of the page's tree to its parent's, in place, so that a node has its subtree's sum.

    Nodes come after their parents.
    """
    for n in range(values.size - 1, 0, -1):
        values[parent[n]] += values[n]


@native
def _is_regular(tag, table, in_row, t, number):
    """Whether all rows of a table have the same number of cells, two or more."""
    length = 0
    for n in range(t + 1, tag.size):
        if table[n] < t:
            break
        if tag[n] == T_TR and table[n] == t and in_row[n]:
            if length and in_row[n] != length:
                return False
            length = in_row[n]
    return length >= 2 and number > length


@native
def _cells(tag, parent, holder, chars, linked, blocks):
    """Return whether each node is in a cell of a data table. There, a link is content and not navigation.

    At most two thirds of a data table's blocks are links, or it has rows of equal length with one block in each cell. A
    layout table has few cells, and one cell with many links; a calendar's cells are short.
    """
    table, in_cell = np.zeros(tag.size, np.int32), np.zeros(tag.size, np.bool_)
    cells, links = np.zeros(tag.size, np.int64), np.zeros(tag.size, np.int64)
    written, inside, rows = np.zeros(tag.size, np.int64), np.zeros(tag.size, np.int64), np.zeros(tag.size, np.int64)
    row, in_row, is_data = np.zeros(tag.size, np.int32), np.zeros(tag.size, np.int64), np.zeros(tag.size, np.bool_)
    for n in range(1, tag.size):
        row[n] = n if tag[n] == T_TR else row[parent[n]]
        is_cell = tag[n] == T_TD or tag[n] == T_TH
        table[n] = n if tag[n] == T_TABLE else table[parent[n]]
        in_cell[n] = is_cell or (in_cell[parent[n]] and tag[n] != T_TABLE)
        cells[table[n]] += is_cell
        in_row[row[n]] += is_cell
    for n in range(1, tag.size):
        rows[table[n]] += tag[n] == T_TR
    for b in range(blocks):
        links[table[holder[b]]] += 2 * linked[b] > chars[b]
        written[table[holder[b]]] += chars[b]
        inside[table[holder[b]]] += 1
    for n in range(tag.size):
        t = table[n]
        number = cells[t]
        if n == t:
            is_data[t] = 3 * links[t] <= 2 * number or (
                rows[t] >= 3
                and inside[t] <= number
                and written[t] >= 4 * number
                and _is_regular(tag, table, in_row, t, number)
            )
        in_cell[n] &= number >= CELLS_OF_TABLE and is_data[t]
    return in_cell


@native
def _is_listed(t):
    return t in (T_LI, T_TD, T_TH, T_DT, T_DD, T_PRE)


@native
def _paragraphs(holder, chars, stops, tag, is_link, blocks):
    """Return which blocks are paragraphs, with links inside perhaps, which say nothing of the blocks around them.

    A link around an element announces another page.
    """
    found = np.zeros(blocks, np.bool_)
    for b in range(blocks):
        t = tag[holder[b]]
        is_other = _is_listed(t) or T_H1 <= t <= T_H6 or is_link[holder[b]]
        found[b] = chars[b] >= 40 and stops[b] > 0 and not is_other
    return found


@native
def _weigh(holder, chars, linked, stops, tag, out, blocks, in_code, in_cell, is_link, paragraphs, weight):
    """Fill `weight` with each node's score: characters of prose in its own blocks, minus a penalty for boilerplate."""
    for b in range(blocks):
        n = holder[b]
        plain = chars[b] - linked[b]
        if out[n]:
            weight[n] -= 0.2 * plain
        elif _is_heading(tag[n], chars[b], stops[b]) and not is_link[n]:
            weight[n] += 5
        elif 2 * linked[b] > chars[b] and not (in_code[n] or in_cell[n] or paragraphs[b]):
            weight[n] -= 0.5 * linked[b] + 10
        elif stops[b] == 0 and plain < 60:
            weight[n] += 0.3 * plain if _is_listed(tag[n]) or in_cell[n] else -5.0
        elif (
            b
            and 2 * linked[b - 1] > chars[b - 1] > 25
            and plain < 400
            and not (out[holder[b - 1]] or paragraphs[b - 1])
        ):
            weight[n] += 0.3 * plain  # probably the first lines of another page, below its linked title
        else:
            weight[n] += chars[b] if paragraphs[b] else plain


@native
def _choose(weight, marks, tag, parent):
    """Return the node whose subtree has most prose; a node named as the body of an article gets a bonus.

    A paragraph alone is no main text: then its parent is returned.
    """
    best, best_value = 0, 0.0
    for n in range(weight.size):
        value = weight[n]
        if value > 0:
            if marks[n] & _BODY:
                value *= 1.3
            elif marks[n] & _MAIN:
                value *= 1.1
        if value > 0 and value >= best_value:
            best, best_value = n, value
    while tag[best] == T_P:
        best = parent[best]
    return best


@native
def _is_heading(tag, chars, stops):
    return T_H1 <= tag <= T_H6 and chars < 120 and stops < 2


@native
def _lead(root, parent, marks):
    """Return the outermost element around the root that is named an article, or the root if there is none.

    Text in it before the root introduces the root's text.
    """
    n = root
    while n > 0:
        if marks[n] & _FOR:
            around = n
            n = parent[n]
            while n > 0:
                if marks[n] & _MAIN:
                    around = n
                n = parent[n]
            return around
        n = parent[n]
    return root


@native
def _phrase(html, start, end, first, until, steps, marks):
    """Return the bits of the known phrases, such as of notices, at the beginning of a block.

    The block begins at run `first`.
    """
    state = steps[0, 27]
    found = np.int64(0)
    was_edge = is_first = True
    left = 60
    for r in range(first, until):
        for i in range(start[r], end[r]):
            byte = html[i] | 32
            if 97 <= byte <= 122:
                if is_first and i > start[r] and html[i - 1] in (36, 45, 47, 92, 95):  # $ - / \ _
                    return found  # an option, a path or a variable
                is_first = False
                state = steps[state, byte - 96]
                was_edge = False
            elif not was_edge:
                state = steps[state, 0]
                was_edge = True
            found |= marks[state]
            left -= 1
            if left == 0:
                return found
    return found | marks[steps[state, 0]]


@native
def _is_owned(html, at, end):
    """Whether a run of text begins with a copyright sign, written as a character or as an entity.

    Such text is a notice, not main text.
    """
    while at < end and (html[at] <= 32):
        at += 1
    if at + 1 < end and html[at] == 0xC2 and html[at + 1] == 0xA9:
        return True
    return at + 5 < end and html[at] == 38 and html[at + 1] == 99 and html[at + 2] == 111 and html[at + 5] == 59


@native
def _is_said(html, start, end, first, until):
    """Whether a block ends as a sentence does, with a full stop, a question or exclamation mark, or a colon."""
    for r in range(until - 1, first - 1, -1):
        at = end[r]
        while at > start[r] and html[at - 1] <= 32:
            at -= 1
        if at == start[r]:
            continue
        if html[at - 1] in (33, 46, 58, 63):
            return True
        if at - 3 < start[r]:
            return False
        if html[at - 3] == 0xE3:
            return html[at - 2] == 0x80 and html[at - 1] == 0x82
        return html[at - 3] == 0xEF and html[at - 2] == 0xBC and html[at - 1] in (0x81, 0x9A, 0x9F)
    return False


@native
def _group(tag, parent, n):
    """Return the table or list that contains a cell or item (0 for other elements); in its entries links are common."""
    if not _is_listed(tag[n]):
        return 0
    while n > 0 and tag[n] != T_TABLE and tag[n] != T_UL and tag[n] != T_OL and tag[n] != T_DL:
        n = parent[n]
    return n


@native
def _keep(
    html, start, end, node, root, last, parent, marks, first, until, holder, chars, linked, stops, tag, out, blocks,
    kept, phrase_steps, phrase_marks, in_code, in_cell, paragraphs, is_strict,
):  # fmt: skip
    """Decide which blocks of the chosen subtree are main text (`kept`); return the number of their characters.

    Paragraphs that are left out because they are links count too.
    """
    around = _lead(root, parent, marks)
    in_header = np.zeros(tag.size, np.bool_)
    for n in range(1, tag.size):
        in_header[n] = (in_header[parent[n]] or marks[n] & _HEADER != 0) and n != root
    chars_in, linked_in = np.zeros(tag.size, np.int64), np.zeros(tag.size, np.int64)
    for b in range(blocks):
        group = _group(tag, parent, holder[b])
        chars_in[group] += chars[b]
        linked_in[group] += linked[b]
    begun = not is_strict
    stands = np.zeros(blocks, np.bool_)  # a paragraph that goes for its links alone; its heading stays
    for b in range(blocks):
        n = holder[b]
        kept[b] = False
        t = tag[n]
        if n < around or n > last[root] or out[n]:
            continue
        is_content = in_code[n] or in_cell[n]
        is_linked = 2 * linked[b] > chars[b] and not is_content
        if is_linked and (stops[b] == 0 or chars[b] - linked[b] < (50 if t == T_LI else 80)):
            group = _group(tag, parent, n)
            if group == 0 or 2 * linked_in[group] > chars_in[group]:
                stands[b] = paragraphs[b]
                begun |= stands[b] and n >= root
                continue
        is_title = T_H1 <= t <= T_H6
        is_prose = chars[b] >= 80 and stops[b] > 0
        if n < root and (is_title or in_header[n] or not is_prose or 4 * linked[b] > chars[b]):
            continue
        if is_strict and in_header[n] and not is_prose:
            continue
        if not begun:  # dates and names often come between the title and the first sentences
            begun = (chars[b] >= 60 and stops[b] > 0) or (
                chars[b] >= FEW_OF_SENTENCE and _is_said(html, start, end, first[b], until[b])
            )
            if not (begun or is_title or is_content or _is_listed(t) or tag[parent[n]] == T_DD) and chars[b] < 60:
                continue
        if chars[b] < 400 and _is_owned(html, start[first[b]], end[first[b]]):
            continue
        if chars[b] < 150 and not in_code[n]:
            phrase = _phrase(html, start, end, first[b], until[b], phrase_steps, phrase_marks)
            is_described = t in (T_TD, T_TH, T_DT, T_DD) or tag[parent[n]] == T_DD
            is_label = phrase & 2 and chars[b] < 60 and stops[b] < 2 and not (is_content or is_described)
            if is_label:  # no introduction of code, nor a sentence
                is_label = not (in_code[node[first[b]]] or (b + 1 < blocks and in_code[holder[b + 1]]))
                is_label &= chars[b] < FEW_OF_SENTENCE or not _is_said(html, start, end, first[b], until[b])
            if (phrase & 1 and not in_cell[n]) or (is_label and not is_title):
                continue
        kept[b] = True
    # Drop headings that are followed by no text, and keep those that are links if they are followed by much.
    level = 1
    num = 0
    below = np.zeros(
        T_H6 + 1, np.int64
    )  # characters between a heading of each level and the next of it or a higher one
    for b in range(blocks - 1, -1, -1):
        if stands[b]:
            num += chars[b]
            level = T_H6 + 1
        elif kept[b]:
            t = tag[holder[b]]
            num += chars[b]
            if not _is_heading(t, chars[b], stops[b]):
                level = T_H6 + 1
            elif level <= t:
                kept[b] = False
            else:
                level = t
        elif around <= holder[b] <= last[root] and not out[holder[b]] and _is_heading(tag[holder[b]], chars[b], 0):
            level = min(level, tag[holder[b]])  # a heading that is a link ends the text before it too
            kept[b] = 2 * linked[b] > chars[b] and below[tag[holder[b]]] >= MUCH_BELOW
        if T_H1 <= tag[holder[b]] <= T_H6:
            below[tag[holder[b]] :] = 0
        elif kept[b] or stands[b]:
            below += chars[b]
    return num


@native
def _select(
    html, start, end, node, tag, parent, last, marks, first, until, holder, chars, linked, stops, blocks, own_out, out,
    kept, phrase_steps, phrase_marks, in_code, is_link,
):  # fmt: skip
    """Choose the node with the main text and return it; fill which nodes are boilerplate, and which blocks are kept."""
    text, code = np.zeros(tag.size, np.float64), np.zeros(tag.size, np.float64)
    paragraphs = _paragraphs(holder, chars, stops, tag, is_link, blocks)
    for b in range(blocks):
        n = holder[b]
        text[n] += chars[b] - linked[b]
        if in_code[n]:
            code[n] += chars[b] - linked[b]
    _add_up(parent, text)
    _add_up(parent, code)
    in_cell = _cells(tag, parent, holder, chars, linked, blocks)
    root, num = 0, 0
    for leniency in (0, 1, 2, 0):  # the last time for a page of which nobody finds most of the prose
        _judge_nodes(tag, parent, last, marks, text, code, own_out, out, leniency)
        weight = np.zeros(tag.size, np.float64)
        _weigh(holder, chars, linked, stops, tag, out, blocks, in_code, in_cell, is_link, paragraphs, weight)
        _add_up(parent, weight)
        root = _choose(weight, marks, tag, parent)
        for is_strict in (True, False):
            num = _keep(
                html, start, end, node, root, last, parent, marks, first, until, holder, chars, linked, stops, tag, out,
                blocks, kept, phrase_steps, phrase_marks, in_code, in_cell, paragraphs, is_strict,
            )  # fmt: skip
            if num >= FEW_CHARACTERS:
                break
        _, found, missed, commented, _ = _prose(parent, marks, own_out, holder, chars, linked, stops, kept, blocks)
        if num >= FEW_CHARACTERS and LOST_RATIO * found >= missed + commented:
            break
    return root


@native
def _prose(parent, marks, own_out, holder, chars, linked, stops, kept, blocks):
    """Count characters outside links: in all kept blocks, kept prose, prose perhaps missed, comments, and notices.

    Prose is perhaps missed if it was dropped because of a doubtful name, or lies outside the chosen element.
    """
    is_certain, is_comment = np.zeros(parent.size, np.bool_), np.zeros(parent.size, np.bool_)
    is_notice = np.zeros(parent.size, np.bool_)
    for n in range(1, parent.size):
        is_certain[n] = is_certain[parent[n]] or (own_out[n] and marks[n] & _CERTAIN != 0)
        is_comment[n] = is_comment[parent[n]] or (own_out[n] and marks[n] & _COMMENTS != 0)
        is_notice[n] = is_notice[parent[n]] or (own_out[n] and marks[n] & _NOTICE != 0)
    all_kept, prose_kept, prose_missed, prose_commented, prose_of_notices = 0, 0, 0, 0, 0
    for b in range(blocks):
        n = holder[b]
        plain = chars[b] - linked[b]
        is_prose = chars[b] >= 80 and stops[b] > 0 and plain > linked[b]
        if kept[b]:
            all_kept += plain
            prose_kept += plain if is_prose else 0
        elif is_prose and not is_certain[n]:
            if is_comment[n]:
                prose_commented += plain
            else:
                prose_missed += plain
        elif is_prose and is_notice[n]:
            prose_of_notices += plain
    return all_kept, prose_kept, prose_missed, prose_commented, prose_of_notices


@native
def _up_to(tag, parent, n, wanted_a, wanted_b):
    """Return the nearest element with one of two tags among `n` and its parents; 0 if there is none."""
    while n > 0:
        if tag[n] == wanted_a or tag[n] == wanted_b:
            return n
        n = parent[n]
    return 0


@native
def _kinds(tag, parent, in_code, holder, chars, kept, blocks):
    """Count the characters of the kept blocks: all, in code, in table cells and in list items.

    Each block counts for one kind at most, in this order.
    """
    total, code, cells, items = 0, 0, 0, 0
    for b in range(blocks):
        if not kept[b]:
            continue
        n = holder[b]
        total += chars[b]
        if in_code[n]:
            code += chars[b]
        elif _up_to(tag, parent, n, T_TD, T_TH) != 0:
            cells += chars[b]
        elif _up_to(tag, parent, n, T_LI, T_LI) != 0:
            items += chars[b]
    return total, code, cells, items


@native
def _code_of(parent, in_code, n):
    """Return the outermost element of code around an element; 0 if it is not in code."""
    found = 0
    while n > 0 and in_code[n]:
        found = n
        n = parent[n]
    return found


@native
def _put(out, at, byte):
    out[at] = byte
    return at + 1


@native
def _emit(
    html, start, end, node, first, until, holder, chars, tag, parent, dropped_inline, in_code, kept, blocks, out, code
):
    """Write the kept blocks as UTF-8 text, with entities unchanged; return the number of bytes written.

    `code` is filled with where code begins and ends in these bytes, in turn; return the number of these places too.
    """
    at = 0
    places = 0
    before = -1
    last_item = last_row = last_cell = last_list = 0
    for b in range(blocks):
        if not kept[b]:
            continue
        n = holder[b]
        item = _up_to(tag, parent, n, T_LI, T_DD)
        if item == 0 or tag[item] != T_LI:
            item = item if item and _up_to(tag, parent, n, T_DT, T_DD) else _up_to(tag, parent, n, T_DT, T_DD)
        row = _up_to(tag, parent, n, T_TR, T_TABLE)
        if tag[row] != T_TR:
            row = 0
        cell = _up_to(tag, parent, n, T_TD, T_TH)
        holding_list = parent[item] if item else 0
        is_new_item = item not in (0, last_item)
        if before >= 0:
            if row and row == last_row and cell != last_cell:
                at = _put(out, at, 9)
            else:
                is_next_row = row and last_row and row != last_row and parent[row] == parent[last_row]
                is_next_item = is_new_item and last_item and (holding_list == last_list or holding_list > last_item)
                at = _put(out, at, 10)
                outer = _code_of(parent, in_code, n)
                is_next_line = outer != 0 and outer == _code_of(parent, in_code, holder[before])
                if not (is_next_row or is_next_item or is_next_line):
                    at = _put(out, at, 10)
        if is_new_item and tag[item] == T_LI:
            at = _put(out, at, 0xE2)
            at = _put(out, at, 0x80)
            at = _put(out, at, 0xA2)
            at = _put(out, at, 32)
        last_item, last_row, last_cell, last_list, before = item, row, cell, holding_list, b
        is_pre = _up_to(tag, parent, n, T_PRE, T_LISTING) != 0
        begin = at
        for r in range(first[b], until[b]):
            if dropped_inline[node[r]]:
                continue
            if start[r] == end[r]:  # br
                while at > begin and out[at - 1] == 32:
                    at -= 1
                if at > begin:
                    at = _put(out, at, 10)
                continue
            if in_code[node[r]] and (places == 0 or code[places - 1] != at):
                code[places], code[places + 1] = at, at
                places += 2
            for i in range(start[r], end[r]):
                byte = html[i]
                if is_pre:
                    if byte != 13:
                        at = _put(out, at, byte)
                elif byte == 32 or 9 <= byte <= 13:
                    if at > begin and out[at - 1] != 32 and out[at - 1] != 10:
                        at = _put(out, at, 32)
                else:
                    at = _put(out, at, byte)
            if in_code[node[r]]:
                code[places - 1] = at
        while at > begin and (out[at - 1] == 32 or out[at - 1] == 10):
            at -= 1
        if places and code[places - 1] > at:
            code[places - 1] = at
    return at, places


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of analysing a scanned page, as arrays by block and by node.

    `root` is the node whose subtree was chosen as the main text.
    """

    first: np.ndarray
    until: np.ndarray
    holder: np.ndarray
    chars: np.ndarray
    linked: np.ndarray
    stops: np.ndarray
    kept: np.ndarray
    blocks: int
    marks: np.ndarray
    own_out: np.ndarray
    out: np.ndarray
    dropped_inline: np.ndarray
    in_code: np.ndarray
    root: int
    num_kept: int
    num_prose_kept: int
    num_prose_missed: int
    num_prose_commented: int
    num_prose_of_notices: int
    num_in: tuple[int, int, int, int]  # characters kept: all, in code, in cells of tables, in items of lists

    @property
    def kind(self) -> str:
        """The kind that holds more than KIND_FRACTION of the text: `code`, `table` or `list`; without one, `prose`."""
        total, *parts = self.num_in
        most, kind = max(zip(parts, ("code", "table", "list"), strict=True), key=lambda part: part[0])
        return kind if most > KIND_FRACTION * total else "prose"

    @property
    def is_doubtful(self) -> bool:
        """Whether little text was found, or much of the prose was dropped by doubtful rules.

        Comments are often long below short articles. If they are nearly all of a page, they may be its purpose.
        """
        prose = self.num_prose_kept + self.num_prose_missed
        return (
            self.num_kept < LITTLE_CHARACTERS
            or self.num_prose_kept < FOUND_FRACTION * prose
            or self.num_prose_kept < FOUND_BESIDE_COMMENTS * (prose + self.num_prose_commented)
        )


def analyse(markup: Markup) -> Analysis:
    """Find the blocks of a scanned page, and which of them are main text."""
    nodes, runs = markup.tag.size, markup.start.size
    owner, marks = np.zeros(nodes, np.int32), np.zeros(nodes, np.int64)
    is_link, dropped_inline, in_code = (np.zeros(nodes, np.bool_) for _ in range(3))
    _inherit(
        markup.tag, markup.parent, markup.signs, KIND, _tag_marks(), owner, is_link, marks, dropped_inline, in_code
    )
    _unfold(
        markup.html, markup.tag, markup.parent, markup.last, KIND, markup.start, markup.end, markup.node, marks,
        is_link, dropped_inline,
    )  # fmt: skip
    first, until, holder, chars, linked, stops = (np.zeros(runs, np.int32) for _ in range(6))
    blocks = _gather(
        markup.html, markup.start, markup.end, markup.node, markup.block, markup.tag, owner, is_link, dropped_inline,
        first, until, holder, chars, linked, stops,
    )  # fmt: skip
    out, own_out, kept = np.zeros(nodes, np.bool_), np.zeros(nodes, np.bool_), np.zeros(blocks, np.bool_)
    root = _select(
        markup.html, markup.start, markup.end, markup.node, markup.tag, markup.parent, markup.last, marks, first, until,
        holder, chars, linked, stops, blocks, own_out, out, kept, _phrases().steps, _phrases().marks, in_code, is_link,
    )  # fmt: skip
    sums = _prose(markup.parent, marks, own_out, holder, chars, linked, stops, kept, blocks)
    kinds = _kinds(markup.tag, markup.parent, in_code, holder, chars, kept, blocks)
    return Analysis(
        first, until, holder, chars, linked, stops, kept, blocks, marks, own_out, out, dropped_inline, in_code, root,
        *sums, num_in=kinds,
    )  # fmt: skip


def main_text(markup: Markup, found: Analysis) -> tuple[str, tuple[int, ...]]:
    """Return the main text of a scanned page, and the positions in it where code begins and ends.

    The positions are counted in characters; beginnings and ends alternate. Code is the text of `pre`, `listing` and
    `code`.
    """
    buffer = np.empty(markup.html.size + 8 * found.blocks + 16, np.uint8)
    code = np.empty(2 * markup.start.size, np.int64)
    used, num_places = _emit(
        markup.html, markup.start, markup.end, markup.node, found.first, found.until, found.holder, found.chars,
        markup.tag, markup.parent, found.dropped_inline, found.in_code, found.kept, found.blocks, buffer, code,
    )  # fmt: skip
    written = buffer[:used].tobytes()
    places = code[:num_places].tolist()
    pieces = [_text(written[start:end]) for start, end in pairwise([0, *places, used])]
    whole = _text(written)
    if "".join(pieces) != whole:  # an entity or a damaged character is partly in code
        return whole, ()
    if "\xa0" in whole:
        pieces[1::2] = [piece.replace("\xa0", " ") for piece in pieces[1::2]]
    return "".join(pieces), tuple(accumulate(map(len, pieces[:-1])))


def _text(written: bytes) -> str:
    text = written.decode("utf-8", errors="replace")
    return unescape(text) if "&" in text else text
