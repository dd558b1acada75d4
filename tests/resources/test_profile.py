"""Profiles: what a person wrote wrongly is answered with file, field, value and what would be right."""

from __future__ import annotations

import dataclasses
import re
import time

import pytest
import yaml

from assets.state.chain import CHAIN
from resources.compute.base import Task
from resources.compute.kubernetes import KubernetesSettings
from resources.compute.local import LocalBackend
from resources.compute.slurm import SlurmBackend, SlurmSettings
from resources.profile import SHIPPED, SIZED_AS, Notify, Profile, ProfileError, Size, load_profile
from training.contract.process.cores import available_cores
from training.contract.scopes import KEPT_ON_PAGES, WHOLE


def written(tmp_path, **content):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"name": "mine", **content}))
    return str(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            {"default": {"wokers": 2}},
            "mine.yaml: default.wokers: unknown field; did you mean `workers`. .*: answer_weights, attention.*workers",
        ),
        (
            {"default": {"backend": "slurm"}, "parts": {"slurm": {"partitions": "x"}}},
            "mine.yaml: profile.parts.slurm.partitions: unknown field; did you mean `partition`. known .*: account",
        ),
        ({"stage": {}}, "mine.yaml: stage: unknown field; did you mean `stages`. known .*stages"),
        ({"default": {"nodes": 0}}, "mine.yaml: default: nodes=0; at least 1 is right"),
        ({"default": {"hours": "soon"}}, "mine.yaml: default.hours: expected float, got 'soon'"),
        (
            {"stages": {"base_model": {"gpus": 8}}},
            "mine.yaml: stages.base_model.gpus: unknown field; .*gpus_per",
        ),
        (
            {"stages": {"base_model": {"processes": 0}}},
            "stages.base_model: processes=0; at least 1 is right",
        ),
        ({"partitions_at_once": 65}, "mine.yaml: partitions_at_once=65; 1 to 64 is right"),
        (
            {"default": {"backend": "slurm"}, "parts": {"slurm": {"poll_seconds": 0}}},
            "mine.yaml: profile.parts.slurm: poll_seconds=0; above 0, to 3600, is right",
        ),
        *(
            ({"default": {"backend": "slurm"}, "parts": {"slurm": given}}, f"mine.yaml: profile.parts.slurm: {said}")
            for given, said in (
                ({"partition": "a\n#SBATCH --uid=0"}, r"partition='a\\n#SBATCH --uid=0'; letters, digits and"),
                ({"account": "a b"}, "account='a b'; letters, digits"),
                ({"qos": " "}, "qos=' '; letters"),
                ({"python": " "}, "python=' '; the path of an interpreter"),
                ({"ssh": "-oProxyCommand=reboot"}, "ssh='-oProxyCommand=reboot'; HOST, USER@HOST"),
                ({"ssh": "me@host reboot"}, "ssh='me@host reboot'; HOST"),
                ({"environment_file": "e.tar"}, "environment_file='e.tar'; an absolute path"),
                ({"environment_file": "/e", "python": "/p"}, "python='/p'; a path in environment_file"),
                ({"environment_file": "/e", "container": ["c"]}, "environment_file and container: jobs use one"),
                ({"container": [" "]}, "container: a word is empty"),
                ({"environment": ["A", "B=C"]}, "environment: 'B=C' is not the name of a variable"),
                ({"poll_seconds": 3601}, "poll_seconds=3601; above 0, to 3600, is right"),
            )
        ),
        ({"notify": {"ui": "http://127.0.0.1:65536"}}, "mine.yaml: notify.ui: http://127.0.0.1:65536: names no port"),
        ({"notify": {"ui": "127.0.0.1:3000"}}, "notify: ui='127.0.0.1:3000'; an address that begins with http://"),
        ({"tracking_uri": "http://host:zebra"}, "mine.yaml: tracking_uri: http://host:zebra: names no port from 1"),
        ({"default": {"engine": "ray", "ray_address": "a:65536"}}, "ray_address='a:65536'; HOST:PORT of the head"),
        ({"name": "a\x07"}, "mine.yaml: name: has U.0007, which is no character that is printed"),
        ({"default": {"a\x1b": 1}}, "mine.yaml: default: has U.001B"),
        ({"description": "z" * 100_001}, "mine.yaml: description: a text of 100001 characters; at most 100000"),
        ({"parts": {"slurm": {"partition": "x"}}}, "profile.parts.slurm: without effect; the section uses no part"),
        ({"parts": {"local": {"from": "a:b"}}}, "parts.local.from: 'local' is a part of Pedigree's; name yours otherw"),
        ({"default": {"backend": "slrum"}}, "mine.yaml: default.backend: 'slrum' is not one of 'local', 'slurm', 'kub"),
        ({"default": {"backend": "kubernetes"}}, "profile.parts.kubernetes: image: the image of the jobs is missing"),
        (
            {"stages": {"tokenizer": {"backend": "ray"}}},
            "stages.tokenizer.backend: ray is an engine, .*; set `engine: ray`",
        ),
        ({"default": {"engine": "dask"}}, "default.engine: 'dask' is not one of 'local', 'ray'"),
        ({"default": {"rank_cpus": 2}}, "default: rank_cpus: without effect, because `engine` is local"),
        ({"default": {"engine": "ray", "ray_address": "ray://a:1"}}, "ray_address='ray://a:1'; HOST:PORT of the head"),
        (
            {"default": {"engine": "ray", "backend": "slurm", "ray_address": "a:1", "nodes": 2}},
            "ray_address with nodes=2: the cluster has its own nodes; nodes=1 is right",
        ),
        ({"default": {"nodes": 2}}, "default: nodes=2, but the backend local has at most 1; use processes, or backend"),
        ({"default": {"backend": "slurm", "spare_nodes": 1}}, "for a training over several nodes; nodes=1 has no use"),
        ({"default": {"backend": "slurm", "nodes": 2, "min_nodes": 3}}, "min_nodes=3; at most nodes=2 is right"),
        ({"default": {"backend": "slurm", "nodes": 2, "min_nodes": 1}}, "need more memory; set micro_batch_tokens"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_right(tmp_path, content, said):
    with pytest.raises(ProfileError, match=said):
        load_profile(written(tmp_path, **content))


def test_an_unknown_profile_names_those_that_there_are():
    with pytest.raises(
        ProfileError,
        match=r"'lokal'; did you mean `local`.* h100-1, .*8, kubernetes, local, ray, slurm",
    ):
        load_profile("lokal")


@pytest.mark.parametrize(
    ("text", "said"), [("a: [", "not readable as YAML"), ("- a", "expected a mapping .* got list")]
)
def test_a_file_that_is_no_profile_is_refused(tmp_path, text, said):
    (tmp_path / "broken.yaml").write_text(text)
    with pytest.raises(ProfileError, match=said):
        load_profile(str(tmp_path / "broken.yaml"))


def test_a_stage_differs_only_in_what_it_names(tmp_path):
    stages = {"base_model": {"processes": 2}, "tokenizer": {"backend": "local", "nodes": 1}}
    path = written(tmp_path, default={"backend": "slurm", "nodes": 4, "workers": 3}, stages=stages)
    profile = load_profile(path)
    assert profile.size_for("base_model") == Size(backend="slurm", nodes=4, workers=3, processes=2)
    assert profile.size_for("token_shards") == Size(backend="slurm", nodes=4, workers=3)
    assert isinstance(profile.backend_for("token_shards"), SlurmBackend)
    assert isinstance(profile.backend_for("tokenizer"), LocalBackend)


def test_nobody_takes_an_address_with_its_variables_unreplaced():
    project = SHIPPED.parents[1]
    sources = [
        path for name in ("assets", "evaluation", "resources", "training") for path in project.glob(f"{name}/**/*.py")
    ]
    raw = {path.name for path in sources if re.search(r"\.(tracking_uri|notify\.webhook)\b", path.read_text("utf-8"))}
    assert raw == {"profile.py"}


def test_no_workers_named_means_one_a_core(tmp_path, monkeypatch):
    monkeypatch.setattr("resources.profile.available_cores", lambda: 6)
    assert load_profile("local").size_for("filtered_documents").workers == 6


def test_kept_steps_are_made_as_their_training_s_model_unless_the_profile_names_them():
    stages: dict[str, dict[str, int]] = {"base_model": {"processes": 4}}
    profile = dataclasses.replace(load_profile("local"), stages=stages)
    assert (profile.size_for("kept_steps").processes, profile.size_for("ladder_model").processes) == (4, 1)
    others = {"chosen_model": "model_scores", "quantized_scores": "safety_answers"}
    assert {**WHOLE, **others} == SIZED_AS
    stages["kept_steps"] = {"processes": 2}
    assert profile.size_for("kept_steps").processes == 2


ON_GPUS = sorted(SHIPPED.glob("h*.yaml"))  # these name only what differs
TRAININGS = ("base_model", "ladder_model", "reference_model", "long_context_model", *KEPT_ON_PAGES)


@pytest.mark.parametrize("path", ON_GPUS, ids=lambda path: path.stem)
def test_a_shipped_profile_for_gpus_compiles_every_training_and_names_its_gpus(path):
    profile = load_profile(path.stem)
    kind, _, gpus = path.stem.partition("-")
    for size in map(profile.size_for, TRAININGS):
        assert (size.compile, size.nodes * size.processes) == ("blocks", int(gpus))
        assert size.gpus_per_node == size.processes == size.shard
    computed = [asset for asset in CHAIN if CHAIN[asset].stage.by_a_model and asset != "adopted_model"]
    assert {profile.size_for(asset).gpu for asset in computed} == {kind.upper()}
    assert {profile.size_for(asset).gpus_per_node for asset in ("extracted_documents", "promoted_model")} == {0}


@pytest.mark.parametrize("path", sorted({*SHIPPED.glob("*.yaml")} - {*ON_GPUS}), ids=lambda path: path.stem)
def test_shipped_profiles_show_every_field_at_its_default(path):
    data = yaml.safe_load(path.read_text())
    profile = load_profile(path.stem)
    assert data.keys() == {field.name for field in dataclasses.fields(Profile)}
    assert data["default"].keys() == {field.name for field in dataclasses.fields(Size)}
    if path.stem == "slurm":
        settings = data["parts"]["slurm"]
        assert settings == {**dataclasses.asdict(SlurmSettings()), "environment": [], "container": []}
    chosen = {name: data["default"][name] for name in ("backend", "engine")}
    if path.stem == "kubernetes":
        needed = {name: data["parts"]["kubernetes"][name] for name in ("image", "claims")}
        settings = dataclasses.asdict(KubernetesSettings(**needed))
        assert data["parts"]["kubernetes"] == {**settings, "secrets": []}
    workers = (
        None if path.stem in ("slurm", "kubernetes") else available_cores()
    )  # the node's cores are the job's to count
    assert profile.size_for("") == Size(**chosen, workers=workers)
    assert data["notify"].keys() == {field.name for field in dataclasses.fields(Notify)} and profile.notify == Notify()


def test_a_stage_of_this_machine_is_not_handed_what_opens_the_tracker(tmp_path, monkeypatch):
    """Nor the webhook's secret. What a store of data asks for is the stage's business."""
    held = {"MLFLOW_TRACKING_PASSWORD": "one", "MLFLOW_TRACKING_TOKEN": "two", "DB_WORD": "three", "HOOK": "four"}
    left = {"AWS_SECRET_ACCESS_KEY": "five", "DB_HOST": "db.example", "UNNAMED_PASSWORD": "six"}
    for name, value in {**held, **left}.items():
        monkeypatch.setenv(name, value)
    address, hook = "postgresql://me:${DB_WORD}@${DB_HOST}/mlflow", {"webhook": "https://chat.example/${HOOK}"}
    profile = load_profile(written(tmp_path, tracking_uri=address, notify=hook))
    backend = profile.backend_for("tokenizer")
    names = [*held, *left]
    code = f"import os; print({{name: os.environ.get(name) for name in {names}}})"
    task = Task(key="toy", argv=("-c", code), size=Size(), folder=str(tmp_path), withheld=profile.withheld)
    handle = backend.submit(task)
    while not backend.poll(handle).is_over:
        time.sleep(0.02)
    assert backend.log_tail(str(tmp_path), 1) == str(dict.fromkeys(held) | left)


@pytest.mark.parametrize(
    "content",
    [
        {"tracking_uri": ""},
        {"default": {"backend": "slurm"}, "parts": {"slurm": {"account": ""}}},
        {"notify": {"webhook": ""}},
        {"default": {"gpu": ""}},
    ],
)
def test_an_empty_text_where_null_means_none_is_refused(tmp_path, content):
    with pytest.raises(ProfileError, match="an empty text"):
        load_profile(written(tmp_path, **content))
    assert load_profile(written(tmp_path, description="")).description == ""


@pytest.mark.parametrize("content", [{"default": {"backend": ["local"]}}, {"stages": {"sft": {"backend": {"a": 1}}}}])
def test_a_backend_that_is_no_text_is_refused_with_its_field(tmp_path, content):
    with pytest.raises(ProfileError, match="backend: expected str"):
        load_profile(written(tmp_path, **content))


def test_a_tracking_uri_may_be_of_an_installed_plugin_of_mlflow(tmp_path, monkeypatch):
    path = written(tmp_path, tracking_uri="zebraml://host/store")
    with pytest.raises(ProfileError, match="zebraml:// is not known; there are paths and http"):
        load_profile(path)
    installed = tmp_path / "installed" / "zebraml-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Name: zebraml\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[mlflow.tracking_store]\nzebraml = zebraml:Store\n")
    monkeypatch.syspath_prepend(installed.parent)
    assert load_profile(path).tracking_uri == "zebraml://host/store"


