"""Find personal data by form and checksum, replace it by a typed placeholder such as `<EMAIL>`, and count it.

The data found is never returned, logged or stored: `redact` returns the new text and counts. A pattern finds a
candidate, and a check decides (Luhn, mod 97, address ranges, the text before it), so that versions, hashes, ISBNs and
dates stay. Names and postal addresses are not searched for. docs/filters.md has the figures.
"""

from __future__ import annotations

import ipaddress
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from html import unescape
from math import prod
from urllib.parse import unquote

from training.data.filter import telephones
from training.data.filter.telephone_plans import forms_of
from training.data.filter.telephones import LETTERS, OTHER_NUMBER, PAIRS_OF_EIGHT, before, digits_of
from training.data.public_suffixes import is_top_level

PLACEHOLDERS = {
    "email": "<EMAIL>",
    "phone": "<PHONE>",
    "ip": "<IP_ADDRESS>",
    "card": "<CARD_NUMBER>",
    "iban": "<IBAN>",
    "api_key": "<API_KEY>",
    "national_id": "<NATIONAL_ID>",
}
"""The kinds there are and what stands in their place."""


Span = tuple[int, int]


def redact(text: str, kinds: Collection[str], *, language: str = "", url: str = "") -> tuple[str, dict[str, int]]:
    """Return the text with personal data of these kinds replaced, and the number replaced of each kind found.

    The language and the address tell in which countries' forms telephone numbers are written.
    Applied again it changes nothing, unless numbers stand together without a sign between them.
    """
    counts: dict[str, int] = {}
    plain = _in_plain_digits(text)
    forms = forms_of(language, _top_of(url))

    def find_telephones(text: str) -> Iterator[Span]:
        return telephones.find(text, _near_digits(text), forms)

    # in this order, because a secret may contain an e-mail address, for example
    for kind, find in (*_FINDERS, ("phone", find_telephones)):
        if kind in kinds and (spans := list(find(plain))):
            text, plain = (_replaced(one, spans, PLACEHOLDERS[kind]) for one in (text, plain))
            counts[kind] = counts.get(kind, 0) + len(spans)
    return text, counts


def _top_of(url: str) -> str:
    """Return the country's top-level domain of an address; "" if it has none."""
    top = re.match(r"(?i)\w+://[^/?#:]*\.([a-z]{2})(?![^/?#:])", url)
    return top[1].lower() if top else ""


_DIGITS_OF_SCRIPTS = "".join(
    f"{chr(code)}-{chr(code + 9)}" for code in range(0x80, 0xFFFF) if unicodedata.decimal(chr(code), None) == 0
)
_HAS_WIDE_DIGITS = re.compile(f"[{_DIGITS_OF_SCRIPTS}\uff08\uff0b\uff20]")  # or a full-width bracket, plus or @
_WIDE = re.compile(f"[{_DIGITS_OF_SCRIPTS}\uff01-\uff5e\u3000]+")


def _in_plain_digits(text: str) -> str:
    """Return the text, of the same length, with ASCII digits for those of other scripts and for full-width characters.

    A text without such digits and without a full-width bracket, plus or @ stays as it is.
    """
    if text.isascii() or not _HAS_WIDE_DIGITS.search(text):
        return text
    return _WIDE.sub(lambda match: "".join(map(_plain_character, match[0])), text)


def _plain_character(character: str) -> str:
    digit = unicodedata.decimal(character, None)
    return unicodedata.normalize("NFKC", character) if digit is None else str(digit)


def _replaced(text: str, spans: Iterable[Span], placeholder: str) -> str:
    parts: list[str] = []
    end = 0
    for start, stop in spans:
        parts += [text[end:start], placeholder]
        end = stop
    return "".join([*parts, text[end:]])


def _finding(pattern: re.Pattern[str], is_meant: Callable[[re.Match[str]], bool]) -> Callable[..., Iterator[Span]]:
    """Return a function that yields the position of each match of `pattern` in a text that `is_meant` accepts.

    The position is that of the pattern's group `it`. The function also takes where in the text to begin and to end.
    """

    def find(text: str, start: int = 0, end: int = sys.maxsize) -> Iterator[Span]:
        return (match.span("it") for match in pattern.finditer(text, start, end) if is_meant(match))

    return find


# At least four digits, with at most eight other characters between two.
_DIGITS = re.compile(r"\d(?:[^\d\n]{0,8}\d){3,}")
_BESIDE = 4  # characters before and after that may belong to a number, or that its pattern inspects


@lru_cache(maxsize=2)
def _near_digits(text: str) -> tuple[Span, ...]:
    """Return the parts of a text that may contain numbers of at least four digits, with some context.

    Each part is (start, end).
    """
    return tuple((max(0, match.start() - _BESIDE), match.end() + _BESIDE) for match in _DIGITS.finditer(text))


