"""HTML to text: charset, structure, what a page says of itself, and pages that are refused."""

from __future__ import annotations

import textwrap
import time
from functools import cache

import pytest

from benchmarks import extraction
from tests.training.data.real import real_page
from training.data.extract.pages.html import clean, day_of, decode, extract_html, is_html, may_be_deeper, visible
from training.data.extract.settings import EXTRACTORS, ExtractRecipe

SETTINGS = ExtractRecipe()
RESILIPARSE = ExtractRecipe(extractor="resiliparse")
PROSE = "<p>" + "The dough rests in a bowl until it has doubled in size, which takes an hour. " * 5 + "</p>"


def page(body: str, head: str = "", attributes: str = "") -> bytes:
    return f"<!doctype html><html {attributes}><head>{head}</head><body>{body}</body></html>".encode()


def text_of(body: str) -> str:
    return extract_html(page(body), settings=RESILIPARSE).text


STRUCTURE = f"""<main><article><h1>Bread</h1>{PROSE}<pre><code>def knead(dough):
    for turn in range(9):
        dough = dough * 2
    return dough
</code></pre><h2>What is needed</h2><ul><li>flour of rye</li><li>water<ul><li>warm, not hot</li></ul></li></ul>
{PROSE.replace("dough", "loaf")}<ol><li>Mix both</li><li>Wait an hour</li></ol>
<table><tr><th>loaf</th><th>minutes</th></tr><tr><td>rye</td><td>55</td></tr><tr><td>wheat</td><td>40</td></tr></table>
{PROSE.replace("dough", "oven")}</article></main>"""
NESTED, FLAT = ["flour of rye", "water", "  warm, not hot"], ["flour of rye", "water", "warm, not hot"]


@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_titles_dates_code_lists_and_tables_stay_readable(extractor: str):
    head = "<title> Bread \n of the day</title><meta property=article:published_time content=2021-03-04T05:06:07Z>"
    made = extract_html(page(STRUCTURE, head, "lang=en-GB"), settings=ExtractRecipe(extractor=extractor))
    assert (made.title, made.date, made.language) == ("Bread of the day", "2021-03-04", "en")
    assert made.text.startswith("Bread\n") and made.text.endswith("which takes an hour.")
    code = "def knead(dough):\n    for turn in range(9):\n        dough = dough * 2\n    return dough\n"
    assert made.text.count(code) == 1
    bullet = "- " if extractor == "trafilatura" else "• "
    lines = made.text.split("\n")
    first, second = (next(n for n, line in enumerate(lines) if line.endswith(item)) for item in ("rye", "Mix both"))
    items = textwrap.dedent("\n".join(lines[first : first + 3])).replace(bullet, "").split("\n")
    assert items == (FLAT if extractor.startswith("blocks") else NESTED)
    numbers = ("1. ", "2. ") if extractor == "resiliparse" else (bullet, bullet)
    steps = [line.strip() for line in lines[second : second + 2]]
    assert steps == [numbers[0] + "Mix both", numbers[1] + "Wait an hour"]
    assert made.text.count("Mix both") == made.text.count("wheat") == 1
    table = "| rye | 55 | \n| wheat | 40 |" if extractor == "trafilatura" else "rye\t55\nwheat\t40"
    assert table in made.text


@pytest.mark.data
@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_pages_of_a_manual_keep_code_tables_and_lists(extractor: str):
    settings = ExtractRecipe(extractor=extractor)
    archive = "crawl/snapshot-1/web-01-00000.warc.gz"
    body, headers = real_page(archive, "http://postgres-docs.test/manual/datatype-money.html")
    made = extract_html(body, headers=headers, settings=settings)
    lines = [line.strip(" |").replace(" | ", "\t") for line in made.text.splitlines() if line.strip()]
    table = lines.index("Name\tStorage Size\tDescription\tRange")
    row = "money\t8 bytes\tcurrency amount\t-92233720368547758.08 to +92233720368547758.07"
    assert row in lines[table + 1 : table + 3]
    assert made.title == "8.2. Monetary Types"
    for code in ("SELECT '12.34'::float8::numeric::money;", "SELECT '52093.89'::money::numeric::float8;"):
        assert lines.count(code) == 1
    words = made.text.split()
    assert " ".join(words).count("Values of the numeric, int, and bigint data types can be cast to money.") == 1
    assert not {"Prev", "Next", "Home"} & set(words)

    body, headers = real_page(archive, "http://postgres-docs.test/manual/dml-update.html")
    lines = [line.strip() for line in extract_html(body, headers=headers, settings=settings).text.splitlines()]
    start = next(n for n, line in enumerate(lines) if line.endswith("The name of the table and column to update"))
    items = [line.lstrip("•-123. ") for line in lines[start:] if line][:3]
    assert items[1:] == ["The new value of the column", "Which row(s) to update"]
    assert lines.count("UPDATE mytable SET a = 5, b = 3, c = 1 WHERE a > 0;") == 1


