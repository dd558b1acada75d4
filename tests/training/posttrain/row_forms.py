"""Rows in the forms in which people publish them, and what each must give: its turns, or the reason why not.

`python -m tests.training.posttrain.row_forms` prints the table. A turn is written `role: text`, with a star where it is
trained; `\u23ce` is a line end. A form is kept whole where all that it says is in its turns.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from training.data.sources import json_of_row
from training.generate.turns import Message, is_trained, written
from training.posttrain.rows.forms import CONVERSATION_READERS, PREFERENCE_READERS, Pair, RatedAnswer, read_prompt
from training.posttrain.rows.source import read_row
from training.posttrain.source_settings import TextSourceRecipe

Q, A, B = "What is 3*4?", "It is 12.", "It is 13."
THOUGHT = "Let me multiply."
CALL = {"name": "multiply", "arguments": '{"a": 3, "b": 4}'}
WRITTEN = 'Tool call: {"name": "multiply", "arguments": {"a": 3, "b": 4}}'
TOOL = {"type": "function", "function": {"name": "multiply", "parameters": {}}}


def user(text: str = Q, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def answer(text: Any = A, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def share(*turns: str, names: tuple[str, ...] = ("human", "gpt")) -> list[dict[str, str]]:
    return [{"from": names[i % 2], "value": text} for i, text in enumerate(turns)]


@dataclass(frozen=True, kw_only=True)
class Form:
    """A row of a published form: its source's settings, and the turns that it must give, or a reason."""

    name: str
    row: dict[str, Any]
    gives: tuple[str, ...] = ()
    why_not: str = ""
    format: str = "messages"
    more: dict[str, Any] = field(default_factory=dict)

    def read(self) -> tuple[tuple[str, ...], str]:
        """Return the turns that the row gives, and the reason if it gives none."""
        is_prompt = self.format == "prompts"
        settings = {"uri": "rows.jsonl", "format": "messages" if is_prompt else self.format} | self.more
        reader = read_prompt if is_prompt else (PREFERENCE_READERS | CONVERSATION_READERS)[self.format]
        record = read_row("rows.jsonl#0", self.row, TextSourceRecipe(**settings), reader)
        return (() if record.reason else tuple(lines(record.made))), record.reason


def lines(made: Any) -> list[str]:
    """Return what was made of a row as lines."""
    match made:
        case Pair():
            right = [f"right: {made.right}"] if made.right else []
            answers = [f"chosen: {written(made.chosen[0])}", f"rejected: {written(made.rejected[0])}"]
            return [*map(line, made.prompt), *answers, *right]
        case RatedAnswer():
            return [*map(line, made.prompt), f"{'good' if made.is_desired else 'bad'}: {written(made.answer[0])}"]
        case dict():
            return [*map(line, made["prompt"]), f"right: {made['answer']}"]
    return list(map(line, made))


def line(message: Message) -> str:
    return f"{message['role']}{'*' if is_trained(message) else ''}: {written(message)}"


def called(arguments: Any, **more: Any) -> dict[str, Any]:
    """Return a conversation that ends with a call of these arguments."""
    return {
        "messages": [user(), answer(None, tool_calls=[{"function": {"name": "f", "arguments": arguments}}])],
        **more,
    }


ASKED, SAID = f"user: {Q}", f"assistant*: {A}"
ONE = (ASKED, SAID)
PAIR = (ASKED, f"chosen: {A}", f"rejected: {B}")
CALLED = (ASKED, f"assistant*: {WRITTEN}", "tool: Tool result: 12", SAID)
UNTRAINED = (ASKED, f"assistant: {B}", "user: Wrong.", SAID)
TWICE = [user(), answer(B), user("Wrong."), answer()]

