"""The import closure of a stage: every first-party module that the stage's module imports, directly or indirectly.

This is the code that decides the stage's output, without the packages of parts (filter rules, optimizers, families,
methods, rewards): of these only the parts that a job's settings name count, and `training.contract.stage.modules_of`
adds them. Modules are read as source and never imported. A module's digest is a hash of its normalized code, without
comments, docstrings, layout and checks that only refuse (`training.contract.identity.refusals`), and is the same for
every version of Python. Standard library only.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from training.contract.files.writing import write_text
from training.contract.identity import refusals
from training.contract.identity.refusals import REFUSALS, leave_out_refusals

PACKAGES = ("training", "evaluation")

# Modules that stages import and that do not decide their output, with the reason. Every other imported module counts.
INFRASTRUCTURE = {
    "training.contract.running.marks": "says which ranks are finished; what they wrote is in the stage's modules",
    "training.contract.running.phase": "names the fan-outs of a stage; what a rank does is in the stage's module",
    "training.contract.stage": "what a stage declares is in the fingerprint, or is checked by a gate",
    "training.contract.identity.generated_sources": "the table of sources, each of which has a version of its own",
    "training.posttrain.answer_weights": "chooses how weights are sent, which changes no bit (test_joined.py)",
    "training.contract.files.objects": "moves bytes, which are checked when they are opened",
    "training.contract.files.stored_root": "says where files are, which are checked when they are opened",
    "training.contract.stored_state": "moves checkpoints, which are checked when they are read",
    "training.contract.process.stop_requests": "notes signals, after which a trainer saves what it has",
    "training.contract.process.lifetime": "ends processes, and counts those that live",
    "training.contract.process.lean": "leaves out imports that nobody uses",
    "training.contract.secrets": "masks passwords in sentences for people",
    **REFUSALS,
}

# Modules through which the runner decides a part of every artifact: the account of records, the manifest, the digests.
DECIDED = ("training.contract.running.accounts", "training.contract.artifact")

_IN_PACKAGES = re.compile(rf"({'|'.join(PACKAGES)})(\.[A-Za-z_]\w*)+(\.\*|:\w+)?")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_BY_NAME = ("find_spec", "import_module", "__import__", "files")  # functions that take the name of a module
_PARTS = ".*"  # after the name of a package: all of its modules, which `training.contract.parts.packages` imports
_NOT_CODE = ("ctx", "kind", "type_comment")  # fields of a syntax tree that are redundant or have no meaning
_OPENS_FILES = ("__file__", "PackageLoader", "importlib.resources")
MOST_KEPT = 1000  # cached sources; above this number, sources that this process has not read are dropped


@dataclass(frozen=True, slots=True)
class Module:
    """Facts read from one source file.

    They are its digest, the dotted names that it imports, and whether it opens packaged files. The digest of a source
    without code is empty.
    """

    digest: str
    imports: tuple[str, ...]
    opens_files: bool


@dataclass(frozen=True, kw_only=True)
class Code:
    """Reads the source code of packages from disk and caches what it read.

    `places` maps each top-level package to its folder or file. With `all_parts`, closures contain every part of each
    package of parts that they reach; without it, those of the packages of users alone.
    """

    places: Mapping[str, Path] = field(default_factory=lambda: {name: place_of(name) for name in PACKAGES})
    kept: ParsedSources = field(default_factory=lambda: KEPT, repr=False)
    all_parts: bool = False
    _modules: dict[str, Module] = field(default_factory=dict, init=False, repr=False)
    _direct: dict[str, set[str]] = field(default_factory=dict, init=False, repr=False)
    _digests: dict[str, dict[str, str]] = field(default_factory=dict, init=False, repr=False)
    _closures: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False)

    @staticmethod
    def around(module: str) -> Code:
        """Return the code of this project's packages and of the package that contains `module`.

        That package may be a user's own.
        """
        return Code(places={name: place_of(name) for name in dict.fromkeys((*PACKAGES, module.partition(".")[0]))})

    @cached_property
    def _paths(self) -> dict[str, Path]:
        """The path of the source file of each module of the packages, by the module's dotted name."""
        found = {}
        for package, place in self.places.items():
            for path in _files(place):
                if path.suffix == ".py":
                    parts = () if path == place else path.relative_to(place).with_suffix("").parts
                    found[".".join((package, *(parts[:-1] if parts[-1:] == ("__init__",) else parts)))] = path
        return found

    def module(self, name: str) -> Module:
        """Return the digest and imports of a first-party module, read from its source."""
        if name not in self._modules:
            package = name if self._paths[name].name == "__init__.py" else _above(name)
            self._modules[name] = self.kept.module(self.source(name), package)
        return self._modules[name]

    def source(self, name: str) -> bytes:
        """Return the source of a first-party module."""
        return self.path(name).read_bytes()

    def path(self, name: str) -> Path:
        """Return the path of a first-party module's source."""
        return self._paths[name]

    def closure(self, name: str) -> tuple[str, ...]:
        """Return the sorted names of the modules that decide the output of module `name`.

        They are the module itself, the modules in DECIDED, and every module that these import, without INFRASTRUCTURE.
        """
        if name not in self._closures:
            waiting, found = [name, *DECIDED], set[str]()
            while waiting:
                one = waiting.pop()
                if one not in found and one not in INFRASTRUCTURE:
                    found.add(one)
                    waiting += self.imported(one)
            self._closures[name] = tuple(sorted(found))
        return self._closures[name]

    def imported(self, name: str) -> set[str]:
        """Return the module, the modules that it imports, and the packages that contain these, which run first."""
        if name not in self._direct:
            found = set[str]()
            for dotted in (name, *self.module(name).imports):
                if dotted.endswith(_PARTS) and (self.all_parts or dotted.partition(".")[0] not in PACKAGES):
                    found |= {one for one in self._paths if _above(one) == _above(dotted)}
                while dotted:
                    found |= {dotted} & self._paths.keys()
                    dotted = _above(dotted)
            self._direct[name] = found
        return self._direct[name]

    def libraries(self, name: str) -> set[str]:
        """Return the third-party top-level modules that the closure imports."""
        found = {dotted.split(".")[0] for one in self.closure(name) for dotted in self.module(one).imports}
        return found - sys.stdlib_module_names - self.places.keys()

    def files(self, name: str) -> dict[str, Path]:
        """Return the packaged files that the closure can open.

        They are the files in subfolders of each folder that contains a module which opens packaged files.
        """
        folders = {self._paths[one].parent for one in self.closure(name) if self.module(one).opens_files}
        return {label: path for label, path in self._data.items() if path.parent.parent in folders}

    @cached_property
    def _data(self) -> dict[str, Path]:
        """Every data file inside the packages: all files that are neither Python code nor Markdown."""
        return {
            f"{package}/{path.relative_to(place).as_posix()}": path
            for package, place in self.places.items()
            for path in _files(place)
            if path.suffix not in (".py", ".md")
        }

    def digests(self, *names: str) -> dict[str, str]:
        """Return the digest of every module with code in the closures, and of every packaged file they can open."""
        return {one: digest for name in names for one, digest in self._digests_of(name).items()}

    def _digests_of(self, name: str) -> dict[str, str]:
        if name not in self._digests:
            modules = {one: self.module(one).digest for one in self.closure(name)}
            self.kept.save()
            files = {one: _sha256(path.read_bytes()) for one, path in self.files(name).items()}
            self._digests[name] = {one: digest for one, digest in {**modules, **files}.items() if digest}
        return self._digests[name]


