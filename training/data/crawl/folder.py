"""The files of a folder, each of which is one document: which are read, and what a git folder says of their origin.

A file is read by its ending (ENDINGS), or else by its name or its first bytes. Hidden files and folders, and links that
lead out of the folder, are not read. What is not read has a reason (`left_out`). A file's name is its path in the
folder, with `%2F` for each slash, so that it is unique in a snapshot.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from training.contract.job import DataError
from training.data.sources import MARKS, expand, is_remote, resolve

FILES: Final = "files"
"""The source, and the form, of snapshots whose files are documents."""

_OF_FORMATS = {
    "text": "txt text asc adoc asciidoc org po pot",
    "markdown": "md markdown mdown mkd mdx qmd rmd",
    "rst": "rst rest",
    "html": "html htm xhtml",
    "notebook": "ipynb",
    "epub": "epub",
    "pdf": "pdf",
    "code": """
        py pyi pyx pxd pxi c h cc cpp cxx hh hpp hxx cu cuh m mm java kt kts scala groovy gradle go rs swift js mjs cjs
        jsx ts tsx vue svelte rb php pl pm t lua r jl hs lhs ml mli fs fsx fsi ex exs erl hrl clj cljs cljc lisp el scm
        rkt nim zig v sv svh vhd vhdl d dart f f77 f90 f95 f03 f08 for pas pp ada adb ads cs vb sh bash zsh fish ps1 bat
        cmd awk sed sql graphql proto thrift tf cmake mk make tex sty cls bib css scss sass less asm s ll mlir sol cob
        coq agda lean idr elm purs hx tcl vim jinja j2 mako asp aspx jsp cgi shtml
    """,
}
PACKED = ".gz"  # behind the ending of a text, of Markdown and the like
ENDINGS: Final[Mapping[str, str]] = {
    f".{ending}": name for name, all_ in _OF_FORMATS.items() for ending in all_.split()
}
"""The format of a file by its ending in lower case."""

UNNAMED: Final = "unnamed"  # the format of a file whose name says nothing: code if it begins with `#!`, else text
_CODE_NAMES = frozenset(
    """
    makefile gnumakefile dockerfile containerfile rakefile gemfile vagrantfile jenkinsfile procfile justfile brewfile
    podfile sconstruct sconscript configure kconfig kbuild cmakelists build workspace
    """.split()
)
_TEXT_NAMES = frozenset("readme license licence copying".split())  # also if they are packed
_QUERY = re.compile(r"\?.*?(?=(\.x?html?(\.\d+)?)?$)")
_COPY = re.compile(r"(\.x?html?)\.\d+$")
_HEAD_BYTES = 8192
_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")

UNOPENED: Final = "cannot be opened"
NO_FORMAT: Final = ("hidden", "no file", UNOPENED)  # reasons that say nothing about the format
# Without signs that MLflow refuses in the name of a number.
_REASONS = {
    "data: write texts as .jsonl": ".json .csv .tsv .xlsx .xls .ods .xml .yaml .yml .toml",
    "files of save_to_disk: write them again with to_parquet of datasets": ".arrow",
    "packed: unpack it": ".zip .tar .tgz .gz .bz2 .xz .7z .rar .zst",
    "an office format: save it as PDF or text": ".doc .docx .odt .rtf .ppt .pptx .odp .pages",
    "another format of books: convert it to EPUB": ".mobi .azw .azw3 .djvu .fb2 .ps",
    "rows or an archive: name it in a snapshot of its own": """
        .parquet .jsonl .jsonl.gz .jsonl.zst .warc .warc.gz .warc.zst .warc.lz4 .wet .wet.gz
    """,
}
_WHY = {ending: why for why, endings in _REASONS.items() for ending in endings.split()}
MAX_NAME_BYTES: Final = 200  # of a file; the path of a longer one is in the document's title
MAX_GIT_BYTES: Final = 64_000
_HEADS = ("LICENSE", "LICENCE", "COPYING", "UNLICENSE")
# In this order, because some licences quote the names of others.
_LICENCES: Final = (
    ("AGPL-3.0", r"GNU AFFERO GENERAL PUBLIC LICENSE\s+Version 3"),
    ("LGPL-3.0", r"GNU LESSER GENERAL PUBLIC LICENSE\s+Version 3"),
    ("LGPL-2.1", r"GNU LESSER GENERAL PUBLIC LICENSE\s+Version 2\.1"),
    ("GPL-3.0", r"GNU GENERAL PUBLIC LICENSE\s+Version 3"),
    ("GPL-2.0", r"GNU GENERAL PUBLIC LICENSE\s+Version 2"),
    ("Apache-2.0", r"Apache License,?\s+Version 2\.0"),
    ("MPL-2.0", r"Mozilla Public License,?\s+(?:Version|v\.)\s*2\.0"),
    ("EPL-2.0", r"Eclipse Public License - v 2\.0"),
    ("PSF-2.0", r"PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2"),
    ("CC0-1.0", r"CC0 1\.0 Universal"),
    ("CC-BY-SA-4.0", r"Attribution-ShareAlike 4\.0 International"),
    ("CC-BY-4.0", r"Attribution 4\.0 International"),
    ("Unlicense", r"This is free and unencumbered software released into the public domain"),
    ("BSL-1.0", r"Boost Software License - Version 1\.0"),
    ("BSD-3-Clause", r"Redistribution and use in source and binary forms(?s:.*)(?:Neither|nor) the names? of"),
    ("BSD-2-Clause", r"Redistribution and use in source and binary forms"),
    ("ISC", r"Permission to use, copy, modify, and(?:/or)? distribute this software for any\s+purpose"),
    ("MIT", r"Permission is hereby granted, free of charge, to any person obtaining a copy"),
    ("Zlib", r"This software is provided 'as-is', without any express or implied warranty"),
)
_SECTION = re.compile(r'^\s*\[\s*remote\s+"([^"]*)"\s*\]|^\s*\[')
_URL = re.compile(r"^\s*url\s*=\s*(.+?)\s*$")
_SCP = re.compile(r"(?:[^@/\s]+@)?([A-Za-z0-9.-]+):(?!/)([^\s:]+)")


@dataclass(frozen=True, slots=True)
class FolderFile:
    """One file that is read as a document: where it is, and its path in the folder that the snapshot names."""

    location: str
    path: str

    @property
    def name(self) -> str:
        """The name under which the file is kept, unique in its snapshot."""
        flat = self.path.replace("%", "%25").replace("/", "%2F")
        if len(flat.encode()) <= MAX_NAME_BYTES:
            return flat
        return f"{hashlib.sha256(self.path.encode()).hexdigest()[:16]}-{self.path.rpartition('/')[2][-40:]}"


def pdf_library() -> str:
    """Return the version of the library that reads PDF; "absent" if it is not installed."""
    try:
        return version("pypdf")
    except PackageNotFoundError:
        return "absent"


def ending_of(name: str) -> str:
    """Return the ending of a file's name in lower case, with that before `.gz`; empty if the name has none.

    What wget adds to the name of a page is no part of it: a query (`page.html?id=3`) and the number of a copy
    (`page.html.1`). The ending that `wget -E` adds is (`page?id=3.html`).
    """
    base = _COPY.sub(r"\1", _QUERY.sub("", name.rpartition("/")[2].lower()))
    packed = PACKED if base.endswith(PACKED) else ""
    return os.path.splitext(base.removesuffix(packed))[1] + packed


def format_of(name: str) -> str:
    """Return the format by which a file is read; empty if its ending is none that is read.

    Where no known ending says it, the name does: `Makefile` is code and `README` is text.
    """
    ending = ending_of(name)
    stem = re.split(r"[.\-_]", re.split("/|%2F", name)[-1].lower())[0]
    found = ENDINGS.get(ending.removesuffix(PACKED), "")
    if found:
        return "" if ending.endswith(PACKED) and found in ("epub", "pdf") else "code" if stem == "cmakelists" else found
    if stem in _CODE_NAMES and ending in ("", ".am", ".in", ".dev", ".prod"):
        return "code"
    return "text" if stem in _TEXT_NAMES and ending in ("", PACKED) else "" if ending else UNNAMED


def folder_files(paths: Iterable[str]) -> list[FolderFile]:
    """Return the files behind paths, folders with their subfolders, globs and URLs, sorted by path and place.

    Raise DataError for a path without any file that is read, and for a pattern with a file whose name is not UTF-8.
    """
    found: set[FolderFile] = set()
    for given in paths:
        location = resolve(given)
        if is_remote(location) or not os.path.isdir(location):
            found.update(FolderFile(one, one.rpartition("/")[2]) for one in expand([given], tuple(ENDINGS)))
        elif inside := [FolderFile(str(file), path) for file, path, why in walked(location) if not why]:
            found.update(inside)
        else:
            expand([given], tuple(ENDINGS))  # says what is missing
    for file in found:
        if not _is_text(file.path):
            raise DataError(f"{file.location!a} is not UTF-8; rename the file")
    return sorted(found, key=lambda file: (file.path, file.location))


def walked(folder: str) -> Iterator[tuple[Path, str, str]]:
    """Yield every file below a folder, its path there, and why it is not read ("" if it is), sorted by path.

    Folders that cannot be listed come last.
    """
    top = os.path.realpath(folder)
    closed: list[OSError] = []
    for place, folders, names in os.walk(folder, onerror=closed.append):
        folders.sort()
        for name in sorted([*names, *(one for one in folders if os.path.islink(os.path.join(place, one)))]):
            file = Path(place, name)
            path = os.path.relpath(file, folder)
            yield file, path, _why_not(file, path, top)
    for one in closed:
        path = os.path.relpath(one.filename, folder)
        yield Path(one.filename), path, "hidden" if _is_hidden(path) else UNOPENED


def _why_not(file: Path, path: str, top: str) -> str:
    if _is_hidden(path):
        return "hidden"
    if not os.access(file.parent, os.X_OK):
        return UNOPENED
    if not _is_text(path):
        return "a name that is not UTF-8"
    if file.is_symlink() and not os.path.realpath(file).startswith(f"{top}{os.sep}"):
        return "a link out of the folder"
    if not os.path.isfile(file):
        return "no file"
    if not os.access(file, os.R_OK):
        return UNOPENED
    form = format_of(path)
    if form and ending_of(path).removesuffix(PACKED) not in ENDINGS and not path.endswith(PACKED):
        return why_no_text(file)
    return "" if form else _WHY.get(ending_of(path), "no text is read from this format")


def left_out(paths: Iterable[str], read: Iterable[str], suffixes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the path and the reason of each file below the folders among `paths` that is not read, by path.

    Hidden files are left out: what git or a desktop keeps beside the documents changes without them.
    `read` are the locations of the files that are read, and `suffixes` how the names of the source's files end.
    """
    taken = {os.path.abspath(location) for location in read if not is_remote(location)}
    folders = [one for one in map(resolve, paths) if not is_remote(one) and os.path.isdir(one)]
    files = {os.path.abspath(file): (path, why) for folder in folders for file, path, why in walked(folder)}
    left = ((path, why) for at, (path, why) in files.items() if at not in taken and why != "hidden")
    return sorted((_readable(path), _why_left(path, why, suffixes)) for path, why in left)


