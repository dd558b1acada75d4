"""Find telephone numbers: digits of some country's numbering plan that a form or a word announces.

International numbers and those of North America and Russia have a form of their own. Any other number needs a word for
telephone in its clause (`lists/telephone_words.txt`), or a form in which the countries that the text comes from write
theirs; without a national prefix it must also stand apart, or behind a name.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path

from training.data.filter.telephone_plans import Form, every_form, has_country, is_international, is_national, written

WORDS = Path(__file__).parent / "lists" / "telephone_words.txt"
Span = tuple[int, int]

# Letters and digits of scripts that put spaces between words: Latin, Greek, Cyrillic, Hebrew, Arabic. A number or an
# address may directly follow a letter of any other script, as in 電話03-1234-5678.
LETTERS = (
    r"A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0370-\u052f\u0590-\u060b\u060d-\u061a\u0620-\u06d3\u06d5-\u06ff"
)
# Spaces, dots, slashes, hyphens (in Japanese the sign for a long vowel is one too), and signs without width.
_SEPARATOR = (
    r"(?:[ .\-/~\u00a0\u00ad\u00b7\u2002-\u200b\u200e\u200f\u202a-\u202f\u2010-\u2015\u2022\u2060\u2066-\u2069\u2212"
    r"\u3000\u30fc]|&nbsp;|&#160;)"
)
_START = rf"(?:(?<![_{LETTERS}+\-/=])(?<!\d\.)|(?<=[TtFf][EeAa][LlXx])|(?<=[TtFf][EeAa][LlXx][.\-/]))"
_END = rf"(?![_{LETTERS}%]|{_SEPARATOR}?\d)"
_PLUS = r"(?:\+|&#43;|&plus;|%2[Bb])"
_INTERNATIONAL = re.compile(
    rf"(?=[+0&%])(?:{_START}|(?<=[=/](?=[&%])))(?P<it>{_PLUS}\d{{8,15}}(?![_{LETTERS}%]|[.,]\d)"
    rf"|(?:{_PLUS}|00(?={_SEPARATOR}?[1-9]{_SEPARATOR}?\d))(?!0){_SEPARATOR}?\d{{1,3}}\)?"
    rf"(?:{_SEPARATOR}{{0,3}}\(?\d{{1,5}}\)?){{2,6}}{_END})"
)
# Links that open a chat with a number, which has no plus there.
_LINKED = re.compile(r"(?:(?<=wa\.me/)|(?<=[?&]phone=))(?P<it>(?:\+|%2B)?[1-9]\d{7,14})(?!\d)")
# Russia and Kazakhstan from inside the country: 8, area code and number, grouped from the end in twos.
_RUSSIAN = re.compile(
    r"(?<![\w.\-/+=:#])(?P<it>8[ \u00a0\-]?(?:\(\d{3,5}\)[ \u00a0]?|\d{3}-)\d{1,3}(?:[ \u00a0\-]\d{2}){2})"
    r"(?![\w\-/]|\.\d)"
)
_NORTH_AMERICAN = re.compile(
    r"(?<![\w.\-/+=:#])(?P<it>(?:1[ .\-])?(?:\([2-9]\d{2}\)[ \u00a0]?|[2-9]\d{2}[ .\-\u00a0])"
    r"[2-9]\d{2}[ .\-\u00a0]\d{4})(?![\w\-/]|\.\d)"
)
# Groups of digits with at most three separators and an area code's brackets between them.
_RUN = re.compile(rf"(?=[(+\d]){_START}(?P<it>\(?\+?\d++(?:\)?{_SEPARATOR}{{0,3}}+\(?\d++){{0,11}}+)")
_GOES_ON = re.compile(rf"[_{LETTERS}%]|[,:.]\d|\d*[年月日号號]")  # after digits of which a number cannot be the end
_GROUP = re.compile(r"\d+")
_PARTED = re.compile(r"\)?(?:/|\s+[/\-\u2010-\u2015|\u00b7\u2022]\s*|\s{1,3}(?=[(+]))\(?\Z")
_EXTENSION = re.compile(
    r"(?i)[ ,;]{0,2}(?:\(?(?:ext|extn|extension|x|app|durchwahl|dw|poste|int|interno|ramal|anexo|toestel|tst|ankn|wew"
    r"|kl|linka|доб|вн|內線|内線|分机|转|轉|내선)(?:\b\.?|(?=\d))|#)[ :.]{0,2}\d{1,5}\b\)?"
)

# What digits are not.
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:[ .\u00a0\u2009\u202f]\d{3}){1,}")  # as thousands are
_AMOUNT = re.compile(r"\+\d{1,3}(?:[ .\u00a0\u2009\u202f]\d{3})+")
# Years, also of a file (44/2018), and bands of mobile networks.
_YEARS = re.compile(
    rf"(?:(?:19|20)\d\d{_SEPARATOR}{{1,3}})+(?:(?:19|20)\d\d|\d\d)\Z"
    r"|(?:(?:850|900|1800|1900|2100)/)+(?:900|1800|1900|2100)\Z|[\d/]+/(?:19|20)\d\d\Z"
)
_DATE = re.compile(
    r"(?:19|20)\d{2}[ .\-/](?:0?[1-9]|1[0-2])[ .\-/](?:0?[1-9]|[12]\d|3[01])(?!\d)"
    r"|(?:0?[1-9]|[12]\d|3[01])[ .\-/](?:0?[1-9]|[12]\d|3[01])[ .\-/](?:19|20)\d{2}(?!\d)"
)
# What numbers are counted with that are no telephone, before a number in the form of North America or of a card.
OTHER_NUMBER = re.compile(
    r"(?i)(?:\b(?:pp?|pages?|lines?|isbn|issn|doi|oclc|lccn|rfc|sku|item|part|order|invoice|case|ref|serial|model"
    r"|patent|ticket|issue|bug|id|uuid|sha-?\d*|md5|hash|checksum|digest|commit|revision)"
    r"(?:[ ](?:no|number|nr)\b)?|§)[\W_]{0,3}\Z"
)
_MONEY = re.compile(r"(?i)(?:[€$£¥₽₹₩₺₴%°]|\b(?:chf|eur|usd|gbp|jpy|inr|rp|rm|rs|idr|vnd|brl|mxn)\.?)\s?\Z")
_UNIT = re.compile(
    r"(?i)\)?[\s\u00a0]?(?:[€$£¥₽₹₩₺₴%‰°円元원₫人名票件台部户戶대枚]|명|개|جنيه|ريال|نسمة|تومان|रुपये|บาท|(?:eur|euros?|usd|chf|dkk"
    r"|sek|nok|pln|huf|czk|ron|rub|zł|kč|ft|kr|lei"
    r"|dollars?|руб|грн|лв|тг|tl|рублей|francs?|rupees|rupien|pounds?|pesetas|pesos|din|đong|đồng|won|baht|yen|km|kg"
    r"|cm|mm|m²|km²|ha|hz|[kmg]b|bytes?|mill?i\w*|mio|mrd|тыс|млн|million\w*"
    r"|people|inhabitants|einwohner\w*|habitant\w*|abitanti|mieszk\w*|obyvatel\w*|lakos\w*|asukas\w*|inv[åa]nare"
    r"|innbygg\w*|indbygg\w*|inwoners|жител\w*|человек|чолов\w*|ki[sş]i|units|st[üu]cke?|unidades|pezzi|stuks|stk|kpl"
    r"|adet|sztuk\w*|kus[ůy]|штук\w*|pi[eè]ces|exempl\w*|copies|users|viewers|votes|stimmen|votos"
    r"|voix|g[łl]os\w*|голос\w*|seiten|pages|p[aá]ginas|страниц\w*)\b)"
)
# Forms in which people dial, where the word before may mean another thing.
_DIALLED = re.compile(
    rf"[0(+]|[2-9]\d{{2}}{_SEPARATOR}[2-9]\d{{2}}{_SEPARATOR}\d{{4}}\Z|\d{{5,}}{_SEPARATOR}?\d{{4,}}\Z"
    r"|[1-9]\d{1,3}-\d{2,4}-\d{2,4}(?:-\d\d)?\Z|[1-9]\d \d{3} \d{4}\Z|1[38]00[ \-]\d{3}[ \-]\d{3}\Z"
    r"|[1-9]\d(?:\d[ .]\d\d|[ .]\d{3})[ .]\d\d[ .]\d\d\Z|[4-9]\d\d \d\d \d{3}\Z|3\d\d[ ./\-]\d{6,7}\Z"
    r"|1[3-9]\d[ \-]\d{4}[ \-]\d{4}\Z|8 \(?\d{3,4}\)? \d{2,3}[ \-]"
    r"|[2-9]\d{3}[ \-]\d{4}\Z"
    r"|2\d{2,3} \d{5,7}\Z|69\d\d \d{3} \d{3}\Z|[1-9]\d (?:9\d{4}|\d{4})[ \-]\d{4}\Z|[2-9]\d\d[ .]\d{3}[ .]\d{3,4}\Z"
)
PAIRS_OF_EIGHT = re.compile(rf"[2-9]\d{_SEPARATOR}\d\d{_SEPARATOR}\d\d{_SEPARATOR}\d\d\Z")  # Denmark, Norway
# Forms that announce themselves: a trunk prefix with area code and number, in groups; an area code in brackets.
_TRUNK = re.compile(
    r"(?!\d{3}-\d\d-\d{4}\Z|(?:[01]\d|2[0-4])\d0(?: (?:[01]\d|2[0-4])\d0)+\Z)"
    r"(?:\(0[1-9]\d{0,3}\)[ /\u00a0\-]{0,3}\d{2,8}(?:[ \-\u00a0]\d{2,4}){0,3}\Z"
    r"|0[1-9](?P<s>[ .\-\u00a0])\d\d(?:(?P=s)\d\d){3}\Z"
    r"|0[1-9]\d{0,3}(?: ?[/\-\u2013] ?|[ \u00a0])\d{3,8}\Z"
    r"|0[1-9]\d{0,3}(?: ?[/\-\u2013] ?|[ \u00a0])\d{2,4}(?:[ \-/\u00a0]\d{2,4}){0,2}[ \-/\u00a0]\d{1,4}\Z"
    r"|0[1-9]\d{0,3} ?/ ?\d{2,3}(?:\.\d{2,3}){2,3}\Z|06[ \-]1[ \-/]\d{3}[ \-]\d{4}\Z"
    r"|0[1-9]\d{1,3} ?/ ?\d(?: \d\d){2,3}\Z"
    r"|0 [2-9]\d\d \d{3} \d\d \d\d\Z|\([1-9]\d{2,4}\) ?\d\d-\d\d-\d\d\Z"
    r"|\([1-9]\d\) ?(?:9\d{4}|[2-5]\d{3})[ \-]\d{4}\Z|\([1-9]\d{1,3}\) ?\d{3}[ \-]\d\d[ \-]\d\d\Z"
    r"|\([1-9]\d\) \d{4} \d{4}\Z)"
)
# Groups in which nothing else is written: toll-free lines, Spain and Poland (9 digits), mobiles of India and Brazil.
_SELF_SAID = re.compile(
    r"1[38]00-\d{3}-\d{3,4}\Z|[2-9]\d\d \d\d \d\d \d\d\Z|[2-9]\d \d{3} \d\d \d\d\Z|[6-9]\d{4} \d{5}\Z"
    r"|3[2-9]\d[ .]\d{7}\Z|[1-9]\d 9\d{4}-\d{4}\Z"
)
_CHINESE = re.compile(r"1[3-9]\d{9}\Z")
# Digits and signs that a number goes on from; a short name in capitals, of a tax or register; a sign of counting.
_OTHER_BEFORE = re.compile(
    r"\d[ \t.,\-/]{0,2}\Z|[\-/.+=#_]\Z|\b(?!SAC\b|TEL\b|FAX\b|WA\b)[A-ZΑ-ΩА-ЯЄІЇҐ]{2,6}:? ?\Z"
    r"|(?i:\bn[ro]\.?|nº|n°|№|#) ?(?:\w+ )?\Z"
)
_COUNTER = re.compile(r"\d+(?:, |(?<=\D\d) |(?<=\D\d\d) )\Z")  # a price or the number of a gate right before
_MORE = re.compile(r"[ .\-\u00a0]?\(?\d")
_OTHER_FORM = re.compile(  # a day, a host, two years
    r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])|(?:[12]?\d?\d\.){3}[12]?\d?\d"
    r"|(?:1\d|20)\d\d\D{1,3}(?:1\d|20)\d\d"
)
_VALUE = re.compile(r"[=<>\[{'\"]\Z|\w[\"']:\Z|\w\(\Z")  # what stands before values in code
_APART_AFTER = re.compile(r"\s*(?:[.,;:!?()\]»”\"|\n·•–—。，、；！？）」』]|-\s|\Z)")
_LAST_WORD = re.compile(r"[^\W\d_][\w'’]*\.?\Z")
_SHORT_WORD = re.compile(r"(?:\A|\s)(?=[^\W\d_])[^\WA-ZА-Я]{1,5} \Z")  # such as at, au, unter
_IN_GROUPS = re.compile(r"\d+(?:[ .\-]\d+){2,}\Z|\d{2,4}[ \-]\d{6,}\Z")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:[ .,\u00a0\u202f]\d{3})+(?!\d)")
_POSTCODE = re.compile(r"\d{5}-\d{3}\Z")
# After a word for a booking: the sign of its number. After digits in threes: what they count, or the year of a count.
_NUMERAL = re.compile(r"(?i)\s*(?:no?[.:]?o?|n°|#|c\.|nr[.:]?|num[.:]?|szam)\s*\Z")
_THINGS = re.compile(r"\s+(?:\w{4,}|\w{1,3}\s+(?:19|20)\d\d\b)")
_CODED = re.compile(r"(?:numm?er\w*|numero|nro|nr|numret|codes?|kode?n?|szam\w*|番号)\Z")  # ends of compounds
_NEXT = re.compile(r"[\s.,;/|&()•·\-–、，،]*(?:\w{1,6}\b[.:]?\s*)?[:(]?\s*\Z")  # between two numbers
_CLAUSE_ENDS = re.compile(r"[!?。！？;؛]\s*\w|\w{4,}\.\s+\w|\w[^\n]*\n|\n[^\n]*\w")
_SHUT = re.compile(r"[\n.!?;。]|\d")  # ends the clause of a number
_MOST_BEFORE, _MOST_AFTER = 64, 28  # characters between a word and its number


def folded(text: str) -> str:
    """Return the text in lower case and without accents, as the words of the list are."""
    if text.isascii():
        return text.lower()
    return "".join(
        sign for sign in unicodedata.normalize("NFKD", text.casefold()) if unicodedata.category(sign) != "Mn"
    )


KINDS = (
    "other",
    "said",
    "label",
    "perhaps",
    "about",
    "booked",
    "number",
    "counted",
)  # of words; the first that fits counts


@cache
def _words() -> re.Pattern[str]:
    """Return a pattern with a group for each kind of word."""
    of: dict[str, list[str]] = {}
    for line in WORDS.read_text("utf-8").splitlines():
        kind, *words = line.split()
        if kind != "#":
            of.setdefault(kind, []).extend(folded(word) for word in words)
    kinds = (f"(?P<{kind}>{'|'.join(_alternatives(of[kind]))})" for kind in KINDS)
    return re.compile("|".join(kinds))


def _alternatives(words: Iterable[str]) -> Iterator[str]:
    """Yield patterns: of words in scripts with spaces together, and of others, which may begin and end anywhere."""
    ends: dict[str, list[str]] = {r"\w*": [], "": []}
    anywhere: list[str] = []
    for word in sorted(set(words), key=len, reverse=True):
        plain = re.escape(word.strip("*")).replace("_", r"[\s\u00a0]+")
        is_spaced = re.match(r"[*a-z\u00df-\u097f]", word)
        if word[0] == "*":
            plain = rf"\w*{plain}"
        (ends[r"\w*" if word.endswith("*") else ""] if is_spaced else anywhere).append(plain)
    yield from _by_first(anywhere)
    yield from (rf"\b(?:{'|'.join(_by_first(plain))}){end}(?!\w)" for end, plain in ends.items() if plain)


def _by_first(patterns: Iterable[str]) -> Iterator[str]:
    """Yield one pattern for all that begin with the same letter: most places of a text need to try none then."""
    rests: dict[str, list[str]] = {}
    for pattern in patterns:
        first = 1 if pattern[0].isalpha() else 0
        rests.setdefault(pattern[:first], []).append(pattern[first:])
    yield from (rf"{first}(?:{'|'.join(rest)})" for first, rest in rests.items())


def find(text: str, near: Iterable[Span], forms: tuple[Form, ...] = ()) -> Iterator[Span]:
    """Yield the positions of telephone numbers in these parts of a text, which are near digits; none overlaps.

    `forms` are those of the countries that the text comes from, if they are known.
    """
    done = 0
    for start, end in near:
        formed = sorted(
            match.span("it")
            for pattern, is_meant in _FORMS
            for match in pattern.finditer(text, start, end)
            if is_meant(match)
        )
        for first, last in sorted([*formed, *_announced(text, start, end, formed, done, forms)]):
            if first >= done:
                extension = _EXTENSION.match(text, last)
                done = extension.end() if extension else last
                yield first, done


def digits_of(text: str) -> str:
    return re.sub("[^0-9]+", "", text)


def before(match: re.Match[str], characters: int) -> str:
    """Return the characters before the match's group `it`."""
    start = match.start("it")
    return match.string[max(0, start - characters) : start]


