"""The words of a text as the n-gram models read them, by the plainest means."""

from training.data.quality.forms import words_of


def lines_of(text: str) -> list[list[str]]:
    """Return the words (as of `words_of`) of each line that has any. The models treat a line as a sentence."""
    return [words for line in text.splitlines() if (words := words_of(line))]
