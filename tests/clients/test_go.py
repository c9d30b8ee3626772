"""franz-go: runs the tests that stand in `go`, which scripts/setup.sh builds where there is a Go."""

import os
import subprocess
from pathlib import Path

import pytest

import processes

PROGRAM = Path(__file__).parents[2] / "target/clients/franz.test"
SECONDS_MAX = 80


def test_franz_go(address):
    if not PROGRAM.exists():
        pytest.skip(f"{PROGRAM} is not built: see scripts/setup.sh")
    done = processes.run(
        [PROGRAM, "-test.v", "-test.parallel", "6", "-test.timeout", f"{SECONDS_MAX}s"],
        env={**os.environ, "MILLSTREAM_ADDRESS": address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
