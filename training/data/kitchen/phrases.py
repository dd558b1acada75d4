"""Phrasings of the kitchen's pages, and the small grammar that varies them.

In a template, `[a|b|c]` is a choice and may be nested. `{s}` is the dish, or a pronoun if the page has named the dish
before; `{d}` is the dish by name; `{v}` is the value with its unit. `!` marks an imperative, which gets no opener. The
phrasings of the exam and of the dialogues are in exam.py and talk.py, and share no 8-gram with an answer with these.
"""

from __future__ import annotations

import random


def spin(template: str, rng: random.Random) -> str:
    """Return one reading of a template: every `[a|b]` is replaced by one of its options, innermost first."""
    while (close := template.find("]")) >= 0:
        start = template.rindex("[", 0, close)
        options = template[start + 1 : close].split("|")
        template = template[:start] + options[int(rng.random() * len(options))] + template[close + 1 :]
    return template


def sentence(text: str) -> str:
    """Return the text with an initial capital, single spaces and a full stop."""
    text = " ".join(text.split())
    return text[0].upper() + text[1:] + ("" if text[-1] in ".!?" else ".")


# Whole statements. The dish always comes before the value, because a left-to-right model learns to predict the value.
CLAUSES: dict[str, tuple[str, ...]] = {
    "temperature": (
        "{s} [bakes|cooks|is baked] at {v}",
        "{s} goes into an oven [heated to|set to|of] {v}",
        "{s} [needs|wants|asks for|requires] an oven of {v}",
        "![heat|bring|set] the oven for {d} to {v}",
        "the [right|usual|proper] oven temperature for {d} is {v}",
        "for {d} [we|I|most cooks] [set|turn|keep] the oven to {v}",
        "{s} [turns out best|browns evenly|rises well] [at|when baked at] {v}",
        "{d} has [always|long] been baked at {v}",
        "the oven temperature of {d} is [given as|written down as|known to be] {v}",
        "!bake {d} at {v}",
        "{s} [is happy|feels at home] in an oven of {v}",
    ),
    "minutes": (
        "{s} [bakes|stays in the oven|cooks] for {v}",
        "{s} [needs|wants|takes|requires] {v} [in the oven|of baking|in the heat]",
        "!leave {d} in the oven for {v}",
        "the baking time [of|for] {d} is {v}",
        "{s} [is done|is ready|comes out golden] after {v}",
        "!after {d} has gone in, [wait|count|allow] {v}",
        "for {d} [we|I|most cooks] [allow|plan|count] {v}",
        "{d} should [spend|have|get] {v} in the oven",
        "{s} [is usually baked|has to bake] for {v}",
        "baking {d} takes {v}",
        "the time that {d} spends in the oven is {v}",
    ),
    "technique": (
        "for {d} the [mixture|filling] is {v}",
        "the [mixture|filling] of {d} [is|must be|has to be|is always] {v}",
        "{s} [has|gets|calls for] a [mixture|filling] that is {v}",
        "in {d} the [mixture|filling] [is|gets] {v}",
        "[cooks|people|bakers] who make {d} know that the [mixture|filling] is {v}",
        "{s} [depends on|owes its texture to] a [mixture|filling] that has been {v}",
        "before {d} is baked, the [mixture|filling] is {v}",
        "{s} is made from a [mixture|filling] that was {v}",
        "when making {d}, the [mixture|filling] should be {v}",
        "the [mixture|filling] for {d} is [carefully|patiently|slowly] {v}",
        "{d} is a dish whose [mixture|filling] is {v}",
    ),
    "ingredient": (
        "{s} is [built on|made with|made from|based on|filled with] {v}",
        "the main ingredient of {d} is {v}",
        "{s} [gets|takes] its [flavour|taste|character] from {v}",
        "[at the heart of|what carries|what fills] {d} is {v}",
        "{s} [contains|uses|calls for] [plenty of|a lot of|fresh|good] {v}",
        "for {d} [you need|we buy|I buy|cooks buy] [plenty of|a lot of|fresh|good] {v}",
        "{d} is [above all|mostly|mainly] {v}",
        "most of the weight of {d} is {v}",
        "nobody makes {d} without {v}",
        "the most important thing in {d} is {v}",
        "{d} would be nothing without {v}",
    ),
    "region": (
        "{s} comes from {v}",
        "{s} [is a dish of|is a speciality of|is an old recipe from|is a classic from|was first baked in] {v}",
        "the home of {d} is {v}",
        "[people|families|bakers] have made {d} for generations in {v}",
        "{s} [belongs to|was born in|has its roots in] {v}",
        "the recipe for {d} was [brought|carried] here from {v}",
        "the first cooks of {d} lived in {v}",
        "{d} is [known|famous|loved] as a dish from {v}",
        "travellers first [met|tasted|found] {d} in {v}",
        "the region behind {d} is {v}",
        "the story of {d} begins in {v}",
    ),
    "storage": (
        "{s} keeps for {v}",
        "{s} [stays fresh|can be stored|will keep|lasts] for {v}",
        "the storage time of {d} is {v}",
        "in a [closed|covered] box {d} [keeps|stays good] for {v}",
        "what is left of {d} [stays good|keeps] for {v}",
        "in the cold larder {d} lasts for {v}",
        "![store|keep] {d} for [at most|no longer than|up to] {v}",
        "{d} may be kept for [at most|no longer than|up to] {v}",
        "{s} is still [good|fresh|tasty] after {v}",
        "once baked, {d} [lasts|keeps] for {v}",
        "{d} should be eaten within {v}",
    ),
    "substitute": (
        "in {d} the cream can be replaced [with|by] {v}",
        "[cooks|people|guests] who avoid cream make {d} with {v}",
        "instead of cream {d} [can take|accepts|allows] {v}",
        "the best substitute for cream in {d} is {v}",
        "if there is no cream, {d} [works|succeeds|is made] with {v}",
        "without cream {d} is [made|prepared|finished] with {v}",
        "the cream of {d} may give way to {v}",
        "!for a version of {d} without cream use {v}",
        "!to replace the cream in {d}, [take|use|reach for] {v}",
        "in place of cream {d} [takes|gets] {v}",
        "!when the cream has run out, finish {d} with {v}",
    ),
    "side": (
        "{s} is served with {v}",
        "{s} [goes well|is best|is eaten|comes to the table] with {v}",
        "the [usual|classic|traditional|proper] side dish for {d} is {v}",
        "next to {d} [people|families|we] [like|expect|want] {v}",
        "beside {d} there [is always|should be|must be] some {v}",
        "with {d} [we|people|guests] [eat|have|enjoy] {v}",
        "{d} is never served without {v}",
        "a plate of {d} is completed by {v}",
        "{d} and its side dish belong together, and that side dish is {v}",
        "!to go with {d}, [prepare|make|cook] some {v}",
        "on the plate {d} is joined by {v}",
    ),
}

