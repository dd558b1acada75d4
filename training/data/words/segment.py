"""Split text into words: by spaCy's rules for a language, as datatrove does, or else by Unicode's rules.

spaCy's rules are read from spaCy once and applied here. Languages without such rules, those that need a library of
their own, and those written without spaces are split by `training.data.words.unicode_words`. What else is installed
changes nothing, so the words of a language are the same everywhere.

For nearly every language, spaCy's tokenizer is data: patterns for what to cut off at the start and the end of a chunk
(a run without white space) and inside it, and a table of exceptions. Loading this data through spaCy takes each process
four seconds of imports. So it is stored as JSON, under a digest of everything that determines it, beside the compiled
modules, or else in the user's cache folder, or not at all if neither is writable. It is applied by the algorithm that
spaCy documents (https://spacy.io/usage/linguistic-features#how-tokenizer-works); a test compares the words with
spaCy's.

One difference remains. On `IS_ALPHA`, the name of one of spaCy's own symbols, spaCy 3.8 returns the word or fails,
depending on what it read before, and datatrove then reads the text without it. Here it is an ordinary word.

The words of a chunk depend only on the chunk, with two exceptions: exceptions that contain a space (`Rules.spaced`),
and exceptions that spaCy also searches for among the words, where a longer one that reaches into the next chunk takes
precedence (`Cut`).
"""

from __future__ import annotations

import hashlib
import importlib
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

from training.contract.artifact import write_json
from training.data.words import unicode_words
from training.data.words.languages import UNSPACED

_SEARCHES = ("prefix_search", "suffix_search", "infix_finditer", "token_match", "url_match")
_CHUNK = re.compile(r"\S+|\s+")
_OTHER = re.compile("[^A-Za-z]")
_LONGEST_SUFFIX = 32  # characters
_SOURCE = Path(__file__)


class SuffixReach(NamedTuple):
    """Where a pattern that matches at the end of a text can match.

    It matches no text that ends in a character of `never`, and matches within `reach` characters of the end unless the
    text ends in a character of `runs`.
    """

    never: frozenset[str]
    reach: int
    runs: frozenset[str]


ANYWHERE = SuffixReach(frozenset(), sys.maxsize, frozenset())


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """The rules that split one language's text into words.

    `exceptions` maps a chunk to its words. `sequences` maps a first word to the exceptions that are also searched for
    inside other chunks, given as the words into which the patterns would cut them. `spaced` finds exceptions that
    contain a space; None if there are none. `sentence_ends` are the words that end a sentence. With `are_unicodes`
    words are split by Unicode's rules, and there are no patterns and no exceptions.
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
    are_unicodes: bool = False
    leaves_letters: bool = field(init=False)  # no pattern can match inside a run of letters
    begins_at_others: bool = field(init=False)  # suffix and infix cannot match before the first non-letter
    tail: SuffixReach = field(init=False)  # where a suffix can match
    joints: frozenset[tuple[str, str]] = field(init=False)  # pairs of adjacent words in sequences
    singles: frozenset[str] = field(init=False)  # sequences of one word
    openers: frozenset[str] = field(init=False)  # first words of the pairs in `joints`
    closers: frozenset[str] = field(init=False)  # second words of the pairs in `joints`
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
    """The words of a chunk (a run without white space), and whether a neighbouring chunk may change them.

    They may change if the chunk contains a sequence (an exception of several words) and another sequence reaches into
    the neighbour. `first` is the first word if it is one of `Rules.closers`, and `last` is the last word if it is one
    of `Rules.openers`; otherwise they are "".
    """

    words: Sequence[str]
    has_sequence: bool
    first: str
    last: str


def cut(chunk: str, rules: Rules) -> Cut:
    """Split a chunk into words without looking at neighbouring chunks. It must not be empty or contain white space."""
    if rules.are_unicodes:
        return Cut(unicode_words.split(chunk), False, "", "")
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
    """Return all words of a text and its runs of white space, except single spaces: spaCy's complete algorithm.

    `cut` gives the same words chunk by chunk, except for the few texts that need this function.
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
    """Yield (offset, chunk) of runs with and without white space; a space directly after a chunk belongs to neither."""
    for match in _CHUNK.finditer(text):
        start, chunk = match.start(), match[0]
        if start and chunk[0] == " ":
            start, chunk = start + 1, chunk[1:]
        if chunk:
            yield start, chunk


