"""The stages of `python -m evaluation`, and the assets that they make."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluation.contamination.taught_by import taught_by
from evaluation.contamination.trained_on import data_of
from evaluation.decision.answers import MODELS
from training.contract.model_files import model_digest
from training.contract.records import RecipeError, all_of, unknown_names
from training.contract.scopes import (
    AVERAGED_MODEL,
    CHOSEN_MODEL,
    KEPT_STEPS,
    QUANTIZED_MODEL,
    QUANTIZED_SCORES,
    WHOLE,
    asks_for,
    begins_with_step,
    begins_with_whole,
    is_replaced,
    last_model,
    last_trained,
)
from training.contract.stage import Asset, Input, Stage
from training.contract.user_input.places import local_path
from training.data.exams.settings import ASKED_BY_HARNESS, BenchmarkRecipe
from training.data.exams.task_checks import check_suite
from training.data.exams.task_files import asked_and_scored
from training.data.sections import sections, with_data
from training.order.settings import MixtureRecipe
from training.posttrain.align.watch_settings import AlignWatchRecipe
from training.pretrain.stages.held_out_needed import held_out_asked, held_out_there
from training.pretrain.watch.divisors import DIVISORS
from training.pretrain.watch.keep_settings import KeepRecipe
from training.pretrain.watch.settings import WatchRecipe
from training.quantize.settings import QuantizeRecipe
from training.recipe.settings.automation import AutomationRecipe
from training.recipe.settings.evaluation import (
    JUDGES_CONTAMINATION,
    MEASURES_TEXT,
    SAMPLES_ANSWERS,
    EvaluationRecipe,
    TrainedOn,
)
from training.recipe.settings.judged_chat import JUDGE_PATH
from training.recipe.settings.ladder import LadderRecipe

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

MOST_WATCHED_ITEMS = 1000  # of a suite, if the profile's `watch_share` decides how many are asked

READ_FAMILIES = (("training.pretrain.models.families", "all"),)  # of a base model that sees ahead

EVALUATE = Stage(
    name="evaluate",
    version="29",
    module="evaluation.exams.scores",
    parts=READ_FAMILIES,
    libraries=("jinja2", "lm-eval", "tokenizers", "torch", "transformers"),
    kinds=("lm-eval",),
    gates=("scores_complete",),
    distributed=True,
    by_a_model=True,
)
SCORE_STEP = replace(EVALUATE, name="score_step", version="5", module="evaluation.steps.step_scores")
CHOOSE = replace(EVALUATE, name="choose", version="3", module="evaluation.steps.choice")
SCORE_QUANTIZED = replace(
    EVALUATE,
    name="score_quantized",
    version="3",
    module="evaluation.exams.quantized.scores",
    libraries=(*EVALUATE.libraries, "torchao"),
    gates=(*EVALUATE.gates, "max_drop"),
    distributed=False,
)
LEARNING_CURVES = Stage(
    name="learning_curves",
    version="4",
    module="evaluation.steps.learning_curves",
    libraries=("jinja2",),
    kinds=("json", "html"),
)
JUDGE = Stage(
    name="judge",
    version="18",
    module="evaluation.exams.judging",
    parts=(("training.posttrain.rewards", "none"),),
    libraries=("lm-eval", "tokenizers", "torch", "transformers"),
    kinds=("json",),
    distributed=True,
    by_a_model=True,
)
JUDGE_CHAT = Stage(
    name="judge_chat",
    version="2",
    module="evaluation.exams.judged.chat",
    libraries=("tokenizers", "torch", "transformers"),
    kinds=("json",),
    by_a_model=True,
    locations=((JUDGE_PATH,),),
)
SAFETY = Stage(
    name="safety",
    version="2",
    module="evaluation.exams.safety.asked",
    libraries=("tokenizers", "torch", "transformers"),
    data_files=("exams/safety/*.jsonl",),
    kinds=("json",),
    by_a_model=True,
)
CONTAMINATION = Stage(
    name="contamination",
    version="20",
    module="evaluation.contamination.search",
    libraries=("xxhash",),
    kinds=("numpy", "json"),
    gates=("contamination",),
    in_ranks=True,
    by_file=("decontaminated_documents", "token_shards", "instruction_data", "preference_data", "prompt_data"),
    locations=(("teacher_data", "partition"), ("teacher_data", "fingerprint"), ("teacher_data", "path")),
)
CONTAMINATION_REPORT = Stage(
    name="contamination_report",
    version="10",
    module="evaluation.contamination.report",
    kinds=("json",),
    gates=("contamination",),
)
CHECK_SUITES = Stage(
    name="check_suites",
    version="3",
    module="evaluation.exams.suites.canned_answers",
    libraries=("jinja2", "lm-eval", "tokenizers", "transformers"),
    kinds=("lm-eval", "json"),
)
WATCHED_ITEMS = Stage(
    name="watched_items",
    version="5",
    module="evaluation.exams.watched_items",
    libraries=("jinja2", "lm-eval", "tokenizers", "transformers"),
    kinds=("lm-eval", "json"),
)
SCALING = Stage(
    name="scaling",
    version="14",
    module="evaluation.report.scaling",
    libraries=("jinja2", "numpy", "plotly", "scipy"),
    kinds=("scipy",),
    gates=("loss_falls_with_size_and_tokens",),
)
CARD = Stage(
    name="card",
    version="38",
    module="evaluation.hub.card",
    parts=(
        ("training.data.filter.rules", "none"),
        ("training.pretrain.losses.terms", "all"),
        ("training.pretrain.optim.optimizers", "all"),
        ("training.pretrain.models.families", "all"),
        ("training.posttrain.rewards", "none"),
    ),
    libraries=("huggingface-hub", "jinja2", "tldextract"),
    kinds=("markdown", "html"),
    # These places do not decide the card: its inputs were made from the files of the snapshots, and of the teacher and
    # the adopted model, which are known by their digests, as is the judge of the chats.
    locations=(
        ("recipe", "snapshots", "paths"),
        ("recipe", "snapshots", "base_url"),
        ("recipe", "pretrain", "distill", "teacher"),
        ("recipe", "adopt", "model"),
        ("recipe", "judged_chat", "model"),
    ),
)
PROMOTE = Stage(
    name="promote",
    version="13",
    module="evaluation.decision.gate",
    kinds=("mlflow",),
    gates=("promotion",),
    context=("champion",),  # a decision against another champion is stale, not outdated
)


def _ends_with(recipe: Recipe, *, model: str) -> bool:
    return last_model(recipe) == model


def _is_trained_last(recipe: Recipe, *, model: str) -> bool:
    return last_trained(recipe) == model


def _is_not_replaced(recipe: Recipe, *, model: str) -> bool:
    return not is_replaced(recipe, model)


def _is_whole(recipe: Recipe) -> bool:
    """Whether the base model takes exams as it is at the end of its training."""
    return begins_with_whole(recipe) and not is_replaced(recipe, "base_model")


def _is_base(recipe: Recipe) -> bool:
    """Whether the recipe trains no base model of its own and uses an adopted model instead."""
    return not asks_for(recipe, "snapshots")


def _scores(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the settings of the exams, and the share of held-out documents; and an objective that sees ahead.

    Settings of sampled answers and of contamination are left out, because only later stages use them.
    """
    del part
    asked = _without(recipe.evaluation, SAMPLES_ANSWERS, JUDGES_CONTAMINATION)
    held_out = MixtureRecipe(held_out_fraction=recipe.mixture.held_out_fraction)
    filled = {"objective": recipe.pretrain.objective} if recipe.sees_ahead else {}
    return with_data(recipe, {"evaluation": asked, "mixture": held_out, **filled})