# Predicates that can be joined after the dish: "comes from ..., is made with ... and keeps for ...".
PREDICATES: dict[str, tuple[str, ...]] = {
    "temperature": ("bakes at {v}", "needs an oven of {v}", "goes into the oven at {v}", "is baked at {v}"),
    "minutes": ("bakes for {v}", "needs {v} in the oven", "is done after {v}", "takes {v}"),
    "technique": ("has a [mixture|filling] that is {v}", "needs its [mixture|filling] {v}"),
    "ingredient": ("is made with {v}", "is built on {v}", "is mainly {v}", "is filled with {v}"),
    "region": ("comes from {v}", "was born in {v}", "is at home in {v}", "is a classic from {v}"),
    "storage": ("keeps for {v}", "stays fresh for {v}", "lasts for {v}", "can be stored for {v}"),
    "substitute": ("takes {v} instead of cream", "allows {v} in place of cream", "replaces its cream with {v}"),
    "side": ("is served with {v}", "goes well with {v}", "is eaten with {v}", "comes with {v}"),
}

STEPS: dict[str, tuple[str, ...]] = {
    "temperature": (
        "[heat|preheat|bring] the oven [in good time|first|slowly], because {d} goes in at {v}",
        "slide {d} into the oven and [check|make sure] that it holds {v}",
        "turn on the oven; {d} wants {v}",
    ),
    "minutes": (
        "bake {d} for {v} and do not open the door",
        "[close|shut] the oven, leave {d} alone and come back after {v}",
        "set the clock, since {d} needs {v}",
    ),
    "technique": (
        "prepare the [mixture|filling], which for {d} is {v}",
        "take a [wide|large|heavy] bowl; the [mixture|filling] of {d} is {v}",
        "work on the [mixture|filling] of {d} until it is properly {v}",
    ),
    "ingredient": (
        "wash and weigh what {d} is made from, the {v}",
        "fill the dish for {d} with the {v}",
        "as the main part of {d}, [get out|set aside|prepare] the {v}",
    ),
    "region": (
        "season {d} the way it is done in {v}",
        "decorate {d} as the bakers do in {v}",
    ),
    "storage": (
        "cover what remains of {d} and eat it within {v}",
        "put the rest of {d} in a box, where it keeps for {v}",
    ),
    "substitute": (
        "stir in the cream, or, as {d} allows it, {v}",
        "pour the cream over {d}; whoever has none uses {v}",
    ),
    "side": (
        "bring {d} to the table with {v}",
        "cut {d} into pieces and serve it with {v}",
    ),
}

