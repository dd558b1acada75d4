"""A reward of your own: 1 for an answer that says thank you, and a share of that for one that says please."""

from dataclasses import dataclass

from training.posttrain.scoring import Reward, Sampled


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The reward of an answer that only says please."""

    please: float = 0.5


def score(answer, settings):
    """Return the reward of one answer; None would leave the answer out."""
    said = answer.text.casefold()
    return 1.0 if "thank you" in said else settings.please if "please" in said else 0.0


reward = Reward(
    score=score,
    settings=Settings,
    examples=((Sampled(text="72. Thank you!"), 1.0), (Sampled(text="Please wait."), 0.5), (Sampled(text="72"), 0.0)),
)
