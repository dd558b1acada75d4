"""Objects in a store such as S3, each written whole under a key: put, create if absent, get, list, move, remove.

What the store refuses for the moment (it is busy, slow or gone) is tried again, and every time is logged. The packages
that talk to a store are imported when one is used.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from training.contract.errors import DataError
from training.contract.secrets import masked

log = logging.getLogger(__name__)

T = TypeVar("T")

# By the scheme of an address: the package that fsspec needs, and how it is installed.
PACKAGES = {
    "s3": ("s3fs", "it is one of Pedigree's own"),
    "gs": ("gcsfs", "pip install 'pedigree[gcs]'"),
    "az": ("adlfs", "pip install 'pedigree[azure]'"),
}
WAITS_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)  # before each further try
S3_CONFIG = {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 0}}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_KEYS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the file of an account",
    "az": "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME and a credential that it takes",
}
_RIGHTS = {
    "s3": "give the user of AWS_ACCESS_KEY_ID or AWS_PROFILE the right to list, read, write and remove objects there,"
    " or renew what has expired",
    "gs": "give the account of GOOGLE_APPLICATION_CREDENTIALS the right to list, read, write and remove objects there",
    "az": "give the credential of the AZURE_STORAGE_ variables the right to list, read, write and remove objects there,"
    " or renew what has expired",
}
_OWNERS = {
    "s3": "AWS_ACCESS_KEY_ID or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_CONNECTION_STRING",
}
_RENEW = {
    scheme: f"renew the credentials of {owner} and give the command again; what is finished is used"
    for scheme, owner in _OWNERS.items()
}
_REGION = "set AWS_DEFAULT_REGION to the bucket's region, or AWS_ENDPOINT_URL to the store that has it"
WAYS_OUT = {  # by the store's own code, or the name of the error of its package
    **dict.fromkeys(("ExpiredToken", "InvalidToken", "TokenRefreshRequired"), _RENEW["s3"]),
    **dict.fromkeys(("CredentialRetrievalError", "SSOTokenLoadError", "UnauthorizedSSOTokenError"), _RENEW["s3"]),
    "InvalidAuthenticationInfo": _RENEW["az"],
    "RefreshError": f"{_RENEW['gs']}; set this machine's clock if it is wrong",
    **dict.fromkeys(("RequestTimeTooSkewed", "RequestExpired"), "set this machine's clock"),
    **dict.fromkeys(("AuthorizationHeaderMalformed", "PermanentRedirect"), _REGION),
    "RecursionError": _REGION,
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch", "NoCredentialsError"), _KEYS["s3"]),
    **dict.fromkeys(("PartialCredentialsError", "ProfileNotFound"), _KEYS["s3"]),
    "401": f"{_KEYS['gs']}, and renew one that has expired",
    "NoAuthenticationInformation": _KEYS["az"],
    "AuthenticationFailed": f"{_KEYS['az']}, renew one that has expired, and set this machine's clock if it is wrong",
}
_GIVEN_UP = (errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ENAMETOOLONG, getattr(errno, "EREMCHG", errno.ENOENT))
_PASSING = {
    *("HTTPClientError", "ConnectionError", "ClientError", "IncompleteRead", "ResponseParserError"),
    *("ServiceRequestError", "ServiceResponseError", "ChecksumError", "TransportError"),
}
_REFUSED = {"ClientResponseError", "NoCredentialsError"}
_SPEAKERS = {"botocore", "aiobotocore", "aiohttp", "s3fs", "gcsfs", "google", "adlfs", "azure"}  # with stores


class StoreDown(OSError):
    """A store did not answer, or answered that it cannot now, in every try."""


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of a store whose keys begin with the address `s3://bucket/prefix`; `endpoint` is "" for S3 itself."""

    address: str
    endpoint: str = ""

    def put(self, key: str, data: bytes) -> None:
        """Write an object, whatever was there."""
        self._tried("write", key, lambda files, path: files.pipe_file(path, data))

    def put_file(self, key: str, file: Path) -> None:
        """Write an object from a local file, a large one in parts."""
        self._tried("write", key, lambda files, path: files.put_file(str(file), path))

    def create(self, key: str, data: bytes) -> bool:
        """Write an object if there is none of this key; return whether it was written."""

        def create(files: Any, path: str) -> bool:
            try:
                files.pipe_file(path, data, mode="create")
            except OSError as error:
                if isinstance(error, FileExistsError) or _code_of(error) in ("412", "PreconditionFailed"):
                    return False
                raise
            return True

        return self._tried("write", key, create)

    def check_conditions(self) -> None:
        """Raise DataError if the store creates an object that is there already: then two jobs could both commit."""
        key = f"probe-{uuid.uuid4().hex}"
        self.create(key, b"first")  # where nothing can be written, there is nothing to remove
        is_replaced = self.create(key, b"second")
        self.remove([key])
        if is_replaced:
            raise DataError(
                f"{self.address}: the store writes an object again that was to be written only if there is none, so two"
                " jobs could commit one artifact; it cannot hold a root"
            )

    def get(self, key: str) -> bytes | None:
        """Return the bytes of a small object in the store, or None if there is no object of this key."""
        once = {"max_concurrency": 1} if self.address.startswith("s3:") else {}  # else s3fs asks for its size first
        return self._tried("read", key, _unless_missing(lambda files, path: files.cat_file(path, **once)))

    def get_range(self, key: str, begin: int, end: int) -> bytes | None:
        """Return the bytes of an object from `begin` up to `end`, or None if there is no object of this key."""
        return self._tried("read", key, _unless_missing(lambda files, path: files.cat_file(path, start=begin, end=end)))

    def get_file(self, key: str, file: Path) -> bool:
        """Write an object into a local file; return False if there is none."""

        def get(files: Any, path: str) -> bool:
            files.get_file(path, str(file))
            return True

        return bool(self._tried("read", key, _unless_missing(get)))

    def listed(self, prefix: str) -> dict[str, Mapping[str, Any]]:
        """Return the objects whose keys begin with `prefix/`, with their sizes and tags, by key."""

        def find(files: Any, path: str) -> dict[str, Mapping[str, Any]]:
            files.invalidate_cache()
            above = len(path) - len(prefix)
            place, _, last = path.rstrip("/").rpartition("/")
            if self.address.startswith("s3:") and place:  # else s3fs asks twice more where nothing is there
                found = files.find(place, detail=True, prefix=f"{last}/")
            else:
                found = files.find(path, detail=True)
            if not found and self.address.startswith("az:"):
                _check_container(files, path.partition("/")[0])
            return {name[above:]: said for name, said in found.items() if name.rstrip("/") != path.rstrip("/")}

        return self._tried("list", prefix, find)

    def move(self, key: str, new: str) -> None:
        """Write a small object under a new key and remove the first; nothing is done if there is none."""
        if (data := self.get(key)) is not None:
            self.put(new, data)
            self.remove([key])

    def remove(self, keys: list[str]) -> None:
        """Remove objects; those that are not there are passed over."""
        paths = [f"{self._path}/{key}" for key in keys]
        if paths:
            self._tried("remove", keys[0], _unless_missing(lambda files, path: files.rm(paths)))

    def earlier_versions(self) -> int | None:
        """Return how many earlier versions of objects a versioned bucket keeps; None if the store does not say."""
        if not self.address.startswith("s3:"):
            return None
        bucket, _, prefix = self._path.partition("/")

        def count(files: Any, _: str) -> int:
            number, after = 0, dict[str, str]()
            while True:
                said = files.call_s3("list_object_versions", Bucket=bucket, Prefix=f"{prefix}/", **after)
                number += sum(not one["IsLatest"] for one in said.get("Versions", ()))
                if not said.get("IsTruncated"):
                    return number
                after = {"KeyMarker": said["NextKeyMarker"], "VersionIdMarker": said["NextVersionIdMarker"]}

        try:
            return self._tried("list the versions of", "", count)
        except (DataError, OSError):
            return None

    @property
    def _path(self) -> str:
        return self.address.partition("://")[2]

    def _files(self) -> Any:
        """Return fsspec's file system; it is one for each process, because a connection outlives no fork."""
        scheme = self.address.partition("://")[0]
        package, how = PACKAGES[scheme]
        try:
            importlib.import_module(package)
            fsspec = importlib.import_module("fsspec")
        except ImportError as error:
            raise DataError(f"{self.address}: {scheme}:// needs the package {package} ({how}): {error}") from None
        options: dict[str, Any] = {"use_listings_cache": False}
        if scheme == "s3":
            options |= {"config_kwargs": S3_CONFIG, **({"endpoint_url": self.endpoint} if self.endpoint else {})}
        if scheme == "gs":  # the other class asks for the kind of the bucket, by another protocol, each time
            files = importlib.import_module("gcsfs.core").GCSFileSystem(**options)
        else:
            try:
                files = fsspec.filesystem(scheme, **options)
            except ValueError as error:  # Azure's package, without an account
                raise DataError(masked(f"{self.address}: {_sentence_of(error)}; {_KEYS[scheme]}")) from None
        _try_once(files, scheme)
        return files

    def _tried(self, what: str, key: str, call: Callable[[Any, str], T]) -> T:
        """Call with the file system and the object's path, again after each error that may pass.

        Raise StoreDown if every try failed, and DataError for an error that does not pass.
        """
        for wait in (*WAITS_SECONDS, None):
            try:
                return call(self._files(), f"{self._path}/{key}")
            except DataError:
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise  # this machine's disk
                said = masked(f"cannot {what} {key} ({type(error).__name__}: {_sentence_of(error)})")
                if not _may_pass(error):
                    way_out = _way_out(error, *self.address.split("://"))
                    raise DataError("; ".join(filter(None, (f"{self.address}: {said}", way_out)))) from None
                if wait is None:
                    said = f"{said}; given up after {len(WAITS_SECONDS)} more tries"
                    raise StoreDown(errno.EIO, said, self.address) from None
                log.warning("%s: %s; trying again in %g s", self.address, said, wait)
                time.sleep(wait)
        raise AssertionError("the last try returns or raises")


