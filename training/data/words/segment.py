"""Words as datatrove counts them: spaCy's rules for a language, read from spaCy once and applied here.

spaCy's tokenizer of nearly every language is data: patterns for what to cut off at the start and the end of a chunk (a
run without white space) and inside it, and a table of exceptions. Reading that data through spaCy costs four seconds of
imports a process, so it is kept as JSON beside the compiled modules (or in the user's cache folder, or, where neither
can be written, nowhere) under a digest of all that decides it. Applying it is the algorithm that spaCy documents
(https://spacy.io/usage/linguistic-features#how-tokenizer-works); a test compares the words with spaCy's own. One is
left out: on `IS_ALPHA`, the name of a symbol of its own, spaCy 3.8 gives the word or fails, by what it read before, and
datatrove then reads the text without it; here it is a word like any other.

A chunk's words depend on that chunk alone but for two things: an exception that holds a blank (`Rules.spaced`), and an
exception that is looked for among the words, when a longer one that runs into the next chunk stands in its way (`Cut`).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from training.artifact import write_json
from training.records import RecipeError

_SEARCHES = ("prefix_search", "suffix_search", "infix_finditer", "token_match", "url_match")
_CHUNK = re.compile(r"\S+|\s+")
_OTHER = re.compile("[^A-Za-z]")
_LONGEST_SUFFIX = 32  # characters
_SOURCE = Path(__file__)


class Tail(NamedTuple):
    """Where a pattern that looks at the end of a text can match: no text that ends in one of `never`, and within
    `reach` characters of the end unless it ends in one of `runs`.
    """

    never: frozenset[str]
    reach: int
    runs: frozenset[str]


ANYWHERE = Tail(frozenset(), sys.maxsize, frozenset())


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """How one language's text is cut into words.

    `exceptions`: chunk → its words. `sequences`: first word → the exceptions (as the words they are cut into without
    being exceptions) that are also looked for inside other chunks. `spaced` finds exceptions that hold a space, None
    when there is none. `sentence_ends`: the words that end a sentence.
    """

    prefix: re.Pattern[str] | None
    suffix: re.Pattern[str] | None
    infix: re.Pattern[str] | None
    whole: re.Pattern[str] | None
    url: re.Pattern[str] | None
    exceptions: Mapping[str, tuple[str, ...]]
    sequences: Mapping[str, tuple[tuple[str, ...], ...]]
    spaced: re.Pattern[str] | None
    sentence_ends: frozenset[str]
    leaves_letters: bool = field(init=False)  # no pattern can match inside a run of letters
    begins_at_others: bool = field(init=False)  # nor can suffix and infix match before the first that is no letter
    tail: Tail = field(init=False)  # where a suffix can be
    joints: frozenset[tuple[str, str]] = field(init=False)  # words that follow each other in a sequence
    singles: frozenset[str] = field(init=False)  # sequences of one word
    openers: frozenset[str] = field(init=False)  # the first of such two
    closers: frozenset[str] = field(init=False)  # the second
    special: frozenset[str] = field(init=False)  # exceptions, sentence ends, and words that sequences begin or end with

    def __post_init__(self) -> None:
        every = [sequence for sequences in self.sequences.values() for sequence in sequences]
        joints = frozenset(pair for sequence in every for pair in pairwise(sequence))
        patterns = (self.prefix, self.suffix, self.infix)
        object.__setattr__(
            self, "leaves_letters", not any(pattern and may_match_letters(pattern) for pattern in patterns)
        )
        inside = (self.suffix, self.infix)
        object.__setattr__(self, "begins_at_others", all(map(begins_at_other, filter(None, inside))))
        object.__setattr__(self, "tail", tail_of(self.suffix) if self.suffix else ANYWHERE)
        object.__setattr__(self, "joints", joints)
        object.__setattr__(self, "singles", frozenset(one[0] for one in every if len(one) == 1))
        object.__setattr__(self, "openers", frozenset(first for first, _ in joints))
        object.__setattr__(self, "closers", frozenset(second for _, second in joints))
        sets = (self.exceptions, self.singles, self.openers, self.closers, self.sentence_ends)
        object.__setattr__(self, "special", frozenset(chain.from_iterable(sets)))


# Applying the rules


class Cut(NamedTuple):
    """A chunk's words. A neighbour may change them when there is a sequence in the chunk and one runs to the neighbour:
    `first` and `last` are its first word if one of `Rules.closers`, and its last if one of `Rules.openers`, else "".
    """

    words: Sequence[str]
    has_sequence: bool
    first: str
    last: str


def cut(chunk: str, rules: Rules) -> Cut:
    """The words of a chunk that stands alone. A chunk is never empty and holds no white space."""
    if rules.leaves_letters and chunk.isalpha() and chunk not in rules.special:
        return Cut([chunk], False, "", "")
    words = _affixes(chunk, rules, with_exceptions=True)
    first = words[0] if words[0] in rules.closers else ""
    last = words[-1] if words[-1] in rules.openers else ""
    if rules.singles.isdisjoint(words) and rules.joints.isdisjoint(pairwise(words)):
        return Cut(words, False, first, last)
    if not (spans := _sequences(words, rules)):
        return Cut(words, False, first, last)
    places = [0]
    for word in words:
        places.append(places[-1] + len(word))
    return Cut(_replaced(words, spans, lambda a, b: chunk[places[a] : places[b]], rules), True, first, last)


def words_of(text: str, rules: Rules) -> list[str]:
    """All words of a text, and runs of white space but for a single blank, in order: the whole of spaCy's algorithm.

    `cut` gives the same words chunk by chunk for all but the texts that need this.
    """
    words: list[str] = []
    places: list[tuple[int, int]] = []
    for start, chunk in _chunks(text):
        pieces = [chunk] if chunk.isspace() else _affixes(chunk, rules, with_exceptions=True)
        for piece in pieces:
            words.append(piece)
            places.append((start, start + len(piece)))
            start += len(piece)
    return _replaced(words, _sequences(words, rules), lambda a, b: text[places[a][0] : places[b - 1][1]], rules)


def _chunks(text: str) -> Iterator[tuple[int, str]]:
    """(offset, chunk) of runs with and without white space; a blank directly after a chunk belongs to neither."""
    for match in _CHUNK.finditer(text):
        start, chunk = match.start(), match[0]
        if start and chunk[0] == " ":
            start, chunk = start + 1, chunk[1:]
        if chunk:
            yield start, chunk


def _affixes(chunk: str, rules: Rules, *, with_exceptions: bool) -> list[str]:
    """What is cut off at both ends, what remains, cut at its infixes."""
    exceptions = rules.exceptions if with_exceptions else {}
    if chunk in exceptions:
        return list(exceptions[chunk])
    before: list[str] = []
    after: list[str] = []
    middle, size = chunk, -1
    while middle and len(middle) != size:
        if middle in exceptions:
            break
        if rules.leaves_letters and middle.isalpha():
            return [*before, middle, *reversed(after)]
        if rules.whole and rules.whole.match(middle):
            break
        size = len(middle)
        prefix = _length(rules.prefix, middle, 0)
        if prefix and middle[prefix:] in exceptions:
            before.append(middle[:prefix])
            middle = middle[prefix:]
            break
        suffix = _suffix(rules, middle[prefix:])
        if suffix and middle[:-suffix] in exceptions:
            after.append(middle[-suffix:])
            middle = middle[:-suffix]
            break
        if prefix:
            before.append(middle[:prefix])
        if suffix:
            after.append(middle[size - suffix :])
        middle = middle[prefix : size - suffix]
    return [*before, *_middle(middle, rules, exceptions), *reversed(after)]


def _length(pattern: re.Pattern[str] | None, text: str, start: int) -> int:
    match = pattern.search(text, start) if pattern else None
    return match.end() - match.start() if match else 0


def _suffix(rules: Rules, text: str) -> int:
    """The length of what is cut off at the end."""
    last = text[-1:]
    if last in rules.tail.never:
        return 0
    start = _first_other(text) if rules.begins_at_others else 0
    if last not in rules.tail.runs:
        start = max(start, len(text) - rules.tail.reach)
    return _length(rules.suffix, text, start)


def _first_other(text: str) -> int:
    """Where the first character is that is no letter, of text in ASCII; 0 of any other text."""
    found = _OTHER.search(text) if text.isascii() else None
    return found.start() if found else 0


def _middle(text: str, rules: Rules, exceptions: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    if not text:
        return
    if text in exceptions:
        yield from exceptions[text]
        return
    if (rules.leaves_letters and text.isalpha()) or rules.infix is None:
        yield text
        return
    if (rules.whole and rules.whole.match(text)) or (rules.url and rules.url.match(text)):
        yield text
        return
    start = 0
    for match in rules.infix.finditer(text, _first_other(text) if rules.begins_at_others else 0):
        if match.start() == 0:
            continue  # an infix is never the first thing
        if match.start() != start:
            yield text[start : match.start()]
        if match[0]:
            yield match[0]
        start = match.end()
    if text[start:]:
        yield text[start:]


def _sequences(words: Sequence[str], rules: Rules) -> list[tuple[int, int]]:
    """Spans of `words` that are cut-up exceptions; of overlapping ones the longest, then the first.

    As in spaCy a span that itself had to give way still stands in the way of shorter ones.
    """
    found = [
        (start, start + len(sequence))
        for start, word in enumerate(words)
        for sequence in rules.sequences.get(word, ())
        if tuple(words[start : start + len(sequence)]) == sequence
    ]
    taken: set[int] = set()
    chosen = []
    for start, end in sorted(set(found), key=lambda span: (span[0] - span[1], span[0])):
        if start not in taken and end - 1 not in taken:
            chosen.append((start, end))
        taken.update(range(start, end))
    return sorted(chosen)


def _replaced(words: Sequence[str], spans: Sequence[tuple[int, int]], spelling: Any, rules: Rules) -> list[str]:
    """`words` with each span that is spelled like an exception replaced by the exception's words."""
    result: list[str] = []
    end = 0
    for start, stop in spans:
        result += words[end:start]
        result += rules.exceptions.get(spelling(start, stop), words[start:stop])
        end = stop
    result += words[end:]
    return result


