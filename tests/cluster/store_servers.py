"""Stores on this machine for the tests of roots in a store.

Of S3 there are our small server, moto's, and a Ceph of one host; of Azure, Microsoft's Azurite; of Google Cloud
Storage, Google's own test bench, in the environment of the Python that PEDIGREE_TEST_TESTBENCH names.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.minis3 import MiniS3

KEY, SECRET = "of-the-tests", "secret-of-the-tests"
TESTBENCH = "PEDIGREE_TEST_TESTBENCH"
AZURITE_ACCOUNT = "devstoreaccount1"  # Azurite's own; its key is published with it
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CEPH = ("ceph-mon", "ceph-osd", "ceph-mgr", "radosgw", "radosgw-admin", "monmaptool", "ceph-authtool", "ceph")


@dataclass(frozen=True)
class Store:
    """An empty bucket at an address, with what a process must have in its environment to reach it."""

    address: str
    environment: dict[str, str]
    endpoint: str = field(default="", kw_only=True)  # of S3


def s3_at(endpoint: str, *, makes_bucket: bool = True) -> Store:
    """Return the store at an endpoint of S3, with an empty bucket."""
    if makes_bucket:
        import boto3

        own = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=endpoint, **own).create_bucket(Bucket="bucket")
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1"}
    return Store("s3://bucket", {"AWS_ENDPOINT_URL": endpoint, **keys}, endpoint=endpoint)


def azurite_account(endpoint: str) -> str:
    """Return what AZURE_STORAGE_CONNECTION_STRING says of Azurite's account at an endpoint."""
    account = f"AccountName={AZURITE_ACCOUNT};AccountKey={AZURITE_KEY}"
    return f"{account};BlobEndpoint={endpoint}/{AZURITE_ACCOUNT};"


def free_ports(number: int) -> list[int]:
    """Return ports of loopback that nobody listens at."""
    sockets = [socket.socket() for _ in range(number)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def mini(folder: Path) -> Iterator[Store]:
    server = MiniS3()
    yield s3_at(server.endpoint, makes_bucket=False)
    server.stop()


@contextmanager
def moto(folder: Path) -> Iterator[Store]:
    (port,) = free_ports(1)
    with served(folder, sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)):
        yield s3_at(answering(f"http://127.0.0.1:{port}"))


@contextmanager
def azurite(folder: Path) -> Iterator[Store]:
    (port,) = free_ports(1)
    quiet = ("--skipApiVersionCheck", "--silent", "--disableTelemetry")
    with served(folder, "azurite-blob", "--blobPort", str(port), "--location", str(folder), *quiet):
        account = azurite_account(answering(f"http://127.0.0.1:{port}"))
        from azure.storage.blob import BlobServiceClient

        BlobServiceClient.from_connection_string(account).create_container("bucket")
        yield Store("az://bucket", {"AZURE_STORAGE_CONNECTION_STRING": account})


