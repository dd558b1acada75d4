"""Read the rows of published files as conversations, as preference pairs or as rated answers.

A reader turns one row into messages, a pair or an answer, or raises Unusable with the reason that the counts will show.
Roles come only from the structure of the row: no text can make a turn.

Formats (`TextSourceRecipe.format`), with the published files on which they were checked:

messages         `messages` [{"role", "content"}] or `conversations` [{"from", "value"}] (Glaive, LLaMA-Factory)
prompt_answer    one column with the question and one with the answer, named by the recipe (Dolly, P3)
question_answer  the columns `question` and `answer` (GSM8K)
alpaca           `instruction`, `input`, `output`, and where present `system`, `history` (Self-Instruct, flattened)
sharegpt         `conversations` [{"from", "value"}], another name for `messages` (Glaive)
instances        `instruction` with `instances` [{"input", "output"}] (Self-Instruct)
dialogue_tree    trees of messages, nested (`prompt.replies`) or one message in each row (`parent_id`) (OpenAssistant)
chosen_rejected  `chosen` and `rejected` as text, message or messages, after `prompt` or `conversations` (LLaMA-Factory)
unpaired         a prompt, one answer in `completion`, and `label`, whether it is desired (LLaMA-Factory's pairs)
hh               `chosen` and `rejected` as transcripts with "Human:" and "Assistant:" (Anthropic HH-RLHF)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from training.data.exams.grading import says_something
from training.data.sources import check_unchanged, read_rows
from training.job import DataError, Job
from training.posttrain.chat import Message
from training.posttrain.source_settings import TextSourceRecipe, label
from training.records import RecipeError

Row = dict[str, Any]

# Markers that published files put at the end of an answer. They must not be learned as text.
END_MARKERS = ("###eos_token###", "<|endoftext|>", "</s>", "<|im_end|>", "<|end|>")
ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "bot": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_call": "assistant",
}
TOOL_CALL_PREFIX = "Tool call: "
_TRANSCRIPT_TURN = re.compile(r"\n\n(Human|Assistant):")


class Unusable(ValueError):
    """A row cannot be used. The message is one of a few reasons, under which such rows are counted."""


class MalformedRow(Unusable):
    """A row does not have the structure of its format; it is quarantined instead of dropped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRow:
    """One row of a source, with what was `made` from it (messages or a pair), or why it was dropped or quarantined.

    `marks` are fields that the written row gets, such as the exam item that it holds.
    """

    id: str
    row: Row
    made: Any = None
    reason: str = ""
    is_damaged: bool = False
    marks: Mapping[str, Any] = field(default_factory=dict)


def records(
    sources: Sequence[TextSourceRecipe],
    readers: dict[str, Callable[[Row, TextSourceRecipe], Any]],
    job: Job,
    where: str,
) -> Iterator[tuple[TextSourceRecipe, SourceRow]]:
    """Yield every record of every source in the recipe's order, read by the reader of its format.

    Raise RecipeError for a source that is named twice or has a format without a reader. Raise DataError for a file that
    has changed since the job was written, or a source without rows.
    """
    names = [label(source.uri) for source in sources]
    for i, source in enumerate(sources):
        field = f"{where}.data[{i}]"
        if names[i] in names[:i]:
            raise RecipeError(f"{field}.uri: {source.uri!r} is named twice; rows would have the same ids")
        if source.format not in readers:
            raise RecipeError(f"{field}.format: {source.format!r} gives none; use one of {', '.join(readers)}")
        check_unchanged(source.uri, job)
        found = False
        for record in read_source(source, readers[source.format], job.settings):
            found = True
            yield source, record
        if not found:
            raise DataError(f"{source.uri}: no rows; {field} needs at least one")


def generator_of(row: Row, source: TextSourceRecipe) -> str:
    """Return who wrote the row's answers: the row's `generator`, else the recipe's, else an empty text."""
    said = row.get("generator")
    return said if isinstance(said, str) and said else source.generator or ""