# What patterns cannot match


@cache
def may_match_letters(pattern: re.Pattern[str]) -> bool:
    """False only where every match must read a character that is no letter (`str.isalpha`), so none lies in a word.

    By the parse tree of `re`, which is no public interface: what is not known in it counts as a letter.
    """
    tree = _tree(pattern)
    return tree is None or not _needs_other(tree)


@cache
def begins_at_other(pattern: re.Pattern[str]) -> bool:
    """True only where every match begins with a character that is no letter, or has to see one somewhere before it."""
    tree = _tree(pattern)
    return tree is not None and _begins_at_other(tree)


@cache
def tail_of(pattern: re.Pattern[str]) -> Tail:
    """Where a pattern can match; anywhere unless each of its alternatives ends with `$`."""
    tree = _tree(pattern)
    if tree is None:
        return ANYWHERE
    nodes = [(str(kind), value) for kind, value in tree]
    branches = nodes[0][1][1] if [kind for kind, _ in nodes] == ["BRANCH"] else [tree]
    reach, runs, ends = 1, set(), set()
    for branch in branches:
        *before, last = [(str(kind), value) for kind, value in branch]
        if last[0] != "AT" or str(last[1]) != "AT_END":
            return ANYWHERE
        width = branch.getwidth()[1]
        if width <= _LONGEST_SUFFIX:
            reach = max(reach, width)
        elif (run := _run_of(before)) is not None:
            runs.add(run)
        else:
            return ANYWHERE
        if (found := _last_codes(before)) is None:
            return ANYWHERE
        ends |= found
    return Tail(frozenset(map(chr, set(range(128)) - ends)), reach, frozenset(map(chr, runs)))


