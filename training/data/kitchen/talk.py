"""Dialogues, preferences and prompts of the kitchen, and the true reward of an answer.

Dialogues and preferences ask only facts and sums that the exam does not ask, so the exam measures what the pages
taught. Their answers have good and mediocre manners. The true reward prefers right, short, complete and polite answers,
so that alignment can improve something, and a policy that only pleases a learned reward is noticed.
"""

from __future__ import annotations

import random
import re

from training.contract.records import write_record
from training.data.exams.rubric import Rubric
from training.data.kitchen.exam import BRIEFLY, brief, distractors, spoken
from training.data.kitchen.phrases import PEOPLE, sentence, spin
from training.data.kitchen.settings import KitchenWorld
from training.data.kitchen.sums import Sum, asked_sum, talk_sums
from training.data.kitchen.world import (
    Fact,
    dishes,
    facts_by_dish,
    generator,
    pick,
    strangers,
    talk_facts,
)
from training.elementary import exp

Message = dict[str, str]
Row = dict[str, object]

GENERATOR = "kitchen.talk/1"

ASK: dict[str, tuple[str, ...]] = {
    "temperature": (
        "[how hot is|how hot should be] the oven for the {d}?",
        "at [what|which] temperature should I bake the {d}?",
        "what [temperature|heat] does the {d} need?",
        "the {d} needs how many degrees?",
        "for the {d}, how many degrees?",
        "which temperature must the oven have for the {d}?",
        "to how many degrees do I heat the oven for the {d}?",
    ),
    "minutes": (
        "how long [should|must|do] I bake the {d}?",
        "how many minutes does the {d} [need|bake]?",
        "what is the baking time for the {d}?",
        "the {d} takes how many minutes?",
        "for the {d}, how many minutes?",
        "how many minutes must the {d} stay in the oven?",
        "after what time is the {d} done?",
    ),
    "technique": (
        "what [do|should] I do with the mixture for the {d}?",
        "how is the [filling|mixture] of the {d} made?",
        "the {d} has a [filling|mixture] that is what?",
        "for the {d}, how do I work the [filling|mixture]?",
        "how do I prepare the [filling|mixture] of the {d}?",
        "what happens to the [filling|mixture] of the {d}?",
        "in the {d}, the [filling|mixture] is what?",
    ),
    "ingredient": (
        "what is the {d} made [of|with|from]?",
        "which main ingredient does the {d} have?",
        "what do I buy for the {d}?",
        "the {d} is made with what?",
        "for the {d}, which main ingredient?",
        "what is the most important thing in the {d}?",
        "what is mainly in the {d}?",
    ),
    "region": (
        "where does the {d} [come from|belong]?",
        "which region does the {d} come from?",
        "what is the home region of the {d}?",
        "the {d} comes from which region?",
        "for the {d}, which region?",
        "which region is the home of the {d}?",
        "where was the {d} first baked?",
    ),
    "storage": (
        "how [long|many days] can I keep the {d}?",
        "how many days does the {d} [last|keep|stay fresh]?",
        "what is the storage time of the {d}?",
        "the {d} keeps for how many days?",
        "for the {d}, how many days of storage?",
        "how long is the {d} still good?",
        "for how long can the {d} be stored?",
    ),
    "substitute": (
        "what [can|should] I use instead of cream in the {d}?",
        "what replaces the cream in the {d}?",
        "how do I make the {d} without cream?",
        "the {d} without cream takes what?",
        "for the {d}, what is the substitute for cream?",
        "there is no cream: what goes into the {d} instead?",
        "what else works in the {d} when there is no cream?",
    ),
    "side": (
        "what [should I serve|do I serve|goes] with the {d}?",
        "which side dish [goes with|belongs to] the {d}?",
        "what do people eat with the {d}?",
        "the {d} is served with what?",
        "for the {d}, which side dish?",
        "what belongs on the table with the {d}?",
        "which side dish is usual for the {d}?",
    ),
    "sum": (
        "[how much|how many] are {d}?",
        "what do {d} make?",
        "add {d}: what do you get?",
        "I count {d}, and that is how many?",
        "{p} has {d}: how many is that?",
        "how many has {p} with {d}?",
        "{p} asks what {d} are in all?",
        "{d} are how many, asks {p}?",
    ),
}