def _is_international_phone(match: re.Match[str]) -> bool:
    number = re.sub(r"&\w+;|&#\d+;|%2[Bb]", lambda sign: " " if sign[0] in ("&nbsp;", "&#160;") else "+", match["it"])
    digits = digits_of(re.sub(r"\(0\)", "", number))
    digits = digits.removeprefix("00") if number.startswith("00") else digits
    # E.164: at most 15 digits including the country code. "00" also begins times, ids and arrays, so with it the number
    # must have separators.
    if number.startswith("00") and (not re.search(_SEPARATOR, number) or re.search(r"\d[ .\-:]\Z", before(match, 2))):
        return False
    if not 8 <= len(digits) <= 15:
        return False
    # A number that no country gives out may be wrongly written; digits in threes are an amount.
    is_written = (
        len(digits) >= 10 and number[0] != "0" and re.search(_SEPARATOR, number) and not _AMOUNT.fullmatch(number)
    )
    return is_international(digits) or bool(is_written and has_country(digits))


def _is_north_american_phone(match: re.Match[str]) -> bool:
    number = match["it"]
    area, exchange = digits_of(number)[-10:-7], digits_of(number)[-7:-4]
    # N11 are service codes; numbers in columns are a table
    if area[1:] == "11" or exchange[1:] == "11":
        return False
    if (
        "(" not in number
        and not re.match(r"1[ .\-]8", number)
        and (OTHER_NUMBER.search(before(match, 24)) or _nearest(before(match, 24))[0] == "other")
    ):
        return False
    after = match.string[match.end("it") : match.end("it") + 4]
    return not re.search(r"\d[ \t]+\Z", before(match, 4)) and not re.match(r"[ \t]+\d", after)


