"""The parts of the kind `backends`: Pedigree's own, and those from the user's environment.

All are found by name, declare their settings, and are made in the same way. The errors of one from outside are raised
with its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from resources.compute.base import Backend, Handle, NotSubmitted, Status, Task
from training.contract.parts.outside import FROM, NoSettings, OutsidePart, PartFailed, PartsOf, running
from training.contract.records import RecipeError

T = TypeVar("T")

KIND = "backends"
OWN = {name: f"resources.compute.{name}:backend" for name in ("local", "slurm", "kubernetes")}
"""The places of Pedigree's own backends by name. A module is imported when a profile names its backend."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendPart:
    """A backend: `make` returns an object with the functions of `resources.compute.base.Backend`, from the settings.

    The fields of the record `settings` have defaults. The profile's resources are in each task's `size`. Without
    `workers`, a stage has one for each core of the orchestrator's machine, or, with `counts_cores`, for each core that
    the job finds. `most_nodes` is on how many nodes a task can run; None: on any number. With `own_folders`, tasks can
    run on nodes that do not see the root's folder (`Task.node_folder`).
    """

    make: Callable[[Any], Backend]
    settings: type = NoSettings
    counts_cores: bool = False
    most_nodes: int | None = None
    own_folders: bool = False


def backend_part(name: str, parts: Mapping[str, Mapping[str, Any]], *, where: str) -> BackendPart:
    """Return the backend that `where` of the profile names. Raise RecipeError if there is none."""
    if name in OWN:
        if FROM in parts.get(name, {}):
            raise RecipeError(f"parts.{name}.{FROM}: {name!r} is a part of Pedigree's; name yours otherwise")
        return OutsidePart(OWN[name]).load()
    if name == "ray":
        raise RecipeError(f"{where}.backend: ray is an engine, which runs the ranks of a job; set `engine: ray`")
    if ":" in name:
        raise RecipeError(f"{where}.backend: {name!r}; give it a short name here, and parts.NAME: {{from: …}}")
    return PartsOf(where, parts).load(KIND, name, OWN, field="backend", cls=BackendPart)


def make_backend(name: str, parts: Mapping[str, Mapping[str, Any]], *, where: str) -> Backend:
    """Return the backend that `where` of the profile names, with its settings. Raise RecipeError for a mistake."""
    part = backend_part(name, parts, where=where)
    settings = PartsOf("profile", parts).settings(name, part.settings)
    if name in OWN:
        return part.make(settings)
    return NamedBackend(name, _called(name, "cannot be made", lambda: part.make(settings)))


class NamedBackend:
    """A backend from outside. Raises PartFailed, with its name, for its errors and for what is no handle or status."""

    def __init__(self, name: str, backend: Any) -> None:
        functions = ("render", "submit", "poll", "cancel", "find", "log_tail")
        if absent := [one for one in functions if not callable(getattr(backend, one, None))]:
            raise PartFailed(f"backend {name} has no function {absent[0]}; resources.compute.base.Backend describes it")
        self.name = name
        self.poll_seconds = _called(
            name, "has a wrong poll_seconds", lambda: float(getattr(backend, "poll_seconds", 2))
        )
        self._backend: Backend = backend

    def render(self, task: Task) -> str:
        """Return the text of what `submit` runs."""
        return self._checked("render", lambda: self._backend.render(task), str)

    def submit(self, task: Task) -> Handle:
        """Start the task and return at once."""
        return self._checked("submit", lambda: self._backend.submit(task), Handle)

    def poll(self, handle: Handle) -> Status:
        """Return the task's present status."""
        return self._checked("poll", lambda: self._backend.poll(handle), Status)

    def cancel(self, handle: Handle) -> None:
        """End the task and everything it started."""
        _called(self.name, "failed in cancel", lambda: self._backend.cancel(handle))

    def find(self, key: str, folder: str) -> Handle | None:
        """Return the handle of the last task with this key for `folder`, or None."""
        return self._checked("find", lambda: self._backend.find(key, folder), Handle, None)

    def log_tail(self, folder: str, lines: int, attempt: str = "") -> str:
        """Return the last lines in the log of the task's last attempt."""
        return self._checked("log_tail", lambda: self._backend.log_tail(folder, lines, attempt), str)

    def _checked(self, function: str, call: Callable[[], T], *kinds: type | None) -> T:
        made = _called(self.name, f"failed in {function}", call)
        if not any(made is None if kind is None else isinstance(made, kind) for kind in kinds):
            raise PartFailed(f"backend {self.name} returned {made!r:.80} from {function}")
        return made


def _called(name: str, doing: str, call: Callable[[], T]) -> T:
    try:
        with running(f"backend {name}"):
            return call()
    except (NotSubmitted, RecipeError):
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise PartFailed(f"backend {name} {doing}: {type(error).__name__}: {error}") from error