def _readable(path: str) -> str:
    """Return a path with escapes for the bytes that are not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _why_left(path: str, why: str, suffixes: tuple[str, ...]) -> str:
    if why not in NO_FORMAT and path.endswith(suffixes):
        return "in a subfolder: name it among the paths"
    return why or "text or code: name it in a snapshot of source files"


def _is_hidden(path: str) -> bool:
    return path != os.curdir and any(part.startswith(".") for part in path.split(os.sep))


def why_no_text(file: Path) -> str:
    """Return why the first bytes of a file are no text; empty if they may be."""
    try:
        with open(file, "rb") as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError:
        return UNOPENED
    is_text = head.startswith(tuple(mark for mark, _ in MARKS)) or not _CONTROLS.search(head)
    return "" if is_text else "bytes that are no text"


def _is_text(path: str) -> bool:
    """Whether a path is UTF-8; Python reads other bytes of a name as halves of surrogate pairs."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


# What git says


def said_of_files(files: Iterable[FolderFile]) -> dict[str, dict[str, str]]:
    """Return what is known of each file beside its bytes, by name: `title` (its path), `url` and `licence`.

    The URL is that of the remote `origin`, else of the first remote, with the path in the repository. git itself is not
    run, and no link is followed.
    """
    for cached in (_repository_of, _remote_of, _licence_of):
        cached.cache_clear()  # a long process sees what has changed
    return {file.name: _said_of(file) for file in files}