def _step_scores(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the settings of the exams alone."""
    del part
    asked = _without(recipe.evaluation, SAMPLES_ANSWERS, MEASURES_TEXT, JUDGES_CONTAMINATION)
    return with_data(recipe, {"evaluation": asked})


def _choice(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the suite by which a model is chosen, and how suites are asked."""
    del part
    asked = _without(recipe.evaluation, SAMPLES_ANSWERS, MEASURES_TEXT, JUDGES_CONTAMINATION)
    suites = tuple(suite for suite in recipe.evaluation.suites if suite.name == recipe.promote.best_by)
    return with_data(recipe, {"evaluation": replace(asked, suites=suites)})


def _check_choice(recipe: Recipe) -> None:
    """Raise RecipeError if there is nothing to choose from: the last training keeps no step."""
    section = {"base_model": "pretrain", "sft_model": "sft", "aligned_model": "align"}[last_trained(recipe)]
    if not asks_for(recipe, f"{section}.keep.is_asked"):
        raise RecipeError(
            f"promote.best_by: {recipe.promote.best_by}, and there is no model to choose but the last one; name kept"
            f" steps in {section}.keep"
        )


def _quantized_scores(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return what the exams of the other models are asked by, and how much may be lost."""
    return _scores(recipe, part) | {"limit": {"max_drop": recipe.quantize.max_drop}}


def _watched(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the suites that are asked during the training, the length of its rows, and how their items are drawn."""
    del part
    watch = recipe.pretrain.watch
    suites = tuple(suite for suite in recipe.evaluation.suites if suite.name in watch.suites)
    number = MOST_WATCHED_ITEMS if watch.items == "auto" else watch.items
    drawn = {"items": number, "seed": watch.seed, "sequence_length": recipe.pretrain.sequence_length}
    return with_data(recipe, {"evaluation": EvaluationRecipe(suites=suites), "drawn": drawn})


def _watches_languages(recipe: Recipe) -> bool:
    return recipe.pretrain.watch.languages


def _tried(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the suites that lm-eval scores."""
    del part
    suites = tuple(suite for suite in recipe.evaluation.suites if not suite.harness)
    return with_data(recipe, {"evaluation": EvaluationRecipe(suites=suites)})


def _check_watched(recipe: Recipe) -> None:
    """Raise RecipeError if a suite cannot be asked during the training, because likelihoods do not give its score.

    Also if there is no suite of a name, or if the training teaches no likelihood of a text that follows another, or if
    no rule tells languages or no text is held out.
    """
    suites, watch = {suite.name: suite for suite in recipe.evaluation.suites}, recipe.pretrain.watch
    if not recipe.pretrain.objective.continues_text:
        asked = ("suites", "an answer; []") if watch.suites else ("languages", "held-out text; false")
        raise RecipeError(
            f"pretrain.watch.{asked[0]}: pretrain.objective {recipe.pretrain.objective.kind} continues no text, so a"
            f" model in training has no likelihood of {asked[1]} is right"
        )
    if watch.languages:
        held_out_asked("pretrain.watch.languages")(recipe)
        if "language" not in recipe.filter.rules:
            raise RecipeError("pretrain.watch.languages: filter.rules has no rule language, which tells them; add it")
    problems = unknown_names("pretrain.watch.suites", recipe.pretrain.watch.suites, suites)
    for name in recipe.pretrain.watch.suites:
        if name in suites and (reason := _why_unwatched(suites[name])):
            problems.append(f"pretrain.watch.suites: {name!r} cannot be watched, because {reason}; take it out")
    if problems:
        raise RecipeError(*problems)


def _why_unwatched(suite: BenchmarkRecipe) -> str:
    """Return why a model in training cannot be asked a suite; empty if it can, or if only the job will know."""
    if suite.harness:
        return f"the harness {suite.harness} asks it, which needs a whole model"
    asked, metric = asked_and_scored(suite)
    if asked not in ("multiple_choice", "loglikelihood", None):
        return "its answers are written, not scored by likelihood"
    if metric not in (*DIVISORS, None):
        return f"its score is {metric}, and only {', '.join(DIVISORS)} follow from the likelihoods of its choices"
    return ""


def _judge(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the suites, the settings of sampled answers, and `align`, whose held-out pairs and lengths are used."""
    del part
    asked = _unasked(recipe, _without(recipe.evaluation, MEASURES_TEXT, JUDGES_CONTAMINATION))
    return with_data(recipe, asked | {"align": recipe.align.without_prompts})


def _judged_chat(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the questions and the judge. A judge's folder is identified by its digest, not by its path."""
    from evaluation.exams.judged.judge_folder import judge_folder
    from evaluation.exams.judged.questions import read_questions

    del part
    chat = recipe.judged_chat
    asked = with_data(recipe, {"judged_chat": chat})
    read_questions(chat, asked)  # before anything is trained
    if not chat.model:
        return asked
    folder = judge_folder(chat.model)
    return asked | {"judged_chat": replace(chat, model=model_digest(folder)), JUDGE_PATH: str(folder)}


def _safety(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the limits and the requests."""
    from evaluation.exams.safety.asked import SETS, read_requests

    del part
    asked = with_data(recipe, {"safety": recipe.safety})
    for name in SETS:
        read_requests(name, getattr(recipe.safety, name), asked)  # before anything is trained
    return asked


def _check_chats(recipe: Recipe, *, asked: str) -> None:
    if not recipe.sft.data:
        raise RecipeError(f"{asked}: sft.data names no conversations, so no model here can chat")


def _check_suites(recipe: Recipe) -> None:
    all_of(*(partial(check_suite, suite) for suite in recipe.evaluation.suites))


def _unasked(recipe: Recipe, section: EvaluationRecipe) -> dict[str, Any]:
    """Return the section for a stage that reads the items of the suites and asks none.

    No harness is in it, so that no fingerprint contains its code; only the names of the suites that one asks.
    """
    suites = recipe.evaluation.suites
    own = sorted(suite.name for suite in suites if suite.harness)
    asked = {"evaluation": replace(section, suites=tuple(suite.without_harness for suite in suites))}
    return asked | ({ASKED_BY_HARNESS: own} if own else {})


def _without(section: EvaluationRecipe, *names: tuple[str, ...]) -> EvaluationRecipe:
    """Return the section with the named fields at their defaults, so that no fingerprint contains them."""
    plain = EvaluationRecipe(suites=())
    return replace(section, preset="none", **{name: getattr(plain, name) for group in names for name in group})


def _contamination(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the suites, the limits on contamination, and what the models are trained on."""
    from training.data.sources import resolve

    del part
    judged = {name: getattr(recipe.evaluation, name) for name in JUDGES_CONTAMINATION}
    trained_on = TrainedOn(
        data=tuple(data_of(recipe)),  # without the models, so that recipes with the same data share the scan
        system_prompt=recipe.sft.system_prompt,
    )
    asked = _unasked(recipe, EvaluationRecipe(suites=(), **judged))
    if not recipe.pretrain.distill.teacher:
        return with_data(recipe, asked | {"trained_on": trained_on})
    teacher = local_path(resolve(recipe.pretrain.distill.teacher), "pretrain.distill.teacher").resolve()
    behind = taught_by(teacher, type(recipe))
    trained_on = replace(
        trained_on,
        teacher=recipe.pretrain.distill.teacher,
        teacher_unknown=tuple(sorted(behind.unknown)),
        teacher_prompts=tuple(sorted(behind.system_prompts)),
    )
    return with_data(recipe, asked | {"trained_on": trained_on, "teacher_data": behind.as_settings()})


def _scaling(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the settings of the fit, and the size of the model whose loss is predicted."""
    del part
    shape = recipe.model.shape(vocab_size=recipe.tokenizer.vocabulary)
    return {
        "ladder": LadderRecipe(bootstrap=recipe.ladder.bootstrap, seed=recipe.ladder.seed),
        "predicted": {"parameters": shape.parameter_count, "tokens": recipe.pretrain.step_tokens},
    }


def _card(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the whole recipe but `automation`, `quantize`, what is watched, and `keep`: no other result is of these.

    The step with which fine-tuning begins is said to be kept.
    """
    del part
    begin = (recipe.sft.from_step,) if recipe.sft.from_step else ()
    plain = replace(recipe.pretrain, watch=WatchRecipe(), keep=KeepRecipe(steps=begin))
    align = recipe.align if recipe.align.watch.stops else replace(recipe.align, watch=AlignWatchRecipe())
    shown = replace(recipe, automation=AutomationRecipe(), quantize=QuantizeRecipe(), pretrain=plain, align=align)
    return with_data(recipe, {"recipe": shown})


def _promote(recipe: Recipe, part: str) -> dict[str, Any]:
    """Return the conditions of a promotion, and whether one is on what was seen of alignment."""
    asked = {"watched": ["aligned_model"]} if recipe.align.watch.every is not None else {}
    return sections("promote")(recipe, part) | asked


_KEEPING = tuple(f"{section}.keep.is_asked" for section in ("pretrain", "long_context", "sft", "align"))

# The models that chat: the last ones of their trainings, or the one that was chosen in place of the last.
_CHATTING = (
    *(Input(asset=name, when=partial(_is_not_replaced, model=name)) for name in ("sft_model", "aligned_model")),
    Input(asset=CHOSEN_MODEL),
)

ASSETS = (
    Asset(
        name="scaling_fit",
        stage=SCALING,
        description=(
            "How the held-out loss of the ladder's models falls with parameters and tokens, with intervals, and the "
            "loss that it predicts for the recipe's own model."
        ),
        group="ladder",
        scope="section",
        sections=("ladder.rungs",),
        settings=_scaling,
        inputs=(Input(asset="ladder_model", which="every"),),
        checks=(held_out_asked("ladder"),),
        facts=(held_out_there("ladder_plan", "ladder"),),
    ),
    Asset(
        name="checked_suites",
        stage=CHECK_SUITES,
        description=(
            "What answers made for each suite score, before anything is trained: a suite is refused if no right one"
            " scores 1, or if wrong, empty or overlong ones score as much."
        ),
        group="training_data",
        scope="section",
        sections=("evaluation.has_tasks",),
        settings=_tried,
        checks=(_check_suites,),
    ),
    Asset(
        name="watched_items",
        stage=WATCHED_ITEMS,
        description=(
            "What the base model is asked while it is trained: items of the benchmarks as tokens, a seeded sample of "
            "each suite; and the languages of held-out text."
        ),
        group="pretraining",
        scope="section",
        sections=("pretrain.watch.suites", "pretrain.watch.languages"),
        settings=_watched,
        inputs=(
            Input(asset="tokenizer"),
            Input(asset="training_plan", when=_watches_languages),
            Input(asset="token_shards", which="every", when=_watches_languages),
            Input(asset="decontaminated_documents", which="every", when=_watches_languages),
        ),
        checks=(_check_suites, _check_watched),
    ),
    Asset(
        name="model_scores",
        stage=EVALUATE,
        description="Benchmark scores of the base, SFT and aligned models with 95 % intervals; every answer is kept.",
        group="evaluation",
        scope="recipe",
        settings=_scores,
        inputs=(
            Input(asset="base_model", when=_is_whole),
            Input(asset=KEPT_STEPS, which="sft", when=begins_with_step),
            Input(asset="adopted_model", when=_is_base),
            *_CHATTING,
            Input(asset="decontaminated_documents", which="every"),  # held-out documents, and pages for controls
        ),
        checks=(_check_suites,),
    ),
    Asset(
        name="step_scores",
        stage=SCORE_STEP,
        description="Benchmark scores of a model as it was after a kept step of its training; every answer is kept.",
        group="evaluation",
        scope="step",
        sections=_KEEPING,
        settings=_step_scores,
        inputs=tuple(Input(asset=kept) for kept in WHOLE),
        checks=(_check_suites,),
    ),
    Asset(
        name=CHOSEN_MODEL,
        stage=CHOOSE,
        description=(
            "The best model of the last training by a suite: one of its kept steps, their average, or the last model. "
            "It is registered and promoted; its score on that suite is too high on average."
        ),
        group="evaluation",
        scope="section",
        sections=("promote.best_by",),
        settings=_choice,
        inputs=(
            *(Input(asset=name, when=partial(_is_trained_last, model=name)) for name in MODELS.values()),
            *(
                Input(asset=kept, which="every", when=partial(_is_trained_last, model=whole))
                for kept, whole in WHOLE.items()
                if whole in MODELS.values()
            ),
            Input(asset=AVERAGED_MODEL, when=partial(_is_trained_last, model="base_model")),
        ),
        checks=(_check_suites, _check_choice),
    ),
    Asset(
        name=QUANTIZED_SCORES,
        stage=SCORE_QUANTIZED,
        description=(
            "Scores of the last model in small numbers on the items that the last model was asked, what it lost, and "
            "how fast both write. It is refused if more is lost than the recipe allows."
        ),
        group="evaluation",
        scope="section",
        sections=("quantize.is_asked",),
        settings=_quantized_scores,
        inputs=(
            Input(asset=QUANTIZED_MODEL),
            *(Input(asset=name, when=partial(_ends_with, model=name)) for name in (*MODELS.values(), CHOSEN_MODEL)),
            Input(asset="model_scores"),
            Input(asset="decontaminated_documents", which="every"),
        ),
    ),
    Asset(
        name="learning_curves",
        stage=LEARNING_CURVES,
        description=(
            "The scores of each training's model over its kept steps, and what reading leaked items did to those of "
            "the base model."
        ),
        group="evaluation",
        scope="section",
        sections=_KEEPING,
        settings=sections(),
        inputs=(
            Input(asset="step_scores", which="every"),
            Input(asset="kept_steps", which="every"),
            Input(asset="data_contamination"),
            Input(asset="training_plan"),
            Input(asset="token_shards", which="every"),
        ),
    ),
    Asset(
        name="alignment_rewards",
        stage=JUDGE,
        description=(
            "Rewards of the SFT and aligned models' answers, by the reward model and by rubrics, and the divergence "
            "between the two models."
        ),
        group="evaluation",
        scope="section",
        sections=("preferences.data",),
        settings=_judge,
        inputs=(
            *_CHATTING,
            Input(asset="reward_model"),
            Input(asset="preference_data"),
            Input(asset="model_scores"),
        ),
    ),
    Asset(
        name="judged_chat",
        stage=JUDGE_CHAT,
        description=(
            "Answers of the SFT and aligned models to questions in turns, with a judge's ratings, and the win rate of "
            "the aligned model; every verdict is kept."
        ),
        group="evaluation",
        scope="section",
        sections=("judged_chat.questions",),
        settings=_judged_chat,
        inputs=_CHATTING,
        checks=(partial(_check_chats, asked="judged_chat.questions"),),
    ),
    Asset(
        name="safety_answers",
        stage=SAFETY,
        description=(
            "Which harmful requests the SFT and aligned models answer, and which harmless ones they refuse. No model "
            "is promoted if the last one is above the recipe's limits."
        ),
        group="evaluation",
        scope="section",
        sections=("safety.is_asked",),
        settings=_safety,
        inputs=_CHATTING,
        checks=(partial(_check_chats, asked="safety"),),
    ),
    Asset(
        name="data_contamination",
        stage=CONTAMINATION,
        description=(
            "Which items of the scored benchmarks occur in the data that the models are going to be trained on. "
            "Training waits for this verdict, and is refused unless it is clean or tolerated."
        ),
        group="training_data",
        scope="recipe",
        settings=_contamination,
        inputs=(
            Input(asset="decontaminated_documents", which="every"),
            Input(asset="token_shards", which="every"),
            Input(asset="instruction_data"),
            Input(asset="preference_data"),
            Input(asset="prompt_data"),
        ),
    ),
    Asset(
        name="contamination_report",
        stage=CONTAMINATION_REPORT,
        description=(
            "The contamination verdict, and each model's scores on the items that occur in its training data and on the"
            " others."
        ),
        group="evaluation",
        scope="recipe",
        settings=sections(),
        inputs=(Input(asset="data_contamination"), Input(asset="model_scores")),
    ),
    Asset(
        name="model_card",
        stage=CARD,
        description="The model card and one self-contained report of the whole run.",
        group="evaluation",
        scope="recipe",
        shows_recipe=True,
        settings=_card,
        inputs=(
            Input(asset="adopted_model"),
            Input(asset="crawl_archives", which="every"),
            Input(asset="extracted_documents", which="every"),
            Input(asset="quality_models"),
            Input(asset="document_scores", which="every"),
            Input(asset="filtered_documents", which="every"),
            Input(asset="document_signatures", which="every"),
            Input(asset="deduplicated_documents", which="every"),
            Input(asset="benchmark_index"),
            Input(asset="decontaminated_documents", which="every"),
            Input(asset="tokenizer"),
            Input(asset="token_shards", which="every"),
            Input(asset="corpus_summary"),
            Input(asset="reference_model"),
            Input(asset="mixture_weights"),
            Input(asset="training_plan"),
            Input(asset="base_model", when=begins_with_whole),
            Input(asset=KEPT_STEPS, which="sft", when=begins_with_step),
            Input(asset="long_context_plan"),
            Input(asset="long_context_model"),
            Input(asset="instruction_data"),
            Input(asset="sft_model"),
            Input(asset="preference_data"),
            Input(asset="prompt_data"),
            Input(asset="reward_model"),
            Input(asset="aligned_model"),
            Input(asset=CHOSEN_MODEL),
            Input(asset="model_scores"),
            Input(asset="alignment_rewards"),
            Input(asset="judged_chat"),
            Input(asset="safety_answers"),
            Input(asset="data_contamination"),
            Input(asset="contamination_report"),
        ),
    ),
    Asset(
        name="promoted_model",
        stage=PROMOTE,
        description=(
            "The decision whether the model becomes champion, the registered version in use. It is made by "
            "evaluation.decision.gate from the scores and the contamination report of exactly this model (by digest), "
            "and moves the alias in the MLflow registry."
        ),
        group="evaluation",
        scope="recipe",
        settings=_promote,
        inputs=(
            Input(asset="model_scores"),
            Input(asset="contamination_report"),
            Input(asset="safety_answers"),
            Input(asset="model_card"),
            *(Input(asset=name, when=partial(_ends_with, model=name)) for name in (*MODELS.values(), CHOSEN_MODEL)),
        ),
    ),
)
STAGES: dict[str, Stage] = {asset.stage.name: asset.stage for asset in ASSETS}
