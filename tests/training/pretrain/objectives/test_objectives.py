"""Each objective on a row written out by hand, and its loss from the definition, one probability at a time."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from evaluation import stages as evaluation_stages
from tests.examples import load_recipe
from tests.training.pretrain import tiny
from training.contract.records import RecipeError
from training.contract.scopes import last_model
from training.order.loss_mask import IGNORED
from training.pretrain.losses.chunked import ChunkedLoss
from training.pretrain.models.attention import DocumentMask, Visibility, document_mask
from training.pretrain.models.decoder import Decoder, initialise
from training.pretrain.models.shape import ModelConfig
from training.pretrain.objectives import objective as objectives
from training.pretrain.objectives.objective import Batch, Draws, Objective, corrupted, noise_mask, rearranged
from training.pretrain.objectives.settings import FILL_TOKENS, MASK_TOKEN, ObjectiveRecipe, sentinel_token
from training.pretrain.parallel.world import World
from training.pretrain.stages import pretrain as stage
from training.pretrain.step import Trainer
from training.recipe.recipe import Recipe

EOS, VOCABULARY = 0, 40
PREFIX, SUFFIX, MIDDLE, MASK, FIRST, SECOND, THIRD = range(30, 37)
IDS = dict(zip((*FILL_TOKENS, MASK_TOKEN, *map(sentinel_token, range(3))), range(30, 37), strict=True))
X = IGNORED

# A document that ends in this row, and the start of one that goes on elsewhere (with token 25).
ROW = Batch(
    np.array([[11, 12, 13, 14, 15, 16, EOS, 21, 22, 23, 24]]),
    np.array([[12, 13, 14, 15, 16, EOS, X, 22, 23, 24, 25]]),
    np.array([[0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]]),
)


class Scripted(Draws):
    """The numbers that a test wrote down."""

    script: list[float]

    def __init__(self, *key: object) -> None:
        self._rest = list(self.script)

    def uniform(self, count: int) -> np.ndarray:
        taken, self._rest = self._rest[:count], self._rest[count:]
        assert len(taken) == count
        return np.array(taken)


def objective_of(kind: str, **fields) -> Objective:
    recipe = ObjectiveRecipe(kind=kind, **fields)
    return Objective(recipe, seed=0, token_ids=IDS, eos_id=EOS, vocab_size=VOCABULARY)


@dataclasses.dataclass
class Case:
    """What is drawn, the row that must come out, and how far each document in it is seen from before."""

    kind: str
    script: list[float]
    tokens: list[int]
    targets: list[int]
    seen_ahead: list[tuple[int, int, int]]  # start, stop, end of what all see; no document there: left out


CASES = [
    Case(
        "causal",
        [],
        tokens=[11, 12, 13, 14, 15, 16, EOS, 21, 22, 23, 24],
        targets=[12, 13, 14, 15, 16, EOS, X, 22, 23, 24, 25],
        seen_ahead=[(0, 7, 0), (7, 11, 7)],
    ),
    Case(
        "fill_in_the_middle",
        # The first: taken, not suffix first, cuts 1 and 2 of 11 12 13 (three tokens make room). The second: left.
        [0.0, 0.9, 0.3, 0.6, 0.9, 0.0],
        tokens=[PREFIX, 11, SUFFIX, 13, MIDDLE, 12, EOS, 21, 22, 23, 24],
        targets=[11, SUFFIX, 13, MIDDLE, 12, EOS, X, 22, 23, 24, 25],
        seen_ahead=[(0, 7, 0), (7, 11, 7)],
    ),
    Case(
        "masked",
        # Chosen are places 0, 3 and 5: one is masked, one stays, one becomes token 0.5 · 40. None of the second.
        [0.1, 0.9, 0.9, 0.05, 0.9, 0.0, 0.5, 0, 0, 0.85, 0, 0.95, 0, 0, 0, 0, 0, 0.5] + [0.9] * 12,
        tokens=[MASK, 12, 13, 14, 15, 20, EOS, 21, 22, 23, 24],
        targets=[11, X, X, 14, X, 16, X, X, X, X, X],
        seen_ahead=[(0, 7, 7), (7, 11, 11)],
    ),
    Case(
        "prefix",
        # Known are 1 + 2 tokens of the first, 1 + 0 of the second.
        [0.4, 0.0],
        tokens=[11, 12, 13, 14, 15, 16, EOS, 21, 22, 23, 24],
        targets=[X, X, 14, 15, 16, EOS, X, 22, 23, 24, 25],
        seen_ahead=[(0, 7, 3), (7, 11, 8)],
    ),
    Case(
        "span_corruption",
        # Of the first 11 12 13 fit, 13 is taken out; the second is too short.
        [0.9, 0.5, 0.1],
        tokens=[11, 12, FIRST, FIRST, 13, SECOND, EOS, 0, 0, 0, 0],
        targets=[X, X, FIRST, 13, SECOND, EOS, X, X, X, X, X],
        seen_ahead=[(0, 7, 3)],
    ),
]


def decoder() -> Decoder:
    shape = ModelConfig(
        vocab_size=VOCABULARY, width=16, layers=2, heads=2, kv_heads=1, mlp_width=24, max_length=16, qk_norm=True
    )
    model = Decoder(shape)
    initialise(model, zero_outputs=False, generator=torch.Generator().manual_seed(0))
    return model


def loss_by_hand(case: Case, model: Decoder) -> float:
    """Mean of -log p of the written targets, each document alone, each position seeing what was written."""
    total, count = 0.0, 0
    for start, stop, ahead in case.seen_ahead:
        size = stop - start
        visible = torch.tensor([[j <= i or start + j < ahead for j in range(size)] for i in range(size)])
        mask = DocumentMask(
            documents=torch.zeros(1, size),
            positions=torch.arange(size)[None],
            full=Visibility(visible=visible[None, None]),
        )
        logits = model.logits(torch.tensor([case.tokens[start:stop]]), mask)[0]
        for place, target in enumerate(case.targets[start:stop]):
            if target != X:
                exponentials = logits[place].double().exp()
                total -= (exponentials[target] / exponentials.sum()).log().item()
                count += 1
    return total / count


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.kind)
def test_rows_and_loss_are_those_written_out_by_hand(monkeypatch, case):
    monkeypatch.setattr(objectives, "Draws", Scripted)
    Scripted.script = case.script
    made = objective_of(case.kind).batch(ROW[:3], step=0, numbers=[0])
    assert made.tokens.tolist() == [case.tokens]
    assert made.targets.tolist() == [case.targets]
    model = decoder()
    tokens, targets, documents, prefix = (None if part is None else torch.from_numpy(part) for part in made)
    mask = document_mask(documents, dtype=torch.float32, prefix=prefix)
    states = model(tokens, mask).states.flatten(0, 1)
    loss = ChunkedLoss(tiny.PRETRAIN.chosen_loss)
    ours, *_ = loss(states, model.head_weight, targets.flatten(), scale=1 / made.trained_tokens)
    assert ours.item() == pytest.approx(loss_by_hand(case, model), rel=1e-5)


def test_the_rows_that_were_given_stay_as_they_were():
    before = [array.copy() for array in ROW[:3]]
    objective_of("masked", noise_fraction=1.0).batch(ROW[:3], step=0, numbers=[0])
    assert all((array == kept).all() for array, kept in zip(ROW[:3], before, strict=True))


def test_both_orders_of_the_middle():
    text, ids = [1, 2, 3, 4, 5], (PREFIX, SUFFIX, MIDDLE)
    assert rearranged(text, 1, 3, ids, suffix_first=False) == [PREFIX, 1, SUFFIX, 4, 5, MIDDLE, 2, 3]
    assert rearranged(text, 1, 3, ids, suffix_first=True) == [PREFIX, SUFFIX, 4, 5, MIDDLE, 1, 2, 3]


def test_corruption_of_the_known_example_ends_with_a_last_sentinel():
    text = "preheat the oven to 350 and grease the pan".split()
    mask = np.array([False, True, True, True, False, False, True, True, False])
    given, wanted = corrupted(text, mask, ["<X0>", "<X1>", "<X2>"])
    assert given == "preheat <X0> 350 and <X1> pan".split()
    assert wanted == "<X0> the oven to <X1> grease the <X2>".split()


def restored(given: list[int], wanted: list[int], sentinels: list[int]) -> list[int]:
    """The text again: each sentinel of the given part replaced by what follows it in the wanted part."""
    said: dict[int, list[int]] = {}
    for token in wanted:
        if token in sentinels:
            span = said.setdefault(token, [])
        else:
            span.append(token)
    assert said.pop(wanted[-1]) == []
    return [part for token in given for part in said.get(token, [token])]


@pytest.mark.parametrize("seed", range(20))
def test_a_corrupted_text_and_what_is_said_of_it_give_the_text(seed):
    sentinels, text = list(range(1000, 1050)), list(range(2, 102))
    mask = noise_mask(100, noise=15, spans=5, draws=Draws(seed))
    assert mask.sum() == 15 and (np.diff(mask.astype(int), prepend=0) == 1).sum() == 5
    assert restored(*corrupted(text, mask, sentinels), sentinels) == text


def test_a_text_with_several_spans_fills_its_room_to_the_last_token():
    row = (np.arange(11, 22)[None], np.arange(12, 23)[None], np.zeros((1, 11), dtype=int))
    made = objective_of("span_corruption", noise_fraction=0.5, mean_span=1.0).batch(row, step=0, numbers=[0])
    tokens, sentinels = made.tokens[0].tolist(), [FIRST, SECOND, THIRD]
    start = tokens.index(FIRST, tokens.index(FIRST) + 1)  # where what was taken out begins
    # 6 tokens, two sentinels for each of 2 spans, and a last one are 11.
    assert restored(tokens[:start], tokens[start:], sentinels) == list(range(11, 17))


def test_of_the_masked_tokens_eight_in_ten_are_masked_and_one_is_swapped():
    tokens = np.full((100, 2000), 7)
    rows = (tokens, np.full_like(tokens, X), np.zeros_like(tokens))
    made = objective_of("masked").batch(rows, step=0, numbers=range(100))
    chosen = made.targets != X
    assert chosen.mean() == pytest.approx(0.15, abs=0.004)
    assert (made.tokens[chosen] == MASK).mean() == pytest.approx(0.8 + 0.1 / VOCABULARY, abs=0.01)
    assert (made.tokens[chosen] == 7).mean() == pytest.approx(0.1 + 0.1 / VOCABULARY, abs=0.008)
    assert (made.tokens[~chosen] == 7).all()


@pytest.mark.parametrize("kind", ["fill_in_the_middle", "masked", "prefix", "span_corruption"])
def test_a_row_is_rewritten_the_same_way_alone_and_among_others(kind):
    tokens = np.arange(4 * 60).reshape(4, 60) % 20 + 1
    rows = (tokens, np.roll(tokens, -1, axis=1), np.arange(60)[None].repeat(4, axis=0) // 25)
    objective = objective_of(kind)
    together = objective.batch(rows, step=3, numbers=range(8, 12))
    alone = objective.batch(tuple(array[2:3] for array in rows), step=3, numbers=[10])
    for whole, one in zip(together, alone, strict=True):
        assert whole is one is None or (whole[2] == one[0]).all()
    other = objective.batch(rows, step=4, numbers=range(8, 12))
    assert any((one != two).any() for one, two in zip(together, other, strict=True) if one is not None)


@pytest.mark.parametrize("kind", ["fill_in_the_middle", "masked", "prefix", "span_corruption"])
@pytest.mark.parametrize("last", [EOS, 9])
def test_runs_that_are_too_short_for_anything_are_let_through(kind, last):
    for length in range(1, 8):
        tokens = np.arange(11, 11 + length)[None]
        tokens[0, -1] = last
        targets = np.append(tokens[0, 1:], X)[None]
        for step in range(5):
            rows = (tokens, targets, np.zeros_like(tokens))
            made = objective_of(kind, fill_rate=1.0).batch(rows, step=step, numbers=[0])
            if kind == "fill_in_the_middle":
                assert (made.tokens == tokens).all() == (length - (last == EOS) <= len(FILL_TOKENS))


def test_a_token_that_is_missing_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"<\|mask\|>.* tokenizer.special_tokens"):
        Objective(ObjectiveRecipe(kind="masked"), seed=0, token_ids={}, eos_id=0, vocab_size=9)
    path = tmp_path / "mine.yaml"
    path.write_text("extends: kitchen\nname: mine\npretrain: {objective: {kind: fill_in_the_middle}}\n")
    with pytest.raises(RecipeError, match=r"fill_in_the_middle needs <\|fim_middle\|>"):
        load_recipe(str(path))


SEES_AHEAD = ["masked", "prefix", "span_corruption"]
RUNG = {"width": 16, "layers": 2, "heads": 1, "kv_heads": 1, "mlp_width": 32, "tokens": 81920}


def recipe_of(folder: Path, kind: str, **more: dict[str, object]) -> Recipe:
    """The kitchen up to its base model, which is trained by an objective; `more` are fields of its sections."""
    sections: dict[str, dict[str, object]] = {
        "tokenizer": {"special_tokens": [*load_recipe("kitchen").tokenizer.special_tokens, *IDS]},
        "pretrain": {"objective": {"kind": kind}, "watch": {"suites": []}},
        "sft": {"data": []},
        "preferences": {"data": []},
        "evaluation": {"suites": [], "alignment_prompts": None, "tolerate_unknown": ["exams"]},
        "promote": {"min_scores": {}, "max_score_drop": 1.0, "above_chance": "if_scored"},
    }
    written = {name: sections.get(name, {}) | more.get(name, {}) for name in (*sections, *more)}
    path = folder / "mine.yaml"
    path.write_text(json.dumps({"extends": "kitchen", "name": "mine", **written}))
    return load_recipe(str(path))


@pytest.mark.parametrize("kind", SEES_AHEAD)
def test_a_recipe_that_ends_with_its_base_model_takes_what_sees_ahead(tmp_path, kind):
    recipe = recipe_of(tmp_path, kind, evaluation={"probe": "mine.jsonl"})
    assert recipe.sees_ahead and last_model(recipe) == "base_model"
    settings = next(asset.settings for asset in evaluation_stages.ASSETS if asset.name == "model_scores")
    assert "objective" not in settings(recipe_of(tmp_path, "causal"), "")
    assert settings(recipe_of(tmp_path, kind), "")["objective"].kind == kind
    with pytest.raises(RecipeError, match=r"evaluation\.probe: without effect"):
        recipe_of(tmp_path, "causal", evaluation={"probe": "mine.jsonl"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sft.data", [{"uri": "kitchen://dialogues", "format": "messages"}]),
        ("evaluation.suites", [{"name": "mine", "uri": "kitchen://chat", "kind": "chat"}]),
        ("pretrain.keep", {"steps": [5]}),
        ("quantize.method", "int8"),
        ("synthesis.prompts", "mine.jsonl"),
        ("ladder.rungs", [RUNG | {"name": name} for name in "abcdef"]),
    ],
)
def test_what_reads_a_model_from_left_to_right_is_refused_by_its_name(tmp_path, field, value):
    section, name = field.split(".")
    given = {name: value} | ({"generator": "base_model"} if section == "synthesis" else {})
    if section == "pretrain":
        given |= {"objective": {"kind": "masked"}, "watch": {"suites": []}}
    with pytest.raises(RecipeError, match=rf"{field}: not with pretrain.objective masked.* comes before; .* is right"):
        recipe_of(tmp_path, "masked", **{section: given})


@pytest.mark.parametrize("nothing", [{"evaluation": {"held_out_limit": 0}}, {"mixture": {"held_out_fraction": 0.0}}])
def test_a_model_that_sees_ahead_needs_a_text_to_fill_in(tmp_path, nothing):
    evaluation = nothing.get("evaluation", {}) | {"outside_text": "mine.jsonl"}
    assert recipe_of(tmp_path, "prefix", **(nothing | {"evaluation": evaluation})).sees_ahead
    with pytest.raises(RecipeError, match=r"no text says what a model of pretrain\.objective prefix fills in"):
        recipe_of(tmp_path, "prefix", **nothing)


@pytest.mark.parametrize("kind", SEES_AHEAD)
def test_all_that_the_kitchen_asks_of_a_model_that_sees_ahead_is_told_at_once(tmp_path, kind):
    path = tmp_path / "mine.yaml"
    tokens = [*load_recipe("kitchen").tokenizer.special_tokens, *IDS]
    path.write_text(
        f"extends: kitchen\nname: mine\npretrain: {{objective: {{kind: {kind}}}}}\n"
        f"tokenizer: {{special_tokens: {json.dumps(tokens)}}}\n"
    )
    with pytest.raises(RecipeError) as refused:
        load_recipe(str(path))
    for field in ("sft.data", "evaluation.suites", "pretrain.watch.suites"):
        assert f"{field}: not with pretrain.objective {kind}" in str(refused.value)


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return tiny.TinyChain(tmp_path_factory.mktemp("chain"), special_tokens=tuple(IDS))


@pytest.mark.parametrize("kind", ["fill_in_the_middle", "masked", "prefix", "span_corruption"])
def test_an_objective_trains_the_same_in_one_pass_and_in_several(chain, kind):
    assert_trains_alike(chain, ObjectiveRecipe(kind=kind), falls_by=0.5)


def assert_trains_alike(chain, objective: ObjectiveRecipe, *, falls_by: float) -> None:
    """The losses of some steps are the same in one pass and in several, and fall."""
    recipe = dataclasses.replace(chain.pretrain, objective=objective, precision="fp32")
    world, folder, losses = World(rank=0, size=1, device=torch.device("cpu")), Path(chain.tokenizer.path), []
    for micro_batch_tokens in (None, 64):
        trainer = Trainer(
            tiny.built(stage.model_shape(tiny.MODEL, folder), recipe),
            recipe,
            chain.plan,
            chain.open_shards(),
            world,
            micro_batch_tokens=micro_batch_tokens,
            objective=stage.make_objective(recipe, chain.plan, folder),
        )
        losses.append([trainer.run_step().loss for _ in range(8)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and losses[0][-1] < losses[0][0] - falls_by


def test_a_model_of_masked_text_is_kept_in_its_own_layout_and_measured_by_its_own_loss(chain):
    recipe = dataclasses.replace(chain.pretrain, objective=ObjectiveRecipe(kind="masked"))
    job = chain.job("masked", pretrain=recipe)
    outcome = stage.run(job, tiny.work_in(Path(job.output)))
    assert all(gate.passed for gate in outcome.gates)
    assert outcome.notes["own_layout"] == ["pretrain.objective masked: the classes see only what comes before"]
    assert json.loads(Path(job.output, "model", "config.json").read_text())["model_type"] == "pedigree_decoder"
    named = {name for name in outcome.metrics if name.startswith("held_out")}
    assert named == {"held_out_loss_books", "held_out_loss_web"}
    assert outcome.metrics["held_out_loss_web"] < 5.0
