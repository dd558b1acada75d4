"""What the Slurm backend would run, as text: a pure function, pinned by snapshots, closed to hostile strings."""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields, replace
from pathlib import Path

import pytest

import resources.compute.slurm
from resources.compute.base import NodeFolder, Task
from resources.compute.size import Size
from resources.compute.slurm import SlurmBackend, SlurmError, SlurmSettings, job_name, render, render_array, status_of
from resources.compute.slurm_environment import PLACE, digest_of, unpack_lines
from resources.compute.slurm_states import ENVIRONMENT_FAILED, REFUSALS
from training.contract.records import RecipeError

PROJECT = str(Path(resources.compute.slurm.__file__).parent.parent.parent)
SETTINGS = SlurmSettings(partition="gpu", account="lab", python="/opt/python", environment=("HF_TOKEN",))
SIZE = Size(backend="slurm", workers=4, threads=2, memory_gb=1.5, hours=2)


def task_of(**changes):
    plain = {"key": "filter-0123", "argv": ("-m", "training", "/runs/f/job.json"), "size": SIZE, "folder": "/runs/f"}
    return Task(**{**plain, "environment": {"PEDIGREE_DATA": "/data/it's $here"}, **changes})


ONE_NODE = """\
#!/bin/bash
#SBATCH --job-name=filter-0123-6096a05c
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=1536M
#SBATCH --time=120
#SBATCH --signal=B:TERM@60
#SBATCH --export=HF_TOKEN,HOME,LANG,LC_ALL,LD_LIBRARY_PATH,LOGNAME,PATH,SHELL,USER
#SBATCH --open-mode=append
#SBATCH --chdir={project}
#SBATCH --output=/runs/f/log.txt
#SBATCH --requeue

export OMP_NUM_THREADS=2
export PEDIGREE_DATA='/data/it'"'"'s $here'
export PEDIGREE_ATTEMPT="$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"
echo "--- attempt $PEDIGREE_ATTEMPT on $(hostname), $(date -Is)" >&2
exec /opt/python -m training /runs/f/job.json
"""

APART = """\
export PEDIGREE_DATA='/data/it'"'"'s $here'
export PEDIGREE_ATTEMPT="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID.${SLURM_RESTART_COUNT:-0}"
echo "--- attempt $PEDIGREE_ATTEMPT on $(hostname), $(date -Is)" >&2
exec /opt/python -m training.on_node s3://bucket/root '' '/it'"'"'s/f' \
/opt/python -m training /runs/f/job.json --ranks "$SLURM_ARRAY_TASK_ID/3" --claims "$SLURM_ARRAY_JOB_ID"
"""

TWO_NODES = """\
export OMP_NUM_THREADS=2
export PEDIGREE_ATTEMPT="$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"
echo "--- attempt $PEDIGREE_ATTEMPT on $(hostname), $(date -Is)" >&2
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_ADDR=$(scontrol -o show node "$first" | grep -o "NodeAddr=[^ ]*" | cut -d= -f2)
export MASTER_ADDR="${MASTER_ADDR:-$first}" MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
exec srun --kill-on-bad-exit=1 --export=ALL --cpus-per-task=8 bash -c 'exec /opt/python -m torch.distributed.run \
--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 --nnodes=2 --nproc-per-node=4 \
--node-rank="$SLURM_PROCID" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" -m training /runs/f/job.json'
"""


