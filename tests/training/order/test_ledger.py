"""The steps that a ledger leaves out, and its file."""

from __future__ import annotations

import pytest

from tests.training.pretrain import tiny
from training.contract.files.writing import Unsealed, write_sealed
from training.order import batches
from training.order.later_steps import ledger_before
from training.order.ledger import Ledger, LedgerEntry, keep_ledger, read_ledger, write_ledger


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return tiny.TinyChain(tmp_path_factory.mktemp("chain"))


def entry(first, last, reason="spike"):
    return LedgerEntry(first=first, last=last, reason=reason, onset=first, seen_at=last, loss=1.0, gradient_norm=None)


def test_a_ledger_empties_the_steps_that_it_holds(chain):
    ledger = Ledger((entry(3, 5), entry(5, 7)))
    assert (
        [step for step in range(10) if not batches.index(chain.plan, step, ledger)] == ledger.steps == [3, 4, 5, 6, 7]
    )
    assert batches.documents_at(chain.plan, 4, ledger) == [] != batches.documents_at(chain.plan, 4)
    assert batches.index(chain.plan, 8, ledger) == batches.index(chain.plan, 8)


def test_of_the_model_before_a_step_all_later_ones_are_in_the_ledger():
    ledger = ledger_before(Ledger((entry(3, 4),)), 7, steps=10)
    assert ledger.steps == [3, 4, 7, 8, 9] and ledger.reasons(7) == {"later"} and 6 not in ledger
    assert ledger_before(ledger, 10, steps=10) == ledger


@pytest.mark.parametrize("write", [write_ledger, keep_ledger])
def test_a_ledger_comes_back_from_its_file_and_a_broken_one_does_not(tmp_path, write):
    ledger = Ledger((entry(3, 5), entry(9, 9, "not_finite")))
    assert read_ledger(tmp_path) == Ledger()
    write(tmp_path, ledger)
    assert read_ledger(tmp_path) == ledger
    path = tmp_path / "ledger.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(Unsealed, match="cannot be read"):
        read_ledger(tmp_path)
    write_sealed(path, {"entries": 5})
    with pytest.raises(Unsealed, match="a ledger is a list, not int"):
        read_ledger(tmp_path)
