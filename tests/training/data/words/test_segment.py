import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data.words import segment
from training.data.words.segment import Rules, cut, load_rules, words_of

# What the rules take apart, in any order and nearness.
PARTS = [
    *("a", "b", "it", "can", "n't", "'s", "'m", "I", "don't", "C++", "Dr.", "a.m.", "5", "km", "$", "3.5", "x-y"),
    *(":", ")", "(", "-", ".", "..", "...", ",", ";", "_", "o", "0_o", ":)", ":-(", "<3", "’", "–", "…", "!", '"', "/"),
    *(
        "http://",
        "x.com/a?b=1",
        "@",
        "é",
        "ß",
        "漢字",
        "🙂",
        "\x00",
        " ",
        "  ",
        "\n",
        "\t",
        "\u00a0",
        "\u2028",
    ),
]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=40).map("".join)


@pytest.fixture(scope="module")
def tokenizers():
    import spacy  # takes a second, and every process of the tests imports this module

    return {code: spacy.blank(code).tokenizer for code in ("en", "es")}


def spacys(tokenizer, text):
    return [word for token in tokenizer(text) if (word := token.text.strip())]


def bare(words):
    return [stripped for word in words if (stripped := word.strip())]


@pytest.mark.parametrize("code", ["en", "es"])
@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_words_are_spacys(tokenizers, code, text):
    assert bare(words_of(text, load_rules(code))) == spacys(tokenizers[code], text)


@pytest.mark.parametrize("code", ["en", "es"])
def test_every_exception_alone_and_beside_others_is_cut_as_spacy_does(tokenizers, code):
    rules = load_rules(code)
    exceptions = sorted(rules.exceptions)
    for text in (" ".join(exceptions), ", ".join(exceptions), "\n".join(f"({chunk}) x{chunk}" for chunk in exceptions)):
        assert bare(words_of(text, rules)) == spacys(tokenizers[code], text)


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_a_chunk_alone_has_spacys_words(tokenizers, text):
    for chunk in text.split():
        assert list(cut(chunk, load_rules("en")).words) == spacys(tokenizers["en"], chunk)


def test_a_neighbour_can_change_a_chunks_words():
    # alone `:)` is one word; with `)` behind it `:))` is found, longer, and is no exception with a blank in it
    rules = load_rules("en")
    assert "x:)" not in rules.exceptions and list(cut("x:)", rules).words)[-1] == ":)"
    assert words_of("x:) )", rules)[-3:] == [":", ")", ")"]


# Letters, which the patterns need not be asked about


def by_the_patterns_alone(rules):
    made = replace(rules)
    object.__setattr__(made, "leaves_letters", False)
    object.__setattr__(made, "begins_at_others", False)
    object.__setattr__(made, "tail", segment.ANYWHERE)
    return made


@pytest.mark.parametrize(
    ("pattern", "may"),
    [
        (r"a", True),
        (r"a|\.", True),
        (r"\w|\.", True),
        (r"[^.]", True),
        (r".", True),
        (r"(?:\.)?", True),
        (r"(?!\.)a", True),
        (r"(?<!\.)", True),
        (r"[+-z]", True),
        (r"(?i:\u0345)", True),  # no letter, but the capital of one
        (r"\.a", False),
        (r"(?:a|b\.)\.", False),
        (r"(?<=[0-9])km", False),
        (r"a(?=\.)", False),
        (r"[.,]{2,}$|\s+b", False),
        (r"(\d)a\1|…|[\u2600-\u26ff]", False),
    ],
)
def test_what_a_pattern_can_find_among_letters(pattern, may):
    assert segment.may_match_letters(re.compile(pattern)) == may
    assert segment.may_match_letters(re.compile(pattern, re.IGNORECASE))


@pytest.mark.parametrize(
    ("pattern", "begins"),
    [
        (r"\.a|[,;]$", True),
        (r"(?<=[0-9])km|(?:\.\.+)x", True),
        (r"(?<=a)(?!b)-(?=[a-z])", True),
        (r"(?<=[0-9]a)b", True),
        (r"a\.", False),
        (r"\.|(?:a|-)b", False),
        (r"\.?a", False),
        (r"(?<=a)b", False),
        (r"(?<![0-9])a", False),
        (r"(?i:\u0345)x", False),
        (r"(?=\.)a", False),
        (r"$", False),
    ],
)
def test_where_a_match_can_begin(pattern, begins):
    assert segment.begins_at_other(re.compile(pattern)) == begins
    assert not segment.begins_at_other(re.compile(pattern, re.IGNORECASE))