def _finding_numbers(
    pattern: re.Pattern[str], is_meant: Callable[[re.Match[str]], bool], *, more_before: int = 0
) -> Callable[[str], Iterator[Span]]:
    """Like `_finding`, for patterns that match at least four digits, at most eight other characters apart.

    The pattern is only applied near such digits, from `more_before` characters before the usual context on. This gives
    the same spans in a tenth of the time, because most text has no numbers.
    """
    find_near = _finding(pattern, is_meant)

    def find(text: str) -> Iterator[Span]:
        for start, end in _near_digits(text):
            yield from find_near(text, max(0, start - more_before), end)

    return find


def _after(match: re.Match[str], characters: int) -> str:
    end = match.end("it")
    return match.string[end : end + characters]


# Combining marks, and the joiners between them, of the scripts of domain names: Latin to Arabic, those of India, Thai,
# Lao, Tibetan, Burmese, Khmer. In the blocks of India these are also the letters, but not the full stops.
_MARKS = (
    r"\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    r"\u0900-\u0963\u0966-\u096f\u0971-\u0dff\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ecd"
    r"\u0f71-\u0f84\u102b-\u103e\u17b4-\u17d3\u200c\u200d"
)

# E-mail

# Read backwards and forwards from each @, which is rare; a pattern that begins with the name would be tried at every
# letter.
_NAME = re.compile(rf"(?<![{LETTERS}])[{LETTERS}_](?:[{LETTERS}._%+\-]{{0,62}}[{LETTERS}_\-+])?\Z")
# A name that ends in a letter of another script. If that script has no spaces, the words before the name belong to it.
_NAME_IN_OTHER_SCRIPT = re.compile(rf"(?:[^\W_]|[{_MARKS}._%+\-]){{0,63}}(?:[^\W_{LETTERS}]|[{_MARKS}])\Z")
_USER_OF_URL = re.compile(r"://(?:[^\s/@:]{1,64}:)?\Z")  # the text before user@host in a URL
# The top-level domains that are in other letters than ASCII (IANA root zone); as `xn--` they are recognized by that.
_WIDE_TOP = """
    vermögensberater vermögensberatung ελ ευ бг бел дети ею католик ком мкд мон
    москва онлайн орг рус рф сайт срб укр қаз հայ ישראל קום ابوظبي ارامكو الاردن
    البحرين الجزائر السعودية السعوديه السعودیة السعودیۃ العليان المغرب اليمن امارات ايران ایران بارت بازار بيتك
    بھارت تونس سودان سوريا سورية شبكة عراق عرب عمان فلسطين قطر كاثوليك كوم مصر مليسيا موريتانيا موقع همراه
    پاكستان پاکستان ڀارت कॉम नेट भारत भारतम् भारोत संगठन বাংলা ভারত ভাৰত ਭਾਰਤ ભારત ଭାରତ இந்தியா இலங்கை
    சிங்கப்பூர் భారత్ ಭಾರತ ഭാരതം ලංකා คอม ไทย ລາວ გე みんな アマゾン クラウド グーグル コム ストア セール
    ファッション ポイント 世界 中信 中国 中國 中文网 亚马逊 企业 佛山 信息 健康 八卦 公司 公益 台湾 台灣 商城
    商店 商标 嘉里 嘉里大酒店 在线 大拿 天主教 娱乐 家電 广东 微博 慈善 我爱你 手机 招聘 政务 政府 新加坡 新闻
    时尚 書籍 机构 淡马锡 游戏 澳門 澳门 点看 移动 组织机构 网址 网店 网站 网络 联通 臺灣 谷歌 购物 通販 集团
    電訊盈科 飞利浦 食品 餐厅 香格里拉 香港 닷넷 닷컴 삼성 한국
""".split()
_LABEL = rf"[^\W_](?:[^\W_]|[{_MARKS}\-]){{0,62}}"
_TOP = rf"[Xx][Nn]--[A-Za-z0-9-]{{1,59}}|[A-Za-z]{{2,24}}|{'|'.join(sorted(_WIDE_TOP, key=len, reverse=True))}"
_HOST = re.compile(rf"(?:{_LABEL}\.)+(?:{_TOP})(?![{LETTERS}{_MARKS}@])")
# How people write @ and the dot in words, in the languages in which they do.
_AT_WORD = (
    r"at|ät|arroba|arobase|chiocciola|kukac|ma[łl]pa|zavin[aá][čc]|ätt|alfakr[øo]ll|snabel-?a|apenstaartje"
    r"|собака|собачка|маймунско"
)
_DOT_WORD = r"dot|dott|punkt|punto|point|ponto|punt|kropka|te[čc]ka|bodka|piste|pont|nokta|точка|крапка"
_AT, _DOT = (
    rf"(?: ?[\[({{<] ?(?:{_AT_WORD}|ad|@) ?[\])}}>] ?|\(a\)|@)",
    rf"(?: ?[\[({{<] ?(?:{_DOT_WORD}|\.) ?[\])}}>] ?| (?:{_DOT_WORD}) |\.)",
)
_DOT_IN_BRACKETS = rf" ?[\[({{<] ?(?:{_DOT_WORD}|\.) ?[\])}}>] ?"
_END_OF_HOST = rf"(?:[A-Z0-9-]{{1,63}}{_DOT}){{0,4}}?[A-Z]{{2,24}}(?![\w@]|\.\w|{_DOT_IN_BRACKETS}[A-Z]{{2,24}}(?!\w))"
_REST_OF_HOST = re.compile(rf"(?i){_DOT_IN_BRACKETS}{_END_OF_HOST}")
_BRACKETED = re.compile(rf"[\[({{<] ?(?:{_AT_WORD}|ad|@|{_DOT_WORD}|\.|(?<=\w\()a(?=\)\w)) ?[\])}}>]")
_AT_SIGN = re.compile(rf"(?i){_AT}")
_WRITTEN_NAME = re.compile(rf"(?i)(?<![\w.])[A-Z0-9](?:[\w+-]|{_DOT}(?=\w)){{0,63}}+\Z")
_WRITTEN_HOST = re.compile(rf"(?i)[A-Z0-9-]{{1,63}}{_DOT}{_END_OF_HOST}")
_WRITTEN_DOT = re.compile(rf"(?i){_DOT}")
# Suffixes of files and systemd units that follow an @ in other notations (logo@2x.png, getty@tty1.service); none is a
# top-level domain.
_NOT_DOMAINS = frozenset(
    """
    png jpg jpeg gif svg webp css js ts jsx tsx html htm json xml yaml yml txt conf cfg service socket target timer
    mount device slice path local localdomain localhost internal lan
    """.split()
)


