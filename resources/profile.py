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
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from resources.compute.backends import OWN, backend_part, make_backend
from resources.compute.base import Backend
from resources.compute.size import MOST_PORT, Size, read_size
from resources.run_storage import storage_of
from training.contract.parts.outside import PartsOf
from training.contract.process.cores import available_cores
from training.contract.records import RecipeError, all_of, no_such, read_record
from training.contract.secrets import masked, remember, remember_address, without_secrets
from training.contract.user_input.bounded import Allowed, check_bounds, check_texts, check_values, why_no_host
from training.contract.user_input.plain_data import read_yaml

SHIPPED = Path(__file__).parent / "profiles"
MOST_AT_ONCE = 64
SIZED_AS = {  # an asset that a profile does not name: that of another one
    "kept_steps": "base_model",
    "kept_long_context_steps": "long_context_model",
    "kept_sft_steps": "sft_model",
    "kept_align_steps": "aligned_model",
    "chosen_model": "model_scores",
    "quantized_scores": "safety_answers",
}
BOUNDS = {
    "parts.*": (float("-inf"), float("inf")),
    "*price_per_hour": (0, 10**12),  # in any currency
    "*_tokens": (1, 10**9),
    "*": (0, 10**6),
}
"""Of a number by the path of its field; the first pattern that fits decides."""
PORT = re.compile(r"[^/]*://[^/?]*:([0-9]+)(?:[/?]|\Z)")  # at the end of an address's host
STORES = ("http", "https", "file", "sqlite", "postgresql", "mysql", "mssql", "databricks")  # those of MLflow


def why_no_address(uri: str) -> str:
    """Return why an address in a profile can name nothing; empty if it can."""
    scheme, separator, _ = uri.partition("://")
    scheme = scheme.lower()
    port = PORT.match(uri)
    if port and not 0 < int(port[1]) <= MOST_PORT:
        return f"{masked(uri)}: names no port from 1 to {MOST_PORT}"
    if separator and scheme.partition("+")[0] not in STORES:
        plugins = entry_points(group="mlflow.tracking_store").names  # such as azureml
        known = ", ".join((*STORES, *sorted(plugins)))
        return "" if scheme in plugins else f"{masked(uri)}: {scheme}:// is not known; there are paths and {known}"
    return masked(why_no_host(uri)) if separator and scheme in STORES[:2] else ""


VALUES = Allowed(BOUNDS, why_no_address, addresses=("notify.ui",))


