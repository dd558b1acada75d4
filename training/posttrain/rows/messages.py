"""A message of a conversation as one record, read from the ways in which people publish messages.

A message is {"role", "content"}. Where there are any it also has `tool_calls`, as OpenAI and transformers name them
(with their arguments as text), `reasoning_content`, the thought before an answer, and `trained`: false, for an answer
that is context alone. The chat template writes all of it (training/generate/turns.py).

A field that nothing here reads, and that is not empty, is a reason not to use the row: `unread_field:NAME`. So no part
of a row can vanish. Fields of ABOUT say something about a row; a source's `ignore` names further ones.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from training.data.sources import json_of_row, row_json
from training.generate.turns import THOUGHT, Call, Message, written

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "tool_response": "tool",
}
CALLERS = ("function_call", "tool_call")  # roles of turns whose whole text is a call
TRAINED = ("weight", "train", "trained", "trainable", "loss")  # 0 or false: the answer is context alone
THOUGHTS = ("reasoning_content", "reasoning", "thinking", "thought")
TEXTS = ("text", "input_text", "output_text")  # types of content blocks
# Fields that tell where a row is from, how it is sorted, how it was rated, or how long it is.
ABOUT = frozenset(
    """
    id _id uid uuid idx index __index_level_0__ row_id example_id conversation_id conversation_hash session_id
    message_id prompt_id question_id task_id user_id
    source source_dataset dataset dataset_name data_source origin url license licence
    author model model_name generator generation_model chosen_model rejected_model
    category topic subject domain subset task task_name tags keywords level difficulty
    language lang created created_at created_date timestamp date
    score scores score_chosen score_rejected chosen_score rejected_score rating ratings chosen_rating rejected_rating
    rewards quality toxic redacted moderation openai_moderation detoxify_moderation
    metadata meta num_turns turn turn_identifier num_tokens token_count
    """.split()
)


class Unusable(ValueError):
    """A row cannot be used. The message is one of a few reasons, under which such rows are counted."""


class MalformedRow(Unusable):
    """A row does not have the structure of its format; it is quarantined instead of dropped."""


def is_empty(value: Any) -> bool:
    """Whether a value says nothing. False and 0 say something."""
    return value is None or (isinstance(value, (str, list, tuple, dict)) and len(value) == 0)


class Fields:
    """The fields of a row, a message or a call, which are taken one by one; what is left at the end was not read."""

    def __init__(self, given: Mapping[str, Any], ignore: Collection[str] = ()) -> None:
        self.ignore = ignore
        self._given = given
        self._left = {str(name): value for name, value in given.items() if name not in ignore and not is_empty(value)}

    def take(self, *names: str) -> Any:
        """Return the value of the first of these fields that is not empty; None if all are."""
        return next((self._left.pop(name) for name in names if name in self._left), None)

    def has(self, name: str) -> bool:
        """Whether the field is there and not empty."""
        return name in self._left

    def is_blank(self, name: str) -> bool:
        """Whether the field is not there, or is white space alone; it counts as read then."""
        value = self._left.get(name)
        if isinstance(value, str) and not value.strip():
            del self._left[name]
        return name not in self._left

    def take_list(self, name: str) -> Any:
        """Return the value of a field that holds messages and not a text; None for any other."""
        value = self._left.get(name)
        if isinstance(value, dict):
            return [self.take(name)]
        is_list = isinstance(value, (list, tuple)) and all(isinstance(one, dict) for one in value)
        return self.take(name) if is_list else None

    def text(self, *names: str, label: str = "") -> str:
        """Return the text of the first of these fields as it is. Raise Unusable if it is missing, empty, or no text."""
        value, name = self.take(*names), label or names[0]
        if value is None:
            raise Unusable(
                f"empty_{name}" if any(self._given.get(one) is not None for one in names) else f"missing_{name}"
            )
        return checked_text(value, name)

    def answer(self, *names: str) -> str:
        """Return an answer's text; a number is its text. Raise Unusable as `text` does."""
        value = next((self._left[name] for name in names if name in self._left), None)
        return self.text(*names) if as_answer(value) is value else as_answer(self.take(*names))

    def check_all_taken(self, about: Collection[str] = ABOUT) -> None:
        """Raise Unusable with the names of the fields that were not read, except fields about the row."""
        if left := sorted(self._left.keys() - about):
            raise Unusable(f"unread_field:{','.join(map(_plain, left[:5]))}")


def _plain(name: str) -> str:
    """Return a name as reasons show it: one that may be a text of somebody is not shown."""
    return name if re.fullmatch(r"[A-Za-z0-9_.$-]{1,40}", name) else "other"


