"""The stage `instructions`: write the conversations of the recipe's sources into one file.

Each row of `instructions.jsonl` is {"id", "messages", "source", "generator"}, in the recipe's order; the messages are
those of training.posttrain.rows.messages. Rows that cannot be used are in `dropped.jsonl` and `quarantine.jsonl`, with
their reasons; so are rows that hold exam items (training.posttrain.rows.decontamination).
"""

from __future__ import annotations

from training.contract.job import Job, Outcome, Work
from training.contract.running.record_counter import Counted
from training.generate.turns import Message
from training.posttrain.rows.decontamination import Decontamination
from training.posttrain.rows.forms import CONVERSATION_READERS, PAIR_READERS
from training.posttrain.rows.given import judged
from training.posttrain.rows.messages import Fields, spoken
from training.posttrain.rows.sorting import INSTRUCTIONS_FILE, Sorter
from training.posttrain.rows.source import generator_of, records
from training.posttrain.rows.withdrawn import without_withdrawn
from training.posttrain.source_settings import SourcesRecipe, TextSourceRecipe


def run(job: Job, work: Work) -> Outcome:
    """Write the conversations of every source. Raise DataError if no source gives any."""
    sources = job.settings_as(SourcesRecipe, "sft").data
    readers = CONVERSATION_READERS | _CHOSEN_ANSWERS
    given = records(sources, readers, job, "sft")
    rows, exams = Counted(without_withdrawn(given, job)), Decontamination(job)
    with Sorter(work.path, INSTRUCTIONS_FILE) as sorter:
        for source, record in exams.judged(rows, lambda made: (spoken(made),)):
            if record.reason:
                sorter.refuse(record)
            else:
                made = {"messages": record.made, "generator": generator_of(record.row, source)}
                sorter.keep(record, made)
    gate, note = judged(sorter.sources, sources, readers, work)
    return Outcome(
        files=(*sorter.files, exams.write_hits(work.path)),
        counts=sorter.counts(rows.number),
        metrics={"conversations": sorter.kept, "turns": sorter.totals["turns"], **exams.metrics},
        gates=(gate,),
        notes=note,
    )


def _chosen_answer(name: str):
    def read(fields: Fields, source: TextSourceRecipe) -> list[Message]:
        pair = PAIR_READERS[name](fields, source)
        return pair.prompt + pair.chosen

    return read


# Preference pairs can be used too: the conversation ends with the preferred answer.
_CHOSEN_ANSWERS = {name: _chosen_answer(name) for name in ("chosen_rejected", "hh")}