_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], bool]], ...] = (
    (_INTERNATIONAL, _is_international_phone),
    (_LINKED, lambda match: is_international(digits_of(match["it"].replace("%2B", "")))),
    (_RUSSIAN, lambda match: len(digits_of(match["it"])) == 11),
    (_NORTH_AMERICAN, _is_north_american_phone),
)


def _announced(
    text: str, start: int, end: int, found: list[Span], last: int, forms: tuple[Form, ...]
) -> Iterator[Span]:
    """Yield the numbers of a part of a text that a word, their form or the number before announces.

    `found` are the numbers with a form of their own, in order. They may be thousands, so they are searched by halves.
    """
    begins, stops = [begin for begin, _ in found], sorted(stop for _, stop in found)
    furthest = list(accumulate((stop for _, stop in found), max))
    for run in _RUN.finditer(text, start, end):
        earlier = bisect_left(begins, run.end("it"))
        if len(digits_of(run["it"])) < 6 or (earlier and furthest[earlier - 1] > run.start("it")):
            continue
        for piece in _pieces(run):
            if ended := bisect_right(stops, piece[0][0]):
                last = max(last, stops[ended - 1])
            for stop in _ends(text, piece):
                span = (piece[0][0], stop)
                if _is_announced(text, span, last, forms, is_whole=stop == piece[-1][1]):
                    last = stop
                    yield span
                    break