@pytest.mark.data
def test_a_korean_manual_is_read_by_its_meta_element_where_the_header_names_no_charset_that_is():
    body, headers = real_page("crawl/snapshot-2/web-02-00000.warc.gz", "http://httpd-docs.test/manual/ko/index.html")
    assert headers["content-type"] == "text/html; charset=off"
    made = extract_html(body, headers=headers, settings=SETTINGS)
    assert (made.charset, made.num_replaced) == ("euc_kr", 0)
    assert made.text.endswith("이 문서는 최신판 번역이 아닙니다. 최근에 변경된 내용은 영어 문서를 참고하세요.")
    assert decode(body, "text/html; charset=iso-8859-1").charset == "euc_kr"  # the bytes decide between the two


@pytest.mark.data
@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_each_extractor_finds_the_main_text_of_labelled_pages(extractor: str):
    """Not its quality, which docs/extraction.md has: that it is not broken, on six pages of each set."""
    chosen = labelled_pages()
    extract = extraction.make_extractor(extractor)
    texts = {one.id: extract(one.html) for one in chosen}
    for group, least in (("articles", 0.9), ("readability", 0.85), ("segments", 0.8)):
        assert extraction.score([one for one in chosen if one.group == group], texts)[2] > least, group


@cache
def labelled_pages() -> list[extraction.Page]:
    """The first six of each set that are small."""
    small = [one for one in extraction.pages() if len(one.html) < 60_000]
    return [one for group in extraction.GROUPS for one in [page for page in small if page.group == group][:6]]


def test_scripts_styles_menus_and_permalinks_are_left_out():
    text = text_of(
        "<nav><ul><li><a href=/>Home</a></li><li><a href=/a>About</a></li></ul></nav><script>var x = 1;</script>"
        f"<style>p {{color: red}}</style><main><h1>Bread<a class=headerlink href=#b>¶</a></h1>{PROSE}"
        "<div class=toc><a href=#1>Chapter one</a></div></main><footer>All rights reserved</footer>"
    )
    assert not any(word in text for word in ("Home", "var x", "color", "¶", "Chapter one", "All rights"))
    assert text.startswith("Bread\n")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("<b>PL/pgSQL</b> &#8212; <i>SQL</i> language", "PL/pgSQL — SQL language"),
        ("“<i>Bake it</i>” said she", "“Bake it” said she"),
        ("<a href=/1>生地</a>、<a href=/2>窯</a>を使う", "生地、窯を使う"),
        ("<b>x</b> &le; <b>y</b>&nbsp;<b>z</b>", "x ≤ y z"),
        ("Bread<a href=#bread>→</a>", "Bread"),
    ],
)
def test_single_signs_between_elements_are_kept(written: str, read: str):
    assert text_of(f"{PROSE}<p>{written}</p>").splitlines()[-1] == read


def test_lists_near_the_body_are_kept_and_menus_are_not():
    text = text_of(
        f"{PROSE}<ul><li>200 g of flour</li><li>see <a href=/w>water</a>, which should be warm but not hot</li></ul>"
        f"<ul><li><a href=/1>Home</a></li><li><a href=/2>Contact</a></li></ul>{PROSE}"
    )
    assert "• 200 g of flour\n  • see water, which" in text
    assert "Home" not in text


def test_trafilatura_reads_the_same_page_whatever_it_read_before():
    settings = ExtractRecipe(extractor="trafilatura")
    first, *others = [extract_html(page(PROSE * 3), settings=settings).text for _ in range(5)]
    assert "doubled in size" in first
    assert others == [first] * 4


@pytest.mark.parametrize(
    ("written", "day"),
    [
        ("2024-05-18T01:58:10Z", "2024-05-18"),
        ("Sat, 18 May 2024 01:58:10 GMT", "2024-05-18"),
        ("2024/05/18 10:00", "2024-05-18"),
        ("2024-13-01", ""),
        ("12024-05-188", ""),
        ("yesterday", ""),
        ("", ""),
    ],
)
def test_days_are_read_as_the_web_writes_them(written: str, day: str):
    assert day_of(written) == day


