"""Extract text, title, date and language hint of one HTML page, after detecting its charset.

No limit depends on time: pages are refused by bytes, nodes and depth.
"""

from __future__ import annotations

import codecs
import email.utils
import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import unescape
from itertools import accumulate

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5
from resiliparse.parse.html import HTMLTree

from training.data.extract.pages.folded import unfolded
from training.data.extract.pages.formulas import MARKS, number_of
from training.data.extract.pages.rewriting import rewritten
from training.data.extract.settings import BLOCK_EXTRACTORS, ExtractRecipe
from training.data.extract.terms import Terms, terms_of
from training.data.sources import is_mostly_utf_8
from training.data.words.language import identify

HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
NOT_HTML_MAGIC = (b"%PDF", b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"PK\x03\x04", b"\x1f\x8b", b"RIFF", b"\x00\x00\x00")
UNSURE_TYPES = frozenset(
    "text/plain text/xml application/xml application/octet-stream text/asp text/aspdotnet text/x-jsp text/x-php"
    " application/x-httpd-php text/x-matlab text/x-python application/x-tika-unknown".split()
)
"""Types that detectors give to pages too; the page itself decides then."""
ANY_TAG = re.compile(rb"<\0?[!/?]?\0?[A-Za-z]")
OTHER_MARKUP = re.compile(
    rb"\s*(?:<\?xml[^>]*>|<!--.*?-->|<\?[^>]*>|<!doctype\s+(?!html)[^>]*>|\s)*"
    rb"<(?:rss|feed|rdf:rdf|urlset|sitemapindex|svg|opml|kml|gpx|soap|plist|wsdl|opensearchdescription|xs:schema|error)\b",
    re.IGNORECASE | re.DOTALL,
)
CONTROLS = bytes(byte for byte in range(1, 32) if byte not in b"\t\n\v\f\r\x0e\x0f\x1a\x1b")  # those of no charset
MAX_CONTROL_FRACTION = 0.02
PROBED_BYTES = 4096
HTML_START = re.compile(
    rb"\s*(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body|title|script|table|div|h1|p|a|meta|link|\?xml)\b",
    re.IGNORECASE | re.DOTALL,
)

BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
META_CHARSET = re.compile(
    rb"""<meta[^>]{0,512}?charset\s*=\s*["']?\s*([A-Za-z0-9_:.\-]+)|<\?xml[^>]{0,128}encoding\s*=\s*["']([A-Za-z0-9_.\-]+)""",
    re.IGNORECASE,
)
META_BYTES = 2048  # the standard reads 1024, but long comments before the first meta element are common
SINGLE_BYTE = ("cp125", "iso8859", "koi8", "mac-")
ASCII = bytes(range(128))
# In a text of the wrong charset: characters that no text has, and signs between two letters.
DAMAGED = re.compile(r"[\x80-\x9f\ufffd]|(?<=[^\W\d_])[¡-¨«¬¯±-³¶¸¹»¼¾¿×÷](?=[^\W\d_])")
RARE_LETTERS = 0.05  # of the bytes of a text; Czech has 0.15, Italian 0.01
PYTHON_CODECS = {"gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs", "iso8859-11": "cp874"}

TAG = re.compile(rb"<(/?)([A-Za-z][^\s/>]*)")

