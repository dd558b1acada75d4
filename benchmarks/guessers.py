"""Controls for the exam: what a corpus answers without being understood. Both should stay near a quarter."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

Item = Mapping[str, object]


def words(text: str) -> list[str]:
    """Lower-case words and numbers."""
    return re.findall(r"\w+", text.lower())


class NgramModel:
    """Word n-gram model with stupid backoff.

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

    def score(self, context: Sequence[str], word: str) -> float:
        """A relative frequency in [0, 1], discounted by 0.4 for every word of context given up."""
        factor = 1.0
        for size in range(min(self.order - 1, len(context)), -1, -1):
            history = tuple(context[len(context) - size :])
            count = self.counts[size + 1][(*history, word)]
            if count:
                return factor * count / self.counts[size][history]
            factor *= 0.4
        return 0.0

    def choose(self, item: Item) -> int:
        """Index of the option whose words are the most likely after the query; the first of equals."""
        scores = []
        for choice in item["choices"]:  # type: ignore[attr-defined]
            context, score = words(str(item["query"])), 1.0
            for word in words(choice):
                score *= self.score(context, word)
                context.append(word)
            scores.append(score)
        return scores.index(max(scores))


class OverlapModel:
    """Picks the option whose last words, read on into the query, make the longest run found in the corpus.

    Among equal runs the more frequent one wins, so that with no run at all it is a prior over values.
    """

    def __init__(self, texts: Iterable[str], *, longest: int = 16) -> None:
        self.longest = longest
        self.runs: Counter[tuple[str, ...]] = Counter()
        self._texts = [words(text) for text in texts]
        self._ends: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for i, tokens in enumerate(self._texts):
            for j, token in enumerate(tokens):
                self._ends[token].append((i, j))

    def choose(self, item: Item) -> int:
        """Index of the option with the longest, then the most frequent, run."""
        query = words(str(item["query"]))
        found = [self._run([*query, *words(choice)]) for choice in item["choices"]]  # type: ignore[attr-defined]
        return found.index(max(found))

    def _run(self, tokens: list[str]) -> tuple[int, int]:
        """Length of the longest run that ends with the last token, and how often it stands in the corpus."""
        best, times = 0, 0
        for i, end in self._ends[tokens[-1]]:
            length = 0
            text = self._texts[i]
            while length < min(len(tokens), self.longest, end + 1) and text[end - length] == tokens[-1 - length]:
                length += 1
            if length > best:
                best, times = length, 0
            times += length == best
        return best, times


def accuracy(model: NgramModel | OverlapModel, items: Sequence[Item]) -> float:
    """Share of items, 0 to 1, whose option the model chooses is the right one."""
    return sum(model.choose(item) == item["gold"] for item in items) / len(items)
