"""The judges of chat: a model in a folder, or a server with OpenAI's chat interface; each answered call is kept.

The address of a server is checked as those of all requests are (training/data/web.py): one on this machine or beside it
must stand in PEDIGREE_FETCH_ALLOW. A key in PEDIGREE_JUDGE_API_KEY is sent to it, and nowhere else: redirects are not
followed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evaluation.decision.answers import MODEL_FOLDER
from training.contract.job import DataError
from training.contract.secrets import masked
from training.recipe.settings.judged_chat import JudgedChatRecipe

KEY_VARIABLE = "PEDIGREE_JUDGE_API_KEY"
WAITS_SECONDS = (1.0, 5.0, 25.0)  # before a call that failed is tried again
AGAIN = (408, 429, 500, 502, 503, 504)
NOT_TAKEN = (400, 413, 422)  # of this call, such as one that is too long; the others go on
TIMEOUT_SECONDS = 600.0  # without receiving a byte
MOST_BYTES = 16 << 20  # of an answer


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What a model answered to one call. `text` is None if it answered nothing; then `problem` says why.

    `served` is what a server said of its model. With `ends_job`, further calls would fail in the same way.
    """

    text: str | None
    problem: str = ""
    served: str = ""
    ends_job: bool = False


Call = Mapping[str, Any]


class AnsweredCalls:
    """The calls of a job that were answered, a line each, so that a job that was killed asks none of them twice."""

    def __init__(self, path: Path) -> None:
        self._path, self._said = path, dict[str, Said]()
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        whole = [line for line in lines if line.endswith(b"\n")]  # a kill may have cut the last one
        for line in whole:
            key, said = json.loads(line)
            self._said[key] = Said(**said)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "r+b" if lines else "wb") as stream:
            stream.truncate(sum(map(len, whole)))

    def answers(
        self,
        calls: Sequence[Call],
        ask: Callable[[Sequence[Call]], Sequence[Said]],
        *,
        at_once: int,
        done: Callable[[int], None],
    ) -> list[Said]:
        """Return what was said to each call, and ask those that have not been answered, some at once.

        Equal calls are asked once. `done` is told the number of answered calls after each batch.
        """
        wanted = {key: call for call in calls if (key := _key(call)) not in self._said}
        keys = list(wanted)
        for start in range(0, len(keys), at_once):
            some = keys[start : start + at_once]
            said = ask([wanted[key] for key in some])
            with open(self._path, "ab") as stream:
                for key, one in zip(some, said, strict=True):
                    self._said[key] = one
                    if one.text is not None:
                        stream.write(json.dumps([key, asdict(one)]).encode() + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
            if failed := next((one for one in said if one.ends_job), None):
                raise DataError(failed.problem)
            done(len(calls) - len(keys) + start + len(some))
        return [self._said[_key(call)] for call in calls]


def _key(call: Call) -> str:
    return hashlib.sha256(json.dumps(call, sort_keys=True).encode()).hexdigest()


def weights_in(folder: Path) -> Path:
    """Return the folder with a model's own files: the folder itself, or `model` inside it, as in an artifact."""
    inner = folder / MODEL_FOLDER
    return inner if inner.is_dir() else folder


class ModelJudge:
    """A model in a folder that answers each prompt with its likeliest tokens."""

    def __init__(self, folder: Path, recipe: JudgedChatRecipe) -> None:
        from training.generate.sampler import Sampler

        self._sampler = Sampler(folder, batch_size=recipe.batch_size)
        self._most = recipe.judge_max_new_tokens

    def __call__(self, prompts: Sequence[str]) -> list[Said]:
        """Return what the judge says to each prompt; nothing where the prompt does not fit into its positions."""
        encoded = self._sampler.encoder.conversations(
            [[{"role": "user", "content": prompt}] for prompt in prompts], is_prompt=True
        )
        room = self._sampler.max_length - self._most
        fit = [tokens for tokens in encoded if len(tokens) <= room]
        texts = iter(self._sampler.answers(fit, max_new_tokens=self._most) if fit else [])
        too_long = Said(text=None, problem=f"longer than the {room} positions that an answer leaves")
        return [Said(text=next(texts)) if len(tokens) <= room else too_long for tokens in encoded]


class ServedJudge:
    """A model behind OpenAI's chat interface, asked at temperature 0, as many prompts at once as a batch has."""

    def __init__(self, recipe: JudgedChatRecipe) -> None:
        assert recipe.endpoint is not None
        self._url = f"{recipe.endpoint.rstrip('/')}/chat/completions"
        self._asked = {"model": recipe.endpoint_model, "temperature": 0, "max_tokens": recipe.judge_max_new_tokens}
        key = os.environ.get(KEY_VARIABLE, "")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def __call__(self, prompts: Sequence[str]) -> list[Said]:
        """Return what the judge says to each prompt; nothing to one that the server does not take."""
        with ThreadPoolExecutor(len(prompts)) as threads:
            return list(threads.map(self._said, prompts))

    def _said(self, prompt: str) -> Said:
        body = json.dumps(self._asked | {"messages": [{"role": "user", "content": prompt}]}).encode()
        for wait in (*WAITS_SECONDS, None):
            status, answer = self._post(body)
            if status == 200:
                return _read(answer, self._url)
            problem = masked(f"HTTP {status}: {answer[:300].decode('utf-8', 'replace')}")
            if status in NOT_TAKEN:
                return Said(text=None, problem=problem)
            if status not in AGAIN or wait is None:
                break
            time.sleep(wait)
        told = f"judged_chat.endpoint: {masked(self._url)} answered {problem}"
        return Said(
            text=None, problem=f"{told}; what was judged is kept, and the next run goes on from there", ends_job=True
        )

    def _post(self, body: bytes) -> tuple[int, bytes]:
        """Return status and body of an answer; 503 if there is none, which is tried again."""
        from training.data.web import WRONG_ADDRESSES, _session, requests

        with _session() as session:
            try:
                answer = session.post(
                    self._url,
                    data=body,
                    headers=self._headers,
                    timeout=TIMEOUT_SECONDS,
                    allow_redirects=False,
                    stream=True,
                )
                with answer:
                    return answer.status_code, answer.raw.read(MOST_BYTES, decode_content=True)
            except WRONG_ADDRESSES as error:
                raise DataError(f"judged_chat.endpoint: {masked(self._url)}: {masked(str(error))}") from None
            except (requests.RequestException, OSError) as error:
                return 503, masked(f"no answer: {error}").encode()


def _read(answer: bytes, url: str) -> Said:
    """Return what a server's answer says. An answer that is not in OpenAI's form ends the job."""
    try:
        told = json.loads(answer)
        message = told["choices"][0]["message"]
        served = ", ".join(str(told[name]) for name in ("model", "system_fingerprint") if told.get(name))
        text = message.get("content")
    except (ValueError, LookupError, TypeError, AttributeError):
        said = masked(answer[:200].decode("utf-8", "replace"))
        problem = f"judged_chat.endpoint: {masked(url)} answers in another form than OpenAI's: {said}"
        return Said(text=None, problem=problem, ends_job=True)
    if not isinstance(text, str):
        return Said(text=None, problem="a message without text", served=served)
    return Said(text=text, served=served)
