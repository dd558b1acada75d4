"""A folder of mixed files: every one is a document, dropped or quarantined, with its path, licence and repository."""

from __future__ import annotations

import gzip
import io
import json
import os
import zipfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

from evaluation.report.samples import sample_groups
from tests.own_pages import page, sentences
from tests.training.data import chain
from tests.training.data.extract.test_extract import quarantined
from training.contract.artifact import find
from training.data.crawl.crawl import source_files
from training.data.crawl.folder import FolderFile, format_of, licence_in, said_of_files, walked
from training.data.crawl.settings import SnapshotRecipe
from training.data.extract.formats import BOOK_BYTES, UnreadableFile, extract_file
from training.data.extract.isolation import Failure, Isolation, RawPage
from training.data.extract.settings import ExtractRecipe

MIT = "Copyright someone\n\nPermission is hereby granted, free of charge, to any person obtaining a copy of this"
CONTAINER = '<container><rootfiles><rootfile full-path="in/book.opf"/></rootfiles></container>'
PACKAGE = """<package xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata><dc:title>Salt &amp; wool</dc:title>
<dc:language>en-GB</dc:language></metadata><manifest><item id="b" href="two.xhtml"/><item id="a" href="a%20one.xhtml"/>
<item id="c" href="cover.png" media-type="image/png"/></manifest>
<spine><itemref idref="c"/><itemref idref="a"/><itemref idref="b"/></spine></package>"""


LEFT = {
    ".hidden/x.txt": "hidden", "code/.git/config": "hidden", "out.md": "a link out of the folder",
    "image.png": "no text is read from this format", "Makefile.png": "no text is read from this format",
    "blob": "bytes that are no text", "\udcff.txt": "a name that is not UTF-8",
}  # fmt: skip


def epub(first: str = "First chapter.", **more: str) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as book:
        book.writestr("META-INF/container.xml", CONTAINER)
        book.writestr("in/book.opf", PACKAGE)
        book.writestr("in/a one.xhtml", f"<html><body><h1>One</h1><p>{first}</p></body></html>")
        book.writestr("in/two.xhtml", "<html><body><p>Second &#x2014; chapter.</p></body></html>")
        for name, text in more.items():
            book.writestr(name.replace("__", "/"), text)
    return whole.getvalue()


def pdf(*lines: str) -> bytes:
    """A PDF of one page, as small as it can be."""
    shown = "".join(f"({line}) Tj 0 -14 Td " for line in lines)
    stream = f"BT /F1 12 Tf 72 720 Td {shown}ET".encode()
    font = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
    parts = [
        b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> /MediaBox [0 0 612 792]"
        b" >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream), font,
    ]  # fmt: skip
    whole, places = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(whole))
        whole += b"%d 0 obj\n%s\nendobj\n" % (number, part)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    start = len(whole)
    whole += b"xref\n0 6\n0000000000 65535 f \n" + table
    return whole + b"trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % start


def notebook(*cells: tuple[str, str]) -> bytes:
    return json.dumps(
        {"cells": [{"cell_type": kind, "source": [text], "outputs": ["no"]} for kind, text in cells]}
    ).encode()


def text_of(body: bytes, form: str, **settings):
    return extract_file(body, form, headers={}, settings=ExtractRecipe(**settings))