DAY = re.compile(r"\b((?:19[89]|20[0-9])\d)[-/.](0[1-9]|1[0-2])[-/.](0[1-9]|[12]\d|3[01])(?!\d)")
DATE_NAMES = (
    "article:published_time", "datepublished", "date", "dc.date", "dc.date.issued", "dcterms.date", "dcterms.created",
    "pubdate", "publish-date", "og:published_time", "article:modified_time", "datemodified", "last-modified",
)  # fmt: skip
ATTRIBUTE = re.compile(r"""([^\s"'>/=]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]+))""")
NOT_TEXT = re.compile(
    r"<(script|style|noscript)\b.*?(?:</\1|\Z)|<!--.*?(?:-->|\Z)|<[^>]*(?:>|\Z)", re.DOTALL | re.IGNORECASE
)
CLEARLY_MORE = 1.5  # trafilatura's text of a doubtful page is used if it has more than this times the prose
LANGUAGE_CHARACTERS = 20_000  # of HTML source, which has a few hundred words on nearly every page
SENTENCE_SIGN = re.compile(r"[.,;!?](?:\s|$)|[。、！，]")
PROSE_LINE_CHARACTERS = 80
LINE_OR_CELL = re.compile(r"[\n|]")
# Signs that nobody sees. U+200B is the blank of scripts from Thai to Burmese, of Khmer, Javanese and others; of several
# no-break spaces the first stays, save at the end of a line or beside a blank. A line with nothing else goes whole.
UNSEEN_SIGNS = "\x01-\x08\x0e-\x1f\x7f\xad\u2060-\u2064\ufeff\ufff9-\ufffc"
WITHOUT_BLANKS = "\u0e00-\u109f\u1780-\u17ff\u1950-\u1bff\ua980-\uaa7f"
UNSEEN = re.compile(
    rf"[{UNSEEN_SIGNS}\u200b\xa0](?:(?<=[{UNSEEN_SIGNS}])|(?<=\u200b)(?<![{WITHOUT_BLANKS}]\u200b)"
    rf"|(?<=\xa0)(?=[ \n]|\Z)|(?<![^ \n\xa0]\xa0)(?<=\xa0))(?:(?<=\n\n.)[ {UNSEEN_SIGNS}\u200b\xa0]*\n+)?"
)
INDENT = re.compile(r"(?<=[^\n]\n)[\xa0 ]{2,}(?=[!-~\w])")  # of code that is not marked as such, of verses
WIDE = re.compile("[\xa0\u2000-\u200a\u202f\u205f]")
# Joiners, without which Persian and Hindi words are others, and Khmer's blank. Trafilatura drops what is not printed,
# so it is given signs that no page has.
JOINERS = {"\u200b": "\U000e01ed", "\u200c": "\U000e01ee", "\u200d": "\U000e01ef"}
JOINER = re.compile("[\u200b-\u200d]|&(?:zwn?j|ZeroWidthSpace|#0*820[345]|#[xX]0*200[b-dB-D]);")
# For precision, trafilatura takes elements without a text out with all text behind them in their paragraph.
EMPTY = re.compile(r"<(a|abbr|b|em|font|i|small|span|strong|u)\b[^<>]*>(\s*)</\1\s*>", re.IGNORECASE)
JOINED = str.maketrans({sign: joiner for joiner, sign in JOINERS.items()})
NOSCRIPT = re.compile(rb"</?noscript\b[^>]*>", re.IGNORECASE)
LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?=[-_]|$)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Extracted:
    """The result for one page. `reason` is empty if it is kept, otherwise why it is dropped; then `text` may be empty.

    `language` is what the page states (a lower-case primary subtag) and `date` is YYYY-MM-DD; both may be empty.
    `code` has the places where code begins and ends in the text, in turn; only the block extractor gives them.
    `num_replaced` counts the characters that could not be decoded and became U+FFFD; `has_two_charsets` says that
    header and page declare different ones. `num_formulas` counts the formulas in the text. `is_doubtful` says that the
    block extractor may have lost much, `is_second` that trafilatura's text was used instead. `kind` is what most text
    is, `prose`, `code`, `table` or `list`; empty with an extractor that does not tell.
    """

    text: str = ""
    title: str = ""
    date: str = ""
    language: str = ""
    code: tuple[int, ...] = ()
    charset: str = ""
    num_replaced: int = 0
    has_two_charsets: bool = False
    num_formulas: int = 0
    terms: Terms = field(default_factory=Terms)
    reason: str = ""
    is_doubtful: bool = False
    is_second: bool = False
    kind: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """A page's text, and the charset with which it was decoded."""

    text: str
    charset: str
    num_replaced: int = field(default=0)
    has_two_charsets: bool = False  # header and page declare different ones


def is_html(content_type: str, body: bytes) -> bool:
    """Whether a payload is HTML, by its declared type, or by its first bytes if no type is declared."""
    if body.startswith(NOT_HTML_MAGIC):
        return False
    if content_type in HTML_TYPES:
        return True
    return not content_type and HTML_START.match(body[:META_BYTES]) is not None


