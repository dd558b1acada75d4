"""The cost of watching, at toy size: the ways give the same numbers, and a difference between them is noticed."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest

from benchmarks import watching
from benchmarks.checkpoints import trainer_of
from tests.training.pretrain import tiny

OPTIONS = argparse.Namespace(preset="toy", length=96, items=3, rounds=2, threads=1, looks=0)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    shape = replace(tiny.MODEL, max_length=96).shape(vocab_size=watching.BYTES_VOCABULARY)
    return trainer_of(tmp_path_factory.mktemp("trainer"), shape, rows=2, length=96)


def test_the_ways_are_timed_if_they_give_the_same_likelihoods(trainer, capsys):
    assert watching.ways_compared(trainer, watching.made_items(3), OPTIONS)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("toy, 3 items in ") and lines[2].endswith("1.00 of packed") and len(lines) == 5


def test_other_likelihoods_are_noticed(trainer, capsys, monkeypatch):
    monkeypatch.setattr(watching, "packed", lambda trainer, asked: 0.0)
    assert not watching.ways_compared(trainer, watching.made_items(3), OPTIONS)
    assert "other likelihoods: [0.0, " in capsys.readouterr().out


def test_what_a_kept_step_takes_is_told(tmp_path, capsys):
    watching.kept_compared(tmp_path, replace(tiny.MODEL, max_length=96), replace_rounds(1))
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("a training of 30 steps ") and second.startswith("a kept step takes ")


def replace_rounds(rounds):
    return argparse.Namespace(**{**vars(OPTIONS), "rounds": rounds, "length": 32})