def _find_emails(text: str) -> Iterator[Span]:
    """Yield the addresses with a plain @ and a plain dot behind it; the host may go on behind a dot in brackets."""
    at = text.find("@")
    while at >= 0:
        host = _HOST.match(text, at + 1)
        if host:
            before = text[max(0, at - 65) : at]
            name = _NAME.search(before) or _NAME_IN_OTHER_SCRIPT.search(before)
            if name and _is_email(text, at - len(name[0]), host):
                rest = _REST_OF_HOST.match(text, host.end())
                goes_on = rest is not None and is_top_level(re.split(r"\W+", rest[0].rstrip("])}> "))[-1])
                yield at - len(name[0]), (rest if goes_on and rest else host).end()
        at = text.find("@", host.end() if host else at + 1)


def _find_written_emails(text: str) -> Iterator[Span]:
    """Yield the addresses with an @ or a dot that is written in brackets, read from each @ as in `_find_emails`."""
    folded = _lower(text)
    if not _BRACKETED.search(folded):
        return
    done = 0
    for at in _AT_SIGN.finditer(text):
        host = _WRITTEN_HOST.match(text, at.end())
        if not host or (at[0] == "@" and _HOST.match(text, at.end())):
            continue
        name = _WRITTEN_NAME.search(text, max(done, at.start() - 100), at.start())
        if name and _BRACKETED.search(folded, name.start(), host.end()):
            yield name.start(), (done := _end_of_host(host))


def _end_of_host(host: re.Match[str]) -> int:
    """Return where a written host ends: with its last top-level domain, or where it was read to if it has none."""
    end = host.end()
    for dot in reversed([*_WRITTEN_DOT.finditer(host.string, host.start(), host.end())]):
        if is_top_level(host.string[dot.end() : end]):
            return end
        end = dot.start()
    return host.end()


def _is_email(text: str, start: int, host: re.Match[str]) -> bool:
    if host[0].rpartition(".")[2].lower() in _NOT_DOMAINS or _USER_OF_URL.search(text[max(0, start - 80) : start]):
        return False
    # git@host:path names a repository, not a person
    return not (text.startswith(("git@", "hg@", "svn@"), start) and text[host.end() : host.end() + 1] in (":", "/"))