ON_RAY = """\
export OMP_NUM_THREADS=2
export PEDIGREE_ATTEMPT="$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"
echo "--- attempt $PEDIGREE_ATTEMPT on $(hostname), $(date -Is)" >&2
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_ADDR=$(scontrol -o show node "$first" | grep -o "NodeAddr=[^ ]*" | cut -d= -f2)
export MASTER_ADDR="${MASTER_ADDR:-$first}" MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export RAY_ADDRESS="$MASTER_ADDR:$MASTER_PORT" RAY_AUTH_MODE=token
export RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')
export RAY_USAGE_STATS_ENABLED=0 RAY_process_group_cleanup_enabled=1
srun --overlap --export=ALL --cpus-per-task=4 bash -c 'if [ "$SLURM_NODEID" = 0 ]; then
  exec /opt/python -m ray.scripts.scripts start --num-cpus 4 --num-gpus=0 --memory=2147483648 \
--object-store-memory=78643200 --disable-usage-stats --block --head --port="$MASTER_PORT" --include-dashboard=false \
--temp-dir="/tmp/ray-$SLURM_JOB_ID"
fi
until /opt/python -m ray.scripts.scripts start --num-cpus 4 --num-gpus=0 --memory=2147483648 \
--object-store-memory=78643200 --disable-usage-stats --block --address="$RAY_ADDRESS"; do sleep 2; done' &
trap 'kill %1; rm -rf "/tmp/ray-$SLURM_JOB_ID"' EXIT
/opt/python -m training /runs/f/job.json
"""


def test_a_node_with_a_folder_of_its_own_makes_it_and_writes_its_log_there(tmp_path):
    there = NodeFolder(path="/it's/f", address="s3://bucket/root", endpoint="")
    task = task_of(num_tasks=3, node_folder=there)
    script = render_array(task, SETTINGS)
    assert script.endswith(APART)
    assert "#SBATCH --output=/tmp/filter-0123-6096a05c.ranks-%j.txt" in script and "--output=/runs" not in script
    (own,) = [line for line in script.splitlines() if line.startswith("mkdir")]
    own = own.replace("/it'", f"{tmp_path}/it'")
    done = subprocess.run(
        ["bash", "-c", f"{own}\necho said"], env={"SLURM_ARRAY_TASK_ID": "2", "PATH": "/bin:/usr/bin"}
    )
    assert done.returncode == 0 and (tmp_path / "it's" / "f" / "log-2.txt").read_text() == "said\n"


def archive_in(folder: Path) -> Path:
    """An archive with `bin/python`, and a copy of it where a login node has it in its home, which is `folder`."""
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text("an interpreter")
    subprocess.run(["tar", "-cf", "e.tar", "bin"], cwd=folder, check=True)
    archive = folder / "e.tar"
    sent = folder / PLACE / digest_of(str(archive))
    sent.parent.mkdir(parents=True)
    sent.write_bytes(archive.read_bytes())
    return archive


def test_a_job_brings_its_environment(tmp_path):
    archive = archive_in(tmp_path)
    there = NodeFolder(path="/scratch/runs/toys/f", address="s3://bucket/runs", endpoint="")
    task = task_of(size=replace(SIZE, node_cache="/scratch"), node_folder=there)
    settings = SlurmSettings(environment_file=str(archive), ssh="me@login")
    script = render(task, settings)
    python = f"/scratch/environments/{digest_of(str(archive))}/bin/python"
    on_node = "-m training.on_node s3://bucket/runs '' /scratch/runs/toys/f"
    assert script.endswith(f"exec {python} {on_node} {python} -m training /runs/f/job.json\n")
    assert "#SBATCH --chdir=/\n" in script and script.index("flock") < script.index("exec /scratch")
    with pytest.raises(SlurmError, match="unpacked below `node_cache`, which is null in the profile"):
        render(task_of(), settings)
    with pytest.raises(SlurmError, match=r"environment_file: /no/such\.tar: No such file"):
        render(task, SlurmSettings(environment_file="/no/such.tar"))


def test_jobs_of_a_node_unpack_an_environment_once_and_whole_or_not_at_all(tmp_path):
    digest = digest_of(str(archive_in(tmp_path)))
    lines = "\n".join(unpack_lines(digest, f"{tmp_path}/it's here", code=ENVIRONMENT_FAILED))
    there = tmp_path / "it's here" / "environments" / digest
    ended_early = there.with_name(f"{digest}.part")
    ended_early.mkdir(parents=True)
    (ended_early / "half").touch()

    def ends(text: str) -> int:
        command = ["bash", "-c", text]
        return subprocess.run(
            command, env={"HOME": str(tmp_path), "PATH": "/bin:/usr/bin"}, capture_output=True
        ).returncode

    sent = tmp_path / PLACE / digest
    good = sent.read_bytes()
    sent.write_bytes(good.replace(b"an interpreter", b"no interpreter"))
    assert ends(lines) == ENVIRONMENT_FAILED and not there.exists()
    sent.write_bytes(good)
    assert ends(f"({lines}\n) & first=$!; ({lines}\n) && wait $first") == 0
    assert [path.name for path in there.iterdir()] == ["bin"] and not ended_early.exists()
    sent.unlink()
    assert ends(lines) == 0, "what is unpacked is not asked for"