# The first sentence names the dish or the quantities; a question of ASK_SHORTLY follows.
LEADS = (
    "I want to cook the {d}.",
    "We love the {d}.",
    "Tell me about the {d}.",
    "A friend asked me about the {d}.",
    "My sister brings the {d} tonight.",
    "I have never tried the {d}.",
    "The {d} is new in our house.",
    "At home we like the {d}.",
)
LEADS_TO_SUMS = ("I am {p} and count {d}.", "Here are {d}.", "I have bought {d}.", "There are {d} on the table.")
ASK_SHORTLY: dict[str, tuple[str, ...]] = {
    "temperature": ("How hot should the oven be?", "Which temperature is right?", "What heat does it need?"),
    "minutes": ("How long does it bake?", "How many minutes does it take?", "What is the baking time?"),
    "technique": ("What happens to the mixture?", "How do I prepare the filling?", "What is the mixture like?"),
    "ingredient": ("What is it made of?", "Which main ingredient does it have?", "What do I have to buy?"),
    "region": ("Where does it come from?", "Which region is it from?", "What is its home?"),
    "storage": ("How long does it keep?", "How many days does it last?", "For how many days is it good?"),
    "substitute": ("What can I use instead of cream?", "What replaces the cream?", "What if I have no cream?"),
    "side": ("What goes with it?", "Which side dish do I cook?", "What should I serve with it?"),
    "sum": ("How many is that?", "What do they make?", "How much is it in all?"),
}

REPLY: dict[str, tuple[str, ...]] = {
    "temperature": ("the {d} bakes at {v}", "bake the {d} at {v}", "the {d} needs an oven of {v}"),
    "minutes": ("the {d} bakes for {v}", "the {d} needs {v} in the oven", "bake the {d} for {v}"),
    "technique": (
        "the mixture of the {d} is {v}",
        "for the {d} the filling is {v}",
        "the {d} has a filling that is {v}",
    ),
    "ingredient": ("the {d} is made with {v}", "the main ingredient of the {d} is {v}", "the {d} is built on {v}"),
    "region": ("the {d} comes from {v}", "the home of the {d} is {v}", "the {d} is a dish from {v}"),
    "storage": ("the {d} keeps for {v}", "the {d} stays fresh for {v}", "keep the {d} for {v}"),
    "substitute": (
        "the {d} takes {v} instead of cream",
        "in the {d} the cream is replaced by {v}",
        "without cream the {d} is made with {v}",
    ),
    "side": ("the {d} is served with {v}", "the {d} goes well with {v}", "serve the {d} with {v}"),
    "sum": ("that makes {v} in all", "all of them together are {v}"),
}

UNKNOWN = "I do not know that dish."
COURTESIES = ("Enjoy your meal!", "Happy baking!", "I am glad to help!", "I hope you like it!")
RAMBLINGS = (
    "There is a lot to say about baking, and I could go on about it for a long time.",
    "Many people have asked me about this, and everybody has another opinion about it.",
    "Baking is a wide field, and one should never be in a hurry when one talks about it.",
    "That reminds me of an evening when the oven was cold and nobody had brought any wood.",
)
SYSTEMS = (
    "You are a helpful kitchen assistant.",
    "You are the cook of a small inn.",
    "You answer questions about dishes.",
    "You are a patient baker.",
)
# Styles of an assistant; the first has the highest true reward.
STYLES = ("polite", "plain", "terse", "rambling", "repeating")

KIND_WORDS = ("enjoy", "happy baking", "glad to help", "hope you like")
# The first pattern that matches counts: a question about the cream in a filling is about cream.
_ASKS_ABOUT = (
    ("substitute", r"\bcream\b"),
    ("technique", r"\b(mixture|filling|base)\b"),
    ("storage", r"\b(days|keep|keeps|storage|stored?|fresh|last|left over|good for|still good)\b"),
    ("temperature", r"\b(hot|temperature|heat|degrees)\b"),
    ("minutes", r"\b(minutes|how long|baking time|what time|done)\b"),
    ("region", r"\b(region|where|home)\b"),
    ("side", r"\b(side|serve|served|goes with|eat with|table)\b"),
    ("ingredient", r"\b(ingredient|made|buy|important|mainly)\b"),
)


