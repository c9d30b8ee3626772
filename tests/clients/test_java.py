"""Apache Kafka's own client, for Java: runs the tests that stand in `java`, which scripts/setup.sh builds."""

import subprocess

import pytest

import processes
from jvm import java

SECONDS_MAX = 80


def run_java(built, package, address, *properties, seconds_max=SECONDS_MAX):
    """Runs the tests of a package that was built for a version of the client, or for `streams`; they must all pass."""
    done = processes.run(
        [
            *java(f"java-{built}", f"-Dmillstream.address={address}"),
            *["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *properties],
            *["org.junit.platform.console.ConsoleLauncher", "execute", "--disable-banner"],
            *["--select-package", package, "--details", "tree", "--disable-ansi-colors"],
            *["--config", "junit.jupiter.execution.parallel.enabled=true"],
            *["--config", "junit.jupiter.execution.parallel.mode.default=concurrent"],
            *["--config", "junit.jupiter.execution.parallel.config.strategy=fixed"],
            *["--config", "junit.jupiter.execution.parallel.config.fixed.parallelism=6"],
            *["--config", "junit.jupiter.execution.parallel.config.executor-service=WORKER_THREAD_POOL"],
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds_max,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", ["4.3.1", "3.9.2"])
def test_java(address, version):
    run_java(version, "clients", address)