def _said_of(file: FolderFile) -> dict[str, str]:
    said = {"title": file.path}
    if is_remote(file.location):
        return said
    place = os.path.abspath(file.location)
    if root := _repository_of(os.path.dirname(place)):
        if repository := _remote_of(root):
            said["url"] = f"{repository}/blob/HEAD/{os.path.relpath(place, root)}"
        if licence := _licence_of(os.path.dirname(place), root):
            said["licence"] = licence
    return said


@lru_cache(maxsize=4096)
def _repository_of(folder: str) -> str:
    """Return the folder, or the nearest one above it, that has a `.git`; empty if there is none."""
    git = os.path.join(folder, ".git")
    if os.path.exists(git) and not os.path.islink(git):
        return folder
    above = os.path.dirname(folder)
    return "" if above == folder else _repository_of(above)


def _git_folder(root: str) -> str:
    """Return the folder with the files of git of a repository; empty if a stranger could have named it.

    The `.git` of a submodule is a file that names a folder of the repository around it.
    """
    git = os.path.join(root, ".git")
    if os.path.isdir(git):
        return git
    named = _beginning(git).removeprefix("gitdir:").strip()
    around = _repository_of(os.path.dirname(root))
    outer = _git_folder(around) if around not in ("", root) else ""
    place = os.path.realpath(os.path.join(root, named))
    return place if outer and place.startswith(os.path.join(os.path.realpath(outer), "modules", "")) else ""


