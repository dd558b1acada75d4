"""Gopher, C4 and FineWeb against datatrove's own blocks: the same reason and the same text left, page by page."""

import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.datatrove_filters import RULES, judged
from tests.training.data import chain
from tests.training.data.filter.pages import judge
from training.data.filter.judge import make_rules
from training.data.filter.settings import FilterRecipe
from training.data.sources import read_rows
from training.data.words import table as wordtable
from training.data.words.chunks import code_points
from training.data.words.table import WordTable, _sentences

STOCK = FilterRecipe(rules=RULES)
EACH = {rule: FilterRecipe(rules=(rule,)) for rule in RULES}
STRICT = FilterRecipe(
    rules=("c4", "fineweb", "gopher_quality", "gopher_repetition"),
    c4_lines_end_with_punctuation=True,
    c4_min_words_per_line=3,
    c4_min_sentences=1,
    gopher_min_words=5,
    fineweb_max_duplicate_characters=0.3,
)
LOOSE = FilterRecipe(
    rules=("c4", "fineweb"),
    c4_min_sentences=1,
    c4_max_word_length=11,
    c4_drop_lorem_ipsum=False,
    c4_drop_citations=False,
    c4_drop_javascript_lines=False,
    c4_drop_policy_lines=False,
    c4_drop_curly_brackets=False,
    fineweb_short_line_length=12,
    fineweb_max_duplicate_characters=0.5,
)

WORDS = [
    *"the be to of and that have with bread oven salt flour water it's don't can't".split(),
    *"Dr. e.g. 5km x:) :( ) ( [1] [edit] breadcrumbs, breadcrumbs[2]".split(),
    *("#", "...", "…", "-", "•", "|", "17", "3.50", "{", "}", "Lorem ipsum", "JavaScript", "use cookies"),
]
ENDS = [".", ". ", "!\n", "?", "\n", "\n\n", "\n\n\n", " ", "  ", ",", "...\n", '."\n', "\t", "\r\n", "\u2028", ".)\n"]
SENTENCES = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
LINES = st.lists(st.tuples(SENTENCES, st.sampled_from(ENDS)), max_size=25)
TEXTS = LINES.map(lambda lines: "".join(text + end for text, end in lines))


def ours(text, recipe, code="en"):
    page, reason = judge(chain.document("s", "f", 0, text, language=code), make_rules(recipe, None))
    return reason, "" if reason else page.text


def same(text, recipe, code="en"):
    # datatrove's blocks divide by zero or not on a blank text, each in its own way; here all say `empty`
    return not text.strip() or ours(text, recipe, code) == judged(text, code, recipe)


@settings(max_examples=120, deadline=None)
@given(TEXTS, st.sampled_from([STOCK, STRICT, LOOSE, *EACH.values()]))
def test_made_texts_are_judged_as_by_datatrove(text, recipe):
    assert same(text, recipe)


@settings(max_examples=60, deadline=None)
@given(TEXTS)
@example("It rises.  )\nIt rests. )\nIt bakes.\t!")  # white space is a word, and begins a sentence
@example("x:) ) . And")  # a sequence runs through two chunks
def test_sentences_of_lines_are_counted_as_by_spacy(text):
    from datatrove.utils.text import split_into_sentences

    lines = [line.strip().replace("[1]", "") for line in text.splitlines()]
    words = wordtable.table_of("en").words("\n".join(lines))
    assert words.sentences(lines) == sum(len(split_into_sentences(line, "en")) for line in lines)


def pages(uri, count, field="text"):
    return [row[field] for _, row in zip(range(count), read_rows(uri), strict=False)]


@pytest.mark.data
@pytest.mark.parametrize(
    ("uri", "count"),
    [
        ("data://filters/dolma_cc_en_head-0091.jsonl.gz", 60),
        ("data://text/c4_demo.jsonl.gz", 60),
        ("data://filters/dclm_human_quality_agreement_data.jsonl.gz", 30),
    ],
)
def test_real_pages_are_judged_as_by_datatrove(uri, count):
    texts = pages(uri, count)
    wrong = [text[:80] for text in texts if not all(same(text, recipe) for recipe in (STOCK, STRICT, LOOSE))]
    assert wrong == []
    assert len({ours(text, STOCK)[0] for text in texts}) > 2


