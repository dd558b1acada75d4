"""Write a software bill of materials: every package of the lock files with version and checksums, as CycloneDX 1.5.

`make sbom` runs it. Standard library only; the same lock files give the same bytes.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LOCKS = ("lock.txt", "torch.txt", "uv.txt")
PINNED = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)")


def bill_of_materials(folder: Path = HERE) -> dict[str, Any]:
    """The CycloneDX document of the lock files in a folder."""
    texts = {name: (folder / name).read_text("utf-8") for name in LOCKS}
    digest = sha256("\n".join(texts.values()).encode()).hexdigest()
    found = {component["purl"]: component for text in texts.values() for component in _components(text)}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.UUID(digest[:32])}",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "pedigree", "bom-ref": "pedigree"}},
        "components": [found[purl] for purl in sorted(found)],
    }


def _components(text: str) -> Iterator[dict[str, Any]]:
    """The packages of a requirements file, with the checksums of every file that may be installed."""
    for line in text.replace("\\\n", " ").splitlines():
        if pinned := PINNED.match(line):
            name = re.sub(r"[-_.]+", "-", pinned["name"]).lower()
            purl = f"pkg:pypi/{name}@{pinned['version']}"
            checksums = sorted(set(re.findall(r"--hash=sha256:([0-9a-f]{64})", line)))
            component = {"type": "library", "name": name, "version": pinned["version"], "purl": purl, "bom-ref": purl}
            hashes = [{"alg": "SHA-256", "content": checksum} for checksum in checksums]
            yield {**component, **({"hashes": hashes} if hashes else {})}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(bill_of_materials(), indent=1) + "\n", "utf-8")