_TOP_SAID = "[A-Z]{2}|com|org|net|edu|gov|info|name|dev|app|mil|int"
_SAID = re.compile(
    rf"(?i)(?<![\w.@])(?P<it>(?P<name>[A-Z0-9][\w.+-]{{0,63}})(?: (?:{_DOT_WORD}) [\w.+-]{{1,63}}){{0,2}}"
    rf"(?: (?:{_AT_WORD}) |@)[A-Z0-9-]{{1,63}}(?:(?: (?:{_DOT_WORD}) |\.)[A-Z0-9-]{{1,63}}){{0,3}}"
    rf" (?:{_DOT_WORD}) (?:{_TOP_SAID}))(?![\w@])"
)
# A part of each, which is searched for first because it is rare.
_HAS_SAID = re.compile(rf" (?:{_DOT_WORD}) (?:{_TOP_SAID.lower()})\b".replace("A-Z", "a-z"))
_HAS_MAILED = re.compile(rf" at (?:[a-z0-9-]{{1,63}}\.)+(?:{_TOP_SAID})\b".replace("A-Z", "a-z"))
_HAS_SPACED = re.compile(rf"@ ?(?:(?<= @)|(?<=@ ))(?:[a-z0-9-]{{1,63}}\.)+(?:{_TOP_SAID})\b".replace("A-Z", "a-z"))
# With the sign itself, any top-level domain that exists.
_SIGN_SAID = re.compile(
    rf"(?i)(?<![\w.@])(?P<it>[A-Z0-9][\w.+-]{{0,63}}@[A-Z0-9-]{{1,63}}"
    rf"(?:(?: (?:{_DOT_WORD}) |\.)[A-Z0-9-]{{1,63}}){{0,3}} (?:{_DOT_WORD}) (?P<top>[A-Z]{{3,24}}))(?![\w@])"
)
_HAS_SIGN_SAID = re.compile(rf"@[a-z0-9.-]{{1,63}} (?:{_DOT_WORD}) ")
# Archives of mailing lists write `john.doe at example.org`; others put blanks around the sign.
_MAILED = re.compile(
    rf"(?i)(?<![\w.@/])(?P<it>(?P<name>[A-Z0-9][\w.+-]{{0,63}})(?: at | ?@ | @)"
    rf"(?:[A-Z0-9-]{{1,63}}\.)+(?:{_TOP_SAID}))(?![\w@/]|\.\w)"
)
_ROLES = frozenset(
    "admin contact enquiries help info kontakt mail office postmaster sales service support webmaster".split()
)
_MAIL_WORD = re.compile(
    r"(?i)(?:e-?mails?|mails?|mailto|correo|courriel|posta|почта|contact|kontakt|from|write to)\W{1,4}(?:\w+ )?\W*\Z"
)
# Before "at example dot com" these speak of a site, not of a person.
_NO_NAMES = frozenset(
    """
    a an and are available be find found go hosted i in is it located look looking me more now of on online or out page
    read reach see site that the this to up us visit was we website web you
    """.split()
)
_ENCODED_SIGN = re.compile(r"(?i)&(?:amp;)?(?:#0*64|#x0*40|commat);|%(?:25)?40|\\(?:u00|x)40")
_ENCODED = re.compile(
    r"(?:&(?:amp;)?#[xX]?[0-9A-Fa-f]{1,7};|&(?:amp;)?(?:commat|period|hyphen|lowbar);|%(?:25)?(?:40|2[BbDdEe]|5[Ff])"
    r"|\\(?:u00|x)(?:40|2[BbDdEe])|[\w.+\-@])+"
)


@lru_cache(maxsize=2)
def _lower(text: str) -> str:
    """Return the text in lower case, or as it is where that would move its characters."""
    lower = text.lower()
    return lower if len(lower) == len(text) else text


def _beside(
    sign: re.Pattern[str], pattern: re.Pattern[str], is_meant: Callable[[re.Match[str]], bool]
) -> Callable[[str], Iterator[Span]]:
    """Return a function that yields what `is_meant` accepts of a pattern's matches beside `sign`, which is rare.

    The sign is written in lower case. What is near to several signs is searched once.
    """

    def find(text: str) -> Iterator[Span]:
        done = 0
        for start, end in _around(sign.finditer(_lower(text))):
            for match in pattern.finditer(text, max(done, start), end):
                whole = match if match.end() < end else pattern.match(text, match.start(), end + 200)  # it may go on
                if whole is not None and is_meant(whole):
                    yield whole.span("it")
                    done = whole.end("it")

    return find


def _around(matches: Iterable[re.Match[str]]) -> Iterator[Span]:
    """Yield the parts of a text that lie within 200 characters of a match; those that touch are one."""
    start = end = 0
    for match in matches:
        if match.start() - 200 > end:
            yield start, end
            start = match.start() - 200
        end = match.end() + 200
    yield start, end


def _is_said(match: re.Match[str]) -> bool:
    """Whether a name before `at host dot com` is that of a mailbox; `at this point in` has words of two languages."""
    return match["name"].lower() not in _NO_NAMES and not re.search(
        r"(?i) at .* (?:point|pont|piste|ponto|punt|nokta) ", match["it"]
    )


def _is_mailed(match: re.Match[str]) -> bool:
    """Whether a name before ` at host` is that of a mailbox: it has a sign that words lack, or a word says so."""
    name = match["name"].lower()
    is_one = re.search(r"[a-z].*[._+\d]|[._+\d].*[a-z]", name.rstrip("."))
    is_said = name in _ROLES or _MAIL_WORD.search(before(match, 24))
    return name not in _NO_NAMES and bool(is_one or is_said)


_ESCAPED = re.compile(r"\\(?:u00|x)([0-9A-Fa-f]{2})")


