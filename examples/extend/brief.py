"""A judge of your own: 1 for an answer of few words, less for a longer one, 0 for one that repeats the question."""

from dataclasses import dataclass

from training.recipe.settings.answer_judge import AnswerJudge


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The largest number of words that has the full score."""

    words: int = 20


def score(conversation, settings):
    """Return the score of one answer, the last message; a judge could also ask a model of your own for it."""
    asked, answer = conversation[-2]["content"].strip(), conversation[-1]["content"].strip()
    if not answer or answer.casefold() == asked.casefold():
        return 0.0
    return min(1.0, settings.words / len(answer.split()))


judge = AnswerJudge(score=score, settings=Settings)
