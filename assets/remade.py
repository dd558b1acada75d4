"""Explain why an input that was made again under the same fingerprint has another digest, from its numerics classes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from assets.chain import CHAIN
from training.contract.artifact import ARTIFACT_FILE, Artifact
from training.contract.identity.numerics import change, in_words

RESULT = "with another result"


def remade_inputs(record: Mapping[str, Any], inputs: Mapping[tuple[str, str], Artifact | None]) -> tuple[str, ...]:
    """One line for each input whose present artifact is missing or has another digest than the recorded input.

    `record` is the record of the artifact that read the inputs. `inputs` are the present artifacts by asset and
    partition, or None if there is none.
    """
    recorded = {(item["asset"], item["partition"].partition("@")[2]): item for item in record["inputs"]}
    lines = []
    for (asset, key), made in inputs.items():
        part = key.partition("@")[2]
        item = recorded.get((asset, part))
        name = f"input {asset}{f' of {part}' if part else ''}"
        if item is None or made is None:
            lines.append(f"{name} is to be made again")
        elif made.digest != item["digest"]:
            lines.append(f"{name} was made again: {_how(asset, item, made)}")
    return tuple(lines)


def _how(asset: str, item: Mapping[str, Any], made: Artifact) -> str:
    """Return why the present artifact differs from the one in the record, although both have the same fingerprint."""
    if not CHAIN[asset].stage.by_a_model:
        return f"the same fingerprint {RESULT}"
    known = item.get("numerics") or next(
        (one.get("numerics") for one in replaced(made) if one["digest"] == item["digest"]), None
    )
    return change(known, made.record.get("numerics"))


def replaced(made: Artifact) -> Iterator[dict[str, Any]]:
    """Yield the records of earlier artifacts of this fingerprint that the artifact replaced, oldest first."""
    for path in sorted(made.path.parent.glob(f"{made.path.name}.replaced-*/{ARTIFACT_FILE}")):
        try:
            yield json.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError):
            continue  # damaged


def class_lines(asset: str, made: Artifact | None) -> list[str]:
    """Lines with the numerics class of an artifact made by a model, and how the artifacts it replaced differ.

    Empty if there is no artifact or no model made it.
    """
    if made is None or not CHAIN[asset].stage.by_a_model:
        return []
    own = made.record.get("numerics")
    lines = [f"numerics class: {in_words(own) if own else 'not on record'}"]
    return lines + [
        f"replaced {old['digest'][:12]} by {made.digest[:12]}: {change(old.get('numerics'), own)}"
        for old in replaced(made)
        if old["digest"] != made.digest
    ]