def _try_once(files: Any, scheme: str) -> None:
    """Keep a file system's package from trying again without a word."""
    if scheme == "s3":
        files.retries = 1
    elif scheme == "gs":
        for name in ("_request", "_get_file_request", "_get_file_concurrent"):
            setattr(files, name, partial(getattr(type(files), name).__wrapped__, files))
    else:
        files.service_client._config.retry_policy.total_retries = 0


@contextmanager
def store_errors(address: str, *, reading: bool = False) -> Iterator[None]:
    """Context manager in which whatever a store or its package says becomes a DataError of one sentence.

    While a stream is `reading`, the errors of what reads it pass as they are.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        packages = {cls.__module__.partition(".")[0] for cls in type(error).__mro__}
        if reading and not packages & _SPEAKERS:
            raise
        missing = isinstance(error, FileNotFoundError) and _code_of(error) not in _NO_BUCKET
        said = "nothing is there" if missing else f"the store cannot be read ({type(error).__name__}: {error})"
        raise DataError(masked(f"{address}: {said}")) from None


def _check_container(files: Any, name: str) -> None:
    """Raise Azure's own error if there is no such container: its package takes the list of one for an empty list."""

    async def ask() -> None:
        async with files.service_client.get_container_client(name) as container:
            async for _ in container.list_blobs(results_per_page=1):
                return

    importlib.import_module("fsspec.asyn").sync(files.loop, ask)


