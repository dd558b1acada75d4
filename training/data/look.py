"""Inspect a folder, file or URL of documents for `pedigree init`: their formats, columns and languages.

Every file of a folder is counted, as read or with the reason why it is not; only the first records of a few files are
read.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from training.contract.job import DataError
from training.data.crawl import token_files
from training.data.crawl.crawl import SHARDS, SUFFIXES
from training.data.crawl.folder import (
    ENDINGS,
    FILES,
    UNNAMED,
    UNOPENED,
    ending_of,
    format_of,
    pdf_library,
    walked,
    why_no_text,
)
from training.data.extract.extract import documents_of
from training.data.extract.settings import ExtractRecipe
from training.data.filter.rule import Page
from training.data.sources import UnreadRow, expand, is_http, is_remote, read_rows, size_of
from training.data.tokens.adopted_folder import TOKENIZER_FILES
from training.data.words.language import identify

SAMPLES, SAMPLED_FILES = 50, 10
_HEAD_BYTES = 1024
PACKED_RATIO = 3  # about, of rows of text to their packed file
MIN_CHARACTERS = 200  # of a text whose language counts
MIN_SCORE = 0.65  # of its language, as the filter asks for
MISTAKES = 0.05  # of texts at most are identified wrongly; a language has more with a probability of 97.5 %
NORMAL_QUANTILE = 1.96
TEXT_FIELDS = ("text", "content", "raw_content", "body", "markdown", "document")
URL_FIELDS = ("url", "source_url", "uri", "link")
# Columns by which rows are conversations or pairs, whatever stands beside them; and such as say so without a text.
CONVERSATIONS = ("messages", "conversations", "chosen rejected", "instruction output", "instruction instances")
ANSWERS = ("question answer", "prompt completion", "prompt answer", "prompt response", "instruction response")
GUESSED_ROWS, GUESSED_CHARACTERS = 16, 100  # of a column with another name, on the mean of the first rows
TRAIN = re.compile(r"(^|[^a-z])train", re.IGNORECASE)
ABOUT = re.compile(r"(README|LICEN[CS]E|NOTICE|CITATION|CHANGELOG)\b", re.IGNORECASE)  # beside rows or archives
_ROWS = ("parquet", "jsonl")
TALKS = "conversations"  # files of rows with questions and answers, which are no documents
NO_TEXT = ("", "")  # columns of such rows
MARKUP = ("code", "notebook", "markdown", "rst")
PARTS_OF_PAGES = ("", ".css", ".js", ".php", ".asp", ".aspx", ".jsp", ".cgi", ".shtml")  # endings, in a mirror
NO_PDF_LIBRARY = "needs pypdf: pip install 'pedigree[pdf]'"


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnData:
    """Documents of one source at a place: their columns, size, number by ending, and the paths of each snapshot.

    There is one snapshot, or one for each folder if files in several folders have equal names.
    """

    source: str
    snapshots: tuple[tuple[str, ...], ...]
    files: int
    bytes: int
    endings: Mapping[str, int] = field(default_factory=dict)
    text_field: str = "text"
    url_field: str = "url"
    tokenizer: str = ""  # of token shards


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnPlace:
    """All that is at a place: the documents that are read, by source, and the files that are not, by reason and ending.

    `talks` are the files of conversations and pairs.
    `languages` are those of a share of the sampled texts that mistakes of the identification do not reach, the most
    frequent first; `doubtful` are the other languages that were found, with their number of texts.
    """

    data: tuple[OwnData, ...]
    talks: tuple[str, ...] = ()
    left: Mapping[tuple[str, str], int] = field(default_factory=dict)
    samples: int = 0
    languages: tuple[str, ...] = ()
    doubtful: Mapping[str, int] = field(default_factory=dict)

    @property
    def files(self) -> int:
        """Number of files that are read."""
        return sum(one.files for one in self.data)

    @property
    def bytes(self) -> int:
        """Size of the files that are read."""
        return sum(one.bytes for one in self.data)

    @property
    def has_markup(self) -> bool:
        """Whether files of source code, notebooks, or texts with the marks of Markdown and the like are read.

        Style sheets and the like beside pages are no source code: they are what `wget -m` leaves of a site.
        """
        endings = {ending for one in self.data for ending in one.endings}
        without = PARTS_OF_PAGES if any(ENDINGS.get(ending) == "html" for ending in endings) else ()
        return any(not ending or ENDINGS.get(ending) in MARKUP for ending in endings.difference(without))


def look_at(place: str) -> OwnPlace:
    """Return the formats, columns, sizes and languages of the documents at a path or URL.

    Raise DataError, with what would be right, if no documents are there.
    """
    if not place.strip():
        raise DataError("the place of the documents is an empty text; name a folder, a file or an address")
    if not is_remote(place):
        place = os.path.abspath(os.path.expanduser(place))
        if os.path.isdir(place) and not os.access(place, os.R_OK | os.X_OK):
            raise DataError(f"{place}: {UNOPENED}")
        if shards := _shards(place):
            return shards
    found, left = _divided(place)
    data: list[OwnData] = []
    talks = found.pop(TALKS, [])
    texts: list[str] = []
    wrong: list[DataError] = []
    for source, files in found.items():
        if source in _ROWS:  # names of other files, such as post-training.txt, say nothing about splits
            files = _of_training(files, left)
        if (data or talks) and source == FILES and all(map(_is_about, files)):
            left.update(("about the data", ending_of(name)) for name in files)
            continue
        for fields, some in _by_fields(files, source, left, wrong).items():
            if fields == NO_TEXT:
                talks += some
                continue
            data.append(_own_data(place, source, some, fields))
            texts += _sampled(some, source, fields[0])
    if not data and not talks:
        raise wrong[0] if wrong else DataError(f"{place}: {_nothing(place)}")
    if not texts and not talks and not is_remote(place) and all(one.source != FILES for one in data):
        raise DataError(f"{place}: no text can be read in the files that were opened; they may be damaged")
    languages, doubtful = _languages(texts)
    return OwnPlace(
        data=tuple(data), talks=tuple(talks), left=left, samples=len(texts), languages=languages, doubtful=doubtful
    )


def _own_data(place: str, source: str, files: list[str], fields: tuple[str, str]) -> OwnData:
    parts = [files] if source == FILES else _parts(files)
    return OwnData(
        source=source,
        snapshots=tuple((place,) if source == FILES else _paths(place, source, part, files) for part in parts),
        files=len(files),
        bytes=sum(size_of(name) for name in files),
        endings=Counter(_ending(name, source) for name in files),
        text_field=fields[0],
        url_field=fields[1],
    )


def _ending(name: str, source: str) -> str:
    """Return the ending by which a file is read."""
    if source == FILES:
        return ending_of(name)
    return next((suffix for suffix in sorted(SUFFIXES[source], key=len, reverse=True) if name.endswith(suffix)), "")


def _divided(place: str) -> tuple[dict[str, list[str]], Counter[tuple[str, str]]]:
    """Return the files at a path by source, and the number of other files of a folder by reason and ending."""
    left: Counter[tuple[str, str]] = Counter()
    if is_remote(place) or not os.path.isdir(place):
        files = _files(place)
        found = {source: _of_source(files, source) for source in SUFFIXES}
        is_file = os.path.isfile(place) or is_http(place)
        form = format_of(place)
        is_named = bool(form) and (form != UNNAMED or (os.path.isfile(place) and not why_no_text(Path(place))))
        found[FILES] = [place] if is_file and not any(found.values()) and is_named else []
        found[TALKS] = [place] if os.path.isfile(place) and _is_json_of_talks(Path(place)) else []
        return {source: files for source, files in found.items() if files}, left
    found = {source: [] for source in (*SUFFIXES, FILES, TALKS)}
    for file, path, why in walked(place):
        source = next((name for name, suffixes in SUFFIXES.items() if path.endswith(suffixes)), "")
        if source and why not in ("hidden", UNOPENED) and os.path.isfile(file):
            found[source].append(str(file))
        elif why not in ("hidden", UNOPENED) and _is_json_of_talks(file):
            found[TALKS].append(str(file))
        elif why or (format_of(path) == "pdf" and pdf_library() == "absent"):
            left[why or NO_PDF_LIBRARY, ending_of(path)] += 1
        else:
            found[FILES].append(str(file))
    return {source: files for source, files in found.items() if files}, left


def _is_about(file: str) -> bool:
    return ABOUT.match(os.path.basename(file)) is not None


def _shards(place: str) -> OwnPlace | None:
    """Return the properties of a folder of token shards; None if it has none. Raise DataError without a tokenizer."""
    names = os.listdir(place) if os.path.isdir(place) else []
    files = [
        name for name in names if name.endswith(token_files.SUFFIXES) and set(names) & set(token_files.beside(name))
    ]
    if not files:
        return None
    if token_files.TOKENIZER_FILE not in names:
        raise DataError(
            f"{place}: {counted(len(files))} of tokens; put the tokenizer.json and tokenizer_config.json that made them"
            " beside them, so that their documents can be read"
        )
    size = sum(os.path.getsize(os.path.join(place, name)) for name in files)
    used = {*files, *(other for name in files for other in token_files.beside(name)), *TOKENIZER_FILES}
    left = Counter(
        ("beside token shards", ending_of(path))
        for _, path, why in walked(place)
        if why != "hidden" and path not in used
    )
    endings = Counter(map(ending_of, files))
    own = OwnData(source=SHARDS, snapshots=((place,),), files=len(files), bytes=size, endings=endings, tokenizer=place)
    return OwnPlace(data=(own,), left=left)


def _files(place: str) -> list[str]:
    """Return the files at a path or URL: the file, or those in the folder; on this machine also in its subfolders."""
    if is_http(place) or os.path.isfile(place):
        return [place]
    if is_remote(place):
        return expand([place])
    hidden = re.compile(r"(^|/)\.")
    names = (str(path) for path in Path(place).rglob("*") if path.is_file())
    return sorted(name for name in names if not hidden.search(os.path.relpath(name, place)))


def _of_source(files: list[str], source: str) -> list[str]:
    return [name for name in files if name.endswith(SUFFIXES[source])]


def _nothing(place: str) -> str:
    known = ", ".join(sorted(suffix for suffixes in SUFFIXES.values() for suffix in suffixes))
    if place.startswith("https://huggingface.co/datasets/") and not place.endswith(tuple(known.split(", "))):
        return "a page of the hub, not a file; download the data set first: hf download --repo-type dataset NAME"
    if not is_remote(place) and not os.path.exists(place):
        return "no such file or folder"
    if not is_remote(place) and next(Path(place).rglob("*.arrow"), None):
        return "files of `save_to_disk`, which are not supported; write them again with datasets' `to_parquet`"
    return f"no documents that can be read; a name must end in one of {known}, or as those of texts, code and books do"


def _of_training(files: list[str], left: Counter[tuple[str, str]]) -> list[str]:
    """Return only the files of the split `train` if the data set has one; the others are added to `left`."""
    train = [name for name in files if TRAIN.search(name.rpartition("/")[2])]
    if not train or len(train) == len(files):
        return files
    left.update(("another split than train", ending_of(name)) for name in files if name not in set(train))
    return train


def _by_fields(
    files: list[str], source: str, left: Counter[tuple[str, str]], wrong: list[DataError]
) -> dict[tuple[str, str], list[str]]:
    """Return the files by their columns with text and URL; files without documents are added to `left` and `wrong`.

    Remote files are believed to have the columns of the first one.
    """
    is_rows = source in _ROWS
    if source == FILES or is_remote(files[0]):
        return {_fields(files[0]) if is_rows else ("text", "url"): files}
    found: dict[tuple[str, str], list[str]] = {}
    for file in files:
        try:
            if not os.path.getsize(file):
                raise DataError(f"{file}: is empty: 0 bytes")
            found.setdefault(_fields(file) if is_rows else ("text", "url"), []).append(file)
        except DataError as error:
            wrong.append(error)
            left[str(error).removeprefix(f"{file}: "), ending_of(file)] += 1
    return found


def counted(files: int) -> str:
    """Return "1 file", or the number and "files"."""
    return "1 file" if files == 1 else f"{files} files"


def _parts(files: list[str]) -> list[list[str]]:
    """Divide the files into groups that can each be one snapshot, in which file names must be unique.

    There is one group, or one for each folder if a file name occurs in several folders.
    """
    if len({os.path.basename(name) for name in files}) == len(files):
        return [files]
    folders: dict[str, list[str]] = {}
    for name in files:
        folders.setdefault(os.path.dirname(name), []).append(name)
    return list(folders.values())


def _paths(place: str, source: str, part: list[str], files: list[str]) -> tuple[str, ...]:
    """Return paths that lead to the files of one snapshot: a folder or patterns if these hold no other file."""
    if is_remote(place) or part == [place]:
        return (place,)
    folders = sorted({os.path.dirname(name) for name in part})
    if len(folders) == 1 and part == _of_source(_files(folders[0]), source):
        return (folders[0],)
    if part == files == _of_source(_files(place), source):
        used = [suffix for suffix in SUFFIXES[source] if any(name.endswith(suffix) for name in part)]
        return tuple(f"{place}/**/*{suffix}" for suffix in used)
    return tuple(part)


def _fields(file: str) -> tuple[str, str]:
    """Return the names of the columns with text and URL: the usual names, or else the column with the longest texts.

    NO_TEXT stands for rows with questions and answers. Raise DataError for rows without text.
    """
    rows = list(islice(good_rows(file), GUESSED_ROWS))
    columns = rows[0] if rows else {}
    if is_talk(columns):
        return NO_TEXT
    sizes = {
        name: sum(len(str(row.get(name) or "")) for row in rows) / len(rows)
        for name, value in columns.items()
        if isinstance(value, str)
    }
    known = next((name for name in TEXT_FIELDS if name in sizes), "")
    longest = max(sizes, key=lambda name: sizes[name], default="")
    if not known and sizes.get(longest, 0) < GUESSED_CHARACTERS:
        raise DataError(f"{file}: no column with text; it has {', '.join(columns) or 'no rows'}")
    return known or longest, next((name for name in URL_FIELDS if name in sizes and name != (known or longest)), "url")


def good_rows(file: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file without the damaged lines, which a run quarantines.

    Raise DataError, with what is wrong with the first line, if the first GUESSED_ROWS lines are all damaged.
    """
    damaged: list[UnreadRow] = []
    is_read = False
    for row in read_rows(file, with_unread=True):
        if not isinstance(row, UnreadRow):
            is_read = True
            yield row
        elif not is_read:
            damaged.append(row)
            if len(damaged) == GUESSED_ROWS:
                break
    if damaged and not is_read:
        raise DataError(f"{file}: line {damaged[0]['line']} {damaged[0].reason}")