@contextmanager
def testbench(folder: Path) -> Iterator[Store]:
    (port,) = free_ports(1)
    program = Path(__file__).with_name("testbench_server.py")
    with served(folder, os.environ[TESTBENCH], str(program), str(port)):
        endpoint = answering(f"http://127.0.0.1:{port}")
        wanted = urllib.request.Request(
            f"{endpoint}/storage/v1/b?project=p",
            json.dumps({"name": "bucket"}).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(wanted, timeout=30).close()
        yield Store("gs://bucket", {"STORAGE_EMULATOR_HOST": endpoint})


@contextmanager
def served(folder: Path, *argv: str) -> Iterator[None]:
    """Context manager in which a program runs, whose output is in the folder."""
    with (folder / "server.log").open("w") as said:
        process = subprocess.Popen(argv, stdout=said, stderr=said)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def answering(endpoint: str) -> str:
    """Wait until a server answers, whatever it says."""
    while True:
        try:
            urllib.request.urlopen(endpoint, timeout=5).close()
        except urllib.error.HTTPError:
            pass
        except OSError:
            time.sleep(0.1)
            continue
        return endpoint


@contextmanager
def ceph(folder: Path) -> Iterator[Store]:
    """One monitor, manager and storage daemon, whose objects are in memory, and the gateway that speaks S3."""
    ports, run = free_ports(3), folder / "run"
    for name in ("mon", "mgr/x", "osd/0", "run", "rgw"):
        (folder / name).mkdir(parents=True)
    (folder / "ceph.conf").write_text(_configuration(folder, ports))
    (folder / "keyring").touch()
    env = {**os.environ, "CEPH_CONF": str(folder / "ceph.conf"), "CEPH_ARGS": f"-c {folder / 'ceph.conf'}"}

    def do(*argv: str) -> None:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{argv}: {done.stderr}"

    cluster, host = str(uuid.uuid4()), "127.0.0.1"
    try:
        addresses = f"[v2:{host}:{ports[0]},v1:{host}:{ports[1]}]"
        do("monmaptool", "--create", "--clobber", "--fsid", cluster, "--addv", "a", addresses, f"{folder}/monmap")
        do("ceph-mon", "-i", "a", "--mkfs", "--fsid", cluster, "--monmap", f"{folder}/monmap")
        do("ceph-mon", "-i", "a")
        do("ceph-mgr", "-i", "x")
        own = str(uuid.uuid4())
        do("ceph", "osd", "new", own)
        do("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", own)
        do("ceph-osd", "-i", "0")
        do("ceph-authtool", "--create-keyring", f"{folder}/keyring", "--gen-key", "-n", "client.rgw.a")
        do("radosgw", "-n", "client.rgw.a", "-k", f"{folder}/keyring", "--ms_mon_client_mode=crc")
        answering(f"http://{host}:{ports[2]}")
        user = ("--uid=tests", "--display-name=tests", f"--access-key={KEY}", f"--secret-key={SECRET}")
        do("radosgw-admin", "-n", "client.rgw.a", "user", "create", *user)
        yield s3_at(f"http://{host}:{ports[2]}")
    finally:
        for file in run.glob("*.pid"):
            _end(int(file.read_text()))


def _configuration(folder: Path, ports: list[int]) -> str:
    return f"""[global]
mon host = [v2:127.0.0.1:{ports[0]},v1:127.0.0.1:{ports[1]}]
public addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data = {folder}/mon/a
mgr data = {folder}/mgr/x
osd data = {folder}/osd/0
osd objectstore = memstore
memstore device bytes = 2147483648
osd max object name len = 256
osd max object namespace len = 64
run dir = {folder}/run
admin socket = {folder}/run/$name.asok
pid file = {folder}/run/$name.pid
log file = {folder}/run/$name.log
keyring = {folder}/keyring
mgr initial modules =
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{ports[2]}
rgw dns name = localhost
rgw enable usage log = false
"""


def _end(pid: int) -> None:
    """End a daemon and wait until it is gone: one in memory takes seconds."""
    try:
        os.kill(pid, signal.SIGKILL)
        while True:
            os.kill(pid, 0)
            time.sleep(0.05)
    except ProcessLookupError:
        return


def lacking(name: str) -> str:
    """Return what this machine lacks for a server; empty if it can be started."""
    if name == "moto" and importlib.util.find_spec("moto") is None:
        return "moto is not installed; `make s3` installs it"
    if name == "ceph" and importlib.util.find_spec("boto3") is None:
        return "boto3 is not installed; `make s3` installs it"
    if name == "ceph" and (absent := [program for program in CEPH if shutil.which(program) is None]):
        return f"no {absent[0]}: Debian has it in ceph-mon, ceph-osd, ceph-mgr, radosgw and ceph-common"
    if name == "azurite" and (importlib.util.find_spec("adlfs") is None or shutil.which("azurite-blob") is None):
        return "adlfs or azurite-blob is not installed; `make s3` installs them"
    if name == "testbench" and (importlib.util.find_spec("gcsfs") is None or not os.environ.get(TESTBENCH)):
        return f"gcsfs is not installed, or {TESTBENCH} names no Python; `make s3 TESTBENCH=PYTHON` does both"
    return ""


SERVERS = {"mini": mini, "moto": moto, "ceph": ceph, "azurite": azurite, "testbench": testbench}
