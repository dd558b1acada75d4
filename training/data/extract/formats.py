"""The text of a file of a folder, by its format. It runs in the process with limits that pages are extracted in.

Plain text, Markdown and reStructuredText stay as they are written, save blanks on empty lines; of Markdown the front
matter goes. Of a notebook the cells of text and code stay, without what they printed; of an EPUB the chapters in
reading order; of a PDF the text of its pages, with the lines of a paragraph joined. A file that is not what its ending
says raises an error, whose words are in the quarantine. PDF is read with pypdf, the extra `pdf`.
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from html import unescape
from typing import Any, Final
from urllib.parse import unquote

from training.data.extract.pages.html import Extracted, clean, day_of, decode, decode_text, extract_html, visible
from training.data.extract.settings import ExtractRecipe
from training.data.extract.terms import terms_of
from training.data.sources import MARKS

BOOKS: Final = ("epub", "pdf")
BOOK_BYTES: Final = 100_000_000  # of a book's file, and of the unpacked chapters of an EPUB
MAX_CHAPTERS: Final = 10_000
CODE_FRACTION: Final = 0.4  # a text with more of its characters in code is code

_SPDX = re.compile(r"SPDX-License-Identifier:[ \t]*([A-Za-z0-9.+() -]{2,80}?)[ \t]*(?:\*/|-->|\r?\n|$)")
_HEAD_CHARACTERS = 4000
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(?s:(.{0,20000}?))\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)")
_TITLE_FIELD = re.compile(r"^title:[ \t]*[\"']?(.+?)[\"']?[ \t]*$", re.MULTILINE)
_BLANK_LINE = re.compile(r"^[ \t]+$", re.MULTILINE)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})", re.MULTILINE)
_HEADING = re.compile(r"^# +(.+?)[ #]*$", re.MULTILINE)
_UNDERLINED = re.compile(r"^(\S.*)\n([=\-~^*#\"+])\2{2,}[ \t]*$", re.MULTILINE)
_ATTRIBUTE = re.compile(r"""([\w:-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")

_PAGE = re.compile(
    rb"(?i)(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]{0,200}>\s*)?(?:<!--.{0,2000}?-->\s*)?<(?:!doctype html|html)\b", re.DOTALL
)
_TEMPLATE = re.compile(rb"<\?(?:php|=)|<%|\{%")


class UnreadableFile(ValueError):
    """A file is not what its ending says, or cannot be read without a password or a library."""


def extract_file(body: bytes, form: str, *, headers: Mapping[str, str], settings: ExtractRecipe) -> Extracted:
    """Return the text of a file of this format, or the reason why there is none.

    `headers` are a page's; for a file `link` may name a licence, which a line with an SPDX identifier overrides.
    """
    if form == "html" or (form in ("unnamed", "code") and _is_page(body)):
        return extract_html(body, headers=headers, settings=settings)
    found = _READERS[form](body)
    if spdx := _SPDX.search(found["text"][:_HEAD_CHARACTERS]):
        headers = {**headers, "link": f'<{spdx[1].strip()}>; rel="license"'}
    made = _extracted(headers, settings, **found)
    is_marked = form in BOOKS or body.startswith(tuple(mark for mark, _ in MARKS))
    num_replaced = 0 if is_marked else made.text.count("\ufffd") - body.count("\ufffd".encode())
    return replace(made, num_replaced=max(0, num_replaced))


def _is_page(body: bytes) -> bool:
    """Whether a file is a page that a server wrote, such as `index.php` in a mirror, and no template of pages."""
    return bool(_PAGE.match(body)) and not _TEMPLATE.search(body)


def _extracted(
    headers: Mapping[str, str], settings: ExtractRecipe, *, text: str, title: str = "", kind: str = "prose",
    code: tuple[int, ...] = (), date: str = "", language: str = "",
) -> Extracted:  # fmt: skip
    terms, cleaned = terms_of(headers), clean(text)
    if cleaned != text:
        code = (0, len(cleaned)) if code == (0, len(text)) else ()
    return Extracted(
        text=cleaned,
        title=" ".join(clean(title).split())[:300],
        date=date,
        language=language,
        code=code,
        terms=terms,
        reason=terms.refusal(settings) or ("" if cleaned else "no_main_text"),
        kind=kind,
    )


def _plain(body: bytes) -> str:
    """Return the bytes of a text file as text, by its byte-order mark or else by `decode_text`."""
    charset = next((charset for mark, charset in MARKS if body.startswith(mark)), "")
    if charset.startswith(("utf-16", "utf-32")):
        text = body.decode(charset)
    elif b"\0" in body:
        raise UnreadableFile("bytes that are no text")
    else:
        text = decode_text(body.removeprefix(codecs.BOM_UTF8))
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _lines(body: bytes) -> str:
    """Return the text of a text file's bytes; lines of nothing but blanks become empty.

    Rules that count lines would take them for repeated ones.
    """
    return _BLANK_LINE.sub("", _plain(body))


def _text(body: bytes) -> dict[str, Any]:
    return {"text": _lines(body), "kind": ""}


def _code(body: bytes) -> dict[str, Any]:
    text = clean(_plain(body))
    return {"text": text, "kind": "code", "code": (0, len(text))}


def _unnamed(body: bytes) -> dict[str, Any]:
    """Read a file whose name says nothing: a script names its interpreter first."""
    return _code(body) if body.startswith(b"#!") else _text(body)


def _markdown(body: bytes) -> dict[str, Any]:
    text, title = _lines(body), ""
    if front := _FRONT_MATTER.match(text):
        text, title = text[front.end() :], "".join(_TITLE_FIELD.findall(front[1])[:1])
    text = clean(text)
    code = tuple(_fenced(text))
    inside = sum(code[1::2]) - sum(code[::2])
    title = title or "".join(_HEADING.findall(text)[:1])
    return {"text": text, "title": title, "code": code, "kind": _kind(inside, len(text))}


def _kind(num_code: int, num_all: int) -> str:
    return "code" if num_code > CODE_FRACTION * max(num_all, 1) else "prose"


def _fenced(text: str) -> Iterator[int]:
    """Yield where fenced code begins and ends, in turn."""
    mark, start = "", 0
    for found in _FENCE.finditer(text):
        end = text.find("\n", found.end()) % (len(text) + 1)
        if not mark:
            mark, start = found[1], end
        elif found[1].startswith(mark) and not text[found.end() : end].strip():
            yield from (start, found.start())
            mark = ""
    if mark:
        yield from (start, len(text))


def _rst(body: bytes) -> dict[str, Any]:
    text = _lines(body)
    found = _UNDERLINED.search(text)
    return {"text": text, "title": found[1] if found else ""}


def _notebook(body: bytes) -> dict[str, Any]:
    book = json.loads(_plain(body))
    cells = book.get("cells") if isinstance(book, dict) else None
    if cells is None and isinstance(book, dict):  # before version 4 of the format
        cells = [cell for sheet in book.get("worksheets", []) for cell in sheet.get("cells", [])]
    if not isinstance(cells, list):
        raise UnreadableFile("JSON without the cells of a notebook")
    parts: list[str] = []
    places: list[int] = []
    size = 0
    for cell in cells:
        source = cell.get("source", cell.get("input", ""))
        text = clean("".join(source) if isinstance(source, list) else str(source))
        if not text:
            continue
        if cell.get("cell_type") == "code":
            places += [size, size + len(text)]
        parts.append(text)
        size += len(text) + 2
    text = "\n\n".join(parts)
    return {"text": text, "title": "".join(_HEADING.findall(text)[:1]), "kind": "code", "code": tuple(places)}


# Books


def _epub(body: bytes) -> dict[str, Any]:
    from resiliparse.extract.html2text import extract_plain_text

    with zipfile.ZipFile(io.BytesIO(body)) as book:
        names = book.namelist()
        if len(names) > MAX_CHAPTERS:
            raise UnreadableFile(f"{len(names)} files in it, more than {MAX_CHAPTERS}")
        if "META-INF/rights.xml" in names or any(one.flag_bits & 1 for one in book.infolist()):
            raise UnreadableFile("encrypted")
        left = [BOOK_BYTES]
        root = next(
            (unescape(one["full-path"]) for one in _elements(_member(book, "META-INF/container.xml", left), "rootfile")
             if "full-path" in one), ""
        )  # fmt: skip
        package = _member(book, root, left)
        items = {one.get("id"): one for one in _elements(package, "item")}
        spine = [items[one["idref"]] for one in _elements(package, "itemref") if one.get("idref") in items]
        base = posixpath.dirname(root)
        chapters = [
            extract_plain_text(decode(_member(book, _inside(base, one["href"]), left).encode(), "").text,
                               preserve_formatting=True, main_content=False, alt_texts=False)
            for one in spine
            if "html" in one.get("media-type", "html") and "href" in one
        ]  # fmt: skip
    return {
        "text": "\n\n".join(filter(None, (visible(chapter)[0].strip() for chapter in chapters))),
        "title": _content(package, "title"),
        "date": day_of(_content(package, "date")),
        "language": _content(package, "language")[:2].lower(),
    }


def _inside(base: str, href: str) -> str:
    return posixpath.normpath(posixpath.join(base, unquote(unescape(href)).partition("#")[0]))


def _member(book: zipfile.ZipFile, name: str, left: list[int]) -> str:
    """Return a file of a zip archive as text. What it unpacks to is subtracted from `left`."""
    with book.open(name) as stream:
        data = stream.read(left[0] + 1)
    left[0] -= len(data)
    if left[0] < 0:
        raise UnreadableFile(f"it unpacks to more than {BOOK_BYTES} bytes")
    return _plain(data)


def _elements(xml: str, name: str) -> Iterator[dict[str, str]]:
    """Yield the attributes of each start tag of this name; no entity is expanded and nothing is nested."""
    for tag in re.findall(rf"<(?:\w+:)?{name}\b([^<>]*)>", xml):
        yield {key: double or single for key, double, single in _ATTRIBUTE.findall(tag)}


def _content(xml: str, name: str) -> str:
    found = re.search(rf"<dc:{name}\b[^<>]*>([^<>]*)<", xml)
    return unescape(found[1]).strip() if found else ""


def _pdf(body: bytes) -> dict[str, Any]:
    try:
        from pypdf import PdfReader
    except ImportError:
        raise UnreadableFile("PDF is read with pypdf, which is not installed: pip install 'pedigree[pdf]'") from None
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it tells of repairs on the terminal, without a file's name
    reader = PdfReader(io.BytesIO(body))
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableFile("encrypted")
    said = reader.metadata
    pages = [_paragraphs(page.extract_text()) for page in reader.pages]
    return {"text": "\n\n".join(filter(None, pages)), "title": str((said and said.title) or "")}


def _paragraphs(page: str) -> str:
    """Return the text of a page whose wrapped lines are joined: those before a line that goes on in lower case."""
    lines: list[str] = []
    for line in map(str.strip, page.splitlines()):
        if lines and lines[-1] and line[:1].islower():
            is_divided = lines[-1][-1] in "-\xad" and lines[-1][-2:-1].isalpha()
            lines[-1] = lines[-1][:-1] + line if is_divided else f"{lines[-1]} {line}"
        else:
            lines.append(line)
    return visible("\n".join(lines))[0].strip()


_READERS: Mapping[str, Callable[[bytes], dict[str, Any]]] = {
    "text": _text,
    "unnamed": _unnamed,
    "markdown": _markdown,
    "rst": _rst,
    "code": _code,
    "notebook": _notebook,
    "epub": _epub,
    "pdf": _pdf,
}
