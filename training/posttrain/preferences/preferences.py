"""The stage `preferences`: write preference pairs and single answers as `train.jsonl` and `held_out.jsonl`.

Each row is {"id", "prompt": messages, "chosen": messages, "rejected": messages, "source", "generator"}, with "answer"
if the source gives the right answer. A row without a partner has "completion" and "label" in place of "chosen" and
"rejected". The hash of a prompt's messages decides whether it is held out. So pairs with the
same prompt are in the same file, and neither the order of the rows nor further rows change that. Pairs that hold exam
items are dropped or flagged (training.posttrain.rows.decontamination).
"""

from __future__ import annotations

from training.contract.artifact import digest_of
from training.contract.job import DataError, Job, Outcome, Work
from training.contract.running.record_counter import Counted
from training.generate.turns import Message
from training.posttrain.preferences.settings import PreferencesRecipe
from training.posttrain.rows.decontamination import Decontamination
from training.posttrain.rows.forms import PREFERENCE_READERS
from training.posttrain.rows.given import judged
from training.posttrain.rows.sorting import HELD_OUT_FILE, TRAIN_FILE, Sorter
from training.posttrain.rows.source import generator_of, records
from training.posttrain.rows.withdrawn import without_withdrawn


def run(job: Job, work: Work) -> Outcome:
    """Write the training and the held-out pairs of every source.

    DataError is raised if there is no training pair or no held-out pair.
    """
    recipe = job.settings_as(PreferencesRecipe, "preferences")
    held_out = 0
    given = records(recipe.data, PREFERENCE_READERS, job, "preferences")
    rows, exams = Counted(without_withdrawn(given, job)), Decontamination(job)
    with Sorter(work.path, TRAIN_FILE, HELD_OUT_FILE) as sorter:
        for source, record in exams.judged(rows, lambda pair: pair.texts):
            if record.reason:
                sorter.refuse(record)
                continue
            apart = is_held_out(record.made.prompt, recipe.held_out_fraction)
            held_out += apart
            row = record.made.fields | {"generator": generator_of(record.row, source)}
            sorter.keep(record, row, HELD_OUT_FILE if apart else TRAIN_FILE)
    gate, note = judged(sorter.sources, recipe.data, PREFERENCE_READERS, work)
    if not sorter.kept - held_out or not held_out:
        raise DataError(
            f"preferences: {sorter.kept - held_out} pairs to train on, {held_out} held out of {rows.number} rows;"
            f" both must be at least 1 (held_out_fraction={recipe.held_out_fraction}; rows not used: {note['sources']})"
        )
    return Outcome(
        files=(*sorter.files, exams.write_hits(work.path)),
        counts=sorter.counts(rows.number),
        metrics={"train_pairs": sorter.kept - held_out, "held_out_pairs": held_out, **exams.metrics},
        gates=(gate,),
        notes=note,
    )


def is_held_out(prompt: list[Message], fraction: float) -> bool:
    """Whether the prompt's hash puts it into the held-out `fraction`, in [0, 1], of all prompts."""
    return int(digest_of(prompt)[:12], 16) / 16**12 < fraction
