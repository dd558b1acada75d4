"""Who is at work in an artifact's folder: a run that waits, a process that holds its lease, or a job in a queue.

Nothing is changed by looking, and in doubt somebody is at work.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from assets.running.watchers import STALE_SECONDS, WATCHERS_FOLDER, Watcher
from resources.compute import supervise
from resources.compute.base import HANDLE_FILE, Handle
from resources.profile import Profile
from training.artifact import ARTIFACT_FILE
from training.process.lifetime import machine_id, start_of
from training.running.lease import LEASE_FILE


def at_work(folder: Path, profile: Profile, *, now: float) -> str:
    """Return, in words, which process or job is working in a folder; empty if there is none.

    `now` is the present time by the clock of the file system, by which the signs of other machines are judged.
    """
    return _watcher(folder, now) or _holder(folder, now) or _process(folder) or _job(folder, profile)


def _watcher(folder: Path, now: float) -> str:
    for path in sorted((folder / WATCHERS_FOLDER).glob("*.json")):
        data = _json(path)
        try:
            watcher = Watcher(**data)
        except TypeError:
            continue  # half written, or removed at this moment
        is_here = bool(watcher.machine) and watcher.machine == machine_id()
        if not watcher.is_gone and (is_here or now - _changed(path) <= STALE_SECONDS):
            return f"{watcher} waits for it"
    return ""


def _holder(folder: Path, now: float) -> str:
    path = folder / LEASE_FILE
    if not path.exists():
        return ""
    data = _json(path)
    process = data.get("process") or {}
    if process.get("machine") and process["machine"] == machine_id():
        lives = start_of(process["pid"]) == process["start"]
    else:
        lives = now - _changed(path) <= STALE_SECONDS
    return f"{data.get('owner', 'a process')} holds its lease" if lives else ""


def _process(folder: Path) -> str:
    data = _json(folder / "process.json")
    lives = "pid" in data and supervise.start_of(data["pid"]) == data.get("start")
    return f"process {data['pid']} of this machine makes it" if lives else ""


def _job(folder: Path, profile: Profile) -> str:
    """Return the job of an unfinished artifact that waits in a scheduler's queue or runs; empty if there is none."""
    data = _json(folder / HANDLE_FILE)
    if not data or data.get("backend") == "local" or (folder / ARTIFACT_FILE).exists():
        return ""
    what = f"job {data.get('id')} of {data.get('backend')}"
    try:
        backend = profile.backend_for(folder.parent.name)
        if backend.name != data.get("backend"):
            return f"{what} made it last, and the profile {profile.name} cannot ask there"
        status = backend.poll(Handle(**{name: data[name] for name in ("backend", "id", "key", "folder")}))
    except Exception as error:  # whatever a scheduler's command raises: nobody knows whether the job lives
        return f"{what} made it last, and could not be asked ({error})"
    return "" if status.is_over else f"{what} is {status.state}"


def _json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty object if there is none or it cannot be read."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
