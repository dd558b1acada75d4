"""Which numbers, texts and addresses a recipe's fields may hold, beyond what each record checks itself."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from training.contract.artifact import MADE
from training.contract.identity.generated_sources import SOURCES
from training.contract.job import DataError
from training.contract.records import RecipeError
from training.contract.user_input.bounded import LARGEST, Allowed, why_no_host
from training.data.sources import check_store, is_http, why_no_format
from training.posttrain.source_settings import PromptColumns

if TYPE_CHECKING:
    from training.recipe.recipe import Recipe

NOT_BELOW_ZERO, WHOLE, SHARE, ABOVE_ZERO = (0, LARGEST), (1, LARGEST), (0, 1), (1e-12, 1e12)
BOUNDS: dict[str, tuple[float, float]] = {
    "*.parts.*": (-LARGEST, LARGEST),  # of a part from outside, or of a library, which says itself what is right
    "*.lm_eval.*": (-LARGEST, LARGEST),
    "*.peft.*": (-LARGEST, LARGEST),
    "*.trl.adam_beta[12]": (0, 0.999999),
    "*.trl.label_smoothing*": SHARE,
    "*.trl.logging_steps": ABOVE_ZERO,
    "*.trl.temperature": ABOVE_ZERO,
    "*.trl.top_p": SHARE,
    **dict.fromkeys(("*.trl.dataset_num_proc", "*.trl.num_iterations", "*.trl.steps_per_generation"), WHOLE),
    **dict.fromkeys(("*.trl.adam_epsilon", "*.trl.weight_decay", "*.trl.max_grad_norm"), NOT_BELOW_ZERO),
    **dict.fromkeys(("*.trl.neftune_noise_alpha", "*.trl.dataloader_num_workers"), NOT_BELOW_ZERO),
    "*.trl.*": (-LARGEST, LARGEST),
    "doremi.*learning_rate": (-LARGEST, LARGEST),  # its record says what is right, or null
    "align.rewards.*": (-LARGEST, LARGEST),
    "*.min_loss_fall": (-LARGEST, LARGEST),
    "*.max_short_rise": (-LARGEST, LARGEST),
    "shards.quality_limits": (-LARGEST, LARGEST),
    "dedup.buckets": (1, 100_000),
    "dedup.hashes_per_bucket": (1, 100_000),
    "extract.max_depth": (1, 100_000),
    "extract.max_html_bytes": WHOLE,
    "extract.max_nodes": WHOLE,
    "mixture.weights.*": (0, 1e12),
    "model.layers": (1, 100_000),
    "model.width": (1, 10**7),
    "model.max_length": (1, 10**9),
    "model.norm_epsilon": (1e-12, 1),
    "model.rope_theta": ABOVE_ZERO,
    "pretrain.sequence_length": (1, 10**9),
    "pretrain.beta[12]": SHARE,
    "pretrain.momentum": SHARE,
    "tokenizer.vocabulary": (1, 10**8),
    "tokenizer.sample_bytes": WHOLE,
    "shards.max_shard_tokens": WHOLE,
    "synthesis.temperature": (0, 100),
    "evaluation.alignment_temperature": (0, 100),
    "promote.min_scores.*": SHARE,
    "filter.min_quality_score": SHARE,
    "filter.max_toxicity_score": SHARE,
    "filter.max_toxic_word_fraction": SHARE,
    "filter.gopher_m??_mean_word_length": (0, 1e6),
    "filter.gopher_max_symbol_ratio": (0, 1e6),  # there may be more symbols than words, and more line ends than letters
    "filter.fineweb_max_newline_ratio": (0, 1e6),
    **dict.fromkeys(("*learning_rate", "*.epochs", "*.max_epochs"), ABOVE_ZERO),
    **dict.fromkeys(("*_fraction", "*min_auc", "*.min_similarity", "*.min_*_score", "*.min_pair_accuracy"), SHARE),
    **dict.fromkeys(("filter.fineweb_m*", "filter.gopher_max_top_*"), SHARE),
    **dict.fromkeys(("filter.gopher_max_duplicate_*", "filter.refinedweb_max_*"), SHARE),
    **dict.fromkeys(("*.batch_size", "*.num_generations", "*max_new_tokens", "*t.max_length"), WHOLE),
    **dict.fromkeys(("pretrain.global_batch_tokens", "evaluation.outside_text_limit"), WHOLE),
    **dict.fromkeys(("reward.max_length", "align.max_length", "ladder.bootstrap", "snapshots.num_files"), WHOLE),
    "*": NOT_BELOW_ZERO,
}
"""Of a number by the path of its field, without places in lists; the first pattern that fits decides."""
COLUMNS = {  # that a source names, and the formats that read them
    "prompt_field": ("prompt_answer", "chosen_rejected", "unpaired"),
    "answer_field": ("prompt_answer",),
}


def check_needed(recipe: Recipe) -> None:
    """Raise RecipeError for a list that is empty although something is made of it."""
    corpus, adopted, asked = recipe.snapshots, recipe.adopt, recipe.evaluation
    needed = {
        "tokenizer.snapshots: empty": recipe.tokenizer.snapshots or not corpus or adopted.model or adopted.tokenizer,
        "quality.snapshots: empty": recipe.quality.snapshots or not corpus or not recipe.quality.reference,
        "evaluation.suites: empty, and tolerate_unknown has no `exams`": asked.suites
        or "exams" in asked.tolerate_unknown,
    }
    if wrong := [f"{what}; name at least one" for what, given in needed.items() if not given]:
        raise RecipeError(*wrong)


def check_rows(recipe: Recipe) -> None:
    """Raise RecipeError for a source of rows whose name tells no format, or with a column that its format ignores."""
    sources = {
        f"{name}.data[{place}]": source
        for name, given in (("sft", recipe.sft), ("preferences", recipe.preferences))
        for place, source in enumerate(given.data)
    }
    wrong = [
        f"{place}.{column}: without effect with format {source.format}; leave it out"
        for place, source in sources.items()
        for column, formats in COLUMNS.items()
        if getattr(source, column) != getattr(PromptColumns(), column) and source.format not in formats
    ]
    addresses = {f"{place}.uri": source.uri for place, source in sources.items()}
    if recipe.align.prompts:
        addresses["align.prompts"] = recipe.align.prompts
    wrong += [
        f"{place}: {uri}: {why}"
        for place, uri in addresses.items()
        if uri.strip() and not why_no_address(uri) and (why := why_no_format(uri))
    ]
    if wrong:
        raise RecipeError(*wrong)


def why_no_address(uri: str) -> str:
    """Return why nothing can stand behind an address, whatever exists; empty if something can."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return ""
    if not rest.strip("/") or uri != uri.strip():
        return f"{uri}: names nothing behind {scheme}://, or has white space around it"
    if scheme in SOURCES:
        known = importlib.import_module(SOURCES[scheme].module).ROWS
        return "" if rest in known else f"{uri}: there is no such data; there are {', '.join(known)}"
    if uri.startswith(MADE):
        return "" if rest.count("/") and all(rest.split("/")[:2]) else f"{uri}: made://ASSET/RECIPE is right"
    if scheme in ("data", "file"):
        return ""
    if is_http(uri):
        return why_no_host(uri)
    try:
        check_store(uri)
    except DataError as error:
        return str(error)
    return "" if rest.partition("/")[0] or scheme == "memory" else f"{uri}: names no bucket"


VALUES = Allowed(
    BOUNDS,
    why_no_address,
    addresses=("snapshots.paths", "snapshots.tokenizer", "pretrain.distill.teacher", "judged_chat.model"),
    blank=("*.end_marker", "*.positive_label", "*.negative_label"),
    repeated=("model.window_pattern",),
)
