"""The sources that write files for the stages: name, hand-written version, and the module that writes.

No stage imports a source (training/data/generated.py finds it by name), so that its code marks what reads its files
and nothing else. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST_VERSION = "1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A source that writes files. Its name is also that of its section in a recipe, and of its scheme in URIs.

    `version` is written by hand, as a stage's is, and raised when what the source writes changes. It is part of what is
    asked for wherever the source is read, and nowhere else. `module` writes (training/data/generated.py).
    """

    name: str
    version: str
    module: str


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (Source(name="kitchen", version=FIRST_VERSION, module="training.data.kitchen.source"),)
}
