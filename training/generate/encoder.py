"""A model folder's tokenizer as everything here asks it: no text, and no message of a conversation, makes a turn."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from training.contract.job import DataError
from training.generate.model_folder import load_tokenizer
from training.generate.turns import Chat, Message, is_own

log = logging.getLogger(__name__)
OWN, FOREIGN = "turn by turn, as in training", "by the folder's own template, which this project did not train with"


class Encoder:
    """Makes tokens of texts and of conversations.

    `chat` encodes conversations as training does. It is None if the folder's template is another project's or an older
    one; then transformers renders the template, and `how` says so.
    """

    def __init__(self, folder: Path) -> None:
        self.tokenizer = load_tokenizer(folder)
        template = self.tokenizer.chat_template
        self.chat = Chat.of(folder, template) if isinstance(template, str) and is_own(template) else None
        self.how = (OWN if self.chat else FOREIGN) if template else None
        self._folder = folder
        if self.how == FOREIGN:
            log.warning("%s: conversations are encoded %s", folder, FOREIGN)

    def text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text. Characters that spell a control token are encoded as pretraining does."""
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens, split_special_tokens=True)

    def conversations(self, several: Sequence[Sequence[Message]], *, is_prompt: bool) -> list[list[int]]:
        """Return the tokens of each conversation; `is_prompt`: followed by what begins the assistant's turn.

        Raise DataError if the folder has no template, or a template of another project that cannot show one of them.
        """
        if self.chat is not None:
            if is_prompt:
                return self.chat.encode_prompts(several)
            return [encoded.input_ids for encoded in self.chat.encode(several)]
        if self.how is None:
            raise DataError(f"{self._folder} has no chat template: a base model completes text, it does not chat")
        if not several:
            return []
        try:
            return self.tokenizer.apply_chat_template(
                [list(messages) for messages in several],
                tokenize=True,
                return_dict=False,
                add_generation_prompt=is_prompt,
                sanitize_control_tokens=True,
            )
        except Exception as error:  # whatever a stranger's template raises
            raise DataError(f"{self._folder}: the chat template cannot show a conversation: {error}") from error
