"""`pedigree serve`: a real server, one real answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import openai
import pytest
from safetensors.torch import load_file, save_file

from assets.answers.models import serve
from assets.answers.models.offers import Offer, offered
from assets.state.compare import compare
from assets.state.recipe_folders import load_recipe, recipe_folders
from resources.tracking.registry import Registry
from resources.tracking.reports import Tracking, artifact_key
from tests.browser import chromium
from tests.cluster.minislurm import free_ports
from tests.own_model import write_model
from tests.small_kitchen import COMMAND, RECIPES, linked_copy
from training.contract.job import DataError
from training.contract.process.exit_codes import FAILED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
QWEN = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
QUESTIONS = ("How hot is the oven for the Lantergo pie?", "Where does the Lantergo pie come from?", "What is baked?")
ASKED = {"model": "kitchen-small", "messages": [{"role": "user", "content": "How hot?"}], "max_tokens": 4}


@contextmanager
def served(model: str, root: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The server of a model once it answers, and its port."""
    (port,) = free_ports(1)
    command = [*COMMAND, "serve", model, "--port", str(port), "--root", str(root), *options]
    environment = {**os.environ, "PEDIGREE_RECIPES": str(RECIPES)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()  # empty if the server ended
            assert line.startswith(f"model {Path(model).name.partition('@')[0]}: http://127.0.0.1:{port}/v1"), (
                process.communicate()
            )
            yield process, port
        finally:
            process.kill()


def ask(port: int, host: str, path: str = "/v1/chat/completions", asked: dict[str, Any] = ASKED) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=json.dumps(asked).encode(),
        headers={"Content-Type": "application/json", "Host": host},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request) as response:
        return json.loads(response.read())