def _pieces(run: re.Match[str]) -> Iterator[list[Span]]:
    """Yield the groups of digits of each number in a run: it is parted where both sides are long enough for one."""
    base, text = run.start("it"), run["it"]
    groups = [(match.start(), match.end()) for match in _GROUP.finditer(text)]
    sizes = [end - start for start, end in groups]
    first = 0
    for place in range(1, len(groups)):
        between = text[groups[place - 1][1] : groups[place][0]]
        is_parted = _PARTED.fullmatch(between) or (between.isspace() and text[groups[place][0]] == "0")
        is_counter = (
            place == first + 1 and sizes[first] <= 2 and between == " " and text[groups[place][0]] == "0"
        ) and not _GROUPED.fullmatch(text[groups[first][0] : groups[-1][1]])
        is_remark = between.endswith(" (") and ")" not in text[groups[place][1] :]  # an hour or a year in brackets
        after = sum(sizes[place:])
        if (
            (is_parted and after >= 6 and sum(sizes[first:place]) >= 6)
            or (is_remark and sum(sizes[first:place]) >= 9)
            or (is_counter and after >= 9)
        ):
            yield _with_brackets(text, groups[first:place], base)
            first = place
    yield _with_brackets(text, groups[first:], base)


def _with_brackets(text: str, groups: list[Span], base: int) -> list[Span]:
    """Return the groups at their places in the whole text; the first begins with its `(` and `+`."""
    start = groups[0][0]
    if start and text[start - 1] == "+":
        start -= 1
    if start and text[start - 1] == "(" and ")" in text[start : groups[-1][0]]:
        start -= 1
    return [(base + start, base + groups[0][1]), *((base + one, base + end) for one, end in groups[1:])]