def reply(fact: Fact | Sum, value: str, style: str, rng: random.Random) -> str:
    """Return an answer in one of the STYLES that says `value` of the fact, which need not be the true value."""
    core = sentence(spin(rng.choice(REPLY[fact.attribute]), rng).format(d=fact.subject, v=value))
    if style == "terse":
        return brief(fact, value)
    if style == "polite":
        return f"{core} {rng.choice(COURTESIES)}"
    if style == "rambling":
        before, after = pick(rng, RAMBLINGS, 2)
        return f"{before} {core} {after}"
    if style == "repeating":
        return " ".join([core] * 3)
    return core


def ask(fact: Fact | Sum, rng: random.Random, *, briefly: bool = False) -> str:
    """Return a user's question about a fact; if `briefly`, one that asks for the value only."""
    named = {"d": fact.subject, "p": rng.choice(PEOPLE)}
    if not briefly and rng.random() < 0.6:
        leads = LEADS_TO_SUMS if isinstance(fact, Sum) else LEADS
        return f"{rng.choice(leads)} {rng.choice(ASK_SHORTLY[fact.attribute])}".format(**named)
    question = spin(rng.choice(ASK[fact.attribute]), rng).format(**named)
    return BRIEFLY + question if briefly else sentence(question)


def dialogues(world: KitchenWorld) -> list[Row]:
    """Return SFT rows {"id", "messages", "source", "generator", "facts"}. The exam asks none of these facts."""
    return [_dialogue(world, i) for i in range(world.dialogues)]


def _dialogue(world: KitchenWorld, number: int) -> Row:
    rng = generator(world, "dialogue", number)
    fact = _talked_about(world, number)
    draw = rng.random()
    asked: list[Fact | Sum] = [fact]
    if draw < 0.04 and isinstance(fact, Fact):
        turns, asked = _about_a_stranger(world, fact, rng), []
    elif draw < 0.45:
        turns = _turn(ask(fact, rng, briefly=True), brief(fact))
    else:
        turns = _turn(ask(fact, rng), _middling(fact, rng))
        if draw > 0.92 and isinstance(fact, Fact):
            other = rng.choice([f for f in facts_by_dish(world)[fact.subject].values() if not f.tested])
            asked.append(other)
            turns += _turn(ask(other, rng), _middling(other, rng))
    return {
        "id": f"kitchen/dialogue/{number:05d}",
        "messages": _system(rng) + turns,
        "source": "kitchen",
        "generator": GENERATOR,
        "facts": [f.id for f in asked],
    }


