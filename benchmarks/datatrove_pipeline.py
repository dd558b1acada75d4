"""datatrove's own pipeline from WARC files to filtered documents, with the blocks and settings of its FineWeb example.

    python -m benchmarks.datatrove_pipeline WARC_FOLDER OUTPUT WORKERS [fast | told | as-ours]

`benchmarks.pipeline` runs this in a process of its own and compares itself with it. datatrove would download the
fastText model for languages, so it is given the same model from an installed package; nothing else is changed.
trafilatura is the installed version 2.3.1, although datatrove 0.10.1 requires a version before 1.12
(`requirements/overrides.txt`).

`fast` sets trafilatura's documented option for speed: no second algorithm where the first finds little text. `told`
also writes the pages that each block drops into `OUTPUT-dropped/BLOCK/` and leaves personal data unchanged; it is for
explanations, not for timing. `as-ours` is like `told`, but without the extractor's time limit of one second, and
without its removal of paragraphs that an earlier page had.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.extractors.base import ExtractorSandbox
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


class _Told(Trafilatura):
    """datatrove's trafilatura block, changed to write which pages gave no text.

    It also writes whether the time limit was the cause.
    """

    def __init__(self, dropped: Path, **options: Any) -> None:
        super().__init__(favour_precision=True, **options)
        self._dropped = dropped

    def run(self, data: Any, rank: int = 0, world_size: int = 1) -> Any:
        late: set[str] = set()
        seen: list[str] = []  # and not yet known to have given a text; the last is at work

        def noted() -> Iterator[Any]:
            for doc in data:
                seen.append(doc.id)
                yield doc

        def process_document(sandbox: Any, text: str, extract: Any) -> Any:
            try:
                return plain(sandbox, text, extract)
            except TimeoutError:
                late.add(seen[-1])
                raise

        plain = ExtractorSandbox.process_document
        ExtractorSandbox.process_document = process_document
        self._dropped.mkdir(parents=True, exist_ok=True)
        with open(self._dropped / f"{rank:05d}.jsonl", "w", encoding="utf-8") as lines:

            def gone(id: str) -> None:
                reason = "its limit of time" if id in late else "no text"
                lines.write(json.dumps({"id": id, "metadata": {"filter_reason": reason}}) + "\n")

            for doc in super().run(noted(), rank, world_size):
                while (first := seen.pop(0)) != doc.id:
                    gone(first)
                yield doc
            for first in seen:
                gone(first)


def main(source: str, output: str, workers: int, mode: str = "") -> None:
    """Run datatrove's pipeline from WARC files to filtered documents."""
    dropped = Path(f"{output}-dropped")

    is_told = mode in ("told", "as-ours")

    def writes(name: str) -> dict[str, Any]:
        return {"exclusion_writer": JsonlWriter(str(dropped / name), compression=None)} if is_told else {}

    own = {"as-ours": {"timeout": 600, "deduplicate": False}, "fast": {"fast": True}}.get(mode, {})
    steps = [
        WarcReader(source, glob_pattern="*.warc.gz", default_metadata={"dump": "benchmark"}),
        URLFilter(**writes("url")),
        _Told(dropped / "extraction", **own) if is_told else Trafilatura(favour_precision=True, **own),
        _Languages("en", **writes("language")),
        GopherRepetitionFilter(**writes("gopher_repetition")),
        GopherQualityFilter(**writes("gopher_quality")),
        C4QualityFilter(filter_no_terminal_punct=False, **writes("c4")),
        FineWebQualityFilter(**writes("fineweb")),
        *([] if is_told else [PIIFormatter()]),
        JsonlWriter(output),
    ]
    LocalPipelineExecutor(
        steps, tasks=len(list(Path(source).glob("*.warc.gz"))), workers=workers, logging_dir=f"{output}.logs"
    ).run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
