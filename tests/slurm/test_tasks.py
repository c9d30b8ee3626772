"""Ranks that are tasks of srun: the same results on any number, and none is left when one fails."""

import json
import signal

import pytest

from cluster import TEXT


def counts(done):
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    return report["top"], report["words"], report["different"]


@pytest.fixture
def words(program):
    return [program, "flow", "run", "words", "--json", "--file", TEXT]


@pytest.mark.parametrize(
    "options",
    [
        "-N 1 -n 1",
        "-N 1 -n 2",
        "-N 2 -n 2 -c 2",
        "-N 2 -n 4 -c 1",
        "-N 1 -n 4 --overcommit",
    ],
)
def test_words_are_the_same_on_any_number_of_tasks(cluster, mpi, words, options):
    alone = counts(cluster.run(*words))
    assert counts(cluster.srun(mpi, options, *words)) == alone


def test_there_can_be_more_workers_than_cpus(cluster, mpi, words):
    alone = counts(cluster.run(*words))
    instances = ["--instances", "5", "--gather-at", "1"]
    assert counts(cluster.srun(mpi, "-N 2 -n 2", *words, *instances)) == alone


def test_a_file_that_is_missing_on_one_node_ends_all_tasks(cluster, mpi, words):
    (cluster.folder / "only-on-n1").mkdir()
    (cluster.folder / "only-on-n1" / TEXT).write_text("a word")
    (cluster.folder / "only-on-n2").mkdir()
    enter = ["sh", "-c", 'cd "only-on-$SLURMD_NODENAME" && exec "$@"', "sh"]
    done = cluster.srun(mpi, "-N 2 -n 2", *enter, *words)
    assert done.returncode == 1, done.stderr
    assert f"cannot read {TEXT}" in done.stderr
    assert done.stdout == ""


def test_a_task_that_dies_ends_all_tasks(cluster, mpi, words):
    die = ["sh", "-c", '[ "$SLURM_PROCID" = 0 ] || kill -9 $$; exec "$@"', "sh"]
    done = cluster.srun(mpi, "-N 2 -n 2 --kill-on-bad-exit", *die, *words)
    # The remaining processes are ended with a signal as well.
    assert done.returncode in [128 + signal.SIGKILL, 128 + signal.SIGTERM], done.stderr
    assert done.stdout == ""


def test_tasks_without_a_connection_report_the_remedy(cluster, mpi, words):
    done = cluster.srun("none", "-N 1 -n 2", *words)
    assert done.returncode == 1, done.stderr
    assert "pmi" in done.stderr
    assert done.stdout == ""