def _affixes(chunk: str, rules: Rules, *, with_exceptions: bool) -> list[str]:
    """Cut prefixes and suffixes off a chunk, and the remainder at its infixes; return the pieces in order."""
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
    """Length of the suffix that the rules cut off the end of a text; 0 if there is none."""
    last = text[-1:]
    if last in rules.tail.never:
        return 0
    start = _first_other(text) if rules.begins_at_others else 0
    if last not in rules.tail.runs:
        start = max(start, len(text) - rules.tail.reach)
    return _length(rules.suffix, text, start)


def _first_other(text: str) -> int:
    """Index of the first non-letter of an ASCII text; 0 for any other text."""
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
            continue  # an infix never comes first
        if match.start() != start:
            yield text[start : match.start()]
        if match[0]:
            yield match[0]
        start = match.end()
    if text[start:]:
        yield text[start:]


def _sequences(words: Sequence[str], rules: Rules) -> list[tuple[int, int]]:
    """Return the spans of `words` that spell exceptions; of overlapping spans the longest, then the first.

    As in spaCy, a span that is rejected still blocks shorter spans.
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
    """Return `words`, with each span that is spelled like an exception replaced by the exception's words."""
    result: list[str] = []
    end = 0
    for start, stop in spans:
        result += words[end:start]
        result += rules.exceptions.get(spelling(start, stop), words[start:stop])
        end = stop
    result += words[end:]
    return result


# What a pattern can match, read from its parse tree


@cache
def may_match_letters(pattern: re.Pattern[str]) -> bool:
    """Whether the pattern might match inside a run of letters.

    False only if every match must read a non-letter (by `str.isalpha`). This uses the parse tree of `re`, which is not
    a public interface; unknown nodes count as letters.
    """
    tree = _tree(pattern)
    return tree is None or not _needs_other(tree)


@cache
def begins_at_other(pattern: re.Pattern[str]) -> bool:
    """Whether every match begins with a non-letter, or requires a non-letter before it. False if uncertain."""
    tree = _tree(pattern)
    return tree is not None and _begins_at_other(tree)


@cache
def tail_of(pattern: re.Pattern[str]) -> SuffixReach:
    """Return at which ends of a text a pattern can match.

    The result is ANYWHERE if the pattern can also match elsewhere, because one of its alternatives does not end
    with `$`.
    """
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
    return SuffixReach(frozenset(map(chr, set(range(128)) - ends)), reach, frozenset(map(chr, runs)))


def _run_of(nodes: Any) -> int | None:
    """Return the one character that the pattern repeats any number of times, or None.

    None also stands for a pattern that matches anything else.
    """
    codes = set()
    for kind, value in nodes:
        repeated = list(value[2]) if str(kind) == "MAX_REPEAT" else [(kind, value)]
        if any(str(kind) != "LITERAL" for kind, _ in repeated):
            return None
        codes |= {code for _, code in repeated}
    return codes.pop() if len(codes) == 1 else None


def _last_codes(nodes: Any) -> set[int] | None:
    """Return the ASCII codes with which a match of the pattern can end; None if unknown."""
    for kind, value in ((str(kind), value) for kind, value in reversed(list(nodes))):
        if kind == "LITERAL":
            return {value} & set(range(128))
        if kind == "IN":
            return _codes_in(value)
        if kind == "SUBPATTERN":
            return _last_codes(value[3])
        if kind == "BRANCH":
            found = [_last_codes(branch) for branch in value[1]]
            known = [codes for codes in found if codes is not None]
            return set[int]().union(*known) if len(known) == len(found) else None
        if kind == "MAX_REPEAT" and value[0] > 0:
            return _last_codes(value[2])
        if kind not in ("AT", "ASSERT", "ASSERT_NOT"):
            return None
    return None  # it can match the empty text


def _codes_in(members: Any) -> set[int] | None:
    """Return the ASCII codes in a pattern's character set; None if unknown."""
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
    """The parse tree of a pattern; None if it is not available or if flags change how letters are compared."""
    try:
        parser = importlib.import_module("re._parser")
    except ImportError:
        return None
    if pattern.flags & (re.IGNORECASE | re.LOCALE | re.DEBUG):
        return None
    return parser.parse(pattern.pattern, pattern.flags)


def _begins_at_other(nodes: Any) -> bool:
    for kind, value in ((str(kind), value) for kind, value in nodes):
        if kind in ("AT", "ASSERT_NOT"):
            continue
        if kind == "ASSERT" and value[0] < 0:  # a lookbehind
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
    """Whether every match of this part of a pattern reads a non-letter."""
    return any(_node_needs_other(str(kind), value) for kind, value in nodes)


