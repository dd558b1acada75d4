"""What is known of the documents in a batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.pretrain import tiny
from training.contract.job import RefusedInput
from training.pretrain.stages import pretrain as stage


def test_a_missing_sidecar_is_refused_before_the_first_step(tmp_path):
    chain = tiny.TinyChain(tmp_path)
    chain.shards.file("shards/00001.documents.parquet").unlink()
    job = chain.job()
    with pytest.raises(RefusedInput, match=r"00001.documents.parquet: .* missing"):
        stage.run(job, tiny.work_in(Path(job.output)))