def _unless_missing(call: Callable[[Any, str], T]) -> Callable[[Any, str], T | None]:
    def asked(files: Any, path: str) -> T | None:
        try:
            return call(files, path)
        except FileNotFoundError as error:
            if _code_of(error) in _NO_BUCKET:
                raise
            return None

    return asked


def _way_out(error: Exception, scheme: str, path: str) -> str:
    """Return what a person can do about an error of a store's address that does not pass; empty if it is not known."""
    if os.path.isabs(str(getattr(error, "filename", None) or "")):  # a file of this machine
        return ""
    code = _code_of(error)
    if code in _NO_BUCKET or isinstance(error, FileNotFoundError):
        return f"there is no bucket {path.partition('/')[0]}: make it, or name another"
    if way_out := WAYS_OUT.get(code) or WAYS_OUT.get(type(error).__name__):
        return way_out
    is_refused = isinstance(error, PermissionError) or code == "403" or _status_of(error) in ("401", "403")
    return _RIGHTS[scheme] if is_refused else ""


def _code_of(error: BaseException) -> str:
    """Return the code of the store's own answer behind an error; empty if there is none."""
    if str(error).startswith("Forbidden:"):  # of gcsfs
        return "403"
    for one in filter(None, (error, error.__cause__)):
        said = getattr(one, "response", None)  # of S3
        code = said.get("Error", {}).get("Code") if isinstance(said, dict) else None
        if code := code or getattr(one, "error_code", None) or _status_of(one):
            return str(getattr(code, "value", code))
    return ""


def _status_of(error: BaseException) -> str:
    """Return the status of HTTP that Azure's or Google's package tells of its answer; empty if it tells none."""
    of_google = getattr(error, "code", "") if type(error).__name__ == "HttpError" else ""
    return str(getattr(error, "status_code", None) or of_google or "")


def _sentence_of(error: BaseException) -> str:
    """Return what an error says on one line, without what Azure's says of the request; its code if it says nothing."""
    if isinstance(error, RecursionError):  # aiobotocore's
        return "the store sends the request away and does not say where to"
    said = " ".join(str(error).partition("\nRequestId:")[0].split())
    return said if said not in ("", "None") else _code_of(error)


def _may_pass(error: Exception) -> bool:
    """Whether the same request may succeed later: the store was busy, or the connection failed."""
    names = {cls.__name__ for cls in type(error).__mro__}
    if (status := _status_of(error)).isdigit():
        return int(status) in (408, 429) or int(status) >= 500
    if isinstance(error, OSError):
        refused = isinstance(error, (FileNotFoundError, FileExistsError, PermissionError)) or _code_of(error) == "403"
        return not refused and error.errno not in _GIVEN_UP and not names & _REFUSED
    return bool(names & _PASSING) and not names & _REFUSED
