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


class NgramControl:
    """Chooses the choice whose words are most likely after the question, by a word n-gram model with stupid backoff.

    Source: Brants et al. 2007, "Large Language Models in Machine Translation"; the factor 0.4 is theirs.
    """

    def __init__(self, texts: Iterable[str], *, order: int = 5) -> None:
        self.order = order
        self.counts: list[Counter[tuple[str, ...]]] = [Counter() for _ in range(order + 1)]
        for text in texts:
            tokens = words(text)
            self.counts[0][()] += len(tokens)
            for size in range(1, order + 1):
                self.counts[size].update(zip(*(tokens[i:] for i in range(size)), strict=False))

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
        for size in range(min(self.order - 1, len(context)), -1, -1):
            history = tuple(context[len(context) - size :])
            count = self.counts[size + 1][(*history, word)]
            if count:
                return factor * count / self.counts[size][history]
            factor *= 0.4
        return 0.0


class OverlapModel:
    """A model that prefers choices whose last words occur in the texts together with the words before them.

    It takes the choice that ends the longest run of words found in the texts, where the question comes before the
    choice. Among equally long runs the more frequent one wins. If no run is found, it takes the most frequent
    choice.
    """

    def __init__(self, texts: Iterable[str], *, longest: int = 16) -> None:
        self.longest = longest
        self._texts = [words(text) for text in texts]
        self._counts = Counter(token for tokens in self._texts for token in tokens)
        self._ends: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for i, tokens in enumerate(self._texts):
            for j, pair in enumerate(pairwise(tokens), start=1):
                self._ends[pair].append((i, j))

    def scores(self, item: ExamItem) -> list[tuple[int, int]]:
        """Return, for each choice, the length of the longest run that ends with it, and how often the run occurs."""
        asked = words(item.question)
        return [self._run([*asked, *words(choice)]) for choice in item.choices]

    def _run(self, tokens: list[str]) -> tuple[int, int]:
        times = self._counts[tokens[-1]]
        best = int(times > 0)
        for i, end in self._ends.get((tokens[-2], tokens[-1]), ()):
            length, text = 2, self._texts[i]
            most = min(len(tokens), self.longest, end + 1)
            while length < most and text[end - length] == tokens[-1 - length]:
                length += 1
            if length > best:
                best, times = length, 0
            times += length == best
        return best, times


class PairCounter:
    """Chooses the choice that occurs most often in one sentence with the item's subjects; among equals, on one page."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._pages = [_joined(text) for text in texts]
        self._sentences = [[_joined(sentence) for sentence in _SENTENCE_END.split(text)] for text in texts]
        self._with = cache(self._places_of)

    def scores(self, item: ExamItem) -> list[tuple[int, int]]:
        """Return, for each choice, the numbers of sentences and of pages that it shares with the subjects."""
        subjects = [self._with(subject) for subject in item.subjects]
        choices = [self._with(choice) for choice in item.choices]
        return [
            (
                sum(len(sentences & others) for others, _ in subjects),
                sum(len(pages & others) for _, others in subjects),
            )
            for sentences, pages in choices
        ]

    def _places_of(self, phrase: str) -> tuple[set[tuple[int, int]], set[int]]:
        """Return the sentences, as (page, place), and the pages that have the phrase."""
        named = _joined(phrase)
        pages = {number for number, page in enumerate(self._pages) if named in page}
        places = ((page, place) for page in pages for place in range(len(self._sentences[page])))
        return {(page, place) for page, place in places if named in self._sentences[page][place]}, pages


def _joined(text: str) -> str:
    return f" {' '.join(words(text))} "


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
    return {"ngram": NgramControl(texts), "overlap": OverlapModel(texts), "pairs": PairCounter(texts)}


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
