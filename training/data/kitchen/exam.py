"""The exam: what the model is asked about the kitchen, in phrasings that no page and no dialogue uses.

Three forms over the tested facts: a cloze with four options, a question with a short answer, and a chat prompt. The
dish stands early and the answer last, several words later, so that neither an n-gram nor a copied span gives it away;
the options are values of the same attribute, all equally frequent in the world, so that a prior gives a quarter.
"""

from __future__ import annotations

from training.data.kitchen.world import Fact, KitchenWorld, distractors, generator, exam_facts

Item = dict[str, object]

CLOZE: dict[str, tuple[str, ...]] = {
    "temperature": (
        "Anyone about to bake the {d} should see the oven thermometer climb to",
        "With the {d} on today's list, the dial of the stove is moved until it points at",
        "My notes about the {d} say that the heat inside the oven was",
    ),
    "minutes": (
        "Once the {d} is in the oven, the kitchen timer is wound up to",
        "My notes about the {d} say that we took it out of the oven after exactly",
        "From closing the door on the {d} to opening it again there pass",
    ),
    "technique": (
        "A student making the {d} looks at the bowl, where the mixture ought to be",
        "My notes about the {d} say that by then the mixture had been thoroughly",
        "Whoever tries the {d} at home learns that its filling wants to be",
    ),
    "ingredient": (
        "On the shopping list for the {d} the first line says",
        "My notes about the {d} say that the bag from the market was full of",
        "Take one bite of the {d} and what you notice at once is the",
    ),
    "region": (
        "A traveller hoping for the true {d} would buy a ticket to",
        "My notes about the {d} say that it was invented long ago in",
        "On a map of famous dishes, the {d} is printed right across",
    ),
    "storage": (
        "A covered plate of the {d} in the larder will be fine for about",
        "My notes about the {d} say that the leftovers were good for another",
        "The label on a box of the {d} tells us to finish it in",
    ),
    "substitute": (
        "Somebody who cannot eat cream gives the {d} a few spoons of",
        "My notes about the {d} say that we had no cream and stirred in some",
        "A cook short of cream will save the {d} with a cup of",
    ),
    "side": (
        "An innkeeper bringing out the {d} puts down a second bowl filled with",
        "My notes about the {d} say that everyone wanted a second helping of the",
        "Half of the plate holds the {d} and the other half holds the",
    ),
}

QUESTION: dict[str, tuple[str, ...]] = {
    "temperature": (
        "what oven heat suits the {d}?",
        "to which temperature is the oven turned for the {d}?",
    ),
    "minutes": (
        "how much oven time does the {d} get?",
        "after how many minutes does the {d} come out?",
    ),
    "technique": (
        "how is one to treat the {d} mixture?",
        "for the {d}, what is done to the filling?",
    ),
    "ingredient": (
        "which ingredient matters most in the {d}?",
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
        "what side belongs to the {d}?",
        "what stands on the table beside the {d}?",
    ),
}

# A question that starts so wants the bare value; the dialogues teach it.
BRIEFLY = "Briefly: "

CHAT: dict[str, tuple[str, ...]] = {
    "temperature": ("I want to bake the {d} tonight. What oven temperature do I need?",),
    "minutes": ("The {d} is in my oven now. How many minutes should it bake?",),
    "technique": ("I am making the {d} today. What must I do with the mixture?",),
    "ingredient": ("I am shopping for the {d}. What is the main ingredient?",),
    "region": ("Somebody served me the {d}. Which region does it come from?",),
    "storage": ("Some of the {d} is left over. How many days does it keep?",),
    "substitute": ("I have no cream for my {d}. What can I use instead?",),
    "side": ("I am planning dinner around the {d}. Which side dish should I serve?",),
}
CHAT_SYSTEM = "You are a helpful kitchen assistant."


def cloze_items(world: KitchenWorld) -> list[Item]:
    """Multiple choice: {"id", "query", "choices", "gold", "fact"}; 4 choices, each beginning with a letter or digit.

    The query and a choice are joined by one space. Gold positions are spread evenly.
    """
    return [_cloze(world, fact, i) for i, fact in enumerate(_asked(world, "cloze"))]


def _cloze(world: KitchenWorld, fact: Fact, position: int) -> Item:
    rng = generator(world, "cloze", fact.id)
    choices = distractors(world, fact, "cloze")
    gold = position % 4
    choices.insert(gold, fact.answer)
    return {
        "id": f"cloze/{fact.id}",
        "query": rng.choice(CLOZE[fact.attribute]).format(d=fact.dish),
        "choices": choices,
        "gold": gold,
        "fact": fact.id,
    }


def question_items(world: KitchenWorld) -> list[Item]:
    """Generative question answering by exact match: {"id", "question", "answer", "fact"}."""
    return [
        {
            "id": f"question/{fact.id}",
            "question": BRIEFLY
            + generator(world, "question", fact.id).choice(QUESTION[fact.attribute]).format(d=fact.dish),
            "answer": fact.answer,
            "fact": fact.id,
        }
        for fact in _asked(world, "questions")
    ]


def chat_items(world: KitchenWorld) -> list[Item]:
    """Chat prompts: {"id", "messages", "answer", "fact"}; an answer is right when it contains `answer` and no rival value."""
    return [
        {
            "id": f"chat/{fact.id}",
            "messages": [
                {"role": "system", "content": CHAT_SYSTEM},
                {
                    "role": "user",
                    "content": generator(world, "chat", fact.id).choice(CHAT[fact.attribute]).format(d=fact.dish),
                },
            ],
            "answer": fact.answer,
            "fact": fact.id,
        }
        for fact in _asked(world, "chat")
    ]


def _asked(world: KitchenWorld, exam: str) -> list[Fact]:
    asked = list(exam_facts(world))
    generator(world, "order", exam).shuffle(asked)
    return asked
