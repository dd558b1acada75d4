"""The chat template in a model folder, and the digest of the template with which the model was trained.

Post-training writes the digest into config.json, so that it stays with every copy of the folder. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from training.contract.job import DataError

TEMPLATE_FILE = "chat_template.jinja"
MORE_FOLDER = "additional_chat_templates"  # of which loaders prefer default.jinja to TEMPLATE_FILE
DIGEST_FIELD = "chat_template_sha256"  # in config.json


def template_digest(template_text: str) -> str:
    """Return the sha256 (hex) of a chat template's text, by which evaluation and serving notice a changed template."""
    return hashlib.sha256(template_text.encode("utf-8")).hexdigest()


def check_template(model_folder: Path) -> None:
    """Raise DataError unless the folder's chat template is the one that the model was trained with.

    A folder whose config.json has no digest passes: it is a base model, or was not trained by this project.
    """
    config = model_folder / "config.json"
    trained = json.loads(config.read_text("utf-8")).get(DIGEST_FIELD) if config.is_file() else None
    if trained is None:
        return
    if (more := model_folder / MORE_FOLDER).exists():
        raise DataError(f"{more}: the model was trained with one chat template, {TEMPLATE_FILE}; remove the others")
    path = model_folder / TEMPLATE_FILE
    found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
    if found != trained:
        raise DataError(
            f"{path}: the chat template has the digest {found}, but the model was trained with {trained};"
            " put that template back, or train the model with this one"
        )