@pytest.mark.data
@pytest.mark.parametrize("code", ["en", "de", "zh"])
def test_listed_words_are_found_as_by_datatroves_block(code, tmp_path, monkeypatch):
    from datatrove.data import Document
    from datatrove.pipeline.filters import c4_filters

    uri = "data://filters/ldnoobw_badwords.jsonl.gz"
    # datatrove takes entries with capitals as they are and never finds them in lower-cased text
    entries = [row["word"].lower() for row in read_rows(uri) if row["lang"] == code]
    (tmp_path / "list").write_text("\n".join(entries), "utf-8")
    monkeypatch.setattr(c4_filters, "cached_asset_path_or_download", lambda *_, **__: tmp_path / "list")
    monkeypatch.setattr(c4_filters, "_BADWORDS_ALLOWLIST", {})  # left out of the list by who makes the list
    stock = c4_filters.C4BadWordsFilter()
    texts = pages("data://preference/hh_rlhf_harmless_base_test.jsonl.gz", 150, "chosen")
    texts += [form.format(entry) for entry in entries for form in ("Say {}.", "Say no{} now", "{}\nagain", "un{}")]
    recipe = FilterRecipe(rules=("c4",), c4_bad_words=uri, c4_min_sentences=0, c4_drop_curly_brackets=False)
    expected = [stock.filter(Document(text=text, id="", metadata={"language": code})) is not True for text in texts]
    assert [ours(text, recipe, code)[0] == "c4:bad_word" for text in texts] == expected
    assert 0 < sum(expected) < len(texts)


@pytest.mark.data
def test_crawled_pages_in_several_languages_are_judged_as_by_datatrove():
    from training.data.crawl.warc import Record, read_warc
    from training.data.extract.pages.html import extract_html
    from training.data.extract.responses import parse_response, payload
    from training.data.extract.settings import ExtractRecipe
    from training.data.words.language import identify

    path = Path(os.environ["PEDIGREE_DATA"], "crawl/snapshot-1/web-04-00000.warc.gz")
    found = []
    for record in read_warc(path, max_content_bytes=200_000):
        if not isinstance(record, Record) or record.type != "response":
            continue
        body = payload(parse_response(record.content), max_bytes=100_000) if len(record.content) < 60_000 else b""
        if b"<html" in body[:1000]:
            found.append(extract_html(body, settings=ExtractRecipe(extractor="resiliparse")).text)
        if len(found) == 60:
            break
    codes = [identify(text)[0] for text in found]
    recipe = FilterRecipe(rules=RULES, languages=("en", "de", "fr", "es", "da", "tr", "ru", "pt"))
    known = [(text, code) for text, code in zip(found, codes, strict=True) if code in recipe.languages]
    assert len({code for _, code in known}) > 2
    assert [text[:80] for text, code in known if not same(text, recipe, code)] == []


def test_a_full_table_is_left_and_its_words_still_count(monkeypatch):
    monkeypatch.setattr(wordtable, "MAX_CHUNKS", 3)
    monkeypatch.setattr(wordtable, "_TABLES", {})
    first = wordtable.table_of("en").words("salt and pepper and bread")
    second = wordtable.table_of("en").words("salt")
    assert second._table is not first._table
    assert first.counts.words == 5 and second.counts.words == 1


def test_what_a_table_has_seen_changes_nothing():
    texts = ["It's 5km to x:) ) the oven...", "x:) )", "The oven's (it's hot).", "don't x:) ( )"]
    table = WordTable("en")
    for text in (*texts, *reversed(texts)):
        fresh = WordTable("en").words(text)
        known = table.words(text)
        assert (known.counts, known.repeated) == (fresh.counts, fresh.repeated)


def test_the_kernel_of_sentences_is_the_same_without_the_compiler():
    table = WordTable("en")
    lines = ["It rises.  It rests. It bakes", "", '"Why?" he asked.', "x:) ) . And [1]  so."]
    text = "\n".join(lines)
    codes = code_points(text)
    chunks = table._chunks_of(text, codes)
    assert _sentences.py_func(codes, chunks, table._rows) == _sentences(codes, chunks, table._rows) == 8
