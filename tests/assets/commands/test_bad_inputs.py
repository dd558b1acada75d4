"""Every input that a person gets wrong is answered by one sentence and the exit code that says whose turn it is.

2: the input is bad and nothing was started; 3: a gate refused. Nobody should have to read a traceback.
"""

from __future__ import annotations

import json
import os
import re

import pytest

from assets.state.recipe_folders import load_recipe
from tests.assets.fabricate import make_all
from tests.commands import said
from tests.warm import command
from training.contract.records import RecipeError

KITCHEN = "extends: kitchen\nname: mine\n"
WARC = KITCHEN + "snapshots: [{{name: kitchen-1, source: warc, paths: ['{}']}}]\n"
ONE_SNAPSHOT = "quality: {snapshots: [kitchen-1]}\ntokenizer: {snapshots: [kitchen-1]}\n"

# What the recipe file holds, and what is said of it.
RECIPES = {
    "misspelt field": (
        KITCHEN + "pretrain: {optimiser: muon}\n",
        "pretrain.optimiser: unknown field; did you mean `optimizer`\\? known",
    ),
    "misspelt section": (
        KITCHEN + "filtre: {}\n",
        "filtre: unknown field; did you mean `filter`\\? known fields here: .*filter",
    ),
    "text for a number": (KITCHEN + "pretrain: {tokens: many}\n", "tokens: expected int or 'auto', got 'many'"),
    "list for a section": (KITCHEN + "pretrain: [1]\n", r"pretrain: expected a mapping, got \[1\]"),
    "number for a name": (
        KITCHEN + "pretrain: {packing: 7}\n",
        "pretrain.packing: expected 'end_to_end' or 'best_fit', got 7",
    ),
    "list for a name": (KITCHEN + "sft: {precision: []}\n", r"sft.precision: expected 'bf16' or 'fp32', got \[\]"),
    "half a megabyte for a label": (
        KITCHEN + f"snapshots: [{{name: a, source: kitchen, label: {'z' * 500_000}}}]\n",
        r"snapshots\[0\].label: a text of 500000 characters; at most 100000 are right",
    ),
    "nothing for a section": (KITCHEN + "pretrain:\n", "pretrain: expected a mapping, got None"),
    "nothing in a section": (
        KITCHEN + "filter: {}\n",
        "mine.yaml: filter: an empty mapping, which would clear .*rules.* of kitchen; leave filter out to keep them",
    ),
    "an empty mapping for a list": (KITCHEN + "snapshots: {}\n", r"snapshots: expected a list, got \{\}"),
    "a phase without weights": (
        KITCHEN + "mixture: {phases: [{start: 0.5, weights: {}}]}\n",
        "mixture.phases: weights: empty; each phase gives the weights of all sources again",
    ),
    "a phase of other sources": (
        KITCHEN + "mixture: {weights: {kitchen: 1}, phases: [{start: 0.5, weights: {web: 1}}]}\n",
        "mixture.phases: weights of kitchen and web; name the same sources each time",
    ),
    "unknown extractor": (KITCHEN + "extract: {extractor: lynx}\n", "'lynx' is not one of 'blocks_or_trafilatura'"),
    "place of a rule that is a list": (
        KITCHEN + "filter: {rules: [mine], parts: {mine: {from: [7]}}}\n",
        r"filter.rules\[0\]: parts.mine.from: expected str, got \[7\]",
    ),
    "unknown rule": (KITCHEN + "filter: {rules: [goofer]}\n", r"filter.rules\[0\]: 'goofer' is not one of 'c4', "),
    "unknown optimizer": (KITCHEN + "pretrain: {optimizer: sgdx}\n", "'sgdx' is not one of 'adafactor', 'adamw'"),
    "unknown preset": (KITCHEN + "model: {preset: gpt9}\n", "model.preset: 'gpt9' is not one of '1m'"),
    "heads that do not divide": (KITCHEN + "model: {heads: 7}\n", "width=128 must be a multiple of heads=7"),
    "less than a batch": (KITCHEN + "pretrain: {tokens: 10}\n", "tokens=10 leaves less than one batch of 2048"),
    "missing base": ("extends: kitchn\nname: mine\n", "no recipe is called 'kitchn'; did you mean `kitchen`\\? there"),
    "base that is itself": ("extends: mine\nname: mine\n", "no recipe is called 'mine'; there are"),
    "base that comes back": ("extends: other\nname: mine\n", "mine extends other extends mine; a recipe cannot be"),
    "broken YAML": ("a: [1\nb: }", "not readable as YAML: .*line 2, column 2"),
    "empty file": ("", "expected a mapping of fields, got NoneType"),
    "a list": ("- extends: kitchen\n", "expected a mapping of fields, got list"),
    "no name": ("extends: kitchen\nname:\n", "name: expected str, got None"),
    "name with a space": ("extends: kitchen\nname: my recipe\n", "'my recipe' must be 1 to "),
    "no snapshot": (KITCHEN + "snapshots: []\n", "snapshots: names must be present and different"),
    "one snapshot twice": (
        KITCHEN + "snapshots: [{name: a, source: kitchen}, {name: a, source: kitchen}]\n",
        r"snapshots: names must be present and different, got \['a', 'a'\]",
    ),
    "made by nobody": (
        KITCHEN + "pretrain: {distill: {teacher: 'made://base_model/other'}}\n",
        "made://base_model/other: not made under this root yet",
    ),
    "PEDIGREE_DATA": (KITCHEN + "quality: {reference: ['data://x.zip']}\n", "PEDIGREE_DATA is not set; set it to"),
    "dead path": (WARC.format("{folder}/nothing/*.warc.gz") + ONE_SNAPSHOT, r"nothing/\*.warc.gz: no such file"),
    "folder without a WARC": (WARC.format("{folder}/empty") + ONE_SNAPSHOT, "empty: .*without a file that ends in"),
    "texts that are not there": (KITCHEN + "quality: {reference: ['{folder}/no.jsonl']}\n", "no.jsonl: no such file"),
    "labels that are not there": (
        KITCHEN + "quality: {labelled: [{name: p, positive: ['{folder}/no.zip'], negative: ['{folder}/no.zip']}]}\n",
        "no.zip: no such file",
    ),
    "words that are not there": (KITCHEN + "filter: {c4_bad_words: '{folder}/no.txt'}\n", "no.txt: no such file"),
    "list with a reason after a space": (
        KITCHEN + "extract: {blocked: ['{folder}/spaced.txt']}\n",
        r"spaced.txt, line 3: 'b.example court order': has white space in it; a reason follows after a tab",
    ),
    "list with a pattern": (
        KITCHEN + "extract: {takedown: ['{folder}/pattern.txt']}\n",
        r"pattern.txt, line 2: .a\.\*\.example\.org.: is no domain; write example.org",
    ),
    "list that is no text": (KITCHEN + "extract: {blocked: ['{folder}/latin.yaml']}\n", "no list that can be read"),
    "key twice": (KITCHEN + "name: other\n", "line 3: name is given twice, first in line 2; leave one of them out"),
    "Norway": (
        KITCHEN + "filter: {languages: [no]}\n",
        r"line 3, filter.languages\[0\]: no may mean false or the word",
    ),
    "rate below zero": (KITCHEN + "pretrain: {learning_rate: -1.0}\n", "pretrain.learning_rate=-1.0; 1e-12 to 1e"),
    "rate that is none": (KITCHEN + "pretrain: {learning_rate: nan}\n", "learning_rate: nan is no finite number"),
    "rows without a token": (KITCHEN + "pretrain: {sequence_length: 0}\n", "pretrain.sequence_length=0; 1 to 1e"),
    "seed below zero": (KITCHEN + "pretrain: {seed: -1}\n", "pretrain.seed=-1; 0 to 9.2"),
    "seed of 20 digits": (
        KITCHEN + f"pretrain: {{seed: {10**20}}}\n",
        "pretrain.seed=1.*; at most 9223372036854775807",
    ),
    "10⁹ layers": (KITCHEN + "model: {layers: 1000000000}\n", "model.layers=1000000000; 1 to 100000 is right"),
    "width without a machine": (KITCHEN + "model: {width: 1000000002}\n", "model.width=1000000002; 1 to 1e"),
    "vocabulary without end": (
        KITCHEN + "tokenizer: {vocabulary: 99999999999}\n",
        "tokenizer.vocabulary=99999999999; 1",
    ),
    "all held out twice": (KITCHEN + "mixture: {held_out_fraction: 2}\n", "mixture.held_out_fraction=2; 0 to 1 is"),
    "weight below zero": (KITCHEN + "mixture: {weights: {web: -1}}\n", "mixture.weights.web=-1; 0 to 1e"),
    "10⁹ buckets": (KITCHEN + "dedup: {buckets: 1000000000}\n", "dedup.buckets=1000000000; 1 to 100000 is right"),
    "no epoch": (KITCHEN + "sft: {epochs: 0}\n", "sft.epochs=0; 1e-12 to 1e"),
    "score above one": (KITCHEN + "promote: {min_scores: {cloze: 2}}\n", "promote.min_scores.cloze=2; 0 to 1 is right"),
    "probability above one": (KITCHEN + "filter: {min_language_score: 2}\n", "filter.min_language_score=2; 0 to 1 is"),
    "pages of no byte": (KITCHEN + "extract: {max_html_bytes: 0}\n", "extract.max_html_bytes=0; 1 to 9.2"),
    "pages of no node": (KITCHEN + "extract: {max_nodes: -1}\n", "extract.max_nodes=-1; 1 to 9.2"),
    "pages that are too deep": (KITCHEN + "extract: {max_depth: 1000000}\n", "extract.max_depth=1000000; 1 to 100000"),
    "no exam": (
        KITCHEN + "evaluation: {suites: []}\npromote: {min_scores: {}}\n",
        "evaluation.suites: empty, and ",
    ),
    "suites that are no list": (KITCHEN + "evaluation: {suites: 5}\n", "evaluation.suites: expected a list, got 5"),
    "suite named by a list": (
        KITCHEN + "evaluation: {suites: [{name: [a], uri: 'kitchen://cloze', kind: multiple_choice}]}\n",
        r"suites\[0\].name: expected str",
    ),
    "adapters on what no layer has": (
        KITCHEN + "sft: {peft: {target_modules: [c_attn]}}\n",
        "sft.peft.target_modules: the model has no module 'c_attn', so it would have no effect",
    ),
    "no corpus for the vocabulary": (KITCHEN + "tokenizer: {snapshots: []}\n", "tokenizer.snapshots: empty; name at"),
    "data that the kitchen lacks": (
        KITCHEN + "quality: {reference: ['kitchen://zebra']}\n",
        r"quality.reference\[0\]: kitchen://zebra: there is no such data; there are cloze, ",
    ),
    "no file": (KITCHEN + "sft: {data: [{uri: ''}]}\n", r"sft.data\[0\].uri: an empty text; leave the field out"),
    "scheme that nobody reads": (
        KITCHEN + "sft: {data: [{uri: 'zebra://x'}]}\n",
        r"sft.data\[0\].uri: zebra://x: zebra: is not read; there are paths, data://",
    ),
    "address without a host": (KITCHEN + "filter: {c4_bad_words: 'https:///x'}\n", "https:///x: names no host"),
    "address with a space": (KITCHEN + "filter: {c4_bad_words: 'https://h/a b'}\n", "https://h/a b: has white space"),
    "source twice": (
        KITCHEN + "sft: {data: [{uri: 'kitchen://dialogues'}, {uri: 'kitchen://dialogues'}]}\n",
        r"sft.data\[1\]: stands in sft.data\[0\] too; leave one of them out",
    ),
    "rows of a format that nobody reads": (
        KITCHEN + "sft: {data: [{uri: '{folder}/rows.csv'}]}\n",
        r"sft.data\[0\].uri: .*/rows.csv: unknown format; the name must end in one of .jsonl, ",
    ),
    "prompts of a format that nobody reads": (
        KITCHEN + "align: {method: grpo, prompts: 'https://h/rows.csv'}\n",
        "align.prompts: https://h/rows.csv: unknown format; the name must end in",
    ),
    "one column as question and answer": (
        KITCHEN
        + "sft: {data: [{uri: 'kitchen://dialogues', format: prompt_answer, prompt_field: a, answer_field: a}]}\n",
        r"sft.data\[0\]: answer_field: 'a' is the prompt_field; name two columns",
    ),
    "column that the format ignores": (
        KITCHEN + "sft: {data: [{uri: 'kitchen://dialogues', prompt_field: a}]}\n",
        r"sft.data\[0\].prompt_field: without effect with format messages",
    ),
    "no weight for the only source": (
        KITCHEN + "mixture: {weights: {kitchen: 0}}\n",
        r"mixture.weights={'kitchen': 0.0}; at least one must be above 0",
    ),
    "number in parts": (
        KITCHEN + "pretrain: {tokens: 20_480}\n",
        "line 3, pretrain.tokens: 20_480 may mean a number or a text; write the number in digits alone",
    ),
    "rate that only a text can be": (KITCHEN + "sft: {learning_rate: 1e300}\n", "sft.learning_rate=1e.300; 1e-12 to"),
    "file that opens and cannot be read": (
        KITCHEN + "extract: {blocked: ['/proc/self/mem']}\n",
        "/proc/self/mem: is no file that can be opened",
    ),
    "list that is not there": (KITCHEN + "extract: {blocked: ['{folder}/no.txt']}\n", "no.txt: no such file"),
}

BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)  # 10⁹ values
PROFILES = {
    "broken YAML": ("a: [1\n", "not readable as YAML"),
    "empty": ("", "expected a mapping of fields, got NoneType"),
    "unknown field": (
        "name: p\ndefault: {wokers: 1}\n",
        "default.wokers: unknown field; did you mean `workers`\\? .* audit, .*workers",
    ),
    "unknown asset": (
        "name: p\nstages: {base_modle: {threads: 1}}\n",
        "stages.base_modle: no such asset; did you mean `base_model`",
    ),
    "batch that does not divide": (
        "name: p\ndefault: {micro_batch_tokens: 768}\n",
        "global_batch_tokens=2048 is not a multiple of micro_batch_tokens=768",
    ),
    "model that cannot be spread so": (
        "name: p\nstages: {base_model: {processes: 3, tensor: 3}}\n",
        "base_model: tensor=3: model.kv_heads=4 is not a multiple",
    ),
    "word for a truth value": (
        "name: p\ndefault: {compile: zebra}\n",
        "default.compile: 'zebra' is not one of False",
    ),
    "10⁹ workers": ("name: p\ndefault: {workers: 1000000000}\n", "default.workers=1000000000; 0 to 1e.06 is right"),
    "tracker that nobody knows": (
        "name: p\ntracking_uri: 'zebra://x'\n",
        "zebra://x: zebra:// is not known",
    ),
    "key twice": ("name: p\nname: q\n", "line 2: name is given twice, first in line 1"),
    "word that may be a truth value": ("name: p\ndefault: {audit: yes}\n", "line 2, default.audit: yes may mean true"),
    "aliases without end": (BOMB, "more than 200,000 values with all aliases written out"),
    "mapping in itself": ("name: p\ndefault: &a {audit: *a}\n", "default.audit: the alias \\*a holds itself"),
    "lists in lists": (f"name: p\ndefault: {'[' * 60}\n", "nested more than 50 deep"),
    "object of Python": ("name: p\ndefault: !!python/object:os.system {}\n", "python/object:os.system is not read"),
    "place that is a number": (
        "name: p\ndefault: {backend: mine}\nparts: {mine: {from: 7}}\n",
        "default.backend: parts.mine.from: expected str, got 7",
    ),
    "image of white space": (
        "name: p\ndefault: {backend: kubernetes}\nparts: {kubernetes: {image: a b}}\n",
        "profile.parts.kubernetes: image: 'a b' is no image; REGISTRY/NAME",
    ),
    "database at no port": (
        "name: p\ndagster_storage: postgresql://u@h:99999/d\n",
        "dagster_storage: postgresql://u@h:99999/d: names no port from 1 to 65535",
    ),
    "unset variable": ("name: p\ntracking_uri: 'http://me:${NO_SUCH_WORD}@host'\n", "variable NO_SUCH_WORD is not set"),
}