def is_page(body: bytes, identified: str = "") -> bool:
    """Whether bytes that were served as HTML are a page, by their content and by the type that the crawler identified.

    A page has a tag. Feeds, site maps, drawings, JSON and other data are no pages, nor are bytes of no charset.
    """
    kind = identified.partition(";")[0].strip().lower()
    if kind and kind not in HTML_TYPES and kind not in UNSURE_TYPES:
        return False
    if not ANY_TAG.search(body):
        return False
    start = body[:PROBED_BYTES]
    if OTHER_MARKUP.match(start):
        return False
    if len(start.translate(None, CONTROLS)) < (1 - MAX_CONTROL_FRACTION) * len(start):
        return False
    return not (start.lstrip(codecs.BOM_UTF8 + b" \t\r\n")[:1] in (b"{", b"[") and _is_json(body))


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def extract_html(
    html: bytes, *, headers: Mapping[str, str] | None = None, content_type: str = "", settings: ExtractRecipe
) -> Extracted:
    """Return the main text of a page, or the reason why there is none.

    `headers` are the response's, by lower-case name; `content_type` can be given if only that is known. Reasons: empty,
    too_large, too_many_nodes, too_deep, language, robots, usage, tdm_reserved, licence, no_main_text, too_short.
    """
    headers = headers or {"content-type": content_type}
    if not html.strip():
        return Extracted(reason="empty")
    if len(html) > settings.max_html_bytes:
        return Extracted(reason="too_large")
    if html.count(b"<") > settings.max_nodes:
        return Extracted(reason="too_many_nodes")
    decoded = decode(html, headers.get("content-type", ""))
    if settings.languages and _is_foreign(decoded.text, settings):
        return Extracted(reason="language")
    source = decoded.text
    is_utf8 = decoded.charset == "utf-8" and not decoded.num_replaced and not html.startswith(codecs.BOM_UTF8)
    decoded = replace(decoded, text=rewritten(source, html if is_utf8 else b""))
    is_rewritten = decoded.text is not source
    same = html if is_utf8 and not is_rewritten else b""
    page = (_read_blocks if settings.extractor in BLOCK_EXTRACTORS else _read_tree)(html, decoded, same, settings)
    if page is None:
        return Extracted(reason="too_deep")
    terms = terms_of(headers, page.statements, source)
    num_formulas = number_of(page.text, page.code, is_marked=is_rewritten)
    raw, code = visible(page.text.translate(MARKS) if is_rewritten else page.text, page.code)
    text = clean(raw)
    reason = terms.refusal(settings)
    reason = reason or ("no_main_text" if not text else "too_short" if len(text) < settings.min_characters else "")
    return Extracted(
        text=text,
        title=" ".join(clean(visible(page.title)[0]).split()),
        date=_date(page.statements),
        language=page.language,
        code=_moved(code, raw, text),
        charset=decoded.charset,
        num_replaced=decoded.num_replaced,
        has_two_charsets=decoded.has_two_charsets,
        num_formulas=num_formulas,
        terms=terms,
        reason=reason,
        is_doubtful=page.is_doubtful,
        is_second=page.is_second,
        kind=page.kind,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _ExtractedPage:
    """The result of an extractor: text, title, language, and attributes of elements that state facts about the page."""

    text: str
    title: str
    language: str
    statements: list[dict[str, str]]
    code: tuple[int, ...] = ()
    is_doubtful: bool = False
    is_second: bool = False
    kind: str = ""


def _read_tree(html: bytes, decoded: Decoded, same: bytes, settings: ExtractRecipe) -> _ExtractedPage | None:
    """Extract a page from its parse tree; None if the tree is deeper than the settings allow."""
    tree = HTMLTree.parse(decoded.text)
    # Parsing time is linear in a page's size, extraction time quadratic in its depth: 0.05 s at 1,000, 5 s at 10,000.
    if may_be_deeper(html, settings.max_depth) and is_deeper(tree, settings.max_depth):
        return None
    text = decoded.text if settings.outside else unfolded(tree, decoded.text)
    return _ExtractedPage(
        text=_main_text(text, settings),
        title=tree.title or "",
        language=_language(tree),
        statements=_statements(tree),
    )


def _read_blocks(html: bytes, decoded: Decoded, same: bytes, settings: ExtractRecipe) -> _ExtractedPage | None:
    """Extract a page by its text blocks; None if the page is deeper than the settings allow.

    `same` is the text in UTF-8, if it is at hand.
    """
    from training.data.extract.pages import blocks  # numba takes half a second to import

    source = same or decoded.text.encode("utf-8", "replace")
    markup = blocks.scan_page(source, max_depth=settings.max_depth)
    if markup.is_too_deep:
        return None
    found = blocks.analyse(markup)
    if found.num_kept < blocks.LITTLE_CHARACTERS and NOSCRIPT.search(source):
        shown = NOSCRIPT.sub(b"", source)
        again = blocks.scan_page(shown, max_depth=settings.max_depth)
        if not again.is_too_deep and (other := blocks.analyse(again)).num_prose_kept > blocks.LITTLE_CHARACTERS:
            source, markup, found = shown, again, other
    statements = [_attributes(bytes(source[start:end])) for start, end in markup.spans.tolist()]
    text, code_places = blocks.main_text(markup, found)
    is_asked = found.is_doubtful and settings.extractor == "blocks_or_trafilatura"
    second = _trafilatura_text(decoded.text, is_precise=False) if is_asked else ""
    enough = max(CLEARLY_MORE * found.num_prose_kept, blocks.LITTLE_CHARACTERS) + found.num_prose_of_notices
    is_second = prose_characters(second) > enough
    return _ExtractedPage(
        text=second if is_second else text,
        title=unescape(source[markup.title[0] : markup.title[1]].decode("utf-8", "replace")),
        language=next((code for one in statements if (code := _primary(one.get("lang") or one.get("xml:lang")))), ""),
        statements=statements,
        code=() if is_second else code_places,
        is_doubtful=found.is_doubtful,
        is_second=is_second,
        kind=found.kind,
    )


def _attributes(tag: bytes) -> dict[str, str]:
    """Return the attributes of a start tag by lower-case name; of repeated attributes the first counts."""
    made: dict[str, str] = {}
    for name, quoted, single, bare in ATTRIBUTE.findall(tag.decode("utf-8", "replace")):
        made.setdefault(name.lower(), unescape(quoted or single or bare))
    return made


# Language, before anything is parsed


def _is_foreign(html: str, settings: ExtractRecipe) -> bool:
    """Whether the text near the page's beginning is certainly in another language than the recipe's."""
    start = max(0, html.find("<body"))
    sample = unescape(NOT_TEXT.sub(" ", html[start : start + LANGUAGE_CHARACTERS]))
    code, score = identify(sample)
    return code not in settings.languages and score >= settings.min_foreign_score


# Charset


def decode(body: bytes, content_type: str) -> Decoded:
    """Decode a page by its byte-order mark, HTTP header or meta element, or else by detecting the charset.

    Bytes that are valid UTF-8 and not ASCII are read as UTF-8 even if a single-byte charset is declared, because such a
    charset accepts any bytes; so is UTF-8 with a few damaged bytes, as at the end of a page that is cut off. If header
    and page declare different charsets, or the bytes contradict the declared one, the charset is used that the bytes
    are: the one with fewest damaged characters, then the one in which a language is recognized best.
    """
    for mark, name in BYTE_ORDER_MARKS:
        if body.startswith(mark):
            return _decoded(body[len(mark) :], name)
    header, meta = _charset_of_header(content_type), _charset_of_page(body)
    has_two = bool(header and meta and header != meta)
    return replace(_by_bytes(body, [name for name in (header, meta) if name]), has_two_charsets=has_two)


def decode_text(body: bytes) -> str:
    """Decode a text file, which declares no charset: UTF-8, else Windows-1252 or the charset that is detected.

    Damaged characters of a text that is UTF-8 save a few bytes become U+FFFD. Of the other charsets the one is used
    with fewest damaged characters, then the one in which a language is recognized best. A few letters beyond ASCII
    tell nothing of their charset, so they are read as Windows-1252 if that damages none.
    """
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        if is_mostly_utf_8(body):
            return _decoded(body.removeprefix(codecs.BOM_UTF8), "utf-8").text
        western = _decoded(body, "cp1252").text
    are_few = len(body.translate(None, ASCII)) < RARE_LETTERS * len(body)
    if are_few and not DAMAGED.search(western):
        return western
    found = detect_encoding(body) or "utf-8"
    detected = _decoded(body, "cp1251" if found == "utf-8" else found).text  # it is not UTF-8
    if found == "iso8859-2" and DAMAGED.search(detected):
        detected = _decoded(body, "cp1250").text
    texts = [western, detected]
    fewest = min(len(DAMAGED.findall(text)) for text in texts)
    left = [text for text in texts if len(DAMAGED.findall(text)) == fewest]
    return max(left, key=lambda text: _is_language(Decoded(text=text, charset="")))


def _by_bytes(body: bytes, declared: list[str]) -> Decoded:
    if all(name.startswith(SINGLE_BYTE) or name == "utf-8" for name in declared[:1]) or "utf-8" in declared:
        try:
            text = body.decode("utf-8")
        except UnicodeDecodeError:
            if is_mostly_utf_8(body):
                return _decoded(body, "utf-8")
        else:
            if not declared or declared[0] == "utf-8" or not body.isascii():
                return Decoded(text=text, charset="utf-8")
    if not declared:
        return _decoded(body, _detected(body))
    results = [_decoded(body, name) for name in dict.fromkeys(declared)]
    if results[0].num_replaced or len(results) > 1:
        other = _decoded(body, _detected(body))
        if len(results) > 1 or other.num_replaced * 2 < results[0].num_replaced:
            results.append(other)
    fewest = min(one.num_replaced for one in results)
    left = [one for one in results if one.num_replaced == fewest]
    return left[0] if len(left) == 1 or len({one.text for one in left}) == 1 else max(left, key=_is_language)


def _is_language(decoded: Decoded) -> float:
    """Return how surely the words with letters beyond ASCII, of a page's first ones, are of a language."""
    words = unescape(NOT_TEXT.sub(" ", decoded.text[: 10 * LANGUAGE_CHARACTERS])).split()
    return identify(" ".join([word for word in words if not word.isascii()][:500]))[1]


def _detected(body: bytes) -> str:
    return detect_encoding(body) or "utf-8"


def _charset_of_header(content_type: str) -> str:
    """Return Python's name of the charset that the header declares; empty for none or an unknown one."""
    found = re.search(r"""charset\s*=\s*["']?\s*([^\s"';,]+)""", content_type, re.IGNORECASE)
    return (map_encoding_to_html5(found[1], fallback_utf8=False) or "") if found else ""


def _charset_of_page(body: bytes) -> str:
    """Return Python's name of the charset that the page declares; empty for none or an unknown one."""
    meta = META_CHARSET.search(body, 0, META_BYTES)
    name = map_encoding_to_html5((meta[1] or meta[2]).decode("ascii"), fallback_utf8=False) if meta else None
    # A page whose meta element could be read as ASCII is not UTF-16, whatever it says (WHATWG HTML, 13.2.3.3).
    return "utf-8" if name and name.startswith("utf-16") else name or ""


def _decoded(body: bytes, charset: str) -> Decoded:
    text = body.decode(PYTHON_CODECS.get(charset, charset), errors="replace")
    return Decoded(text=text, charset=charset, num_replaced=text.count("\ufffd") - body.count("\ufffd".encode()))


def clean(text: str) -> str:
    """Return text without NULs, lone surrogates, carriage returns and outer white space.

    Every later stage relies on this.
    """
    if "\0" in text or "\r" in text:
        text = text.replace("\0", "").replace("\r\n", "\n").replace("\r", "\n")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text.strip()


def visible(text: str, places: tuple[int, ...] = ()) -> tuple[str, tuple[int, ...]]:
    """Return a text without the signs that nobody sees in it, and where places in it are then.

    Soft hyphens, zero-width spaces between words of scripts that have blanks, byte-order marks and control characters
    go. Blanks of other widths become blanks, and of no-break spaces one stays, none beside a blank. An indentation
    within a paragraph keeps its width.
    """
    text = INDENT.sub(lambda blanks: " " * len(blanks[0]), text)
    found = [one.span() for one in UNSEEN.finditer(text)]
    if found:
        text = UNSEEN.sub("", text)
        ends = [end for _, end in found]
        gone = [0, *accumulate(end - start for start, end in found)]
        places = tuple(place - gone[bisect_right(ends, place)] for place in places)
    return WIDE.sub(" ", text).replace("\u2028", "\n").replace("\u2029", "\n"), places


def _moved(places: tuple[int, ...], text: str, cleaned: str) -> tuple[int, ...]:
    """Convert character positions in a text to positions in the cleaned text.

    Returns no positions if cleaning removed more than outer white space.
    """
    start = text.find(cleaned)
    if start < 0 or not places:
        return ()
    return tuple(min(max(place - start, 0), len(cleaned)) for place in places)


# Size


def may_be_deeper(html: bytes, limit: int) -> bool:
    """Whether the page's tree might be deeper than `limit`; False is certain, whatever tags are left open or unmatched.

    The number of open elements of each name bounds how many elements of that name can enclose another; the sum of these
    maxima over all names bounds the depth.
    """
    if html.count(b"<") - html.count(b"</") <= limit:
        return False
    is_open: dict[bytes, int] = {}
    deepest: dict[bytes, int] = {}
    for end, name in TAG.findall(html):
        if end:
            if is_open.get(name):
                is_open[name] -= 1
            continue
        now = is_open[name] = is_open.get(name, 0) + 1
        if now > deepest.get(name, 0):
            deepest[name] = now
    return sum(deepest.values()) > limit


def is_deeper(tree: HTMLTree, limit: int) -> bool:
    """Whether any element of a parsed page is deeper than `limit`."""
    node = tree.document.first_element_child if tree.document else None
    depth = 1
    while node is not None:
        child = node.first_element_child
        if child is not None:
            node, depth = child, depth + 1
            if depth > limit:
                return True
            continue
        while depth and (following := node.next_element_sibling) is None:
            node, depth = node.parent, depth - 1
        node = following if depth else None
    return False


# Text


def _main_text(html: str, settings: ExtractRecipe) -> str:
    if (outside := settings.outside) is not None:
        extractor, given = outside
        return extractor.read(html, given)
    if settings.extractor == "trafilatura":
        return _trafilatura_text(html)
    if settings.extractor == "resiliparse":
        from training.data.extract.pages.resiliparse_text import resiliparse_text

        return resiliparse_text(html)
    raise AssertionError(f"extractor {settings.extractor} reads no tree")


def prose_characters(text: str) -> int:
    """Return the number of characters in long lines with sentence punctuation, so that menus and lists do not count.

    Of a row of a table, as trafilatura writes it, each cell counts as a line.
    """
    lines = (line for line in LINE_OR_CELL.split(text) if len(line) >= PROSE_LINE_CHARACTERS)
    return sum(len(line) for line in lines if SENTENCE_SIGN.search(line))


def _trafilatura_text(html: str, *, is_precise: bool = True) -> str:
    import trafilatura

    html, has_joiners = JOINER.subn(lambda one: JOINERS[unescape(one[0])], html)
    html, found = EMPTY.subn(r"\2", html)
    if found:
        html = EMPTY.sub(r"\2", html)  # one in another
    # With deduplicate=True a page's text would depend on the pages that the process saw before.
    text = trafilatura.extract(
        html, favor_precision=is_precise, include_comments=False, include_tables=True, deduplicate=False
    )
    return (text or "").translate(JOINED if has_joiners else {})


# What the page states about itself


def _language(tree: HTMLTree) -> str:
    root = tree.document.query_selector("html") if tree.document else None
    return "" if root is None else _primary(root.getattr("lang", "") or root.getattr("xml:lang", ""))


def _primary(tag: str | None) -> str:
    """Return the primary subtag of a language tag in lower case, such as `en` for `en-US` (RFC 5646)."""
    found = LANGUAGE.match(tag or "")
    return found[0].lower() if found else ""


def _statements(tree: HTMLTree) -> list[dict[str, str]]:
    """Return the attributes of the meta elements in the head, and of links to a licence."""
    found = tree.head.get_elements_by_tag_name("meta") if tree.head else []
    links = tree.document.query_selector_all("[rel~=license]") if tree.document else []
    return [{name.lower(): node.getattr(name) or "" for name in node.attrs} for node in (*found, *links)]


def _date(statements: list[dict[str, str]]) -> str:
    """Return the first date (YYYY-MM-DD) that an element states, or "" if it states none.

    Names are tried in the order of DATE_NAMES.
    """
    named: dict[str, str] = {}
    for one in statements:
        name = one.get("property") or one.get("name") or one.get("itemprop") or one.get("http-equiv")
        if name:
            named.setdefault(name.lower(), one.get("content") or one.get("datetime") or "")
    for name in DATE_NAMES:
        if day := day_of(named.get(name, "")):
            return day
    return ""


def day_of(text: str) -> str:
    """Return YYYY-MM-DD of a date as written in web pages, WARC (ISO 8601) or HTTP (RFC 9110); empty for other text."""
    if found := DAY.search(text):
        return "-".join(found.groups())
    try:
        return email.utils.parsedate_to_datetime(text).strftime("%Y-%m-%d")
    except (TypeError, ValueError):
        return ""