FORMS = (
    # TRL's page of dataset formats
    Form(name="TRL language modeling, text", row={"text": "The sky is blue."}, why_not="messages_are_not_a_list"),
    Form(name="TRL language modeling, messages", row={"messages": [user(), answer()]}, gives=ONE),
    Form(
        name="TRL prompt-only, text",
        format="prompts",
        row={"prompt": "The sky is"},
        gives=("user: The sky is", "right: "),
    ),
    Form(name="TRL prompt-only, messages", format="prompts", row={"prompt": [user()]}, gives=(ASKED, "right: ")),
    Form(
        name="TRL prompt-completion, text",
        format="prompt_answer",
        more={"answer_field": "completion"},
        row={"prompt": "The sky is", "completion": " blue."},
        gives=("user: The sky is", "assistant*:  blue."),
    ),
    Form(
        name="TRL prompt-completion, messages",
        format="prompt_answer",
        more={"answer_field": "completion"},
        row={"prompt": TWICE[:3], "completion": [answer()]},
        gives=UNTRAINED,
    ),
    Form(
        name="TRL preference, text", format="chosen_rejected", row={"prompt": Q, "chosen": A, "rejected": B}, gives=PAIR
    ),
    Form(
        name="TRL preference, implicit prompt, text",
        format="chosen_rejected",
        row={"chosen": "The sky is blue.", "rejected": "The sky is green."},
        gives=("user: The sky is", "chosen:  blue.", "rejected:  green."),
    ),
    Form(
        name="TRL preference, messages",
        format="chosen_rejected",
        row={"prompt": [user()], "chosen": [answer()], "rejected": [answer(B)]},
        gives=PAIR,
    ),
    Form(
        name="TRL preference, implicit prompt, messages",
        format="chosen_rejected",
        row={"chosen": [user(), answer()], "rejected": [user(), answer(B)]},
        gives=PAIR,
    ),
    Form(
        name="TRL unpaired preference, text",
        format="unpaired",
        row={"prompt": "The sky is", "completion": " blue.", "label": True},
        gives=("user: The sky is", "good:  blue."),
    ),
    Form(
        name="TRL unpaired preference, messages",
        format="unpaired",
        row={"prompt": [user()], "completion": [answer(B)], "label": False},
        gives=(ASKED, f"bad: {B}"),
    ),
    Form(
        name="TRL stepwise supervision",
        format="unpaired",
        row={"prompt": Q, "completions": ["3*4", "= 12"], "labels": [True, True]},
        why_not="missing_label",
    ),
    Form(
        name="TRL tool calling, with tools",
        row={
            "messages": [
                user(),
                {
                    "role": "assistant",
                    "tool_calls": [{"type": "function", "function": CALL | {"arguments": {"a": 3, "b": 4}}}],
                },
                {"role": "tool", "name": "multiply", "content": "12"},
                answer(),
            ],
            "tools": [TOOL],
        },
        gives=('system: Tools: [{"type": "function", "function": {"name": "multiply", "parameters": {}}}]', *CALLED),
    ),
    Form(
        name="TRL Harmony (developer, thinking)",
        row={"messages": [{"role": "developer", "content": "Be kind."}, user(), answer(thinking="3*4 = 12")]},
        gives=("system: Be kind.", ASKED, f"assistant*: <think>\n3*4 = 12\n</think>\n\n{A}"),
    ),
    Form(
        name="TRL vision (images)",
        row={"messages": [user([{"type": "image"}, {"type": "text", "text": Q}]), answer()], "images": ["a.png"]},
        why_not="unread_content:image",
    ),
    # OpenAI
    Form(
        name="OpenAI tool call beside text",
        row={
            "messages": [
                user(),
                answer("Let me compute.", tool_calls=[{"id": "c1", "type": "function", "function": CALL}]),
                {"role": "tool", "tool_call_id": "c1", "content": "12"},
                answer(),
            ]
        },
        gives=(ASKED, f"assistant*: Let me compute.\n{WRITTEN}", *CALLED[2:]),
    ),
    Form(
        name="OpenAI result of another call",
        row={
            "messages": [
                user(),
                answer(None, tool_calls=[{"id": "c1", "type": "function", "function": CALL}]),
                {"role": "tool", "tool_call_id": "c2", "content": "12"},
                answer(),
            ]
        },
        why_not="tool_result_of_another_call",
    ),
    Form(
        name="OpenAI function_call",
        row={
            "messages": [
                user(),
                answer(None, function_call=CALL),
                {"role": "function", "name": "multiply", "content": "12"},
                answer(),
            ]
        },
        gives=CALLED,
    ),
    Form(
        name="OpenAI weight",
        row={"messages": [user(), answer(B, weight=0), user("Wrong."), answer(weight=1)]},
        gives=UNTRAINED,
    ),
    Form(
        name="OpenAI weight of 0, ignored",
        row={"messages": [user(), answer(B, weight=0), user("Wrong."), answer(weight=0.5)], "weight": 0.3},
        more={"ignore": ("weight",)},
        gives=(ASKED, f"assistant: {B}", "user: Wrong.", ONE[1]),
    ),
    Form(
        name="OpenAI weight of half",
        row={"messages": [user(), answer(weight=0.5)]},
        why_not="weight_is_not_0_or_1",
    ),
    Form(name="OpenAI name of a user", row={"messages": [user(name="ann"), answer()]}, why_not="unread_field:name"),
    Form(
        name="OpenAI parallel_tool_calls",
        row={"messages": [user(), answer()], "parallel_tool_calls": False},
        why_not="unread_field:parallel_tool_calls",
    ),
    Form(
        name="OpenAI parts of text, refusal",
        row={"messages": [user([{"type": "text", "text": Q}]), answer(None, refusal="I cannot.")]},
        why_not="unread_field:refusal",
    ),
    # others' conversations
    Form(
        name="Anthropic blocks",
        row={
            "system": "Be kind.",
            "messages": [
                user([{"type": "text", "text": Q}]),
                answer(
                    [
                        {"type": "thinking", "thinking": "3*4", "signature": "x"},
                        {"type": "text", "text": "Let me compute."},
                        {"type": "tool_use", "id": "t1", "name": "multiply", "input": {"a": 3, "b": 4}},
                    ]
                ),
                user([{"type": "tool_result", "tool_use_id": "t1", "content": "12"}]),
                answer(),
            ],
        },
        gives=(
            "system: Be kind.",
            ASKED,
            f"assistant*: <think>\n3*4\n</think>\n\nLet me compute.\n{WRITTEN}",
            *CALLED[2:],
        ),
    ),
    Form(name="ShareGPT", format="sharegpt", row={"id": "x1", "conversations": share(Q, A)}, gives=ONE),
    Form(
        name="ShareGPT, system and calls (Glaive)",
        format="sharegpt",
        row={
            "system": "Be kind.",
            "tools": "[]",
            "conversations": [
                *share(Q),
                {"from": "function_call", "value": '{"name": "multiply", "arguments": {"a": 3, "b": 4}}'},
                {"from": "observation", "value": "12"},
                *share(Q, A)[1:],
            ],
        },
        gives=("system: Be kind.\nTools: []", *CALLED),
    ),
    Form(
        name="Hermes calls in the text",
        format="sharegpt",
        row={"conversations": share(Q, f"<tool_call>\n{WRITTEN[11:]}\n</tool_call>")},
        gives=(ASKED, f"assistant*: <tool_call>\n{WRITTEN[11:]}\n</tool_call>"),
    ),
    Form(
        name="xLAM function calling",
        format="prompt_answer",
        more={"prompt_field": "query", "answer_field": "answers"},
        row={"id": 1, "query": Q, "answers": f"[{WRITTEN[11:]}]", "tools": "[]"},
        gives=("system: Tools: []", ASKED, f"assistant*: [{WRITTEN[11:]}]"),
    ),
    Form(
        name="axolotl train: false",
        row={"messages": [user(), answer(B, train=False), user("Wrong."), answer(train=True)]},
        gives=UNTRAINED,
    ),
    Form(
        name="messages that end with a question",
        row={"messages": [user(), answer(), user("Thanks")]},
        gives=(*ONE, "user: Thanks"),
    ),
    Form(
        name="a role of another type",
        row={"messages": [{"role": ["user"], "content": Q}, answer()]},
        why_not="unknown_role",
    ),
    Form(
        name="WildChat",
        row={
            "conversation": [user(language="English", toxic=False, redacted=False), answer()],
            "model": "m",
            "toxic": False,
        },
        gives=ONE,
    ),
    Form(
        name="LMSYS, moderation of each turn",
        row={
            "messages": [user(), answer()],
            "model": "m",
            "turn": 1,
            "language": "en",
            "openai_moderation": [{"flagged": False}],
        },
        gives=ONE,
    ),
    Form(
        name="no_robots",
        row={"prompt_id": "x", "prompt": Q, "messages": [user(), answer()], "category": "Math"},
        gives=ONE,
    ),
    # instructions
    Form(
        name="Alpaca",
        format="alpaca",
        row={"instruction": "Sum up.", "input": "Text", "output": A, "text": "### Instruction"},
        why_not="unread_field:text",
    ),
    Form(
        name="Alpaca, ignore",
        format="alpaca",
        more={"ignore": ("text",)},
        row={"instruction": "Sum up.", "input": "Text", "output": A, "text": "### Instruction"},
        gives=("user: Sum up.\n\nText", SAID),
    ),
    Form(
        name="Alpaca, system and history",
        format="alpaca",
        row={"instruction": Q, "input": "", "output": A, "system": "Be kind.", "history": [["Hi", "Hello"]]},
        gives=("system: Be kind.", "user: Hi", "assistant*: Hello", *ONE),
    ),
    Form(
        name="Dolly",
        format="prompt_answer",
        more={"prompt_field": "instruction", "answer_field": "response"},
        row={"instruction": Q, "context": "Three rows of four.", "response": A, "category": "closed_qa"},
        why_not="unread_field:context",
    ),
    Form(
        name="OpenOrca, system_prompt",
        format="prompt_answer",
        more={"prompt_field": "question", "answer_field": "response"},
        row={"id": "t0.1", "system_prompt": "Be kind.", "question": Q, "response": A},
        gives=("system: Be kind.", *ONE),
    ),
    Form(
        name="FLAN (inputs, targets)",
        format="prompt_answer",
        more={"prompt_field": "inputs", "answer_field": "targets"},
        row={"inputs": Q, "targets": 12, "task": "math"},
        gives=(ASKED, "assistant*: 12"),
    ),
    Form(
        name="Self-Instruct with two instances",
        format="instances",
        row={
            "instruction": "Give the antonym.",
            "instances": [{"input": "warm", "output": "cold"}, {"input": "up", "output": "down"}],
        },
        why_not="several_instances",
    ),
    Form(
        name="code with indentation",
        format="prompt_answer",
        row={"prompt": "Complete: def f(x):\n", "answer": "    y = x\n    return y\n"},
        gives=("user: Complete: def f(x):\n", "assistant*:     y = x\n    return y\n"),
    ),
    Form(
        name="an answer that ends in a tag",
        row={"messages": [user(), answer("<s>old</s>")]},
        gives=(ASKED, "assistant*: <s>old</s>"),
    ),
    Form(
        name="an end marker, named",
        more={"end_marker": "</s>"},
        row={"messages": [user(), answer(A + "</s>")]},
        gives=ONE,
    ),
    # thoughts
    Form(
        name="DeepSeek reasoning_content",
        row={"messages": [user(), answer(reasoning_content="3*4 = 12")]},
        gives=(ASKED, f"assistant*: <think>\n3*4 = 12\n</think>\n\n{A}"),
    ),
    Form(
        name="OpenThoughts (thought in the text)",
        format="sharegpt",
        row={
            "system": "Think.",
            "conversations": share(
                Q, f"<|begin_of_thought|>\n\n3*4\n\n<|end_of_thought|>\n\n{A}", names=("user", "assistant")
            ),
        },
        gives=("system: Think.", ASKED, f"assistant*: <|begin_of_thought|>\n\n3*4\n\n<|end_of_thought|>\n\n{A}"),
    ),
    Form(
        name="GSM8K",
        format="question_answer",
        row={"question": Q, "answer": "3*4 = 12\n#### 12"},
        gives=(ASKED, "assistant*: 3*4 = 12\n#### 12"),
    ),
    Form(
        name="MATH, as prompts",
        format="prompts",
        more={"prompt_field": "problem", "answer_field": "solution"},
        row={"problem": Q, "solution": "So $\\boxed{12}$.", "level": "Level 1", "subject": "Algebra"},
        gives=(ASKED, "right: So $\\boxed{12}$."),
    ),
    Form(
        name="a number as answer",
        format="prompts",
        row={"prompt": "1+1?", "answer": 2},
        gives=("user: 1+1?", "right: 2"),
    ),
    Form(
        name="a list as answer", format="prompts", row={"prompt": "1+1?", "answer": [2]}, why_not="answer_is_not_text"
    ),
    Form(
        name="prompts, system",
        format="prompts",
        row={"system": "Be kind.", "question": Q, "answer": "12"},
        gives=("system: Be kind.", ASKED, "right: 12"),
    ),
    Form(
        name="prompts, a completion that may be the right answer",
        format="prompts",
        row={"prompt": Q, "completion": "12"},
        why_not="unread_field:completion",
    ),
    Form(
        name="prompts, other answers that the source ignores",
        format="prompts",
        more={"ignore": ("responses",)},
        row={"prompt": Q, "responses": [A, B], "answer": 12},
        gives=(ASKED, "right: 12"),
    ),
    Form(
        name="prompts of pairs",
        format="prompts",
        row={"prompt": Q, "chosen": A, "rejected": B},
        gives=(ASKED, "right: "),
    ),
    Form(name="prompts, one answer", format="prompts", row={"prompt": Q, "chosen": A}, why_not="unread_field:chosen"),
    # preferences
    Form(
        name="UltraFeedback, binarized",
        format="chosen_rejected",
        row={
            "prompt": Q,
            "prompt_id": "x",
            "chosen": [user(), answer()],
            "rejected": [user(), answer(B)],
            "messages": [user(), answer()],
            "score_chosen": 8.0,
            "score_rejected": 4.0,
        },
        gives=PAIR,
    ),
    Form(
        name="LLaMA-Factory pair, system",
        format="chosen_rejected",
        row={
            "system": "Be kind.",
            "conversations": share(Q),
            "chosen": {"from": "gpt", "value": A},
            "rejected": {"from": "gpt", "value": B},
        },
        gives=("system: Be kind.", *PAIR),
    ),
    Form(
        name="HH-RLHF",
        format="hh",
        row={"chosen": f"\n\nHuman: {Q}\n\nAssistant: {A}", "rejected": f"\n\nHuman: {Q}\n\nAssistant: {B}"},
        gives=PAIR,
    ),
    Form(
        name="HH-RLHF, system column",
        format="hh",
        row={
            "system": "Be kind.",
            "chosen": f"\n\nHuman: {Q}\n\nAssistant: {A}",
            "rejected": f"\n\nHuman: {Q}\n\nAssistant: {B}",
        },
        gives=("system: Be kind.", *PAIR),
    ),
    Form(
        name="Nectar (ranked answers)",
        format="chosen_rejected",
        row={"prompt": Q, "answers": [{"answer": A, "rank": 1}, {"answer": B, "rank": 2}]},
        why_not="missing_chosen",
    ),
    Form(
        name="RewardBench margin",
        format="chosen_rejected",
        row={"prompt": Q, "chosen": A, "rejected": B, "margin": 0.5},
        why_not="unread_field:margin",
    ),
    Form(
        name="OpenAssistant, nested",
        format="dialogue_tree",
        row={
            "message_tree_id": "t",
            "tree_state": "ready_for_export",
            "prompt": {
                "message_id": "1",
                "text": Q,
                "role": "prompter",
                "lang": "en",
                "replies": [
                    {
                        "message_id": "2",
                        "parent_id": "1",
                        "text": A,
                        "role": "assistant",
                        "rank": 0,
                        "labels": {"spam": 0},
                    }
                ],
            },
        },
        gives=ONE,
    ),
    Form(
        name="half a character",
        row={"messages": [user(), answer("\ud83d")]},
        why_not="content_is_not_unicode",
    ),
    # texts of JSON, and arguments of calls
    Form(
        name="messages as a text of JSON (fastparquet)",
        row={"messages": json.dumps([user(), answer()])},
        gives=ONE,
    ),
    Form(name="messages as a text that is cut", row={"messages": '[{"role": "user"'}, why_not="messages_are_not_json"),
    Form(
        name="tool_calls as a text of JSON",
        row={"messages": [user(), answer(None, tool_calls=json.dumps([{"type": "function", "function": CALL}]))]},
        gives=CALLED[:2],
    ),
    Form(
        name="parameters of tools as a text (Nemotron)",
        row={"tools": [{"name": "f", "parameters": '{"a": "int"}'}], "messages": [user(), answer()]},
        gives=('system: Tools: [{"name": "f", "parameters": "{\\"a\\": \\"int\\"}"}]', *ONE),
    ),
    Form(
        name="arguments with empty columns (Arrow)",
        row=called({"a": 3, "b": None}),
        gives=(ASKED, 'assistant*: Tool call: {"name": "f", "arguments": {"a": 3, "b": null}}'),
    ),
    Form(name="no arguments", row=called(""), gives=(ASKED, 'assistant*: Tool call: {"name": "f", "arguments": {}}')),
    Form(
        name="arguments as given",
        row=called('{"a":1.10}'),
        gives=(ASKED, 'assistant*: Tool call: {"name": "f", "arguments": {"a":1.10}}'),
    ),
    Form(
        name="arguments with a number as written",
        row=called(json_of_row('{"a": 1.10, "b": [2.50, 3]}')),
        gives=(ASKED, 'assistant*: Tool call: {"name": "f", "arguments": {"a": 1.10, "b": [2.50, 3]}}'),
    ),
    Form(
        name="tools with a number as written",
        row={"tools": json_of_row('[{"name": "f", "least": 1.10}]'), "messages": [user(), answer()]},
        gives=('system: Tools: [{"name": "f", "least": 1.10}]', *ONE),
    ),
    Form(
        name="tools with a number that JSON lacks",
        row={"tools": [{"name": "f", "least": float("nan")}], "messages": [user(), answer()]},
        why_not="tools_are_not_json",
    ),
    Form(name="arguments that are cut", row=called('{"a": 3,'), why_not="arguments_are_not_json"),
    Form(name="arguments of Python", row=called("{'a': 3}"), why_not="arguments_are_not_json"),
    Form(name="arguments with a key twice", row=called('{"a": 3, "a": 4}'), why_not="arguments_are_not_json"),
    Form(name="arguments with NaN", row=called({"a": float("nan")}), why_not="arguments_are_not_json"),
    Form(name="arguments as a list", row=called("[3]"), why_not="arguments_are_not_an_object"),
    Form(name="arguments as a number", row=called(0), why_not="arguments_are_not_an_object"),
    Form(name="arguments written twice", row=called(json.dumps('{"a": 3}')), why_not="arguments_are_not_an_object"),
    Form(
        name="Glaive, a call with a text in single quotes",
        format="sharegpt",
        row={"conversations": [*share(Q), {"from": "function_call", "value": '{"name": "f", "arguments": \'{}\'}'}]},
        why_not="call_is_not_json",
    ),
    Form(
        name="results of two calls in another order",
        row={
            "messages": [
                user(),
                answer(None, tool_calls=[{"id": "c1", "function": CALL}, {"id": "c2", "function": CALL}]),
                {"role": "tool", "tool_call_id": "c2", "content": "12"},
                answer(),
            ]
        },
        why_not="tool_result_of_another_call",
    ),
    Form(
        name="OpenAI, an answer of null",
        row={"messages": [user(), answer(None, audio=None, annotations=[])]},
        why_not="empty_content",
    ),
    # thoughts and numbers
    Form(
        name="a thought in the text and beside it",
        row={"messages": [user(), answer(f"<think>\n3*4\n</think>\n\n{A}", reasoning_content="3*4")]},
        why_not="thought_given_twice",
    ),
    Form(
        name="OpenRouter reasoning_details",
        row={"messages": [user(), answer(reasoning="3*4", reasoning_details=[{"text": "3*4"}])]},
        why_not="unread_field:reasoning_details",
    ),
    Form(
        name="a price as a number",
        format="question_answer",
        row=json_of_row('{"question": "How much?", "answer": 1.10}'),
        gives=("user: How much?", "assistant*: 1.10"),
    ),
    Form(
        name="a large number as right answer",
        format="prompts",
        row=json_of_row('{"prompt": "How many?", "answer": 6.02e23}'),
        gives=("user: How many?", "right: 6.02e23"),
    ),
    Form(
        name="a pair of numbers",
        format="chosen_rejected",
        row=json_of_row('{"prompt": "How much?", "chosen": 1.10, "rejected": 12}'),
        gives=("user: How much?", "chosen: 1.10", "rejected: 12"),
    ),
    Form(
        name="KTO, a number as answer",
        format="unpaired",
        row={"prompt": Q, "completion": 12, "label": True},
        gives=(ASKED, "good: 12"),
    ),
    Form(name="messages, a number as answer", row={"messages": [user(), answer(12)]}, gives=(ASKED, "assistant*: 12")),
    Form(
        name="messages, a number above all of a float's as answer",
        row={"messages": [user(), answer(10**400)]},
        gives=(ASKED, f"assistant*: {10**400}"),
    ),
    Form(name="messages, a number as question", row={"messages": [user(12), answer()]}, why_not="content_is_not_text"),
    Form(
        name="messages, a truth value as answer",
        row={"messages": [user(), answer(True)]},
        why_not="content_is_not_text",
    ),
    Form(
        name="Alpaca, a number in the history",
        format="alpaca",
        row={"instruction": Q, "output": A, "history": [["1+1?", 2]]},
        gives=("user: 1+1?", "assistant*: 2", *ONE),
    ),
    # answers that are rated, and others
    Form(
        name="KTO, label 0",
        format="unpaired",
        row={"prompt": Q, "completion": B, "label": 0},
        gives=(ASKED, f"bad: {B}"),
    ),
    *(
        Form(
            name=f"KTO, label {label!r}",
            format="unpaired",
            row={"prompt": Q, "completion": A, "label": label},
            why_not="label_is_not_true_or_false",
        )
        for label in ("good", "True", -1, 0.5)
    ),
    Form(
        name="KTO, answer in the messages",
        format="unpaired",
        row={"messages": [user(), answer()], "label": True},
        why_not="prompt_ends_with_an_answer",
    ),
    Form(
        name="several answers in a list",
        format="prompt_answer",
        more={"answer_field": "completion"},
        row={"prompt": Q, "completion": [A, B]},
        why_not="completion_is_not_text",
    ),
    Form(
        name="pair of two questions",
        format="chosen_rejected",
        row={"chosen": [user(), answer()], "rejected": [user("And 3*5?"), answer(B)]},
        why_not="prompts_differ",
    ),
    Form(
        name="pair, a text and messages",
        format="chosen_rejected",
        row={"prompt": Q, "chosen": A, "rejected": [answer(B)], "score_chosen": "8"},
        gives=PAIR,
    ),
    Form(
        name="HelpSteer3",
        format="chosen_rejected",
        row={"context": [user()], "response1": A, "response2": B, "overall_preference": -2},
        why_not="missing_chosen",
    ),
    Form(
        name="DAPO prompts",
        format="prompts",
        row={"prompt": [user()], "reward_model": {"ground_truth": "12"}, "data_source": "x"},
        why_not="unread_field:reward_model",
    ),
    Form(
        name="system and developer",
        row={"messages": [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, user(), answer()]},
        why_not="system_message_inside",
    ),
    Form(name="DeepSeek prefix", row={"messages": [user(), answer(prefix=True)]}, why_not="unread_field:prefix"),
    Form(
        name="SmolTalk2, settings of the template",
        row={"messages": [user(), answer()], "chat_template_kwargs": {"enable_thinking": False}},
        why_not="unread_field:chat_template_kwargs",
    ),
    Form(
        name="OpenR1",
        row={"problem": Q, "solution": "12", "messages": [user(), answer()]},
        why_not="unread_field:problem,solution",
    ),
    # published sets, and forms of interfaces
    Form(
        name="ms-swift query/response/history",
        format="prompt_answer",
        more={"prompt_field": "query", "answer_field": "response"},
        row={"query": Q, "response": A, "history": [["Hi", "Hello."]]},
        why_not="unread_field:history",
    ),
    Form(
        name="Capybara",
        row={"source": "TheoremQA", "conversation": [{"input": Q, "output": A}]},
        why_not="unknown_role",
    ),
    Form(
        name="PKU-SafeRLHF",
        format="chosen_rejected",
        row={"prompt": Q, "response_0": A, "response_1": B, "better_response_id": 0, "safer_response_id": 1},
        why_not="missing_chosen",
    ),
    Form(
        name="BeaverTails",
        format="prompt_answer",
        more={"answer_field": "response"},
        row={"prompt": Q, "response": A, "category": {"animal_abuse": False}, "is_safe": True},
        why_not="unread_field:is_safe",
    ),
    Form(
        name="CAMEL",
        format="prompt_answer",
        more={"prompt_field": "message_1", "answer_field": "message_2"},
        row={"role_1": "M", "topic": "Calculus", "message_1": Q, "message_2": A},
        why_not="unread_field:role_1",
    ),
    Form(
        name="Natural Instructions",
        format="prompt_answer",
        more={"prompt_field": "inputs", "answer_field": "targets"},
        row={"task_name": "t", "definition": "Multiply.", "inputs": Q, "targets": A},
        why_not="unread_field:definition",
    ),
    Form(
        name="SQuAD",
        format="prompt_answer",
        more={"prompt_field": "question", "answer_field": "answers"},
        row={"context": "3*4 is 12.", "question": Q, "answers": {"text": ["12"], "answer_start": [7]}},
        why_not="unknown_role",
    ),
    Form(
        name="CoT Collection",
        format="prompt_answer",
        more={"prompt_field": "source", "answer_field": "target"},
        row={"source": Q, "target": A, "rationale": THOUGHT, "task": "x"},
        why_not="unread_field:rationale",
    ),
    Form(
        name="OpenMathInstruct-2",
        format="prompt_answer",
        more={"prompt_field": "problem", "answer_field": "generated_solution"},
        row={"problem": Q, "generated_solution": A, "expected_answer": "12", "problem_source": "gsm8k"},
        why_not="unread_field:expected_answer,problem_source",
    ),
    Form(
        name="s1K",
        format="prompt_answer",
        more={"prompt_field": "question", "answer_field": "solution"},
        row={"question": Q, "solution": A, "thinking_trajectories": [THOUGHT], "attempt": A},
        why_not="unread_field:attempt,thinking_trajectories",
    ),
    Form(
        name="Bespoke-Stratos",
        format="sharegpt",
        row={
            "system": "Think first.",
            "conversations": [
                {"from": "user", "value": Q},
                {
                    "from": "assistant",
                    "value": f"<|begin_of_thought|>{THOUGHT}<|end_of_thought|>{A}",
                },
            ],
        },
        gives=(
            "system: Think first.",
            ASKED,
            f"assistant*: <|begin_of_thought|>{THOUGHT}<|end_of_thought|>{A}",
        ),
    ),
    Form(
        name="Llama-Nemotron v1",
        format="prompt_answer",
        more={"prompt_field": "input", "answer_field": "output"},
        row={
            "input": [user()],
            "output": A,
            "reasoning": "off",
            "system_prompt": "detailed thinking off",
            "category": "math",
        },
        why_not="unread_field:reasoning",
    ),
    Form(
        name="KTO-mix-14k",
        format="unpaired",
        row={"dataset": "d", "prompt": [user()], "completion": [answer()], "label": True},
        gives=(
            ASKED,
            "good: It is 12.",
        ),
    ),
    Form(
        name="LLaMA-Factory kto_tag",
        format="unpaired",
        row={"messages": [user(), answer()], "label": True},
        why_not="prompt_ends_with_an_answer",
    ),
    Form(
        name="UltraInteract pair",
        format="chosen_rejected",
        row={"task": "Math", "id": "1", "trajectory": [{"from": "user", "value": Q}], "chosen": A, "rejected": B},
        why_not="unread_field:trajectory",
    ),
    Form(
        name="PRM800K stepwise",
        format="unpaired",
        row={"prompt": Q, "completions": ["3*4", "is 12"], "labels": [True, True]},
        why_not="missing_label",
    ),
    Form(
        name="Gemini contents",
        row={"contents": [{"role": "user", "parts": [{"text": Q}]}, {"role": "model", "parts": [{"text": A}]}]},
        why_not="messages_are_not_a_list",
    ),
    Form(
        name="Anthropic thinking with signature",
        row={
            "messages": [
                user(),
                answer([{"type": "thinking", "thinking": THOUGHT, "signature": "abc"}, {"type": "text", "text": A}]),
            ]
        },
        gives=(
            ASKED,
            "assistant*: <think>\nLet me multiply.\n</think>\n\nIt is 12.",
        ),
    ),
    Form(
        name="Anthropic redacted thinking",
        row={"messages": [user(), answer([{"type": "redacted_thinking", "data": "xyz"}, {"type": "text", "text": A}])]},
        why_not="unread_content:redacted_thinking",
    ),
    Form(
        name="OpenAI responses items",
        row={
            "messages": [
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": Q}]},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": A, "annotations": []}],
                },
            ]
        },
        why_not="unread_field:type",
    ),
    Form(
        name="OpenAI preference fine-tuning",
        format="chosen_rejected",
        row={
            "input": {"messages": [user()], "tools": [], "parallel_tool_calls": True},
            "preferred_output": [answer()],
            "non_preferred_output": [answer(B)],
        },
        why_not="missing_chosen",
    ),
    Form(
        name="OpenAI reinforcement",
        format="prompts",
        row={"messages": [user()], "reference_answer": "12"},
        why_not="unread_field:reference_answer",
    ),
    Form(
        name="Cohere chat",
        row={"messages": [{"role": "User", "content": Q}, {"role": "Chatbot", "content": A}]},
        why_not="unknown_role",
    ),
    Form(
        name="ShareGPT begins with gpt",
        format="sharegpt",
        row={
            "conversations": [
                {"from": "gpt", "value": "Hello."},
                {"from": "human", "value": Q},
                {"from": "gpt", "value": A},
            ]
        },
        gives=(
            "assistant*: Hello.",
            ASKED,
            SAID,
        ),
    ),
    Form(
        name="LLaVA",
        format="sharegpt",
        row={"id": "1", "image": "a.jpg", "conversations": share("<image>\n" + Q, A)},
        why_not="unread_field:image",
    ),
    Form(
        name="ToolACE",
        format="sharegpt",
        row={
            "system": "You may call tools.",
            "conversations": [
                {"from": "user", "value": Q},
                {"from": "assistant", "value": "[multiply(a=3, b=4)]"},
                {"from": "tool", "value": "12"},
                {"from": "assistant", "value": A},
            ],
        },
        gives=(
            "system: You may call tools.",
            ASKED,
            "assistant*: [multiply(a=3, b=4)]",
            "tool: Tool result: 12",
            SAID,
        ),
    ),
    Form(
        name="Dolphin R1",
        row={"messages": [user()], "reasoning": THOUGHT, "answer": A, "model": "r1"},
        why_not="no_answer",
    ),
    Form(
        name="Orca DPO pairs",
        format="chosen_rejected",
        more={"prompt_field": "question"},
        row={"system": "Be short.", "question": Q, "chosen": A, "rejected": B},
        gives=(
            "system: Be short.",
            ASKED,
            "chosen: It is 12.",
            "rejected: It is 13.",
        ),
    ),
    Form(
        name="Distilabel capybara DPO",
        format="chosen_rejected",
        row={
            "source": "x",
            "conversation": [{"input": Q, "output": A}],
            "original_response": A,
            "generation_prompt": [],
            "chosen": [user(), answer()],
            "rejected": [user(), answer(B)],
            "rating_chosen": 5,
            "rating_rejected": 3,
            "chosen_model": "a",
            "rejected_model": "b",
        },
        why_not="unread_field:conversation,original_response,rating_chosen,rating_rejected",
    ),
    Form(
        name="pair, a conversation as the worse answer alone",
        format="chosen_rejected",
        row={"prompt": Q, "chosen": A, "rejected": [user(), answer(B)]},
        why_not="prompts_differ",
    ),
    Form(
        name="Reasoning Gym",
        format="prompts",
        more={"prompt_field": "question"},
        row={"question": Q, "answer": "12", "metadata": {"difficulty": 1}},
        gives=(
            ASKED,
            "right: 12",
        ),
    ),
    Form(
        name="an answer in two turns",
        row={"messages": [user(), answer("It is"), answer(" 12.")]},
        gives=(
            ASKED,
            "assistant*: It is",
            "assistant*:  12.",
        ),
    ),
    Form(
        name="Qwen3 enable_thinking",
        row={"messages": [user(), answer()], "enable_thinking": False},
        why_not="unread_field:enable_thinking",
    ),
    Form(
        name="messages with times and names",
        row={"messages": [user(id="1", timestamp="2024-01-01"), answer(id="2", model="m")]},
        gives=ONE,
    ),
    Form(
        name="OpenAI parts of sound",
        row={
            "messages": [
                user(
                    [
                        {"type": "input_audio", "input_audio": {"data": "xx", "format": "wav"}},
                        {"type": "text", "text": Q},
                    ]
                ),
                answer(),
            ]
        },
        why_not="unread_content:input_audio",
    ),
)


def main() -> None:
    """Print what each form gives, and whether it is what it must give."""
    right = whole = 0
    for form in FORMS:
        given, reason = form.read()
        is_right = (given, reason) == (form.gives, form.why_not)
        right += is_right
        whole += is_right and not reason
        told = f"not kept: {reason}" if reason else " | ".join(given).replace("\n", "\u23ce")
        print(f"{form.name:45} {form.format:16} {'ok' if is_right else 'WRONG':6} {told}")
    print(f"{len(FORMS)} forms: {whole} kept whole, {right - whole} not kept with a reason, {len(FORMS) - right} wrong")


if __name__ == "__main__":
    main()