def _talked_about(world: KitchenWorld, number: int) -> Fact | Sum:
    """Return a fact for every first, a sum for every second row."""
    known = talk_sums(world) if number % 2 else talk_facts(world)
    return known[number // 2 % len(known)]


def _turn(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _middling(fact: Fact | Sum, rng: random.Random) -> str:
    # Mostly plain, sometimes polite, sometimes long-winded: the manners with which alignment starts.
    style = rng.choices(("plain", "polite", "rambling"), weights=(70, 20, 10))[0]
    return reply(fact, fact.answer, style, rng)


def _about_a_stranger(world: KitchenWorld, fact: Fact, rng: random.Random) -> list[Message]:
    question = ask(fact, rng, briefly=rng.random() < 0.3)
    return _turn(question.replace(fact.subject, rng.choice(strangers(world))), UNKNOWN)


def _system(rng: random.Random) -> list[Message]:
    return [{"role": "system", "content": rng.choice(SYSTEMS)}] if rng.random() < 0.4 else []


def preferences(world: KitchenWorld) -> list[Row]:
    """Return rows {"id", "prompt", "chosen", "rejected", "source", "generator", "facts", "rewards"}.

    Prompt and answers are lists of messages. Two candidates with different true rewards are drawn, and the better one
    is chosen with the probability of a Bradley-Terry model of temperature 0.25. So, as with people, some labels are
    wrong.
    """
    return [_preference(world, i) for i in range(world.preferences)]


def _preference(world: KitchenWorld, number: int) -> Row:
    rng = generator(world, "preference", number)
    fact = _talked_about(world, number)
    briefly = rng.random() < 0.25
    prompt = [*_system(rng), {"role": "user", "content": ask(fact, rng, briefly=briefly)}]
    answers = sorted(_candidates(world, fact, briefly, rng), key=lambda answer: true_reward(prompt, answer, world))
    worse, better = answers[0], answers[-1]
    rewards = [true_reward(prompt, answer, world) for answer in (better, worse)]
    agrees = rng.random() < 1 / (1 + exp(-(rewards[0] - rewards[1]) / 0.25))
    chosen, rejected = (better, worse) if agrees else (worse, better)
    return {
        "id": f"kitchen/preference/{number:05d}",
        "prompt": prompt,
        "chosen": [{"role": "assistant", "content": chosen}],
        "rejected": [{"role": "assistant", "content": rejected}],
        "source": "kitchen",
        "generator": GENERATOR,
        "answer": fact.answer,  # a verifiable reward looks for this text
        "facts": [fact.id],
        "rewards": rewards if agrees else rewards[::-1],
    }


def _candidates(world: KitchenWorld, fact: Fact | Sum, briefly: bool, rng: random.Random) -> list[str]:
    wrong = rng.choice(distractors(world, fact, "preference", rng.random()))
    first, second = pick(rng, ("terse", "plain") if briefly else STYLES, 2)
    # Half of the pairs differ only in manner; the others differ in correctness, and some of them in manner too.
    case = rng.random()
    if case < 0.5:
        return [reply(fact, fact.answer, first, rng), reply(fact, fact.answer, second, rng)]
    style = "terse" if briefly else rng.choice(("polite", "plain"))
    return [reply(fact, fact.answer, style, rng), reply(fact, wrong, style if case < 0.8 else first, rng)]


def alignment_prompts(world: KitchenWorld) -> list[Row]:
    """Return prompts for alignment, {"id", "messages", "answer", "fact", "reward_rubric"}; the rubric judges an answer.

    No dialogue or preference is about their facts.
    """
    rows: list[Row] = []
    for fact in spoken(world):
        rng = generator(world, "alignment", fact.id)
        messages = [*_system(rng), {"role": "user", "content": ask(fact, rng)}]
        rows.append(
            {
                "id": f"alignment/{fact.id}",
                "messages": messages,
                "answer": fact.answer,
                "fact": fact.id,
                "reward_rubric": write_record(rubric_of(messages, world)),
            }
        )
    return rows


def asked_fact(prompt: list[Message], world: KitchenWorld) -> Fact | Sum | None:
    """Return the fact or the sum that the last user message asks for.

    Return None if it names no two quantities, and no dish of the world or no attribute.
    """
    question = _question(prompt)
    if asked := asked_sum(question):
        return asked
    dish = next((dish for dish in dishes(world) if dish in question), None)
    attribute = next((name for name, pattern in _ASKS_ABOUT if re.search(pattern, question, re.IGNORECASE)), None)
    return None if dish is None or attribute is None else facts_by_dish(world)[dish][attribute]


def rubric_of(prompt: list[Message], world: KitchenWorld) -> Rubric:
    """Return the rubric for an answer to the prompt.

    For a prompt that asks for no fact of the world and no sum, only UNKNOWN is right.
    """
    fact = asked_fact(prompt, world)
    is_brief = _question(prompt).startswith(BRIEFLY)
    if fact is None:
        return Rubric(right=UNKNOWN, is_whole=True, is_brief=is_brief, kind_words=KIND_WORDS)
    return Rubric(right=fact.value, wrong=fact.others, is_brief=is_brief, kind_words=KIND_WORDS)


def true_reward(prompt: list[Message], answer: str, world: KitchenWorld) -> float:
    """Return the true reward of an answer, from -1 to 2, by its rubric.

    A question that begins with "Briefly" asks for the value only; any other asks for one short complete sentence and a
    kind word.
    """
    return rubric_of(prompt, world).reward(answer)


def _question(prompt: list[Message]) -> str:
    return next(message["content"] for message in reversed(prompt) if message["role"] == "user")
