"""Controls for multiple-choice exams: baselines that answer by counting words in the training text, without any model.

`shares_by_kind` gives each control's share of right answers by kind of item. A model shows more than counting on a kind
only where its score is above that of every control. The controls hold the text in memory, so they are meant for the
small corpus of a generated source, whose items name their `subjects`.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from statistics import fmean
from typing import Any, Protocol

from evaluation.exams.items import ExamItem

_SENTENCE_END = re.compile(r"\n|(?<=[.!?])\s+")


class Control(Protocol):
    """A baseline that scores the choices of an item by counting in texts."""

    def scores(self, item: ExamItem) -> list[Any]:
        """Return a score for each choice of the item; the highest one is chosen."""
        ...


def words(text: str) -> list[str]:
    """Return the words and numbers of a text in lower case."""
    return re.findall(r"\w+", text.lower())


class WordIndex:
    """Texts as words, how often each word occurs, and where each pair of words ends."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = [words(text) for text in texts]
        self.counts = Counter(token for tokens in self.texts for token in tokens)
        self.ends: defaultdict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
        for i, tokens in enumerate(self.texts):
            for j, pair in enumerate(pairwise(tokens), start=1):
                self.ends[pair].append((i, j))
        self.occurrences = cache(self._occurrences)

    def _occurrences(self, run: tuple[str, ...]) -> int:
        """Return how often these words follow each other; of no words, the number of all words."""
        if len(run) < 2:
            return self.counts[run[0]] if run else self.counts.total()
        wanted, before = list(run), len(run) - 1
        return sum(self.texts[i][end - before : end + 1] == wanted for i, end in self.ends.get(run[-2:], ()))


class NgramControl:
    """Chooses the choice whose words are most likely after the question, by a word n-gram model with stupid backoff.

    Source: Brants et al. 2007, "Large Language Models in Machine Translation"; the factor 0.4 is theirs.
    """

    def __init__(self, index: WordIndex, *, order: int = 5) -> None:
        self._index, self._order = index, order

    def scores(self, item: ExamItem) -> list[float]:
        """Return, for each choice, the product of its words' relative frequencies after the question."""
        scores = []
        for choice in item.choices:
            context, score = words(item.question), 1.0
            for word in words(choice):
                score *= self._frequency(context, word)
                context.append(word)
            scores.append(score)
        return scores

    def _frequency(self, context: Sequence[str], word: str) -> float:
        """Return a relative frequency in [0, 1], multiplied by 0.4 for each word by which the context was shortened."""
        factor = 1.0
        for size in range(min(self._order - 1, len(context)), -1, -1):
            history = tuple(context[len(context) - size :])
            if count := self._index.occurrences((*history, word)):
                return factor * count / self._index.occurrences(history)
            factor *= 0.4
        return 0.0


class OverlapModel:
    """A model that prefers choices whose last words occur in the texts together with the words before them.

    It takes the choice that ends the longest run of words found in the texts, where the question comes before the
    choice. Among equally long runs the more frequent one wins. If no run is found, it takes the most frequent
    choice.
    """

    def __init__(self, index: WordIndex, *, longest: int = 16) -> None:
        self._index, self._longest = index, longest

    def scores(self, item: ExamItem) -> list[tuple[int, int]]:
        """Return, for each choice, the length of the longest run that ends with it, and how often the run occurs."""
        asked = words(item.question)
        return [self._run([*asked, *words(choice)]) for choice in item.choices]

    def _run(self, tokens: list[str]) -> tuple[int, int]:
        times = self._index.counts[tokens[-1]]
        best = int(times > 0)
        for i, end in self._index.ends.get((tokens[-2], tokens[-1]), ()):
            length, text = 2, self._index.texts[i]
            most = min(len(tokens), self._longest, end + 1)
            while length < most and text[end - length] == tokens[-1 - length]:
                length += 1
            if length > best:
                best, times = length, 0
            times += length == best
        return best, times


class PairCounter:
    """Chooses the choice that occurs most often in one sentence with the item's subjects; among equals, on one page."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._pages = _Places(texts)
        self._sentences = _Places(sentence for text in texts for sentence in _SENTENCE_END.split(text))

    def scores(self, item: ExamItem) -> list[tuple[int, int]]:
        """Return, for each choice, the numbers of sentences and of pages that it shares with the subjects."""

        def shared(places: _Places, choice: str) -> int:
            return sum(len(places.of(choice) & places.of(subject)) for subject in item.subjects)

        return [(shared(self._sentences, choice), shared(self._pages, choice)) for choice in item.choices]


class _Places:
    """Finds the texts, by number, that have a phrase of whole words."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts: list[str] = []
        self._having: defaultdict[str, set[int]] = defaultdict(set)
        for number, tokens in enumerate(map(words, texts)):
            self._texts.append(f" {' '.join(tokens)} ")
            for token in tokens:
                self._having[token].add(number)
        self.of = cache(self._of)

    def _of(self, phrase: str) -> set[int]:
        """Return the numbers of the texts."""
        named = words(phrase)
        found = set.intersection(*(self._having.get(word, set()) for word in named)) if named else set()
        spelt = f" {' '.join(named)} "
        return found if len(named) < 2 else {number for number in found if spelt in self._texts[number]}


def credit(scores: Sequence[Any], gold: int) -> float:
    """Return the score of a control on an item, from 0 to 1.

    The right choice scores 1; if the control rates several choices equally, the score is divided among them.
    """
    best = max(scores)
    return (scores[gold] == best) / sum(score == best for score in scores)


def accuracy(control: Control, items: Sequence[ExamItem]) -> float:
    """Return the mean score of a control over the items, from 0 to 1."""
    return fmean(credit(control.scores(item), item.gold) for item in items)


def controls_from(texts: Sequence[str]) -> dict[str, Control]:
    """Return the controls that answer from counts of words and phrases in these texts."""
    index = WordIndex(texts)
    return {"ngram": NgramControl(index), "overlap": OverlapModel(index), "pairs": PairCounter(texts)}


def shares_by_kind(controls: Mapping[str, Control], items: Sequence[ExamItem]) -> dict[str, dict[str, float]]:
    """Return {kind of item: {control: share of right answers}}. The items have choices, kinds and subjects."""
    by_kind = defaultdict(list)
    for item in items:
        by_kind[item.kind].append(item)
    return {
        kind: {name: accuracy(control, some) for name, control in controls.items()}
        for kind, some in sorted(by_kind.items())
    }


def is_above(entry: Mapping[str, Any], controls: Mapping[str, float]) -> bool:
    """Whether a score's 95 % interval lies above chance and above every control."""
    return entry["interval"][0] > max(entry["chance"], *controls.values())