@pytest.fixture
def folder(tmp_path):
    """A folder with a repository, two files of one name, and files that cannot be read."""
    top = tmp_path / "mine"
    for path, content in {
        "a.txt": sentences(1), "deep/a.txt": sentences(2),
        "deep/b.MD": f"---\ntitle: 'Of salt'\n---\n# Salt\n\n{sentences(3)}",
        "page.html": page(4), "guide.rst": f"Of wool\n=======\n\n{sentences(5)}", "packed.txt.gz": "",
        "code/LICENSE": MIT, "code/lib/one.py": "def one():\n    return {1: 'é'}\n", "code/lib/empty.py": "",
        "code/lib/two.c": "// SPDX-License-Identifier: GPL-2.0-only\nint two(void) { return 2; }\n",
        "code/.git/config": '[core]\n[remote "mirror"]\n url = /home/x\n[remote "origin"]\n url = https://me:secret@host.example/o/r.git\n',
        "broken.ipynb": "{", "image.png": "no", "README": "Read me.", ".hidden/x.txt": "no",
        "code/Makefile": "all:\n\tcc two.c\n", "code/deploy": "#!/bin/sh\nmake\n", "blob": "\0\1", "Makefile.png": "no",
    }.items():  # fmt: skip
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_text(content, "utf-8")
    (top / "packed.txt.gz").write_bytes(gzip.compress(sentences(6).encode()))
    (top / "study.ipynb").write_bytes(
        notebook(("markdown", "# A study"), ("code", "x = 1"), ("markdown", sentences(7)))
    )
    (top / "book.epub").write_bytes(epub(sentences(8)))
    (top / "utf16.txt").write_bytes(sentences(9).encode("utf-16"))
    (top / "binary.txt").write_bytes(b"\0\1\2" * 9)
    (top / "out.md").symlink_to("/etc/hostname")
    Path(os.fsdecode(os.fsencode(top) + b"/\xff.txt")).write_text("no")
    return top


def extracted(root: Path, folder: Path, **settings):
    snapshot = SnapshotRecipe(name="s", source="files", paths=(str(folder),), **settings)
    asked = {"snapshot": snapshot.without_settings(), "files": source_files(snapshot)}
    crawled = chain.run(root, "crawl", "crawl_archives", "tiny@s", asked)
    given = {"extract": ExtractRecipe(min_file_bytes=1_000_000), "pdf_library": "absent"}
    return crawled, chain.run(root, "extract", "extracted_documents", "tiny@s", given, [crawled])


@pytest.mark.parametrize("archives", ["copied", "referenced"])
def test_every_file_of_a_mixed_folder_is_a_document_or_has_a_reason(tmp_path, folder, archives):
    crawled, made = extracted(tmp_path, folder, archives=archives)
    rows = {row["warc_file"]: row for row in chain.rows(made)}
    assert rows.keys() == {
        "a.txt", "deep%2Fa.txt", "deep%2Fb.MD", "page.html", "guide.rst", "packed.txt.gz", "code%2Flib%2Fone.py",
        "code%2Flib%2Ftwo.c", "study.ipynb", "book.epub", "utf16.txt",
        "README", "code%2FLICENSE", "code%2FMakefile", "code%2Fdeploy",
    }  # fmt: skip
    assert {line["warc_file"] for line in quarantined(made)} == {"broken.ipynb", "binary.txt"}
    counts = find(Path(crawled.path)).record["counts"]
    left = Counter(why for why in LEFT.values() if why != "hidden")
    assert counts["quarantined"] == {"empty": 1} and counts["dropped"] == left
    assert counts["in"] == sum(path.is_file() for path in folder.rglob("*")) - 2 == 23
    shown = sample_groups([(Path(crawled.path), find(Path(crawled.path)).record)], "crawl_archives", reason="dropped")
    assert {one.reason: one.number for one in shown} == left
    counts = find(Path(made.path)).record["counts"]
    assert (counts["in"], counts["kept"], counts["quarantined"]) == (17, 15, {"extractor_failed": 2})
    kinds = {name: rows[name]["kind"] for name in ("README", "code%2FLICENSE", "code%2FMakefile", "code%2Fdeploy")}
    assert list(kinds.values()) == ["", "", "code", "code"]
    code = rows["code%2Flib%2Fone.py"]
    assert (code["kind"], code["title"], code["licence"]) == ("code", "code/lib/one.py", "MIT")
    assert code["url"] == "https://host.example/o/r/blob/HEAD/lib/one.py" and code["text"].endswith("return {1: 'é'}")
    assert rows["code%2Flib%2Ftwo.c"]["licence"] == "GPL-2.0-only"
    assert (rows["a.txt"]["url"], rows["a.txt"]["licence"], rows["a.txt"]["title"]) == ("", "", "a.txt")
    titles = {name: rows[name]["title"] for name in ("deep%2Fb.MD", "guide.rst", "book.epub", "study.ipynb")}
    assert list(titles.values()) == ["Of salt", "Of wool", "Salt & wool", "A study"]
    assert rows["utf16.txt"]["text"] == sentences(9) and rows["packed.txt.gz"]["text"] == sentences(6)


