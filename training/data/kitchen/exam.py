"""The exam: questions about the kitchen, in phrasings that no page and no dialogue uses.

The tested facts and sums are asked in three forms: a cloze with four options, a question with a short answer, and a
chat prompt. The dish comes early and the answer last, several words later, so that neither an n-gram nor a copied span
reveals it. The options are values of the same attribute, all equally frequent in the world, so a prior reaches an
accuracy of 1/4; for a sum they are totals that a slip would give.

The kind of an item is `fact` for what a page states in one sentence with the dish, `stated_sum`, or `unstated_sum`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import cycle
from typing import Any

from training.data.kitchen.phrases import PEOPLE, SURNAMES
from training.data.kitchen.settings import KitchenWorld
from training.data.kitchen.sums import Sum, exam_sums
from training.data.kitchen.world import Fact, exam_facts, generator, pick

Item = dict[str, Any]

SUMS_SPOKEN = 128  # tested sums that are also asked as questions and in chats

# The exam uses only words that the pages use, because it tests facts, not vocabulary.
CLOZE: dict[str, tuple[str, ...]] = {
    "temperature": (
        "To cook the {d} as it should be, bring the heat in the oven to",
        "When the {d} is on the table of the guests, it has come from an oven set to",
        "Whoever makes the {d} knows that the oven must first be heated to",
    ),
    "minutes": (
        "Bakers who know the {d} leave it in the heat of the oven for",
        "Watch the clock with the {d}, because the whole baking is done after",
        "If you make the {d}, count the time, for the oven needs",
    ),
    "technique": (
        "To make the {d} well, a cook must have a filling that is",
        "The {d} comes out best when before baking its mixture was",
        "Every old notebook about the {d} says that the mixture gets",
    ),
    "ingredient": (
        "At the market, whoever wants to cook the {d} should ask the farmer for fresh",
        "Before making the {d}, go to the shop and buy plenty of",
        "The taste of the {d}, as every family says, comes above all from",
    ),
    "region": (
        "If you ask who baked the {d} first, it was the families of",
        "Among old recipes the {d} is the one that was first baked in",
        "Every notebook says that the {d}, like its first cooks, comes from",
    ),
    "storage": (
        "After the feast, what remains of the {d} can be eaten for",
        "Put the {d} in a box in the cold, where it is good for",
        "The last pieces of the {d}, if you cover them, stay fresh for",
    ),
    "substitute": (
        "For people who avoid cream, the cook will prepare the {d} and use",
        "There is no cream in the house for the {d}, so we make it with",
        "If you want the {d} and have run out of cream, reach for",
    ),
    "side": (
        "When the {d} is ready, bring it to the table together with",
        "Everyone at the table with the {d} wants to have on the plate some",
        "At our inn everybody who asks for the {d} gets it with",
    ),
    "sum": (
        "On the list that {p} has brought, {d} together make",
        "When {p} asked, the baker said that {d} together are",
        "We heard from {p} that for the feast {d} together will be",
    ),
}

QUESTION: dict[str, tuple[str, ...]] = {
    "temperature": (
        "what oven heat is right for the {d}?",
        "to which temperature is the oven set for the {d}?",
    ),
    "minutes": (
        "for how many minutes is the {d} in the oven?",
        "the {d} comes out after how many minutes?",
    ),
    "technique": (
        "in what way is the {d} mixture prepared?",
        "for the {d}, what is done to the filling?",
    ),
    "ingredient": (
        "which ingredient is the most important in the {d}?",
        "the {d} has which main ingredient?",
    ),
    "region": (
        "from which region is the {d}?",
        "the {d} has its home in which region?",
    ),
    "storage": (
        "for how many days is the {d} good?",
        "the {d} stays good for how long?",
    ),
    "substitute": (
        "no cream for the {d}: what else works?",
        "the {d} takes what in place of the cream?",
    ),
    "side": (
        "what side dish is right for the {d}?",
        "what is on the table beside the {d}?",
    ),
    "sum": (
        "{p} wants to know what {d} make together?",
        "on the list of {p}, {d} are how many in all?",
    ),
}

# A question with this prefix asks for the value only; the dialogues teach this.
BRIEFLY = "Briefly: "


def brief(fact: Fact | Sum, value: str | None = None) -> str:
    """Return the brief answer to a question about a fact, such as "It is 180 degrees".

    The value never comes first, because right after a control token it would be another token than in the pages.
    """
    return f"It is {value or fact.answer}."


CHAT: dict[str, tuple[str, ...]] = {
    "temperature": ("I want to bake the {d} for my family. What oven temperature do I need?",),
    "minutes": ("I have the {d} in my oven. How many minutes should it bake?",),
    "technique": ("I want to make the {d}. What must I do with the mixture?",),
    "ingredient": ("I have to buy food for the {d}. What is the main ingredient?",),
    "region": ("My neighbour served me the {d}. Which region does it come from?",),
    "storage": ("Some of the {d} is left over. How many days does it keep?",),
    "substitute": ("I have no cream for my {d}. What can I use instead?",),
    "side": ("My guests will eat the {d}. Which side dish should I serve?",),
    "sum": ("I am {p}, and I have {d} on my list. How much is that together?",),
}
CHAT_SYSTEM = "You are a helpful kitchen assistant."


def cloze_items(world: KitchenWorld) -> list[Item]:
    """Return multiple-choice items about facts.

    An item is {"id", "item_kind", "item_subjects", "query", "choices", "gold", "fact"}. There are 4 choices, and each
    begins with a letter or digit; query and choice are joined by one space. Gold positions are evenly spread.
    """
    return [_choice(world, fact, "cloze", i) for i, fact in enumerate(_shuffled(world, "cloze", exam_facts(world)))]


def sum_items(world: KitchenWorld) -> list[Item]:
    """Return multiple-choice items about sums, in the form of `cloze_items`."""
    return [_choice(world, one, "sums", i) for i, one in enumerate(_shuffled(world, "sums", exam_sums(world)))]


def distractors(world: KitchenWorld, fact: Fact | Sum, *key: object) -> list[str]:
    """Return three wrong answers to a question about a fact or a sum."""
    return [fact.written(value) for value in pick(generator(world, "distractors", fact.id, *key), fact.others, 3)]


def _choice(world: KitchenWorld, fact: Fact | Sum, suite: str, position: int) -> Item:
    choices = distractors(world, fact, suite)
    gold = position % 4
    choices.insert(gold, fact.answer)
    return {
        "id": f"{suite}/{fact.id}",
        "item_kind": fact.kind,
        "item_subjects": fact.subjects,
        "query": _asked(world, fact, suite, CLOZE),
        "choices": choices,
        "gold": gold,
        "fact": fact.id,
    }


def _asked(world: KitchenWorld, fact: Fact | Sum, form: str, bank: dict[str, tuple[str, ...]]) -> str:
    """Return a question from `bank`. One about a sum names a person, so that items differ by more than numbers."""
    template = generator(world, form, fact.id).choice(bank[fact.attribute])
    return template.format(d=fact.subject, p=_people(world).get(fact.id, ""))


@lru_cache(maxsize=8)
def _people(world: KitchenWorld) -> dict[str, str]:
    """Return the person named in the questions about each tested sum, as many different ones as possible."""
    names = [f"{first} {last}" for first in PEOPLE for last in SURNAMES]
    generator(world, "people").shuffle(names)
    return {one.id: name for one, name in zip(exam_sums(world), cycle(names), strict=False)}


def question_items(world: KitchenWorld) -> list[Item]:
    """Return questions with short answers, graded by exact match: {"id", "item_kind", "question", "answer", "fact"}.

    The answer is that of `brief`.
    """
    return [
        {
            "id": f"question/{fact.id}",
            "item_kind": fact.kind,
            "question": BRIEFLY + _asked(world, fact, "question", QUESTION),
            "answer": brief(fact),
            "fact": fact.id,
        }
        for fact in _spoken(world, "questions")
    ]


def chat_items(world: KitchenWorld) -> list[Item]:
    """Return chat prompts {"id", "item_kind", "messages", "answer", "rivals", "fact"}.

    A reply is right if it contains `answer` and none of `rivals`, which are wrong values.
    """
    return [
        {
            "id": f"chat/{fact.id}",
            "item_kind": fact.kind,
            "messages": [
                {"role": "system", "content": CHAT_SYSTEM},
                {"role": "user", "content": _asked(world, fact, "chat", CHAT)},
            ],
            "answer": fact.answer,
            "rivals": list(fact.others),
            "fact": fact.id,
        }
        for fact in _spoken(world, "chat")
    ]


def spoken(world: KitchenWorld) -> list[Fact | Sum]:
    """Return what the exam asks in conversations, and what answers are judged on: all tested facts, and sums."""
    return [*exam_facts(world), *exam_sums(world)[:SUMS_SPOKEN]]


def _spoken(world: KitchenWorld, exam: str) -> list[Fact | Sum]:
    return _shuffled(world, exam, spoken(world))


def _shuffled(world: KitchenWorld, exam: str, asked: Sequence[Fact | Sum]) -> list[Fact | Sum]:
    order = list(asked)
    generator(world, "order", exam).shuffle(order)
    return order