def test_a_container_runs_the_interpreter_of_its_image(tmp_path):
    settings = SlurmSettings(container=("apptainer", "exec", "--nv", "it's.sif"))
    assert render(task_of(), settings).endswith(
        """exec apptainer exec --nv 'it'"'"'s.sif' python -m training /runs/f/job.json\n"""
    )
    two = render(task_of(size=replace(SIZE, nodes=2), environment={}), settings)
    assert "exec apptainer exec --nv" in two and "python -m torch.distributed.run" in two


def test_a_node_that_cannot_unpack_is_named():
    fields = {
        "JobState": "FAILED",
        "ExitCode": f"{ENVIRONMENT_FAILED}:0",
        "NodeList": "node7",
        "JobId": "1",
        "Restarts": "0",
    }
    status = status_of(fields)
    assert status.exit_code == 2 and status.reason.startswith("node7 could not unpack parts.slurm.environment_file")


def test_the_script_of_a_job_whose_nodes_form_a_ray_cluster():
    size = Size(backend="slurm", engine="ray", workers=4, threads=2, nodes=2, memory_gb=2)
    head, body = render(task_of(size=size, environment={}, on_ray=True), SETTINGS).split("\n\n")
    assert body == ON_RAY
    assert "#SBATCH --nodes=2\n" in head
    assert "#SBATCH --signal=B:TERM@60\n" in head  # to the batch shell, in which the command runs


def test_the_script_of_a_job_on_one_node():
    assert render(task_of(), SETTINGS) == ONE_NODE.replace("{project}", PROJECT)
    assert SlurmBackend(SETTINGS).render(task_of()) == render(task_of(), SETTINGS)


def test_the_script_of_a_job_on_several_nodes():
    size = Size(backend="slurm", workers=4, threads=2, nodes=2, processes=4, gpus_per_node=4)
    script = render(task_of(size=size, environment={}), SETTINGS)
    head, body = script.split("\n\n")
    assert body == TWO_NODES
    assert "#SBATCH --nodes=2\n" in head
    assert "#SBATCH --gpus-per-node=4\n" in head
    assert "#SBATCH --signal=TERM@60\n" in head  # to the steps: the batch shell is only srun


@pytest.mark.parametrize(
    ("fields", "nodes", "counts"),
    [
        ({"nodes": 4, "spare_nodes": 2}, 6, "4"),
        ({"nodes": 6, "min_nodes": 2}, 6, "2 3 6"),
        ({"nodes": 8, "min_nodes": 1, "processes": 4, "shard": 8}, 8, "2 4 8"),  # a model is on two nodes
    ],
)
def test_the_script_of_a_training_that_goes_on_without_a_lost_node(fields, nodes, counts):
    size = Size(backend="slurm", workers=1, threads=1, micro_batch_tokens=8, **fields)
    script = render(task_of(size=size, environment={}), SETTINGS)
    assert f"#SBATCH --nodes={nodes}\n" in script and "#SBATCH --no-kill\n" in script
    assert f"  for n in {counts}; do\n" in script and '--nnodes="$nodes"' in script


def test_without_a_number_in_the_profile_a_job_has_all_cores_of_its_node():
    size = Size(backend="slurm", workers=None, engine="ray", nodes=2)
    scripts = render(task_of(size=size, on_ray=True), SETTINGS), render_array(task_of(size=size, num_tasks=2), SETTINGS)
    assert all("#SBATCH --exclusive\n" in script and "#SBATCH --cpus" not in script for script in scripts)
    assert '--num-cpus "$SLURM_CPUS_ON_NODE" --num-gpus' in scripts[0]
    assert '--export=ALL --cpus-per-task="$SLURM_CPUS_ON_NODE" bash' in scripts[0]
    assert "--exclusive" not in render(task_of(), SETTINGS)