def read_source(
    source: TextSourceRecipe, reader: Callable[[Row, TextSourceRecipe], Any], settings: Mapping[str, Any]
) -> Iterator[SourceRow]:
    """Yield the records of one source, read by `reader`; a generated source needs the job's `settings`."""
    rows: Iterable[Row] = read_rows(source.uri, settings=settings)
    if source.format == "dialogue_tree":
        rows = trees(rows)
    for number, row in enumerate(islice(rows, source.limit or None)):
        record_id = f"{label(source.uri)}#{number:07d}"
        try:
            yield SourceRow(id=record_id, row=row, made=reader(row, source))
        except Unusable as error:
            yield SourceRow(id=record_id, row=row, reason=str(error), is_damaged=isinstance(error, MalformedRow))


def text_of(row: Row, field: str) -> str:
    """Return a column's text without surrounding white space. Raise Unusable if it is missing, not text, or empty."""
    value = row.get(field)
    if value is None:
        raise Unusable(f"missing_{field}")
    if not isinstance(value, str):
        raise MalformedRow(f"{field}_is_not_text")
    if not value.strip():
        raise Unusable(f"empty_{field}")
    return value.strip()


def without_end_marker(text: str) -> str:
    """Return an answer without an end marker, such as `</s>`, that published files append.

    Raise Unusable if nothing is left.
    """
    for marker in END_MARKERS:
        text = text.removesuffix(marker).rstrip()
    if not text:
        raise Unusable("empty_answer")
    return text


def said(role: str, text: str) -> Message:
    """Return a message of a conversation with this role and text."""
    return {"role": role, "content": text}


def spoken(messages: Iterable[Mapping[str, str]]) -> str:
    """Return the text of all messages, one after another. Exam items are searched for in this text."""
    return "\n".join(message["content"] for message in messages)


def messages_of(values: Any) -> list[Message]:
    """Convert to messages a list of {"role", "content"} or {"from", "value"}. Raise Damaged for anything else."""
    if not isinstance(values, list) or not values:
        raise MalformedRow("messages_are_not_a_list")
    return [_message_of(value) for value in values]


def _message_of(value: Any) -> Message:
    if not isinstance(value, dict):
        raise MalformedRow("message_is_not_an_object")
    name = value.get("role", value.get("from"))
    if name not in ROLES:
        raise MalformedRow("unknown_role")
    text = text_of({"content": value.get("content", value.get("value"))}, "content")
    role = ROLES[name]
    if name == "function_call":
        text = TOOL_CALL_PREFIX + text
    return said(role, without_end_marker(text) if role == "assistant" else text)


def complete(messages: list[Message]) -> list[Message]:
    """Return the messages up to and including the assistant's last one.

    Raise Unusable if there is no answer or no question, or if a system message is not the first one.
    """
    while messages and messages[-1]["role"] != "assistant":
        messages = messages[:-1]
    if not messages:
        raise Unusable("no_answer")
    if not any(message["role"] == "user" for message in messages):
        raise Unusable("no_question")
    if any(message["role"] == "system" for message in messages[1:]):
        raise Unusable("system_message_inside")
    return messages


# Conversations


def read_messages(row: Row, source: TextSourceRecipe) -> list[Message]:
    """Read a conversation from a list of messages. The columns `system` and `tools` go into the system message."""
    messages = messages_of(row.get("messages", row.get("conversations")))
    system = [row[field] for field in ("system",) if isinstance(row.get(field), str) and row[field].strip()]
    tools = row.get("tools")
    if tools:
        system.append(
            "Tools: " + (tools if isinstance(tools, str) else json.dumps(tools, ensure_ascii=False, sort_keys=True))
        )
    if system and messages[0]["role"] == "system":
        messages, system = messages[1:], [messages[0]["content"], *system]
    return complete(([said("system", "\n".join(system))] if system else []) + messages)


