"""Sign a folder of a model in OpenSSF's model-signing format, and check it, by its own library.

The library is an optional extra (`pedigree[sign]`). A signature is made by an elliptic-curve key that a person names by
its path; no network is used. The library ignores git's files, and believes the list of ignored paths that stands in the
signature, so both are checked here: every file but the signature itself must be signed.
"""

from __future__ import annotations

import base64
import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.contract.job import DataError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

SIGNATURE_FILE = "model.sig"
CURVES = ("secp256r1", "secp384r1", "secp521r1")
NEEDED = ("model_signing", "cryptography", "OpenSSL")


def check_installed() -> None:
    """Raise DataError, with the command that installs them, if the packages for signatures are missing."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise DataError(
            f"signatures need {', '.join(missing)}, which is not installed; `pip install 'pedigree[sign]'` installs it."
            " An attestation without a signature needs nothing"
        )


def private_key(path: Path, password: str | None) -> EllipticCurvePrivateKey:
    """Return the private key in a PEM file. Raise DataError if it is none, or not of a curve that can be used."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), password.encode() if password else None)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: no private key can be read from it ({_short(error)})") from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise DataError(f"{path}: is not a key of an elliptic curve; {', '.join(CURVES)} can be used")
    return _usable(key, path)


def public_key(path: Path) -> EllipticCurvePublicKey:
    """Return the public key in a PEM file. Raise DataError if it is none, or not of a curve that can be used."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no public key can be read from it ({_short(error)})") from None
    if not isinstance(key, EllipticCurvePublicKey):
        raise DataError(f"{path}: is not a key of an elliptic curve; {', '.join(CURVES)} can be used")
    return _usable(key, path)


def _usable(key: Any, path: Path) -> Any:
    if key.curve.name not in CURVES:
        raise DataError(f"{path}: is a key of the curve {key.curve.name}; {', '.join(CURVES)} can be used")
    return key


def _short(error: Exception) -> str:
    return type(error).__name__ if isinstance(error, OSError) else str(error).partition(".")[0]


def sign(folder: Path, signature: Path, key: Path, password: str | None) -> None:
    """Sign every file of a folder except the signature itself."""
    from model_signing import hashing, signing

    hashed = hashing.Config().set_ignored_paths(paths=_inside(folder, signature), ignore_git_paths=False)
    secret: Any = password.encode() if password else None  # declared as text, and handed on to what takes bytes only
    config = signing.Config().use_elliptic_key_signer(private_key=key, password=secret).set_hashing_config(hashed)
    config.sign(folder, signature)


def problems(folder: Path, signature: Path, key: Path) -> list[str]:
    """Return a sentence for each reason why a folder is not what its signature says; empty if it is."""
    from model_signing import hashing, verifying

    if not signature.is_file():
        return [f"{SIGNATURE_FILE}: is not in {signature.parent}; the model was not signed, or the file was removed"]
    ignored = _inside(folder, signature)
    hashed = hashing.Config().set_ignored_paths(paths=ignored, ignore_git_paths=False)
    # one configuration for each check: a used one keeps the ignored paths of the signature before
    config = verifying.Config().use_elliptic_key_verifier(public_key=key).set_hashing_config(hashed)
    try:
        config.verify(folder, signature)
    except Exception as error:  # the library raises many kinds for what is no signature of this folder
        return [f"{SIGNATURE_FILE}: {_said(error)}"]
    unsigned = _files(folder) - _signed(signature) - set(ignored)
    return [f"{name}: lies in {folder} and is not signed" for name in sorted(unsigned)]


def _said(error: Exception) -> str:
    """Return the library's message without the bytes of digests, which the attestation shows in readable form."""
    text = " ".join(str(error).replace("\\'", "'").split())
    return text.partition(": Expected ")[0] or type(error).__name__


def _inside(folder: Path, signature: Path) -> list[str]:
    """Return a list with the path of the signature, relative to the folder; empty if the signature is not inside it."""
    found = signature.resolve()
    return [str(found.relative_to(folder.resolve()))] if found.is_relative_to(folder.resolve()) else []


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def _signed(signature: Path) -> set[str]:
    """Return the names of the files that a signature covers."""
    envelope = json.loads(signature.read_text("utf-8"))["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    return {one["name"] for one in statement["predicate"]["resources"]}
