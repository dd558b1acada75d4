"""Commands in processes of their own that are spared the imports of Dagster and MLflow.

Both take 3 s of processor time, and the end-to-end tests give some fifty commands. One process for each worker of the
tests imports them and is forked for each command; no module of the project but `lean` is imported before the fork, so
the command imports and does the rest by itself, with arguments, environment, output and an exit code of its own.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

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


def _import_libraries() -> None:
    """Import what `pedigree run` imports, as `resources.tracking.store` does."""
    from training.contract.process.lean import uncollected, without

    with uncollected("dagster"):
        import_module("dagster")
    with uncollected("mlflow"), without("pandas"):
        import_module("mlflow.store.tracking.sqlalchemy_store")


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


if __name__ == "__main__":
    _import_libraries()
    gc.freeze()
    _become(_asked())
    from assets.commands.cli import main

    main()