def read_prompt_answer(row: Row, source: TextSourceRecipe) -> list[Message]:
    """Read one question and one answer from the columns that the recipe names."""
    question, answer = text_of(row, source.prompt_field), text_of(row, source.answer_field)
    return [said("user", question), said("assistant", without_end_marker(answer))]


def read_question_answer(row: Row, source: TextSourceRecipe) -> list[Message]:
    """Read one question and one answer from the columns `question` and `answer`."""
    return [said("user", text_of(row, "question")), said("assistant", without_end_marker(text_of(row, "answer")))]


def read_alpaca(row: Row, source: TextSourceRecipe) -> list[Message]:
    """Read a row of Alpaca's columns: `instruction`, often `input`, `output`, and sometimes `system` and `history`."""
    question, given = text_of(row, "instruction"), row.get("input") or ""
    if not isinstance(given, str):
        raise MalformedRow("input_is_not_text")
    messages = [said("system", text_of(row, "system"))] if (row.get("system") or "") else []
    for turn in row.get("history") or []:
        if not (isinstance(turn, list) and len(turn) == 2 and all(isinstance(text, str) and text for text in turn)):
            raise MalformedRow("history_is_not_pairs_of_texts")
        messages += [said("user", turn[0].strip()), said("assistant", without_end_marker(turn[1].strip()))]
    asked = f"{question}\n\n{given.strip()}" if given.strip() else question
    return [*messages, said("user", asked), said("assistant", without_end_marker(text_of(row, "output")))]


def read_instances(row: Row, source: TextSourceRecipe) -> list[Message]:
    """Read an instruction with the input and output of its first instance."""
    instances = row.get("instances")
    if not isinstance(instances, list) or not instances or not isinstance(instances[0], dict):
        raise MalformedRow("instances_are_not_a_list")
    question, given = text_of(row, "instruction"), instances[0].get("input") or ""
    if not isinstance(given, str):
        raise MalformedRow("input_is_not_text")
    answer = text_of(instances[0], "output")
    return [
        said("user", f"{question}\n\n{given.strip()}" if given.strip() else question),
        said("assistant", without_end_marker(answer)),
    ]


