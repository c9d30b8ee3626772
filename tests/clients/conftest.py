"""Fixtures of all tests: servers, and names that no other test uses."""

import os
import uuid
from pathlib import Path

import pytest

from server import Server


def program():
    """The program, which MILLSTREAM_BIN names."""
    path = os.environ.get("MILLSTREAM_BIN")
    if not path:
        pytest.exit("set MILLSTREAM_BIN to the program, such as target/debug/millstream", 2)
    return Path(path).absolute()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory):
    """One server for all tests of a process that do not end it."""
    server = Server(program(), tmp_path_factory.mktemp("shared") / "data")
    yield server
    server.stop()


@pytest.fixture
def address(shared_server):
    """Where the shared server listens; it must still be there after the test."""
    yield shared_server.address
    code = shared_server.process.poll()
    assert code is None, f"the server ended with {code}:\n{shared_server.logs()}"
    assert "panicked" not in shared_server.logs(), shared_server.logs()


@pytest.fixture
def own_server(tmp_path):
    """A server of the test's own, to kill and to start again."""
    server = Server(program(), tmp_path / "data")
    yield server
    if server.is_running():
        server.stop()
    assert "panicked" not in server.logs(), server.logs()


@pytest.fixture
def name(request):
    """A name for the topic and the group of one test."""
    return f"{request.node.originalname}-{uuid.uuid4().hex[:8]}"
