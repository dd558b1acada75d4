"""Scan a page's markup in one pass over its bytes: elements, runs of text, and the few tags that describe the page.

This is not a full HTML parser. It follows the tokenizer of the HTML standard (WHATWG HTML, 13.2.5) for tags,
attributes, comments and raw text. Of tree construction it follows what decides which text is inside which element:
optional end tags, void elements, and end tags that end nothing. Elements that the standard would move (text in tables,
misnested formatting) stay where they are written. Time is linear in the bytes, times at most the depth for pages that
nest without end tags.

Measured on the labelled pages: building a lexbor tree alone takes 3 ms per page.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from training.data.words.native import native

INLINE, BLOCK, VOID, RAW, SKIPPED = 0, 1, 2, 3, 4
"""What an element is to the text around it. Of RAW and SKIPPED elements the content is left out; RAW holds no tags."""

_KINDS = {
    BLOCK: (
        "address article aside blockquote body center dd details dialog dir div dl dt fieldset figcaption figure footer"
        " form h1 h2 h3 h4 h5 h6 header hgroup html head li main menu nav ol p pre section summary table tbody td tfoot"
        " th thead tr ul legend caption listing optgroup option search"
    ),
    VOID: "area base br col embed hr img input link meta param source track wbr keygen frame",
    RAW: "iframe noembed noframes noscript script style textarea title xmp",
    SKIPPED: "audio annotation canvas datalist map object rp rt select svg template video",
    INLINE: (
        "a abbr b bdi bdo big button cite code em font i ins kbd label mark math q ruby s samp small span strong sub"
        " sup time tt u var"
    ),
}
TAGS: dict[str, int] = {
    name: number for number, name in enumerate((n for kind in _KINDS.values() for n in kind.split()), 1)
}
"""Numbers of the known elements; 0 is any other, which counts for nothing; with a hyphen in its name it is CUSTOM."""

UNKNOWN, CUSTOM = 0, len(TAGS) + 1
KIND = np.array([INLINE, *(kind for kind, names in _KINDS.items() for _ in names.split()), INLINE], dtype=np.int64)

T_A, T_BR, T_P, T_LI, T_DT, T_DD, T_TR, T_TD, T_TH, T_TABLE, T_HTML, T_HEAD, T_BODY, T_HR, T_UL, T_OL, T_DL, T_META = (
    TAGS[name] for name in "a br p li dt dd tr td th table html head body hr ul ol dl meta".split()
)
T_THEAD, T_TBODY, T_TFOOT, T_OPTION, T_LINK, T_TIME, T_PRE, T_TITLE, T_NOSCRIPT, T_MENU, T_SECTION, T_H1, T_H6 = (
    TAGS[name] for name in "thead tbody tfoot option link time pre title noscript menu section h1 h6".split()
)

SYMBOLS = 28  # of the automaton over attribute values: 0 separates words, 1 to 26 are a to z, 27 is a digit


def _key(name: str) -> int:
    """Return the name of an element or attribute as a number made of its first seven letters and its length."""
    return int.from_bytes(name.encode()[:7], "little") | len(name) << 56


@dataclass(frozen=True, slots=True)
class Signs:
    """Words to search for in attributes, as an automaton (Aho and Corasick 1975) over lower-case letters.

    `steps[state, symbol]` is the next state; `marks[state]` are the bits of the words that end there.
    """

    steps: np.ndarray
    marks: np.ndarray
    attribute_keys: np.ndarray
    attribute_states: np.ndarray  # state of the automaton before the attribute's value; -1: do not read the value
    attribute_masks: np.ndarray  # bits that words in the attribute's value may set
    is_weak: np.ndarray  # whether the attribute's words are ignored if `section_bit` is set
    section_bit: int
    attribute_marks: np.ndarray  # bits that the attribute sets by being present


def symbols(text: str) -> list[int]:
    """Convert a pattern to the automaton's symbols; `|` in a pattern is the edge of a word."""
    return [0 if c == "|" else 27 if c.isdigit() else ord(c) - 96 for c in text]


