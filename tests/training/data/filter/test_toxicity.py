import pytest

from tests.training.data.filter.pages import GOOD, reason_of
from training.data.filter.settings import FilterRecipe
from training.data.filter.toxicity import LANGUAGES, LISTS, is_toxic_url, read_list, toxic_fraction


def test_the_share_counts_words_stems_and_phrases():
    assert toxic_fraction("You are a moron") == 0.25
    assert toxic_fraction("what an asshole and assholes") == 0.4  # asshole*
    assert toxic_fraction("Go to hell now please") == 0.6  # a phrase counts all its words


def test_a_phrase_is_one_of_whole_words():
    assert toxic_fraction("Go to\n hell now please") == 0.6
    for text in ("Lago to hell", "re-go to hell", "l’go to hell", "go to hello", "go to-hell"):
        assert toxic_fraction(text) == 0, text


def test_a_calm_text_and_an_empty_one_score_nothing():
    assert toxic_fraction("The cock crowed over Scunthorpe while the assistant classified grapes.") == 0.0
    assert toxic_fraction("") == 0.0


def test_the_list_of_the_texts_language_is_used_with_the_english_one():
    assert toxic_fraction("so ein arschloch", "de") > 0
    assert toxic_fraction("so ein arschloch", "en") == 0
    assert toxic_fraction("so ein asshole", "de") > 0
    assert toxic_fraction("so ein asshole", "sw") > 0


def test_an_address_is_toxic_by_whole_parts():
    assert is_toxic_url("http://cdn.xxx-clips.example/a")
    assert not is_toxic_url("http://essex.example/xxxl-shirts")


@pytest.mark.parametrize("name", [*(f"toxic.{code}.txt" for code in LANGUAGES), "toxic.urls.txt"])
def test_list_entries_are_lower_case_and_single(name):
    entries = read_list(LISTS / name)
    assert entries and entries == [entry.lower() for entry in entries]
    assert len(set(entries)) == len(entries)


def test_an_address_may_be_toxic_where_the_text_is_not():
    assert reason_of(GOOD, FilterRecipe(rules=("toxicity",)), url="http://xxx.example/") == "toxicity:url"
