"""The stage `instructions`: write the conversations of the recipe's sources into one file.

Each row of `instructions.jsonl` is {"id", "messages": [{"role", "content"}], "source", "generator"}, in the recipe's
order. Rows that cannot be used are in `dropped.jsonl` and `quarantine.jsonl`, with their reasons; so are rows that hold
exam items (training.posttrain.decontamination).
"""

from __future__ import annotations

from training.job import DataError, Job, Outcome, Work
from training.posttrain.decontamination import Decontamination
from training.posttrain.formats import CONVERSATION_READERS, PAIR_READERS, Row, generator_of, label, records, spoken
from training.posttrain.sorting import INSTRUCTIONS_FILE, Sorter
from training.posttrain.source_settings import SourcesRecipe, TextSourceRecipe
from training.posttrain.withdrawn import without_withdrawn
from training.running.counted import Counted


def run(job: Job, work: Work) -> Outcome:
    """Write the conversations of every source. Raise DataError if no row can be used."""
    sources = job.settings_as(SourcesRecipe, "sft").data
    given = records(sources, CONVERSATION_READERS | _CHOSEN_ANSWERS, job, "sft")
    rows, exams = Counted(without_withdrawn(given, job)), Decontamination(job)
    with Sorter(work.path, INSTRUCTIONS_FILE) as sorter:
        for source, record in exams.judged(rows, lambda made: (spoken(made),)):
            if record.reason:
                sorter.refuse(record)
            else:
                sorter.keep(
                    {
                        "id": record.id,
                        "messages": record.made,
                        "source": label(source.uri),
                        "generator": generator_of(record.row, source),
                        **record.marks,
                    }
                )
    if not sorter.kept:
        raise DataError(f"sft.data: none of {rows.number} rows can be used; reasons: {sorter.reasons}")
    turns = sorter.totals["turns"]
    return Outcome(
        files=(*sorter.files, exams.write_hits(work.path)),
        counts=sorter.counts(rows.number),
        metrics={"conversations": sorter.kept, "turns": turns, **exams.metrics},
    )


def _chosen_answer(name: str):
    def read(row: Row, source: TextSourceRecipe) -> list[dict[str, str]]:
        pair = PAIR_READERS[name](row, source)
        return pair.prompt + pair.chosen

    return read


# Preference pairs can be used too: the conversation ends with the preferred answer.
_CHOSEN_ANSWERS = {name: _chosen_answer(name) for name in ("chosen_rejected", "hh")}