def make_signs(
    words: dict[int, str], attributes: dict[str, int], present: dict[str, int], *, section: int = 62
) -> Signs:
    """Build the automaton for `words`: patterns by the bit that they set, separated by blanks.

    In a pattern `|` is the edge of a word. An attribute's value is read as: name, edge, value, edge. So the pattern
    `role|navigation|` applies to one attribute only. `attributes` maps each attribute to the bits that its value may
    set; `present` maps attributes to the bit that they set by being present. An `id` is ignored in sections, headings,
    terms, and if the bit `section` is set: documentation turns headings into ids, and a chapter on comments is not one.
    """
    steps: list[list[int]] = [[-1] * SYMBOLS]
    marks = [0]
    for bit, patterns in words.items():
        for pattern in patterns.split():
            state = 0
            for symbol in symbols(pattern):
                if steps[state][symbol] < 0:
                    steps[state][symbol] = len(steps)
                    steps.append([-1] * SYMBOLS)
                    marks.append(0)
                state = steps[state][symbol]
            marks[state] |= 1 << bit
    _close(steps, marks)
    table = np.array(steps, dtype=np.int32)
    order = sorted({*attributes, *present}, key=_key)
    return Signs(
        steps=table,
        marks=np.array(marks, dtype=np.int64),
        attribute_keys=np.array([_key(name) for name in order], dtype=np.int64),
        attribute_states=np.array(
            [_state(steps, name) if name in attributes else -1 for name in order], dtype=np.int64
        ),
        is_weak=np.array([name == "id" for name in order], dtype=np.bool_),
        section_bit=1 << section,
        attribute_masks=np.array([attributes.get(name, 0) for name in order], dtype=np.int64),
        attribute_marks=np.array([1 << present[name] if name in present else 0 for name in order], dtype=np.int64),
    )


def _state(steps: list[list[int]], name: str) -> int:
    state = 0
    for symbol in symbols(f"|{name.replace('-', '|')}|"):
        state = steps[state][symbol]
    return state


def _close(steps: list[list[int]], marks: list[int]) -> None:
    """Turn the trie of words into the automaton: each missing step leads where the longest suffix would."""
    fallback = [0] * len(steps)
    queue = [0]
    for state in queue:
        for symbol, following in enumerate(steps[state]):
            elsewhere = steps[fallback[state]][symbol] if state else 0
            if following < 0:
                steps[state][symbol] = elsewhere
            else:
                fallback[following] = elsewhere
                marks[following] |= marks[elsewhere]
                queue.append(following)


