"""What a model fills in, on tiny random models: each figure from its definition, one probability at a time."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from evaluation.exams.objectives.decoder import OwnModel, added_bytes, rows_of
from evaluation.exams.objectives.filling import asked, exact_spans, filled
from evaluation.report.scoreboard import filling_lines
from evaluation.stages import STAGES
from tests.evaluation.conftest import commit, make_job
from tests.evaluation.report.pages import document
from tests.training.pretrain import tiny
from training.contract.artifact import find
from training.contract.job import InputArtifact
from training.contract.running.runner import run_job
from training.data.documents import DocumentWriter, write_lines
from training.order.loss_mask import IGNORED
from training.pretrain.objectives.settings import MASK_TOKEN, ObjectiveRecipe

TEXTS = [tiny.sentence(("web", number)) for number in range(4)] + ["a bee sees the sea " * 9]
KINDS = ["masked", "prefix", "span_corruption"]


def by_hand(model: OwnModel, kind: str) -> list[tuple[float, bool, int]]:
    """For each target: its nats, whether it is the likeliest, and the token; each text alone, in one row."""
    objective, windows, found = model.objective(ObjectiveRecipe(kind=kind)), model.windows(TEXTS), []
    rows = {number: batch.at(slice(n, n + 1)) for some, batch in rows_of(windows) for n, number in enumerate(some)}
    for number in range(len(windows)):
        size = len(windows[number].tokens)
        batch = asked(objective, type(rows[number])(*(a if a is None else a[:, :size] for a in rows[number])), [number])
        logits = torch.nn.functional.linear(model.states(batch), model.model.head_weight)[0].detach()
        for place in np.flatnonzero(batch.targets[0] != IGNORED):
            target, row = int(batch.targets[0, place]), logits[place].double()
            found.append((-row.log_softmax(0)[target].item(), int(row.argmax()) == target, target))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_each_figure_is_what_its_definition_says(own_folder, kind):
    model = OwnModel(own_folder / "model")
    wanted, made = by_hand(model, kind), filled(model, ObjectiveRecipe(kind=kind), TEXTS)
    nats, right = sum(one[0] for one in wanted), sum(one[1] for one in wanted)
    figures = made["figures"]
    assert (made["targets"], made["texts"]) == (len(wanted), len(TEXTS))
    assert figures["filling_accuracy"]["value"] == pytest.approx(right / len(wanted))
    if kind == "masked":
        assert figures["pseudo_perplexity"]["value"] == pytest.approx(math.exp(nats / len(wanted)), rel=1e-4)
    elif kind == "prefix":
        size = sum(token != tiny.EOS for *_, token in wanted)  # of this tokenizer each token is a byte
        assert figures["continuation_bits_per_byte"]["value"] == pytest.approx(nats / size / math.log(2), rel=1e-4)
    else:
        assert figures["loss"]["value"] == pytest.approx(nats / len(wanted), rel=1e-4) and "exact_spans" in figures
    for figure in figures.values():
        low, high = figure["interval"]
        assert low <= figure["value"] <= high and low < high


def test_every_token_that_is_asked_for_is_hidden_and_no_other(own_folder):
    model = OwnModel(own_folder / "model")
    recipe = ObjectiveRecipe(kind="masked", noise_fraction=0.4)
    for numbers, rows in rows_of(model.windows([*TEXTS, f"a text that says {MASK_TOKEN}"])):
        assert model.ids[MASK_TOKEN] not in rows.tokens
        batch = asked(model.objective(recipe), rows, numbers)
        chosen = batch.targets != IGNORED
        assert (batch.tokens[chosen] == model.ids[MASK_TOKEN]).all() and (batch.tokens == rows.tokens)[~chosen].all()
        assert (batch.targets == rows.tokens)[chosen].all() and chosen.any()


def test_the_bytes_of_a_texts_tokens_add_up_to_those_of_the_text(own_folder):
    text = "crème brûlée 🍮 " * 8
    windows = OwnModel(own_folder / "model").windows([text, ""])
    assert len(windows) > 2 and sum(sum(window.bytes[:-1]) for window in windows) == len(text.encode())
    assert [window.bytes[-1] for window in windows] == [window.bytes[0] for window in windows[1:-1]] + [0, 0]
    assert added_bytes("aé🍮b", [(0, 1), (1, 2), (1, 2), (2, 3), (2, 3), (3, 4)]) == [1, 2, 0, 4, 0, 1]


def test_a_span_is_exact_if_all_of_it_and_its_end_are_likeliest():
    targets = np.array([IGNORED, 50, 1, 2, 51, 3, 52, 0])
    right = np.array([0, 0, 1, 1, 1, 1, 1, 0], dtype=bool)
    assert exact_spans(targets, right, [50, 51, 52]) == [True, True]
    for place, spans in {3: [False, True], 4: [False, True], 5: [True, False], 6: [True, False]}.items():
        wrong = right.copy()
        wrong[place] = False
        assert exact_spans(targets, wrong, [50, 51, 52]) == spans


@pytest.mark.parametrize("kind", ["masked", "causal"])
def test_a_later_token_is_seen_by_a_masked_model_alone_and_never_by_another_document(own_folder, kind):
    model = OwnModel(own_folder / "model")
    objective = model.objective(ObjectiveRecipe(kind=kind, noise_fraction=0.0))
    tokens = np.array([[5, 6, 7, 8, 9, 10, 11, 12]])
    documents = np.array([[0, 0, 0, 0, 1, 1, 1, 1]])

    def states(row: np.ndarray) -> torch.Tensor:
        return model.states(objective.batch((row, np.full_like(row, IGNORED), documents), step=0, numbers=[0]))[0]

    changed = tokens.copy()
    changed[0, 3] = 13
    moved = (states(tokens) != states(changed)).any(-1).tolist()
    assert moved == [kind == "masked"] * 3 + [True] + [False] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_the_scores_of_a_model_that_sees_ahead_are_what_it_fills_in(own_folder, tmp_path, kind):
    with DocumentWriter(tmp_path / "documents" / "documents" / "00000.parquet") as writer:
        for number, text in enumerate(TEXTS):
            writer.write(document(number, text))
    pages = commit(tmp_path / "documents", "decontaminated_documents", partition="tiny@s1")
    labelled = [{"text": text, "label": f"ends on {number % 2}"} for number, text in enumerate(TEXTS * 4)]
    write_lines(tmp_path / "labelled.jsonl", labelled)
    settings = {
        "evaluation": {"suites": [], "probe": str(tmp_path / "labelled.jsonl")},
        "mixture": {"held_out_fraction": 1.0},
        "objective": {"kind": kind},
    }
    if not (own_folder / "artifact.json").exists():
        commit(own_folder, "base_model")
    made = find(own_folder)
    model = InputArtifact(
        asset="base_model", partition="tiny", fingerprint="f", digest=made.digest, path=str(own_folder)
    )
    outputs = [tmp_path / name for name in ("first", "second")]
    for output in outputs:
        assert run_job(make_job("evaluate", "model_scores", output, settings, (model, pages)), STAGES) == 0
    first, second = (find(output).record for output in outputs)
    assert first["digest"] == second["digest"]
    found = json.loads((outputs[0] / "filling.json").read_text())["base"]
    own = filled(OwnModel(own_folder / "model"), ObjectiveRecipe(kind=kind), TEXTS)
    assert found["objective"] == kind and found["texts"]["held_out"]["targets"] > 0
    assert set(found["texts"]["held_out"]["figures"]) == set(own["figures"])
    assert first["metrics"]["base_probe_accuracy"] == found["probe"]["accuracy"]["value"]
    assert all(gate["passed"] for gate in first["gates"])
    said = filling_lines({"base": found})
    assert said[0].startswith(f"Filled in ({kind}) of {found['texts']['held_out']['targets']:,} tokens of 5 held-out")
    assert "probe of its states tells 2 labels on" in said[1]
