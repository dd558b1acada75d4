"""Try a stranger's model folder in a process of its own, in the sandbox, with limits of time and memory.

    python -m training.adopt.trial FOLDER model|adopted|continued|teacher|tokenizer

It reads the JSON files, the headers of the weights and the tokenizer, encodes a text and renders the chat template.
Opening a model runs what its author wrote: a template may loop, a tokenizer may crash the process, a header may claim
more than any machine has. So `check_tried` asks for it before anything else is opened: by the commands that open a
model (assets/state/references.py), and when a recipe that names one is read. An adopted model must also have what it
needs, and more if it is pretrained further (`continued`); of a tokenizer's folder no weights are asked. Without torch.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

from training.contract.job import DataError
from training.contract.model_files import INDEX, usually_named
from training.contract.records import RecipeError
from training.contract.sandbox.confined import why_unavailable
from training.contract.sandbox.module import run_confined
from training.contract.user_input.plain_data import json_value
from training.data.tokens.tokenizer_settings import OF_CALLS, SPECIAL_TOKENS
from training.generate.checked_folder import FIELD as QUANTIZATION
from training.generate.checked_folder import check_folder, check_quantized, check_tokenizer
from training.pretrain.models.borrowed import BORROWED, BY_TRANSFORMERS
from training.pretrain.models.config_json import read_config, read_either_config
from training.pretrain.models.families import FAMILIES, is_borrowed

Kind = Literal["model", "adopted", "continued", "teacher", "tokenizer"]

MEMORY_BYTES, CPU_SECONDS, SECONDS = 4 << 30, 20, 60
SCRATCH_BYTES = 16 << 20
MAX_JSON_BYTES, MAX_TOKENIZER_BYTES, MAX_HEADER_BYTES = 16 << 20, 512 << 20, 100 << 20
MAX_RENDERED, MAX_SIZE = 1 << 20, 10**8
READ_AS_MAPPINGS = ("config.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json")
SIZES = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings", "head_dim",
)  # fmt: skip
ITEM_BITS = {
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "F32": 32,
    "I32": 32,
    "U32": 32,
    "F16": 16,
    "BF16": 16,
    "I16": 16,
    "U16": 16,
}
ITEM_BITS |= dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8)
WHOLE = frozenset(name for name in ITEM_BITS if name.startswith(("I", "U", "BOOL")))
NO_WEIGHTS = (".attn.bias", ".attention.bias", ".position_ids")  # ends of names in older files: masks and numbers
NO_WEIGHTS += ("._weight_qdata", "._weight_zero_point")  # parts of a quantized weight
FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias")
NUMBERS = dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"), 1.0)
NUMBERS |= {"rope_theta": 1e12}
ACTIVATIONS = tuple(
    """
    gelu gelu_10 gelu_accurate gelu_fast gelu_new gelu_python gelu_python_tanh gelu_pytorch_tanh hardswish laplace
    leaky_relu linear mish prelu quick_gelu relu relu2 relu6 sigmoid silu swish tanh
    """.split()
)
DTYPES = ("float32", "float16", "bfloat16", "float64")
WORDS = dict.fromkeys(("hidden_act", "hidden_activation", "activation_function"), ACTIVATIONS)
WORDS |= dict.fromkeys(("dtype", "torch_dtype"), DTYPES)
NUMBER = re.compile(r"(?:.*\.)?(?:layers|h)\.(\d+)\.")  # of a layer, in the name of a weight
HEADS = ("lm_head.", "embed_out.")
LAYER_TYPES = ("full_attention", "sliding_attention")
SHAPES = dict.fromkeys(("embed_tokens", "wte", "embed_in", "lm_head", "embed_out"), ("vocab_size", "hidden_size"))
SHAPES |= dict.fromkeys(("mlp.down_proj", "mlp.fc2", "mlp.dense_4h_to_h"), ("hidden_size", "intermediate_size"))
SHAPES |= dict.fromkeys(("self_attn.k_proj", "self_attn.v_proj"), ("key_size", "hidden_size"))
"""By the end of a weight's name: the fields of `config.json` that give its rows and columns."""
TEXT = "naïve \u00a0\t12 日本 \x07 " + "a" * 2000 + " " * 2000 + "\n" * 200
TURNS = [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}]


def check_tried(folder: Path, what: Kind = "model") -> None:
    """Raise DataError, with one sentence, unless the folder can be opened, as `what` says, within the limits."""
    files = sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []
    state = tuple((path.name, (of := path.stat()).st_size, of.st_mtime_ns) for path in files)
    if said := _said(folder.resolve(), what, state):
        raise DataError(said)


