"""Read the rows of published files as conversations, as preference pairs, as rated answers or as prompts.

A reader makes messages, a pair or an answer of one row, or raises Unusable with the reason that the counts will show.
Roles come only from the structure of the row: no text can make a turn. Texts stay as they are, white space included.
The columns `system`, or `system_prompt`, and `tools` go into the system message, whatever the format.

Formats (`TextSourceRecipe.format`), with the published files on which they were checked:

messages         `messages` [{"role", "content"}] or `conversations` [{"from", "value"}] (Glaive, LLaMA-Factory)
prompt_answer    one column with the question and one with the answer, named by the recipe, as texts or messages (Dolly)
question_answer  the columns `question` and `answer` (GSM8K)
alpaca           `instruction`, `input`, `output`, and where present `system`, `history` (Self-Instruct, flattened)
sharegpt         `conversations` [{"from", "value"}], another name for `messages` (Glaive)
instances        `instruction` with `instances` [{"input", "output"}] (Self-Instruct)
dialogue_tree    trees of messages, nested (`prompt.replies`) or one message in each row (`parent_id`) (OpenAssistant)
chosen_rejected  `chosen` and `rejected` as text, message or messages, after `prompt` or `conversations`, or after what
                 both begin with (LLaMA-Factory, UltraFeedback, TRL)
unpaired         a prompt, one answer in `completion`, and `label`, whether it is desired (LLaMA-Factory's pairs)
hh               `chosen` and `rejected` as transcripts with "Human:" and "Assistant:" (Anthropic HH-RLHF)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from training.data.exams.grading import can_be_given
from training.data.sources import row_json
from training.generate.turns import Message, is_trained
from training.posttrain.rows.messages import (
    ABOUT,
    Fields,
    MalformedRow,
    Unusable,
    as_answer,
    checked_text,
    context,
    is_empty,
    messages_of,
    said,
    spoken,
)
from training.posttrain.source_settings import TextSourceRecipe

Row = dict[str, Any]
_TRANSCRIPT_TURN = re.compile(r"\n\n(Human|Assistant):")
# What OpenAssistant tells of a message beside its text: who wrote and judged it, and how.
_ABOUT_NODES = ABOUT | {"tree_state", "message_tree_id", "review_count", "synthetic", "emojis", "labels", "detoxify"}
PAIR = ("chosen", "rejected")


def complete(messages: list[Message]) -> list[Message]:
    """Return the messages of a conversation that can be trained.

    Raise Unusable if there is no question, no answer or none to train, or if a system message is not the first one.
    """
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise Unusable("no_answer")
    if "user" not in roles:
        raise Unusable("no_question")
    if "system" in roles[1:]:
        raise Unusable("system_message_inside")
    if not any(map(is_trained, messages)):
        raise Unusable("no_trained_answer")
    return messages


def with_system(fields: Fields, messages: list[Message]) -> list[Message]:
    """Return the messages with the columns `system` and `tools` in the system message."""
    given = fields.take("system", "system_prompt")
    told = [] if given is None or given == "" else [checked_text(given, "system")]
    if (tools := fields.take("tools", "functions")) is not None:
        told.append("Tools: " + (tools if isinstance(tools, str) else _tools_json(tools)))
    if told and messages and messages[0]["role"] == "system":
        messages, told = messages[1:], [messages[0]["content"], *told]
    return ([said("system", "\n".join(told))] if told else []) + messages


def _tools_json(tools: Any) -> str:
    try:
        return row_json(tools)
    except (ValueError, RecursionError):
        raise MalformedRow("tools_are_not_json") from None


def turns(fields: Fields, value: Any, role: str, name: str) -> list[Message]:
    """Return what a column holds: one message with its text, or its message or messages."""
    if isinstance(value, (list, tuple, dict)):
        return messages_of([value] if isinstance(value, dict) else value, fields.ignore)
    return [said(role, checked_text(as_answer(value) if role == "assistant" else value, name))]


# Conversations


def read_messages(fields: Fields, source: TextSourceRecipe) -> list[Message]:
    """Read a conversation from a list of messages. A question that stands beside them must be one of theirs."""
    messages = messages_of(fields.take("messages", "conversations", "conversation"), fields.ignore)
    if (asked := fields.take("prompt")) is not None and said("user", asked) not in messages:
        raise Unusable("unread_field:prompt")
    return complete(with_system(fields, messages))


def read_prompt_answer(fields: Fields, source: TextSourceRecipe) -> list[Message]:
    """Read a question and its answer, texts or messages, from the columns that the recipe names.

    An answer inside the question is not trained.
    """
    return _asked_and_answered(fields, source.prompt_field, source.answer_field)


def read_question_answer(fields: Fields, source: TextSourceRecipe) -> list[Message]:
    """Read one question and one answer from the columns `question` and `answer`."""
    return _asked_and_answered(fields, "question", "answer")


def _asked_and_answered(fields: Fields, question: str, answer: str) -> list[Message]:
    asked = turns(fields, _given(fields, question), "user", question)
    given = fields.take_list(answer)
    answered = [said("assistant", fields.answer(answer))] if given is None else messages_of(given, fields.ignore)
    return complete(with_system(fields, [*context(asked), *answered]))


def _given(fields: Fields, name: str) -> Any:
    """Return a column's list of messages or its text."""
    given = fields.take_list(name)
    return fields.text(name) if given is None else given


