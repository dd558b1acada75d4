"""What terminal, webhook and Dagster show of the evidence of a gate that refused; `--json` gives all of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from assets.state.cell import Cell

PARTS = {"item": ("item",), "text": ("text",), "page": ("url",), "record": ("warc_file", "warc_offset")}
MOST_STEPS = 8  # of a page that are printed
OF_ROWS = {"file": ("file",), "row": ("row",), "source": ("source",)}
READ_BY = "read by"
LABELS = (*PARTS, *OF_ROWS, READ_BY)
LABEL_COLUMNS = 8


def refusal_by(verdict: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """Return the refusal by a failed gate of a cell's artifact: name of the gate, evidence, asset and partition."""
    return {
        "gate": verdict["name"],
        "evidence": verdict["evidence"],
        "asset": cell.asset,
        "partition": cell.partition,
    }


def refusal_sentence(refusal: Mapping[str, Any]) -> str:
    """Return one line about a refusal: gate, artifact, and the reason or else the evidence."""
    first, *_ = refusal_lines(refusal)
    return f"{first} {refusal['evidence'].get('reason') or _plain(refusal['evidence'])}"


def refusal_lines(refusal: Mapping[str, Any]) -> list[str]:
    """Return the lines about a refusal: gate, artifact, reason, each finding with its place, and all other fields."""
    evidence = dict(refusal["evidence"])
    lines = [f"refused by gate {refusal['gate']} of {refusal['asset']} [{refusal['partition']}]:"]
    if reason := evidence.pop("reason", ""):
        lines.append(reason)
    for finding in evidence.pop("findings", ()):
        lines += ["", *_finding(finding)]
    way_out = evidence.pop("way_out", "")
    if all("reason" in condition for condition in evidence.get("failed", {}).values()):
        evidence.pop("failed", None)  # each reason stands above
    lines += [""] * bool(evidence) + [f"{name}: {_plain(value)}" for name, value in evidence.items()]
    return [*lines, *(["", f"What to do: {way_out}"] if way_out else [])]


def _finding(finding: Mapping[str, Any]) -> Iterator[str]:
    for label, names in (PARTS | OF_ROWS).items():
        if all(name in finding for name in names):
            first, *offset = (finding[name] for name in names)
            yield f"{label:<{LABEL_COLUMNS}}{first}{f', offset {offset[0]:,}' if offset else ''}"
    for seen in finding.get("seen", ()):
        yield f"{READ_BY:<{LABEL_COLUMNS}}{_steps(seen)}"


def _steps(seen: Mapping[str, Any]) -> str:
    """Return in words which steps of a training see a page."""
    steps = seen["steps"]
    if not steps:
        return f"no step of {seen['training']}{', which holds it out' if seen['held_out'] else ''}"
    more = f" and {len(steps) - MOST_STEPS:,} more" if len(steps) > MOST_STEPS else ""
    shown = ", ".join(f"{step:,}" for step in steps[:MOST_STEPS])
    return f"step{'s' * (len(steps) > 1)} {shown}{more} of {seen['training']}"


def _plain(value: Any) -> str:
    """Return a value on one line; a mapping of single values as `name value, name value`."""
    if isinstance(value, Mapping) and not any(isinstance(one, (Mapping, list)) for one in value.values()):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