_Stamps = dict[str, tuple[int, ...]]
_seen: tuple[_Stamps, Code] | None = None


def current_code() -> Code:
    """Return the code of PACKAGES as it is on disk now. If no file has changed, this is the object of the last call.

    A file counts as unchanged while its times, size and inode are the same. They are read before the file, so that
    a change during the reading is noticed by the next call.
    """
    global _seen
    code = Code()
    stamps = {name: stamp for place in code.places.values() for name, stamp in _stamps_in(str(place))}
    if _seen is None or _seen[0] != stamps:
        _seen = stamps, code
    return _seen[1]


def _stamps_in(folder: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and entry.name != "__pycache__":
                yield from _stamps_in(entry.path)
            elif entry.is_file():
                of = entry.stat()
                yield entry.path, (of.st_mtime_ns, of.st_ctime_ns, of.st_size, of.st_ino)


def place_of(package: str) -> Path:
    """Return the folder of a package, or the source file of a top-level module that is not a package."""
    spec = find_spec(package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    place = folders[0] if folders else spec.origin if spec else None
    if place is None:
        raise ModuleNotFoundError(f"{package} is not installed", name=package)
    return Path(place)


def _files(place: Path) -> list[Path]:
    """Return the files of a package, or the one source file of a top-level module that is not a package."""
    if place.is_file():
        return [place]
    walked = (walk for walk in sorted(os.walk(place)) if Path(walk[0]).name != "__pycache__")
    return [Path(folder, name) for folder, _, names in walked for name in sorted(names) if not name.startswith(".")]


def _above(name: str) -> str:
    return name.rpartition(".")[0]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


# Reading one source


def read_module(source: bytes, package: str) -> Module:
    """Return the digest and imports of a module of `package`, from its source.

    A source that is not valid Python has no imports.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return Module(digest=_sha256(source), imports=(), opens_files=False)
    imports = {name for name in _imports(tree, package) if name.partition(".")[0] not in sys.stdlib_module_names}
    text = source.decode("utf-8", "replace")
    code = normalized(tree, keeps_docstrings="__doc__" in text)
    return Module(
        digest=_sha256(code.encode()) if tree.body else "",
        imports=tuple(sorted(imports)),
        opens_files=any(word in text for word in _OPENS_FILES),
    )


def normalized(tree: ast.Module, *, keeps_docstrings: bool) -> str:
    """Return a module's code as text without comments, layout and what only refuses.

    Docstrings count if `keeps_docstrings`. What does not count is removed from the given tree.
    """
    leave_out_refusals(tree)
    for node in ast.walk(tree):
        if not keeps_docstrings and isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    words: list[str] = []
    _write(tree, words)
    return "".join(words)


def _write(value: Any, words: list[str]) -> None:
    """Append the text of `value` to `words`. Empty fields are left out, because a later Python may add more of them."""
    if isinstance(value, ast.AST):
        words.append(f"{type(value).__name__}(")
        for name in value._fields:
            part = getattr(value, name, None)
            if part is not None and part != [] and name not in _NOT_CODE:
                words.append(f"{name}=")
                _write(part, words)
        words.append(")")
    elif isinstance(value, list):
        words.append("[")
        for part in value:
            _write(part, words)
            words.append(",")
        words.append("]")
    else:
        words.append(repr(value))


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the dotted names that a module imports.

    They come from import statements at any level, from functions that take a module's name, and from strings that are a
    module's name (`python -m training.data.extract.isolation`, `package.module:name`). `package.*` stands for all
    modules of a package.
    """
    for node in _run(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and _name(node.func) in _BY_NAME:
            yield from (name.partition(":")[0] for name in map(_text, node.args[:1]) if name)
        elif isinstance(node, ast.Call) and _name(node.func) == "parts_in":
            yield f"{package}{_PARTS}"
        elif _IN_PACKAGES.fullmatch(text := _text(node)):
            yield text.partition(":")[0]


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a syntax tree without the bodies of `if TYPE_CHECKING`, which no process executes."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _name(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield from _run(other)
        else:
            yield from _run(child)


def _name(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _text(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


# Parsed sources are cached by checksum: parsing every module takes a second, reading the cache a hundredth of that.


class ParsedSources:
    """A cache of parsed sources, shared with later processes through the first of `paths` that can be written."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._used: dict[str, Module] = {}
        self._new = False

    @cached_property
    def _known(self) -> dict[str, Module]:
        for path in self._paths:
            try:
                kept = json.loads(path.read_text("utf-8"))
                return {key: Module(digest, tuple(imports), opens) for key, (digest, imports, opens) in kept.items()}
            except (OSError, ValueError, TypeError):
                continue
        return {}

    def module(self, source: bytes, package: str) -> Module:
        """Return the digest and imports of a source, from the cache if it is there."""
        key = _sha256(package.encode() + b"\0" + source)
        found = self._used.get(key) or self._known.get(key)
        self._new |= found is None
        self._used[key] = found or read_module(source, package)
        return self._used[key]

    def save(self) -> None:
        """Write the cache to disk if it has new entries."""
        if not self._new:
            return
        whole = self._used if len(self._known) > MOST_KEPT else {**self._known, **self._used}
        text = json.dumps({key: [one.digest, one.imports, one.opens_files] for key, one in sorted(whole.items())})
        for path in self._paths:
            with suppress(OSError):
                write_text(path, text, durable=False)
                break
        self._new = False


def _kept_paths() -> tuple[Path, Path]:
    """Return the two places of the cache: beside the compiled modules, and in the user's cache folder.

    The file's name contains the checksum of the code that reads a source, so another version of it uses another cache.
    """
    code = b"".join(Path(one).read_bytes() for one in (__file__, refusals.__file__))
    name = f"closure.{sys.implementation.cache_tag}.{_sha256(code)}.json"
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "pedigree")
    return Path(__file__).parent / "__pycache__" / name, user / name


KEPT = ParsedSources(*_kept_paths())