def read_alpaca(fields: Fields, source: TextSourceRecipe) -> list[Message]:
    """Read a row of Alpaca's columns: `instruction`, often `input`, `output`, and sometimes `system` and `history`."""
    asked = _with_input(fields.text("instruction"), fields.take("input"))
    messages: list[Message] = []
    for turn in fields.take("history") or []:
        if not (isinstance(turn, list) and len(turn) == 2):
            raise MalformedRow("history_is_not_pairs_of_texts")
        messages += [
            said("user", checked_text(turn[0], "history")),
            said("assistant", checked_text(as_answer(turn[1]), "history")),
        ]
    answer = said("assistant", fields.answer("output"))
    return complete(with_system(fields, [*messages, said("user", asked), answer]))


def _with_input(instruction: str, given: Any) -> str:
    if is_empty(given) or (isinstance(given, str) and not given.strip()):
        return instruction
    return f"{instruction}\n\n{checked_text(given, 'input')}"


def read_instances(fields: Fields, source: TextSourceRecipe) -> list[Message]:
    """Read an instruction with the input and output of its only instance."""
    instances = fields.take("instances")
    if not isinstance(instances, list) or not all(isinstance(one, dict) for one in instances):
        raise MalformedRow("instances_are_not_a_list")
    if len(instances) > 1:
        raise Unusable("several_instances")
    inner = Fields(instances[0], fields.ignore)
    asked = _with_input(fields.text("instruction"), inner.take("input"))
    answer = said("assistant", inner.answer("output"))
    inner.check_all_taken()
    return complete(with_system(fields, [said("user", asked), answer]))


# Trees


