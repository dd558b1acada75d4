"""The block extractor: what it takes for main text, what it writes, and its kernels with and without the compiler."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from training.data.extract.pages import blocks, markup
from training.data.extract.pages.html import extract_html, prose_characters
from training.data.extract.settings import ExtractRecipe
from training.data.words import native

SETTINGS = ExtractRecipe(extractor="blocks")
SENTENCES = "The dough rests in a bowl until it has doubled in size, which takes an hour. " * 3
PROSE = f"<p>{SENTENCES}</p>"


def page(body: str, head: str = "", attributes: str = "") -> bytes:
    return f"<!doctype html><html {attributes}><head>{head}</head><body>{body}</body></html>".encode()


OTHER = "<p>" + "Knead the flour with water and salt, then leave it alone until it is soft. " * 3 + "</p>"


def text_of(body: str) -> str:
    return extract_html(page(body), settings=SETTINGS).text


def test_paragraphs_code_lists_and_tables_stay_readable():
    text = text_of(
        f"<h1>Bread</h1>{PROSE}<pre>def knead(dough):\n    return dough * 2\n</pre>"
        f"<ul><li>flour</li><li>water<ul><li>warm</li></ul></li></ul>{PROSE}"
        "<table><tr><th>loaf</th><th>minutes</th></tr><tr><td>rye</td><td>55</td></tr></table>"
        "<p>one<br>two</p>"
    )
    assert text == (
        f"Bread\n\n{SENTENCES.strip()}\n\ndef knead(dough):\n    return dough * 2\n\n• flour\n• water\n• warm\n\n"
        f"{SENTENCES.strip()}\n\nloaf\tminutes\nrye\t55\n\none\ntwo"
    )


@pytest.mark.parametrize(
    "boilerplate",
    [
        "<nav><p>%s</p></nav>",
        "<div class='related-posts'><p>%s</p></div>",
        "<div id=comments><p>%s</p></div>",
        "<div class=pageFooter><p>%s</p></div>",
        "<div role=navigation><p>%s</p></div>",
        "<div class=navheader><table><tr><th>%s</th></tr><tr><td><a href=/>Prev</a></td></tr></table></div>",
        "<div style='color: red; display: none'><p>%s</p></div>",
        "<div hidden><p>%s</p></div>",
        "<script>document.write('%s')</script>",
        "<template><p>%s</p></template>",
        "<!-- %s -->",
        "<p><a href=/>%s</a></p>",
        "<p>Read more: %s</p>",
        "<p>&copy; 2024 A. Baker. %s</p>",
        "<p>© 2024 A. Baker. %s</p>",
        "<p>War der Artikel nützlich? %s</p>",
    ],
)
def test_boilerplate_is_left_out_by_what_it_is_called_and_by_its_links(boilerplate: str):
    text = text_of(f"<main>{PROSE * 3}{boilerplate % 'Ten more ways to bake, and why.'}{PROSE}</main>")
    assert "Ten more ways" not in text
    assert text.count("doubled in size") == 12


CODE = "print(loaf)"
HIGHLIGHTED = {
    "github": "<div class='highlight highlight-source-js notranslate overflow-auto'><pre>{}</pre></div>",
    "pandoc": "<div class=sourceCode id=cb1><pre class='sourceCode python'><code class='sourceCode python'>"
    "<span id=cb1-1><a href=#cb1-1 aria-hidden=true tabindex=-1></a>{}</span></code></pre></div>",
    "geshi": "<div dir=ltr class='mw-geshi mw-code mw-content-ltr'><div class='cpp source-cpp'><pre class=de1>{}</pre>"
    "</div></div>",
    "mediawiki": "<div class='mw-highlight mw-highlight-lang-cpp source' dir=ltr><pre><span></span>{}</pre></div>",
    "sphinx": "<div class='highlight-python notranslate'><div class=highlight><pre><span></span>{}</pre></div></div>",
    "rustdoc": "<div class=example-wrap><pre class='rust rust-example-rendered'><code>{}</code></pre></div>",
    "doxygen": "<div class=fragment><pre class=fragment>{}</pre></div>",
    "prism": "<pre class='line-numbers source'><code class=language-js><span class='token nav'>{}</span></code></pre>",
}


@pytest.mark.parametrize("name", HIGHLIGHTED)
def test_code_is_kept_whatever_its_highlighter_calls_it(name: str):
    listing = HIGHLIGHTED[name].format(CODE)
    assert f"\n\n{CODE}\n\n" in text_of(f"<main>{PROSE}{listing}{PROSE}</main>")


@pytest.mark.parametrize(
    "name", ["geshi", "source-code", "sourcecode", "codehilite", "highlight-source-js", "syntaxhighlighter"]
)
def test_code_outside_of_pre_is_known_by_its_highlighter(name: str):
    """The lines are `div` elements, and a label such as `source` inside of code names nothing."""
    lines = f"<div class='line source'>{CODE}</div>" * 20
    made = extract_html(page(f"<main>{PROSE}<div class='{name} source'>{lines}</div>{PROSE}</main>"), settings=SETTINGS)
    assert made.text.count(CODE) == 20
    assert CODE not in text_of(f"<main>{PROSE}<div class=other>{lines}</div>{PROSE}</main>")


def test_code_that_is_nearly_all_links_is_kept():
    links = "<a href=Loaf.html>Loaf</a> <a href=bake.html>bake</a>(<a href=Dough.html>Dough</a>)"
    assert "\n\nLoaf bake(Dough)\n\n" in text_of(f"<main>{PROSE}<pre class=rust>{links}</pre>{PROSE}</main>")


@pytest.mark.parametrize(
    "hidden",
    [
        "<pre class=hidden>{}</pre>",
        "<pre hidden>{}</pre>",
        "<div style='display:none'><pre>{}</pre></div>",
        "<div class='highlight-source-js sr-only'><pre>{}</pre></div>",
        "<div id=comments><p>Nice loaf, I did this:</p><pre>{}</pre></div>",
    ],
)
def test_code_that_is_hidden_or_in_a_comment_is_left_out(hidden: str):
    assert CODE not in text_of(f"<main>{PROSE}{hidden.format(CODE)}{PROSE}</main>")


@pytest.mark.parametrize("byline", ["<p class=source>Source: Reuters</p>", "<div class=source>Reuters, Paris</div>"])
def test_a_source_that_is_no_code_is_a_byline(byline: str):
    assert "Reuters" not in text_of(f"<main>{PROSE}{byline}{PROSE}</main>")


FUNCTION = "<tr><td><div class=t-dsc-member-div><div><a href=%s.html>%s</a></div></div></td><td>%s</td></tr>"


def test_a_table_of_functions_keeps_their_names():
    rows = [("strcat", "joins strings"), ("strncat", "joins some"), ("strcpy", "copies one"), ("strlen", "counts")]
    table = "".join(FUNCTION % (name, name, says) for name, says in rows)
    text = text_of(f"<main>{PROSE}<table>{table}</table>{PROSE}</main>")
    assert "\n".join("\t".join(row) for row in rows) in text


def test_declarations_in_lines_of_a_highlighter_and_short_paragraphs_in_cells_are_kept():
    lines = "<td><div><span class='mw-geshi cpp source-cpp'>iterator begin();</span></div></td><td>(since C++11)</td>"
    cells = "<td><p>Byte</p></td><td><p>17</p></td>"
    text = text_of(f"<main>{PROSE}<table><tr>{lines}</tr>{f'<tr>{cells}</tr>' * 3}</table></main>")
    assert "\niterator begin();\t(since C++11)\nByte\t17\nByte\t17\nByte\t17" in text
    table = f"<h1>Type</h1><section><table>{f'<tr>{cells}</tr>' * 40}</table></section>"
    assert text_of(f"{table}<section>{PROSE}</section>").count("Byte\t17") == 40


def test_a_table_of_changes_called_metadata_is_text():
    rows = "<tr><td>v18.7.0<td>is stable" * 4
    text = text_of(f"<main>{PROSE}<div class=api_metadata><table>{rows}</table></div>{PROSE}</main>")
    assert text.count("v18.7.0\tis stable") == 4


def test_answers_and_comments_are_text_where_they_are_the_page():
    answers = f"<div itemprop=suggestedAnswer class=answer>{OTHER}</div>" * 2
    assert text_of(f"<main>{PROSE}{answers}</main>").count("Knead") == 6
    notice = "<p>" + "This board is run by people who bake. " * 4 + "</p>"
    posts = "".join(f"<div class=comment id=comment-{n}>{OTHER}{PROSE}</div>" for n in range(8))
    assert text_of(f"<div class=board>{notice}</div><div class=discussion>{posts}</div>").count("Knead") == 24
    assert "Knead" not in text_of(f"<div class=text>{PROSE * 2}</div><div id=comments>{OTHER * 5}</div>")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (PROSE * 3, "prose"),
        (f"{PROSE}<p>Call <code>{CODE * 3}</code> then.</p>" * 3, "prose"),
        (f"{PROSE}<pre>{CODE * 20}</pre>", "code"),
        (f"{PROSE}<table>{'<tr><td>strcat<td>joins two strings' * 20}</table>", "table"),
        (f"{PROSE}<ul>{'<li>Weigh the flour, then the salt.' * 20}</ul>", "list"),
        (f"{PROSE * 9}<pre>{CODE}</pre><ul><li>Weigh the flour.</ul>", "prose"),
    ],
)
def test_a_page_has_the_kind_of_what_most_of_its_text_is(body: str, kind: str):
    assert extract_html(page(f"<main>{body}</main>"), settings=SETTINGS).kind == kind
    assert extract_html(page(f"<main>{body}</main>"), settings=ExtractRecipe(extractor="trafilatura")).kind == ""


def test_links_in_a_table_that_arranges_the_page_are_left_out():
    menu = "".join(f"<div><a href={n}.html>Bread number {n}</a></div>" for n in range(9))
    text = text_of(f"<table><tr><td>Loaves<td>Home<tr><td>{menu}<td>{PROSE}<tr><td>Rolls<td>End</table>")
    assert "Bread number" not in text and "doubled in size" in text


def test_words_in_styles_and_in_ids_of_sections_name_nothing():
    text = text_of(f"<p style='margin-bottom: 1em'>{SENTENCES}</p><section id=comments>{PROSE}</section>")
    assert text.count("doubled in size") == 6


def test_what_a_list_of_terms_says_before_the_first_sentence_stays_beside_its_terms():
    terms = "<dl><dt>Release</dt><dd><p>3.9.2</p></dd><dt>Date</dt><dd><p>September 25</p></dd></dl>"
    text = text_of(f"<h1>Bread</h1><p>by A. Baker</p>{terms}{PROSE}")
    assert text.startswith("Bread\n\nRelease\n3.9.2\nDate\nSeptember 25\n\n")


def test_text_that_is_shown_only_without_scripts_is_found_where_there_is_no_other():
    hidden = f"<script type=text/template>{PROSE}</script><NoScript>{PROSE * 2}</noscript>"
    assert text_of(f"<h2>Bread</h2><div>{hidden}</div>").count("doubled in size") == 6
    assert text_of(f"<h2>Bread</h2><div>{OTHER}{hidden}</div>").count("doubled in size") == 0
    assert text_of("<p>Too few words.</p><noscript>This page needs scripts, please allow them.</noscript>") == (
        "Too few words."
    )


# Doubt


def both(body: str) -> list[tuple[bool, bool, int, int]]:
    """Of blocks alone, then with trafilatura behind it: is it doubtful, by the second, how much of either prose."""
    names = ("blocks", "blocks_or_trafilatura")
    made = [extract_html(page(body), settings=ExtractRecipe(extractor=name)) for name in names]
    return [
        (one.is_doubtful, one.is_second, one.text.count("doubled in size"), one.text.count("Knead")) for one in made
    ]


def test_a_page_of_which_names_take_out_most_prose_is_doubtful_and_trafilatura_is_asked():
    body = f"<div class=text>{PROSE}</div>" + f"<div class=upnext>{OTHER}</div>" * 3
    assert both(body) == [(True, False, 3, 0), (True, True, 3, 3)]  # which writes the same paragraph once


@pytest.mark.parametrize("name", ["comments", "cookie-notice", "newsletter"])
def test_what_is_surely_no_main_text_makes_no_doubt(name: str):
    assert (
        both(f"<div class=text>{PROSE * 2}</div>" + f"<div class={name}>{OTHER}</div>" * 3)
        == [(False, False, 6, 0)] * 2
    )


@pytest.mark.parametrize(("comments", "is_doubtful"), [(4, False), (7, True)])
def test_comments_make_a_doubt_where_they_are_nearly_all_there_is(comments: int, is_doubtful: bool):
    body = f"<div class=text>{PROSE * 2}</div>" + f"<div id=comments>{OTHER}</div>" * comments
    assert both(body) == [(is_doubtful, False, 6, 0)] * 2  # trafilatura knows them for comments too


def test_of_a_doubtful_page_blocks_keep_what_trafilatura_adds_no_prose_to():
    assert both(f"<div class=text><p>{SENTENCES[:77]}</p></div>") == [(True, False, 1, 0)] * 2
    assert both(f"<p>{SENTENCES[:77]}</p>" + "<p><a href=/>Knead for an hour</a></p>" * 9) == [(True, False, 1, 0)] * 2


def test_prose_is_what_is_long_and_has_sentences():
    assert prose_characters(f"Bread\n{SENTENCES}\n{'flour ' * 20}\n生地を休ませる。") == len(SENTENCES)
    assert prose_characters("生地を休ませる。" * 10) == 80


def test_a_word_that_would_take_out_most_of_the_page_is_not_believed():
    assert text_of(f"<div class=sidebar>{PROSE * 4}</div>").count("doubled in size") == 12


def test_text_below_pictures_is_main_text_where_there_is_no_other():
    figure = f"<figure><img src=a.png><figcaption>{SENTENCES}</figcaption></figure>"
    assert text_of(f"<article>{figure * 5}</article>").count("doubled in size") == 15
    assert text_of(f"<article>{PROSE * 9}{figure}</article>").count("doubled in size") == 27


def test_end_tags_may_be_left_out_and_may_end_nothing():
    text = text_of(f"<ul><li>flour<li>water</ul></div><p>{SENTENCES}<p>{SENTENCES}</i>")
    assert text.split("\n\n") == ["• flour\n• water", SENTENCES.strip(), SENTENCES.strip()]


def test_readings_above_signs_are_left_out():
    assert "生地を休ませる" in text_of(f"{PROSE}<p><ruby>生地<rp>(<rt>きじ<rp>)</ruby>を休ませる。</p>")


def test_entities_and_white_space_are_written_as_a_browser_shows_them():
    assert text_of(f"{PROSE}<p>x &le;\n\t y&nbsp;z &amp;lt;</p>").endswith("x ≤ y z &lt;")


def test_title_language_and_date_are_what_the_page_says():
    made = extract_html(
        page(
            PROSE,
            "<title> Bread &amp; \n butter</title><meta name=date content=2019-01-01>"
            "<meta content='2021-03-04T05:06:07Z' property='article:published_time'>",
            'lang="en-GB"',
        ),
        settings=SETTINGS,
    )
    assert (made.title, made.language, made.date) == ("Bread & butter", "en", "2021-03-04")


@pytest.mark.parametrize("charset", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
def test_every_charset_gives_the_same_text(charset: str):
    body = f"<p>Der Teig für die Brötchen ruht über Nacht. {SENTENCES}</p>"
    made = extract_html(page(body).decode().encode(charset), settings=SETTINGS)
    assert made.text.startswith("Der Teig für die Brötchen ruht über Nacht.")


@pytest.mark.parametrize(
    ("html", "reason"),
    [
        (b"<", "too_short"),
        (b"</", "too_short"),
        (b"<!--", "no_main_text"),
        (b"<a href='", "no_main_text"),
        (b"<title>", "no_main_text"),
        (b"<p>\xff\xfe\x00" + PROSE.encode(), ""),
    ],
)
def test_a_page_that_breaks_off_has_its_reason(html: bytes, reason: str):
    assert extract_html(html, settings=SETTINGS).reason == reason


# Kernels

KERNELS = [
    (module, name)
    for module in (markup, blocks)
    for name, value in vars(module).items()
    if hasattr(value, "py_func") and value.py_func.__module__ == module.__name__
]


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in KERNELS:
        plain = vars(module)[name].py_func
        for user in (markup, blocks):
            if name in vars(user):
                monkeypatch.setattr(user, name, plain)


def found(html: bytes) -> tuple[list[Any], str]:
    scanned = blocks.scan_page(html, max_depth=1000)
    arrays = [getattr(scanned, name).tolist() for name in ("tag", "parent", "signs", "last", "start", "end", "node")]
    made = blocks.analyse(scanned)
    sums = [made.num_kept, made.num_prose_kept, made.num_prose_missed, made.num_prose_commented]
    return [*arrays, scanned.block.tolist(), scanned.spans.tolist(), scanned.title, sums], blocks.main_text(
        scanned, made
    )


def test_the_places_of_code_in_the_text_are_known():
    body = (
        f"<h1>A &amp; B</h1>{PROSE}<pre><b>for x</b> in y:\n  print(x) &lt; 1\n</pre>{PROSE}"
        f"<p>Call <code>é &amp; c</code>, or <code>d</code>.</p><p><code>whole</code></p>{PROSE}"
    )
    for extractor, code in (("blocks", ["for x in y:\n  print(x) < 1", "é & c", "d", "whole"]), ("resiliparse", [])):
        made = extract_html(page(body), settings=ExtractRecipe(extractor=extractor))
        assert [made.text[start:end] for start, end in zip(made.code[::2], made.code[1::2], strict=True)] == code


HOSTILE = [
    page(f"<h1>Bread</h1>{PROSE}<ul><li>a<li>b</ul><table><tr><td>1<td>2<tr><td>3</table><pre> x\n y</pre>{PROSE}"),
    page(f"<div class=text>{PROSE}</div><div class=upnext>{PROSE}</div><footer>{PROSE}</footer><p> &copy; 1999. x"),
    page(f"<article class='main-content'><header>x</header>{PROSE}<figure>{PROSE}</figure></article><aside>{PROSE}"),
    b"<div class='a b&#9; C-d' ID=x1 hidden=hidden/>&nbsp;&#160;&bogus; </div ><!-->--!><p/>a<br/>b<?x><!y><a-b>c</a>",
    "<p>日本語、です。！".encode() + b"\xff\xc2\xa0\xe3\x80" + b"<script><!--</script><textarea></textare",
    b"<table><tr><td><table><td><li></tr></table><dl><dt>a<dd>b<dt>c</dl><select><option>1<option>2</select>x",
    bytes(range(256)) * 3,
    b"<",
    b"",
]


def test_kernels_give_the_same_without_the_compiler(monkeypatch: pytest.MonkeyPatch):
    compiled = [found(html) for html in HOSTILE]
    without_compiler(monkeypatch)
    assert [found(html) for html in HOSTILE] == compiled
    assert len(KERNELS) > 20


def test_kernels_work_where_no_cache_folder_can_be_written(monkeypatch: pytest.MonkeyPatch):
    def njit(*, cache: bool = False, nogil: bool) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: ("compiled", function)

    def kernel() -> int:
        return 1

    monkeypatch.setattr(native._compiler(), "njit", njit)
    said, function = native.native(kernel).compiled
    assert said == "compiled" and function.__code__ is kernel.__code__


def test_the_compiler_is_not_imported_before_a_kernel_is_called():
    import subprocess

    code = (
        "import sys\n"
        "from training.data.dedup import duplicates, minhash, substrings\n"
        "from training.data.exams.search import gram_loops\n"
        "from training.data.extract import extract\n"
        "from training.data.extract.pages import blocks\n"
        "from training.data.filter import score\n"
        "from training.data.words import hashes, lid\n"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