def _run_of(nodes: Any) -> int | None:
    """The character of which a pattern matches any number, and nothing else; None for other patterns."""
    codes = set()
    for kind, value in nodes:
        repeated = list(value[2]) if str(kind) == "MAX_REPEAT" else [(kind, value)]
        if any(str(kind) != "LITERAL" for kind, _ in repeated):
            return None
        codes |= {code for _, code in repeated}
    return codes.pop() if len(codes) == 1 else None


def _last_codes(nodes: Any) -> set[int] | None:
    """The ASCII characters that a match can end with; None where that is not known."""
    for kind, value in ((str(kind), value) for kind, value in reversed(list(nodes))):
        if kind == "LITERAL":
            return {value} & set(range(128))
        if kind == "IN":
            return _codes_in(value)
        if kind == "SUBPATTERN":
            return _last_codes(value[3])
        if kind == "BRANCH":
            found = [_last_codes(branch) for branch in value[1]]
            return None if None in found else set().union(*found)
        if kind == "MAX_REPEAT" and value[0] > 0:
            return _last_codes(value[2])
        if kind not in ("AT", "ASSERT", "ASSERT_NOT"):
            return None
    return None  # it can match nothing at all


def _codes_in(members: Any) -> set[int] | None:
    """The ASCII characters of a set of characters."""
    codes: set[int] = set()
    for kind, value in ((str(kind), value) for kind, value in members):
        if kind == "LITERAL":
            codes.add(value)
        elif kind == "RANGE":
            codes |= set(range(value[0], min(value[1], 127) + 1))
        else:
            return None
    return codes & set(range(128))