def as_answer(value: Any) -> Any:
    """Return the answer of a row of training data; a number becomes its text."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    return str(value) if is_number else value


def checked_text(value: Any, name: str) -> str:
    """Return a text as it is. Raise Unusable if it is no text, says nothing, or has halves of characters."""
    if not isinstance(value, str):
        raise MalformedRow(f"{name}_is_not_text")
    if not value.strip():
        raise Unusable(f"empty_{name}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise MalformedRow(f"{name}_is_not_unicode") from None
    return value


def said(role: str, text: str) -> Message:
    """Return a message of a conversation with this role and text."""
    return {"role": role, "content": text}


def context(messages: Iterable[Message]) -> list[Message]:
    """Return the messages, of which no answer is trained."""
    return [{**one, "trained": False} if one["role"] == "assistant" else one for one in messages]


def spoken(messages: Iterable[Message]) -> str:
    """Return the text of all messages, one after another. Exam items are searched for in this text."""
    return "\n".join(map(written, messages))


def messages_of(values: Any, ignore: Collection[str] = ()) -> list[Message]:
    """Return the messages in a list of {"role", "content"} or {"from", "value"}; empty system messages are left out.

    Raise MalformedRow for anything else, and Unusable for a message with a part that nothing reads, or for a result of
    a tool that is not one of the call in its place.
    """
    values = _list(values, "messages")
    if not values:
        raise MalformedRow("messages_are_not_a_list")
    messages: list[Message] = []
    called: list[tuple[str, str]] = []  # id and name of the calls whose results follow
    for value in values:
        if not isinstance(value, dict):
            raise MalformedRow("message_is_not_an_object")
        # What is 0 forbids to train the answer, whatever the source ignores.
        ignored = [name for name in ignore if name not in TRAINED or value.get(name) != 0]
        for message, names in _messages_of(Fields(value, ignored)):
            if message["role"] == "tool":
                _check_result(names, called)
            elif names:
                called = list(names)
            messages.append(message)
    return messages


def _check_result(result: Sequence[tuple[str, str]], called: list[tuple[str, str]]) -> None:
    """Raise Unusable if a tool's result names another call than the next one; a result without a name is the next's."""
    (identity, name), (wanted, function) = result[0], called.pop(0) if called else ("", "")
    if identity and identity != wanted:
        raise Unusable("tool_result_of_another_call")
    if name and name != function:
        raise Unusable("unread_field:name")


Named = list[tuple[str, str]]


def _messages_of(fields: Fields) -> Iterator[tuple[Message, Named]]:
    """Yield the messages in a published one, with the ids and names of their calls, or of the call that they answer."""
    name = fields.take("role", "from")
    if not isinstance(name, str) or name not in (*ROLES, *CALLERS):
        raise MalformedRow("unknown_role")
    role = ROLES.get(name, "assistant")
    content = fields.take("content", "value")
    blocks = _Blocks(as_answer(content) if role == "assistant" else content, fields.ignore)
    trained = _is_trained(fields, role)
    if role == "tool":
        identity, function = fields.take("tool_call_id") or "", fields.take("name") or ""
        blocks.results.append((str(identity), str(function), blocks.text))
        blocks.text = ""
    calls, names = list(blocks.calls), list(blocks.names)
    if role == "assistant":
        given = [*(_list(fields.take("tool_calls"), "tool_calls"))]
        given += [one] if (one := fields.take("function_call")) is not None else []
        if name in CALLERS:
            given, blocks.text = [*given, *_calls_in(blocks.text)], ""
        for one in given:
            call, identity = _call(one, fields.ignore)
            calls.append(call)
            names.append((identity, call["function"]["name"]))
        thought = fields.take(*THOUGHTS)
        thought = blocks.thought if thought is None else checked_text(thought, "thought")
    else:
        thought = ""
    if (blocks.thought and blocks.thought != thought) or (role != "assistant" and (blocks.calls or blocks.thought)):
        raise MalformedRow("content_is_of_another_role")
    if blocks.results and role not in ("user", "tool"):
        raise MalformedRow("content_is_of_another_role")
    fields.check_all_taken()
    for identity, function, text in blocks.results:
        yield said("tool", checked_text(text, "content")), [(identity, function)]
    if role == "tool" or (role == "system" and not blocks.text.strip()) or (blocks.results and not blocks.text):
        return
    message = said(role, blocks.text if calls and not blocks.text.strip() else checked_text(blocks.text, "content"))
    if thought:
        if message["content"].lstrip().startswith(THOUGHT.strip()):
            raise Unusable("thought_given_twice")
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    if not trained:
        message["trained"] = False
    yield message, names


def _is_trained(fields: Fields, role: str) -> bool:
    """Return whether a message says that its answer is trained; one that says nothing is."""
    answers = set[bool]()
    for name in TRAINED:
        if (value := fields.take(name)) is None:
            continue
        if not isinstance(value, int | float) or value not in (0, 1):
            raise MalformedRow(f"{name}_is_not_0_or_1")
        answers.add(bool(value))
    if len(answers) > 1 or (True in answers and role != "assistant"):
        raise Unusable("weights_that_cannot_be_followed")
    return role != "assistant" or False not in answers


class _Blocks:
    """The content of a message: a text, or a list of blocks of text, thought, calls and results of calls."""

    def __init__(self, content: Any, ignore: Collection[str]) -> None:
        self.text, self.thought = "", ""
        self.calls: list[Call] = []
        self.names: Named = []
        self.results: list[tuple[str, str, str]] = []  # id of the call, name of the function, text
        if content is None or isinstance(content, str):
            self.text = content or ""
            return
        if not isinstance(content, (list, tuple)) or not all(isinstance(block, dict) for block in content):
            raise MalformedRow("content_is_not_text")
        for block in content:
            fields = Fields(block, ignore)
            self._add(fields.take("type"), fields)
            fields.check_all_taken()

    def _add(self, kind: Any, fields: Fields) -> None:
        if kind in TEXTS and not self.calls:
            self.text += checked_text(fields.take("text") or "", "content")
        elif kind in ("thinking", "reasoning") and not (self.text or self.calls or self.thought):
            self.thought = fields.text("thinking", "reasoning", "text", label="thought")
            fields.take("signature")  # proves to its maker that the thought is a model's own
        elif kind == "tool_use":
            identity = str(fields.take("id") or "")
            call, _ = _call({"name": fields.take("name"), "arguments": fields.take("input")}, fields.ignore)
            self.calls.append(call)
            self.names.append((identity, call["function"]["name"]))
        elif kind == "tool_result" and not self.text:
            identity, inner = str(fields.take("tool_use_id") or ""), _Blocks(fields.take("content"), fields.ignore)
            if inner.thought or inner.calls or inner.results:
                raise MalformedRow("content_is_of_another_role")
            self.results.append((identity, "", inner.text))
        else:
            known = kind in (*TEXTS, "thinking", "reasoning", "tool_result")
            raise Unusable("content_blocks_in_another_order" if known else f"unread_content:{_plain(str(kind))}")


def _list(value: Any, name: str) -> Sequence[Any]:
    """Return a list, which may be given as a text of JSON."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _json(value, f"{name}_are")
    if value is not None and not isinstance(value, (list, tuple)):
        raise MalformedRow(f"{name}_are_not_a_list")
    return value or ()