COMMANDS = {
    "unknown recipe": ("run kichen", "no recipe is called 'kichen'; did you mean `kitchen`\\? there are"),
    "name without end": (f"run {'a' * 5000}", "no recipe is called 'aaa"),
    "path without end": (f"run {'a' * 5000}.yaml", "recipe file a+.yaml does not exist"),
    "profile without end": (f"run kitchen --profile {'a' * 5000}", "no profile is called 'aaa"),
    "missing file": ("run {folder}/no.yaml", "recipe file .*no.yaml does not exist"),
    "folder named as a file": ("run {folder}/folder.yaml", "recipe file .*folder.yaml does not exist"),
    "folder": ("run {folder}", "no recipe is called"),
    "recipe that is not UTF-8": ("run {folder}/latin.yaml", "latin.yaml: not UTF-8 from byte 29 on"),
    "profile that is not UTF-8": ("run kitchen --profile {folder}/latin.yaml", "latin.yaml: not UTF-8 from byte 29"),
    "unknown snapshot": (
        "run kitchen --snapshots kitchen9",
        "no snapshot 'kitchen9'; did you mean `kitchen-1`\\? there are kitchen-1, kitchen-2",
    ),
    "unknown --until": ("run kitchen --until tokeniser", "no such asset; did you mean `tokenizer`\\? there are"),
    "a word of an asset": ("run kitchen --until tokns", "no such asset; did you mean `token_shards`\\? there are"),
    "unknown profile": (
        "run kitchen --profile lokal",
        "called 'lokal'; did you mean `local`\\? there are h100-1, h100-64, ",
    ),
    "no PEDIGREE_DATA": ("run webdocs", "data://crawl/.*PEDIGREE_DATA is not set"),
    "trace without a question": ("trace kitchen", "trace: give one of --step, --url, .*, not 0"),
    "trace of two questions": ("trace kitchen --step 0 --lineage", "trace: give one of --step, --url, .*, not 2"),
    "trace of the first step": ("trace kitchen --step 0", "recipe kitchen has made no model and no shards"),
    "trace, --graph alone": ("trace kitchen --step 0 --graph made.svg", "--graph shows the answer to --lineage"),
    "status": ("status kichen", "no recipe is called 'kichen'"),
    "why": ("why tokeniser kitchen", "no asset is called 'tokeniser'; did you mean `tokenizer`\\? there"),
    "inspect nothing": ("inspect filtred kitchen", "no asset is called 'filtred'; did you mean `filtered_documents`"),
    "inspect no snapshot": (
        "inspect filtered_documents kitchen --snapshot kitchen9",
        "no snapshot 'kitchen9'; did you",
    ),
    "chat with nothing": ("chat kitchen --asset sft", "no asset is called 'sft'; did you mean `sft_model`\\? there"),
    "export nothing": ("export kitchen {folder}/empty --asset sft", "cannot be exported; did you mean `sft_model`\\?"),
    "plan for no GPU": ("plan kitchen --gpu H10", "gpu='H10': not known; did you mean `H100`\\? there are A100"),
    "inspect": ("inspect tokenizer kitchen", "tokenizer of kitchen has no records"),
    "chat": (
        "chat kitchen",
        "aligned_model \\[kitchen\\] is missing under .*`pedigree run kitchen --until aligned_model` makes it",
    ),
    "verify": ("verify kitchen", "nothing to verify: recipe kitchen has made nothing under"),
    "report": ("report kitchen", "recipe kitchen has made nothing under .*; run it first"),
}


