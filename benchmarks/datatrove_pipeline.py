"""datatrove's own pipeline from WARC files to filtered documents, with the blocks and settings of its FineWeb example.

    python -m benchmarks.datatrove_pipeline WARC_FOLDER OUTPUT WORKERS [fast]

`benchmarks.pipeline` runs this in a process of its own and compares itself with it. datatrove would download the
fastText model for languages, so it is given the same model from an installed package; nothing else is changed.
trafilatura is the installed version 2.3.1, although datatrove 0.10.1 requires a version before 1.12
(`requirements/overrides.txt`).

`fast` sets trafilatura's documented option for speed: no second algorithm where the first finds little text.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    LanguageFilter,
    URLFilter,
)
from datatrove.pipeline.formatters import PIIFormatter
from datatrove.pipeline.readers import WarcReader
from datatrove.pipeline.writers import JsonlWriter

from training.data.words.language import model_path


class _Model:
    """The fastText model, with its answers in the form that datatrove expects."""

    def __init__(self, path: str) -> None:
        import fasttext

        self._model = fasttext.load_model(path)

    def predict(self, text: str, k: int) -> tuple[Any, Any]:
        labels, scores = self._model.predict(text, k=k)
        return labels, np.asarray(scores)


LanguageFilter._requires_dependencies = []  # it asks for another distribution of the module that is there


class _Languages(LanguageFilter):
    """datatrove's language filter, changed to load the model in the process that uses it."""

    def filter(self, doc: Any) -> Any:
        if self.model._model is None:
            self.model._model = _Model(str(model_path()))
        return super().filter(doc)


def main(source: str, output: str, workers: int, mode: str = "") -> None:
    """Run datatrove's pipeline from WARC files to filtered documents."""
    steps = [
        WarcReader(source, glob_pattern="*.warc.gz", default_metadata={"dump": "benchmark"}),
        URLFilter(),
        Trafilatura(favour_precision=True, **({"fast": True} if mode == "fast" else {})),
        _Languages("en"),
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
        PIIFormatter(),
        JsonlWriter(output),
    ]
    LocalPipelineExecutor(
        steps, tasks=len(list(Path(source).glob("*.warc.gz"))), workers=workers, logging_dir=f"{output}.logs"
    ).run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