@lru_cache(maxsize=64)
def _said(folder: Path, what: Kind, _files: tuple[tuple[str, int, int], ...]) -> str:
    """Return why a model's folder cannot be opened in a confined process; empty if it can.

    `_files` are part of the key of the cache, so that a changed folder is tried anew.
    """
    try:
        done = _tried(folder, what)
        answers = done.stdout.decode("utf-8", "replace").splitlines()
    except subprocess.TimeoutExpired as error:
        answers = (error.stdout or b"").decode("utf-8", "replace").splitlines()
        return f"{_under_way(answers, folder)}: does not open within {SECONDS} s; take a sound copy of the model"
    if done.returncode == 0 and answers:
        return str(json.loads(answers[-1])["said"])
    return (
        f"{_under_way(answers, folder)}: opening it ended the process that tried (code {done.returncode}), which may"
        f" take {CPU_SECONDS} s of processor time and {MEMORY_BYTES >> 30} GiB; take a sound copy of the model"
    )


def _tried(folder: Path, what: Kind) -> subprocess.CompletedProcess[bytes]:
    """Run this module on a folder: in the sandbox, or with its limits alone where nothing can be confined."""
    if not why_unavailable():
        name, given = "training.adopt.trial", (str(folder), what)
        return run_confined(name, *given, folder=folder, scratch_bytes=SCRATCH_BYTES, seconds=SECONDS)
    command = [sys.executable, "-P", "-m", "training.adopt.trial", str(folder), what]
    alone = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ}
    alone["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [alone.get("PYTHONPATH")])])
    return subprocess.run(
        command, capture_output=True, timeout=SECONDS, check=False, env=alone, stdin=subprocess.DEVNULL
    )


def _under_way(answers: Sequence[str], folder: Path) -> str:
    """Return the name of the last file that the process said it would read, or of the folder."""
    for line in reversed(answers):
        with suppress(ValueError, KeyError, TypeError):
            return str(json.loads(line)["at"])
    return str(folder)


def try_folder(folder: Path, what: Kind, say: Callable[[str], None] = lambda _: None) -> None:
    """Read all of the folder but the values of its weights. Raise DataError or RecipeError for what is wrong.

    `say` is given the name of each file or template that is used and not only read, before it is.
    """
    for path in sorted(folder.rglob("*")):
        if not (path.is_file() or path.is_dir()):
            raise DataError(f"{path}: is no file, but a pipe, a device or a link that leads nowhere; leave it out")
    for path in sorted(folder.glob("*.json")):
        if path.name in READ_AS_MAPPINGS:
            _mapping(path)
        elif path.name not in ("tokenizer.json", "vocab.json"):
            _read(path, MAX_JSON_BYTES)
    if what == "tokenizer":
        check_tokenizer(folder)
        _try_tokenizer(folder, {}, say)
        _try_templates(folder, say)
        return
    check_folder(folder)
    config = usually_named(_mapping(folder / "config.json"))
    _try_sizes(folder, config)
    if config.get(QUANTIZATION) and what != "model":
        raise DataError(f"{folder}: config.json: quantized weights ({QUANTIZATION}) are not trained; take whole ones")
    check_quantized(folder, config)
    if is_known := str(config.get("model_type")) in FAMILIES | BORROWED:  # other classes have words and names of theirs
        _try_words(folder, config)
    for path in (folder / "config.json", folder / "generation_config.json"):
        if path.is_file():
            _try_ids(path, _mapping(path), config.get("vocab_size") or 0)
    shapes = _try_weights(folder, config)
    if is_known and shapes:
        _try_shapes(folder, config, shapes)
    _try_tokenizer(folder, config, say)
    _try_templates(folder, say)
    if what == "model":
        return
    try:
        shape = (read_either_config if what == "teacher" else read_config)(config)
    except KeyError as error:
        raise DataError(f"config.json has no {error}") from None
    if what == "teacher" and is_borrowed(shape):
        raise DataError(f"config.json: model_type {shape.family!r} {BY_TRANSFORMERS} and cannot be a teacher")
    if what in ("adopted", "continued"):
        from training.data.tokens.adopted_vocabulary import read_vocabulary  # with its library

        say(str(folder / "tokenizer.json"))
        read_vocabulary(folder, SPECIAL_TOKENS, has_corpus=what == "continued")


def _try_sizes(folder: Path, config: dict[str, Any]) -> None:
    """Refuse sizes of a model that are no whole numbers above 0; a model of another library may name none of them."""
    for field in SIZES:
        value = config.get(field)
        if field in config and value is not None and (type(value) is not int or not 0 < value <= MAX_SIZE):
            said = f"a whole number from 1 to {MAX_SIZE:,} is right"
            raise DataError(f"{folder}: config.json: {field}={value!r:.40}; {said}")
    for field in ("rope_scaling", "rope_parameters", QUANTIZATION):
        if not isinstance(config.get(field) or {}, dict):
            raise DataError(f"{folder}: config.json: {field} must be an object")
    for field in FLAGS:
        if not isinstance(config.get(field), bool | None):
            raise DataError(f"{folder}: config.json: {field}={config[field]!r:.40}; true or false is right")
    for part in (config, config.get("rope_scaling") or {}, config.get("rope_parameters") or {}):
        for field, most in NUMBERS.items():
            value = part.get(field)
            if value is not None and (type(value) not in (int, float) or not 0 < value <= most):
                said = f"a number above 0, at most {most:g}, is right"
                raise DataError(f"{folder}: config.json: {field}={value!r:.40}; {said}")


def _try_words(folder: Path, config: dict[str, Any]) -> None:
    """Refuse kinds of layers, functions and types of numbers that nobody knows, and shares dropped that are none."""
    kinds = config.get("layer_types")
    if kinds is not None and not (
        isinstance(kinds, list)
        and all(one in LAYER_TYPES for one in kinds)
        and len(kinds) == config.get("num_hidden_layers", len(kinds))
    ):
        said = f"one of {' and '.join(LAYER_TYPES)} for each layer is right"
        raise DataError(f"{folder}: config.json: layer_types={kinds!r:.60}; {said}")
    for field, known in WORDS.items():
        if config.get(field) is not None and config[field] not in known:
            raise DataError(f"{folder}: config.json: {field}={config[field]!r:.40}; there are {', '.join(known)}")
    for field, value in config.items():
        is_share = field.endswith(("dropout", "pdrop")) and not isinstance(value, bool | None)
        if is_share and not (isinstance(value, (int, float)) and 0 <= value < 1):
            raise DataError(f"{folder}: config.json: {field}={value!r:.40}; a number from 0 to below 1 is right")


def _try_ids(path: Path, found: dict[str, Any], size: int) -> None:
    """Refuse ids of special tokens that are no ids, and an end of text that the model's vocabulary lacks."""
    for field in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = found.get(field)
        most = size if size and field == "eos_token_id" else MAX_SIZE
        if isinstance(value, list) and (not value or field != "eos_token_id"):
            said = "one id" if value else "an id, or null,"
            raise DataError(f"{path}: {field}={value!r:.40}; {said} is right")
        for one in value if isinstance(value, list) else () if value is None else (value,):
            is_unset = one == -1 and field != "eos_token_id"
            if type(one) is not int or not (is_unset or 0 <= one < most):
                raise DataError(f"{path}: {field}={one!r:.40}; a whole number from 0 to {most - 1:,} is right")


def _read(path: Path, most: int) -> Any:
    if path.stat().st_size > most:
        raise DataError(f"{path}: has {path.stat().st_size:,} bytes; {most:,} are the most that are read")
    return json_value(path.read_bytes(), str(path))


def _mapping(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    found = _read(path, MAX_JSON_BYTES)
    if not isinstance(found, dict):
        raise DataError(f"{path}: must be an object, and is {type(found).__name__}")
    return found


def _try_weights(folder: Path, config: dict[str, Any]) -> dict[str, list[int]]:
    """Compare index and sizes with the headers of all safetensors files; return the shapes of the weights in them."""
    paths = sorted(folder.glob("*.safetensors"))
    held = {path.name: check_header(path) for path in paths}
    places = {name: file for file, shapes in held.items() for name in shapes}
    placed = _mapping(index)["weight_map"] if (index := folder / INDEX).is_file() else places
    if differing := sorted(dict(places.items() ^ placed.items())):
        raise DataError(f"{folder}: {INDEX} and the files differ in {differing[0][:80]!r}; copy the whole model")
    if held and not places:
        raise DataError(f"{folder}: the weights hold no tensor; copy the whole model")
    size = sum(path.stat().st_size for path in paths)
    most = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), size) | {"num_hidden_layers": len(places)}
    for field, number in most.items() if held else ():
        if (config.get(field) or 0) > number:
            said = f"the weights hold {len(places)} tensors in {size:,} bytes"
            raise DataError(f"{folder}: config.json: {field}={config[field]}, but {said}")
    return {name: shape for shapes in held.values() for name, shape in shapes.items()}


