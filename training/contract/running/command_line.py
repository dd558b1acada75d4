"""The command line of a job: read the job file, run it, and say by an exit code how it ended.

`python -m training job.json` and `python -m evaluation job.json` call this module, each with its table of stages.

Exit codes: 0 the artifact is committed, now or before; 2 bad input; 3 a gate or check refused an input; 4 more ranks
are missing than a finishing job may run; 75 stopped on request, the same command resumes; 76 another live process is
making the same artifact; 1 any other error.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from training.contract.files.full_disk import is_full_disk
from training.contract.job import DataError, RefusedInput, StopRequested, read_job
from training.contract.process.exit_codes import BAD_INPUT, BUSY, FAILED, MISSING_RANKS, REFUSED, REQUEUE
from training.contract.process.lifetime import die_with_parent
from training.contract.records import RecipeError
from training.contract.running.attempt import Attempt
from training.contract.running.lease import LeaseHeld
from training.contract.running.ranks import RanksMissing, begin_worker
from training.contract.running.runner import run_job
from training.contract.secrets import masked_errors, masked_output
from training.contract.stage import Stage

log = logging.getLogger(__name__)


def main(arguments: Sequence[str], stages: Mapping[str, Stage]) -> int:
    """Run the job file named on the command line; return the exit code. Secrets are masked in everything it prints."""
    with masked_errors(), masked_output():
        return _main(arguments, stages)


def _main(arguments: Sequence[str], stages: Mapping[str, Stage]) -> int:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()  # else the processes of a killed torchrun would wait for a store that is gone
    parser = argparse.ArgumentParser(description="Run one stage of a pipeline, as its job file says.")
    parser.add_argument("job", help="path of a job.json")
    parser.add_argument(
        "--ranks", default="", help="comma-separated ranks to run, committing nothing; or i/n for every n-th from i"
    )
    parser.add_argument(
        "--claims",
        default="",
        metavar="NAME",
        help="with --ranks i/n: begin with these ranks and go on with all others, leaving out what another process with"
        " the same NAME has claimed (training/contract/running/claims.py)",
    )
    parser.add_argument(
        "--phase",
        default="",
        help="the phase of these ranks, if the stage has several (training/contract/running/phase.py)",
    )
    parser.add_argument(
        "--finish", type=float, default=1.0, metavar="SHARE", help="refuse when more of the ranks than this are missing"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        job = read_job(options.job)
    except (RecipeError, DataError) as error:
        return Attempt(Path(options.job).parent).failed(BAD_INPUT, error)
    attempt = Attempt(Path(job.output))
    attempt.show_life()
    try:
        if job.stage in stages:
            begin_worker(stages[job.stage])
        given = {"ranks": options.ranks, "claims": options.claims, "phase": options.phase}
        code = run_job(job, stages, **given, missing_share=options.finish)
        attempt.ended(code)
        return code
    except (RecipeError, DataError) as error:
        return attempt.failed(BAD_INPUT, error)
    except RefusedInput as error:
        return attempt.failed(REFUSED, error)
    except LeaseHeld as error:
        return attempt.failed(BUSY, error)
    except RanksMissing as error:
        return attempt.failed(MISSING_RANKS, error)
    except StopRequested as error:
        log.info("stopped: %s", error)
        attempt.ended(REQUEUE, str(error))
        return REQUEUE
    except BaseException as error:
        if is_full_disk(error):
            place = getattr(error, "filename", None) or Path(options.job).parent  # a library's own error names no file
            said = f"disk full while writing {place}; nothing was committed. Free space and run again."
            return attempt.failed(FAILED, said)
        attempt.ended(1, f"{type(error).__name__}: {error}")
        raise