def trees(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield message trees from rows.

    First come the trees that are nested in a row, then trees built from rows of single messages by `parent_id`. Built
    trees are in the order of their roots in the file. A parent may come after its replies. A message that comes twice,
    or hangs on itself, is in no tree, and is a row of its own.
    """
    flat: dict[str, Row] = {}
    for row in rows:
        name = row.get("message_id")
        if (
            name is None
            or not isinstance(name, str)
            or name in flat
            or not isinstance(row.get("parent_id"), str | None)
        ):
            yield row
            continue
        flat[name] = {**row, "replies": []}
    roots = []
    for node in flat.values():
        parent = flat.get(node.get("parent_id") or "")
        (parent["replies"] if parent else roots).append(node)
    yield from ({"prompt": root, "message_tree_id": root.get("message_tree_id")} for root in roots)
    hanging = list(roots)
    reached = set[str]()
    while hanging:
        node = hanging.pop()
        reached.add(node["message_id"])
        hanging += node["replies"]
    yield from ({**node, "replies": []} for name, node in flat.items() if name not in reached)


def read_tree(fields: Fields, source: TextSourceRecipe) -> list[Message]:
    """Read the conversation of a tree that follows the best-ranked reply at every turn, up to its last answer."""
    messages, node = [], _root_of(fields)
    while node is not None:
        messages.append(_tree_message(node, fields))
        node = next(iter(_replies(node)), None)
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return complete(with_system(fields, messages))


def _root_of(fields: Fields) -> Row:
    root = fields.take("prompt")
    fields.take("message_tree_id", "tree_state")
    fields.take("tree_state")
    if not isinstance(root, dict):
        raise MalformedRow("tree_has_no_prompt")
    if root.get("parent_id"):
        raise Unusable("tree_without_its_root")
    if not _is_usable(root):
        raise Unusable("tree_with_a_refused_root")
    return root


def _is_usable(node: Row) -> bool:
    return not node.get("deleted") and node.get("review_result") is not False


def _replies(node: Row) -> list[Row]:
    """Return a message's usable replies, best rank first, then unranked replies in file order."""
    replies = [reply for reply in node.get("replies") or [] if _is_usable(reply)]
    return sorted(replies, key=lambda reply: (reply.get("rank") is None, reply.get("rank") or 0))


def _tree_message(node: Row, fields: Fields) -> Message:
    own = Fields(node, fields.ignore)
    for name in ("replies", "rank", "deleted", "review_result", "parent_id"):
        own.take(name)
    (message,) = messages_of([{"role": own.take("role"), "content": own.text("text")}])
    own.check_all_taken(_ABOUT_NODES)
    return message


# Pairs


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two answers to one prompt, of which `chosen` is preferred, and the right answer where it is known."""

    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    right: str = ""

    @property
    def texts(self) -> tuple[str, str]:
        """The texts of the pair to search for exam items: the prompt with each of the two answers."""
        return spoken([*self.prompt, *self.chosen]), spoken([*self.prompt, *self.rejected])

    @property
    def fields(self) -> Row:
        """The fields of the pair in a row of preference data."""
        own: Row = {"prompt": self.prompt, "chosen": self.chosen, "rejected": self.rejected}
        return own | ({"answer": self.right} if self.right else {})


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


def checked(pair: Pair, fields: Fields) -> Pair:
    """Return the pair with its system message and right answer, if it can be used.

    Raise Unusable if the prompt has no question or ends with an answer, if an answer is not exactly one assistant
    message, or if the answers are equal.
    """
    prompt = _asked(with_system(fields, pair.prompt))
    for answer in (pair.chosen, pair.rejected):
        _check_answer(answer)
    if pair.chosen == pair.rejected:
        raise Unusable("equal_answers")
    return replace(pair, prompt=prompt, right="" if fields.is_blank("answer") else fields.answer("answer"))


def _asked(prompt: list[Message]) -> list[Message]:
    """Return a prompt. Raise Unusable if it has no question or ends with an answer."""
    if not any(message["role"] == "user" for message in prompt):
        raise Unusable("no_question")
    if prompt[-1]["role"] == "assistant":
        raise Unusable("prompt_ends_with_an_answer")
    if any(message["role"] == "system" for message in prompt[1:]):
        raise Unusable("system_message_inside")
    return prompt


def _check_answer(answer: list[Message]) -> None:
    if len(answer) != 1 or answer[0]["role"] != "assistant":
        raise Unusable("answer_is_not_one_assistant_message")
    if not is_trained(answer[0]):
        raise Unusable("no_trained_answer")


def read_chosen_rejected(fields: Fields, source: TextSourceRecipe) -> Pair:
    """Read a prompt with two answers, each given as text, as one message, or as a list of messages.

    The prompt may stand beside whole conversations that begin with it, or be only in them.
    """
    prompt, listed = fields.take(source.prompt_field, "conversations"), fields.take("messages")
    answers = [fields.take(name) for name in PAIR]
    for name, value in zip(PAIR, answers, strict=True):
        if value is None:
            raise Unusable(f"missing_{name}")
    if prompt is None and listed is None and all(isinstance(one, str) for one in answers):
        return checked(_split_texts(*(checked_text(one, "answer") for one in answers)), fields)
    chosen, rejected = (turns(fields, one, "assistant", "answer") for one in answers)
    prompt, listed = (listed, None) if prompt is None else (prompt, listed)
    if prompt is None:
        pair = _split(chosen, rejected)
    else:
        asked = turns(fields, prompt, "user", source.prompt_field)
        pair = Pair(prompt=asked, chosen=chosen, rejected=rejected)
        if len(chosen) > 1 or len(rejected) > 1:
            pair = _split(chosen, rejected)
            _check_begins(pair.prompt, asked)
    if listed is not None and messages_of(listed, fields.ignore) not in ([*pair.prompt, *pair.chosen], pair.prompt):
        raise Unusable("unread_field:messages")
    return checked(pair, fields)


def _check_begins(whole: list[Message], asked: list[Message]) -> None:
    """Raise Unusable unless the turns of a prompt stand in a conversation, one after another."""
    starts = range(len(whole) - len(asked) + 1)
    if not any(whole[start : start + len(asked)] == asked for start in starts):
        raise Unusable("prompts_differ")


def read_hh(fields: Fields, source: TextSourceRecipe) -> Pair:
    """Read a preference pair from two transcripts that are equal up to the last answer."""
    return checked(_split(transcript(fields, "chosen"), transcript(fields, "rejected")), fields)


def transcript(fields: Fields, name: str) -> list[Message]:
    """Read the turns of a transcript. A turn begins only with a blank line and "Human:" or "Assistant:"."""
    before, *parts = _TRANSCRIPT_TURN.split(fields.text(name))
    if before.strip() or not parts:
        raise MalformedRow(f"{name}_is_not_a_transcript")
    messages = []
    for speaker, text in zip(parts[::2], parts[1::2], strict=True):
        if not text.strip():
            raise Unusable("empty_turn")
        messages.append(said("user" if speaker == "Human" else "assistant", text.removeprefix(" ")))
    return messages


def _split(chosen: list[Message], rejected: list[Message]) -> Pair:
    if not chosen or not rejected or chosen[:-1] != rejected[:-1]:
        raise Unusable("prompts_differ")
    return Pair(prompt=chosen[:-1], chosen=chosen[-1:], rejected=rejected[-1:])


def _split_texts(chosen: str, rejected: str) -> Pair:
    """Return the pair of two texts whose prompt is what both begin with, up to the last white space."""
    both = min(len(chosen), len(rejected))
    common = next((i for i in range(both) if chosen[i] != rejected[i]), both)
    place = max((match.start() for match in re.finditer(r"\s+", chosen[:common])), default=0)
    asked, answers = chosen[:place], (chosen[place:], rejected[place:])
    if not asked.strip():
        raise Unusable("no_question")
    better, worse = ([said("assistant", checked_text(one, "answer"))] for one in answers)
    return Pair(prompt=[said("user", asked)], chosen=better, rejected=worse)


def read_ranked_tree(fields: Fields, source: TextSourceRecipe) -> Pair:
    """Read the best-ranked and the worst-ranked reply to the first question of a tree.

    Raise Unusable if fewer than two replies are ranked.
    """
    root = _root_of(fields)
    ranked = [reply for reply in _replies(root) if reply.get("rank") is not None]
    if len(ranked) < 2:
        raise Unusable("fewer_than_two_ranked_replies")
    prompt, chosen, rejected = ([_tree_message(node, fields)] for node in (root, ranked[0], ranked[-1]))
    return checked(Pair(prompt=prompt, chosen=chosen, rejected=rejected), fields)


def read_unpaired(fields: Fields, source: TextSourceRecipe) -> RatedAnswer:
    """Read a prompt (or messages), an answer in `completion`, and in `label` whether it is desired.

    The label is true or false, or 1 or 0. Prompt and answer are texts or messages.
    """
    label = fields.take("label")
    if label is None:
        raise Unusable("missing_label")
    if not isinstance(label, bool | int | float) or label not in (True, False):
        raise MalformedRow("label_is_not_true_or_false")
    named = source.prompt_field if fields.has(source.prompt_field) else "messages"
    asked = _asked(with_system(fields, turns(fields, _given(fields, named), "user", named)))
    given = fields.take("completion")
    if given is None:
        raise Unusable("missing_completion")
    answer = turns(fields, given, "assistant", "completion")
    _check_answer(answer)
    return RatedAnswer(prompt=asked, answer=answer, is_desired=bool(label))


# Prompts


def read_prompt(fields: Fields, source: TextSourceRecipe) -> Row:
    """Return {"prompt": messages, "answer", "rivals"} of a row.

    The row has the column that the recipe names (text or messages), `messages`, or `question`, as GSM8K's rows do. A
    pair's answers are left out, and answers at the end of the messages. A right answer may be a number. Raise Unusable
    if no message is a user's, or if no answer could ever equal the right one.
    """
    value = fields.take(source.prompt_field, "messages", "conversations", "question")
    messages = turns(fields, value, "user", "prompt") if value is not None else []
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    if all(map(fields.has, PAIR)) and source.answer_field not in PAIR:
        for name in PAIR:
            fields.take(name)
    answer = "" if fields.is_blank(source.answer_field) else fields.answer(source.answer_field)
    if answer and not can_be_given(answer):
        raise Unusable("answer_that_none_can_equal")
    rivals = fields.take("rivals") or []
    if not isinstance(rivals, list) or not all(isinstance(rival, str) for rival in rivals):
        raise MalformedRow("rivals_are_not_a_list_of_texts")
    return {"prompt": _asked(with_system(fields, messages)), "answer": answer, "rivals": rivals}


def prompt_of(row: Mapping[str, Any]) -> Row:
    """Return a row of preference data as a row of prompts."""
    answer = row.get("answer", "")
    return {"prompt": row["prompt"], "answer": answer if can_be_given(answer) else "", "rivals": []}


def prompt_text(row: Mapping[str, Any]) -> str:
    """Return the texts of a prompt's row in one: the prompt, the answer that is rewarded, and the wrong answers."""
    return "\n".join((spoken(row["prompt"]), row["answer"], *row["rivals"]))


def messages_in(made: Any) -> Sequence[list[Message]]:
    """Return the lists of messages in what a reader made."""
    match made:
        case Pair():
            return made.prompt, made.chosen, made.rejected
        case RatedAnswer():
            return made.prompt, made.answer
        case dict():
            return (made["prompt"],)
    return (made,)


Reader = Callable[[Fields, TextSourceRecipe], Any]
CONVERSATION_READERS: dict[str, Callable[[Fields, TextSourceRecipe], list[Message]]] = {
    "messages": read_messages,
    "prompt_answer": read_prompt_answer,
    "question_answer": read_question_answer,
    "alpaca": read_alpaca,
    "sharegpt": read_messages,
    "instances": read_instances,
    "dialogue_tree": read_tree,
}
PAIR_READERS: dict[str, Callable[[Fields, TextSourceRecipe], Pair]] = {
    "chosen_rejected": read_chosen_rejected,
    "hh": read_hh,
    "dialogue_tree": read_ranked_tree,
}
PREFERENCE_READERS: dict[str, Callable[[Fields, TextSourceRecipe], Pair | RatedAnswer]] = {
    **PAIR_READERS,
    "unpaired": read_unpaired,
}