@lru_cache(maxsize=1)
def _tag_table() -> tuple[np.ndarray, np.ndarray]:
    order = sorted(TAGS, key=_key)
    return np.array([_key(name) for name in order], dtype=np.int64), np.array([TAGS[n] for n in order], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Markup:
    """A scanned page. Nodes are in the order of their start tags; node 0 is the page itself.

    `tag`, `parent`, `signs` and `last` are by node; `last` is the last node inside it, or itself if there is none.
    `start`, `end`, `node` and `block` are by run of text: its bytes, the element that contains it, and a number that
    changes wherever a block begins or ends. A `br` is a run with start = end. `spans` are (start, end) of the tags with
    a wanted sign.
    """

    html: np.ndarray
    tag: np.ndarray
    parent: np.ndarray
    signs: np.ndarray
    last: np.ndarray
    start: np.ndarray
    end: np.ndarray
    node: np.ndarray
    block: np.ndarray
    spans: np.ndarray
    title: tuple[int, int]
    is_too_deep: bool


def scan(html: bytes, signs: Signs, *, max_depth: int, wanted: int) -> Markup:
    """Scan a page of UTF-8 bytes. Tags with a sign whose bit is in `wanted` are listed in `spans`.

    If the page is deeper than `max_depth`, the scan stops and sets `is_too_deep`.
    """
    data = np.frombuffer(html, dtype=np.uint8)
    size = html.count(b"<") + 2
    tag, parent, last = np.zeros(size, np.int32), np.zeros(size, np.int32), np.zeros(size, np.int32)
    marks = np.zeros(size, np.int64)
    start, end, node, block = (np.zeros(2 * size, np.int32) for _ in range(4))
    spans = np.zeros((size, 2), np.int32)
    keys, numbers = _tag_table()
    nodes, runs, wanted_tags, title_start, title_end, is_too_deep = _scan(
        data, keys, numbers, KIND, signs.steps, signs.marks, signs.attribute_keys, signs.attribute_states,
        signs.attribute_masks, signs.attribute_marks, signs.is_weak, signs.section_bit, max_depth, wanted,
        tag, parent, last, marks, start, end, node, block, spans,
    )  # fmt: skip
    return Markup(
        html=data,
        tag=tag[:nodes],
        parent=parent[:nodes],
        signs=marks[:nodes],
        last=last[:nodes],
        start=start[:runs],
        end=end[:runs],
        node=node[:runs],
        block=block[:runs],
        spans=spans[:wanted_tags],
        title=(title_start, title_end),
        is_too_deep=bool(is_too_deep),
    )


# Kernels


@native
def _is_space(byte):
    return byte == 32 or 9 <= byte <= 13


@native
def _is_letter(byte):
    return 97 <= byte | 32 <= 122


@native
def _name(html, at):
    """Return the key of the tag or attribute name at byte `at`, and its end (WHATWG HTML, 13.2.5.8 and 13.2.5.33)."""
    key = 0
    begin = at
    while at < html.size:
        byte = html[at]
        if byte == 62 or byte == 47 or _is_space(byte) or (byte == 61 and at > begin):
            break
        if at - begin < 7:
            if 65 <= byte <= 90:
                byte |= 32
            key |= np.int64(byte) << (8 * (at - begin))
        at += 1
    return key | (np.int64(min(at - begin, 127)) << 56), at


@native
def _find(keys, key):
    low, high = 0, keys.size
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    if low < keys.size and keys[low] == key:
        return low
    return -1


@native
def _has_hyphen(html, at, end):
    for i in range(at, end):  # noqa: SIM110 - numba compiles no generator
        if html[i] == 45:
            return True
    return False


@native
def _read(html, at, end, state, steps, marks):
    """Return the signs (bits) found in an attribute's value, reading on from `state`.

    A capital after a small letter begins a word.
    """
    found = np.int64(0)
    was_small = False
    was_edge = True
    for i in range(at, end):
        byte = html[i]
        if 97 <= byte <= 122:
            symbol = byte - 96
            was_small = True
        elif 65 <= byte <= 90:
            if was_small:
                state = steps[state, 0]
                found |= marks[state]
            symbol = byte - 64
            was_small = False
        elif 48 <= byte <= 57:
            symbol = 27
            was_small = True
        else:
            if was_edge:
                continue
            symbol = 0
            was_small = False
        was_edge = symbol == 0
        state = steps[state, symbol]
        found |= marks[state]
    return found | marks[steps[state, 0]]


@native
def _attributes(
    html, at, attribute_keys, attribute_states, attribute_masks, attribute_marks, is_weak, section, steps, marks
):
    """Return a start tag's marks, the index of the byte after its `>`, and whether it ends in `/>`.

    `at` is the end of the tag's name.
    """
    found = np.int64(0)
    weakly = np.int64(0)
    size = html.size
    closes = False
    while at < size:
        byte = html[at]
        if byte == 62:
            return found if section == -1 or found & section else found | weakly, at + 1, closes
        if byte == 47 or _is_space(byte):
            closes = byte == 47
            at += 1
            continue
        closes = False
        key, at = _name(html, at)
        while at < size and _is_space(html[at]):
            at += 1
        begin = end = at
        if at < size and html[at] == 61:
            at += 1
            while at < size and _is_space(html[at]):
                at += 1
            if at < size and (html[at] == 34 or html[at] == 39):
                quote = html[at]
                at += 1
                begin = at
                while at < size and html[at] != quote:
                    at += 1
                end = at
                at += 1
            else:
                begin = at
                while at < size and html[at] != 62 and not _is_space(html[at]):
                    at += 1
                end = at
        which = _find(attribute_keys, key)
        if which >= 0:
            found |= attribute_marks[which]
            if attribute_states[which] >= 0:
                read = _read(html, begin, end, attribute_states[which], steps, marks) & attribute_masks[which]
                if is_weak[which]:
                    weakly |= read
                else:
                    found |= read
    return found, size, closes


@native
def _raw_end(html, at, name_at, length):
    """Return where the end tag of a raw element begins; the end of the page if there is none.

    The element's name is the `length` bytes at `name_at`.
    """
    size = html.size
    while at + length + 1 < size:
        if html[at] == 60 and html[at + 1] == 47:
            same = True
            for i in range(length):
                if html[at + 2 + i] | 32 != html[name_at + i] | 32:
                    same = False
                    break
            if same:
                after = html[at + 2 + length] if at + 2 + length < size else 62
                if after == 62 or after == 47 or _is_space(after):
                    return at
        at += 1
    return size


@native
def _comment_end(html, at):
    """Return the end of the markup declaration or comment that begins at `at` with `<!` or `<?`."""
    size = html.size
    if at + 3 < size and html[at + 1] == 33 and html[at + 2] == 45 and html[at + 3] == 45:
        i = at + 4
        if i < size and html[i] == 62:
            return i + 1
        while i + 2 < size:
            if html[i] == 45 and html[i + 1] == 45:
                if html[i + 2] == 62:
                    return i + 3
                if html[i + 2] == 33 and i + 3 < size and html[i + 3] == 62:
                    return i + 4
            i += 1
        return size
    i = at + 2
    while i < size and html[i] != 62:
        i += 1
    return min(i + 1, size)


@native
def _open_p(tag, stack, depth, kind):
    """Return the stack index of the open `p` element that a new block element would end; -1 if there is none."""
    i = depth - 1
    while i > 0:
        t = tag[stack[i]]
        if t == T_P:
            return i
        if kind[t] == BLOCK:
            return -1
        i -= 1
    return -1


@native
def _open_item(tag, stack, depth, number):
    """Return the stack index of the element that a start tag of kind `number` ends implicitly; -1 if it ends none."""
    i = depth - 1
    while i > 0:
        t = tag[stack[i]]
        if number == T_LI:
            if t == T_LI:
                return i
            if t in (T_UL, T_OL, T_MENU):
                return -1
        elif number in (T_DT, T_DD):
            if t in (T_DT, T_DD):
                return i
            if t == T_DL:
                return -1
        elif number in (T_TD, T_TH):
            if t in (T_TD, T_TH):
                return i
            if t == T_TR:
                return -1
        elif number == T_TR:
            if t == T_TR:
                return i
        elif number in (T_THEAD, T_TBODY, T_TFOOT):
            if t in (T_THEAD, T_TBODY, T_TFOOT):
                return i
        elif number == T_OPTION:
            if t == T_OPTION:
                return i
            return -1
        elif number == T_A:
            if t == T_A:
                return i
            if KIND[t] == BLOCK:
                return -1
        if t == T_TABLE:
            return -1
        i -= 1
    return -1


@native
def _ended(tag, stack, depth, number, kind):
    """Return the stack index of the element that an end tag of kind `number` ends; -1 if it ends none."""
    is_inline = kind[number] == INLINE
    i = depth - 1
    while i > 0:
        t = tag[stack[i]]
        if t == number:
            return i
        if t == T_TABLE and number != T_TABLE:
            return -1
        if (t in (T_TD, T_TH)) and number not in (T_TABLE, T_TR, T_TBODY):
            return -1
        if is_inline and kind[t] == BLOCK:
            return -1
        i -= 1
    return -1


@native
def _scan(
    html, tag_keys, tag_numbers, kind, steps, marks, attribute_keys, attribute_states, attribute_masks, attribute_marks,
    is_weak, section_bit, max_depth,
    wanted, tag, parent, last, signs, start, end, node, block, spans,
):  # fmt: skip
    size = html.size
    stack = np.zeros(max_depth + 2, np.int32)
    depth = 1  # the stack holds node 0, the page
    nodes, runs, spanned, blocks = 1, 0, 0, 0
    title_start = title_end = 0
    skipping = 0  # index in the stack of the element whose content is left out; 0 for none
    at = text_at = 0
    while at <= size:
        # text up to the next tag
        while at < size and html[at] != 60:
            at += 1
        is_tag = at + 1 < size and (
            _is_letter(html[at + 1])
            or html[at + 1] == 33
            or html[at + 1] == 63
            or (html[at + 1] == 47 and at + 2 < size and _is_letter(html[at + 2]))
            or (html[at + 1] == 47 and at + 2 < size and html[at + 2] == 62)
        )
        if at < size and not is_tag:
            at += 1
            continue
        if at > text_at and skipping == 0:
            start[runs], end[runs], node[runs], block[runs] = text_at, at, stack[depth - 1], blocks
            runs += 1
        if at >= size:
            break
        tag_at = at
        second = html[at + 1]
        if second == 33 or second == 63:
            at = text_at = _comment_end(html, at)
            continue
        if second == 47:
            key, at = _name(html, at + 2)
            name_end = at
            while at < size and html[at] != 62:
                at += 1
            at = text_at = min(at + 1, size)
            place = _find(tag_keys, key)
            number = tag_numbers[place] if place >= 0 else UNKNOWN
            if number == UNKNOWN and _has_hyphen(html, tag_at, name_end):
                number = CUSTOM
            if number in (T_BODY, T_HTML, T_HEAD, UNKNOWN):
                continue
            k = kind[number]
            if number in (T_P, T_BR) or k == BLOCK:
                blocks += 1
            if k == VOID:
                continue
            found = _ended(tag, stack, depth, number, kind)
            if found > 0:
                while depth > found:
                    depth -= 1
                    last[stack[depth]] = nodes - 1
                if skipping >= depth:
                    skipping = 0
            continue
        # a start tag
        key, name_end = _name(html, at + 1)
        place = _find(tag_keys, key)
        number = tag_numbers[place] if place >= 0 else UNKNOWN
        found_signs, at, closes = _attributes(
            html, name_end, attribute_keys, attribute_states, attribute_masks, attribute_marks, is_weak,
            -1 if number in (T_SECTION, T_DT) or T_H1 <= number <= T_H6 else section_bit, steps, marks,
        )  # fmt: skip
        text_at = at
        if number == UNKNOWN:
            if not _has_hyphen(html, tag_at, name_end):
                continue
            number = CUSTOM
        k = kind[number]
        if (found_signs & wanted or number == T_HTML) and spanned < spans.shape[0]:
            spans[spanned, 0], spans[spanned, 1] = tag_at, at
            spanned += 1
        if k == RAW:
            finish = _raw_end(html, at, tag_at + 1, name_end - tag_at - 1)
            if number == T_TITLE and title_end == 0 and skipping == 0:
                title_start, title_end = at, finish
            at = finish
            while at < size and html[at] != 62:
                at += 1
            at = text_at = min(at + 1, size)
            continue
        if k == VOID:
            if number == T_BR and skipping == 0:
                start[runs] = end[runs] = tag_at
                node[runs], block[runs] = stack[depth - 1], blocks
                runs += 1
            elif number == T_HR:
                blocks += 1
            continue
        if number in (T_HTML, T_HEAD):
            continue  # their content counts as content of the page
        if number == T_BODY:
            while depth > 1:  # close the elements that the head left open
                depth -= 1
                last[stack[depth]] = nodes - 1
            skipping = 0
        ended = -1
        if k == BLOCK:
            blocks += 1
            ended = _open_p(tag, stack, depth, kind)
            if ended > 0:
                while depth > ended:
                    depth -= 1
                    last[stack[depth]] = nodes - 1
        if (
            number in (T_LI, T_DT, T_DD, T_TD, T_TH, T_TR, T_THEAD, T_TBODY, T_TFOOT, T_OPTION, T_A)
        ):  # fmt: skip
            ended = _open_item(tag, stack, depth, number)
            if ended > 0:
                while depth > ended:
                    depth -= 1
                    last[stack[depth]] = nodes - 1
        if skipping >= depth:
            skipping = 0
        if depth > max_depth:
            while depth > 1:
                depth -= 1
                last[stack[depth]] = nodes - 1
            last[0] = nodes - 1
            return nodes, runs, spanned, title_start, title_end, True
        tag[nodes], parent[nodes], signs[nodes], last[nodes] = number, stack[depth - 1], found_signs, nodes
        if closes and k == SKIPPED:  # <svg/>; HTML ignores the slash elsewhere
            nodes += 1
            continue
        stack[depth] = nodes
        if skipping == 0 and k == SKIPPED:
            skipping = depth
        depth += 1
        nodes += 1
    while depth > 1:
        depth -= 1
        last[stack[depth]] = nodes - 1
    last[0] = nodes - 1
    return nodes, runs, spanned, title_start, title_end, False