def is_talk(row: Mapping[str, Any]) -> bool:
    """Whether a row has the columns of conversations, answers or pairs, and is no document."""
    named = CONVERSATIONS if any(name in row for name in TEXT_FIELDS) else (*CONVERSATIONS, *ANSWERS)
    return any(all(name in row for name in names.split()) for names in named)


def _is_json_of_talks(file: Path) -> bool:
    """Whether a file is a list of conversations or pairs in JSON, as LLaMA-Factory and Alpaca have them."""
    if file.suffix != ".json" or file.is_symlink() or not file.is_file() or not str(file).isprintable():
        return False
    with open(file, "rb") as stream:
        if not stream.read(_HEAD_BYTES).lstrip().startswith(b"["):
            return False
    try:
        return is_talk(next(read_rows(str(file)), {}))
    except DataError:
        return False


def _sampled(files: Sequence[str], source: str, text_field: str) -> Iterator[str]:
    """Yield up to SAMPLES texts: equally many from each of a few files, which are spread evenly over all files."""
    if source == FILES:
        files = [name for name in files if format_of(name) != "code"]
    chosen = _spread(files, source)
    for file in chosen:
        for text, _ in islice(_texts(file, source, text_field), max(1, SAMPLES // len(chosen))):
            yield text


def _spread(files: Sequence[str], source: str) -> Sequence[str]:
    return files[:: -(-len(files) // (SAMPLES if source == FILES else SAMPLED_FILES)) or 1]


def text_bytes(files: Sequence[str], source: str, text_field: str) -> float:
    """Estimate the bytes of text in files on this machine by the first texts of a few of them."""
    if source == SHARDS:
        shards = [Path(name) for name in files if name.endswith(token_files.SUFFIXES)]
        return 4.0 * sum(len(token_files.open_token_file(shard).tokens) for shard in shards)  # characters of a token
    code = [name for name in files if source == FILES and format_of(name) == "code"]
    others = sorted(set(files).difference(code))
    chosen, found = _spread(others, source), 0.0
    number = max(1, SAMPLES // max(1, len(chosen)))
    for file in chosen:
        some = list(islice(_texts(file, source, text_field), number))
        share = some[-1][1] if len(some) == number else 1.0  # of the file; fewer texts are all that it has
        if len(some) == number and source not in (*_ROWS, FILES):
            some.pop()  # which begins there
        found += sum(len(text.encode("utf-8", "replace")) for text, _ in some) / min(share, 1.0)
    return sum(map(size_of, code)) + found * sum(map(size_of, others)) / max(1, sum(map(size_of, chosen)))


def _texts(file: str, source: str, text_field: str) -> Iterator[tuple[str, float]]:
    """Yield the texts of a file in order, without tags and code, and which share of the file is read after each.

    Of an archive it is the share before each. A remote archive yields nothing.
    """
    if source in _ROWS:
        for row, share in _rows(file):
            if isinstance(row.get(text_field), str):
                yield row[text_field], share
    elif is_remote(file):
        return
    else:
        for row in documents_of(Path(file), source, ExtractRecipe()):
            share = 1.0 if source == FILES else max(1, row["warc_offset"]) / size_of(file)
            text = row["text"]
            yield Page(text=text, url="", columns={}, extracted=text, code=tuple(row.get("code") or ())).prose, share


def _rows(file: str) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield rows with the share of the file that is read after each: by number of rows in parquet, else by bytes."""
    if file.endswith(".parquet") and not is_remote(file):
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            total = pq.read_metadata(file).num_rows
        except pa.ArrowException as error:
            raise DataError(f"{file}: not a readable parquet file: {error}") from None
        yield from ((row, number / total) for number, row in enumerate(read_rows(file), 1))
        return
    size = size_of(file) * (1 if file.endswith(".jsonl") else PACKED_RATIO)
    read = 0
    for row in good_rows(file):
        read += len(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace"))
        yield row, read / max(1, size)


def _languages(texts: Sequence[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the languages whose share of the texts mistakes do not reach, and the other ones with their numbers.

    A text counts if it is long, and if it and both its halves are identified as one language. Wilson's lower bound on
    the share of a language must be above MISTAKES, so that one text of five or of ten adds no language.
    """
    found = Counter(filter(None, map(_language, texts)))
    number = found.total()
    sure = tuple(code for code, count in found.most_common() if _least_share(count, number) > MISTAKES)
    return sure, {code: count for code, count in found.most_common() if code not in sure}


def _language(text: str) -> str:
    """Return the language of a text; empty if the text is short or the language uncertain."""
    if len(text) < MIN_CHARACTERS:
        return ""
    (code, score), half = identify(text), len(text) // 2
    is_sure = score >= MIN_SCORE and all(identify(part)[0] == code for part in (text[:half], text[half:]))
    return code if is_sure else ""


def _least_share(count: int, number: int) -> float:
    """Return the lower bound of the share `count / number` by Wilson's interval of 95 %."""
    share, z = count / number, NORMAL_QUANTILE**2 / number
    return (share + z / 2 - (z * (share * (1 - share) + z / 4)) ** 0.5) / (1 + z)