@pytest.mark.parametrize(
    ("charset", "text"),
    [
        ("cp1252", "Brot ist süß."),
        ("cp1252", "# naïve façade\nprice = '5 €'"),
        ("cp1252", "Copyright Foo©Bar 2004. All rights reserved by the company and its partners in the world."),
        ("cp1250", "Chléb kyne, když je těsto teplé a stojí u pece přes noc. Ráno ho pekařka peče dozlatova."),
        ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy, zatímco na náměstí hrála hudba."),
        ("iso8859-2", "Včera sme boli v horách, kde snežilo a fúkal mrazivý vietor, preto sme išli ďalej."),
        ("cp1251", "Вчера мы были в горах, где шёл снег и дул морозный ветер."),
        ("cp1252", "Igår var vi i fjällen där det snöade och blåste en isande vind, så åkte vi hem på kvällen."),
        ("cp1251", "Хлеб поднимается, когда тесто тёплое, и пекарь ставит его в печь рано утром."),
        ("shift_jis", "パン生地は暖かい場所で膨らみ、朝早くに窯で焼かれる。"),
    ],
)
def test_a_text_that_is_not_utf_8_has_the_charset_that_its_bytes_are(charset, text):
    assert text_of(text.encode(charset), "text").text == text


@pytest.mark.parametrize("text", ["Größe und Übermut tut selten gut.", "Хлеб поднимается.", "パン生地は膨らむ。"])
@pytest.mark.parametrize("damage", [b"\xe2\x82", b"\xe9 "])
def test_a_text_in_utf_8_with_a_damaged_byte_is_read_as_utf_8_and_says_so(damage, text):
    made = text_of((text * 4).encode() + damage + text.encode(), "text")
    assert made.text.replace("\ufffd", "").replace(" ", "") == (text * 5).replace(" ", "")
    assert made.num_replaced == 1 and text_of(f"{text} \ufffd".encode(), "text").num_replaced == 0


@pytest.mark.parametrize("form", ["text", "unnamed", "markdown", "rst"])
def test_blanks_on_an_empty_line_are_no_line_of_a_text(form):
    given = "One.\n   \n    Two.\t \n \t\r\n      \n  Three.\n\n"
    assert text_of(given.encode(), form).text == "One.\n\n    Two.\t \n\n\n  Three."
    assert text_of(b"def f():\n    \n    return 1", "code").text == "def f():\n    \n    return 1"


@pytest.mark.parametrize("charset", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "utf-8"])
def test_a_byte_order_mark_says_the_charset_of_a_text(charset, tmp_path):
    text = "Der Bäcker 🥖 bäckt, said 李."
    (tmp_path / "a").write_bytes(f"\ufeff{text}".encode(charset))
    assert text_of((tmp_path / "a").read_bytes(), "text").text == text
    assert [why for _, _, why in walked(str(tmp_path))] == [""]


def test_the_walk_names_a_reason_for_each_file_that_is_not_read(folder):
    left = {path: why for _, path, why in walked(str(folder)) if why}
    assert left == LEFT


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("src/CMakeLists.txt", "code"), ("Dockerfile.dev", "code"), ("Makefile.gz", ""), ("Makefile.old", ""),
        ("a%2FREADME", "text"), ("LICENSE-MIT", "text"), ("README.gz", "text"), ("README.png", ""), ("run", "unnamed"),
        ("book.epub", "epub"), ("book.epub.gz", ""), ("notes.txt.gz", "text"),
        ("a.html?x=1", "html"), ("a.php?p=b.png", "code"), ("what?a=b.md", "unnamed"),
        ("page?id=3.html", "html"), ("b/index.html.12", "html"), ("a?v=2.htm.1", "html"), ("a?v=1.2", "unnamed"),
        ("ls.1", ""),
    ],
)  # fmt: skip
def test_a_file_without_a_known_ending_is_read_by_its_name(name, form):
    assert format_of(name) == form