def _find_encoded_emails(text: str) -> Iterator[Span]:
    """Yield the addresses whose @ is an entity of HTML or percent-encoded, other characters of them too."""
    if not _ENCODED_SIGN.search(text):
        return
    for match in _ENCODED.finditer(text):
        if _ENCODED_SIGN.search(match[0]):
            plain = unquote(unquote(unescape(unescape(_ESCAPED.sub(r"%\1", match[0]))))).strip(".")
            if [(0, len(plain))] == list(_find_emails(plain)):
                yield match.start(), match.end() - (len(match[0]) - len(match[0].rstrip(".")))


# Internet address

_IPV4 = re.compile(r"(?<![\w.\-])(?P<it>\d{1,3}(?:\.\d{1,3}){3})(?![\w]|\.[A-Za-z0-9]|-\d)")
# The lookbehind comes after the first character, because searching for a character is fast and for a lookbehind is not.
_IPV6 = re.compile(r"(?P<it>[23](?<![\w:.].)[0-9a-fA-F]{3}:[0-9a-fA-F:]{2,34}[0-9a-fA-F:])(?![\w:]|\.\d)")
_GLOBAL_IPV6 = ipaddress.ip_network("2000::/3")
_SMALLEST_LIKELY = 20  # with three of four numbers below this it is a version or section; so are 2 in 1,000 addresses
_NUMBERED = re.compile(
    r"(?i)(?:\bv(?:er(?:sion)?s?)?\.?|\brel(?:ease)?|\bbuild|\bkernel|\blinux|\bpatch|\bfirmware|\bdriver|\bpackage|\bsections?|\bchapter"
    r"|\bclause|\btable|\bfigure|\bappendix|\boid|\bupgrad\w+ to|\bupdat\w+ to|§|[A-Za-z_]/|[<>=~^]=?)[ \t\u00a0]*\Z"
)
# Where an address is assigned, an equals sign is no sign of a version.
_ASSIGNED_TO_ADDRESS = re.compile(
    r"(?i)(?<![a-z])(?:ip|ipv4|addr|address|host|server|dns|gateway)[\"']?[ \t]*=[ \t]*[\"']?\Z"
)
_ADDRESSED = re.compile(r"(?i)(?:\bip|\bipv4|\baddress(?:es)?|\bhost|\bserver|\bfrom|\bping|\bssh|://)\W{0,3}\Z")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_public_ipv4(match: re.Match[str]) -> bool:
    if not _is_address(match["it"]):
        return False
    address = ipaddress.ip_address(match["it"])
    if not address.is_global or address.is_multicast:
        return False  # private, local, documentation and multicast addresses belong to nobody
    text = before(match, 30)
    if _ASSIGNED_TO_ADDRESS.search(text):
        return True
    if _NUMBERED.search(text):
        return False
    if PAIRS_OF_EIGHT.match(match["it"]) and telephones.is_named(match):
        return False
    parts = [int(part) for part in match["it"].split(".")]
    if parts[-1] == 0:
        return False  # a network or a version, not a host
    is_small = sum(part < _SMALLEST_LIKELY for part in parts) >= 3
    return bool(_ADDRESSED.search(text)) if is_small else True


def _is_public_ipv6(match: re.Match[str]) -> bool:
    if match["it"].count(":") < 3 and "::" not in match["it"]:
        return False
    if not _is_address(match["it"]):
        return False
    address = ipaddress.ip_address(match["it"])
    return address in _GLOBAL_IPV6 and address.is_global and _after(match, 1) != "/"


# Payment card and bank account

_CARD = re.compile(
    r"(?<![\w.\-+/=])(?P<it>\d{4}(?P<s>[ \-\u00a0])\d{4}(?P=s)\d{4}(?P=s)\d{1,7}"
    r"|3\d{3}(?P<t>[ \-\u00a0])\d{6}(?P=t)\d{4,5}|\d{13,19})"
    r"(?![\w]|[.\-/ ]\d)"
)
# (prefixes, lengths), ISO/IEC 7812 ranges of American Express, Diners, Discover, JCB, Maestro, Mastercard, UnionPay and
# Visa.
_ISSUERS = (
    (re.compile(r"3[47]"), (15,)),
    (re.compile(r"3(?:0[0-5]|[68])"), (14,)),
    (re.compile(r"6(?:011|4[4-9]|5)"), (16,)),
    (re.compile(r"35(?:2[89]|[3-8])"), (16,)),
    (re.compile(r"(?:50[0-9]{2}|5[6-8][0-9]{2}|6304|6759|676[1-3])"), (16, 18, 19)),
    (re.compile(r"(?:5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720)"), (16,)),
    (re.compile(r"62"), (16, 17, 18, 19)),
    (re.compile(r"4"), (13, 16, 19)),
)


def luhn_holds(digits: str) -> bool:
    """Whether the last digit is the Luhn check digit of the others (ISO/IEC 7812-1)."""
    total = 0
    for place, digit in enumerate(map(int, reversed(digits))):
        doubled = digit * (2 if place % 2 else 1)
        total += doubled - 9 if doubled > 9 else doubled
    return total % 10 == 0


