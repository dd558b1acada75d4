"""datatrove's own pipeline from WARC files to filtered documents, with the blocks and settings of its FineWeb example.

    python -m benchmarks.datatrove_pipeline WARC_FOLDER OUTPUT WORKERS

The peer of `benchmarks.pipeline`, in a process of its own. Its language identification fetches the same fastText model
that a wheel brings here, so the model is handed over; nothing else is changed.
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

from training.data.language import model_path


class _Model:
    """The fastText model with answers of the kind that datatrove expects."""

    def __init__(self, path: str) -> None:
        import fasttext

        self._model = fasttext.load_model(path)

    def predict(self, text: str, k: int) -> tuple[Any, Any]:
        labels, scores = self._model.predict(text, k=k)
        return labels, np.asarray(scores)


LanguageFilter._requires_dependencies = []  # it asks for another distribution of the module that is there


class _Languages(LanguageFilter):
    """Reads the model in the process that uses it."""

    def filter(self, doc: Any) -> Any:
        if self.model._model is None:
            self.model._model = _Model(str(model_path()))
        return super().filter(doc)


def main(source: str, output: str, workers: int) -> None:
    """Run it to the end."""
    steps = [
        WarcReader(source, glob_pattern="*.warc.gz", default_metadata={"dump": "benchmark"}),
        URLFilter(),
        Trafilatura(favour_precision=True),
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
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