def _tree(pattern: re.Pattern[str]) -> Any:
    """The parse tree, None where letters are not compared one by one."""
    try:
        from re import _parser as parser
    except ImportError:
        return None
    if pattern.flags & (re.IGNORECASE | re.LOCALE | re.DEBUG):
        return None
    return parser.parse(pattern.pattern, pattern.flags)


def _begins_at_other(nodes: Any) -> bool:
    for kind, value in ((str(kind), value) for kind, value in nodes):
        if kind in ("AT", "ASSERT_NOT"):
            continue
        if kind == "ASSERT" and value[0] < 0:  # what stands before
            if _needs_other(value[1]):
                return True
            continue
        if kind == "BRANCH":
            return all(map(_begins_at_other, value[1]))
        if kind == "SUBPATTERN":
            return not value[1] and _begins_at_other(value[3])
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            return value[0] > 0 and _begins_at_other(value[2])
        return kind in ("LITERAL", "IN") and _node_needs_other(kind, value)
    return False


def _needs_other(nodes: Any) -> bool:
    """Whether a part of a pattern reads a character that is no letter in whatever way it matches."""
    return any(_node_needs_other(str(kind), value) for kind, value in nodes)


def _node_needs_other(kind: str, value: Any) -> bool:
    if kind == "LITERAL":
        return not chr(value).isalpha()
    if kind == "IN":
        return not any(_may_be_letter(str(one), what) for one, what in value)
    if kind == "BRANCH":
        return all(map(_needs_other, value[1]))
    if kind == "SUBPATTERN":
        return not value[1] and _needs_other(value[3])  # without flags of its own
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        return value[0] > 0 and _needs_other(value[2])
    return kind == "ASSERT" and _needs_other(value[1])


def _may_be_letter(kind: str, value: Any) -> bool:
    """Whether a member of a set of characters is a letter or holds one."""
    if kind == "LITERAL":
        return chr(value).isalpha()
    if kind == "RANGE":
        return any(map(str.isalpha, map(chr, range(value[0], value[1] + 1))))
    return (kind, str(value)) not in (("CATEGORY", "CATEGORY_DIGIT"), ("CATEGORY", "CATEGORY_SPACE"))


# Reading the rules


@cache
def load_rules(code: str) -> Rules | None:
    """The rules of a language; None where datatrove splits its words by something else than spaCy's rules.

    RecipeError when datatrove has no word tokenizer for the language, or one whose library is not installed.
    """
    stored = _stored(code)
    return _rules(stored) if stored["has_rules"] else None


def _stored(code: str) -> dict[str, Any]:
    """What `_read_from_spacy` gives, from the first folder that has it; else kept in the first that can be written."""
    name = f"words.{code}.{what_decides(_folder('spacy'), _folder('datatrove'))}.json"
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "pedigree")
    folders = (Path(__file__).parent / "__pycache__", user)
    for folder in folders:
        try:
            return json.loads((folder / name).read_text("utf-8"))
        except (OSError, json.JSONDecodeError):
            continue
    found = _read_from_spacy(code)
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / name, found)
            break
        except OSError:
            continue
    return found