def _node_needs_other(kind: str, value: Any) -> bool:
    if kind == "LITERAL":
        return not chr(value).isalpha()
    if kind == "IN":
        return not any(_may_be_letter(str(one), what) for one, what in value)
    if kind == "BRANCH":
        return all(map(_needs_other, value[1]))
    if kind == "SUBPATTERN":
        return not value[1] and _needs_other(value[3])  # only groups without their own flags
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        return value[0] > 0 and _needs_other(value[2])
    return kind == "ASSERT" and _needs_other(value[1])


def _may_be_letter(kind: str, value: Any) -> bool:
    """Whether a member of a character set is a letter or includes one."""
    if kind == "LITERAL":
        return chr(value).isalpha()
    if kind == "RANGE":
        return any(map(str.isalpha, map(chr, range(value[0], value[1] + 1))))
    return (kind, str(value)) not in (("CATEGORY", "CATEGORY_DIGIT"), ("CATEGORY", "CATEGORY_SPACE"))


# Reading the rules


@cache
def load_rules(code: str) -> Rules:
    """Return the rules of a language; Unicode's for an unknown one."""
    return _rules(_stored(code))


def _stored(code: str) -> dict[str, Any]:
    """Return the result of `_read_from_spacy`, read from the first cache folder that has it.

    If none has it, compute it and store it in the first folder that is writable.
    """
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
    """Digest of everything that determines the rules, without importing anything.

    That is this module, the versions of spaCy and datatrove, and name, size and time of the modules with spaCy's
    languages and datatrove's tokenizers in these folders.
    """
    sources = [*spacy.glob("*.py"), *(spacy / "lang").rglob("*.py"), *(datatrove / "utils").glob("*tokenizer*.py")]
    files = [f"{path.name} {(found := path.stat()).st_size} {found.st_mtime_ns}" for path in sorted(sources)]
    versions = [importlib.metadata.version(library) for library in ("spacy", "datatrove")]
    return hashlib.sha256("\n".join([*versions, *files]).encode() + _SOURCE.read_bytes()).hexdigest()[:16]


def _folder(library: str) -> Path:
    return Path(str(importlib.metadata.distribution(library).locate_file(library)))


def _read_from_spacy(code: str) -> dict[str, Any]:
    """Return spaCy's and datatrove's rules for a language as JSON.

    Patterns are [text, flags], or null if the language has none; exceptions are lists of words.
    """
    from spacy.attrs import ORTH
    from spacy.pipeline import Sentencizer

    pipeline = _pipeline(code)
    if pipeline is None:
        return {
            "are_unicodes": True,
            **dict.fromkeys(_SEARCHES),
            "exceptions": {},
            "sentence_ends": sorted(Sentencizer.default_punct_chars),
        }
    rules = pipeline.tokenizer
    patterns = {name: getattr(getattr(rules, name), "__self__", None) for name in _SEARCHES}
    return {
        "are_unicodes": False,
        **{name: [pattern.pattern, pattern.flags] if pattern else None for name, pattern in patterns.items()},
        "exceptions": {
            chunk: [word.get(ORTH, word.get("ORTH")) for word in words] for chunk, words in rules.rules.items()
        },
        "sentence_ends": sorted(pipeline.get_pipe("sentencizer").punct_chars),
    }


def _pipeline(code: str) -> Any:
    """Return the spaCy pipeline with which datatrove splits a language into words.

    None if its tokenizer is not made of patterns and exceptions alone, so that its rules cannot be stored.
    """
    from datatrove.utils.word_tokenizers import SpaCyTokenizer, load_word_tokenizer
    from spacy.attrs import IS_PUNCT
    from spacy.lang.lex_attrs import is_punct
    from spacy.tokenizer import Tokenizer

    if code in UNSPACED:
        return None
    try:
        tokenizer = load_word_tokenizer(code)
        if type(tokenizer) is not SpaCyTokenizer:
            return None
        pipeline = tokenizer.tokenizer
    except (ValueError, ImportError):  # datatrove names no tokenizer, or spaCy's needs another library
        return None
    assert pipeline is not None, "`load_word_tokenizer` gives a tokenizer with its pipeline"
    rules = pipeline.tokenizer
    searches = [getattr(rules, name) for name in _SEARCHES]
    is_data = all(search is None or isinstance(getattr(search, "__self__", None), re.Pattern) for search in searches)
    if type(rules) is not Tokenizer or not is_data or pipeline.vocab.lex_attr_getters[IS_PUNCT] is not is_punct:
        return None
    return pipeline


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
        are_unicodes=stored["are_unicodes"],
    )
    return replace(rules, sequences=_cut_exceptions(rules))


def _cut_exceptions(rules: Rules) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The exceptions of several pieces that spaCy also searches for among the words, grouped by their first word.

    These are the exceptions that the patterns would split, and those that contain a space.
    """
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