def _is_card(match: re.Match[str]) -> bool:
    digits = digits_of(match["it"])
    if len(set(digits)) == 1 or not luhn_holds(digits) or OTHER_NUMBER.search(before(match, 24)):
        return False
    return any(prefix.match(digits) and len(digits) in lengths for prefix, lengths in _ISSUERS)


_IBAN = re.compile(
    r"(?P<it>[A-Z](?<![A-Za-z0-9].)[A-Z]\d{2}(?P<s>[ \-\u00a0]?)[A-Z0-9]{4}(?:(?P=s)[A-Z0-9]{4}){1,6}"
    r"(?:(?P=s)[A-Z0-9]{1,4})?)(?![A-Za-z0-9])"
)
_LOWER_IBAN = re.compile(
    r"(?P<it>[a-z](?<![A-Za-z0-9].)[a-z]\d{2}(?P<s>[ \-\u00a0]?)[a-z0-9]{4}(?:(?P=s)[a-z0-9]{4}){1,6}"
    r"(?:(?P=s)[a-z0-9]{1,4})?)(?![A-Za-z0-9])"
)
# Length by country, SWIFT IBAN registry.
_IBAN_LENGTHS = {
    code: length
    for length, codes in {
        15: "NO", 16: "BE", 18: "DK FI FO GL NL SD FK", 19: "MK SI", 20: "AT BA EE KZ LT LU MN XK", 21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HU LB NI PL SV",
        29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC", 33: "RU",
    }.items()
    for code in codes.split()
}  # fmt: skip


def iban_holds(text: str) -> bool:
    """Whether an IBAN has its country's length and the remainder 1 (ISO 13616, mod 97)."""
    if len(text) != _IBAN_LENGTHS.get(text[:2]):
        return False
    return int("".join(str(int(character, 36)) for character in text[4:] + text[:4])) % 97 == 1


def _is_iban(match: re.Match[str]) -> bool:
    return iban_holds(re.sub(r"[^A-Z0-9]", "", match["it"].upper()))


# National identity numbers

# These forms are seldom anything else, so the check digit decides. Numbers made only of digits may be anything, so the
# name of an identity number must come before them (_NAMED_NATIONAL).
_NATIONAL = re.compile(
    r"(?<![\w.\-+/=])(?P<it>"
    r"(?P<es>(?:\d{8}|[XYZ]\d{7})-?[A-HJ-NP-TV-Z])"
    r"|(?P<it_>[A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z])"
    r"|(?P<fr>[12] ?\d{2} ?(?:0[1-9]|1[0-2]) ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2})"
    r"|(?P<fi>\d{6}[+\-A-FYXWVU]\d{3}[0-9A-FHJ-NPR-Y])"
    r"|(?P<be>\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2})"
    r"|(?P<br>\d{3}\.\d{3}\.\d{3}-\d{2})"
    r")(?![\w/]|[.\-]\d)"
)
_NAMED_NATIONAL = re.compile(
    r"(?<![\w.+/=])(?P<it>\d{3}-\d{2}-\d{4}|\d{6,8}[-+]?\d{3,4}|\d{4} \d{4} \d{4}|\d{9})(?![\w/]|[.\-]\d)"
)
_NATIONAL_NAME = re.compile(
    r"(?i)\b(?:ssn|social security(?: number| no\.?)?|pesel|bsn|burgerservicenummer|personnummer|person-?nr\.?|aadhaar"
    r"|steuer-?id(?:entifikationsnummer|nr\.?)?|idnr\.?|national id(?:entity)?(?: number| no\.?)?)"
    r"(?: (?:is|number|no\.?|nr\.?))?[ \t\u00a0]*[:#=]?[ \t\u00a0]*\Z"
)
_SPANISH = "TRWAGMYFPDXBNJZSQVHLCKE"
_FINNISH = "0123456789ABCDEFHJKLMNPRSTUVWXY"
_ODD_ITALIAN = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)


def _weighted(digits: str, weights: Iterable[int]) -> int:
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=False))


def _is_italian(code: str) -> bool:
    """Whether a codice fiscale is valid (decree of 23 December 1976).

    The last letter must be the sum of all others by place, modulo 26.
    """
    values = [int(character) if character.isdigit() else ord(character) - 65 for character in code[:15]]
    total = sum(value if place % 2 else _ODD_ITALIAN[value] for place, value in enumerate(values))
    return chr(65 + total % 26) == code[15]


def _is_brazilian(digits: str) -> bool:
    """Whether a CPF is valid: two check digits, each modulo 11."""
    if len(set(digits)) == 1:
        return False
    first = _weighted(digits[:9], range(10, 1, -1)) * 10 % 11 % 10
    return first == int(digits[9]) and _weighted(digits[:10], range(11, 1, -1)) * 10 % 11 % 10 == int(digits[10])