class ProfileError(ValueError):
    """A mistake in a profile. The message gives the file, the field, its value and what would be valid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notify:
    """Settings of messages about runs that fail or wait."""

    webhook: str | None = field(default=None, repr=False)  # `${NAME}` is an environment variable; None: no messages
    ui: str = "http://127.0.0.1:3000"  # the UI's address, for links to runs

    def __post_init__(self) -> None:
        if not re.match(r"https?://[^/\s]", self.ui):
            raise RecipeError(f"ui={masked(self.ui)!r}; an address that begins with http:// or https:// is right")

    @property
    def address(self) -> str | None:
        """The webhook with its variables replaced; None if that leaves it empty. Raises RecipeError if it is wrong."""
        address = with_variables("notify.webhook", self.webhook, is_secret=True)
        if address and (not re.match(r"https?://[^/\s]", address) or why_no_host(address)):
            raise RecipeError(
                "notify.webhook: expected an address that begins with http:// or https://, names a host, and perhaps"
                " a port, and has no white space"
            )
        return address or None


def with_variables(where: str, address: str | None, *, is_secret: bool = False) -> str | None:
    """The address with each `${NAME}` replaced by that environment variable; its secrets are masked in later output.

    With `is_secret`, the whole address and every value in it are secret, as for a webhook, whose path is its password.
    Raises RecipeError if a variable is not set.
    """
    if address is None:
        return None
    values = []
    for name in re.findall(r"\$\{(\w+)\}", address):
        if name not in os.environ:
            raise RecipeError(f"{where}: the environment variable {name} is not set")
        values.append(os.environ[name])
        address = address.replace(f"${{{name}}}", os.environ[name])
    remember_address(address)
    if is_secret:
        remember(address)
    place = without_secrets(address)
    remember(*(value for value in values if is_secret or value not in place))  # a host name or a port is no secret
    return address


def secret_variables(address: str, *, is_secret: bool = False) -> frozenset[str]:
    """The environment variables in an address whose values are secret, by the same rule as `with_variables`."""
    names = set(re.findall(r"\$\{(\w+)\}", address)) & os.environ.keys()
    place = without_secrets(re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], ""), address))
    return frozenset(name for name in names if is_secret or os.environ[name] not in place)


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Backend, resources, tracking store and notifications of all stages; one YAML file."""

    name: str
    description: str = ""
    tracking_uri: str | None = None  # MLflow; None: sqlite under the root; `${NAME}` is an environment variable
    dagster_storage: str | None = None  # PostgreSQL for Dagster's runs and events; None: sqlite under the root
    notify: Notify = Notify()
    partitions_at_once: int = 1  # assets and partitions that `pedigree run` makes at the same time
    default: dict[str, Any] = field(default_factory=dict)  # fields of `Size`
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)  # settings of backends, by name

    def __post_init__(self) -> None:
        if not 1 <= self.partitions_at_once <= MOST_AT_ONCE:
            raise RecipeError(f"partitions_at_once={self.partitions_at_once}; 1 to {MOST_AT_ONCE} is right")

    @property
    def tracker(self) -> str | None:
        """`tracking_uri` with its variables replaced. Raises RecipeError if one is not set, or it names nothing."""
        meant = with_variables("tracking_uri", self.tracking_uri)
        if why := why_no_address(meant or ""):
            raise RecipeError(f"tracking_uri: {why}")
        return meant

    @property
    def run_storage(self) -> dict[str, Any] | None:
        """`dagster_storage` as Dagster reads it. Raises RecipeError if it is wrong or a variable is not set."""
        meant = with_variables("dagster_storage", self.dagster_storage)
        return storage_of(self.dagster_storage, meant) if self.dagster_storage and meant is not None else None

    @property
    def withheld(self) -> frozenset[str]:
        """The environment variables that no job inherits, because they are secrets of the addresses."""
        webhook = secret_variables(self.notify.webhook or "", is_secret=True)
        return webhook | secret_variables(self.tracking_uri or "") | secret_variables(self.dagster_storage or "")

    def size_for(self, asset: str) -> Size:
        """The size of the stage that makes `asset`. Raises RecipeError for a field that is wrong.

        Kept steps have that of the training in which they are made, if the profile does not name them.
        """
        named = asset if asset in self.stages else SIZED_AS.get(asset, asset)
        where = f"stages.{named}" if named in self.stages else "default"
        given = {**self.default, **self.stages.get(named, {})}
        size = read_size(given, where=where)
        check_values(size, where, VALUES)
        part = backend_part(size.backend, self.parts, where=where)
        if part.most_nodes is not None and size.nodes > part.most_nodes:
            raise RecipeError(
                f"{where}: nodes={size.nodes}, but the backend {size.backend} has at most {part.most_nodes}; use"
                " processes, or backend slurm or kubernetes"
            )
        if size.node_cache is not None and not part.own_folders:
            raise RecipeError(
                f"{where}: node_cache={size.node_cache!r} is without effect: jobs of the backend {size.backend} see the"
                " root's folder; set it to null there"
            )
        if given.get("workers") is not None:
            return size
        return replace(size, workers=None if part.counts_cores else available_cores())

    def _check_parts(self) -> None:
        """Raise RecipeError for settings of a backend that no stage uses."""
        used = {str(one.get("backend") or "local") for one in (self.default, *self.stages.values())}
        PartsOf("profile", self.parts).check_used(used)
        for name in sorted({*self.parts, *(used & OWN.keys())}):
            make_backend(name, self.parts, where="default")

    def backend_for(self, asset: str) -> Backend:
        """The backend that runs the stage that makes `asset`."""
        return make_backend(self.size_for(asset).backend, self.parts, where=f"stages.{asset}")


def load_profile(name_or_path: str) -> Profile:
    """Load a profile by the name of a shipped one or by the path of a YAML file. Raises ProfileError for a mistake."""
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = SHIPPED / f"{name_or_path}.yaml"
    if not os.path.isfile(path):  # false too for a name that is too long
        names = sorted(file.stem for file in SHIPPED.glob("*.yaml"))
        told = no_such(f"no profile is called {name_or_path!r}", name_or_path, names)
        raise ProfileError(f"{told}, or the path of a YAML file")
    try:
        data = read_yaml(path)
    except RecipeError as error:
        raise ProfileError(str(error)) from None
    notify = data.get("notify")
    webhook = notify.get("webhook") if isinstance(notify, dict) else notify
    if isinstance(webhook, (str, list, dict)):
        remember(str(webhook))  # before reading, so that no message repeats it
    try:
        check_texts(data)
        check_bounds(data, BOUNDS)
        profile = read_record(Profile, data)
        check_values(profile, "", VALUES)
        all_of(lambda: profile.tracker, lambda: profile.run_storage, lambda: profile.notify.address)
        profile._check_parts()
        profile.size_for("")  # the default alone, so that its mistakes are not said again for every stage
        all_of(*(partial(profile.size_for, asset) for asset in profile.stages))
    except RecipeError as error:
        raise ProfileError(masked(str(error.in_file(path.name)))) from None
    return profile