def _ends(text: str, groups: list[Span]) -> Iterator[int]:
    """Yield where a number may end: with its last group, or with one before if the rest is something else."""
    start, end = groups[0][0], groups[-1][1]
    if not _DATE.match(text[start:end]) and not _YEARS.match(text[start:end]):
        yield end
        for _, stop in reversed(groups[:-1]):
            if len(digits_of(text[start:stop])) >= 7:
                yield stop


def _is_announced(text: str, span: Span, last: int, forms: tuple[Form, ...], *, is_whole: bool) -> bool:
    """Whether the word before digits, their form or the number before says that they are a telephone number."""
    start, end = span
    number = text[start:end]
    digits = digits_of(number)
    if not 6 <= len(digits) <= 16 or _GOES_ON.match(text, end) or _POSTCODE.match(number):
        return False
    if _MONEY.search(text, max(0, start - 6), start) or _UNIT.match(text, end):
        return False
    clause = text[max(last, start - _MOST_BEFORE) : start]
    placeholder = clause.rfind("<PHONE>")
    clause, is_next = (clause, last > 0) if placeholder < 0 else (clause[placeholder + 7 :], True)
    word, between = _nearest(clause)
    if word in ("other", "counted"):
        return False
    if not is_whole and word not in ("said", "label"):
        return False
    after = text[end : end + _MOST_AFTER]
    if word and not re.search(r"\d{3}", between) and _fits(number, digits, word, between, after):
        return not (_is_amount(number) and _names_other(clause))
    if is_next and len(clause) < 24 and _NEXT.match(clause) and len(digits) >= (7 if _is_dialled(number) else 9):
        return is_national(digits)
    if not 8 <= len(digits) <= 12:
        return False
    kind = written(number, forms)
    is_code = number.isdigit() and word in ("booked", "number")
    if kind and not is_code and _is_set_off(text, span, clause, kind):
        return True
    if len(digits) < 9:
        return False
    after = after.partition("<")[0]
    kind, between = _first(after)
    if kind in ("said", "label") and (between == " (" or (kind == "said" and _is_dialled(number))):
        return is_national(digits, is_local=between == " (")
    is_alone = not _OTHER_BEFORE.search(clause) and not _MORE.match(after)
    if not is_alone or _is_ascending(number):
        return False
    if _CHINESE.match(number) and re.search(r"[\u4e00-\u9fff：] ?\Z", clause):
        return True
    return bool(_SELF_SAID.match(number) or (_TRUNK.match(number) and _has_code(number, digits, forms)))


