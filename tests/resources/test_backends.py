"""A compute backend from the user's own environment, named in a profile."""

from __future__ import annotations

import time

import pytest

from resources.compute.base import NotSubmitted, Task
from resources.compute.size import Size
from resources.profile import ProfileError, load_profile
from training.contract.parts.outside import PartFailed

pytestmark = pytest.mark.usefixtures("examples")


def profile_of(folder, text: str):
    path = folder / "mine.yaml"
    path.write_text(f"name: mine\n{text}\n")
    return load_profile(str(path))


def own(place: str, settings: str = "") -> str:
    return f'stages: {{base_model: {{backend: mine}}}}\nparts: {{mine: {{from: "{place}"{settings}}}}}'


def test_a_stage_runs_on_it_with_its_own_settings(tmp_path):
    profile = profile_of(tmp_path, own("few_threads:backend", ", threads: 3"))
    backend, size = profile.backend_for("base_model"), profile.size_for("base_model")
    assert (backend.name, profile.backend_for("tokenizer").name) == ("mine", "local")
    argv = ("-c", "import os; print('threads', os.environ['OMP_NUM_THREADS'])")
    task = Task(key="k", argv=argv, size=size, folder=str(tmp_path / "job"))
    assert "OMP_NUM_THREADS" in backend.render(task)
    handle = backend.submit(task)
    while not (status := backend.poll(handle)).is_over:
        time.sleep(backend.poll_seconds)
    assert status.state == "succeeded" and backend.log_tail(task.folder, 1) == "threads 3"
    assert backend.find("k", task.folder) == handle


def test_it_is_not_handed_what_opens_the_tracker(tmp_path, monkeypatch):
    monkeypatch.setenv("DB_WORD", "three")
    where = 'tracking_uri: "postgresql://me:${DB_WORD}@db.example/mlflow"'
    profile = profile_of(tmp_path, f"{where}\n{own('few_threads:backend')}")
    backend, argv = profile.backend_for("base_model"), ("-c", "import os; print(os.environ.get('DB_WORD'))")
    task = Task(key="k", argv=argv, size=Size(), folder=str(tmp_path / "job"), withheld=profile.withheld)
    handle = backend.submit(task)
    while not backend.poll(handle).is_over:
        time.sleep(backend.poll_seconds)
    assert backend.log_tail(task.folder, 1) == "None"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("default: {backend: sloorm}", r"default\.backend: 'sloorm' is not one of 'local', 'slurm'.*`slurm`"),
        (own("few_threads:backend", ", thread: 3"), r"profile\.parts\.mine\.thread: unknown field; .*`threads`"),
        (own("polite:reward"), r"'polite:reward' is a Reward; it must be a resources\.compute\.backends\.BackendPart"),
        ("parts: {mine: {}}", r"profile\.parts\.mine: without effect"),
        (own("nowhere:it"), r"no module 'nowhere'"),
    ],
)
def test_a_mistake_is_told_when_the_profile_is_read(tmp_path, text, said):
    with pytest.raises(ProfileError, match=rf"mine\.yaml: .*{said}"):
        profile_of(tmp_path, text)


BACKEND = """
from resources.compute.base import NotSubmitted
from resources.compute.local import LocalBackend
from resources.compute.backends import BackendPart
class Mine(LocalBackend):
    def __init__(self, settings): super().__init__()
    def {function}
backend = BackendPart(make={make})
"""


@pytest.mark.parametrize(
    ("function", "make", "error", "said"),
    [
        ("submit(self, task): 1 / 0", "Mine", PartFailed, "backend mine failed in submit: ZeroDivisionError"),
        ("submit(self, task): return 7", "Mine", PartFailed, "backend mine returned 7 from submit"),
        ("submit(self, task): raise NotSubmitted('full')", "Mine", NotSubmitted, "full"),
        ("more(self): ...", "lambda settings: None", PartFailed, "backend mine has no function render"),
        (
            "slow(self): self.poll_seconds = 'soon'; return self",
            "lambda settings: Mine(settings).slow()",
            PartFailed,
            "backend mine has a wrong poll_seconds: ValueError",
        ),
    ],
)
def test_what_fails_in_a_backend_is_told_under_its_name(tmp_path, write, function, make, error, said):
    module = write(BACKEND.format(function=function, make=make))
    with pytest.raises((error, ProfileError), match=said):
        profile = profile_of(tmp_path, own(f"{module}:backend"))
        size = profile.size_for("base_model")
        profile.backend_for("base_model").submit(
            Task(key="k", argv=("-c", ""), size=size, folder=str(tmp_path / "job"))
        )
