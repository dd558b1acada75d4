"""The environment that jobs bring along: one archive, sent once to the login node and unpacked once on each node.

Any archive of `tar` with an interpreter at `bin/python` will do. It is named by its sha256 on the login node, below
`node_cache` on a node, and in the record of an attempt. A node that finds other bytes unpacks nothing.
"""

from __future__ import annotations

import shlex
import tarfile
from functools import lru_cache
from pathlib import Path

from resources.compute.slurm_calls import Login, SlurmError, SlurmRefusal, locked
from training.contract.files.checksums import Identity, identity_of, sha256_of

PLACE = ".cache/pedigree/environments"  # in the home of the login node, which its nodes see
FIELD = "parts.slurm.environment_file"
PYTHON = "bin/python"  # in an archive, if the profile names no other
PIXI_PACK = "pixi-pack.json"
_IS_THERE = 'if [ -e "$HOME/$1" ]; then echo there; fi'
# Gets a place in the home and a digest, and reads the archive: it is there whole, or not at all.
SEND = """
umask 077
to="$HOME/$1" part="$HOME/$1.$$"
mkdir -p "${to%/*}" && cat >"$part" && echo "$2  $part" | sha256sum -c --status && mv "$part" "$to" && exit
rm -f "$part"
exit 1
"""


def digest_of(file: str) -> str:
    """Return the sha256 of an environment's archive, which is read once. Raises SlurmRefusal if it cannot be read."""
    path = Path(file).expanduser()
    try:
        return _sha256_of(path, identity_of(path))
    except OSError as error:
        raise SlurmRefusal(f"{FIELD}: {path}: {error.strerror}") from None


@lru_cache(maxsize=4)
def _sha256_of(path: Path, _: Identity) -> str:
    return sha256_of(path)


def check_archive(file: str, python: str) -> None:
    """Raise SlurmRefusal unless the archive holds the interpreter; pixi-pack's own holds packages, not an environment.

    What pixi-pack puts into an archive is from its documentation (0.7): `pixi-pack.json`, `environment.yml`, `channel`.
    """
    try:
        with tarfile.open(Path(file).expanduser()) as archive:
            names = {member.name.removeprefix("./") for member in archive}
    except (OSError, tarfile.TarError) as error:
        raise SlurmRefusal(f"{FIELD}: {file}: {error}") from None
    if python in names:
        return
    if PIXI_PACK in names:
        raise SlurmRefusal(
            f"{FIELD}: {file} is pixi-pack's own archive, which holds packages and no environment; `pixi-unpack FILE`,"
            " then `tar -cf environment.tar -C env .` makes one of it"
        )
    raise SlurmRefusal(f"{FIELD}: {file} has no {python}; `tar -tf` must list it")


def send(file: str, login: Login, python: str = PYTHON) -> None:
    """Put an archive into the login's home, whole or not at all, unless it is there.

    Raises SlurmError if that fails, or if the archive has no interpreter.
    """
    digest = digest_of(file)
    with locked(f"{digest[:16]}.lock"):
        if is_sent(digest, login):
            return
        check_archive(file, python)
        try:
            with open(Path(file).expanduser(), "rb") as stream:
                login.call(["sh", "-c", SEND, "sh", f"{PLACE}/{digest}", digest], stream)
        except SlurmRefusal:
            raise
        except SlurmError as error:
            where = f"~/{PLACE} on {login.ssh or 'this machine'}"
            said = str(error).splitlines()[-1]
            raise SlurmError(f"{FIELD}: {file} cannot be written to {where}: {said}") from None


def is_sent(digest: str, login: Login) -> bool:
    """Whether the login's home has an archive already. Raises SlurmError if the login does not answer."""
    return "there" in login.call(["sh", "-c", _IS_THERE, "sh", f"{PLACE}/{digest}"]).split()


def folder_on_node(digest: str, node_cache: str) -> str:
    """Return where a node unpacks an archive."""
    return f"{node_cache}/environments/{digest}"


def unpack_lines(digest: str, node_cache: str, *, code: int) -> list[str]:
    """Return shell lines that unpack an archive, whole or not at all, unless the node has it; or exit with the code.

    Jobs of one node wait for the first of them.
    """
    return [
        f"environment={shlex.quote(folder_on_node(digest, node_cache))} archive=~/{PLACE}/{digest}",
        'mkdir -p "${environment%/*}" && (',
        '  flock 9; if [ -e "$environment" ]; then exit; fi',
        f'  echo "{digest}  $archive" | sha256sum -c - >&2 && rm -rf "$environment.part" &&',
        '    mkdir "$environment.part" && tar -xf "$archive" -C "$environment.part" &&',
        '    mv "$environment.part" "$environment"',
        f') 9>"$environment.lock" || exit {code}',
    ]
