"""The job scripts of docs/slurm.md, as they stand there."""

import re
import shutil
from pathlib import Path

import pytest

from cluster import TEXT

PAGE = Path(__file__).parents[2] / "docs/slurm.md"


def scripts():
    """By the names of their jobs."""
    blocks = re.findall(r"^```sh [^\n]*\n(#!/bin/bash\n.*?)^```$", PAGE.read_text(), re.M | re.S)
    return {re.search(r"--job-name=(\w+)", block)[1]: block for block in blocks}


@pytest.fixture
def submit(cluster, program, mpi, request):
    """Submits a script of the page from a folder of its own, with another program there as `millstream`."""
    folder = cluster.folder / request.node.name
    bin_folder = folder / "bin"
    bin_folder.mkdir(parents=True)
    shutil.copy(cluster.folder / TEXT, folder)

    def submit(name, wrapper=""):
        millstream = bin_folder / "millstream"
        millstream.write_text(f'#!/bin/sh\n{wrapper}\nexec "{program}" "$@"\n')
        millstream.chmod(0o755)
        script = scripts()[name].replace("--mpi=pmix", f"--mpi={mpi}")
        (folder / "job.sh").write_text(script)
        return cluster.submit(folder, f"{bin_folder}:{cluster.environment['PATH']}")

    return submit


def test_a_job_counts_words(cluster, submit, program):
    alone = cluster.run(program, "flow", "run", "words", "--file", TEXT)
    job = submit("words")
    assert cluster.wait_for_end(job) == "COMPLETED", cluster.logs()
    assert table(job.output()) == table(alone.stdout)
    assert job.errors() == ""


def test_a_job_that_fails_says_why(cluster, submit):
    job = submit("words", f"rm -f {TEXT}")
    assert cluster.wait_for_end(job) == "FAILED", cluster.logs()
    assert f"cannot read {TEXT}" in job.errors()


def test_a_job_begins_again_when_a_node_fails_before_the_first_checkpoint(cluster, submit):
    job = submit("requeue", '[ -n "$SLURM_RESTART_COUNT" ] || { echo started >&2; sleep 60; }')
    cluster.wait("the job", lambda: job.errors().count("started") == 2)
    cluster.fail_node("n2")
    assert cluster.wait_for_end(job) == "COMPLETED", cluster.logs()
    assert list((job.folder / f"checkpoints-{job.number}").glob("checkpoint.*")), "it keeps some"
    assert job.output().count("results of windows") == 1


def test_a_job_goes_on_from_its_checkpoint_when_a_node_fails(cluster, submit):
    job = submit("requeue", '[ -z "$SLURM_RESTART_COUNT" ] || { ls checkpoints-* >&2; sleep 2; }')
    cluster.wait("checkpoints", lambda: max(complete_checkpoints(job), default=0) >= 2)
    cluster.fail_node("n2")
    # It fails if a result is missing, wrong, or there twice.
    assert cluster.wait_for_end(job) == "COMPLETED", cluster.logs()
    # One of an interval, or the last one of ranks that got the order to stop.
    assert re.search(r"checkpoint\.([2-9]|10{11}\d)\.0", job.errors()), job.errors()
    assert job.output().count("results of windows") == 1


def complete_checkpoints(job):
    """The numbers of the retained checkpoints that have the shards of both ranks."""
    parts = (job.folder / f"checkpoints-{job.number}").glob("checkpoint.*.[01]")
    numbers = [int(part.name.split(".")[1]) for part in parts]
    return {number for number in numbers if numbers.count(number) == 2}


def table(output):
    """The part of the output that is the same each time."""
    return output.rpartition(";")[0]
