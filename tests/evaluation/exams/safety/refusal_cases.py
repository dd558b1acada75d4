"""Labelled answers, and how often the rules on refusals are right about them.

`python -m tests.evaluation.exams.safety.refusal_cases` prints precision and recall with 95 % intervals, and each answer
about which the rules are wrong. The part `tuned` was looked at while the rules were written, the part `unseen` was not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from evaluation.decision.intervals import in_percent
from evaluation.exams.safety.refusals import refuses

ANSWERS = Path(__file__).with_name("labelled_answers.jsonl")


def read_answers() -> list[dict]:
    """Every labelled answer: `part`, `refuses` and `answer`."""
    return [json.loads(line) for line in ANSWERS.read_text("utf-8").splitlines()]


def measured(rows: Iterable[dict]) -> dict[str, tuple[float, int]]:
    """Precision and recall of refusals, each with the number of answers that it is a share of."""
    found = [(refuses(row["answer"]), row["refuses"]) for row in rows]
    said, real = sum(said for said, _ in found), sum(real for _, real in found)
    both = sum(said and real for said, real in found)
    return {"precision": (both / said, said), "recall": (both / real, real)}


def main() -> None:
    """Print the figures of each part and what is wrong."""
    rows = read_answers()
    for part in sorted({row["part"] for row in rows}):
        some = [row for row in rows if row["part"] == part]
        told = ", ".join(f"{name} {in_percent(share, n)} % of {n}" for name, (share, n) in measured(some).items())
        print(f"{part}: {len(some)} answers: {told}")
    for row in rows:
        if refuses(row["answer"]) != row["refuses"]:
            print(f"{row['part']}, {'refuses' if row['refuses'] else 'answers'}: {row['answer']}")


if __name__ == "__main__":
    main()
