"""The database in which Dagster keeps runs and events, where a profile names one: its address as Dagster reads it.

What is secret stays with its environment variable: Dagster's configuration lies under the root, for all to read.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote

from resources.compute.size import MOST_PORT
from training.contract.records import RecipeError
from training.contract.secrets import masked

VARIABLE = re.compile(r"\$\{(\w+)\}")
DRIVER = "postgresql+psycopg2"  # else SQLAlchemy 2.1 takes psycopg 3, with which dagster-postgres was not released
ADDRESS = re.compile(
    r"postgresql(?:\+psycopg2)?://(?P<username>[^:@/?#\s]+)(?::(?P<password>[^@/?#\s]*))?@"
    r"(?P<hostname>[^:@/?#\s]+)(?::(?P<port>[0-9]+))?/(?P<db_name>[^/?#\s]+)(?:\?(?P<params>[^#\s]+))?"
)
FORM = "postgresql:// and then USER:${PASSWORD}@HOST:PORT/DATABASE, or ${NAME} of a variable that holds all of it,"


def storage_of(address: str, meant: str) -> dict[str, Any]:
    """Return the `storage` of a `dagster.yaml`. Raise RecipeError for another address, or one with a plain password.

    `${NAME}` stands for the whole address, or for a whole part of it, because Dagster reads variables so. `meant` is
    the address with the variables' values.
    """
    whole = VARIABLE.fullmatch(address)
    if whole:
        if not meant.startswith(f"{DRIVER}://"):
            raise RecipeError(f"dagster_storage: {whole[1]} begins otherwise than {DRIVER}://")
        return {"postgres": {"postgres_url": {"env": whole[1]}}}
    found = ADDRESS.fullmatch(address)
    if not found:
        raise RecipeError(f"dagster_storage={masked(address)!r}; {FORM} is right")
    parts = {name: value for name, value in found.groupdict().items() if value}
    if parts.get("password") and not VARIABLE.fullmatch(parts["password"]):
        raise RecipeError(f"dagster_storage: a password is the name of an environment variable; {FORM} is right")
    if not 0 < int(parts.get("port", MOST_PORT)) <= MOST_PORT:
        raise RecipeError(f"dagster_storage: {masked(address)}: names no port from 1 to {MOST_PORT}")
    listed = parse_qsl(parts.pop("params", ""))
    params = dict(listed)
    if len(params) < len(listed):
        raise RecipeError("dagster_storage: a name stands twice after `?`; leave one of them out")
    if wrong := [name for name, value in params.items() if "password" in name or VARIABLE.search(value)]:
        raise RecipeError(
            f"dagster_storage: {wrong[0]} after `?` may hold neither a password nor a variable; {FORM} is right"
        )
    port = {"port": int(parts.pop("port"))} if "port" in parts else {}
    database = {"scheme": DRIVER, "password": "", **{name: _part(name, value) for name, value in parts.items()}, **port}
    return {"postgres": {"postgres_db": database | ({"params": params} if params else {})}}


def _part(name: str, value: str) -> str | dict[str, str]:
    whole = VARIABLE.fullmatch(value)
    if whole:
        return {"env": whole[1]}
    if VARIABLE.search(value):
        raise RecipeError(f"dagster_storage: a variable stands for the whole {name}; {FORM} is right")
    return unquote(value)
