"""An objective of your own: the first words of a document are given, and some of them are hidden behind a token."""

from dataclasses import dataclass

from training.pretrain.objectives.rewriting import Rewriting

HIDDEN = "<|hidden|>"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The share of a document that is given and not predicted, and the share of its tokens that are hidden."""

    given: float = 0.5
    hidden: float = 0.1


def rewrite(part, draws, vocabulary, settings):
    """Change one document in place: a target is at the position that predicts it, and -100 is none."""
    count = int(len(part.tokens) * settings.given)
    is_hidden = draws.uniform(count) < settings.hidden
    part.tokens[:count][is_hidden] = vocabulary.ids[HIDDEN]
    part.targets[: max(0, count - 1)] = -100


objective = Rewriting(rewrite=rewrite, settings=Settings, special_tokens=(HIDDEN,))