def _beginning(place: str) -> str:
    """Return the first bytes of a file as text; empty for a link, and for what is no file or cannot be read."""
    try:
        if os.path.islink(place) or not os.path.isfile(place):
            return ""
        with open(place, "rb") as stream:
            return stream.read(MAX_GIT_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


@lru_cache(maxsize=256)
def _remote_of(root: str) -> str:
    """Return the https address of a repository without names and passwords; empty if its `.git/config` states none."""
    remotes: dict[str, str] = {}
    section = None
    git = _git_folder(root)
    for line in (_beginning(os.path.join(git, "config")) if git else "").splitlines():
        if begins := _SECTION.match(line):
            section = begins[1]
        elif section is not None and (found := _URL.match(line)):
            remotes.setdefault(section, found[1].strip('"'))
    return _web_address(remotes.get("origin") or next(iter(remotes.values()), ""))


def _web_address(remote: str) -> str:
    if scp := _SCP.fullmatch(remote):
        host, path = scp[1], scp[2]
    else:
        try:
            parts = urlsplit(remote)
            host, path = parts.hostname or "", parts.path
        except ValueError:
            return ""
        if parts.scheme not in ("http", "https", "ssh", "git", "git+ssh"):
            return ""  # a folder of this machine is nobody's address
    path = path.strip("/").removesuffix(".git")
    return f"https://{host}/{path}" if host and path else ""


@lru_cache(maxsize=4096)
def _licence_of(folder: str, root: str) -> str:
    """Return the licence by the file LICENSE or COPYING of a folder, or of the nearest one above it in its repository.

    It is the identifier of SPDX if the text is known, else the first line.
    """
    try:
        names = sorted(
            name for name in os.listdir(folder) if name.upper().startswith(_HEADS) and format_of(name) != "code"
        )
    except OSError:
        names = []
    for name in names:
        if text := _beginning(os.path.join(folder, name)).strip():
            return licence_in(text)
    return "" if folder == root else _licence_of(os.path.dirname(folder), root)


def licence_in(text: str) -> str:
    """Return the SPDX identifier of a licence by its text, else its first line."""
    for name, pattern in _LICENCES:
        if re.search(pattern, text, re.IGNORECASE):
            return name
    return " ".join(text.splitlines()[0].split())[:100]