# Charset

GERMAN = "Der Teig für die Brötchen ruht über Nacht; später wird er mit Öl bestrichen und heiß gebacken. "
RUSSIAN = "Тесто отдыхает в миске, пока не увеличится вдвое, а затем выпекается в горячей печи до корочки. "
JAPANESE = "生地は二倍になるまで休ませてから、熱い窯で焼き上げます。表面が黄金色になったら取り出してください。"


@pytest.mark.parametrize(
    ("charset", "text", "header", "meta"),
    [
        ("utf-8", GERMAN, "", ""),
        ("utf-8-sig", GERMAN, "text/html; charset=latin1", ""),  # the mark decides
        ("utf-16", RUSSIAN, "text/html; charset=latin1", ""),
        ("cp1252", GERMAN, "text/html; charset=iso-8859-1", "utf-8"),  # header before meta
        ("cp1251", RUSSIAN, "", "windows-1251"),
        ("shift_jis", JAPANESE, "text/html", "x-sjis"),
        ("gb18030", "面团要休息到两倍大，然后放进烤箱里烤成金黄色。" * 3, "text/html; charset=gb2312", ""),
        ("cp1251", RUSSIAN, "", ""),  # detected
        ("utf-8", RUSSIAN, "text/html; charset=iso-8859-1", ""),  # valid UTF-8 is no accident
        ("cp1251", RUSSIAN, "text/html; charset=utf-8", ""),  # the declaration is contradicted
        ("utf-8", GERMAN, "text/html; charset=no-such-charset", ""),
    ],
)
def test_text_is_decoded_whoever_names_the_charset(charset: str, text: str, header: str, meta: str):
    head = f'<meta charset="{meta}">' if meta else ""
    body = f"<html><head>{head}</head><body><p>{text * 3}</p></body></html>".encode(charset)
    made = decode(body, header)
    assert text in made.text
    assert made.num_replaced == 0


@pytest.mark.parametrize("header", ["", "text/html; charset=utf-8", "text/html; charset=iso-8859-1"])
@pytest.mark.parametrize("text", [GERMAN, RUSSIAN, JAPANESE, "Ekki er allt gull sem gl\u00f3ir, sag\u00f0i hann."])
@pytest.mark.parametrize("damage", ["cut", "broken", "stray"])
def test_a_page_in_utf_8_with_a_damaged_byte_is_read_as_utf_8(damage: str, text: str, header: str):
    html = f"<html><body><p>{text * 9}</p>".encode()
    whole, last = len(html) // 2, max(at for at, byte in enumerate(html) if byte > 0xBF)
    middle = next(at for at in range(whole, len(html)) if html[at] < 0x80 or html[at] > 0xBF)
    damaged = {
        "cut": html[: last + 1],
        "broken": html[:middle] + b"\xe2\x82 " + html[middle:],
        "stray": html[:middle] + b"\xe9" + html[middle:],
    }[damage]
    made = decode(damaged, header)
    assert (made.charset, made.num_replaced) == ("utf-8", 1)
    assert text in made.text


def test_bytes_that_fit_no_charset_are_counted_and_a_written_replacement_sign_is_not():
    assert decode(b"<p>" + "grün ".encode() * 50 + b"\xff\xfe\xfd</p>", "text/html; charset=utf-8").num_replaced == 3
    assert decode("<p>\ufffd and grün</p>".encode(), "text/html; charset=utf-8").num_replaced == 0


@pytest.mark.parametrize(
    ("text", "shown", "before", "after"),
    [
        ("plain", "plain", (0, 3, 5), (0, 3, 5)),
        ("a\xadb\xadc", "abc", (0, 2, 4, 5), (0, 1, 2, 3)),
        ("a\n\n\u200b\xa0\n\nb", "a\n\nb", (1, 7, 8), (1, 3, 4)),
        ("a\n\u200b\nb", "a\n\nb", (1, 4), (1, 3)),
        ("\xa0a\xa0\xa0b\xa0 c\xa0\nd\xa0", "a b c\nd", (1, 4, 7, 10), (0, 2, 4, 6)),
        ("f:\n\xa0\xa0 \xa0r = 1\n\n\xa0\xa0A", "f:\n    r = 1\n\nA", (3, 7, 16), (3, 7, 14)),
        ("10\u202f000\u2028m", "10 000\nm", (3, 7), (3, 7)),
    ],
)
def test_what_nobody_sees_goes_and_places_stay_at_their_words(text: str, shown: str, before: tuple, after: tuple):
    assert visible(text, before) == (shown, after)