def _json(text: str, name: str) -> Any:
    """Return the value of a text of JSON in a row, in which no key stands twice and every number is finite."""
    try:
        json.dumps(value := json_of_row(text), allow_nan=False)
    except (ValueError, RecursionError):
        raise MalformedRow(f"{name}_not_json") from None
    return value


def _calls_in(text: str) -> Sequence[Any]:
    """Return the calls in the text of a turn that is one: a JSON object, or a list of them."""
    value = _json(checked_text(text, "content"), "call_is")
    return value if isinstance(value, list) else [value]


def _arguments(value: Any) -> str:
    """Return the arguments of a call as the text of an object, which is the one in the row if that has one."""
    try:
        text = value if isinstance(value, str) else row_json({} if value is None else value)
    except (ValueError, RecursionError):
        raise MalformedRow("arguments_are_not_json") from None
    if not isinstance(_json(checked_text(text, "arguments"), "arguments_are"), dict):
        raise MalformedRow("arguments_are_not_an_object")
    return text


def _call(value: Any, ignore: Collection[str]) -> tuple[Call, str]:
    """Return a published call in the one form, and its id, "" if it has none."""
    if not isinstance(value, dict):
        raise MalformedRow("call_is_not_an_object")
    outer = Fields(value, ignore)
    identity, kind, inner = outer.take("id"), outer.take("type"), outer.take("function")
    if kind not in (None, "function") or not (inner is None or isinstance(inner, dict)):
        raise MalformedRow("call_is_not_of_a_function")
    fields = outer if inner is None else Fields(inner, ignore)
    name, arguments = fields.text("name", label="name_of_the_function"), fields.take("arguments", "parameters")
    for one in (fields, outer):
        one.take("index")  # its place in the list
        one.check_all_taken(())
    return {"type": "function", "function": {"name": name, "arguments": _arguments(arguments)}}, str(identity or "")
