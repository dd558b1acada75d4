"""The table of generated sources: programs that write crawl archives, texts and exams instead of reading real ones.

No stage imports a source's module; training/data/generated.py finds it here by name. A stage's fingerprint therefore
holds the source's version only if the stage reads its files. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A generated source. Its recipe section and its URI scheme have the same `name`.

    `version` is written by hand, like a stage's, and raised when the source writes other files. It is part of the
    fingerprints of the stages that read the source, and of no others. `module` writes the files
    (training/data/generated.py).
    """

    name: str
    version: str
    module: str


SOURCES: dict[str, Source] = {
    source.name: source for source in (Source(name="kitchen", version="9", module="training.data.kitchen.source"),)
}