def _is_set_off(text: str, span: Span, clause: str, kind: str) -> bool:
    """Whether a number in a form of its country stands as telephone numbers do: apart, or right behind a name.

    `kind` is how it is written. With a national prefix and groups it may stand anywhere.
    """
    start, end = span
    number = text[start:end]
    beside = _COUNTER.sub("", clause) if kind in ("prefixed", "led") else clause
    is_other = _OTHER_BEFORE.search(beside) or OTHER_NUMBER.search(clause) or _MORE.match(text, end)
    if is_other or _is_ascending(number) or _OTHER_FORM.fullmatch(number):
        return False
    if kind == "prefixed":
        return True
    is_apart = _APART_AFTER.match(text, end) is not None
    is_in_threes, is_bare = _GROUPED.fullmatch(number) is not None, number.isdigit()
    is_behind = _is_behind_name(clause, is_bare=is_bare, is_in_threes=is_in_threes)
    if kind == "led" and is_bare:
        return is_apart or is_behind or _SHORT_WORD.search(clause) is not None
    if kind == "grouped" and not is_in_threes and _IN_GROUPS.match(number):
        return is_apart or is_behind
    is_code = kind in ("bare", "led") and "-" in number  # as numbers of parts are written
    return is_apart and is_behind and not is_code and not (is_in_threes and _in_threes(text, start, end))


