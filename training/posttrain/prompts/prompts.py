"""The stage `prompts`: write the recipe's prompts for reinforcement learning into one file.

Each row of `prompts.jsonl` is {"id", "prompt": messages, "answer", "rivals", "source"}, in the order of the file.
`answer` is the right answer, empty if the row has none; `rivals` are wrong answers. Rows that cannot be used are in
`dropped.jsonl` and `quarantine.jsonl`, with their reasons; so are rows that hold exam items
(training.posttrain.rows.decontamination).
"""

from __future__ import annotations

from training.contract.job import Job, Outcome, Work
from training.contract.running.record_counter import Counted
from training.data.sources import check_unchanged
from training.posttrain.prompts.settings import PromptsRecipe
from training.posttrain.rows.decontamination import Decontamination
from training.posttrain.rows.forms import prompt_text, read_prompt
from training.posttrain.rows.given import judged
from training.posttrain.rows.sorting import PROMPTS_FILE, Sorter
from training.posttrain.rows.source import read_source
from training.posttrain.rows.withdrawn import without_withdrawn


def run(job: Job, work: Work) -> Outcome:
    """Write the prompts of the recipe's file. Raise DataError if no row can be used."""
    source, exams = job.settings_as(PromptsRecipe, "align").source, Decontamination(job)
    check_unchanged(source.uri, job)
    given = ((source, record) for record in read_source(source, read_prompt, job.settings))
    rows = Counted(without_withdrawn(given, job))
    with Sorter(work.path, PROMPTS_FILE) as sorter:
        for _, record in exams.judged(rows, lambda made: (prompt_text(made),)):
            if record.reason:
                sorter.refuse(record)
            else:
                sorter.keep(record, record.made)
    gate, note = judged(sorter.sources, (source,), {source.format: read_prompt}, work)
    return Outcome(
        files=(*sorter.files, exams.write_hits(work.path)),
        counts=sorter.counts(rows.number),
        metrics={"prompts": sorter.kept, **exams.metrics},
        gates=(gate,),
        notes=note,
    )
