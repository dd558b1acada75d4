"""Inspect a folder, file or URL of documents for `pedigree init`: their format, columns and languages.

Only the first records of a few files are read.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from training.data.crawl import token_files
from training.data.crawl.crawl import SHARDS, SUFFIXES
from training.data.crawl.warc import Record, read_warc
from training.data.extract.html import decode
from training.data.extract.responses import PayloadError, parse_response, payload
from training.data.sources import expand, is_http, is_remote, read_rows, size_of
from training.data.words.language import identify
from training.job import DataError

SAMPLES, SAMPLED_FILES = 50, 10
SAMPLE_BYTES = 200_000  # of each page
MIN_CHARACTERS = 100  # of a text whose language counts
MIN_LANGUAGE_SHARE = 0.1
TEXT_FIELDS = ("text", "content", "raw_content", "body", "markdown", "document")
URL_FIELDS = ("url", "source_url", "uri", "link")
CONVERSATIONS = ("messages", "conversations", "prompt", "instruction", "chosen")
TRAIN = re.compile(r"(^|[^a-z])train", re.IGNORECASE)
_MARKUP = re.compile(r"(?is)<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>")


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnData:
    """The properties of the documents at a place: format, columns, size, languages, and the paths of each snapshot.

    There is one snapshot, or one for each folder if files in several folders have equal names. `languages` are those of
    at least a tenth of the sampled texts, the most frequent first; `notes` says what was left out.
    """

    source: str
    snapshots: tuple[tuple[str, ...], ...]
    files: int
    bytes: int
    samples: int = 0
    languages: tuple[str, ...] = ()
    text_field: str = "text"
    url_field: str = "url"
    tokenizer: str = ""  # of token shards
    notes: tuple[str, ...] = ()


def look_at(place: str) -> OwnData:
    """Return the format, columns, size and languages of the documents at a path or URL.

    Raise DataError, with what would be right, if no documents are there.
    """
    if not is_remote(place):
        place = os.path.abspath(os.path.expanduser(place))
        if shards := _shards(place):
            return shards
    found = {source: files for source in SUFFIXES if (files := _files(place, source))}
    if not found:
        raise DataError(f"{place}: {_nothing(place)}")
    sizes = {source: sum(size_of(name) for name in files) for source, files in found.items()}
    source = max(found, key=lambda name: sizes[name])
    others = [f"{counted(len(found[name]))} of {name} left out" for name in found if name != source]
    files, notes, text_field, url_field = found[source], (), "text", "url"
    if source in ("parquet", "jsonl"):  # names of other files, such as post-training.txt, say nothing about splits
        files, notes = _of_training(files)
        text_field, url_field = _fields(files[0])
    texts = list(_sampled(files, source, text_field))
    return OwnData(
        source=source,
        snapshots=tuple(_paths(place, source, part, files) for part in _parts(files)),
        files=len(files),
        bytes=sum(size_of(name) for name in files),
        samples=len(texts),
        languages=_languages(texts),
        text_field=text_field,
        url_field=url_field,
        notes=(*notes, *others),
    )


def _shards(place: str) -> OwnData | None:
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
    return OwnData(source=SHARDS, snapshots=((place,),), files=len(files), bytes=size, tokenizer=place)


def _files(place: str, source: str) -> list[str]:
    """Return the files of one format at a path: the file itself, or those in the folder and its subfolders."""
    suffixes = SUFFIXES[source]
    if is_http(place) or Path(place).is_file():
        return [place] if place.endswith(suffixes) else []
    if is_remote(place):
        try:
            return expand([place], suffixes)
        except DataError:
            return []
    hidden = re.compile(r"(^|/)\.")
    names = (str(path) for path in Path(place).rglob("*") if path.is_file())
    return sorted(name for name in names if name.endswith(suffixes) and not hidden.search(os.path.relpath(name, place)))


def _nothing(place: str) -> str:
    known = ", ".join(sorted(suffix for suffixes in SUFFIXES.values() for suffix in suffixes))
    if place.startswith("https://huggingface.co/datasets/") and not place.endswith(tuple(known.split(", "))):
        return "a page of the hub, not a file; download the data set first: hf download --repo-type dataset NAME"
    if not is_remote(place) and not os.path.exists(place):
        return "no such file or folder"
    if not is_remote(place) and next(Path(place).rglob("*.arrow"), None):
        return "files of `save_to_disk`, which are not supported; write them again with datasets' `to_parquet`"
    return f"no documents that can be read; a file's name must end in one of {known}"


def _of_training(files: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return only the files of the split `train` if the data set has one, and a sentence about the files left out."""
    train = [name for name in files if TRAIN.search(name.rpartition("/")[2])]
    if not train or len(train) == len(files):
        return files, ()
    return train, (f"{counted(len(files) - len(train))} of other splits than train left out",)


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
    if len(folders) == 1 and part == _files(folders[0], source):
        return (folders[0],)
    if part == files == _files(place, source):
        used = [suffix for suffix in SUFFIXES[source] if any(name.endswith(suffix) for name in part)]
        return tuple(f"{place}/**/*{suffix}" for suffix in used)
    return tuple(part)


