"""Fixtures of all tests: the cluster, and the program with the MPI that it was built with."""

import os
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cluster import Cluster, missing

# Which of srun's plugins an MPI library understands: Open MPI, MPICH as Debian calls it, and as it calls itself.
PLUGINS = {"libmpi.so.40": "pmix", "libmpich.so.12": "pmi2", "libmpi.so.12": "pmi2"}


@pytest.fixture(scope="session")
def program():
    """The program, which MILLSTREAM_BIN names."""
    path = os.environ.get("MILLSTREAM_BIN")
    if not path:
        pytest.exit("set MILLSTREAM_BIN to the program, such as target/debug/millstream", 2)
    return Path(path).absolute()


@pytest.fixture(scope="session")
def mpi(program):
    """Which `--mpi` of srun the program needs."""
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for library, plugin in PLUGINS.items():
        if library in libraries:
            return plugin
    pytest.skip("the program is built without MPI")


@pytest.fixture(scope="session")
def cluster():
    """One cluster for all tests."""
    if reason := missing():
        pytest.skip(f"no SLURM cluster can be started here: {reason}")
    with TemporaryDirectory(prefix="slurm-") as folder:
        cluster = Cluster(Path(folder))
        yield cluster
        cluster.stop()
