"""Sources that were read once are not read again, in any process, until they change."""

from __future__ import annotations

import hashlib
import http.server
import os
import threading
from pathlib import Path

import pytest

from training.data import sources
from training.data.checksum_cache import TABLE_FILE, forget, known_under
from training.data.sources import checksum_of

LONG_AGO = (10**18, 10**18)


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def source(tmp_path) -> Path:
    return changed(tmp_path / "a.jsonl", b"one")


def changed(path: Path, content: bytes, times: tuple[int, int] | None = LONG_AGO) -> Path:
    """Write content into the same file; by default nothing but reading shows it."""
    with open(path, "r+b" if path.exists() else "wb") as stream:
        stream.write(content)
        stream.truncate()
    if times:
        os.utime(path, ns=times)
    return path


def found(root: Path, uri: Path | str) -> str:
    """The checksum as a process that has just begun finds it."""
    sources._checksum_of_local.cache_clear()
    sources._checksum_of_remote.cache_clear()
    with known_under(root):
        return checksum_of(str(uri))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_is_read_once_for_all_processes_until_it_changes(root, source):
    assert found(root, source) == sha256(b"one")
    changed(source, b"two")
    assert found(root, source) == sha256(b"one")  # known by its size, time and inode: not read
    changed(source, b"two", (10**18, 10**18 + 1))
    assert found(root, source) == sha256(b"two")
    changed(source, b"three")
    assert found(root, source) == sha256(b"three")
    os.replace(changed(source.with_name("b"), b"seven"), source)
    assert found(root, source) == sha256(b"seven")


def test_the_table_is_of_one_root_and_can_be_forgotten(root, source, tmp_path):
    found(root, source)
    changed(source, b"two")
    assert found(tmp_path / "none", source) == sha256(b"two") and not (tmp_path / "none").exists()
    forget(root)
    assert found(root, source) == sha256(b"two")


def test_a_file_that_has_just_changed_is_read_again(root, source):
    changed(source, b"one", times=None)
    found(root, source)
    times = os.stat(source).st_atime_ns, os.stat(source).st_mtime_ns
    changed(source, b"two", times)
    assert found(root, source) == sha256(b"two")


def test_a_damaged_table_knows_nothing_and_stops_nobody(root, source):
    (root / TABLE_FILE).write_bytes(b"no table" * 500)
    assert found(root, source) == sha256(b"one")


@pytest.mark.parametrize(
    ("tags", "reads"), [(('"a"', '"a"'), 1), (('"a"', '"b"'), 2), (("", ""), 2), (('W/"a"',) * 2, 2)]
)
def test_a_remote_file_is_read_again_when_its_tag_changes(root, monkeypatch, tags, reads):
    monkeypatch.setenv("PEDIGREE_FETCH_ALLOW", "127.0.0.1")
    asked, present = [], [""]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.command)
            self.send_response(200)
            self.send_header("Content-Length", "3")
            if present[0]:
                self.send_header("ETag", present[0])
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(b"one")

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for present[0] in tags:
            assert found(root, f"http://127.0.0.1:{server.server_address[1]}/a.jsonl") == sha256(b"one")
        server.shutdown()
    assert asked.count("GET") == reads