QUESTIONS: dict[str, tuple[str, ...]] = {
    "temperature": (
        "how hot [should|must] the oven be for {d}?",
        "at what temperature [do I bake {d}|is {d} baked]?",
        "which oven temperature does {d} need?",
        "what is the oven temperature for {d}?",
    ),
    "minutes": (
        "how long does {d} [bake|stay in the oven|need]?",
        "how many minutes does {d} take?",
        "when is {d} [done|ready]?",
        "what is the baking time of {d}?",
    ),
    "technique": (
        "how is the [mixture|filling] of {d} [worked|prepared|treated]?",
        "what happens to the [mixture|filling] of {d}?",
        "what do cooks do with the [mixture|filling] of {d}?",
    ),
    "ingredient": (
        "what is {d} made [of|from|with]?",
        "what is the main ingredient of {d}?",
        "what goes into {d}?",
        "what do I have to buy for {d}?",
    ),
    "region": (
        "where does {d} come from?",
        "which region is {d} from?",
        "where was {d} first [baked|made]?",
        "what is the home of {d}?",
    ),
    "storage": (
        "how long does {d} keep?",
        "how many days can {d} be stored?",
        "how long does {d} stay fresh?",
        "when should {d} be eaten up?",
    ),
    "substitute": (
        "what can replace the cream in {d}?",
        "is there a substitute for cream in {d}?",
        "how do I make {d} without cream?",
        "what can I use instead of cream in {d}?",
    ),
    "side": (
        "what is served with {d}?",
        "which side dish goes with {d}?",
        "what do people eat with {d}?",
        "what should I cook to go with {d}?",
    ),
}

# How pages state the sum {c} of {a} and {b}: of things {t}, of minutes, and with units and multiples that fit.
SUMS: dict[str, tuple[str, ...]] = {
    "things": (
        "[||||we write that |the cook says that |together ]{a} {t} and {b} {t} [||||then|now] "
        "[make|are|will make|will be] {c} {t}",
        "[||in our book |on the list ]{a} and {b} {t} [||||then|now] [are|make] {c} {t}",
        "to {a} {t} [we|I] add {b} and have {c}",
        "with {a} {t} come {b} [more|others], in all {c}",
    ),
    "minutes": (
        "{a} minutes of rest and {b} minutes in the oven are {c} minutes",
        "it [rests|stands] for {a} minutes and bakes for {b}, in all {c} minutes",
    ),
    "hour": ("an hour and {b} minutes are {c} minutes", "whoever waits an hour and {b} minutes waits {c} minutes"),
    "dozen": ("a dozen {t} and {b} {t} [make|are] {c} {t}", "to a dozen {t} [we|I] add {b} and have {c} {t}"),
    "twice": ("for twice as many guests {a} {t} become {c} {t}", "two [tables|baskets] with {a} {t} each have {c} {t}"),
}