@pytest.mark.parametrize(
    ("remote", "url"),
    [
        ("git@host.example:o/r.git", "https://host.example/o/r"),
        ("ssh://git@host.example:2222/o/r", "https://host.example/o/r"),
        ("https://user:token@host.example/o/r.git/", "https://host.example/o/r"),
        ("/srv/git/r.git", ""),
        ("file:///srv/r.git", ""),
        ("https://[broken", ""),
    ],
)
def test_a_remote_becomes_an_address_without_its_secrets(tmp_path, remote, url):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text(f'[remote "origin"]\n\turl = "{remote}"\n')
    (tmp_path / "a.py").write_text("a")
    said = said_of_files([FolderFile(str(tmp_path / "a.py"), "a.py")])["a.py"]
    assert said.get("url", "") == (f"{url}/blob/HEAD/a.py" if url else "")


def test_a_submodule_is_a_repository_of_its_own(tmp_path):
    """Its `.git` is a file. One that leads elsewhere than into the repository around it is not followed."""
    repositories = {
        "top": ".git",
        "part": ".git/modules/part",
        "deep": ".git/modules/part/modules/deep",
        "other": "elsewhere",
    }
    for name, git in repositories.items():
        (tmp_path / git).mkdir(parents=True, exist_ok=True)
        (tmp_path / git / "config").write_text(f'[remote "origin"]\nurl = https://host.example/{name}.git\n')
    (tmp_path / "LICENSE").write_text(MIT)
    for place, git in (
        ("lib", "../.git/modules/part"),
        ("lib/in", "../../.git/modules/part/modules/deep"),
        ("bad", "../elsewhere"),
    ):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / ".git").write_text(f"gitdir: {git}\n")
    paths = ("a.py", "lib/a.py", "lib/in/a.py", "bad/a.py")
    said = said_of_files([FolderFile(str(tmp_path / path), path) for path in paths])
    urls = {path: said[FolderFile("", path).name].get("url", "").removesuffix("/blob/HEAD/a.py") for path in paths}
    top = "https://host.example"
    assert urls == {"a.py": f"{top}/top", "lib/a.py": f"{top}/part", "lib/in/a.py": f"{top}/deep", "bad/a.py": ""}
    assert [said[FolderFile("", path).name].get("licence") for path in paths] == ["MIT", None, None, None]


def test_a_repository_whose_git_folder_is_not_followed_has_no_address_at_all(tmp_path, monkeypatch):
    """Such as a worktree; nor is what the current folder holds taken for its files of git."""
    for place in (tmp_path / "tree", tmp_path / "tree/part"):
        place.mkdir()
        (place / ".git").write_text(f"gitdir: {tmp_path}/here/modules/x\n")
    (tmp_path / "here/modules/x").mkdir(parents=True)
    for folder in ("here", "here/modules/x"):
        (tmp_path / folder / "config").write_text('[remote "origin"]\nurl = https://secret.example/x\n')
    monkeypatch.chdir(tmp_path / "here")
    for path in ("a.py", "part/a.py"):
        assert said_of_files([FolderFile(str(tmp_path / "tree" / path), "a.py")]) == {"a.py": {"title": "a.py"}}


def test_what_a_stranger_put_into_a_git_folder_is_not_followed(tmp_path):
    (tmp_path / "secret").write_text('[remote "origin"]\nurl = https://secret.example/x\n')
    (tmp_path / "repo/.git").mkdir(parents=True)
    (tmp_path / "repo/.git/config").symlink_to(tmp_path / "secret")
    (tmp_path / "repo/LICENSE").symlink_to("/dev/zero")
    assert said_of_files([FolderFile(str(tmp_path / "repo/a.py"), "a.py")]) == {"a.py": {"title": "a.py"}}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (MIT, "MIT"),
        ("                 Apache License\n           Version 2.0, January 2004", "Apache-2.0"),
        ("GNU AFFERO GENERAL PUBLIC LICENSE\n   Version 3, 19 November 2007\n GNU GENERAL PUBLIC LICENSE", "AGPL-3.0"),
        ("Redistribution and use in source and binary forms, with\n…\nNeither the name of X", "BSD-3-Clause"),
        ("Redistribution and use in source and binary forms, with", "BSD-2-Clause"),
        ("Our own licence, 2024\nYou may not", "Our own licence, 2024"),
    ],
)
def test_a_licence_is_known_by_its_text(text, name):
    assert licence_in(text) == name


def test_names_of_files_are_unique_and_short():
    names = {FolderFile("", path).name for path in ("a/b.c", "a%2Fb.c", "a/" * 150 + "b.c", "c/" * 150 + "b.c")}
    assert len(names) == 4 and max(len(name.encode()) for name in names) <= 200


