"""The folder of a registered version that MLflow loads: `MLmodel`, an example, and the model's files by reference.

`mlflow.pyfunc.load_model` and `mlflow.transformers.load_model` read such a folder without this project's code. The
weights are not copied: the files in it are links to the files of the artifact. No file is a pickle.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from resources.tracking.deadline import wait_while_growing
from resources.tracking.errors import TrackingError, reason_of
from resources.tracking.store import shown

MODEL, TOKENIZER = Path("model"), Path("components", "tokenizer")  # where MLflow's transformers flavor looks
MLMODEL, EXAMPLE, REQUIREMENTS, PYTHON_ENV = "MLmodel", "input_example.json", "requirements.txt", "python_env.yaml"
OWN_FILES = (MLMODEL, EXAMPLE, REQUIREMENTS, PYTHON_ENV)
PACKAGES = ("mlflow", "torch", "transformers", "accelerate", "safetensors")
QUESTION = "How do I begin?"
MAX_NEW_TOKENS = 256
DOWNLOAD = """
import sys
from mlflow.artifacts import download_artifacts

print(f"\\n{download_artifacts(artifact_uri=sys.argv[1], dst_path=sys.argv[2])}")
"""
CHAT = "llm/v1/chat"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedAs:
    """A LoggedModel of MLflow: its id, the location of its files, and the digest of its own files (`own_digest`)."""

    model_id: str
    location: str
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """A model's score in an exam. `exam` is the digest of the exam's questions and `source` says where they are."""

    suite: str
    value: float
    exam: str
    source: str


def log_model(client: Any, export: Path, *, experiment: str, run_id: str, name: str, tags: dict[str, str]) -> LoggedAs:
    """Log the model in `export` as a LoggedModel of a run.

    If MLflow keeps its artifacts in a local folder, the LoggedModel refers to the weights; otherwise they are uploaded.
    """
    model = client.create_logged_model(
        experiment, name=name, source_run_id=run_id, tags=tags, model_type="transformers"
    )
    folder = local_folder(model.artifact_location)
    with tempfile.TemporaryDirectory() as scratch:
        digest = write_loadable(folder or Path(scratch), export, run_id=run_id, model_id=model.model_id)
        if folder is None:
            client.log_model_artifacts(model.model_id, scratch)
    client.finalize_logged_model(model.model_id, "READY")
    client.log_outputs(run_id, [_output(model.model_id)])
    return LoggedAs(model_id=model.model_id, location=model.artifact_location, digest=digest)


def _output(model_id: str) -> Any:
    from mlflow.entities import LoggedModelOutput

    return LoggedModelOutput(model_id=model_id, step=0)


def local_folder(location: str) -> Path | None:
    """The folder of an artifact location; None if it is on a server or in an object store."""
    if location.startswith("file:"):
        return Path(urllib.parse.unquote(urllib.parse.urlparse(location).path))
    return None if "://" in location or location.startswith("mlflow-artifacts:") else Path(location)


def downloaded(location: str, tracking_uri: str) -> Path:
    """Download the files of an artifact location into a new folder, and return the folder.

    Raise TrackingError if this fails, or if too little arrives in MLflow's time-out. A process of its own downloads,
    because MLflow's threads would keep this one from ending.
    """
    folder = Path(tempfile.mkdtemp())
    process = subprocess.Popen(
        [sys.executable, "-c", DOWNLOAD, location, str(folder)],
        env={**os.environ, "MLFLOW_TRACKING_URI": tracking_uri},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        printed, said = wait_while_growing(process, folder)
    except TimeoutError as error:
        raise TrackingError(f"MLflow at {shown(tracking_uri)} could not be asked: {reason_of(error)}") from None
    if process.returncode:
        last = ValueError((said.decode("utf-8", "replace").strip().splitlines() or ["no word"])[-1])
        raise TrackingError(f"MLflow at {shown(tracking_uri)} could not be asked: {reason_of(last)}")
    return Path(printed.decode("utf-8").splitlines()[-1])


def log_scores(client: Any, run_id: str, model_id: str, scores: Sequence[Score]) -> None:
    """Log scores as metrics of the LoggedModel and of its run, each with the exam as data set."""
    from mlflow.entities import Dataset, DatasetInput, InputTag, Metric

    now = int(time.time() * 1000)
    context = [InputTag(key="mlflow.data.context", value="evaluation")]
    exams = [Dataset(name=one.suite, digest=one.exam[:36], source_type="local", source=one.source) for one in scores]
    client.log_inputs(run_id, [DatasetInput(dataset=exam, tags=context) for exam in exams])
    rows = [
        Metric(f"eval/{one.suite}", one.value, now, 0, model_id, one.suite, one.exam[:36], run_id) for one in scores
    ]
    client.log_batch(run_id, metrics=rows)


def write_loadable(folder: Path, export: Path, *, run_id: str, model_id: str) -> str:
    """Write what MLflow needs to load the model in `export` into `folder`; return `own_digest` of it.

    `export` has the transformers layout. A model with a chat template takes and gives messages as OpenAI's interface
    does; any other continues a text. What is in `folder` is replaced, and other files of a model are removed.
    """
    for foreign in _foreign(folder, export):
        foreign.unlink()
    for target, source in _references(folder, export):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        _link(source, target)
    _mlmodel(export, run_id=run_id, model_id=model_id).save(str(folder / MLMODEL))
    (folder / EXAMPLE).write_text(json.dumps(_example(export)), "utf-8")
    pinned = [f"{name}=={version(name).partition('+')[0]}" for name in PACKAGES]
    (folder / REQUIREMENTS).write_text("\n".join(pinned) + "\n", "utf-8")
    (folder / PYTHON_ENV).write_text(
        f"python: {platform.python_version()}\ndependencies:\n- -r {REQUIREMENTS}\n", "utf-8"
    )
    return own_digest(folder)


def own_digest(folder: Path) -> str:
    """Return the sha256 over the files that MLflow's folder has of its own, in addition to links to the artifact.

    The digest covers the names and bytes of `OWN_FILES`; one of them that is missing counts as empty.
    """
    whole = hashlib.sha256()
    for name in OWN_FILES:
        data = (folder / name).read_bytes() if (folder / name).is_file() else b""
        whole.update(f"{name} {hashlib.sha256(data).hexdigest()}\n".encode())
    return whole.hexdigest()


def replaced_references(folder: Path, export: Path) -> list[str]:
    """Names of files in `folder` that are not those of `export`, though MLflow would load them."""
    others = [target for target, source in _references(folder, export) if _differ(target, source)]
    return [str(path.relative_to(folder)) for path in (*others, *_foreign(folder, export))]


def _foreign(folder: Path, export: Path) -> list[Path]:
    """Return the files in the folders of model and tokenizer that `export` does not have."""
    known = {target for target, _ in _references(folder, export)}
    there = (path for place in (MODEL, TOKENIZER) for path in sorted((folder / place).rglob("*")))
    return [path for path in there if not path.is_dir() and path not in known]


def _differ(target: Path, source: Path) -> bool:
    if not target.exists() or not source.exists():
        return True
    return not target.samefile(source) and not filecmp.cmp(target, source, shallow=False)


def _references(folder: Path, export: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each file of the folder that is a link to a file of the exported model, with that file.

    The folder with the tokenizer has no weights.
    """
    for source in sorted(path for path in export.rglob("*") if path.is_file()):
        name = source.relative_to(export)
        yield folder / MODEL / name, source
        if not name.name.startswith("model"):
            yield folder / TOKENIZER / name, source