def _has_code(number: str, digits: str, forms: tuple[Form, ...]) -> bool:
    """Whether a number has an area code in brackets, or a national prefix as a country writes it.

    In a text of other countries it must be one of ten digits, as most are.
    """
    if number[0] == "(":
        return is_national(digits, is_local=False)
    is_own = written(number, forms) in ("prefixed", "grouped")
    return is_own or (len(digits) >= (10 if forms else 9) and written(number, every_form()) in ("prefixed", "grouped"))


def _is_behind_name(clause: str, *, is_bare: bool, is_in_threes: bool) -> bool:
    """Whether a text ends with a sign, or with a name: a word in capitals or of a script that has none.

    The first word of a sentence is no name of the owner of bare digits. One without capitals is none of an amount's.
    """
    before = clause.rstrip(" \t\u00a0")
    word = _LAST_WORD.search(before)
    if word is None:
        return not (before[-1:].isalnum() or (is_bare and _VALUE.search(before)))
    first = word[0][0]
    if not first.isupper():
        return not first.islower() and not is_in_threes
    return not is_bare or before[: word.start()].rstrip()[-1:] not in ("", ".", "!", "?")


def _in_threes(text: str, start: int, end: int) -> bool:
    """Whether another amount in groups of three stands beside a number."""
    beside = text[max(0, start - _MOST_BEFORE) : start], text[end : end + _MOST_AFTER]
    return any(_THOUSANDS.search(one) for one in beside)


def _is_amount(number: str) -> bool:
    """Whether digits may be a number of things: in threes, or few of them together."""
    return bool(_GROUPED.fullmatch(number)) or (number.isdigit() and number[0] != "0" and len(number) < 9)


def _names_other(clause: str) -> bool:
    return any(match.lastgroup == "other" for match in _words().finditer(folded(clause)))


