"""The folder of a judge, tried before anything is trained. No stage's code: jobs are told the folder and its digest."""

from __future__ import annotations

from pathlib import Path

from evaluation.exams.judged.judges import weights_in
from training.adopt.trial import check_tried
from training.contract.job import DataError
from training.contract.user_input.places import local_path
from training.data.sources import resolve
from training.generate.chat_template import TEMPLATE_FILE


def judge_folder(model: str) -> Path:
    """Return the folder of the model that `judged_chat.model` names; in it, or in its folder `model`, are the weights.

    Raise DataError if no model is there that can be opened and chat.
    """
    try:
        place = local_path(resolve(model), "judged_chat.model").resolve()
        folder = weights_in(place)
        check_tried(folder)
        settings = folder / "tokenizer_config.json"
        named = settings.is_file() and '"chat_template"' in settings.read_text("utf-8")
        if not named and not (folder / TEMPLATE_FILE).is_file():
            raise DataError(f"{folder} has no chat template, and a judge is asked in one; name a model that chats")
    except DataError as error:
        said = str(error)
        raise DataError(said if said.startswith("judged_chat") else f"judged_chat.model: {said}") from None
    return place