def _fields(file: str) -> tuple[str, str]:
    """Return the names of the columns with text and URL: the usual names, or else the column with the longest text.

    Raise DataError for rows that are conversations or have no text.
    """
    row = next(read_rows(file), {})
    texts = {name: value for name, value in row.items() if isinstance(value, str)}
    known = next((name for name in TEXT_FIELDS if name in texts), "")
    if not known and (named := [name for name in CONVERSATIONS if name in row]):
        raise DataError(
            f"{file}: its rows have {named[0]!r}, so they are conversations or pairs and no documents; name the file in"
            " sft.data or preferences.data of a recipe"
        )
    if not texts:
        raise DataError(f"{file}: no column with text; it has {', '.join(row) or 'no rows'}")
    text_field = known or max(texts, key=lambda name: len(texts[name]))
    return text_field, next((name for name in URL_FIELDS if name in texts and name != text_field), "url")


def _sampled(files: list[str], source: str, text_field: str) -> Iterator[str]:
    """Yield up to SAMPLES texts: equally many from each of a few files, which are spread evenly over all files."""
    chosen = files[:: -(-len(files) // SAMPLED_FILES)]
    for file in chosen:
        yield from islice(_texts(file, source, text_field), SAMPLES // len(chosen))


def _texts(file: str, source: str, text_field: str) -> Iterator[str]:
    """Yield the texts of a file in order; HTML pages without their tags. A remote archive yields nothing."""
    if source != "warc":
        yield from (row[text_field] for row in read_rows(file) if isinstance(row.get(text_field), str))
    elif not is_remote(file):
        for record in read_warc(Path(file), max_content_bytes=SAMPLE_BYTES):
            if isinstance(record, Record) and (text := _text_of(record)).strip():
                yield text


def _text_of(record: Record) -> str:
    """Return the visible text of a page, or "" for a record without one."""
    if record.type == "conversion":
        return record.content.decode("utf-8", errors="replace")
    if record.type != "response":
        return ""
    try:
        response = parse_response(record.content)
        page = payload(response, max_bytes=SAMPLE_BYTES)
    except PayloadError:
        return ""
    if response.status != 200 or "html" not in response.content_type:
        return ""
    return _MARKUP.sub(" ", decode(page, response.headers.get("content-type", "")).text)


def _languages(texts: list[str]) -> tuple[str, ...]:
    """Return the languages of at least MIN_LANGUAGE_SHARE of the texts, counting only texts long enough to identify."""
    counts = Counter(identify(text)[0] for text in texts if len(text) >= MIN_CHARACTERS)
    enough = MIN_LANGUAGE_SHARE * counts.total()
    return tuple(language for language, number in counts.most_common() if language and number >= enough)
