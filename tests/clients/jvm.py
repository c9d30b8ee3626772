"""Programs in Java, which scripts/setup.sh builds. They end with the tests."""

import shutil
from pathlib import Path

import pytest

BUILT = Path(__file__).parents[2] / "target/clients"

#: The tests are short, so a JVM should spend little on its own start.
JAVA = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def java(built, *words):
    """The command that runs a class of a folder in target/clients; skips the test if the folder is not built."""
    folder = BUILT / built
    if shutil.which("java") is None or not (folder / "built").exists():
        pytest.skip(f"{folder} is not built, or there is no Java: see scripts/setup.sh")
    return [*JAVA, "-cp", f"{folder}/*:{folder}/lib/*", *map(str, words)]
