"""Suffix arrays over the tokens of a shard, and the search in them.

A suffix array lists the positions of a shard in the order of the token sequences that begin there. All occurrences of a
sequence are therefore neighbours in it, and two binary searches find and count them. Sorting is by induction (SA-IS;
Nong, Zhang and Chan, 2009): its time grows with the number of tokens alone, however many copies of a page there are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from training.data.words.native import native

Ints = npt.NDArray[np.integer]
Flags = npt.NDArray[np.bool_]
Tokens = Ints
Suffixes = npt.NDArray[np.uint32]
MAX_TOKENS = 2**31 - 1  # of a shard; positions are int32 while they are sorted


def suffix_array(tokens: Tokens, num_symbols: int) -> Suffixes:
    """Return the positions of `tokens`, sorted by the sequence of tokens that begins there, uint32 [tokens].

    Every token is below `num_symbols`. A sequence that is the beginning of another one comes first. The peak of memory
    is 23 bytes a token, with two for the tokens (docs/log/benchmarks.md). Raise ValueError for more than MAX_TOKENS
    tokens.
    """
    if len(tokens) > MAX_TOKENS:
        raise ValueError(f"a suffix array has at most {MAX_TOKENS:,} tokens, not {len(tokens):,}")
    return _sorted(np.asarray(tokens, np.int32), num_symbols).view(np.uint32)


def _sorted(text: npt.NDArray[np.int32], num_symbols: int) -> npt.NDArray[np.int32]:
    """Return the suffix array of `text`, int32.

    It calls itself for a text of at most half the length.
    """
    result = np.full(len(text), -1, np.int32)
    if len(text) == 0:
        return result
    sizes = np.bincount(text, minlength=num_symbols)
    is_small = np.zeros(len(text) + 1, np.bool_)
    starts = np.empty(len(text) // 2 + 1, np.int32)
    starts = starts[: _classify(text, is_small, starts)]
    _induce(text, is_small, sizes, starts, result)
    if len(starts) > 1:
        names = np.empty(len(starts), np.int32)
        num_names = _name(text, is_small, starts, result, names)
        order = np.argsort(names, kind="stable") if num_names == len(starts) else _sorted(names, num_names)
        result.fill(-1)
        _induce(text, is_small, sizes, starts[order], result)
    return result


@native
def _classify(text: Ints, is_small: Flags, starts: Ints) -> int:
    """Mark the suffixes that are smaller than the next one; write the leftmost of each stretch of them to `starts`.

    The end of the text counts as the smallest suffix. Return how many starts there are; they are in the text's order.
    """
    is_small[len(text)] = True
    for at in range(len(text) - 2, -1, -1):
        is_small[at] = text[at] < text[at + 1] or (text[at] == text[at + 1] and is_small[at + 1])
    found = 0
    for at in range(1, len(text)):
        if is_small[at] and not is_small[at - 1]:
            starts[found] = at
            found += 1
    return found


@native
def _induce(text: Ints, is_small: Flags, sizes: Ints, starts: Ints, result: Ints) -> None:
    """Write the order of all suffixes to `result`, given the order of those at `starts`.

    If `starts` are in the text's order, the suffixes at them are ordered by their text up to the next start only.
    """
    ends = np.cumsum(sizes)
    for number in range(len(starts) - 1, -1, -1):
        symbol = text[starts[number]]
        ends[symbol] -= 1
        result[ends[symbol]] = starts[number]
    firsts = np.cumsum(sizes) - sizes
    last = len(text) - 1
    result[firsts[text[last]]] = last
    firsts[text[last]] += 1
    for place in range(len(text)):
        before = result[place] - 1
        if before >= 0 and not is_small[before]:
            result[firsts[text[before]]] = before
            firsts[text[before]] += 1
    ends = np.cumsum(sizes)
    for place in range(len(text) - 1, -1, -1):
        before = result[place] - 1
        if before >= 0 and is_small[before]:
            ends[text[before]] -= 1
            result[ends[text[before]]] = before


@native
def _name(text: Ints, is_small: Flags, starts: Ints, result: Ints, names: Ints) -> int:
    """Number the stretches between the starts by their order in `result`; equal stretches have the same number.

    Writes the number of each start to `names`, and returns how many numbers there are.
    """
    number_of = np.full(len(text) // 2 + 1, -1, np.int32)  # two starts are never neighbours
    for number in range(len(starts)):
        number_of[starts[number] // 2] = number
    name, last = -1, -1
    for place in range(len(text)):
        at = result[place]
        if at < 1 or not is_small[at] or is_small[at - 1]:
            continue
        number = number_of[at // 2]
        stop = starts[number + 1] if number + 1 < len(starts) else len(text)
        is_equal = False
        if last >= 0 and stop < len(text):
            begin, end = starts[last], starts[last + 1] if last + 1 < len(starts) else len(text)
            is_equal = end < len(text) and end - begin == stop - at
            step = 0
            while is_equal and step <= stop - at:
                is_equal = text[begin + step] == text[at + step]
                step += 1
        if not is_equal:
            name += 1
        names[number] = name
        last = number
    return name + 1


@native
def first_unsorted(tokens: Ints, suffixes: Ints, every: int, most: int) -> int:
    """Return the first place of a suffix array that is out of order, or -1 if none is.

    One place in `every` is looked at: its suffix must not sort after the next one, by their first `most` tokens.
    """
    for place in range(0, len(suffixes) - 1, every):
        one, other = suffixes[place], suffixes[place + 1]
        for step in range(most):
            if one + step >= len(tokens):
                break
            if other + step >= len(tokens) or tokens[one + step] > tokens[other + step]:
                return place
            if tokens[one + step] < tokens[other + step]:
                break
    return -1


def first_places(tokens: Tokens, num_symbols: int) -> npt.NDArray[np.int64]:
    """Return, for each token, where its suffixes begin in the suffix array, int64 [symbols + 1]."""
    return np.concatenate([[0], np.cumsum(np.bincount(tokens, minlength=num_symbols))])


@native
def longest_matches(tokens: Ints, suffixes: Ints, first: Ints, query: Ints, matches: Ints) -> None:
    """Find, for each position of `query`, the longest sequence from there on that occurs in `tokens`.

    Writes int64 [query, 3] to `matches`: the sequence's length, and the first place and the one after the last of its
    occurrences in `suffixes`. `first` is the result of `first_places`.
    """
    for start in range(len(query)):
        symbol = query[start]
        matches[start] = 0
        if symbol < 0 or symbol + 1 >= len(first) or first[symbol] == first[symbol + 1]:
            continue
        low, high = first[symbol], first[symbol + 1]
        place = _lower(tokens, suffixes, query, start, len(query), low, high)
        length = 1
        for neighbour in range(max(place - 1, low), min(place + 1, high)):
            length = max(length, _common(tokens, suffixes[neighbour], query, start))
        matches[start, 0] = length
        matches[start, 1] = _lower(tokens, suffixes, query, start, start + length, low, high)
        matches[start, 2] = _upper(tokens, suffixes, query, start, start + length, low, high)


@native
def _lower(tokens: Ints, suffixes: Ints, query: Ints, start: int, stop: int, low: int, high: int) -> int:
    """Return the first place in the range whose suffix does not sort before `query[start:stop]`."""
    while low < high:
        middle = (low + high) // 2
        if _compared(tokens, suffixes[middle], query, start, stop) < 0:
            low = middle + 1
        else:
            high = middle
    return low


@native
def _upper(tokens: Ints, suffixes: Ints, query: Ints, start: int, stop: int, low: int, high: int) -> int:
    """Return the first place in the range whose suffix sorts after all suffixes that begin with `query[start:stop]`."""
    while low < high:
        middle = (low + high) // 2
        if _compared(tokens, suffixes[middle], query, start, stop) <= 0:
            low = middle + 1
        else:
            high = middle
    return low


@native
def _compared(tokens: Ints, at: int, query: Ints, start: int, stop: int) -> int:
    """Compare the suffix at `at` with `query[start:stop]`.

    The result is -1 if the suffix is smaller, 0 if it begins with the query, and 1 if it is greater.
    """
    for step in range(stop - start):
        if at + step >= len(tokens):
            return -1
        if tokens[at + step] != query[start + step]:
            return -1 if tokens[at + step] < query[start + step] else 1
    return 0


@native
def _common(tokens: Ints, at: int, query: Ints, start: int) -> int:
    """Return how many leading tokens the suffix at `at` and `query[start:]` share."""
    step = 0
    while start + step < len(query) and at + step < len(tokens) and tokens[at + step] == query[start + step]:
        step += 1
    return step