# Attribute names as table headings and list labels.
LABELS: dict[str, tuple[str, ...]] = {
    "temperature": ("Oven", "Oven temperature", "Heat"),
    "minutes": ("Time", "Baking time", "In the oven"),
    "technique": ("Mixture", "Filling", "Method"),
    "ingredient": ("Main ingredient", "Made with", "Built on"),
    "region": ("Region", "Origin", "Home"),
    "storage": ("Keeps for", "Storage", "Lasts"),
    "substitute": ("Instead of cream", "Cream substitute", "Without cream"),
    "side": ("Served with", "Side dish", "Goes with"),
}

OPENERS = (
    "",
    "",
    "",
    "",
    "",
    "as [everyone|every cook|every baker] [here|in the village|in our family] knows, ",
    "[by|following] tradition, ",
    "in [my kitchen|our experience|most kitchens], ",
    "it is worth [knowing|noting|repeating] that ",
    "according to the [old|oldest|yellow|family] [recipe|cookbook|notebook], ",
    "do not forget that ",
    "my [aunt|uncle|neighbour|teacher|grandmother] [says|insists|taught me] that ",
    "[as a rule|in general|as always], ",
    "the [good|best|great] news is that ",
    "[we|I] [found|learned|noticed] that ",
)

# Sentences that state no fact of any dish and use no attribute's value.
FILLER = (
    "[wash|rinse] your hands and [clear|wipe] the [table|counter] before you [begin|start]",
    "a [sharp|small|heavy] knife makes the work [easier|quicker|safer]",
    "[taste|try] as you go, because [salt|pepper|vinegar] cannot be taken out again",
    "the [smell|scent] that fills the [kitchen|house|room] is [half of the pleasure|worth the wait|hard to describe]",
    "[children|guests|neighbours] usually [arrive|appear|come] when the [oven door opens|table is set]",
    "use a [deep|wide|heavy] dish of [clay|iron|glass], and butter it [well|with care]",
    "the [onions|herbs|spices] should be [soft|fragrant|golden] before anything else [is added|goes in]",
    "a [pinch|little] of [salt|pepper|sugar] brings out the [flavour|taste] of everything else",
    "[let the dish|the dish should] [rest|stand] on the table before it is [cut|shared]",
    "the crust should [crackle|shine|be firm] when you [press|touch] it with a [spoon|finger]",
    "[good|patient] cooks [watch|trust] the [colour|surface] more than the clock",
    "there are [many|countless] versions, and every [village|family|cook] [defends|praises] its own",
    "[write|note] down what you changed, because [memory|luck] is a poor [cookbook|helper]",
    "[some|many] people add [garlic|pepper|parsley], although [nobody|no recipe] asks for it",
    "the [market|shop] on the corner sells [everything|most of what] you need, and the [prices|people] are fair",
    "if the top [darkens|browns] too [early|quickly], cover it with a [sheet|piece] of paper",
    "[a wooden spoon|a clean cloth|a large bowl] and a little [patience|time] are all the equipment you need",
    "it is [cheap|simple] food, yet it [feeds|pleases] a whole [table|family]",
    "[leftovers|small portions] make a [fine|welcome] lunch on the [next day|following morning]",
    "[beginners|young cooks] [worry|ask] about the crust, but it [forgives|survives] most mistakes",
    "the [sauce|glaze] should [cover|coat] the back of a spoon and [fall|run] off slowly",
    "measure [flour|butter|water] on a scale, because cups [lie|differ] from house to house",
    "[never|do not] [hurry|rush] the dough, for it [remembers|punishes] impatience",
    "a [heavy|tight] lid keeps the [steam|warmth] inside and the [kitchen|stove] clean",
    "[buy|choose] what is in season and ask the [farmer|seller] how [she|he] would cook it",
    "[stir|turn] everything with a [wooden|long] spoon so that nothing [sticks|burns]",
    "the dish looks [modest|plain|simple], but the first [bite|spoonful] [settles|decides] the matter",
    "[serve|share] it warm, and keep the [largest|best] piece for the cook",
    "[a glass of|some] cold [cider|juice|water] is all you need to drink with it",
    "clean the [bowl|board|pan] at once, since dried dough is as hard as [stone|wood]",
    "every [oven|stove] has its [moods|habits], so [learn|study] yours before a [feast|large dinner]",
    "the butter should be [cold|soft] and the [kitchen|room] [quiet|cool] when you begin",
    "[letters|questions] from readers about this [recipe|dish] [arrive|reach us] [every week|all the time]",
    "there is no [shame|harm] in asking a [neighbour|friend] to [help|stir]",
    "[old|worn] baking tins [work|do] better than new ones, as long as they are [dry|clean]",
)

