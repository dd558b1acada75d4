"""Distillation: the loss by hand, its gradient against its definition, and a stage with a teacher."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.training.pretrain.tiny import MODEL, PRETRAIN, TinyChain, commit, make_tokenizer, work_in  # noqa: E402
from training.contract.job import DataError, RefusedInput  # noqa: E402
from training.contract.model_files import model_digest  # noqa: E402
from training.contract.records import RecipeError  # noqa: E402
from training.order.loss_mask import IGNORED  # noqa: E402
from training.pretrain.capacity.needs import Pretraining, certain_bytes, most  # noqa: E402
from training.pretrain.losses import chunked  # noqa: E402
from training.pretrain.losses import teacher as distill  # noqa: E402
from training.pretrain.losses.chunked import ChunkedLoss, Taught  # noqa: E402
from training.pretrain.losses.distillation import DISTILLATION  # noqa: E402
from training.pretrain.losses.settings import DistillRecipe  # noqa: E402
from training.pretrain.models.decoder import Decoder, initialise  # noqa: E402
from training.pretrain.parallel.degrees import Degrees  # noqa: E402
from training.pretrain.parallel.world import World  # noqa: E402
from training.pretrain.stages import pretrain as stage  # noqa: E402

ALONE = World(rank=0, size=1, device=torch.device("cpu"))
LOGITS = torch.eye(2)  # as a head: logits are the hidden state itself


def loss_of(softcap: float = 0.0, teacher_softcap: float = 0.0, **recipe) -> ChunkedLoss:
    chosen = replace(replace(PRETRAIN, distill=DistillRecipe(**recipe)).chosen_loss, part=DISTILLATION)
    return ChunkedLoss(chosen, softcap=softcap, teacher_softcap=teacher_softcap)


@pytest.mark.parametrize(
    ("temperature", "weight", "objective"),
    [
        # The student says (1/2, 1/2), the teacher (3/4, 1/4): CE = ln 2 = 0.693147,
        # KL = 3/4 ln(3/2) + 1/4 ln(1/2) = 0.130812.
        (1.0, 0.5, 0.5 * 0.693147 + 0.5 * 0.130812),
        (1.0, 1.0, 0.130812),
        # Softened by 2 the teacher says (√3, 1) / (1 + √3) = (0.633975, 0.366025): KL = 0.036342, times 4 = 0.145367.
        (2.0, 0.5, 0.5 * 0.693147 + 0.5 * 0.145367),
    ],
)
def test_the_loss_of_one_position_by_hand(temperature, weight, objective):
    made, likelihood, _ = loss_of(temperature=temperature, weight=weight)(
        torch.zeros(1, 2, requires_grad=True),
        LOGITS,
        torch.tensor([0]),
        scale=1.0,
        taught=Taught(torch.tensor([[math.log(3.0), 0.0]]), LOGITS),
    )
    assert made.item() == pytest.approx(objective, abs=2e-6)
    assert likelihood.item() == pytest.approx(math.log(2.0))


@pytest.fixture(params=["by hand", "to be compiled"])
def form(request, monkeypatch):
    """Whether the loss is computed in the form that is given to the compiler, here without it."""
    monkeypatch.setattr(torch, "compile", lambda call: call)
    return {"compiled": request.param == "to be compiled"}


@pytest.mark.parametrize("is_capped", [False, True])
@pytest.mark.parametrize(("temperature", "weight"), [(1.0, 0.3), (2.5, 0.7), (0.5, 1.0)])
def test_loss_and_gradients_equal_their_definition(monkeypatch, form, is_capped, temperature, weight):
    monkeypatch.setattr(chunked, "CHUNK", 8)
    draw = torch.Generator().manual_seed(2)
    hidden, head = (torch.randn(size, generator=draw, requires_grad=True) for size in ((20, 6), (11, 6)))
    taught, taught_head = (torch.randn(size, generator=draw) for size in ((20, 9), (11, 9)))
    targets = torch.randint(11, (20,), generator=draw)
    targets[[3, 12, 19]] = IGNORED
    caps = {"softcap": 3.0, "teacher_softcap": 2.0} if is_capped else {}
    loss = loss_of(temperature=temperature, weight=weight, **caps)
    made, likelihood, _ = loss(hidden, head, targets, scale=0.1, taught=Taught(taught, taught_head), **form)
    gradients = torch.autograd.grad(made, (hidden, head))

    logits, wanted = hidden @ head.t(), taught @ taught_head.t()
    if is_capped:
        logits, wanted = 3.0 * torch.tanh(logits / 3.0), 2.0 * torch.tanh(wanted / 2.0)
    trained = targets != IGNORED
    cross = torch.nn.functional.cross_entropy(logits[trained], targets[trained], reduction="sum")
    divergence = torch.nn.functional.kl_div(
        (logits[trained] / temperature).log_softmax(-1), (wanted[trained] / temperature).softmax(-1), reduction="sum"
    )
    defined = 0.1 * ((1 - weight) * cross + weight * temperature**2 * divergence)
    assert made.item() == pytest.approx(defined.item(), rel=1e-5)
    assert likelihood.item() == pytest.approx(0.1 * cross.item(), rel=1e-5)
    for ours, theirs in zip(gradients, torch.autograd.grad(defined, (hidden, head)), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_a_student_that_says_what_its_teacher_says_learns_from_the_text_alone():
    draw = torch.Generator().manual_seed(3)
    hidden, head = torch.randn(7, 5, generator=draw), torch.randn(9, 5, generator=draw)
    targets = torch.randint(9, (7,), generator=draw)
    loss, given = loss_of(weight=0.25, temperature=3.0), (hidden, head, targets)
    made, likelihood, _ = loss(*given, scale=1.0, taught=Taught(hidden, head))
    plain, *_ = ChunkedLoss(PRETRAIN.chosen_loss)(*given, scale=1.0)
    assert likelihood.item() == pytest.approx(plain.item(), rel=1e-6)
    assert made.item() == pytest.approx(0.75 * plain.item(), rel=1e-5)


# The stage

STUDENT = replace(MODEL, width=16, heads=2, kv_heads=1, mlp_width=24, layers=1)


@pytest.fixture(scope="module")
def chain(tmp_path_factory) -> TinyChain:
    chain = TinyChain(tmp_path_factory.mktemp("distill"))
    outcome = stage.run(chain.job("teacher"), work_in(chain.root / "base_model" / "teacher"))
    chain.teacher = commit(chain.root / "base_model" / "teacher", "base_model", list(outcome.files))
    return chain


def student(chain: TinyChain, name: str, teacher: Path | None, **changes):
    pretrain = replace(PRETRAIN, distill=DistillRecipe(weight=0.5, temperature=2.0), **changes)
    job = chain.job(name, model=STUDENT, pretrain=pretrain)
    if teacher is not None:
        job = replace(
            job, settings={**job.settings, "teacher": {"path": str(teacher), "digest": model_digest(teacher)}}
        )
    folder = chain.root / "base_model" / name
    return (folder / "model" / "model.safetensors"), stage.run(job, work_in(folder))


@pytest.fixture(scope="module")
def taught(chain):
    return student(chain, "taught", Path(chain.teacher.path))


def test_a_smaller_model_learns_from_a_teacher(chain, taught):
    weights, outcome = taught
    assert all(gate.passed for gate in outcome.gates)
    assert outcome.notes["teacher_parameters"] == MODEL.shape(vocab_size=258).parameter_count
    assert outcome.metrics["parameters"] < outcome.notes["teacher_parameters"]
    again, _ = student(chain, "again", Path(chain.teacher.path))
    alone, untaught = student(chain, "alone", None)
    assert again.read_bytes() == weights.read_bytes() != alone.read_bytes()
    # the logged loss is the text's alone, so before the first step both runs say the same, each adding in its own order
    assert untaught.metrics["loss_start"] == pytest.approx(outcome.metrics["loss_start"], rel=1e-6)
    assert "teacher_parameters" not in untaught.notes


def test_a_teachers_loss_is_compiled_where_the_ordinary_one_is(chain, taught, monkeypatch):
    calls = []

    def counted(call):
        return lambda *given: calls.append(given) or call(*given)

    monkeypatch.setattr(torch, "compile", counted)
    monkeypatch.setattr(stage, "compile_model", lambda trainer, _: setattr(trainer, "compiles_loss", True))
    _, outcome = student(chain, "compiled", Path(chain.teacher.path))
    assert len(calls) >= PRETRAIN.steps
    assert outcome.metrics["loss_end"] == pytest.approx(taught[1].metrics["loss_end"], rel=1e-3)


def test_the_student_comes_nearer_to_its_teacher_than_one_that_has_none(chain):
    from training.pretrain.models import export
    from training.pretrain.models.attention import one_document

    tokens = torch.tensor([[40 + i % 50 for i in range(60)]])
    wanted = export.read_model(Path(chain.teacher.path) / "model")
    mask = one_document(tokens, dtype=torch.float32)
    distances = []
    for name, teacher in (("near", Path(chain.teacher.path)), ("far", None)):
        weights, _ = student(chain, name, teacher, learning_rate=3e-3)
        model = export.read_model(weights.parent)
        with torch.no_grad():
            said, true = (one.logits(tokens, mask).log_softmax(-1) for one in (model, wanted))
        distances.append(torch.nn.functional.kl_div(said, true, log_target=True, reduction="batchmean").item())
    assert distances[0] < distances[1]


def test_a_plain_folder_teaches_and_another_one_than_the_jobs_is_refused(chain, tmp_path):
    folder = tmp_path / "plain"
    folder.mkdir()
    for path in (Path(chain.teacher.path) / "model").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tokenizer = Path(chain.tokenizer.path)
    job = chain.job("x", model=STUDENT)
    named = {"path": str(folder), "digest": model_digest(folder)}
    job = replace(job, settings={**job.settings, "teacher": named})
    assert distill.teacher_folder(job, PRETRAIN, tokenizer, ALONE) is not None
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    with pytest.raises(RefusedInput, match="changed since"):
        distill.teacher_folder(job, PRETRAIN, tokenizer, ALONE)
    with pytest.raises(DataError, match=r"no artifact"):
        model_digest(tmp_path / "nothing")


def test_a_teacher_with_other_tokens_or_a_failed_gate_is_refused(chain, tmp_path):
    job = chain.job("x", model=STUDENT)
    folder = Path(chain.teacher.path)
    job = replace(job, settings={**job.settings, "teacher": {"path": str(folder), "digest": model_digest(folder)}})
    other = make_tokenizer(tmp_path / "tokenizer", more=["<|more|>"])
    with pytest.raises(RefusedInput, match="another vocabulary"):
        distill.teacher_folder(job, PRETRAIN, Path(other.path), ALONE)
    with pytest.raises(RefusedInput, match="64 positions"):
        long = replace(PRETRAIN, sequence_length=128, global_batch_tokens=256)
        distill.teacher_folder(job, long, Path(chain.tokenizer.path), ALONE)
    failed = tmp_path / "failed"
    (failed / "model").mkdir(parents=True)
    for path in (folder / "model").iterdir():
        (failed / "model" / path.name).write_bytes(path.read_bytes())
    names = [f"model/{path.name}" for path in (failed / "model").iterdir()]
    commit(failed, "base_model", names, gates=[{"name": "bad", "passed": False, "evidence": {}}])
    named = {"path": str(failed), "digest": json.loads((failed / "artifact.json").read_text())["digest"]}
    with pytest.raises(RefusedInput, match="gate bad"):
        distill.teacher_folder(
            replace(job, settings={**job.settings, "teacher": named}),
            PRETRAIN,
            Path(chain.tokenizer.path),
            ALONE,
        )


@pytest.mark.parametrize("kind", ["masked", "prefix", "span_corruption"])
def test_a_teacher_that_sees_ahead_is_refused(chain, tmp_path, kind):
    shutil.copytree(Path(chain.teacher.path, "model"), tmp_path / "model")
    names = [f"model/{path.name}" for path in (tmp_path / "model").iterdir()]
    commit(tmp_path, "base_model", names, settings={"pretrain": {"objective": {"kind": kind}}})
    job = chain.job("x", model=STUDENT)
    named = {"path": str(tmp_path), "digest": json.loads((tmp_path / "artifact.json").read_text())["digest"]}
    job = replace(job, settings={**job.settings, "teacher": named})
    with pytest.raises(RecipeError, match=rf"trained by pretrain\.objective {kind} and says no next token"):
        stage.check_teachers_objective(job)
    stage.check_teachers_objective(chain.job("x", model=STUDENT))


def test_a_teacher_with_windows_sees_through_its_own(chain):
    config = replace(MODEL, qk_norm=True, window=4, window_pattern=("window",)).shape(vocab_size=258)
    model = Decoder(config)
    initialise(model, zero_outputs=False, generator=torch.Generator().manual_seed(1))
    tokens = torch.arange(32)[None]
    from training.pretrain.models.attention import one_document

    wide, own = (one_document(tokens, dtype=torch.float32, window=window) for window in (0, 4))
    with torch.no_grad():
        states = model(tokens, own).states.flatten(0, 1)
    assert torch.allclose(distill.taught(model, tokens, wide, dtype=torch.float32).states, states, atol=1e-6)


def test_a_student_that_is_spread_over_processes_is_refused(chain):
    job = chain.job("x", model=STUDENT)
    job = replace(job, settings={**job.settings, "teacher": {"path": chain.teacher.path, "digest": ""}})
    spread = World(rank=0, size=2, device=torch.device("cpu"), degrees=Degrees(shard=2))
    with pytest.raises(RecipeError, match="the whole model"):
        distill.teacher_folder(job, PRETRAIN, Path(chain.tokenizer.path), spread)


def test_a_teacher_that_has_no_room_beside_the_student_is_refused_with_the_sum(chain, monkeypatch, bf16):
    job = chain.job("crowded", model=STUDENT)
    shape = stage.model_shape(STUDENT, Path(chain.tokenizer.path))
    trained = [Pretraining(shape=shape, recipe=PRETRAIN, phase=phase) for phase in chain.plan.phases]
    alone = most([certain_bytes(one, job.run, probabilities=True) for one in trained])
    room = sum(alone.values())
    monkeypatch.setattr(stage, "memory_of", lambda device: (room, "the machine"))
    stage.run(job, work_in(Path(job.output)))
    named = {"path": chain.teacher.path, "digest": chain.teacher.digest}
    taught = replace(chain.job("taught", model=STUDENT), settings={**job.settings, "teacher": named})
    with pytest.raises(RecipeError, match=r"\(weights .* teacher .*\) GB"):
        stage.run(taught, work_in(Path(taught.output)))


@pytest.mark.parametrize("bad", [{"temperature": 0.0}, {"weight": 0.0}, {"weight": 1.5}])
def test_a_setting_that_makes_no_sense_is_refused(bad):
    with pytest.raises(RecipeError, match=f"pretrain.distill: .*{next(iter(bad))}"):
        DistillRecipe(**bad)


def test_a_teacher_does_not_go_with_z_loss():
    with pytest.raises(RecipeError, match=r"z_loss=0\.1"):
        replace(PRETRAIN, distill=DistillRecipe(teacher="x"), z_loss=0.1)
    with pytest.raises(RecipeError, match=r"z_loss=0\.1 is without effect"):
        replace(PRETRAIN, loss="mine", z_loss=0.1)