def _try_shapes(folder: Path, config: dict[str, Any], shapes: Mapping[str, list[int]]) -> None:
    """Refuse sizes in `config.json` that are not those of the weights, and weights without the head that they need."""
    keys, width = config.get("num_key_value_heads"), config.get("head_dim")
    sizes = config | {"key_size": keys * width if keys and width else None}
    for name, shape in shapes.items():
        fields = next((some for end, some in SHAPES.items() if f".{name}".endswith(f".{end}.weight")), ())
        given = [sizes.get(field) or held for field, held in zip(fields, shape, strict=False)]
        if fields and given != shape:
            said = ", ".join(map(str, fields)).replace("key_size", "num_key_value_heads × head_dim")
            raise DataError(f"{folder}: config.json: {said} give {given}, but {name[:80]} has the shape {shape}")
    layers, numbered = config.get("num_hidden_layers"), [*filter(None, map(NUMBER.match, shapes))]
    count = 1 + max((int(one[1]) for one in numbered), default=-1)
    if layers and not layers <= count <= layers + (config.get("num_nextn_predict_layers") or 0):
        raise DataError(f"{folder}: config.json: num_hidden_layers={layers}, but the weights hold {count}")
    if config.get("tie_word_embeddings") is False and not any(name.startswith(HEADS) for name in shapes):
        raise DataError(f"{folder}: the weights hold no head, and config.json ties none to the embeddings")


