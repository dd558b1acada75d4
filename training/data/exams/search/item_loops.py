"""Loops of `item_rule`: find where a text may hold parts of items, and align these with the text."""

from __future__ import annotations

import numpy as np

from training.data.words.native import native

PIECE_WORDS = 3  # equal words in a row with which pieces of a part that are far apart end and begin
JUMPS = 1024  # between pieces; further ones are not tried
REACH = 12  # words that a candidate's window reaches beyond the part's own length, on each side


@native
def candidates(found, begins, owners, offsets, weights, lengths, needed, out):
    """Write candidates to `out` [:, (text, part, first word, last word)] as long as there is room; return their number.

    `found` [:, (text, position, row)] are the seeds (runs of words of items) found in texts, sorted by text, then
    position. Entries `begins[row]` to `begins[row + 1]` are the places of a seed in items: the part is `owners`, the
    word in the part `offsets`, and `weights` are the weights of the part's words there. A part is a candidate if the
    words of its seeds, within twice the part's length, weigh at least `needed[part]`.
    """
    parts = len(lengths)
    text_of = np.full(parts, -1, np.int64)
    first, last = np.zeros(parts, np.int64), np.zeros(parts, np.int64)
    last_offset = np.zeros(parts, np.int64)
    sums = np.zeros(parts, np.float64)
    number = np.full(parts, -1, np.int64)  # of the part's open candidate
    total = 0
    for one in range(len(found)):
        text, position, row = found[one, 0], found[one, 1], found[one, 2]
        for entry in range(begins[row], begins[row + 1]):
            part, offset = owners[entry], offsets[entry]
            begin = position - offset
            if text_of[part] != text or position > first[part] + 2 * lengths[part] + REACH:
                text_of[part], first[part], sums[part], number[part] = text, begin, 0.0, -1
                last[part], last_offset[part] = -9, -9
            if position == last[part] and offset == last_offset[part]:
                continue
            new = offset - last_offset[part]  # words of the part that no seed right before this one has
            first_new = 4 - new if 0 < new < 4 and position > last[part] else 0
            for word in range(first_new, 4):
                sums[part] += weights[entry, word]
            last[part], last_offset[part] = position, offset
            first[part] = min(first[part], begin)
            if sums[part] >= needed[part]:
                if number[part] < 0:
                    number[part] = total
                    total += 1
                if number[part] < len(out):
                    place = number[part]
                    out[place, 0], out[place, 1], out[place, 2] = text, part, first[part]
                    out[place, 3] = position - offset + lengths[part]
    return total


