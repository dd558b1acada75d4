"""Suffix arrays: sorted as Python sorts lists, compiled or not, and matches as a plain search finds them."""

from __future__ import annotations

import numpy as np
import pytest

from training.provenance.text import suffixes

RNG = np.random.default_rng(0)
PERIODIC = [np.tile([2, 1, 2, 1, 1], 40), np.zeros(50, int), np.arange(50), np.arange(50)[::-1], np.array([], int)]


def plainly_sorted(tokens: np.ndarray) -> list[int]:
    return sorted(range(len(tokens)), key=lambda at: tokens[at:].tolist())


@pytest.mark.parametrize("symbols", [1, 2, 5, 3000])
def test_positions_are_in_the_order_of_what_begins_there(symbols):
    for size in (1, 2, 3, 17, 400):
        tokens = RNG.integers(0, symbols, size).astype(np.uint16)
        assert suffixes.suffix_array(tokens, symbols).tolist() == plainly_sorted(tokens)


@pytest.mark.parametrize("tokens", PERIODIC, ids=str)
def test_repetitions_are_sorted_too(tokens):
    found = suffixes.suffix_array(tokens.astype(np.uint16), 60)
    assert found.tolist() == plainly_sorted(tokens) and found.dtype == np.uint32


def test_the_compiled_kernels_do_what_their_python_does(monkeypatch):
    tokens, query = RNG.integers(0, 4, 300).astype(np.uint16), RNG.integers(0, 5, 40)
    found = suffixes.suffix_array(tokens, 4)
    matches = matches_of(tokens, found, query, symbols=4)
    for name in ("_classify", "_induce", "_name", "_lower", "_upper", "_compared", "_common", "longest_matches"):
        monkeypatch.setattr(suffixes, name, getattr(suffixes, name).py_func)
    assert suffixes.suffix_array(tokens, 4).tolist() == found.tolist()
    assert matches_of(tokens, found, query, symbols=4).tolist() == matches.tolist()


def matches_of(tokens, found, query, *, symbols):
    matches = np.full((len(query), 3), -1, np.int64)
    suffixes.longest_matches(tokens, found, suffixes.first_places(tokens, symbols), query, matches)
    return matches


@pytest.mark.parametrize("symbols", [2, 6, 500])
def test_the_longest_match_is_found_with_all_its_occurrences(symbols):
    tokens = RNG.integers(0, symbols, 600).astype(np.uint16)
    found = suffixes.suffix_array(tokens, symbols)
    # Parts of the tokens, their end among them, a token that never occurs, and one that cannot.
    query = np.concatenate([tokens[100:130], tokens[580:], [symbols, -1], RNG.integers(0, symbols, 30)])
    text = tokens.tolist()
    for start, (length, low, high) in enumerate(matches_of(tokens, found, query, symbols=symbols).tolist()):
        wanted = query[start : start + length].tolist()
        places = [at for at in range(len(text)) if length and text[at : at + length] == wanted]
        assert sorted(found[low:high].tolist()) == places
        longer = query[start : start + length + 1].tolist()
        assert len(longer) == length or all(text[at : at + len(longer)] != longer for at in range(len(text)))


@pytest.mark.parametrize("first_unsorted", [suffixes.first_unsorted, suffixes.first_unsorted.py_func])
@pytest.mark.parametrize("symbols", [1, 3, 500])
def test_the_first_place_out_of_order_is_found_as_python_compares_lists(symbols, first_unsorted):
    tokens = RNG.integers(0, symbols, 300).astype(np.uint16)
    found = suffixes.suffix_array(tokens, symbols)
    assert first_unsorted(tokens, found, 1, 1_000) == -1
    for _ in range(5):
        changed = found.copy()
        one, other = RNG.choice(len(changed), 2, replace=False)
        changed[[one, other]] = changed[[other, one]]
        for every, most in ((1, 1_000), (7, 1_000), (1, 2)):
            pairs = [[tokens[at : at + most].tolist() for at in changed[place : place + 2]] for place in range(299)]
            wrong = [place for place in range(0, 299, every) if pairs[place][0] > pairs[place][1]]
            assert first_unsorted(tokens, changed, every, most) == (wrong[0] if wrong else -1)