def test_clean_text_has_no_nul_surrogate_or_carriage_return():
    assert clean("\n a\0b\r\nc\rd\ud800e \n") == "ab\nc\nd\ufffde"
    assert clean("\ud83d\ude00") == "😀"  # a pair that was split is joined again
    assert clean("é e\u0301") == "é e\u0301"  # nothing else is changed


# What is a page, and which pages are refused


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        ("text/html", b"anything", True),
        ("application/xhtml+xml", b"<?xml version='1.0'?><html>", True),
        ("text/plain", b"<html>", False),
        ("application/pdf", b"%PDF-1.7", False),
        ("text/html", b"%PDF-1.7", False),
        ("", b"\n<!-- made by hand -->\n<!DOCTYPE html>", True),
        ("", b"<HTML>", True),
        ("", b"plain words", False),
        ("", b"{}", False),
    ],
)
def test_html_is_known_by_header_and_sniffed_without(content_type: str, body: bytes, expected: bool):
    assert is_html(content_type, body) is expected


@pytest.mark.parametrize("extractor", ["resiliparse", "blocks"])
@pytest.mark.parametrize(
    ("html", "reason"),
    [
        (b" \n ", "empty"),
        (b"<p>" + b"x" * 4_000_000, "too_large"),
        (b"<i>x" * 200_001, "too_many_nodes"),
        (b"<div>" * 1001 + b"words", "too_deep"),
        (page("<nav><a href=/>Home</a></nav>"), "no_main_text"),
        (page("<p>Too few words.</p>"), "too_short"),
        (page(PROSE), ""),
        (b"<div><br></div>" * 3000 + PROSE.encode(), ""),
        (b"<p>" * 3000 + PROSE.encode(), ""),  # paragraphs do not nest, however many are left open
    ],
)
def test_every_refused_page_has_its_reason(html: bytes, reason: str, extractor: str):
    assert extract_html(html, settings=ExtractRecipe(extractor=extractor)).reason == reason


def test_cells_without_a_table_are_deep_for_the_parser_that_nests_them():
    assert extract_html(b"<svg>" + b"<td>" * 1500, settings=ExtractRecipe(extractor="resiliparse")).reason == "too_deep"


def test_depth_is_bounded_by_what_is_open_of_each_name():
    assert not may_be_deeper(b"<div></div>" * 5000, 10)
    assert may_be_deeper(b"<div></p>" * 11, 10)


def test_hostile_nesting_costs_little():
    started = time.process_time()
    for name in (b"div", b"b", b"table><tr><td", b"ul><li", b"svg><g", b"font color=x"):
        extract_html((b"<" + name + b">") * 60_000, settings=SETTINGS)
    assert time.process_time() - started < 60


TWO_CHARSETS = {
    "windows-1251": "Сегодня в городе прошёл большой праздник, на который пришли тысячи людей.",
    "koi8-r": "Сегодня в городе прошёл большой праздник, на который пришли тысячи людей.",
    "shift_jis": "今日は天気がとても良いので、公園を散歩しました。",
    "iso-8859-2": "Wczoraj byliśmy w górach, gdzie padał śnieg i wiał mroźny wiatr.",
    "windows-1250": "Příliš žluťoučký kůň úpěl ďábelské ódy a vlk zavyl.",
    "iso-8859-7": "Σήμερα ο καιρός είναι πολύ καλός και πάμε στη θάλασσα",
    "windows-1254": "Bugün hava çok güzel, dışarı çıkıp yürüyüş yaptık",
    "gb2312": "今天天气很好，我们去公园散步。",
    "euc-kr": "오늘은 날씨가 매우 좋습니다",
    "windows-1255": "היום מזג האוויר טוב מאוד",
    "utf-8": "Größe und Übermut für Schüler",
}


@pytest.mark.parametrize("charset", TWO_CHARSETS)
@pytest.mark.parametrize("says", ["page", "header"])
def test_of_two_charsets_the_one_counts_that_the_bytes_are(charset: str, says: str):
    header, meta = ("iso-8859-1", charset) if says == "page" else (charset, "iso-8859-1")
    html = f"<meta charset={meta}><p>{TWO_CHARSETS[charset]}".encode(charset)
    made = decode(html, f"text/html; charset={header}")
    assert made.has_two_charsets and made.text.endswith(TWO_CHARSETS[charset]) and not made.num_replaced
    assert not decode(html, f"text/html; charset={meta}").has_two_charsets