def _is_belgian(digits: str) -> bool:
    """Whether a rijksregisternummer is valid: check digits are 97 minus the remainder modulo 97.

    For people born from 2000 on, the number is computed with a 2 before it.
    """
    return any(97 - int(century + digits[:9]) % 97 == int(digits[9:]) for century in ("", "2"))


def _is_french(text: str) -> bool:
    """Whether a NIR is valid: the key is 97 minus the remainder modulo 97; Corsica's 2A and 2B count as 19 and 18."""
    number = text.replace(" ", "").replace("2A", "19").replace("2B", "18")
    return 97 - int(number[:13]) % 97 == int(number[13:])


def _is_spanish(text: str) -> bool:
    """Whether a DNI or NIE is valid: its letter follows from the number modulo 23."""
    number = text.replace("-", "")
    return _SPANISH[int(number[:-1].translate(str.maketrans("XYZ", "012"))) % 23] == number[-1]


def _is_finnish(text: str) -> bool:
    """Whether a henkilötunnus is valid: the last character is the nine digits modulo 31."""
    return _is_day(text[:2], text[2:4]) and _FINNISH[int(text[:6] + text[7:10]) % 31] == text[10]


def _is_day(day: str, month: str) -> bool:
    return 1 <= int(day) <= 31 and 1 <= int(month) <= 12


def _is_national(match: re.Match[str]) -> bool:
    text = match["it"]
    if match["es"]:
        return _is_spanish(text)
    if match["it_"]:
        return _is_italian(text)
    if match["fr"]:
        return _is_french(text)
    if match["fi"]:
        return _is_finnish(text)
    return _is_belgian(digits_of(text)) if match["be"] else _is_brazilian(digits_of(text))


_VERHOEFF_PERMUTATION = (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)


def verhoeff_holds(digits: str) -> bool:
    """Whether the last digit is Verhoeff's check digit (1969): products in the dihedral group of ten elements."""
    total = 0
    for place, digit in enumerate(map(int, reversed(digits))):
        for _ in range(place % 8):
            digit = _VERHOEFF_PERMUTATION[digit]
        total = _dihedral(total, digit)
    return total == 0


def _dihedral(one: int, other: int) -> int:
    if one < 5:
        return (one + other) % 5 if other < 5 else 5 + (one + other - 5) % 5
    return 5 + (one - 5 - other) % 5 if other < 5 else (one - other) % 5


def _is_named_national(match: re.Match[str]) -> bool:
    if not _NATIONAL_NAME.search(before(match, 60)):
        return False
    text, digits = match["it"], digits_of(match["it"])
    if len(text) == 11 and text[3] == text[6] == "-":  # United States: no check digit, but unassigned area numbers
        return digits[:3] not in ("000", "666") and digits[0] != "9" and digits[3:5] != "00" and digits[5:] != "0000"
    if len(digits) == 9:  # Netherlands
        return _weighted(digits[:8], range(9, 1, -1)) % 11 == int(digits[8])
    if len(digits) == 12 and digits[0] not in "01":  # India
        return verhoeff_holds(digits)
    if len(digits) in (10, 12):  # Sweden
        return luhn_holds(digits[-10:])
    return len(digits) == 11 and (_is_polish(digits) or _is_german(digits))


def _is_polish(digits: str) -> bool:
    """Whether a PESEL is valid: weights 1, 3, 7, 9, modulo 10."""
    return -_weighted(digits[:10], (1, 3, 7, 9, 1, 3, 7, 9, 1, 3)) % 10 == int(digits[10])


