"""The profile: where and how a recipe runs.

Nothing in it may change a fingerprint or a byte of a data artifact. It may change the numerics class of what a model
makes (threads, processes, degrees, micro-batches, device), and so the last bits of its sums; the record names the
class.

A profile is a YAML file. `default` is the size of every stage; `stages` names assets that differ, with only what
differs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, PrivateAttr, SecretStr, ValidationError, field_validator

from resources.compute.base import Backend
from resources.compute.size import Record, Size, SlurmSettings
from training.secrets import masked, remember, remember_address, without_secrets, yaml_problem

SHIPPED = Path(__file__).parent / "profiles"


class ProfileError(ValueError):
    """What a person wrote in a profile is not usable; the message says file, field, value and what would be."""


class Notify(Record):
    """Who is told of runs that fail or wait."""

    webhook: SecretStr = Field(
        default=SecretStr(""), description="http or https; ${NAME} stands for a variable; empty: nobody is told"
    )
    ui: str = Field(default="http://127.0.0.1:3000", description="the UI's address, for links to runs")

    @field_validator("webhook")
    @classmethod
    def _is_web(cls, webhook: SecretStr) -> SecretStr:
        address = with_variables(webhook.get_secret_value(), is_secret=True)
        if address and not re.match(r"https?://[^/\s]", address):
            raise ValueError("expected an address that begins with http:// or https://")
        return SecretStr(address)


def with_variables(address: str, *, is_secret: bool = False) -> str:
    """An address with `${NAME}` replaced by that variable's value. What is secret in it is masked from now on.

    With `is_secret` that is every value, as in the address of a webhook, whose path is its password.
    """
    values = []
    for name in re.findall(r"\$\{(\w+)\}", address):
        if name not in os.environ:
            raise ValueError(f"the environment variable {name} is not set")
        values.append(os.environ[name])
        address = address.replace(f"${{{name}}}", os.environ[name])
    remember_address(address)
    if is_secret:
        remember(address)
    place = without_secrets(address)
    remember(*(value for value in values if is_secret or value not in place))  # a host's name or a port is no secret
    return address


def secret_variables(address: str, *, is_secret: bool = False) -> set[str]:
    """The variables that an address refers to and whose values are secret in it, as `with_variables` has it."""
    names = set(re.findall(r"\$\{(\w+)\}", address)) & os.environ.keys()
    place = without_secrets(re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], ""), address))
    return {name for name in names if is_secret or os.environ[name] not in place}


class Profile(Record):
    """Where and how everything runs."""

    _withheld: frozenset[str] = PrivateAttr(default=frozenset())  # secrets of the orchestrator, by variable

    name: str
    description: str = ""
    tracking_uri: str = Field(
        default="", description="MLflow; empty: sqlite under the root; ${NAME} stands for a variable, say a password"
    )
    notify: Notify = Notify()
    default: Size = Size()
    stages: dict[str, dict[str, Any]] = Field(default_factory=dict)
    slurm: SlurmSettings = SlurmSettings()

    @field_validator("tracking_uri")
    @classmethod
    def _with_variables(cls, uri: str) -> str:
        return with_variables(uri)

    def size_for(self, asset: str) -> Size:
        """The size of the stage that makes `asset`, with 0 workers replaced by the machine's cores."""
        size = Size(**{**self.default.model_dump(), **self.stages.get(asset, {})})
        return size.model_copy(update={"workers": size.workers or available_cores()})

    def backend_for(self, asset: str) -> Backend:
        """The backend that runs the stage that makes `asset`."""
        backend = self.size_for(asset).backend
        if backend == "slurm":
            from resources.compute.slurm import SlurmBackend

            return SlurmBackend(self.slurm)
        from resources.compute.local import LocalBackend

        return LocalBackend(withheld=self._withheld)


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_profile(name_or_path: str) -> Profile:
    """The profile given by a shipped name or a path. ProfileError says file, field, value and what is right."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = SHIPPED / f"{name_or_path}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.yaml")))
        raise ProfileError(f"no profile is called {name_or_path!r}; there are: {names}, or the path of a YAML file")
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except yaml.YAMLError as error:
        raise ProfileError(f"{path.name}: not readable as YAML: {yaml_problem(error)}") from None
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path.name}: not UTF-8 from byte {error.start} on; save it as UTF-8") from None
    if not isinstance(data, dict):
        raise ProfileError(f"{path.name}: expected a mapping of fields, got {type(data).__name__}")
    try:
        profile = Profile(**data)
    except ValidationError as error:
        raise ProfileError(f"{path.name}: {_first_problem(error)}") from None
    own = {(str(data.get("tracking_uri", "")), False), (str((data.get("notify") or {}).get("webhook", "")), True)}
    profile._withheld = frozenset().union(*(secret_variables(one, is_secret=is_secret) for one, is_secret in own))
    for asset in profile.stages:
        try:
            profile.size_for(asset)
        except ValidationError as error:
            raise ProfileError(f"{path.name}: {_first_problem(error, within=('stages', asset))}") from None
    return profile


def _first_problem(error: ValidationError, *, within: tuple[str, ...] = ()) -> str:
    """The first thing that is wrong, as field, value, and what would be right."""
    problem = error.errors()[0]
    place = (*within, *(str(part) for part in problem["loc"]))
    where = ".".join(place)
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown field; there are {', '.join(_fields_beside(place))}"
    if problem["type"] == "value_error":
        return f"{where}: {problem['msg'].removeprefix('Value error, ')}"
    return masked(f"{where}: {problem['msg']}, got {problem.get('input')!r}")


def _fields_beside(place: tuple[str, ...]) -> list[str]:
    """The fields that could have stood where an unknown one did."""
    parts = {"default": Size, "stages": Size, "slurm": SlurmSettings, "notify": Notify}
    return sorted((parts[place[0]] if len(place) > 1 else Profile).model_fields)