def test_the_scripts_of_a_fan_out():
    task = task_of(num_tasks=3, size=Size(backend="slurm", workers=4, nodes=3))
    finishing, array = render(task, SETTINGS), render_array(task, SETTINGS)
    assert "#SBATCH --nodes=1\n" in finishing
    assert "--array" not in finishing
    assert array.startswith(
        f"#!/bin/bash\n#SBATCH --array=0-2\n#SBATCH --job-name={job_name('filter-0123', Path('/runs/f'))}.ranks\n"
    )
    assert "#SBATCH --output=/runs/f/log-%a.txt\n" in array
    shares = '--ranks "$SLURM_ARRAY_TASK_ID/3" --claims "$SLURM_ARRAY_JOB_ID"'
    assert array.endswith(f"exec /opt/python -m training /runs/f/job.json {shares}\n")
    of_phase = render_array(task, SETTINGS, "sort")
    assert of_phase == array.replace("job.json --ranks", "job.json --phase sort --ranks")


@pytest.mark.parametrize(
    "script", [render(task_of(), SETTINGS), render_array(task_of(num_tasks=2), SETTINGS)], ids=["job", "array"]
)
def test_scripts_are_valid_for_a_shell(script):
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True).stderr == ""


@pytest.mark.parametrize("hostile", ["x\n#SBATCH --uid=0", "x y", "$(reboot)", "x;y", "x`id`", "%j", "x'y", 'x"y'])
def test_a_string_that_could_bend_an_sbatch_line_is_refused(hostile):
    with pytest.raises(SlurmError, match="#SBATCH"):
        render(task_of(key=hostile), SETTINGS)
    with pytest.raises(SlurmError, match=r"folder: .* #SBATCH"):
        render(task_of(folder=f"/runs/{hostile}"), SETTINGS)
    with pytest.raises(RecipeError, match=r"partition=.*; letters, digits and"):
        SlurmSettings(partition=hostile)
    with pytest.raises(SlurmError, match="name of a variable"):
        render(task_of(environment={f"A{hostile}": "1"}), SETTINGS)
    with pytest.raises(RecipeError, match="name of a variable"):
        SlurmSettings(environment=(f"A{hostile}",))


@pytest.mark.parametrize("hostile", ["x\nreboot", "$(touch {mark})", "x; touch {mark}", "`touch {mark}`", "it's"])
def test_a_hostile_argument_or_value_reaches_the_job_as_it_is(tmp_path, hostile):
    text = hostile.replace("{mark}", str(tmp_path / "mark"))
    argv = ("-c", "import os, sys; print([sys.argv[1], os.environ['VALUE']])", text)
    script = render(task_of(argv=argv, environment={"VALUE": text}), replace(SETTINGS, python="python3"))
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True)
    assert done.stdout == f"{[text, text]}\n"
    assert not (tmp_path / "mark").exists()


def test_names_tell_roots_apart():
    assert job_name("filter-0123", Path("/a/f")) != job_name("filter-0123", Path("/b/f"))