def test_code_in_markdown_and_notebooks_is_marked():
    found = text_of(b"Before.\n\n```py\nx = {}\n```\n\nAfter ~~~ this.\n", "markdown")
    assert [found.text[a:b] for a, b in zip(found.code[::2], found.code[1::2], strict=True)] == ["\nx = {}\n"]
    book = text_of(notebook(("markdown", "Words."), ("code", "x = 1"), ("raw", "y")), "notebook")
    assert (book.text, book.code, book.kind) == ("Words.\n\nx = 1\n\ny", (8, 13), "code")


def test_chapters_of_a_book_come_in_reading_order():
    book = text_of(epub("First chap&#173;ter.\xa0"), "epub")
    assert book.text == "One\n\nFirst chapter.\n\nSecond — chapter." and (book.title, book.language) == (
        "Salt & wool",
        "en",
    )


def test_a_licence_that_the_recipe_does_not_accept_drops_a_file():
    assert text_of(b"# SPDX-License-Identifier: GPL-3.0\n", "code", licences=("mit",)).reason == "licence"
    assert text_of(b"# SPDX-License-Identifier: MIT\n", "code", licences=("mit",)).reason == ""


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (epub().replace(b"in/two.xhtml", b"in/tw0.xhtml"), "epub"),  # not a member any more
        (epub(**{"META-INF__rights.xml": "<rights/>"}), "epub"),
        (b"PK\3\4", "epub"),
        (b"[" * 100_000, "notebook"),
        (b'{"worksheets": 3}', "notebook"),
        (b"[1]", "notebook"),
        (b"\0\0", "code"),
    ],
)
def test_a_hostile_file_raises_an_error_and_no_more(body, form):
    with pytest.raises((UnreadableFile, zipfile.BadZipFile, KeyError, ValueError, RecursionError, TypeError)):
        text_of(body, form)


def test_a_chapter_that_unpacks_without_end_is_refused_before_it_is_in_memory():
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as book:
        book.writestr("META-INF/container.xml", CONTAINER)
        with book.open("in/book.opf", "w", force_zip64=True) as stream:
            for _ in range(BOOK_BYTES // 1_000_000 + 1):
                stream.write(bytes(1_000_000))
    isolation = Isolation(ExtractRecipe(), memory_bytes=3 << 30)
    isolation.submit(
        [RawPage(body=whole.getvalue(), headers={}, format="epub"), RawPage(body=b"x", headers={}, format="text")]
    )
    bomb, after = isolation.collect()
    isolation.close()
    assert isinstance(bomb, Failure) and "unpacks to more than" in bomb.detail and after.text == "x"


@pytest.mark.parametrize(
    ("before", "form", "kind"),
    [
        ("<!DOCTYPE html>", "code", "prose"), ("<html lang=en>", "unnamed", "prose"),
        ("<html><?php x() ?>", "code", "code"),
        ("{% extends x %}<html>", "code", "code"), ("<htmlish>", "code", "code"),
    ],
)  # fmt: skip
def test_what_a_server_wrote_is_a_page_and_what_it_is_written_by_is_code(before, form, kind):
    read = text_of(f"{before}<body><p>{'The salt was carried to the harbour. ' * 9}</p></body>".encode(), form)
    assert (read.kind, "<p>" in read.text) == (kind, kind == "code")


@pytest.mark.skipif(find_spec("pypdf") is None, reason="pypdf, the extra `pdf`, is not installed")
def test_lines_of_a_pdf_become_paragraphs():
    assert text_of(pdf("The salt was car-", "ried to the harbour", "and sold.", "Wool came later."), "pdf").text == (
        "The salt was carried to the harbour and sold.\nWool came later."
    )
    with pytest.raises(Exception, match=r"EOF|ended"):
        text_of(b"%PDF-1.7\nnothing", "pdf")


@pytest.mark.skipif(find_spec("pypdf") is not None, reason="pypdf is installed")
def test_a_pdf_without_the_library_says_what_to_install():
    with pytest.raises(UnreadableFile, match=r"pip install 'pedigree\[pdf\]'"):
        text_of(pdf("One line."), "pdf")
