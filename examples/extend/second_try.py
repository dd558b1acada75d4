"""An exam by a harness of your own: a model that answers wrong may try again, for a part of the score."""

from dataclasses import dataclass

from training.data.exams.grading import equals_one
from training.data.exams.own_harness import Harness, ItemScore


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How often a model may answer, and the temperature of its answers after the first."""

    tries: int = 2
    temperature: float = 0.7

    def __post_init__(self):
        """Refuse a number of tries that asks nothing."""
        if self.tries < 1:
            raise ValueError(f"tries={self.tries}; at least 1 is right")


def ask(model, items, settings):
    """Return a score for each item; a harness could also run what a model writes, or let it use tools."""
    found, left = {}, items
    for number in range(settings.tries):
        prompts = [(item.id, item.messages) for item in left]
        answers = model.answers(prompts, temperature=settings.temperature if number else 0.0)
        for item, answer in zip(left, answers, strict=True):
            score = equals_one(answer, item.answers) / (number + 1)
            found[item.id] = ItemScore(item=item.id, score=score, response=answer)
        left = [item for item in left if found[item.id].score == 0]
    return found.values()


harness = Harness(ask=ask, settings=Settings)
