"""The recipe: every setting that is meant to change the result, as frozen records that check themselves.

A recipe is a YAML file (training/recipe/recipes.py reads it). Settings that decide only where and how fast a stage runs
are in the profile (resources/profile.py); no setting is in both. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, get_type_hints

from training.adopt.settings import AdoptRecipe
from training.contract.records import (
    RecipeError,
    all_of,
    did_you_mean,
    differences,
    differing_from_defaults,
    no_such,
    varied,
    write_record,
)
from training.contract.user_input.names import check_name
from training.data.crawl.settings import SnapshotRecipe
from training.data.dedup.settings import DedupRecipe
from training.data.exams.decontaminate_settings import DecontaminateRecipe
from training.data.extract.settings import BLOCK_EXTRACTORS, ExtractRecipe
from training.data.filter.settings import FilterRecipe
from training.data.kitchen.settings import KitchenWorld
from training.data.quality.settings import QualityRecipe
from training.data.tokens.tokenize_settings import ShardsRecipe
from training.data.tokens.tokenizer_settings import TokenizerRecipe
from training.generate.settings import SynthesisRecipe
from training.order.batch_settings import ContinueRecipe
from training.order.settings import MixtureRecipe
from training.posttrain.align.settings import AlignRecipe
from training.posttrain.preferences.settings import PreferencesRecipe
from training.posttrain.reward.settings import RewardRecipe
from training.posttrain.sft.settings import SftRecipe
from training.pretrain.losses.settings import DistillRecipe
from training.pretrain.models.borrowed import BY_TRANSFORMERS
from training.pretrain.models.families import FAMILIES, forget_others, inexpressible, is_borrowed
from training.pretrain.models.shape import ExpertLayers, ModelRecipe
from training.pretrain.settings import PretrainRecipe
from training.pretrain.stages.doremi_settings import DoremiRecipe
from training.pretrain.stages.long_context_settings import LongContextRecipe
from training.pretrain.watch.keep_settings import KeepRecipe
from training.pretrain.watch.settings import WatchRecipe
from training.pretrain.watch.stop_settings import StopRecipe
from training.quantize.settings import QuantizeRecipe
from training.recipe.settings.automation import AutomationRecipe
from training.recipe.settings.evaluation import EvaluationRecipe
from training.recipe.settings.judged_chat import JudgedChatRecipe
from training.recipe.settings.ladder import LadderRecipe, RungRecipe
from training.recipe.settings.promote import PromoteRecipe
from training.recipe.settings.provider import ProviderRecipe
from training.recipe.settings.safety import SafetyRecipe
from training.recipe.settings.withdrawals import WithdrawalRecipe

# Sections for further models and texts that are made from the recipe's own model. A recipe that is derived for a rung,
# a reference or a long-context model has them empty.
OF_ONE_MODEL = {
    "ladder": LadderRecipe(),
    "long_context": LongContextRecipe(),
    "synthesis": SynthesisRecipe(),
    "sft": {"from_step": None},
    "quantize": QuantizeRecipe(),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """All settings of a whole run, from crawl to promotion; one field for each section of the recipe file."""

    name: str
    description: str = ""
    kitchen: KitchenWorld = field(default_factory=KitchenWorld)
    snapshots: tuple[SnapshotRecipe, ...] = ()
    adopt: AdoptRecipe = field(default_factory=AdoptRecipe)
    extract: ExtractRecipe = field(default_factory=ExtractRecipe)
    quality: QualityRecipe = field(default_factory=QualityRecipe)
    filter: FilterRecipe = field(default_factory=FilterRecipe)
    dedup: DedupRecipe = field(default_factory=DedupRecipe)
    decontaminate: DecontaminateRecipe = field(default_factory=DecontaminateRecipe)
    tokenizer: TokenizerRecipe
    shards: ShardsRecipe = field(default_factory=ShardsRecipe)
    mixture: MixtureRecipe = field(default_factory=MixtureRecipe)
    model: ModelRecipe
    pretrain: PretrainRecipe
    sft: SftRecipe
    preferences: PreferencesRecipe
    reward: RewardRecipe = field(default_factory=RewardRecipe)
    align: AlignRecipe = field(default_factory=AlignRecipe)
    quantize: QuantizeRecipe = field(default_factory=QuantizeRecipe)
    evaluation: EvaluationRecipe
    judged_chat: JudgedChatRecipe = field(default_factory=JudgedChatRecipe)
    safety: SafetyRecipe = field(default_factory=SafetyRecipe)
    promote: PromoteRecipe
    ladder: LadderRecipe = field(default_factory=LadderRecipe)
    doremi: DoremiRecipe = field(default_factory=DoremiRecipe)
    synthesis: SynthesisRecipe = field(default_factory=SynthesisRecipe)
    long_context: LongContextRecipe = field(default_factory=LongContextRecipe)
    automation: AutomationRecipe = field(default_factory=AutomationRecipe)
    withdrawals: WithdrawalRecipe = field(default_factory=WithdrawalRecipe)
    provider: ProviderRecipe = field(default_factory=ProviderRecipe)

    def __post_init__(self) -> None:
        forget_others(self.model.parts)
        all_of(
            lambda: check_name(self.name, "name"),
            self._check_snapshots,
            self._check_adopted,
            self._check_end,
            self._check_later_stages,
            self._check_scores,
            self._check_long_context,
            self._check_from_step,
            self._check_continued_mixture,
            *(self._corpus_checks() if self.has_corpus else ()),
        )
        for rung in self.ladder.rungs:
            _ = self.on_rung(rung.name)  # checks itself
        if self.doremi.tokens:
            self._check_doremi()

    @property
    def has_corpus(self) -> bool:
        """Whether the chain has a corpus and a model that is pretrained on it; else it begins with the adopted one."""
        return bool(self.snapshots) or not self.adopt.model

    @property
    def sees_ahead(self) -> bool:
        """Whether the base model is trained to see later tokens, so that it answers no exam and the chain ends there.

        No class of transformers runs it.
        """
        return self.has_corpus and not self.pretrain.objective.is_causal

    def _corpus_checks(self) -> tuple[Callable[[], None], ...]:
        return (
            self._check_layers,
            self._check_lengths,
            self._check_kinds,
            self._check_budget,
            self._check_special_tokens,
            self._check_buckets,
            self._check_survivor,
            self._check_first_weights,
        )

    def _check_snapshots(self) -> None:
        names = [snapshot.name for snapshot in self.snapshots]
        if (not names and not self.adopt.model) or len(set(names)) != len(names):
            raise RecipeError(f"snapshots: names must be present and different, got {names}")
        wanted = {"tokenizer.snapshots": self.tokenizer.snapshots, "quality.snapshots": self.quality.snapshots}
        unknown = [(where, name) for where, given in wanted.items() for name in given if name not in names]
        if unknown:
            raise RecipeError(
                *(
                    f"{where}: {name!r} is not a snapshot of this recipe; it has {', '.join(names)}"
                    for where, name in unknown
                )
            )

    def _check_adopted(self) -> None:
        """Raise RecipeError for contradictions about an adopted model.

        Examples are facts without a model, and a model that no part of the recipe uses. A recipe without
        snapshots has no corpus, so it cannot have parts that need pretraining.
        """
        said = self.adopt
        if said.model and said.tokenizer:
            raise RecipeError(
                "adopt.tokenizer: without effect, because the model in adopt.model has its own; leave it out"
            )
        if not said.model:
            given = next((name for name in ("name", "revision", "licence") if getattr(said, name)), "")
            if given and not said.tokenizer:
                raise RecipeError(f"adopt.{given}: without effect, because adopt.model names no model")
            return
        if self.snapshots:
            return
        if not self.sft.data:
            raise RecipeError(
                "adopt: nothing is made of the model; name conversations in sft.data, or documents in snapshots."
                " `pedigree evaluate` scores a model as it is"
            )
        needs = {
            "long_context.tokens": self.long_context.tokens,
            "doremi.tokens": self.doremi.tokens,
            "ladder.rungs": self.ladder.rungs,
            "pretrain.watch.suites": self.pretrain.watch.suites,
            "pretrain.watch.languages": self.pretrain.watch.languages,
            "pretrain.keep": self.pretrain.keep.is_asked,
            "synthesis.generator: base_model": self.synthesis.prompts and self.synthesis.generator == "base_model",
        }
        if unfit := [name for name, given in needs.items() if given]:
            raise RecipeError(f"{unfit[0]}: needs a corpus; name documents in snapshots")

    def _check_layers(self) -> None:
        if is_borrowed(self.model.shape(vocab_size=1)):
            raise RecipeError(
                f"model.family: {self.model.family!r} {BY_TRANSFORMERS} and cannot be pretrained; name such a model in"
                " adopt.model, conversations in sft.data, and no snapshots"
            )

    def _check_lengths(self) -> None:
        if self.pretrain.sequence_length > self.model.max_length:
            raise RecipeError(
                f"pretrain.sequence_length={self.pretrain.sequence_length} is longer than "
                f"model.max_length={self.model.max_length}"
            )
        if problems := [
            f"{name}={number} leaves no room for a prompt in {positions} positions"
            for name, number, positions in self._written()
            if number >= positions
        ]:
            raise RecipeError(*problems)

    def _written(self) -> Iterator[tuple[str, int, int]]:
        """Yield the name, the most tokens, and the model's positions for each kind of text that a model writes."""
        positions, last = self.model.max_length, max(self.model.max_length, self.long_context.sequence_length or 0)
        for suite in self.evaluation.suites:  # each model is asked, the base model too
            if suite.kind != "multiple_choice" and not suite.is_task and not suite.harness:
                yield f"evaluation.suites: max_new_tokens of {suite.name}", suite.max_new_tokens, positions
        if self.preferences.data:
            yield "evaluation.alignment_max_new_tokens", self.evaluation.alignment_max_new_tokens, last
            if self.align.declared.learns_from == "samples":
                yield "align.max_new_tokens", self.align.max_new_tokens, last
        if self.synthesis.prompts:
            own = positions if self.synthesis.generator == "base_model" else last
            yield "synthesis.max_new_tokens", self.synthesis.max_new_tokens, own

    def _check_kinds(self) -> None:
        if self.filter.by_kind and self.extract.extractor not in BLOCK_EXTRACTORS:
            raise RecipeError(
                f"filter.by_kind: without effect, because extract.extractor {self.extract.extractor!r} tells no kind of"
                f" a page; take {' or '.join(BLOCK_EXTRACTORS)}"
            )

    def _check_special_tokens(self) -> None:
        missing = set(self.pretrain.objective.special_tokens()) - set(self.tokenizer.special_tokens)
        if missing:
            raise RecipeError(
                f"tokenizer.special_tokens: pretrain.objective {self.pretrain.objective.kind} needs"
                f" {', '.join(sorted(missing))}"
            )

    def _check_survivor(self) -> None:
        if self.dedup.survivor == "best_score" and "classifier" not in self.filter.rules:
            raise RecipeError("dedup.survivor: best_score needs 'classifier' in filter.rules, which scores pages")

    def _check_doremi(self) -> None:
        if self.pretrain.objective.kind != "causal":
            raise RecipeError(f"doremi: compares next tokens; pretrain.objective is {self.pretrain.objective.kind}")
        _ = self.as_reference()  # checks itself

    def _check_end(self) -> None:
        """Raise RecipeError if a part of the recipe needs a model or data that the recipe does not make."""
        given = {"sft.data": self.sft.data, "preferences.data": self.preferences.data}
        needed_by = {
            "preferences.data": (self.preferences.data, "sft.data"),
            "long_context.tokens": (self.long_context.tokens, "sft.data"),
            "align.prompts": (self.align.prompts, "preferences.data"),
            "align.keep": (self.align.kept, "preferences.data"),
            "synthesis.generator: sft_model": (self.synthesis.generator == "sft_model", "sft.data"),
            "synthesis.generator: aligned_model": (self.synthesis.generator == "aligned_model", "preferences.data"),
        }
        for name, (part, wanted) in needed_by.items():
            if part and not given[wanted]:
                raise RecipeError(f"{wanted}: empty, and the chain ends before it; {name} needs it")

    def _check_budget(self) -> None:
        """Raise RecipeError if `pretrain.tokens` is `auto` although a part of the recipe needs the number.

        Such parts need it before the corpus exists.
        """
        needed_by = {"mixture.phases": self.mixture.phases, "ladder.rungs": self.ladder.rungs}
        if self.pretrain.tokens == "auto" and (named := [name for name, part in needed_by.items() if part]):
            raise RecipeError(f"pretrain.tokens: auto; {named[0]} needs a number")

    def _check_buckets(self) -> None:
        rule = {"none": "", "perplexity": "perplexity", "quality": "classifier"}[self.shards.buckets]
        if rule and rule not in self.filter.rules:
            raise RecipeError(
                f"shards.buckets: {self.shards.buckets} needs {rule!r} in filter.rules, which scores pages"
            )

    def _check_later_stages(self) -> None:
        """Raise RecipeError unless a class of transformers can load the model: post-training and evaluation use one."""
        if self.sees_ahead:
            self._check_sees_ahead()
        elif self.evaluation.probe:
            raise RecipeError(
                "evaluation.probe: without effect, because exams score the models here; null is right, or masked,"
                " prefix or span_corruption in pretrain.objective"
            )
        if reasons := inexpressible(self.model.shape(vocab_size=self.tokenizer.vocabulary)):
            classes = ", ".join(family.class_name for family in FAMILIES.values())
            raise RecipeError(
                "model: post-training and evaluation need a model that one of these classes of transformers can run:"
                f" {classes}; in the way is {'; '.join(reasons)}"
            )

    def _check_sees_ahead(self) -> None:
        """Raise RecipeError, for each part, if the recipe asks what no model can that is trained to see later tokens.

        Such a model is scored by what it fills in.
        """
        objective = self.pretrain.objective
        asked = {
            "sft.data": (self.sft.data, "[]"),
            "evaluation.suites": (self.evaluation.suites, "[]"),
            "synthesis.prompts": (self.synthesis.prompts, "null"),
            "pretrain.watch.suites": (self.pretrain.watch.suites, "[]"),
            "quantize.method": (self.quantize.is_asked, "none"),
            "pretrain.keep": (self.pretrain.keep.is_asked, "{steps: []}"),
            "ladder.rungs": (self.ladder.rungs and not objective.continues_text, "[]"),
        }
        why = (
            f"not with pretrain.objective {objective.kind}, whose model fills in: the classes of transformers that"
            " exams, chat and later stages load see only what comes before"
        )
        if problems := [f"{name}: {why}; {right} is right" for name, (given, right) in asked.items() if given]:
            raise RecipeError(*problems)
        is_held_out = self.mixture.held_out_fraction and self.evaluation.held_out_limit != 0
        if not (is_held_out or self.evaluation.outside_text):
            raise RecipeError(
                f"evaluation: no text says what a model of pretrain.objective {objective.kind} fills in; set"
                " mixture.held_out_fraction and evaluation.held_out_limit above 0, or name evaluation.outside_text"
            )

    def _check_first_weights(self) -> None:
        """Raise RecipeError if the layers begin as the identity and their family cannot train from there."""
        own = self.model.shape(vocab_size=1).own_layers
        if own is not None and not own.begin_as_identity and self.pretrain.zero_init_outputs:
            raise RecipeError(
                f"pretrain.zero_init_outputs: layers of model.family {self.model.family!r} norm what they return, which"
                " cannot be zero; false is right"
            )

    def _check_scores(self) -> None:
        suites = [suite.name for suite in self.evaluation.suites]
        asked = [("min_scores", name) for name in sorted(self.promote.min_scores)]
        asked += [("best_by", self.promote.best_by)] if self.promote.best_by else []
        if unknown := [one for one in asked if one[1] not in suites]:
            raise RecipeError(
                *(
                    f"promote.{field}: {name!r} is not among evaluation.suites ({', '.join(suites) or 'none'})"
                    + (f";{meant}" if (meant := did_you_mean(name, suites)) else "")
                    for field, name in unknown
                )
            )

    def _check_long_context(self) -> None:
        if self.synthesis.generator == "long_context_model" and not self.long_context.tokens:
            raise RecipeError("synthesis.generator: there is no long_context_model; set long_context.tokens")
        if not self.long_context.tokens:
            if idle := differing_from_defaults(self.long_context):
                raise RecipeError(
                    f"{', '.join(f'long_context.{name}' for name in idle)}: without effect, because there is no such"
                    " training; give long_context.tokens"
                )
            return
        if (self.long_context.sequence_length or 0) <= self.pretrain.sequence_length:
            raise RecipeError(
                f"long_context.sequence_length={self.long_context.sequence_length}; it must be longer than"
                f" pretrain.sequence_length={self.pretrain.sequence_length}"
            )
        if not self.pretrain.objective.is_causal:
            raise RecipeError(f"long_context: pretrain.objective {self.pretrain.objective.kind} hears no questions")
        if self.long_context.keep.is_asked and self.pretrain.spikes.deviations:
            raise RecipeError("long_context.keep: not with pretrain.spikes.deviations, with which steps are taken anew")
        _ = self.in_long_context()  # checks itself

    def _check_from_step(self) -> None:
        """Raise RecipeError if `sft.from_step` names no step that fine-tuning can begin with."""
        step, kept = self.sft.from_step, self.pretrain.kept_steps
        if step is None:
            return
        if not self.sft.data or self.long_context.tokens:
            why = "long_context trains the whole base model" if self.sft.data else "sft.data names no conversations"
            raise RecipeError(f"sft.from_step={step}: without effect, because {why}; null is right")
        if step not in kept:
            known = ", ".join(map(str, kept)) or "none"
            raise RecipeError(f"sft.from_step={step}: pretrain.keep keeps no such step; it keeps {known}")

    def _check_continued_mixture(self) -> None:
        """Raise RecipeError if a mixture begins in that part of a continued training that is also this one's."""
        pretrain = self.pretrain
        for tokens, steps, at in zip(
            pretrain.continues.tokens, pretrain.continued_steps, pretrain.continued_at, strict=True
        ):
            batch, total = pretrain.global_batch_tokens, pretrain.batches.of_tokens(tokens).step_tokens
            before = total - (steps - at + 1) * batch  # a later token begins a mixture with the decay or after it
            if early := [phase.start for phase in self.mixture.phases if round(phase.start * total) <= before]:
                raise RecipeError(
                    f"mixture.phases: start={early[0]:g} is before the decay of the training that pretrain.continues"
                    f" names, so the longer one would begin it twice; {at / steps:.3g} or later is right"
                )

    def before_continued(self) -> Recipe:
        """Return the recipe of the training that this one continues, as far as its model depends on it."""
        *earlier, tokens = self.pretrain.continues.tokens
        first = {"tokens": tokens, "continues": ContinueRecipe(tokens=tuple(earlier))}
        return varied(self, {"pretrain": {**first, "keep": KeepRecipe()}, "sft": {"from_step": None}})

    def in_long_context(self) -> Recipe:
        """Return this recipe with the model, batches and token budget of its long-context stage."""
        given, model, phases = self.long_context, self.model, self.mixture.phases
        scaling = model.rope_scaling if given.rope_scaling.kind == "none" else given.rope_scaling
        changes: dict[str, Any] = {
            "model": {
                "max_length": max(model.max_length, given.sequence_length or 0),
                **_given(given, "rope_theta"),
                "rope_scaling": scaling,
            },
            "mixture": {"weights": phases[-1].weights, "phases": ()} if phases else {},
            "pretrain": {
                "tokens": given.tokens,
                "sequence_length": given.sequence_length,
                "global_batch_tokens": given.global_batch_tokens,
                "batch_warmup": (),
                "compute_budget": None,
                "objective": {"across_documents": given.across_documents},
                "distill": DistillRecipe(),
                "watch": WatchRecipe(),
                "keep": KeepRecipe(),
                "stop": StopRecipe(),
                "continues": ContinueRecipe(),
                "min_loss_fall": given.min_loss_fall,
                "seed": given.seed,
                **_given(given, "learning_rate", "muon_learning_rate"),
            },
        }
        return varied(self, {**changes, **OF_ONE_MODEL, "doremi": DoremiRecipe()})

    def snapshot(self, name: str) -> SnapshotRecipe:
        """Return the snapshot called `name`. Raise RecipeError, with a list of all snapshots, if there is none."""
        for snapshot in self.snapshots:
            if snapshot.name == name:
                return snapshot
        raise RecipeError(no_such(f"{self.name} has no snapshot {name!r}", name, [one.name for one in self.snapshots]))

    def on_rung(self, name: str) -> Recipe:
        """Return this recipe with the model and token budget of one rung. Raise KeyError if no rung has the name."""
        return varied(self, self._smaller({one.name: one for one in self.ladder.rungs}[name]))

    def as_reference(self) -> Recipe:
        """Return this recipe with the model and budget of DoReMi's reference model, trained on the first mixture."""
        plain = varied(
            self,
            {
                "model": {"experts": ExpertLayers()},
                "mixture": {"phases": ()},
                "pretrain": {"batch_warmup": (), "distill": DistillRecipe()},
                "doremi": DoremiRecipe(),
            },
        )
        return varied(plain, plain._smaller(self.doremi))

    def _smaller(self, one: RungRecipe | DoremiRecipe) -> dict[str, Any]:
        """Return the fields that a smaller model (ladder or DoReMi) changes in this recipe: shape and token budget.

        The batch warm-up takes the same share of the smaller budget; phases shorter than one batch are left
        out. fp8 becomes bf16, because fp8 is no faster for small models.
        """
        shaped = _given(one, "width", "layers", "heads", "kv_heads", "mlp_width")
        given = _given(one, "global_batch_tokens", "learning_rate", "muon_learning_rate")
        tokens = one.tokens or 0
        whole = self.pretrain.tokens if self.pretrain.tokens != "auto" else tokens  # auto has no batch warm-up
        shares = [(phase, phase.tokens * tokens // whole) for phase in self.pretrain.batch_warmup]
        warmup = tuple(replace(phase, tokens=n) for phase, n in shares if n >= phase.global_batch_tokens)
        precision = "bf16" if self.pretrain.precision == "fp8" else self.pretrain.precision
        pretrain = {"tokens": tokens, "batch_warmup": warmup, "precision": precision, **given}
        pretrain |= {"compute_budget": None, "watch": WatchRecipe(), "keep": KeepRecipe(), "stop": StopRecipe()}
        pretrain |= {"continues": ContinueRecipe()}
        return {"model": shaped, "pretrain": pretrain, **OF_ONE_MODEL}


def _given(section: Any, *names: str) -> dict[str, Any]:
    """Return the named fields of a section whose value is not None; None means that the value is inherited."""
    return {name: value for name in names if (value := getattr(section, name)) is not None}


# Sections of which no field may differ between a training and one that continues it, but those of `OF_LENGTH`.
OF_PRETRAINING = (
    *("kitchen", "snapshots", "adopt", "extract", "quality", "filter", "dedup", "decontaminate"),
    *("tokenizer", "shards", "mixture", "model", "pretrain"),
)
OF_LENGTH = ("tokens", "continues", "watch", "keep")


def check_continued(first: Recipe, longer: Recipe) -> None:
    """Raise RecipeError, with the fields, if a training is not that which `longer` continues, but for its length."""
    whole = [{name: write_record(getattr(one, name)) for name in OF_PRETRAINING} for one in (first, longer)]
    for one in whole:
        for name in OF_LENGTH:
            del one["pretrain"][name]
    if differing := differences(whole[0], whole[1]):
        raise RecipeError(
            *(f"{line}: pretrain.continues names {first.name}, so this must be as there" for line in differing)
        )


# The record class of each section that a job's settings can hold. The model card's section is the whole recipe.
SECTIONS: dict[str, type] = {
    name: record for name, record in [*get_type_hints(Recipe).items(), ("recipe", Recipe)] if is_dataclass(record)
}


def recipe_as_data(recipe: Recipe) -> dict[str, Any]:
    """Return the resolved recipe as plain data with every field present; `read_record(Recipe, …)` reads it back."""
    return write_record(recipe)