def write_files(tmp_path):
    """Write the files that the cases name."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "spaced.txt").write_text("# ours\na.example\tspam\nb.example court order\n")
    (tmp_path / "pattern.txt").write_text("https://a.example/b/\na.*.example.org\n")
    (tmp_path / "latin.yaml").write_bytes("name: cuisine\ndescription: goûter\n".encode("latin-1"))


@pytest.fixture
def folder(tmp_path):
    """Where the files of a case lie."""
    write_files(tmp_path)
    return tmp_path


@pytest.fixture
def answer(monkeypatch, capsys, folder):
    """What the command line answers: its exit code and the one sentence. Nothing is made."""
    monkeypatch.delenv("PEDIGREE_DATA", raising=False)

    def ask(*arguments):
        root = folder / "root"
        code, answer, errors = said(monkeypatch, capsys, *arguments, "--root", str(root), "--json")
        (sentence,) = [line for line in errors.splitlines() if not line.startswith("warning: ")]
        assert json.loads(answer).items() >= {"ok": False, "error": sentence.removeprefix("error: ")}.items()
        assert {path.name for path in root.glob("*")} <= {"recipes"}
        return code, sentence

    return ask


def test_all_mistakes_of_a_recipe_are_said_in_one_run(folder):
    path = folder / "own.yaml"
    path.write_text(
        KITCHEN + "promote: {min_scores: {hellaswag: 0.5}}\nshards: {buckets: quality}\npretrain: {token: 3}\n"
        "filter: {rules: [language]}\n"
        "tokenizer: {snapshots: [kitchen-8, kitchen-9]}\n"
    )
    with pytest.raises(RecipeError) as error:
        load_recipe(str(path))
    title, *lines = str(error.value).splitlines()
    assert title == "own.yaml: 5 mistakes"
    for begin in (
        "pretrain.token: unknown field; did you mean `tokens`?",
        "tokenizer.snapshots: 'kitchen-8' is not a snapshot",
        "tokenizer.snapshots: 'kitchen-9' is not a snapshot",
        "shards.buckets: quality needs 'classifier'",
        "promote.min_scores: 'hellaswag' is not among evaluation.suites",
    ):
        assert sum(line.startswith(f"  {begin}") for line in lines) == 1, lines


@pytest.mark.parametrize(("text", "said"), RECIPES.values(), ids=RECIPES)
def test_a_recipe(answer, folder, text, said):
    (folder / "mine.yaml").write_text(text.replace("{folder}", str(folder)))
    (folder / "other.yaml").write_text("extends: mine\nname: other\n")
    code, sentence = answer("run", str(folder / "mine.yaml"), "--until", "crawl_archives")
    assert code == 2 and re.search(f"^error: .*{said}", sentence), sentence


@pytest.mark.parametrize(("text", "said"), PROFILES.values(), ids=PROFILES)
def test_a_profile(answer, folder, text, said):
    (folder / "p.yaml").write_text(text)
    code, sentence = answer("run", "kitchen", "--profile", str(folder / "p.yaml"))
    assert code == 2 and re.search(f"^error: .*{said}", sentence), sentence


@pytest.mark.parametrize(("arguments", "said"), COMMANDS.values(), ids=COMMANDS)
def test_a_command(answer, folder, arguments, said):
    code, sentence = answer(*arguments.replace("{folder}", str(folder)).split())
    assert code == 2 and re.search(f"^error: .*{said}", sentence), sentence


def in_a_process(*arguments, root):
    """Exit code, the JSON object, and the lines of standard error, as a shell has them, without those of progress.

    On a busy machine loading takes more than the 30 seconds after which progress is told.
    """
    done = command([*arguments, "--root", str(root), "--json"], {**os.environ})
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if not re.match(r" *[\d.]+ s  ", line)]
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), lines


def test_a_file_that_a_stage_cannot_use(folder):
    (folder / "a.warc.gz").write_bytes(b"this is no WARC")
    (folder / "mine.yaml").write_text(WARC.format(folder / "a.warc.gz") + ONE_SNAPSHOT)
    code, answered, errors = in_a_process("run", str(folder / "mine.yaml"), root=folder / "root")
    assert code == 2 and errors[-1] == f"error: {answered['error']}"
    assert "no readable file; a.warc.gz is unreadable: no WARC record in it" in errors[-1]


def test_an_artifact_that_a_gate_refused(folder):
    make_all(load_recipe("kitchen"), folder / "root", failing={"tokenizer": "compression"})
    code, answered, errors = in_a_process("run", "kitchen", root=folder / "root")
    assert code == 3 and answered["refusals"][0]["gate"] == "compression" and not answered["promoted"]
    assert errors[0] == "refused by gate compression of tokenizer [kitchen]:"
