"""The profile: where a recipe runs, and with which resources.

A profile changes no fingerprint and no byte of a data artifact. Its threads, processes, parallelism degrees,
micro-batches and device do change how floating-point sums are rounded, so the output of a model may differ in its last
bits. The artifact's record keeps these values as its numerics class.

A profile is a YAML file. `default` gives the resources of every stage. `stages` overrides single fields for single
assets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, PrivateAttr, SecretStr, ValidationError, field_validator

from resources.compute.base import Backend
from resources.compute.outside import BACKENDS, outside_backend
from resources.compute.size import ProfileRecord, Size, SlurmSettings, read_size
from training.parts.outside import PartsOf
from training.process.cores import available_cores
from training.records import RecipeError, all_of, did_you_mean, no_such
from training.secrets import masked, remember, remember_address, without_secrets, yaml_problem

SHIPPED = Path(__file__).parent / "profiles"


class ProfileError(ValueError):
    """A mistake in a profile. The message gives the file, the field, its value and what would be valid."""


class Notify(ProfileRecord):
    """Settings of messages about runs that fail or wait: the webhook's address and the UI's address for links."""

    webhook: SecretStr | None = Field(
        default=None, description="http or https; ${NAME} is an environment variable; None: no messages"
    )
    ui: str = Field(default="http://127.0.0.1:3000", description="the UI's address, for links to runs")

    @field_validator("webhook")
    @classmethod
    def _is_web(cls, webhook: SecretStr | None) -> SecretStr | None:
        if webhook is None:
            return None
        address = with_variables(webhook.get_secret_value(), is_secret=True)
        if not address:  # the variable is empty
            return None
        if not re.match(r"https?://[^/\s]", address):
            raise ValueError("expected an address that begins with http:// or https://")
        return SecretStr(address)


def with_variables(address: str, *, is_secret: bool = False) -> str:
    """The address with each `${NAME}` replaced by that environment variable; its secrets are masked in later output.

    With `is_secret`, the whole address and every value in it are secret, as for a webhook, whose path is its password.
    Raises ValueError if a variable is not set.
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
    remember(*(value for value in values if is_secret or value not in place))  # a host name or a port is no secret
    return address


def secret_variables(address: str, *, is_secret: bool = False) -> set[str]:
    """The environment variables in an address whose values are secret, by the same rule as `with_variables`."""
    names = set(re.findall(r"\$\{(\w+)\}", address)) & os.environ.keys()
    place = without_secrets(re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], ""), address))
    return {name for name in names if is_secret or os.environ[name] not in place}


class Profile(ProfileRecord):
    """Backend, resources, tracking store and notifications of all stages; one YAML file."""

    _withheld: frozenset[str] = PrivateAttr(default=frozenset())  # environment variables that no job inherits

    name: str
    description: str = ""
    tracking_uri: str | None = Field(
        default=None, description="MLflow; None: sqlite under the root; ${NAME} stands for a variable, say a password"
    )
    notify: Notify = Notify()
    cells_at_once: int = Field(
        default=1, ge=1, le=64, description="assets and partitions that `pedigree run` makes at the same time"
    )
    default: dict[str, Any] = Field(default_factory=dict)  # fields of `Size`
    stages: dict[str, dict[str, Any]] = Field(default_factory=dict)
    slurm: SlurmSettings = SlurmSettings()
    parts: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="place and settings of backends that are not Pedigree's, by name"
    )

    @field_validator("tracking_uri")
    @classmethod
    def _with_variables(cls, uri: str | None) -> str | None:
        return None if uri is None else with_variables(uri)

    def size_for(self, asset: str) -> Size:
        """The size of the stage that makes `asset`. Raises RecipeError for a field that is wrong."""
        where = f"stages.{asset}" if asset in self.stages else "default"
        size = read_size({**self.default, **self.stages.get(asset, {})}, cores=available_cores(), where=where)
        if size.backend not in BACKENDS:
            outside_backend(size.backend, self.parts, where=where)
        return size

    def _check_parts(self) -> None:
        """Raise RecipeError for settings of a backend that no stage uses."""
        used = {one.get("backend", "local") for one in (self.default, *self.stages.values())}
        PartsOf("profile", self.parts).check_used(used, BACKENDS)

    def backend_for(self, asset: str) -> Backend:
        """The backend that runs the stage that makes `asset`."""
        backend = self.size_for(asset).backend
        if backend not in BACKENDS:
            return outside_backend(backend, self.parts, where=f"stages.{asset}")
        if backend == "slurm":
            from resources.compute.slurm import SlurmBackend

            return SlurmBackend(self.slurm)
        from resources.compute.local import LocalBackend

        return LocalBackend(withheld=self._withheld)


def load_profile(name_or_path: str) -> Profile:
    """Load a profile by the name of a shipped one or by the path of a YAML file. Raises ProfileError for a mistake."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = SHIPPED / f"{name_or_path}.yaml"
    if not path.is_file():
        names = sorted(file.stem for file in SHIPPED.glob("*.yaml"))
        told = no_such(f"no profile is called {name_or_path!r}", name_or_path, names)
        raise ProfileError(f"{told}, or the path of a YAML file")
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
    own = {(str(data.get("tracking_uri") or ""), False), (str((data.get("notify") or {}).get("webhook") or ""), True)}
    profile._withheld = frozenset().union(*(secret_variables(one, is_secret=is_secret) for one, is_secret in own))
    try:
        profile._check_parts()
        profile.size_for("")  # the default alone, so that its mistakes are not said again for every stage
        all_of(*(partial(profile.size_for, asset) for asset in profile.stages))
    except RecipeError as error:
        raise ProfileError(masked(str(error.in_file(path.name)))) from None
    return profile


def _first_problem(error: ValidationError) -> str:
    """A sentence about the first mistake: the field, its value, and what would be valid."""
    problem = error.errors()[0]
    place = [str(part) for part in problem["loc"]]
    where = ".".join(place)
    if problem["type"] == "extra_forbidden":
        known = _fields_beside(place)
        meant = did_you_mean(place[-1], known)
        return f"{where}: unknown field;{meant} known fields here: {', '.join(known)}"
    if problem["type"] == "value_error":
        return f"{where}: {problem['msg'].removeprefix('Value error, ')}"
    return masked(f"{where}: {problem['msg']}, got {problem.get('input')!r}")


def _fields_beside(place: Sequence[str]) -> list[str]:
    """Return the valid field names of the section that has an unknown field, sorted, so that one can be suggested."""
    parts = {"slurm": SlurmSettings, "notify": Notify}
    return sorted((parts[place[0]] if len(place) > 1 else Profile).model_fields)
