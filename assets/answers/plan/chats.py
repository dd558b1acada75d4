"""How much the models that chat write for judged chat and safety, and how often the judge is asked."""

from __future__ import annotations

from typing import Any

from training.contract.scopes import asks_for
from training.data.sections import with_data
from training.recipe.recipe import Recipe


def chat_work(recipe: Recipe, asset: str) -> dict[str, Any]:
    """Return the number of answers and calls of the judge, and the most tokens of each; empty for other assets.

    Every model is counted with all questions, also those that are too long for its positions.
    """
    from evaluation.exams.judged.questions import read_questions
    from evaluation.exams.safety.asked import SETS, read_requests

    models = 1 + asks_for(recipe, "preferences.data")
    if asset == "safety_answers":
        section, settings = recipe.safety, with_data(recipe, {"safety": recipe.safety})
        asked = sum(len(read_requests(name, getattr(section, name), settings)) for name in SETS)
        return {"answers": models * asked, "answer_tokens": section.max_new_tokens}
    if asset == "judged_chat":
        chat = recipe.judged_chat
        turns = sum(len(one.turns) for one in read_questions(chat, with_data(recipe, {"judged_chat": chat})))
        both_orders = 2 * turns if models > 1 else 0
        judge = {"judge_calls": models * turns + both_orders, "judge_tokens": chat.judge_max_new_tokens}
        return {"answers": models * turns, "answer_tokens": chat.max_new_tokens, **judge}
    return {}
