"""The chat template, and the one function that makes tokens of a conversation for training, judging and answering.

The control tokens were fixed with the tokenizer; the template, which belongs to post-training, only arranges them:

    <|system|>text<|end|><|user|>text<|end|><|assistant|>text<|end|>

An assistant's text may begin with a thought, `<think>`, and end with calls, each on a line after `Tool call: `.
`Chat` encodes the text of each message by itself with control tokens switched off, so no text can become a control
token. The jinja template in the model folder gives other programs the same tokens. A rendered string cannot tell a
control token from a look-alike in the text, so the template puts a space into look-alikes (`< |end|>`). No token
comes before the first role. The token that ends a turn is also the end of the sequence (EOS); after an assistant's turn
it is trained.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

from training.contract.job import DataError
from training.contract.records import RecipeError
from training.generate.chat_template import TEMPLATE_FILE, check_template

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Call(TypedDict):
    """A call of a tool by the assistant: `function` is {"name", "arguments"}, both texts."""

    type: str
    function: dict[str, str]


class Message(TypedDict):
    """A message of a conversation. What it has beside role and content is left out where there is nothing to say.

    `reasoning_content` is the thought before an answer. An answer with `trained` false is context alone.
    """

    role: str
    content: str
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[Call]]
    trained: NotRequired[bool]


END = "<|end|>"
END_OF_TEXT = "<|endoftext|>"
PAD = "<|pad|>"
CONTROL_TOKENS = (END_OF_TEXT, PAD, "<|system|>", "<|user|>", "<|assistant|>", END)
# The answer of a tool comes from outside, like a user's text, and is trusted no more.
ROLE_TOKENS = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>", "tool": "<|user|>"}
TOOL_PREFIX, CALL_PREFIX = "Tool result: ", "Tool call: "
THOUGHT, THOUGHT_END = "<think>\n", "\n</think>\n\n"

_TEMPLATE = """\
{%- set system_prompt = SYSTEM_PROMPT -%}
{%- macro plain(text) -%}{{ textREPLACEMENTS }}{%- endmacro -%}
{%- macro answer(message) -%}
{%- if message.reasoning_content -%}{{ THOUGHT }}{{ plain(message.reasoning_content) }}{{ ENDTHOUGHT }}{%- endif -%}
{{ plain(message.content or "") }}
{%- for call in message.tool_calls or [] -%}
{%- if message.content or not loop.first -%}{{ "\\n" }}{%- endif -%}
{%- set made = call.function or call -%}
{{ CALL_PREFIX }}{"name": {{ plain(made.name | tojson) }}, "arguments":{{ " " }}
{{- plain(made.arguments if made.arguments is string else made.arguments | tojson) }}}
{%- endfor -%}
{%- endmacro -%}
{%- if system_prompt and messages[0].role != "system" -%}<|system|>{{ plain(system_prompt) }}<|end|>{%- endif -%}
{%- for message in messages -%}
{%- if message.role == "assistant" and message.trained is defined and message.trained is false -%}
<|assistant|>{{ answer(message) }}<|end|>
{%- elif message.role == "assistant" -%}
<|assistant|>{%- generation -%}{{ answer(message) }}<|end|>{%- endgeneration -%}
{%- elif message.role == "tool" -%}<|user|>TOOL_PREFIX{{ plain(message.content) }}<|end|>
{%- elif message.role in ["system", "user"] -%}<|{{ message.role }}|>{{ plain(message.content) }}<|end|>
{%- else -%}{{ raise_exception("role " ~ message.role ~ " is not one of system, user, assistant, tool") }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""


def template(name: str = "pedigree", system_prompt: str = "") -> str:
    """Return the jinja text of the template `name`. Conversations without a system message get `system_prompt`."""
    if name != "pedigree":
        raise RecipeError(f"sft.chat_template: {name!r} is not one of 'pedigree'")
    replacements = "".join(
        f" | replace({json.dumps(token)}, {json.dumps('< ' + token[1:])})" for token in CONTROL_TOKENS
    )
    return (
        _TEMPLATE.replace("REPLACEMENTS", replacements)
        .replace("TOOL_PREFIX", TOOL_PREFIX)
        .replace("CALL_PREFIX", json.dumps(CALL_PREFIX))
        .replace("ENDTHOUGHT", json.dumps(THOUGHT_END))
        .replace("THOUGHT", json.dumps(THOUGHT))
        .replace("SYSTEM_PROMPT", json.dumps(system_prompt, ensure_ascii=False))
    )


def system_prompt_of(template_text: str) -> str:
    """Return the system prompt in a template that `template` made. Raise DataError for any other template."""
    first = re.match(r"\{%- set system_prompt = (\".*\") -%\}\n", template_text)
    if first is None or template("pedigree", json.loads(first[1])) != template_text:
        raise DataError(f"{TEMPLATE_FILE} is not a template of this project; its masks cannot be vouched for")
    return json.loads(first[1])


def is_own(template_text: str) -> bool:
    """Whether a template is one that `template` makes now."""
    try:
        system_prompt_of(template_text)
    except DataError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Encoded:
    """A conversation in tokens.

    `trained[i]` says whether token i belongs to the assistant's turn or ends it, and thus counts in the loss.
    """

    input_ids: list[int]
    trained: list[bool]

    @property
    def labels(self) -> list[int]:
        """The labels of the loss: the token id where the position is trained, -100 elsewhere."""
        return [token if is_trained else -100 for token, is_trained in zip(self.input_ids, self.trained, strict=True)]


class Chat:
    """A tokenizer with the chat template: converts messages to tokens and back."""

    def __init__(self, tokenizer_json: str, template_text: str) -> None:
        from tokenizers import Tokenizer

        self.template = template_text
        self.system_prompt = system_prompt_of(template_text)
        self._tokenizer: Tokenizer = Tokenizer.from_str(tokenizer_json)
        # No text becomes a control token: a typed "<|end|>" is encoded as ordinary characters.
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        known = {token: self._tokenizer.token_to_id(token) for token in CONTROL_TOKENS}
        missing = [token for token, number in known.items() if number is None]
        if missing:
            raise DataError(
                f"the tokenizer lacks the control token {missing[0]}; tokenizer.special_tokens must name it"
            )
        self.ids = {token: number for token, number in known.items() if number is not None}

    @classmethod
    def of(cls, model_folder: Path, template_text: str | None = None) -> Chat:
        """Return the chat of a model folder. `template_text` is the template for a model that has none yet."""
        if template_text is None:
            path = model_folder / TEMPLATE_FILE
            if not path.is_file():
                raise DataError(f"{model_folder} has no {TEMPLATE_FILE}: a base model completes text, it does not chat")
            check_template(model_folder)
            template_text = path.read_text("utf-8")
        return cls((model_folder / "tokenizer.json").read_text("utf-8"), template_text)

    @property
    def control_ids(self) -> frozenset[int]:
        """The ids of all control tokens."""
        return frozenset(self.ids.values())

    @property
    def end_id(self) -> int:
        """The id of the token that ends a turn, which is EOS after post-training."""
        return self.ids[END]

    @property
    def pad_id(self) -> int:
        """The id of the padding token. It is not EOS, because then the model would not learn to stop."""
        return self.ids[PAD]

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, without any control token."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode(self, conversations: Iterable[Sequence[Message]]) -> list[Encoded]:
        """Return each conversation in tokens, with the system prompt added where it is missing."""
        whole = [self._with_system_prompt(messages) for messages in conversations]
        texts = iter(self.encode_texts([written(message) for messages in whole for message in messages]))
        return [self._joined(messages, texts) for messages in whole]

    def encode_prompts(self, conversations: Iterable[Sequence[Message]]) -> list[list[int]]:
        """Return each conversation in tokens, followed by the token that begins the assistant's turn."""
        return [[*encoded.input_ids, self.ids[ROLE_TOKENS["assistant"]]] for encoded in self.encode(conversations)]

    def encode_answers(self, answers: Iterable[Message]) -> list[list[int]]:
        """Return the tokens of each answer to a prompt of `encode_prompts`: what it says and the end of the turn."""
        return [[*tokens, self.end_id] for tokens in self.encode_texts(list(map(written, answers)))]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of the tokens up to the first control token."""
        stop = next((i for i, token in enumerate(tokens) if token in self.control_ids), len(tokens))
        return self._tokenizer.decode(list(tokens[:stop]), skip_special_tokens=False)

    def _with_system_prompt(self, messages: Sequence[Message]) -> list[Message]:
        if self.system_prompt and messages and messages[0]["role"] != "system":
            return [{"role": "system", "content": self.system_prompt}, *messages]
        return list(messages)

    def _joined(self, messages: Sequence[Message], texts: Iterable[list[int]]) -> Encoded:
        input_ids: list[int] = []
        trained: list[bool] = []
        # `messages` comes first, so that zip takes no text of the next conversation from the iterator.
        for message, text in zip(messages, texts, strict=False):
            input_ids += [self.ids[ROLE_TOKENS[message["role"]]], *text, self.end_id]
            trained += [False, *[is_trained(message)] * (len(text) + 1)]
        return Encoded(input_ids=input_ids, trained=trained)


def is_trained(message: Message) -> bool:
    """Whether the loss counts the tokens of a message."""
    return message["role"] == "assistant" and message.get("trained") is not False


def written(message: Message) -> str:
    """Return the text of a message as the template writes it: its thought, its content and its calls, or its result."""
    if message["role"] not in ROLE_TOKENS:
        raise DataError(f"role {message['role']!r} is not one of {', '.join(ROLE_TOKENS)}")
    if message["role"] == "tool":
        return TOOL_PREFIX + message["content"]
    thought, content = message.get("reasoning_content") or "", message["content"] or ""
    calls = [_written_call(call["function"]) for call in message.get("tool_calls") or ()]
    return (f"{THOUGHT}{thought}{THOUGHT_END}" if thought else "") + "\n".join(([content] if content else []) + calls)


def _written_call(function: Mapping[str, str]) -> str:
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'{CALL_PREFIX}{{"name": {name}, "arguments": {function["arguments"]}}}'