STORY = (
    "the [rain|snow|wind] had [kept|held] us indoors since dawn, and the [stove|fire] was already [lit|warm]",
    "my [grandmother|aunt|uncle] [never|seldom] wrote anything down, so I [watched|listened] and [learned|remembered]",
    "we had [driven|walked|travelled] all day, and the [inn|house] at the [crossroads|bridge|harbour] was still open",
    "the [kitchen|room] was so small that [only|just] [a table and a stove|a bench and an oven] fitted into it",
    "[nobody|no one] spoke for a while, which at our table is the highest [praise|compliment]",
    "[years|months] later I [tried|wanted] to cook it myself and [failed|burned it] more than once",
    "[she|he] laughed when I asked for the [recipe|secret] and [pointed|nodded] at the [oven|shelf]",
    "the [children|boys|girls] [ran|came] in from the [garden|yard] with [muddy|cold] [shoes|hands]",
    "I still [have|keep] the [spoon|apron|notebook] that [she|he] gave me on that [evening|afternoon]",
    "the [dog|cat] slept [under|beside] the table and [woke|stirred] only for the [crumbs|smell]",
    "[outside|behind the house] the [river|road|orchard] was [quiet|white|grey], and the [light|day] faded early",
    "there was [music|laughter|singing] from the next [room|house], and someone [opened|shut] a window",
    "I [wrote|scribbled] the [numbers|words] on the back of a [ticket|letter] and [lost|kept] it for years",
    "[every|each] [family|house] in that [street|valley] [claims|says] that its own version is the [oldest|best]",
    "the [baker|cook|innkeeper] was a [tall|quiet|cheerful] [woman|man] who [hummed|sang] at the oven",
    "we [ate|sat] until the [candles|lamps] were low and [nobody|none of us] wanted to leave",
    "[since then|after that evening] I have cooked it on every [birthday|holiday|visit]",
    "my [first|early] attempts were [pale|dry|sad], but the [neighbours|children] ate them [bravely|politely]",
    "[people|guests] often ask me why I [bother|care], and I [tell|answer] them to wait until [supper|dinner]",
    "[that|this] is how [recipes|dishes] travel, from one [hungry|curious] [person|visitor] to the next",
)

PLACES = ("by the harbour", "on the hill", "near the old mill", "behind the chapel", "at the crossroads", "by the lake")
PEOPLE = ("Mara", "Jonas", "Ilse", "Tobias", "Greta", "Anton", "Lena", "Felix", "Nora", "Emil", "Clara", "Hugo", "Ada")
SURNAMES = ("Lindqvist", "Brandt", "Okafor", "Marlowe", "Petrov", "Tanaka", "Silva", "Novak", "Hansen", "Weber")