def _fits(number: str, digits: str, word: str, between: str, after: str) -> bool:
    """Whether a number is one that this kind of word announces over the text between them."""
    words = re.findall(r"\w+", between)
    is_direct = sum(len(one) > 3 for one in words) == 0 and len(words) <= 2 and (not words or "\n" not in between)
    is_marked = is_direct and between.rstrip().endswith((":", "：", "."))
    if word == "number":
        return (
            len(words) <= 5
            and bool(_TRUNK.match(number) or re.match(r"\+|1[3-9]\d{9}\Z", number))
            and is_national(digits)
        )
    if word == "label" and not is_direct and (between[:1] not in (".", ":") or len(words) > 3):
        word = "perhaps"
    if word in ("about", "booked") and _is_counted(number, word, between, after):
        return False
    if word in ("perhaps", "about", "booked") and not (is_marked and (word == "perhaps" or not number.isdigit())):
        return (
            len(words) <= 8
            and not (_GROUPED.fullmatch(number) and len(digits) != 9)
            and _is_dialled(number)
            and is_national(digits, is_local=False)
        )
    if len(digits) == 6:
        return (
            is_direct
            and word in ("said", "label")
            and not words
            and not (number.isdigit() and ":" not in between and "." not in between)
        )
    # Nine digits in threes are a number of Spain, Poland and others; other numbers in threes are mostly amounts.
    is_near = len(words) <= 4 if len(digits) == 9 else not words
    if _is_amount(number) and not is_marked and (not is_near or (len(digits) != 9 and re.match(r"\s\w|[.,]\d", after))):
        return False
    return (
        is_national(digits)
        or is_international(digits.removeprefix("00"))
        or is_international(digits.removeprefix("011"))
    )


def _is_dialled(number: str) -> bool:
    return bool(_DIALLED.match(number) or PAIRS_OF_EIGHT.match(number))


def _is_counted(number: str, word: str, between: str, after: str) -> bool:
    """Whether digits beside a word such as `office` or `bookings` say how many there are, or which booking is meant."""
    is_bare = number.isdigit()
    is_code = word == "booked" and (_NUMERAL.match(between) or (is_bare and not between.strip()))
    is_count = _GROUPED.fullmatch(number) and _THINGS.match(after)
    return bool(is_code or is_count or (is_bare and number[0] != "0" and len(between.split()) > 4))


def _is_ascending(number: str) -> bool:
    """Whether groups of two digits grow to 50 at most, as those of a lottery do."""
    groups = _GROUP.findall(number)
    is_row = all(len(group) == 2 for group in groups) and len(set(re.findall(r"\D+", number))) == 1
    return is_row and groups == sorted(set(groups)) and groups[-1] <= "50"


@lru_cache(maxsize=2)  # for all ends that a number may have, the clause is the same
def _nearest(clause: str) -> tuple[str, str]:
    """Return the kind of the last known word of a text that no clause ends after, and the text after it.

    A word that may mean another thing has the kind of a word right before it, as in `telephone number`.
    """
    plain = folded(clause)
    words = list(_words().finditer(plain))
    if not words:
        return "", ""
    between, kind = plain[words[-1].end() :], str(words[-1].lastgroup)
    ends = re.search(r"\w", between) and _CLAUSE_ENDS.search(between.lstrip("."))
    if ends or between.count("\n") > 1:
        return "", ""
    if kind == "booked" and _CODED.search(words[-1][0]):
        return "other", between
    if kind in ("perhaps", "about", "booked", "number") and len(words) > 1:
        earlier, within = str(words[-2].lastgroup), plain[words[-2].end() : words[-1].start()].split()
        is_near = len(within) <= 5
        if {kind, earlier} == {"booked", "number"} and len(within) <= (kind == "booked"):
            is_said = kind == "booked" and len(words) > 2 and words[-3].lastgroup in ("said", "label", "perhaps")
            return ("said" if is_said else "other"), between
        if is_near and (earlier in ("said", "label", "other") or (kind, earlier) == ("number", "perhaps")):
            return ("other" if earlier == "other" else "said"), between
    return kind, between


def _first(after: str) -> tuple[str, str]:
    """Return the kind of the first known word after a number in its clause, and the text before it."""
    plain = folded(after)
    end = _SHUT.search(plain)
    within = end.start() if end else len(plain)
    match = _words().search(plain) if plain[:within].strip() else None
    if match is None or match.lastgroup is None or match.start() > within:
        return "", ""
    return match.lastgroup, plain[: match.start()]


def is_named(match: re.Match[str]) -> bool:
    """Whether a word for telephone announces what the match's group `it` holds."""
    return _nearest(before(match, _MOST_BEFORE))[0] in ("said", "label")
