"""The gate of the chat template, and how to talk to a model.

`python -m training.posttrain.chat MODEL_DIR` talks to a model. Nothing heavy is imported until a model is loaded.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from training.contract.job import DataError, Gate
from training.generate.chat_template import template_digest
from training.generate.turns import CONTROL_TOKENS, Chat, Encoded, Message, is_trained, written


def looks_like_control(messages: Iterable[Message]) -> bool:
    """Whether a text in the conversation contains the spelling of a control token."""
    return any(token in written(message) for message in messages for token in CONTROL_TOKENS)


def template_gate(
    chat: Chat, tokenizer: Any, conversations: Sequence[Sequence[Message]], *, compared: int = 64
) -> Gate:
    """Return the gate `template`: padding, EOS, turns and masks of the encoded conversations agree with the template.

    In every conversation the number of control tokens must be the one that its turns need, which shows that no text
    became a turn. Each assistant turn must end with a trained EOS. The first `compared` conversations without
    look-alikes must get the same tokens and mask from the jinja template through transformers (`tokenizer`), which
    is independent of this encoder.
    """
    encoded = chat.encode(conversations)
    turns = [len(chat._with_system_prompt(messages)) for messages in conversations]
    spoken = [sum(map(is_trained, messages)) for messages in conversations]
    made_turns = sum(
        sum(token in chat.control_ids for token in item.input_ids) != 2 * number
        for item, number in zip(encoded, turns, strict=True)
    )
    ends = [
        sum(token == chat.end_id and is_trained for token, is_trained in zip(item.input_ids, item.trained, strict=True))
        for item in encoded
    ]
    plain = [
        (messages, item)
        for messages, item in zip(conversations, encoded, strict=True)
        if not looks_like_control(messages)
    ]
    unlike = sum(not _same_as_jinja(tokenizer, messages, item) for messages, item in plain[:compared])
    evidence = {
        "pad_id": chat.pad_id,
        "eos_id": tokenizer.eos_token_id,
        "end_id": chat.end_id,
        "tokenizer_adds_bos": bool(tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]),
        "conversations": len(encoded),
        "conversations_with_a_turn_made_by_text": made_turns,
        "assistant_turns": sum(spoken),
        "trained_ends": sum(ends),
        "trained_tokens": sum(sum(item.trained) for item in encoded),
        "compared_with_jinja": len(plain[:compared]),
        "unlike_jinja": unlike,
        "template_digest": template_digest(chat.template),
    }
    passed = (
        chat.pad_id != tokenizer.eos_token_id == chat.end_id
        and not evidence["tokenizer_adds_bos"]
        and made_turns == unlike == 0
        and ends == spoken
        and sum(ends) > 0
    )
    return Gate(name="template", passed=passed, evidence=evidence)


def _same_as_jinja(tokenizer: Any, messages: Sequence[Message], encoded: Encoded) -> bool:
    rendered = tokenizer.apply_chat_template(
        list(messages), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    mask = [bool(bit) for bit in rendered["assistant_masks"]]
    return list(rendered["input_ids"]) == encoded.input_ids and mask == encoded.trained


# Talking


class Assistant:
    """A loaded chat model that answers conversations."""

    def __init__(self, model_folder: Path) -> None:
        from training.generate.sampler import Sampler

        self.chat = Chat.of(model_folder)
        self.sampler = Sampler(model_folder, batch_size=64)

    def answers(
        self,
        conversations: Sequence[Sequence[Message]],
        *,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[str]:
        """Return one answer to each conversation.

        At temperature 0 the likeliest tokens are taken; otherwise they are sampled with `seed`.
        """
        from training.generate.sampler import seeds_of

        tokens = self.sampler.answer_tokens(
            self.chat.encode_prompts(conversations),
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seeds=seeds_of(seed, len(conversations)),
        )
        return [self.chat.decode(answer) for answer in tokens]


def generate(model_folder: Path, conversations: Sequence[Sequence[Message]], **settings: Any) -> list[str]:
    """Return one answer to each conversation by the model in a folder; `settings` are those of `Assistant.answers`."""
    return Assistant(model_folder).answers(conversations, **settings)


def main(arguments: Sequence[str]) -> int:
    """Answer --prompt once, or each line of the input until it ends; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.posttrain.chat", description="Talk to a model.")
    parser.add_argument("model", type=Path, help="a model folder, or the artifact folder that holds model/")
    parser.add_argument("--prompt", help="ask this once and leave")
    parser.add_argument("--system", default="", help="system message")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 takes the likeliest token")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object an answer")
    options = parser.parse_args(arguments)
    folder = options.model / "model" if (options.model / "model").is_dir() else options.model
    try:
        if not (folder / "config.json").is_file():
            raise DataError(f"{options.model}: no model here; config.json is missing")
        Chat.of(folder)  # a refusal before anything heavy is imported
        _talk(Assistant(folder), options)
    except DataError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
    return 0


def _talk(assistant: Assistant, options: argparse.Namespace) -> None:
    messages: list[Message] = [{"role": "system", "content": options.system}] if options.system else []
    questions = [options.prompt] if options.prompt is not None else _typed_lines(silent=options.json)
    for question in questions:
        messages.append({"role": "user", "content": question})
        answer = assistant.answers(
            [messages], max_new_tokens=options.max_new_tokens, temperature=options.temperature, seed=options.seed
        )[0]
        messages.append({"role": "assistant", "content": answer})
        print(
            json.dumps({"prompt": question, "answer": answer}, ensure_ascii=False) if options.json else answer,
            flush=True,
        )


def _typed_lines(*, silent: bool) -> Iterable[str]:
    if not silent and sys.stdin.isatty():
        print("Ctrl-D leaves.", file=sys.stderr)
    while True:
        if not silent and sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.strip()


if __name__ == "__main__":
    # A person who talks to a model can do nothing about what libraries warn of while they are imported.
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    sys.exit(main(sys.argv[1:]))
