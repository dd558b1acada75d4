"""The stage `prompts`: write the recipe's prompts for reinforcement learning into one file.

Each row of `prompts.jsonl` is {"id", "prompt": messages, "answer", "rivals", "source"}, in the order of the file.
`answer` is the right answer, empty if the row has none; `rivals` are wrong answers. Rows that cannot be used are in
`dropped.jsonl` and `quarantine.jsonl`, with their reasons; so are rows that hold exam items
(training.posttrain.decontamination).
"""

from __future__ import annotations

from training.data.sources import check_unchanged
from training.job import DataError, Job, Outcome, Work
from training.posttrain.decontamination import Decontamination
from training.posttrain.formats import label, prompt_text, read_prompt, read_source
from training.posttrain.prompts.settings import PromptsRecipe
from training.posttrain.sorting import PROMPTS_FILE, Sorter
from training.posttrain.source_settings import TextSourceRecipe
from training.posttrain.withdrawn import without_withdrawn
from training.running.counted import Counted


def run(job: Job, work: Work) -> Outcome:
    """Write the prompts of the recipe's file. Raise DataError if no row can be used."""
    uri = job.settings_as(PromptsRecipe, "align").prompts
    check_unchanged(uri, job)
    source, exams = TextSourceRecipe(uri=uri), Decontamination(job)
    given = ((source, record) for record in read_source(source, lambda row, _: read_prompt(row), job.settings))
    rows = Counted(without_withdrawn(given, job))
    with Sorter(work.path, PROMPTS_FILE) as sorter:
        for _, record in exams.judged(rows, lambda made: (prompt_text(made),)):
            if record.reason:
                sorter.refuse(record)
            else:
                sorter.keep({"id": record.id, **record.made, "source": label(uri), **record.marks})
    if not sorter.kept:
        raise DataError(f"align.prompts: none of {rows.number} prompts can be used; reasons: {sorter.reasons}")
    return Outcome(
        files=(*sorter.files, exams.write_hits(work.path)),
        counts=sorter.counts(rows.number),
        metrics={"prompts": sorter.kept, **exams.metrics},
    )