def _link(source: Path, target: Path) -> None:
    """Make `target` a second name of a file.

    It is a hard link, or a symbolic link where hard links are not possible or allowed. MLflow loads both, but its
    server does not show a file behind a symbolic link that leads out of its own folder.
    """
    with suppress(OSError):
        os.link(source, target)
        return
    target.symlink_to(source.resolve())


def _mlmodel(export: Path, *, run_id: str, model_id: str) -> Any:
    """MLflow's description of the model in `export`, as `mlflow.transformers.save_model` writes it.

    A model that no class of transformers runs has no flavor: MLflow keeps it and loads it nowhere.
    """
    from mlflow.models import Model

    config = json.loads((export / "config.json").read_text("utf-8"))
    classes = config.get("architectures", [])
    tokenizer = json.loads((export / "tokenizer_config.json").read_text("utf-8"))
    chats = {"inference_task": CHAT} if _chats(export) else {}
    model = Model(
        run_id=run_id,
        model_id=model_id,
        signature=_signature(export) if classes else None,
        metadata={"task": CHAT} if chats else None,
        saved_input_example_info={"artifact_path": EXAMPLE, "type": "json_object"},
        model_size_bytes=sum(path.stat().st_size for path in export.rglob("*") if path.is_file()),
    )
    if not classes:
        return model
    model.add_flavor(
        "transformers",
        transformers_version=version("transformers"),
        code=None,
        task="text-generation",
        instance_type="TextGenerationPipeline",
        torch_dtype=f"torch.{config.get('dtype', 'float32')}",
        pipeline_model_type=classes[0],
        source_model_name=classes[0],
        model_binary=str(MODEL),
        components=["tokenizer"],
        tokenizer_type=tokenizer["tokenizer_class"],
        **chats,
    )
    settings = {"max_new_tokens": MAX_NEW_TOKENS} | ({} if chats else {"return_full_text": False})
    # As mlflow.pyfunc.add_to_model does; its import would take a second and warn about type hints of its own.
    return model.add_flavor(
        "python_function",
        loader_module="mlflow.transformers",
        python_version=platform.python_version(),
        env={"virtualenv": PYTHON_ENV},
        config=settings,
    )


def _chats(export: Path) -> bool:
    return (export / "chat_template.jinja").is_file()


def _example(export: Path) -> Any:
    return {"messages": [{"role": "user", "content": QUESTION}]} if _chats(export) else [QUESTION]


def _signature(export: Path) -> Any:
    from mlflow.models.signature import ModelSignature
    from mlflow.types.llm import CHAT_MODEL_INPUT_SCHEMA, CHAT_MODEL_OUTPUT_SCHEMA
    from mlflow.types.schema import ColSpec, Schema

    if _chats(export):
        return ModelSignature(inputs=CHAT_MODEL_INPUT_SCHEMA, outputs=CHAT_MODEL_OUTPUT_SCHEMA)
    return ModelSignature(inputs=Schema([ColSpec("string")]), outputs=Schema([ColSpec("string")]))