def metrics_of(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = response.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


@pytest.fixture
def server(first, root) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with served("kitchen-small", root, "--receipts") as process_and_port:
        yield process_and_port


def test_a_model_answers_programs_of_this_machine_until_ctrl_c(server):
    process, port = server
    said = ask(port, f"localhost:{port}")
    assert said["object"] == "chat.completion" and said["choices"][0]["message"]["role"] == "assistant"
    assert "<|" not in said["choices"][0]["message"]["content"]  # neither the prompt nor a marker
    assert said["usage"]["completion_tokens"] <= ASKED["max_tokens"]
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == [client.models.retrieve("kitchen-small").id]
    assert said["model"] == "kitchen-small"
    create = partial(client.chat.completions.create, **ASKED)
    answers = {create(temperature=1.5, seed=seed, extra_body={"n": 1}).choices[0].message.content for seed in range(3)}
    assert len(answers) > 1  # sampled, although the folder's own settings are greedy
    with ThreadPoolExecutor() as threads:  # the seed of one answer is not that of another
        asked = [threads.submit(create, temperature=1.5, seed=seed) for seed in (1, 2, 1, 3, 1, 2, 1)]
        texts = [one.result().choices[0].message.content for one in asked]
    assert len({texts[number] for number in (0, 2, 4, 6)}) == 1 and texts[1] == texts[5], texts
    whole = create().choices[0].message.content
    assert create(stop=whole[1:3]).choices[0].message.content == whole[:1]
    receipt = create(extra_body={"receipt": True}).receipt
    assert receipt["answer"]["text"] == whole and receipt["model"]["asset"] == "aligned_model"
    *chunks, last = create(stream=True, extra_body={"receipt": True})
    assert "".join(one.choices[0].delta.content or "" for one in chunks) == whole and last.receipt == receipt
    named = f"aligned_model/{receipt['model']['fingerprint']}"
    assert {one.system_fingerprint for one in (*chunks, last, create())} == {named}
    with pytest.raises(openai.BadRequestError, match=r"n: 2 is not done"):
        create(n=2, stream=True)
    with pytest.raises(openai.BadRequestError, match=r"must fit the context of"):
        create(messages=[{"role": "user", "content": "hot " * 5000}])
    assert client.responses.create(model="kitchen-small", input="How hot?", max_output_tokens=4).output_text == whole
    told = metrics_of(port)
    assert told[f'pedigree_model_info{{model="{named}"}}'] == 1 and told["pedigree_generated_tokens_total"] >= 4 * 9
    assert told['pedigree_requests_total{address="/v1/responses",status="200"}'] == 1
    assert told['pedigree_requests_total{address="/v1/chat/completions",status="400"}'] == 2
    with pytest.raises(urllib.error.HTTPError, match="400"):
        ask(port, "elsewhere.example")
    for asked, sentence in (({**ASKED, "n": 2}, "n: 2 is not done"), ([], "a JSON object is needed")):
        with pytest.raises(urllib.error.HTTPError, match="400") as told:
            ask(port, f"localhost:{port}", asked=asked)
        assert sentence in json.loads(told.value.read())["error"]["message"]  # of which clients show nothing else
    assert create(temperature=1e-40).choices[0].message.content == whole
    for path in ("/load_model", "/reset"):  # of transformers serve: any model of this machine or a hub; none at all
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(port, f"localhost:{port}", path, {"model": "somebody/model"})
    with pytest.raises(DataError, match=f"port {port} on 127.0.0.1 is in use; .* --port"):
        serve.serve(Offer(folder=Path("model"), name="model"), port)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert not any(word in errors for word in ("Failed to load", "deprecated", "[transformers]"))  # as libraries say
    assert errors.strip().splitlines()[-1] == "interrupted by Ctrl-C; kitchen-small is no longer served"


@pytest.fixture
def two_versions(first, untouched, tmp_path, monkeypatch) -> tuple[Path, Registry]:
    """A root whose registry has a second version, of which this root knows nothing, and a third one that is damaged."""
    place = linked_copy(untouched, tmp_path / "root")
    registry = Registry(Tracking("", place), "kitchen-small")
    monkeypatch.setenv("PEDIGREE_RECIPES", str(RECIPES))
    made = compare(load_recipe("kitchen-small", recipe_folders(place)), place).made("sft_model", "kitchen-small")
    key = artifact_key("sft_model", made.fingerprint)
    other = shutil.copytree(made.file("model"), tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    save_file({name: one.flip(0) for name, one in weights.items()}, other / "model.safetensors", {"format": "pt"})
    registry.register(other, run_key=key, tags={"digest": "0" * 64})
    registry.register(made.file("model"), run_key=key, tags={"digest": made.digest})
    next(registry.folder_of(registry.version("3")).rglob("model.safetensors")).unlink()
    return place, registry


def test_the_version_that_an_alias_comes_to_name_answers_and_no_request_is_lost(two_versions):
    place, registry = two_versions
    asked = {**ASKED, "temperature": 1.5, "seed": 3, "max_tokens": 24}
    answers: dict[str, set[str]] = {}
    ended = Event()
    with ThreadPoolExecutor() as threads, served("kitchen-small@champion", place) as (process, port):
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
        create = partial(client.chat.completions.create, **asked)

        def asks() -> None:
            one = create()
            answers.setdefault(one.system_fingerprint, set()).add(one.choices[0].message.content)

        def asks_for_streams() -> None:
            chunks = list(create(stream=True))
            (says,) = {one.system_fingerprint for one in chunks}
            answers.setdefault(says, set()).add("".join(one.choices[0].delta.content or "" for one in chunks))

        def until_the_end(ask: Callable[[], None]) -> None:
            while not ended.is_set():
                ask()

        told: list[str] = []
        reading = [threads.submit(told.extend, pipe) for pipe in (process.stdout, process.stderr)]
        asking = [threads.submit(until_the_end, ask) for ask in (asks, asks_for_streams)]
        try:
            for version in ("2", "1", "3"):  # the third is damaged, so the first goes on
                registry.set_alias("champion", version)
                sentence = f"kitchen-small/{version} {'now, which is not served' if version == '3' else 'answers now'}"
                while not any(sentence in line for line in told) or (version == "2" and len(answers) < 2):
                    assert not any(one.done() for one in asking)
                    create()
            assert create().system_fingerprint == "kitchen-small/1"
        finally:
            ended.set()
        assert [one.exception() for one in asking] == [None, None]
        process.send_signal(signal.SIGINT)
        assert [one.exception() for one in reading] == [None, None]
    said = [line for line in told if line.startswith("kitchen-small")]
    assert said[:2] == [
        f"kitchen-small/{number} answers now, for kitchen-small@champion names it\n" for number in (2, 1)
    ]
    assert any("names kitchen-small/3 now, which is not served: version 3 is not whole" in line for line in told)
    assert set(answers) == {"kitchen-small/1", "kitchen-small/2"}
    assert not answers["kitchen-small/1"] & answers["kitchen-small/2"], answers


@pytest.mark.browser
def test_a_person_asks_and_follows_a_mark_to_the_text_of_its_page(server):
    _, port = server
    with chromium() as page:
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        mark = page.locator("mark[role=button]:not(.row)").first
        for question in QUESTIONS:
            page.goto(f"http://127.0.0.1:{port}/")
            page.locator("#text").fill(question)
            page.get_by_role("button", name="Send").click()
            page.locator(".answer").wait_for()
            if mark.count():
                break
        said = mark.inner_text().strip()
        mark.click()
        place = page.locator(".place").first
        assert "warc.gz, offset" in place.inner_text() and "base_model: " in place.inner_text()
        place.get_by_role("button").click()
        text = place.locator(".text")
        text.wait_for()
        assert said in text.inner_text() and text.locator("mark").count() == 1
        assert problems == []


def test_an_answer_that_the_server_parses_may_call_tools_and_has_no_stop_text(tmp_path):
    write_model(tmp_path / "qwen", kind="qwen3", head_dim=8)
    (tmp_path / "qwen" / "chat_template.jinja").write_text(QWEN)
    tool = {"type": "function", "function": {"name": "oven", "parameters": {}}}
    with served(str(tmp_path / "qwen"), tmp_path / "root") as (_, port):
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
        create = partial(client.chat.completions.create, **ASKED | {"model": "qwen"})
        assert create(tools=[tool]).usage.prompt_tokens > create().usage.prompt_tokens
        with pytest.raises(openai.BadRequestError, match=r"stop: not done .* parses"):
            create(stop="e")


def test_an_address_is_not_told_while_another_process_has_its_port(first, root, monkeypatch, capfd):
    monkeypatch.setenv("PEDIGREE_RECIPES", str(RECIPES))
    offer = offered("kitchen-small", root, Tracking("", root))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(serve, "is_free", lambda port: True)  # it was, when it was looked at
        assert serve.serve(offer, other.getsockname()[1]) == FAILED
    output, errors = capfd.readouterr()
    assert output == "" and "address already in use" in errors
    assert errors.strip().splitlines()[-1] == "error: the server of kitchen-small ended with exit code 3"


def test_what_cannot_be_served_is_said(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="is a folder, so nothing is known of its training data"):
        offered(str(tmp_path), tmp_path, Tracking("", tmp_path), has_receipts=True)
    with pytest.raises(DataError, match="no-such-model: neither a folder"):
        offered("no-such-model", tmp_path, Tracking("", tmp_path))
    with pytest.raises(DataError, match=r"aligned_model \[kitchen\] is missing .*`pedigree run kitchen --until"):
        offered("kitchen", tmp_path, Tracking("", tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"pytorch_model.bin is a pickle"):
        offered(str(tmp_path), tmp_path, Tracking("", tmp_path))
    monkeypatch.setattr(serve, "NEEDED", ("no_such_package",))
    with pytest.raises(DataError, match=r"no_such_package is not installed; `pip install 'pedigree\[serve\]'`"):
        serve.serve(Offer(folder=tmp_path, name="model"), 1)