def check_header(path: Path) -> dict[str, list[int]]:
    """Return the shape of each tensor of a safetensors file. Raise DataError unless its header fits the file."""
    size, copy = path.stat().st_size, "copy the whole file again"
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            raise DataError(f"{path}: {size:,} bytes, but its header claims {length + 8:,}; {copy}")
        if length > MAX_HEADER_BYTES:
            raise DataError(f"{path}: its header has {length:,} bytes; {MAX_HEADER_BYTES:,} are the most that are read")
        header = json_value(stream.read(length), f"{path}: header")
    if not isinstance(header, dict):
        raise DataError(f"{path}: its header is no object; {copy}")
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    end = 0
    for name, entry in sorted(tensors.items(), key=lambda item: _offsets(path, *item)):
        begin, after = _offsets(path, name, entry)
        shape, bits = entry.get("shape"), ITEM_BITS.get(entry.get("dtype"))
        if bits is None or not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            raise DataError(f"{path}: {name[:80]} has dtype {entry.get('dtype')!r:.40} and shape {shape!r:.40}")
        whole = bits
        for n in shape:
            whole *= n
        if entry["dtype"] in WHOLE and not name.endswith(NO_WEIGHTS):
            said = "weights are floating-point numbers, so a loader would take these for such; save it whole"
            raise DataError(f"{path}: {name[:80]} has dtype {entry['dtype']}; {said}")
        if begin != end or (after - begin) * 8 != whole:
            raise DataError(f"{path}: {name[:80]} lies at bytes {begin} to {after}, which do not fit its shape; {copy}")
        end = after
    if end != size - 8 - length:
        raise DataError(f"{path}: {size - 8 - length:,} bytes of weights, but its header places {end:,}; {copy}")
    return {name: entry["shape"] for name, entry in tensors.items()}


def _offsets(path: Path, name: str, entry: Any) -> tuple[int, int]:
    place = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not (isinstance(place, list) and len(place) == 2 and all(type(n) is int and n >= 0 for n in place)):
        raise DataError(f"{path}: {name[:80]} has no place in the file; copy the whole file again")
    return place[0], place[1]


def _try_tokenizer(folder: Path, config: dict[str, Any], say: Callable[[str], None]) -> None:
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    say(str(path))
    if not path.is_file():
        raise DataError(f"{folder}: no tokenizer.json")
    data = _read(path, MAX_TOKENIZER_BYTES)
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise DataError(f"{path}: must be an object with a model; write it by the library tokenizers")
    vocabulary = data["model"].get("vocab")
    if not vocabulary or not isinstance(vocabulary, (dict, list)):
        raise DataError(f"{path}: its model has no vocabulary; write it by the library tokenizers")
    most = max(config.get("vocab_size") or 0, len(data.get("added_tokens") or ())) + 2 * len(vocabulary)
    ids = vocabulary.values() if isinstance(vocabulary, dict) else ()
    if wrong := next((one for one in ids if type(one) is not int or not 0 <= one < most), None):
        raise DataError(f"{path}: the id {wrong!r:.40} of a token; 0 to {most:,} are right for this model")
    try:
        tokenizer = Tokenizer.from_str(json.dumps(data | dict.fromkeys(OF_CALLS)))
        tokenizer.decode(tokenizer.encode(TEXT, add_special_tokens=False).ids)
    except BaseException as error:  # the library's panics are no Exception
        raise DataError(f"{path}: the library tokenizers cannot use it: {_line(error)}") from None
    for token in data.get("added_tokens") or ():
        if (given := tokenizer.token_to_id(token["content"])) != token["id"]:
            said = f"the token {token['content']!r:.40} has the id {token['id']}, which the library makes {given}"
            raise DataError(f"{path}: {said}; ids follow each other, each once")
    known = {number: text for text, number in tokenizer.get_vocab(with_added_tokens=True).items()}
    _check_tokens_said(folder / "tokenizer_config.json", known)