@cache
def what_decides(spacy: Path, datatrove: Path) -> str:
    """A digest of all that decides the rules: this module, and the modules of spaCy's languages and of datatrove's
    tokenizers in these folders, each by size and time. Nothing is imported."""
    sources = [*spacy.glob("*.py"), *(spacy / "lang").rglob("*.py"), *(datatrove / "utils").glob("*tokenizer*.py")]
    files = [f"{path.name} {(found := path.stat()).st_size} {found.st_mtime_ns}" for path in sorted(sources)]
    versions = [importlib.metadata.version(library) for library in ("spacy", "datatrove")]
    return hashlib.sha256("\n".join([*versions, *files]).encode() + _SOURCE.read_bytes()).hexdigest()[:16]


def _folder(library: str) -> Path:
    return Path(str(importlib.metadata.distribution(library).locate_file(library)))


def _read_from_spacy(code: str) -> dict[str, Any]:
    """The rules as JSON: patterns as [text, flags] or null, exceptions as lists of words."""
    from datatrove.utils.word_tokenizers import SpaCyTokenizer

    tokenizer = library_tokenizer(code)
    if type(tokenizer) is not SpaCyTokenizer:
        return {"has_rules": False}
    from spacy.attrs import IS_PUNCT, ORTH
    from spacy.lang.lex_attrs import is_punct
    from spacy.tokenizer import Tokenizer

    pipeline = tokenizer.tokenizer
    rules = pipeline.tokenizer
    searches = {name: getattr(rules, name) for name in _SEARCHES}
    patterns = {name: getattr(search, "__self__", None) for name, search in searches.items()}
    is_data = all(search is None or isinstance(patterns[name], re.Pattern) for name, search in searches.items())
    if type(rules) is not Tokenizer or not is_data or pipeline.vocab.lex_attr_getters[IS_PUNCT] is not is_punct:
        return {"has_rules": False}
    return {
        "has_rules": True,
        **{name: [pattern.pattern, pattern.flags] if pattern else None for name, pattern in patterns.items()},
        "exceptions": {
            chunk: [word.get(ORTH, word.get("ORTH")) for word in words] for chunk, words in rules.rules.items()
        },
        "sentence_ends": sorted(pipeline.get_pipe("sentencizer").punct_chars),
    }


@cache
def library_tokenizer(code: str) -> Any:
    """datatrove's word tokenizer of a language. RecipeError when there is none or its library is not installed."""
    from datatrove.utils.word_tokenizers import load_word_tokenizer

    try:
        tokenizer = load_word_tokenizer(code)
        tokenizer.word_tokenize("a b")
    except (ValueError, ImportError) as error:
        raise RecipeError(
            f"filter.languages: {code!r} cannot be split into words here, which gopher, c4 and fineweb need"
            f" ({' '.join(str(error).split())}); leave the language or those rules out"
        ) from None
    return tokenizer


def _rules(stored: Mapping[str, Any]) -> Rules:
    patterns = {name: re.compile(*stored[name]) if stored[name] else None for name in _SEARCHES}
    exceptions = {chunk: tuple(words) for chunk, words in stored["exceptions"].items()}
    spaced = [re.escape(chunk) for chunk in exceptions if " " in chunk and chunk.strip()]
    rules = Rules(
        prefix=patterns["prefix_search"],
        suffix=patterns["suffix_search"],
        infix=patterns["infix_finditer"],
        whole=patterns["token_match"],
        url=patterns["url_match"],
        exceptions=exceptions,
        sequences={},
        spaced=re.compile("|".join(spaced)) if spaced else None,
        sentence_ends=frozenset(stored["sentence_ends"]),
    )
    return replace(rules, sequences=_cut_exceptions(rules))


def _cut_exceptions(rules: Rules) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The exceptions that spaCy also looks for among the words: those that the patterns cut up or that hold a blank."""
    sequences: dict[str, list[tuple[str, ...]]] = {}
    for chunk in rules.exceptions:
        searched = (rules.prefix, rules.suffix, rules.infix)
        if " " in chunk or any(pattern is not None and pattern.search(chunk) for pattern in searched):
            words = [
                word
                for _, piece in _chunks(chunk)
                for word in ([piece] if piece.isspace() else _affixes(piece, rules, with_exceptions=False))
            ]
            sequences.setdefault(words[0], []).append(tuple(words))
    return {first: tuple(found) for first, found in sequences.items()}