def trees(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield message trees from rows.

    First come the trees that are nested in a row, then trees built from rows of single messages by `parent_id`. Built
    trees are in the order of their roots in the file. A parent may come after its replies.
    """
    flat: dict[str, Row] = {}
    for row in rows:
        if "message_id" not in row:
            yield row
            continue
        flat[row["message_id"]] = {**row, "replies": []}
    roots = []
    for node in flat.values():
        parent = flat.get(node.get("parent_id") or "")
        (parent["replies"] if parent else roots).append(node)
    yield from ({"prompt": root, "message_tree_id": root.get("message_tree_id")} for root in roots)


def read_tree(row: Row, source: TextSourceRecipe) -> list[Message]:
    """Read the conversation of a tree that follows the best-ranked reply at every turn."""
    messages, node = [], _root_of(row)
    while node is not None:
        messages.append(_tree_message(node))
        node = next(iter(_replies(node)), None)
    return complete(messages)


def _root_of(row: Row) -> Row:
    root = row.get("prompt")
    if not isinstance(root, dict):
        raise MalformedRow("tree_has_no_prompt")
    if root.get("parent_id"):
        raise Unusable("tree_without_its_root")
    return root


def _replies(node: Row) -> list[Row]:
    """Return a message's usable replies, best rank first, then unranked replies in file order."""
    replies = [
        reply
        for reply in node.get("replies") or []
        if not reply.get("deleted") and reply.get("review_result") is not False
    ]
    return sorted(replies, key=lambda reply: (reply.get("rank") is None, reply.get("rank") or 0))


def _tree_message(node: Row) -> Message:
    return _message_of({"role": node.get("role"), "content": node.get("text")})


# Pairs


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two answers to one prompt, of which `chosen` is preferred."""

    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]

    @property
    def texts(self) -> tuple[str, str]:
        """The texts of the pair to search for exam items: the prompt with each of the two answers."""
        return spoken([*self.prompt, *self.chosen]), spoken([*self.prompt, *self.rejected])

    @property
    def fields(self) -> Row:
        """The fields of the pair in a row of preference data."""
        return {"prompt": self.prompt, "chosen": self.chosen, "rejected": self.rejected}


@dataclass(frozen=True, kw_only=True, slots=True)
class RatedAnswer:
    """One answer to a prompt, and whether it is desired."""

    prompt: list[Message]
    answer: list[Message]
    is_desired: bool

    @property
    def texts(self) -> tuple[str]:
        """The text to search for exam items: the prompt with the answer."""
        return (spoken([*self.prompt, *self.answer]),)

    @property
    def fields(self) -> Row:
        """The fields of the answer in a row of preference data."""
        return {"prompt": self.prompt, "completion": self.answer, "label": self.is_desired}


def checked(pair: Pair) -> Pair:
    """Return the pair if it can be used.

    Raise Unusable if the prompt has no question or ends with an answer, if an answer is not exactly one assistant
    message, or if the answers are equal.
    """
    if not any(message["role"] == "user" for message in pair.prompt):
        raise Unusable("no_question")
    if pair.prompt[-1]["role"] == "assistant":
        raise Unusable("prompt_ends_with_an_answer")
    for answer in (pair.chosen, pair.rejected):
        if len(answer) != 1 or answer[0]["role"] != "assistant":
            raise Unusable("answer_is_not_one_assistant_message")
    if pair.chosen == pair.rejected:
        raise Unusable("equal_answers")
    return pair


def read_chosen_rejected(row: Row, source: TextSourceRecipe) -> Pair:
    """Read a prompt with two answers, each given as text, as one message, or as a list of messages."""
    prompt = row.get(source.prompt_field, row.get("conversations", row.get("messages")))
    chosen, rejected = (_answer_of(row, field) for field in ("chosen", "rejected"))
    if prompt is None:
        return checked(_split(chosen, rejected))
    asked = [said("user", text_of({"prompt": prompt}, "prompt"))] if isinstance(prompt, str) else messages_of(prompt)
    if isinstance(row.get("system"), str) and row["system"].strip():
        asked = [said("system", row["system"].strip()), *asked]
    return checked(Pair(prompt=asked, chosen=chosen, rejected=rejected))


def _answer_of(row: Row, field: str) -> list[Message]:
    value = row.get(field)
    if value is None:
        raise Unusable(f"missing_{field}")
    if isinstance(value, str):
        return [said("assistant", without_end_marker(text_of(row, field)))]
    return messages_of(value if isinstance(value, list) else [value])


def read_hh(row: Row, source: TextSourceRecipe) -> Pair:
    """Read a preference pair from two transcripts that are equal up to the last answer."""
    return checked(_split(transcript(row, "chosen"), transcript(row, "rejected")))


def transcript(row: Row, field: str) -> list[Message]:
    """Read the turns of a transcript. A turn begins only with a blank line and "Human:" or "Assistant:"."""
    value = row.get(field)
    if value is None:
        raise Unusable(f"missing_{field}")
    if not isinstance(value, str):
        raise MalformedRow(f"{field}_is_not_text")
    before, *parts = _TRANSCRIPT_TURN.split(value)
    if before.strip() or not parts:
        raise MalformedRow(f"{field}_is_not_a_transcript")
    turns = []
    for speaker, text in zip(parts[::2], parts[1::2], strict=True):
        role = "user" if speaker == "Human" else "assistant"
        if not text.strip():
            raise Unusable("empty_turn")
        turns.append(said(role, without_end_marker(text.strip()) if role == "assistant" else text.strip()))
    return turns


def _split(chosen: list[Message], rejected: list[Message]) -> Pair:
    if not chosen or not rejected or chosen[:-1] != rejected[:-1]:
        raise Unusable("prompts_differ")
    return Pair(prompt=chosen[:-1], chosen=chosen[-1:], rejected=rejected[-1:])


def read_ranked_tree(row: Row, source: TextSourceRecipe) -> Pair:
    """Read the best-ranked and the worst-ranked reply to the first question of a tree.

    Raise Unusable if fewer than two replies are ranked.
    """
    root = _root_of(row)
    ranked = [reply for reply in _replies(root) if reply.get("rank") is not None]
    if len(ranked) < 2:
        raise Unusable("fewer_than_two_ranked_replies")
    return checked(
        Pair(prompt=[_tree_message(root)], chosen=[_tree_message(ranked[0])], rejected=[_tree_message(ranked[-1])])
    )


def read_unpaired(row: Row, source: TextSourceRecipe) -> RatedAnswer:
    """Read a prompt (or messages), an answer in `completion`, and in `label` whether it is desired.

    The label is true or false, or 1 or 0. Prompt and answer are texts or messages.
    """
    label = row.get("label")
    if label is None:
        raise Unusable("missing_label")
    if label not in (True, False):
        raise MalformedRow("label_is_not_true_or_false")
    prompt = row.get(source.prompt_field, row.get("messages"))
    asked = [said("user", text_of({"prompt": prompt}, "prompt"))] if isinstance(prompt, str) else messages_of(prompt)
    answer = _answer_of(row, "completion")
    if asked[-1]["role"] == "assistant":
        raise Unusable("prompt_ends_with_an_answer")
    if not any(message["role"] == "user" for message in asked):
        raise Unusable("no_question")
    if len(answer) != 1 or answer[0]["role"] != "assistant":
        raise Unusable("answer_is_not_one_assistant_message")
    return RatedAnswer(prompt=asked, answer=answer, is_desired=bool(label))


# Prompts


def read_prompt(row: Mapping[str, Any]) -> Row:
    """Return {"prompt": messages, "answer", "rivals"} of a row.

    The row has `prompt` (text or messages), `messages`, or `question`, as GSM8K's rows do. Answers at the end of the
    messages are left out. Raise Unusable if no message is a user's, and Damaged if a field has the wrong form.
    """
    value = row.get("prompt", row.get("messages", row.get("question")))
    messages = [said("user", value)] if isinstance(value, str) else messages_of(value)
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if not any(message["role"] == "user" for message in messages):
        raise Unusable("no_question")
    answer, rivals = row.get("answer"), row.get("rivals") or []
    if not isinstance(rivals, list) or not all(isinstance(rival, str) for rival in rivals):
        raise MalformedRow("rivals_are_not_a_list_of_texts")
    known = isinstance(answer, str) and says_something(answer)
    return {"prompt": messages, "answer": answer if known else "", "rivals": rivals}


def prompt_text(row: Mapping[str, Any]) -> str:
    """Return the texts of a prompt's row in one: the prompt, the answer that is rewarded, and the wrong answers."""
    return "\n".join((spoken(row["prompt"]), row["answer"], *row["rivals"]))


CONVERSATION_READERS: dict[str, Callable[[Row, TextSourceRecipe], list[Message]]] = {
    "messages": read_messages,
    "prompt_answer": read_prompt_answer,
    "question_answer": read_question_answer,
    "alpaca": read_alpaca,
    "sharegpt": read_messages,
    "instances": read_instances,
    "dialogue_tree": read_tree,
}
PAIR_READERS: dict[str, Callable[[Row, TextSourceRecipe], Pair]] = {
    "chosen_rejected": read_chosen_rejected,
    "hh": read_hh,
    "dialogue_tree": read_ranked_tree,
}
PREFERENCE_READERS: dict[str, Callable[[Row, TextSourceRecipe], Pair | RatedAnswer]] = {
    **PAIR_READERS,
    "unpaired": read_unpaired,
}
