"""Loops of training.data.exams.item_rule: find where a text may hold parts of items, and align these with the text."""

from __future__ import annotations

import numpy as np

from training.data.words.native import native

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
            if position == last[part] + 1 and offset == last_offset[part] + 1:
                sums[part] += weights[entry, 3]
            else:
                sums[part] += weights[entry, 0] + weights[entry, 1] + weights[entry, 2] + weights[entry, 3]
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
def aligned(text, words, weights, gap):
    """Return the best alignment of a part's words with a text's words, in order: (weight, first word, end in the text).

    An equal word adds its weight. A word of the part that is missing or replaced in the text adds nothing. An
    additional word in the text costs `gap`. Source: local alignment (Smith and Waterman, 1981).
    """
    num = len(words)
    scores = np.zeros(num + 1, np.float64)
    starts = np.zeros(num + 1, np.int64)
    best, best_start, best_end = 0.0, 0, 0
    for position in range(len(text)):
        word = text[position]
        diagonal, diagonal_start = 0.0, position  # of the part's words before this one, and the text before this word
        for place in range(1, num + 1):
            above, above_start = scores[place], starts[place]
            score, start = above - gap, above_start
            if words[place - 1] == word:
                if diagonal <= 0.0:
                    diagonal, diagonal_start = 0.0, position
                if diagonal + weights[place - 1] >= score:
                    score, start = diagonal + weights[place - 1], diagonal_start
                    if score > best:
                        best, best_start, best_end = score, start, position + 1
            elif diagonal > score:
                score, start = diagonal, diagonal_start
            if scores[place - 1] > score:
                score, start = scores[place - 1], starts[place - 1]
            if score < 0.0:
                score, start = 0.0, position
            scores[place], starts[place] = score, start
            diagonal, diagonal_start = above, above_start
    return best, best_start, best_end


@native
def shares(candidates, hashes, starts, begins, words, weights, gap_share):
    """Return how much of each candidate's question or answer the text near it holds.

    The result is a fraction of the weight of all words of the question or answer.
    """
    found = np.zeros(len(candidates), np.float64)
    for one in range(len(candidates)):
        text, part = candidates[one, 0], candidates[one, 1]
        low = starts[text] + max(0, candidates[one, 2] - REACH)
        high = min(starts[text + 1], starts[text] + max(0, candidates[one, 3] + REACH))
        own = weights[begins[part] : begins[part + 1]]
        total = own.sum()
        gap = gap_share * total / len(own)
        score, _, _ = aligned(hashes[low:high], words[begins[part] : begins[part + 1]], own, gap)
        found[one] = score / total
    return found