@native
def aligned(text, costs, words, weights, gap, far, jumps):
    """Return the best alignment of a part's words with a text's words, in order.

    The result is (weight, first word, end in the text, last jump). An equal word adds its weight. A word of the part
    that is missing or replaced in the text adds nothing. An additional word in the text costs `gap` times its entry in
    `costs`, and any number of them at most `far`, if PIECE_WORDS equal words in a row are before and behind them. Each
    such jump is a row (jump before it, its first word, its end) of `jumps`; the last one is -1 if there is none.

    Source: local alignment (Smith and Waterman, 1981).
    """
    num = len(words)
    scores, starts = np.zeros(num + 1, np.float64), np.zeros(num + 1, np.int64)
    runs, lasts = np.zeros(num + 1, np.int64), np.full(num + 1, -1, np.int64)
    # The best alignment so far that ends with enough equal words at each place: its weight less `far`.
    ended, ended_from = np.full(num + 1, -1.0, np.float64), np.zeros((num + 1, 3), np.int64)  # start, end, last jump
    best, best_start, best_end, best_last, number = 0.0, 0, 0, -1, 0
    for position in range(len(text)):
        word, cost = text[position], gap * costs[position]
        diagonal, diagonal_start, diagonal_run, diagonal_last = 0.0, position, 0, -1
        before = 0  # the place of the best alignment that ended before this word and this place
        for place in range(1, num + 1):
            above, above_start, above_run, above_last = scores[place], starts[place], runs[place], lasts[place]
            score, start, run, last = above - cost, above_start, 0, above_last
            if ended[place - 1] > ended[before] and ended_from[place - 1, 1] <= position:
                before = place - 1
            if words[place - 1] == word:
                if diagonal <= 0.0:
                    diagonal, diagonal_start, diagonal_run, diagonal_last = 0.0, position, 0, -1
                if ended[before] > diagonal and number < len(jumps) and _goes_on(text, position, words, place - 1):
                    if ended[before] + weights[place - 1] > score:
                        jumps[number, 0], jumps[number, 1] = ended_from[before, 2], ended_from[before, 1]
                        jumps[number, 2] = position
                        score, start, run, last = ended[before] + weights[place - 1], ended_from[before, 0], 1, number
                        number += 1
                elif diagonal + weights[place - 1] >= score:
                    score, start = diagonal + weights[place - 1], diagonal_start
                    run, last = diagonal_run + 1, diagonal_last
                if score > best and run > 0:
                    best, best_start, best_end, best_last = score, start, position + 1, last
            elif diagonal > score:
                score, start, last = diagonal, diagonal_start, diagonal_last
            if scores[place - 1] > score:
                score, start, run, last = scores[place - 1], starts[place - 1], 0, lasts[place - 1]
            if score < 0.0:
                score, start, run, last = 0.0, position, 0, -1
            scores[place], starts[place], runs[place], lasts[place] = score, start, run, last
            if run >= PIECE_WORDS and score - far > ended[place]:
                ended[place] = score - far
                ended_from[place, 0], ended_from[place, 1], ended_from[place, 2] = start, position + 1, last
            diagonal, diagonal_start, diagonal_run, diagonal_last = above, above_start, above_run, above_last
    return best, best_start, best_end, best_last


@native
def _goes_on(text, position, words, place):
    """Whether PIECE_WORDS words of the text from `position` on are those of the part from `place` on."""
    if position + PIECE_WORDS > len(text) or place + PIECE_WORDS > len(words):
        return False
    for ahead in range(1, PIECE_WORDS):  # noqa: SIM110 - numba compiles no generators
        if text[position + ahead] != words[place + ahead]:
            return False
    return True


@native
def shares(candidates, groups, hashes, costs, starts, begins, words, weights, reaches, gap_share, far_share):
    """Return how much of the question or answer of each group of candidates the text near them holds.

    Group g is candidates `groups[g]` to `groups[g + 1]`, of one text and one part; `reaches[part]` are the words that
    are near on each side. The result is a fraction of the weight of all words of the question or answer.
    """
    found = np.zeros(len(groups) - 1, np.float64)
    for one in range(len(groups) - 1):
        text, part = candidates[groups[one], 0], candidates[groups[one], 1]
        room, reach = 0, reaches[part]
        for row in range(groups[one], groups[one + 1]):
            room += candidates[row, 3] - candidates[row, 2] + 2 * reach
        near, cost = np.empty(room, np.uint64), np.empty(room, np.float64)
        number, end = 0, starts[text]
        for row in range(groups[one], groups[one + 1]):
            low = max(end, starts[text] + max(0, candidates[row, 2] - reach))
            end = max(end, min(starts[text + 1], starts[text] + max(0, candidates[row, 3] + reach)))
            for place in range(low, end):
                near[number], cost[number] = hashes[place], costs[place]
                number += 1
        own = weights[begins[part] : begins[part + 1]]
        total = own.sum()
        mean = total / np.count_nonzero(own)
        jumps = np.empty((JUMPS, 3), np.int64)
        here = words[begins[part] : begins[part + 1]]
        score, _, _, _ = aligned(near[:number], cost[:number], here, own, gap_share * mean, far_share * mean, jumps)
        found[one] = score / total
    return found
