"""Commands in processes of their own that are spared their imports.

Dagster and MLflow take 3 s of processor time, the command line a third of a second more. One process for each worker
of the tests imports them and is forked for each command, which does all else by itself, with arguments, environment,
output and an exit code of its own. That a command imports what it needs is shown where an interpreter starts for each.
A command's writer to MLflow is forked too, which spares it the import of MLflow.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

PROJECT = Path(__file__).parent.parent


def command(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `pedigree` with these arguments and this environment; return its exit code and what it printed."""
    with tempfile.TemporaryDirectory(prefix="command-") as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        asked = {"arguments": arguments, "environment": environment, "output": str(output), "errors": str(errors)}
        server = _server()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps({**asked, "folder": os.getcwd()}) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(arguments, code, output.read_text("utf-8"), errors.read_text("utf-8"))


@cache
def _server() -> subprocess.Popen[str]:
    argv = [sys.executable, "-W", "ignore", "-m", "tests.warm"]  # the project need not be installed beside it
    server = subprocess.Popen(argv, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)  # it ends with its input
    return server


def _import_all() -> None:
    """Import what every command imports: the libraries as `resources.tracking.store` does, then the command line."""
    from training.contract.process.lean import uncollected, without

    with uncollected("dagster"):
        import_module("dagster")
    with uncollected("mlflow"), without("pandas"):
        import_module("mlflow.store.tracking.sqlalchemy_store")
    import_module("assets.commands.cli")
    assert "resources.tracking.process" not in sys.modules, "it names its process when it is imported"


def _asked() -> dict[str, Any]:
    """Fork for each line of the input, and return what it asks for in the process that was forked."""
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            return json.loads(line)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    sys.exit()


def _become(asked: dict[str, Any]) -> None:
    """Give this process the arguments, environment, folder and output that were asked for."""
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv = ["pedigree", *asked["arguments"]]
    sys.path.insert(0, "")  # as for `python -c`
    for number, name in enumerate((os.devnull, asked["output"], asked["errors"])):
        opened = os.open(name, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)


class _Writer:
    """A writer that is forked on demand, as far as `resources.tracking.process` uses a process."""

    def __init__(self, demands: socket.socket, root: str, owner: str, log: IO[bytes]) -> None:
        (reader, pipe), self.returncode = os.pipe(), None
        socket.send_fds(demands, [json.dumps([root, owner]).encode()], [reader, log.fileno()])
        os.close(reader)
        self.stdin = os.fdopen(pipe, "wb")

    def poll(self) -> int | None:
        """Return None: what a command does when its writer dies is tested where an interpreter starts for it."""
        return self.returncode


def _fork_writers() -> None:
    """Let this command's writers be forked from a process that starts no thread, and ends with the command."""
    process: Any = import_module("resources.tracking.process")
    demands, served = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        demands.close()
        while (said := socket.recv_fds(served, 4096, 2))[0]:
            if os.fork() == 0:
                os.setsid()
                for number, given in enumerate((said[1][0], said[1][1], said[1][1])):
                    os.dup2(given, number)
                root, owner = json.loads(said[0])
                process.main(Path(root), owner)
                os._exit(0)
            for given in said[1]:
                os.close(given)
        os._exit(0)
    served.close()

    def started(argv: list[str], *, stdout: IO[bytes], **options: Any) -> _Writer:
        return _Writer(demands, *argv[-2:], stdout)

    process.subprocess = SimpleNamespace(Popen=started, PIPE=subprocess.PIPE)


if __name__ == "__main__":
    _import_all()
    gc.freeze()
    _become(_asked())
    _fork_writers()
    from assets.commands.cli import main

    main()
