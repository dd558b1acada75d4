"""The words in which texts are compared with exams: what hides a word from a search hides it no longer."""

from __future__ import annotations

import random
import sys
import unicodedata

import pyarrow as pa
import pytest

from training.data.documents import utf8_of
from training.data.exams.search.folding import folded_hashes, folded_words, folding, readable, word_spans
from training.data.exams.search.lookalikes import lookalikes
from training.data.exams.search.rarity import weight
from training.data.words.hashes import hash_words
from training.data.words.ngrams import CODES, words

RIVERS = "Which of the rivers don't meet"
# A table of its own: the letters that a person would type to deceive.
DECEIVING = str.maketrans("aceopxyWhichABEHKMOPTXijs", "асеорхуᎳһіϲһАВЕНКМОРТХіјѕ")


@pytest.mark.parametrize(
    "hidden",
    [
        RIVERS.upper(),
        RIVERS.replace("'", "’"),
        "\u00ad".join(RIVERS),
        "\u200b".join(RIVERS),
        "\u2060\u200d".join(RIVERS),
        "\u202e" + "\ufe0f".join(RIVERS),
        "\u0336".join(RIVERS),
        RIVERS.translate({code: chr(code + 0xFEE0) for code in range(0x21, 0x7F)}),
        RIVERS.translate({ord("a") + n: chr(0x1D41A + n) for n in range(26)}),
        RIVERS.translate({ord("a") + n: chr(0x24D0 + n) for n in range(26)}),
        RIVERS.translate(str.maketrans("aceopxyhijs", "асеорхуһіјѕ")),
        RIVERS.translate(str.maketrans("oev", "οеν")),
        RIVERS.replace(" ", "\u00a0\n\t* "),
        RIVERS.replace("i", "ı").replace("e", "ė"),
        RIVERS.translate(str.maketrans("abcdefghijklmnoprstuvwyz", "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘʀꜱᴛᴜᴠᴡʏᴢ")),
        RIVERS.upper().translate({ord("A") + n: chr(0x1F170 + n) for n in range(26)}),
        RIVERS.replace("c", "ϲ").replace("l", "ا").replace("o", "ه"),
        RIVERS.replace(" ", "\u3164"),
        RIVERS.replace(" ", "\uffa0"),
        "\u1160".join(RIVERS),
        RIVERS.replace(" ", "&nbsp;").replace("'", "&rsquo;"),
        RIVERS.replace(" ", "&amp;#160;").replace("'", "&#39;"),
        "".join(f"&#{ord(letter)};" if letter.isalpha() else letter for letter in RIVERS),
    ],
)
def test_a_hidden_text_has_the_same_words(hidden):
    assert folded_words(hidden) == ["which", "of", "the", "rivers", "dont", "meet"] == words(RIVERS)
    assert folded_hashes(readable(hidden)).tolist() == folded_hashes(RIVERS).tolist()


def test_all_characters_are_in_the_planes_that_are_looked_at():
    others = {*range(sys.maxunicode + 1)} - {*CODES, *range(0xD800, 0xE000)}
    assert {unicodedata.category(chr(code)) for code in others} == {"Cn", "Co"}  # unassigned and private


def test_what_dedup_takes_for_other_words_was_hidden():
    """The words of deduplication, with which exams were compared before, are others."""
    assert words("Wh\u00adich rivеrs") != words("Which rivers")


def test_numbers_are_not_letters():
    assert folded_words("10 1O l0 IO") == ["10", "1o", "l0", "io"]
    assert folded_words("١٢٣ 𝟏𝟐𝟑 ¹²³") == ["123"] * 3


def test_capitals_change_no_word_of_another_script():
    for word in ("Привет вода", "Όνομα".replace("ν", ""), "ΣΊΣΦΟΣ", "Straße"):
        assert folded_words(word.upper()) == folded_words(word.lower()) or "ß" in word
    assert folded_words("STRASSE") == folded_words("Straße")


def test_lookalikes_become_letters_that_are_no_lookalikes():
    table = lookalikes()
    assert len(table) > 1300 and sum(plain.isascii() for plain in table.values()) > 600
    for letter, plain in table.items():
        assert not letter.isascii() and not set(plain) & set(table) and plain == plain.casefold()


def test_a_readable_text_has_as_many_characters():
    text = "AT&T &notaname; ?a=1&copy=2 a&nbsp;b &#104;\u3164ab\u3164cd"
    shown = readable(text)
    assert len(shown) == len(text) and readable(shown) == shown
    assert folded_words(text) == ["at", "t", "notaname", "a", "1", "2", "a", "b", "h", "ab", "cd"]


@pytest.mark.parametrize(
    "pool",
    [
        "ab 'cde’\u00ad\u200b\u0301éßﬁΣς",
        "Привеи\u0306Ἄ ॐनमस्ते",
        "가각ᄀ힣ᆨ漢字かが\u3099 กํา ' ’\u00ad",
        "".join(map(chr, range(0x20, 0x3000))),
    ],
)
def test_the_compiled_loop_gives_the_same_words(pool):
    generator = random.Random(pool)
    texts = ["".join(generator.choice(pool) for _ in range(generator.randrange(1, 25))) for _ in range(800)]
    hashes, starts = hash_words(*utf8_of(pa.array(texts)), folding())
    for place, text in enumerate(texts):
        assert hashes[starts[place] : starts[place + 1]].tolist() == folded_hashes(text).tolist(), ascii(text)
        assert len(word_spans(text)) == len(folded_hashes(text))


def test_spans_are_of_the_text_as_it_is_written():
    text = "a Wh\u00adich\u200b, d’оn"
    assert [text[start:end] for start, end in word_spans(text)] == ["a", "Wh\u00adich", "d’оn"]


def test_a_rare_word_weighs_more_than_a_common_one():
    assert 0.5 == weight("the") < weight("which") < weight("river") < weight("hydroxyzine") == weight("3") == 8
