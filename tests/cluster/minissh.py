"""A login node: sshd on loopback addresses, with keys and a home of its own; and archives of environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.cluster.minislurm import SEARCH_PATH, free_ports

SSHD = shutil.which("sshd", path=SEARCH_PATH)
PROJECT = Path(__file__).parents[2]
# Hosts as `ssh` is told of them; each has an address of its own, because calls to one address share a connection.
HOSTS = {"login": "127.0.0.1", "stranger": "127.0.0.2", "closed": "127.0.0.3", "bare": "127.0.0.4"}


def missing() -> str:
    """What this machine lacks, for people; empty when it lacks nothing."""
    return "" if SSHD and shutil.which("ssh") else "not installed: sshd (package openssh-server)"


class MiniSsh:
    """The login node. `bin` has an `ssh` that knows it as `login`.

    `stranger` shows another host key than the known one, `closed` knows no key of the user's, and `bare` has no command
    but `sh`. `variables` are in the environment of every command there.
    """

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder, self.home, self.bin = folder, folder / "home", folder / "bin"
        self._variables = {**variables, "HOME": str(self.home)}
        self._daemon: subprocess.Popen[bytes] | None = None
        (self.port,) = free_ports(1)
        for place in (self.home, self.bin, folder / "bare"):
            place.mkdir(parents=True)
        (folder / "bare" / "sh").symlink_to("/bin/sh")
        for name in ("host", "user", "other"):
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(argv, check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        self._write_known_hosts()
        (folder / "sshd.conf").write_text(self._sshd_config(), "utf-8")
        (folder / "ssh.conf").write_text(self._ssh_config(), "utf-8")
        (self.bin / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh.conf "$@"\n', "utf-8")
        (self.bin / "ssh").chmod(0o755)

    def start(self) -> None:
        """Let it answer."""
        assert SSHD is not None
        os.makedirs("/run/sshd", exist_ok=True)  # where sshd locks itself up
        argv = [SSHD, "-D", "-e", "-f", str(self.folder / "sshd.conf")]
        with open(self.folder / "sshd.log", "ab") as output:
            self._daemon = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        asked = [str(self.bin / "ssh"), "-o", "ConnectionAttempts=20", "login", "true"]
        subprocess.run(asked, check=True, timeout=30)

    def stop(self) -> None:
        """End it with all its connections."""
        assert self._daemon is not None
        children = Path(f"/proc/{self._daemon.pid}/task/{self._daemon.pid}/children").read_text().split()
        self._daemon.kill()
        self._daemon.wait()
        subprocess.run(["kill", "-KILL", *children], check=False) if children else None

    def _write_known_hosts(self) -> None:
        lines = []
        for host, address in HOSTS.items():
            key = (self.folder / ("other.pub" if host == "stranger" else "host.pub")).read_text("utf-8")
            lines.append(f"[{address}]:{self.port} {key}")
        (self.folder / "known").write_text("".join(lines), "utf-8")

    def _sshd_config(self) -> str:
        variables = {"PATH": SEARCH_PATH, **self._variables}
        lines = [f"Port {self.port}", *(f"ListenAddress {address}" for address in HOSTS.values())]
        lines += [f"HostKey {self.folder}/host", f"AuthorizedKeysFile {self.folder}/authorized"]
        lines += ["PidFile none", "StrictModes no", "UsePAM no", "PasswordAuthentication no", "MaxSessions 100"]
        lines += ["SetEnv " + " ".join(f"{name}={value}" for name, value in variables.items())]
        lines += [f"Match LocalAddress {HOSTS['bare']}", f"  SetEnv PATH={self.folder}/bare"]
        return "\n".join([*lines, ""])

    def _ssh_config(self) -> str:
        lines = []
        for host, address in HOSTS.items():
            key = self.folder / ("other" if host == "closed" else "user")
            lines += [f"Host {host}", f"  HostName {address}", f"  IdentityFile {key}"]
        lines += ["Host *", f"  Port {self.port}", "  IdentitiesOnly yes", "  GlobalKnownHostsFile /dev/null"]
        lines += [f"  UserKnownHostsFile {self.folder}/known", "  StrictHostKeyChecking yes"]
        return "\n".join([*lines, ""])


def hidden() -> tuple[str, ...]:
    """The folders that hold Pedigree and its environment on this machine, unless they are the system's own."""
    places = {str(PROJECT), sys.prefix, sys.base_prefix} - {"/usr"}
    return tuple(sorted(one for one in places if not any(one.startswith(f"{other}/") for other in places)))


def packed(path: Path) -> Path:
    """Write an archive with an interpreter, its library, Pedigree, and the packages that a toy's job imports."""
    version, base = f"python{sys.version_info[0]}.{sys.version_info[1]}", Path(sys.base_prefix)
    library = f"lib/{version}"
    wrapper = path.with_name("python")
    wrapper.write_text(
        f'#!/bin/sh\nhere=$(dirname "$0")\nexport LD_LIBRARY_PATH="$here/../lib"\nexec "$here/{version}" "$@"\n'
    )
    wrapper.chmod(0o755)
    needs = "import sys, s3fs, training.on_node, training.contract.running.command_line as _"
    tell = "[print(getattr(one, '__file__', '')) for name, one in sys.modules.items() if '.' not in name]"
    told = subprocess.run([sys.executable, "-c", f"{needs}; {tell}"], capture_output=True, text=True, check=True)
    packages = [Path(one) for one in told.stdout.split() if "/site-packages/" in one]
    with tarfile.open(path, "w") as archive:
        archive.add(wrapper, "bin/python")
        archive.add(base / "bin" / version, f"bin/{version}")
        for one in (base / "lib").glob("libpython3*.so*"):
            archive.add(one, f"lib/{one.name}")
        archive.add(base / library, library, filter=_no_tests)
        for one in [*packages, *(PROJECT / name / "__init__.py" for name in ("training", "evaluation"))]:
            one = one.parent if one.name == "__init__.py" else one
            archive.add(one, f"{library}/site-packages/{one.name}", filter=_no_tests)
    return path


def _no_tests(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = Path(member.name).name
    left_out = ("site-packages", "test", "tests", "idlelib", "ensurepip", "__pycache__")
    return None if name in left_out or name.startswith("config-") or member.name.endswith(".a") else member
