"""S3 servers on this machine for the tests of roots in a store: our small one, moto's, and a Ceph of one host."""

from __future__ import annotations

import importlib.util
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
from pathlib import Path

from tests.cluster.minis3 import MiniS3

KEY, SECRET = "of-the-tests", "secret-of-the-tests"
CEPH = ("ceph-mon", "ceph-osd", "ceph-mgr", "radosgw", "radosgw-admin", "monmaptool", "ceph-authtool", "ceph")


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
def mini(folder: Path) -> Iterator[str]:
    server = MiniS3()
    yield server.endpoint
    server.stop()


@contextmanager
def moto(folder: Path) -> Iterator[str]:
    (port,) = free_ports(1)
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "moto.log").open("w") as said:
        process = subprocess.Popen(argv, stdout=said, stderr=said)
    try:
        yield answering(f"http://127.0.0.1:{port}")
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
def ceph(folder: Path) -> Iterator[str]:
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
        yield f"http://{host}:{ports[2]}"
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
    return ""


SERVERS = {"mini": mini, "moto": moto, "ceph": ceph}