def _check_tokens_said(path: Path, tokens: Mapping[int, str]) -> None:
    """Raise DataError unless `added_tokens_decoder`, by which transformers adds tokens, agrees with tokenizer.json."""
    given = (_mapping(path) if path.is_file() else {}).get("added_tokens_decoder") or {}
    if not isinstance(given, dict):
        raise DataError(f"{path}: added_tokens_decoder must be an object, and is {type(given).__name__}")
    for number, token in given.items():
        text = token.get("content") if isinstance(token, dict) else token
        known = tokens.get(int(number)) if re.fullmatch("[0-9]{1,10}", number) else None
        if known is None or text != known:
            raise DataError(
                f"{path}: added_tokens_decoder has {text!r:.40} at {number:.40}, and tokenizer.json {known!r:.40};"
                " save the tokenizer again"
            )


def _try_templates(folder: Path, say: Callable[[str], None]) -> None:
    """Render every chat template of the folder: one question with its answer, and one that is to be answered."""
    path = folder / "tokenizer_config.json"
    config = _mapping(path) if path.is_file() else {}
    given = config.get("chat_template")
    named = {str(path): given} if given is not None else {}
    if isinstance(given, list):
        named = {f"{path}: {one.get('name')!r:.40}": one.get("template") for one in given if isinstance(one, dict)}
    files = [folder / "chat_template.jinja", *sorted(folder.glob("additional_chat_templates/*.jinja"))]
    for name, text in [*named.items(), *((one, _text(one)) for one in files if one.is_file())]:
        if not isinstance(text, str):
            raise DataError(f"{name}: a chat template must be a text, and is {type(text).__name__}")
        say(str(name))
        _render(str(name), text, {key: value for key, value in config.items() if key.endswith("_token")})


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not UTF-8; save it as UTF-8") from None


def _render(name: str, text: str, tokens: dict[str, Any]) -> None:
    from jinja2 import TemplateError
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise _Declined(message)

    def today(form: str) -> str:
        return form

    def as_json(value: Any, **_: Any) -> str:
        return json.dumps(value)

    class Generation(Extension):
        """The tag of transformers around what a model says: its content alone."""

        tags = {"generation"}  # noqa: RUF012 - of jinja's class

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    place = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    place.filters["tojson"] = as_json
    given = {**tokens, "raise_exception": refuse, "strftime_now": today}
    size = 0
    try:
        template = place.from_string(text)
        for turns in (TURNS, TURNS[:1]):
            asked = {"messages": turns, "add_generation_prompt": turns[-1]["role"] == "user"}
            for piece in template.generate({**given, **asked}):
                size += len(piece)
                if size > MAX_RENDERED:
                    said = f"writes more than {MAX_RENDERED:,} characters for one question and its answer"
                    raise DataError(f"{name}: {said}")
    except _Declined:
        return  # it wants other turns
    except SecurityError as error:
        raise DataError(f"{name}: reaches for what no template may: {_line(error)}") from None
    except (
        TemplateError,
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        if not isinstance(error, DataError):
            raise DataError(f"{name}: cannot be rendered: {_line(error)}") from None
        raise


class _Declined(Exception):
    """A template says that it has no form for these turns."""


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


@contextmanager
def _limited() -> Iterator[None]:
    """Limit this process's memory and time, for good."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    yield


def main() -> None:
    """Try the folder named on the command line, and print {"said": one sentence, or ""}.

    Before that, {"at": name} for each file that is used.
    """
    folder = Path(sys.argv[1])
    said, under_way = "", list[str]()

    def say(name: str) -> None:
        under_way.append(name)
        print(json.dumps({"at": name}), flush=True)

    with _limited():
        try:
            try_folder(folder, cast("Kind", sys.argv[2]), say)
        except MemoryError:
            at = under_way[-1] if under_way else folder
            said = f"{at}: takes more than {MEMORY_BYTES >> 30} GiB to open; take a sound copy of the model"
        except (DataError, RecipeError) as error:
            said = " ".join(str(error).split())
        except Exception as error:
            said = f"{folder}: cannot be opened: {_line(error)}"
    print(json.dumps({"said": said}))


if __name__ == "__main__":
    main()