def _is_german(digits: str) -> bool:
    """Whether a Steuerliche Identifikationsnummer is valid: ISO 7064, modulo 11, 10."""
    product = 10
    for digit in map(int, digits[:10]):
        product = ((digit + product) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == int(digits[10])


# Keys and secrets

_ISSUED_KEYS = re.compile(
    r"(?<![A-Za-z0-9_\-])(?P<it>"
    r"(?:AKIA|ASIA)[A-Z0-9]{16}"  # Amazon
    r"|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,}"
    r"|glpat-[A-Za-z0-9_\-]{20,}"
    r"|AIza[A-Za-z0-9_\-]{35}"  # Google
    r"|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}"  # Stripe
    r"|sk-(?:proj-|ant-[a-z0-9]+-)?[A-Za-z0-9_\-]{20,}"
    r"|xox[abeprs]-[A-Za-z0-9\-]{10,}"  # Slack
    r"|SG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}"  # SendGrid
    r"|hf_[A-Za-z0-9]{30,}|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_\-]{50,}|dop_v1_[a-f0-9]{64}"
    r"|eyJ[A-Za-z0-9_\-]{8,}\.eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}"  # JSON web token
    r")(?![A-Za-z0-9_])"
)
_STARTS = (
    "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "AIza", "sk_live_", "sk_test_",
    "rk_live_", "rk_test_", "sk-", "xox", "SG.", "hf_", "npm_", "pypi-", "dop_v1_", "eyJ",
)  # fmt: skip
_PRIVATE_KEY = re.compile(
    r"(?P<it>-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----[A-Za-z0-9+/=\s:,.\-]{16,}?"
    r"-----END (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----)"
    r"|-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----[A-Za-z0-9+/=\s:,.\-]*+"  # without end
)
_VALUE = re.compile(r"(?<![A-Za-z0-9+/_\-])(?P<it>[A-Za-z0-9+/_\-]{16,128}={0,2})(?![A-Za-z0-9+/_\-.(\[])")
_ASSIGNED = re.compile(
    r"(?i)(?:\b|_)(?:api[_\- ]?key|access[_\- ]?key(?:[_\- ]?id)?|secret(?:[_\- ]?(?:access)?[_\- ]?key)?"
    r"|auth(?:entication)?[_\- ]?token|access[_\- ]?token|bearer|client[_\- ]?secret|private[_\- ]?token|token|passwd"
    r"|password)[\"']?[ \t]*(?:[:=]|=>|is)?[ \t]*[\"'`]?\Z"
)
_SECRET_NAMES = ("key", "token", "bearer", "secret", "passw")  # each name that _ASSIGNED matches contains one of these
_IN_URL = re.compile(r"://(?P<it>[^\s/@:<>\"'{}\[\]$]{1,64}:(?P<secret>[^\s/@<>\"'{}\[\]$]{3,128}))@[A-Za-z0-9\[]")
_EXAMPLES = frozenset("pass passwd password pw pwd secret tiger xyz xxx 123 1234 passwd-on-proxy".split())
_MIN_BITS = 3  # per character; "my-secret-password" has 3.2 but no digit, random hex 3.5 to 4, base64 4 to 6


def _has_bits(text: str) -> bool:
    """Whether the entropy of the text's characters is at least _MIN_BITS each, computed exactly, in integers.

    The entropy is the mean of log2(length / count), and the sum of logarithms is the logarithm of a product.
    """
    length, counts = len(text), Counter(text).values()
    return length**length >= prod(count**count for count in counts) << (_MIN_BITS * length)


def _find_assigned_values(text: str) -> Iterator[Span]:
    folded = text.casefold()
    return _finding(_VALUE, _is_secret)(text) if any(name in folded for name in _SECRET_NAMES) else iter(())


def _is_secret(match: re.Match[str]) -> bool:
    value = match["it"]
    if not _ASSIGNED.search(before(match, 40)):
        return False
    digits = sum(character.isdigit() for character in value)
    # words joined by punctuation are names, not secrets; a secret mixes letters and digits throughout
    enough = 1 if len(value) >= 32 else 2
    return enough <= digits < len(value) and _has_bits(value) and not _is_worded(value)


def _is_worded(value: str) -> bool:
    """Whether over 60 % of the value are words of at least four letters, as in `example-token-2024-placeholder`."""
    return sum(len(word) for word in re.findall(r"[a-z]{4,}|[A-Z]{5,}|[A-Z][a-z]{3,}", value)) > 0.6 * len(value)


def _find_issued_keys(text: str) -> Iterator[Span]:
    # Searching for the fixed prefixes first is ten times as fast as the pattern, and hardly any page has one.
    return _finding(_ISSUED_KEYS, _is_issued)(text) if any(start in text for start in _STARTS) else iter(())


def _is_issued(match: re.Match[str]) -> bool:
    # `sk-` followed by words may be a name, such as a CSS class
    return not match["it"].startswith("sk-") or any(map(str.isdigit, match["it"]))


_FINDERS: tuple[tuple[str, Callable[[str], Iterator[Span]]], ...] = (
    ("api_key", _finding(_PRIVATE_KEY, lambda match: bool(match["it"]))),
    ("api_key", _find_issued_keys),
    ("api_key", _finding(_IN_URL, lambda match: match["secret"].lower() not in _EXAMPLES)),
    ("api_key", _find_assigned_values),
    ("email", _find_emails),
    ("email", _find_written_emails),
    ("email", _beside(_HAS_SAID, _SAID, _is_said)),
    ("email", _beside(_HAS_SIGN_SAID, _SIGN_SAID, lambda match: is_top_level(match["top"]))),
    ("email", _beside(_HAS_MAILED, _MAILED, _is_mailed)),
    ("email", _beside(_HAS_SPACED, _MAILED, _is_mailed)),
    ("email", _find_encoded_emails),
    ("iban", _finding(_IBAN, _is_iban)),
    ("iban", _finding_numbers(_LOWER_IBAN, _is_iban)),
    ("card", _finding_numbers(_CARD, _is_card)),
    ("national_id", _finding_numbers(_NATIONAL, _is_national, more_before=4)),  # Italy's begins with six letters
    ("national_id", _finding_numbers(_NAMED_NATIONAL, _is_named_national)),
    ("ip", _finding_numbers(_IPV4, _is_public_ipv4)),
    ("ip", _finding(_IPV6, _is_public_ipv6)),
)