@pytest.mark.parametrize(
    ("pattern", "ends", "reach", "runs"),
    [
        (r",$|(?<=[0-9])(?:km|m/s)$|'s$", ",sm", 3, ""),
        (r"[.-0]$|(?:a|b)+c$", None, None, None),  # no run of one character
        (r"\.\.+$|\)$", ".)", 1, "."),
        (r"[,;]{1,4}$|€$", ",;", 4, ""),
        (r"a$|b", None, None, None),
        (r"a?$", None, None, None),
        (r"[^a]$", None, None, None),
        (r"\d$|a$", None, None, None),
    ],
)
def test_where_a_suffix_can_be(pattern, ends, reach, runs):
    tail = segment.tail_of(re.compile(pattern))
    if ends is None:
        assert tail == segment.ANYWHERE
        return
    assert {chr(code) for code in range(128)} - tail.never == set(ends)
    assert (tail.reach, tail.runs) == (reach, frozenset(runs))


@pytest.mark.parametrize("code", ["en", "es", "de", "fr"])
@settings(max_examples=50, deadline=None)
@given(text=TEXTS)
def test_letters_need_no_patterns(code, text):
    rules = load_rules(code)
    plain = by_the_patterns_alone(rules)
    text += " 5km 10am cannot don't l'eau Abb. and....... 10km/h. (5m²), x's' a;,:!?)) 10,-€ 20%."
    assert words_of(text, rules) == words_of(text, plain)
    assert [cut(chunk, rules) for chunk in text.split()] == [cut(chunk, plain) for chunk in text.split()]


@pytest.mark.data
def test_chunks_of_crawled_pages_are_cut_as_by_the_patterns_alone():
    from training.data.crawl.warc import read_warc

    rules = load_rules("en")
    assert rules.leaves_letters and rules.begins_at_others and rules.tail.reach < 10 and len(rules.tail.never) > 50
    plain = by_the_patterns_alone(rules)
    path = Path(os.environ["PEDIGREE_DATA"], "crawl/snapshot-1/web-04-00000.warc.gz")
    pages = (record.content.decode("utf-8", "replace") for record in read_warc(path, max_content_bytes=20_000))
    chunks = {
        chunk for page, _ in zip(pages, range(200), strict=False) for chunk in re.sub("<[^>]*>", " ", page).split()
    }
    assert len(chunks) > 5000
    assert [chunk for chunk in chunks if list(cut(chunk, rules).words) != list(cut(chunk, plain).words)] == []


UNICODES_WORDS = [
    ("ja", "東京タワーに行きました。", "東 京 タワー に 行 き ま し た 。"),
    ("zh", "今天天气很好，去公园。", "今 天 天 气 很 好 ， 去 公 园 。"),
    ("ko", "한국어 문장입니다.", "한국어 문장입니다 ."),
    ("vi", "Việt Nam (2026)", "Việt Nam ( 2026 )"),
    ("th", "ไม่มีที่", "ไ ม่ มี ที่"),
    ("km", "ភាសាខ្មែរ", "ភា សា ខ្មែ រ"),
    ("my", "မြန်မာစာ", "မြ န် မာ စာ"),
    ("bo", "བོད་སྐད", "བོད ་ སྐད"),
    ("hi", "हिन्दी भाषा है।", "हिन्दी भाषा है ।"),
    ("mr", "मराठी भाषा.", "मराठी भाषा ."),
    ("ta", "தமிழ் மொழி.", "தமிழ் மொழி ."),
    ("te", "తెలుగు భాష.", "తెలుగు భాష ."),
    ("ml", "മലയാളം ഭാഷ.", "മലയാളം ഭാഷ ."),
    ("ur", "اردو زبان۔", "اردو زبان ۔"),
    ("mn", "монгол хэл.", "монгол хэл ."),
    ("", "e-mail a@b.org 3.14", "e - mail a @ b.org 3.14"),
]


def test_a_language_without_rules_of_spacys_is_split_by_unicodes():
    for code, text, words in UNICODES_WORDS:
        rules = load_rules(code)
        assert rules.are_unicodes
        assert [word for chunk in text.split() for word in cut(chunk, rules).words] == words.split(), code


@settings(max_examples=50, deadline=None)
@given(chunk=st.text(min_size=1).map(lambda text: "".join(text.split())).filter(bool))
def test_unicodes_words_are_the_whole_chunk(chunk):
    assert "".join(cut(chunk, load_rules("")).words) == chunk


def test_rules_are_read_from_spacy_once_and_then_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(segment, "__file__", str(tmp_path / "read_only" / "segment.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "read_only").touch()  # a file, so that nothing can be written below it
    first = segment._stored("de")
    monkeypatch.setitem(sys.modules, "spacy", None)
    monkeypatch.setattr(segment, "_read_from_spacy", None)
    assert segment._stored("de") == first and not first["are_unicodes"]
    assert isinstance(segment._rules(first), Rules)


def test_rules_are_read_again_when_a_language_of_spacy_or_its_table_of_tokenizers_is_another(tmp_path):
    spacy, datatrove = tmp_path / "spacy", tmp_path / "datatrove"
    language, table = spacy / "lang" / "de" / "stop.py", datatrove / "utils" / "word_tokenizers.py"
    digests = set()
    for edited in (None, language, table):
        for path in (language, table):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x = 1" + " + 1" * (path == edited))
        segment.what_decides.cache_clear()
        digests.add(segment.what_decides(spacy, datatrove))
    assert len(digests) == 3
