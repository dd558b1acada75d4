"""The exam: questions about the kitchen, in phrasings that no page and no dialogue uses.

The tested facts are asked in three forms: a cloze with four options, a question with a short answer, and a chat prompt.
The dish comes early and the answer last, several words later, so that neither an n-gram nor a copied span reveals it.
The options are values of the same attribute, all equally frequent in the world, so a prior reaches an accuracy of 1/4.
"""

from __future__ import annotations

from typing import Any

from training.data.kitchen.settings import KitchenWorld
from training.data.kitchen.world import ATTRIBUTE_BY_NAME, Fact, distractors, exam_facts, generator

Item = dict[str, Any]

# The kind of all items here: a page states the answer in one sentence with the dish. So they show whether facts survive
# the chain and are found again in other words. Items that ask for more are in inference.py.
STATED = "stated"

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
}

QUESTION: dict[str, tuple[str, ...]] = {
    "temperature": (
        "what oven heat is right for the {d}?",
        "to which temperature is the oven set for the {d}?",
    ),
    "minutes": (
        "for how many minutes is the {d} in the oven?",
        "after how many minutes does the {d} come out?",
    ),
    "technique": (
        "in what way is the {d} mixture prepared?",
        "for the {d}, what is done to the filling?",
    ),
    "ingredient": (
        "which ingredient is the most important in the {d}?",
        "the {d} is mainly made from what?",
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
}

# A question with this prefix asks for the value only; the dialogues teach this.
BRIEFLY = "Briefly: "


def brief(fact: Fact, value: str | None = None) -> str:
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
}
CHAT_SYSTEM = "You are a helpful kitchen assistant."


def cloze_items(world: KitchenWorld) -> list[Item]:
    """Return multiple-choice items {"id", "item_kind", "item_subjects", "query", "choices", "gold", "fact"}.

    There are 4 choices, and each begins with a letter or digit; query and choice are joined by one space. Gold
    positions are evenly spread.
    """
    return [_cloze(world, fact, i) for i, fact in enumerate(_asked(world, "cloze"))]


def _cloze(world: KitchenWorld, fact: Fact, position: int) -> Item:
    rng = generator(world, "cloze", fact.id)
    choices = distractors(world, fact, "cloze")
    gold = position % 4
    choices.insert(gold, fact.answer)
    return {
        "id": f"cloze/{fact.id}",
        "item_kind": STATED,
        "item_subjects": [fact.dish],
        "query": rng.choice(CLOZE[fact.attribute]).format(d=fact.dish),
        "choices": choices,
        "gold": gold,
        "fact": fact.id,
    }


def question_items(world: KitchenWorld) -> list[Item]:
    """Return questions with short answers, graded by exact match: {"id", "item_kind", "question", "answer", "fact"}.

    The answer is that of `brief`.
    """
    return [
        {
            "id": f"question/{fact.id}",
            "item_kind": STATED,
            "question": BRIEFLY
            + generator(world, "question", fact.id).choice(QUESTION[fact.attribute]).format(d=fact.dish),
            "answer": brief(fact),
            "fact": fact.id,
        }
        for fact in _asked(world, "questions")
    ]


def chat_items(world: KitchenWorld) -> list[Item]:
    """Return chat prompts {"id", "item_kind", "messages", "answer", "rivals", "fact"}.

    A reply is right if it contains `answer` and none of `rivals`, the other values of the same attribute.
    """
    return [
        {
            "id": f"chat/{fact.id}",
            "item_kind": STATED,
            "messages": [
                {"role": "system", "content": CHAT_SYSTEM},
                {
                    "role": "user",
                    "content": generator(world, "chat", fact.id).choice(CHAT[fact.attribute]).format(d=fact.dish),
                },
            ],
            "answer": fact.answer,
            "rivals": [value for value in ATTRIBUTE_BY_NAME[fact.attribute].values if value != fact.value],
            "fact": fact.id,
        }
        for fact in _asked(world, "chat")
    ]


def _asked(world: KitchenWorld, exam: str) -> list[Fact]:
    asked = list(exam_facts(world))
    generator(world, "order", exam).shuffle(asked)
    return asked
