"""What each stage's code is, so that a hand-written version cannot lie.

`python -m tests.stage_versions` records the present state in `stage_versions.json`. Where code moved and the version of
a stage that it is part of did not, it makes the small kitchen first, and asks for a new version if a golden digest
(tests/golden.py) differs, or if the small kitchen did not enter a line that changed (tests/changed_lines.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluation.stages import STAGES as EVALUATION_STAGES
from tests.changed_lines import Base, Trace, traced
from tests.golden import CHECKOUT, compare
from training.contract.identity.closure import Code
from training.contract.identity.generated_sources import SOURCES, Source
from training.contract.stage import Stage
from training.stages import STAGES as TRAINING_STAGES

RECORD = Path(__file__).with_name("stage_versions.json")
COMMAND = "python -m tests.stage_versions"
MOST_SHOWN = 5  # lines of one stage
STAGES: dict[str, Stage] = {**TRAINING_STAGES, **EVALUATION_STAGES}
GUARDED: dict[str, Stage | Source] = {**STAGES, **SOURCES}
"""What has a version that is written by hand."""


def read_record() -> dict[str, Any]:
    """What was recorded last."""
    return json.loads(RECORD.read_text("utf-8"))


def state(code: Code) -> dict[str, Any]:
    """Return what is recorded of stages and sources: digests, versions and libraries.

    There is a digest of the normalized code of every module, or file, in the closure of a stage or a source; and
    version and libraries of each.
    """
    modules = {name: digest for stage in GUARDED.values() for name, digest in code.digests(stage.module).items()}
    stages = {name: {"version": stage.version, "libraries": libraries_of(stage)} for name, stage in GUARDED.items()}
    return {"modules": modules, "stages": stages}


def libraries_of(stage: Stage | Source) -> dict[str, str]:
    """Versions of the libraries in the fingerprint; a source has none: `crawl` has the one that packs its archives."""
    return stage.library_versions() if isinstance(stage, Stage) else {}


def moved(stage: Stage | Source, code: Code, record: Mapping[str, Any]) -> list[str]:
    """Return what differs between a stage or a source and what was recorded of it.

    These are names of modules, `version`, and names of libraries.
    """
    now, before = code.digests(stage.module), record["modules"]
    own = record["stages"].get(stage.name, {"version": "", "libraries": {}})
    libraries = libraries_of(stage)
    return (
        [name for name in sorted(now) if now[name] != before.get(name)]
        + ["version"] * (stage.version != own["version"])
        + sorted(name for name in libraries | own["libraries"] if libraries.get(name) != own["libraries"].get(name))
    )


def how_to_mend(stage: Stage | Source, what: list[str]) -> str:
    """What to do about a stage that moved."""
    if "version" in what:
        return f"stage {stage.name}: record its new version with `{COMMAND}`"
    return (
        f"stage {stage.name} moved: {', '.join(what)}. Run `{COMMAND}`, which records it if golden digests are equal."
        " Where its output may differ, raise its declared version first (old artifacts become outdated)."
        f" After a merge: take either side of {RECORD.name} and run it again."
    )


def why_not_equal(stages: Mapping[str, list[str]], code: Code) -> list[str]:
    """Make the small kitchen if code of stages moved; return what does not let their outputs be called equal."""
    if not stages:
        return []
    print("making the small kitchen, to compare its digests …")
    files = {name: path for name in {one for what in stages.values() for one in what} if (path := path_of(name, code))}
    with traced(Base(CHECKOUT, RECORD), files) as trace:
        found = [line for line, matters in compare(["kitchen-small"]) if matters]
    return found + not_entered(stages, trace)


def path_of(name: str, code: Code) -> Path | None:
    """Return the path of a module or of a packaged file; None for a library."""
    package, is_file, rest = name.partition("/")
    if package.partition(".")[0] not in code.places:
        return None
    return code.places[package] / rest if is_file else code.path(name)


def not_entered(stages: Mapping[str, list[str]], trace: Trace) -> list[str]:
    """Return a line for each stage of which changed places were not entered, and these places."""
    missed = {stage: [place for name in what for place in trace.missed(name)] for stage, what in stages.items()}
    return [
        f"stage {stage}: the small kitchen did not enter {', '.join(places[:MOST_SHOWN])}"
        + (f" and {len(places) - MOST_SHOWN} more lines" if len(places) > MOST_SHOWN else "")
        for stage, places in missed.items()
        if places
    ]


def main() -> str | None:
    """Record the present state, if every stage that moved has another version or equal digests."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    code, record = Code(all_parts=True), read_record()
    stages = {stage.name: what for stage in GUARDED.values() if (what := moved(stage, code, record))}
    for name, what in stages.items():
        print(f"{name}: {', '.join(what)}")
    if found := why_not_equal({name: what for name, what in stages.items() if "version" not in what}, code):
        return "\n".join((*found, "raise the versions of the stages whose outputs may differ"))
    RECORD.write_text(json.dumps(state(code), indent=1, sort_keys=True, ensure_ascii=False) + "\n", "utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main())