@pytest.mark.parametrize(
    ("fields", "state", "exit_code", "said"),
    [
        ({"JobState": "PENDING", "Reason": "Resources", "ExitCode": "0:0"}, "pending", None, "Resources"),
        ({"JobState": "COMPLETING", "NodeList": "n1", "ExitCode": "0:0"}, "running", None, "n1"),
        ({"JobState": "COMPLETED", "ExitCode": "0:0"}, "succeeded", 0, ""),
        ({"JobState": "FAILED", "ExitCode": "3:0"}, "failed", 3, "FAILED"),
        ({"JobState": "FAILED", "ExitCode": "0:9"}, "failed", -9, "FAILED"),
        ({"JobState": "FAILED", "ExitCode": "0:15"}, "failed", -15, "raise `hours`"),
        ({"JobState": "CANCELLED", "ExitCode": "0:15"}, "cancelled", -15, "CANCELLED"),
        ({"JobState": "TIMEOUT", "ExitCode": "0:15"}, "failed", -15, "raise `hours`"),
        ({"JobState": "OUT_OF_MEMORY", "ExitCode": "0:125"}, "failed", -125, "raise `memory_gb`"),
        ({"JobState": "CANCELLED by 0", "ExitCode": "0:0"}, "cancelled", None, "CANCELLED"),  # as sacct says it
        ({"JobState": "EXPEDITING", "ExitCode": "0:0"}, "pending", None, ""),
        ({"JobState": "REQUEUE_HOLD"}, "pending", None, "REQUEUE_HOLD: it is held"),  # as sacct says it
        ({"JobState": "SPECIAL_EXIT", "Reason": "None"}, "pending", None, "None: it is held"),
        ({"JobState": "PENDING", "Reason": "(JobHeldUser)"}, "pending", None, "JobHeldUser: it is held"),
        ({"JobState": "LAUNCH_FAILED", "ExitCode": "0:0"}, "failed", None, "could not be started"),
        ({"JobState": "NEWWORD", "ExitCode": "0:0"}, "running", None, "NEWWORD: a state of Slurm's that is not known"),
        (
            {"JobState": "PENDING", "Reason": "BeginTime", "JobId": "8", "Restarts": "0"},
            "pending",
            None,
            "its begin time",
        ),
        (
            {"JobState": "PENDING", "Reason": "BeginTime", "JobId": "8", "Restarts": "1"},
            "pending",
            None,
            "requeued and starts again",
        ),
    ],
)
def test_states_of_slurm_become_states_of_a_task(fields, state, exit_code, said):
    status = status_of(fields)
    assert (status.state, status.exit_code) == (state, exit_code)
    assert said in status.reason


EARLY = {"StartTime": "2026-11-28T09:00:00", "EndTime": "2026-11-28T09:00:20", "TimeLimit": "1:00:00"}
PREEMPTED = {"PreemptTime": "2026-11-28T09:00:10"}


@pytest.mark.parametrize(
    ("fields", "exit_code"),
    [
        ({"JobState": "FAILED", "ExitCode": "143:0", **EARLY}, 75),
        ({"JobState": "FAILED", "ExitCode": "0:15", **EARLY}, 75),
        ({"JobState": "FAILED", "ExitCode": "1:0", **EARLY, **PREEMPTED}, 75),  # as torchrun ends when it is told to
        ({"JobState": "TIMEOUT", "ExitCode": "0:0", **EARLY, **PREEMPTED}, 75),  # its grace time was its limit
        ({"JobState": "PREEMPTED", "ExitCode": "0:15"}, 75),
        ({"JobState": "FAILED", "ExitCode": "1:0", **EARLY}, 1),
        ({"JobState": "FAILED", "ExitCode": "137:0", **EARLY}, 137),
        ({"JobState": "FAILED", "ExitCode": "143:0", **EARLY, "TimeLimit": "2:00"}, 143),  # the signal before its end
        ({"JobState": "FAILED", "ExitCode": "143:0", **EARLY, "EndTime": "2026-11-28T09:30:00"}, 143),
        ({"JobState": "FAILED", "ExitCode": "143:0"}, 143),
        ({"JobState": "TIMEOUT", "ExitCode": "0:15", **EARLY}, -15),
    ],
)
def test_a_job_that_lost_its_nodes_is_told_from_one_that_failed(fields, exit_code):
    status = status_of(fields)
    assert status.exit_code == exit_code and status.was_preempted == (exit_code == 75)


def test_without_slurm_the_error_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="slurm"):
        SlurmBackend(SETTINGS).submit(task_of(folder=str(tmp_path / "f")))


def test_a_refusal_of_the_queue_names_fields_that_a_profile_has():
    named = {field for said in REFUSALS.values() for field in re.findall(r"`([^`]+)`", said)}
    known = {f"parts.slurm.{one.name}" for one in fields(SlurmSettings)} | {one.name for one in fields(Size)}
    assert named <= known
