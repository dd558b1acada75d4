"""Ctrl-C and SIGTERM, and reloads that are tried again; whole commands get them in tests/attacks and tests/cluster."""

from __future__ import annotations

import fcntl
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from dagster._utils.interrupts import capture_interrupts

from assets.services.dev import RELOAD_AGAIN_SECONDS, Reloading, recipes_state
from assets.services.signals import SIGNALS, exit_code_of, signals_noted
from assets.services.stores import LOCK_FILE
from tests.small_kitchen import COMMAND, RECIPES


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_signal_is_known_although_another_handler_got_it(number, code):
    before = signal.getsignal(signal.SIGTERM)
    of_this_process = signal.signal(signal.SIGINT, signal.default_int_handler)  # other tests of this process may differ
    with signals_noted() as received:
        assert received() == 0
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert exit_code_of(received()) == code
    handlers = {signal.SIGINT: of_this_process, signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    try:
        with signals_noted() as received:
            for one in handlers:
                signal.signal(one, lambda *_: None)  # as Dagster does while it runs
            signal.raise_signal(number)
            signal.raise_signal(signal.SIGINT)
            assert received() == number == received()
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_ignored_ctrl_c_stays_ignored_and_sigterm_ends_a_command_all_the_same():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals_noted() as received:
            signal.raise_signal(signal.SIGINT)
            assert received() == 0
            with capture_interrupts():  # as Dagster does around a run
                pass
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            assert received() == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_script_ends_a_run_in_its_background_although_dagster_has_run_in_it(tmp_path):
    """The shell of a script starts it with Ctrl-C ignored. It is struck while it tells Dagster how it ended."""
    home, argv = tmp_path / "dagster", [*COMMAND, "run", "kitchen-small", "--snapshots", "kitchen-1"]
    argv += ["--until", "crawl_archives", "--root", str(tmp_path), "--json"]
    shell = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *argv]
    environment = {**os.environ, "PEDIGREE_RECIPES": str(RECIPES)}
    run = subprocess.Popen(shell, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        while not any(tmp_path.glob("crawl_archives/*/process.json")):
            assert run.poll() is None, run.communicate()
            time.sleep(0.01)
        with open(home / LOCK_FILE, "a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            place = os.fstat(lock.fileno()).st_ino
            while not re.search(rf"-> FLOCK .* {run.pid} \S+:{place} ", Path("/proc/locks").read_text("utf-8")):
                assert run.poll() is None, run.communicate()
                time.sleep(0.01)
            run.send_signal(signal.SIGTERM)
            said, errors = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 143, errors
    assert json.loads(said.splitlines()[-1])["error"].startswith("ended by SIGTERM")


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers every question."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_) -> None:
        pass


def test_the_first_artifact_of_a_recipe_is_a_change_and_the_next_are_none(tmp_path):
    def after(*names):
        (tmp_path / "refs" / "base_model").mkdir(parents=True, exist_ok=True)
        for name in names:
            (tmp_path / "refs" / "base_model" / f"{name}.json").touch()
        return recipes_state(tmp_path)

    before, first = after(), after("kitchen")
    assert before != first and first == after("kitchen@kitchen-1", "kitchen@kitchen-2") != after("kitchen-rl")


def test_a_reload_that_nobody_answered_is_tried_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PEDIGREE_RECIPES", str(tmp_path))
    now = [100.0]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        reloading = Reloading(tmp_path / "root", port, lambda: now[0])
        reloading.look(timeout_seconds=0.05)
        (tmp_path / "new.yaml").write_text("extends: kitchen\n")
        assert capsys.readouterr() == ("", "")
        reloading.look(timeout_seconds=0.05)
        assert "(timed out); it is asked again" in capsys.readouterr().err
        reloading.look(timeout_seconds=0.05)
        assert capsys.readouterr() == ("", "")
    with http.server.HTTPServer(("127.0.0.1", port), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        now[0] += RELOAD_AGAIN_SECONDS
        reloading.look()
        assert "definitions loaded again (200)" in capsys.readouterr().out
        now[0] += RELOAD_AGAIN_SECONDS
        reloading.look()
        assert capsys.readouterr() == ("", "")
        server.shutdown()
