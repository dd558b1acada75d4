"""Messages to a webhook, against a real HTTP server."""

from __future__ import annotations

import logging
import threading
from uuid import uuid4

import pytest
import yaml

from resources import notify
from resources.profile import ProfileError, load_profile
from tests.hook import SECRET, webhook


@pytest.fixture
def hook(monkeypatch):
    monkeypatch.setattr(notify, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(notify, "_SAID", threading.Event())
    monkeypatch.setattr(notify, "_UNDER_WAY", [])
    with webhook() as served:
        yield served


def post(hook, **message):
    notify.post(hook.address, message)
    notify.finish()


def test_a_message_is_one_json_object(hook):
    post(hook, asset="base_model", cause="ended by SIGKILL")
    assert hook.messages == [{"asset": "base_model", "cause": "ended by SIGKILL"}]


@pytest.mark.parametrize(("answers", "tries"), [([500, 503], 3), ([500] * 9, 3), ([429], 2), ([404], 1), ([410], 1)])
def test_what_may_go_well_later_is_tried_three_times_and_the_rest_once(hook, answers, tries):
    hook.answers = answers
    post(hook, asset="base_model")
    assert len(hook.messages) == tries


def test_a_redirect_is_not_followed(hook):
    hook.answers = [302]
    post(hook, asset="base_model")
    assert hook.paths == [f"/{SECRET}"]


def test_a_failure_is_said_once_and_without_the_address(hook, caplog):
    hook.answers = [404, 302]
    with caplog.at_level(logging.DEBUG):
        post(hook, asset="a")
        post(hook, asset="b")
        notify.post("http://127.0.0.1:1/" + SECRET, {})
        notify.post("http://[" + SECRET, {})
        notify.finish()
    assert len(caplog.records) == 1 and "it answered 404" in caplog.text
    assert SECRET not in caplog.text


def test_a_server_that_hangs_holds_nobody_up(hook, monkeypatch, caplog):
    monkeypatch.setattr(notify, "END_SECONDS", 0.2)
    monkeypatch.setattr(notify, "CALL_SECONDS", 200.0)
    hook.answers = [0] * 100
    threads = threading.active_count()
    for number in range(notify.MOST_UNDER_WAY + 5):
        notify.post(hook.address, {"number": number})
    assert hook.heard.acquire(timeout=30)  # the server has it and says nothing
    notify.finish()
    assert any(thread.is_alive() for thread in notify._UNDER_WAY)  # it waited for none of them to end
    assert len(notify._UNDER_WAY) <= notify.MOST_UNDER_WAY and "are under way" in caplog.text
    hook.goes_on.set()
    monkeypatch.setattr(notify, "END_SECONDS", 60.0)
    notify.finish()
    assert threading.active_count() <= threads + 2


@pytest.mark.parametrize("address", ["ftp://hooks/" + SECRET, "file:///etc/" + SECRET, SECRET, "http:///" + SECRET])
def test_an_address_that_is_no_web_address_is_refused_and_not_repeated(tmp_path, monkeypatch, address):
    monkeypatch.setenv("HOOK", address)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"name": "mine", "notify": {"webhook": "${HOOK}"}}))
    with pytest.raises(ProfileError, match=r"notify\.webhook: .* http") as refused:
        load_profile(str(path))
    assert SECRET not in str(refused.value)


def test_the_address_comes_from_the_environment_and_does_not_show(tmp_path, monkeypatch):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"name": "mine", "notify": {"webhook": "https://hooks/${HOOK}"}}))
    with pytest.raises(ProfileError, match=r"notify\.webhook: .* HOOK"):
        load_profile(str(path))
    monkeypatch.setenv("HOOK", SECRET)
    profile = load_profile(str(path))
    assert profile.notify.address == f"https://hooks/{SECRET}"
    assert SECRET not in repr(profile) and SECRET not in str(profile.notify)
    monkeypatch.setenv("HOOK", "")
    path.write_text(yaml.safe_dump({"name": "mine", "notify": {"webhook": "${HOOK}"}}))
    assert load_profile(str(path)).notify.address is None


@pytest.mark.parametrize(
    "notify", ["https://own/{}", {"webhook": ["https://own/{}"]}, {"webhook": "own/{}"}, {"webhook": "https://own/{}"}]
)
def test_a_webhook_written_into_the_profile_is_not_repeated(tmp_path, notify):
    path, secret = tmp_path / "mine.yaml", f"own-{uuid4()}"
    path.write_text(yaml.safe_dump({"name": "mine", "notify": notify}).replace("{}", secret))
    try:
        told = repr(load_profile(str(path)))
    except ProfileError as refused:
        told = str(refused)
    assert "notify" in told and secret not in told
