import pytest

from tests.training.data.filter.pages import GOOD, reason_of
from training.data.filter.rule import KEPT
from training.data.filter.rules.curator import shares
from training.data.filter.settings import FilterRecipe

RECIPE = FilterRecipe(rules=("curator",))


@pytest.mark.parametrize(
    ("kept", "dropped", "reason"),
    [
        ("15 of 100 are digits", "16 of 100 are digits", "too_many_digits"),
        ("20 of 100 are of addresses", "21 of 100 are of addresses", "too_many_addresses"),
        ("25 of 100 are white space", "26 of 100 are white space", "too_much_white_space"),
        ("10 of 100 are brackets", "11 of 100 are brackets", "too_many_brackets"),
    ],
)
def test_a_page_goes_above_the_limit_and_stays_at_it(kept, dropped, reason):
    parts = {
        "too_many_digits": "0٣",  # of any alphabet
        "too_many_addresses": "https://a.example/b-",
        "too_much_white_space": " \n\u00a0",
        "too_many_brackets": "(]⟩",
    }
    for said, expected in ((kept, KEPT), (dropped, f"curator:{reason}")):
        number = int(said.split()[0])
        part = (parts[reason] * number)[:number]
        # an address ends at white space, which the text around it then needs
        text = part + " " + "x" * (99 - number) if reason == "too_many_addresses" else part + "x" * (100 - number)
        assert reason_of(text, RECIPE) == expected


def test_good_prose_is_far_from_every_limit():
    assert reason_of(GOOD, RECIPE) == KEPT
    text = GOOD + " See [1] (1984) at http://kitchen.example/a now."
    counts = {"digits": 5, "addresses": len("http://kitchen.example/a"), "brackets": 4}
    found = shares(text)
    assert {name: found[name] for name in counts} == {name: count / len(text) for name, count in counts.items()}
    assert 0.1 < found["white_space"] < 0.2


def test_a_limit_of_one_is_none():
    loose = FilterRecipe(rules=("curator",), curator_max_digits=1.0)
    assert reason_of("0123456789", RECIPE) == "curator:too_many_digits" and reason_of("0123456789", loose) == KEPT
