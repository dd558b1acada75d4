"""Requests and bytes of each asset on a root in an object store, beside the bytes that it has in a folder.

    python -m benchmarks.store_requests kitchen-small --until token_shards [--emptied]

Runs the recipe on this machine, one artifact after another, with the root in the tests' small S3 server. An asset has
what is asked from the reference of the artifact before to its own. With `--emptied` no file of an artifact stays in the
folder here after each, as on a machine that begins with the next one; without it nothing is asked for twice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from urllib.parse import urlsplit

from assets.services.cached import MAX_VARIABLE
from assets.state.recipe_folders import VARIABLE
from tests.cluster.minis3 import Answer, MiniS3
from tests.small_kitchen import COMMAND, RECIPES
from training.contract.tables import markdown_table

ROOT = "s3://bucket/root"
BETWEEN = "after the last"


class Counting(MiniS3):
    """The server, which counts requests and bytes by asset."""

    def __post_init__(self) -> None:
        self.by_asset: dict[str, Counter[str]] = {}
        self._since = Counter[str]()
        super().__post_init__()

    def answer(self, method: str, target: str, headers: dict[str, str], data: bytes) -> Answer:
        """Answer, and count what was asked for the artifact whose reference comes next."""
        code, body, said = super().answer(method, target, headers, data)
        with self.lock:
            self._since["LIST" if "list-type" in target else method] += 1
            self._since["read"] += len(body) if method == "GET" else 0
            self._since["written"] += len(data)
            parts = urlsplit(target).path.strip("/").split("/")
            if method == "PUT" and parts[-3:-2] == ["refs"]:
                self.close(parts[-2])
        return code, body, said

    def close(self, asset: str) -> None:
        """Count the requests and bytes since the last call as those of an asset."""
        self.by_asset.setdefault(asset, Counter()).update(self._since)
        self._since.clear()


def main() -> int:
    """Run the recipe and print the table; return the run's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--until", required=True, help="the last asset")
    parser.add_argument("--emptied", action="store_true", help="remove the files here after each artifact")
    options = parser.parse_args()
    server = Counting()
    with tempfile.TemporaryDirectory(prefix="store-") as folder:
        environment = {
            **os.environ,
            "AWS_ENDPOINT_URL": server.endpoint,
            **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "of-a-benchmark"),
            "AWS_DEFAULT_REGION": "us-east-1",
            "PEDIGREE_CACHE": folder,
            VARIABLE: str(RECIPES),
            **({MAX_VARIABLE: "1e-6"} if options.emptied else {}),
        }
        argv = [*COMMAND, "run", options.recipe, "--until", options.until, "--root", ROOT]
        done = subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=False)
        server.close(BETWEEN)
        print("\n".join(lines(server)))
    server.stop()
    return done.returncode


def lines(server: Counting) -> list[str]:
    """Return the table: assets in the order in which they were made, and their sums."""
    files = Counter[str]()
    for key, data in server.objects.items():
        if "/records/" in key:
            files[key.split("/")[-2]] += sum(one["bytes"] for one in json.loads(data)["files"])
    total = Counter[str]()
    for counted in server.by_asset.values():
        total.update(counted)
    methods = ("LIST", "GET", "HEAD", "PUT", "POST")
    rows = [
        (
            asset,
            *(f"{counted[name]:,}" for name in methods),
            *map(kilobytes, (counted["read"], counted["written"], own)),
        )
        for asset, counted, own in [
            *((asset, counted, files[asset]) for asset, counted in server.by_asset.items()),
            ("all", total, files.total()),
        ]
    ]
    return list(markdown_table(("asset", *methods, "kB read", "kB written", "kB in a folder"), rows))


def kilobytes(number: int) -> str:
    """Return bytes as kilobytes."""
    return f"{number / 1e3:,.1f}"


if __name__ == "__main__":
    sys.exit(main())