def test_a_price_is_in_any_currency_and_a_scheme_in_any_case(tmp_path):
    path = written(tmp_path, default={"price_per_hour": 2_400_000}, tracking_uri="HTTPS://tracker.example")
    assert load_profile(path).size_for("base_model").price_per_hour == 2_400_000


def test_a_tracking_uri_takes_its_password_from_the_environment(tmp_path, monkeypatch):
    path = written(tmp_path, tracking_uri="postgresql+psycopg2://mlflow:${MLFLOW_PASSWORD}@db/mlflow")
    monkeypatch.delenv("MLFLOW_PASSWORD", raising=False)
    with pytest.raises(ProfileError, match=r"tracking_uri: .* MLFLOW_PASSWORD"):
        load_profile(path)
    monkeypatch.setenv("MLFLOW_PASSWORD", "pw-of-mlflow")  # masked from now on in this process: no word
    assert load_profile(path).tracker == "postgresql+psycopg2://mlflow:pw-of-mlflow@db/mlflow"


@pytest.mark.parametrize(
    ("content", "right", "wrong", "said"),
    [
        ({"tracking_uri": "http://h:${GIVEN}"}, "5000", "99999", "tracking_uri: .*names no port from 1 to 65535"),
        ({"tracking_uri": "${GIVEN}"}, "http://h", "zebra://u:secret@h", "tracking_uri: .*zebra:// is not known"),
        ({"notify": {"webhook": "${GIVEN}"}}, "https://h/secret", "https://h b/secret", "webhook: .* no white space"),
    ],
)
def test_an_address_is_checked_with_its_variables_replaced(tmp_path, monkeypatch, content, right, wrong, said):
    monkeypatch.setenv("GIVEN", right)
    assert load_profile(written(tmp_path, **content))
    monkeypatch.setenv("GIVEN", wrong)
    with pytest.raises(ProfileError, match=said) as error:
        load_profile(written(tmp_path, **content))
    assert "secret" not in str(error.value)
