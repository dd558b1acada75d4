"""The stage `prompts`: write the recipe's prompts for reinforcement learning into one file.

Each row of `prompts.jsonl` is {"id", "prompt": messages, "answer", "rivals", "source"}, in the order of the file.
`answer` is the right answer, empty if the row has none; `rivals` are wrong answers. Rows that cannot be used are in
`dropped.jsonl` and `quarantine.jsonl`, with their reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.accounts import Counted
from training.data.exams.grading import says_something
from training.data.sources import check_unchanged
from training.job import DataError, Job, Outcome, Work
from training.posttrain.formats import Damaged, Row, Unusable, label, messages_of, read_source
from training.posttrain.prompts.settings import PromptsRecipe
from training.posttrain.sorting import Sorter
from training.posttrain.source_settings import TextSourceRecipe

FILE = "prompts.jsonl"


def run(job: Job, work: Work) -> Outcome:
    """Write the prompts of the recipe's file. Raise DataError if no row can be used."""
    uri = job.settings_as(PromptsRecipe, "align").prompts
    check_unchanged(uri, job)
    rows = Counted(read_source(TextSourceRecipe(uri=uri), lambda row, _: read_prompt(row), job.settings))
    with Sorter(work.path, FILE) as sorter:
        for record in rows:
            if record.reason:
                sorter.refuse(record)
            else:
                sorter.keep({"id": record.id, **record.made, "source": label(uri)})
    if not sorter.kept:
        raise DataError(f"align.prompts: none of {rows.number} prompts can be used; reasons: {sorter.reasons}")
    return Outcome(files=sorter.files, counts=sorter.counts(rows.number), metrics={"prompts": sorter.kept})


def read_prompt(row: Mapping[str, Any]) -> Row:
    """Return {"prompt": messages, "answer", "rivals"} of a row with `prompt` (text or messages) or `messages`.

    Answers at the end of the messages are left out. Raise Unusable if no message is a user's, and Damaged if a field
    has the wrong form.
    """
    value = row.get("prompt", row.get("messages"))
    messages = [{"role": "user", "content": value}] if isinstance(value, str) else messages_of(value)
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not any(message["role"] == "user" for message in messages):
        raise Unusable("no_question")
    answer, rivals = row.get("answer"), row.get("rivals") or []
    if not isinstance(rivals, list) or not all(isinstance(rival, str) for rival in rivals):
        raise Damaged("rivals_are_not_a_list_of_texts")
    known = isinstance(answer, str) and says_something(answer)
    return {"prompt": messages, "answer": answer if known else "", "rivals": rivals}
