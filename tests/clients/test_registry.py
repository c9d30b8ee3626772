"""A registry of schemas that keeps them in a compacted topic, and has nothing else of its own."""

import json
import socket

import pytest

from clients import topic_setting, wait_until
from conftest import program
from jvm import BUILT, java
from server import QUICK_GROUPS, Server
from service import START_SECONDS_MAX, Service

JOURNAL = "kafkasql-journal"
VERSIONS = 5

#: The interface of Confluent's registry.
API = "/apis/ccompat/v7"


class Registry(Service):
    def __init__(self, address, folder):
        port = free_port()
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": port,
            "apicurio.storage.kind": "kafkasql",
            "apicurio.kafkasql.bootstrap.servers": address,
            "apicurio.kafkasql.topic.cleanup.policy": "compact",
            # The registry waits this long for snapshots, and there are none.
            "apicurio.kafkasql.consumer.poll.timeout": 500,
        }
        words = [f"-D{key}={value}" for key, value in settings.items()]
        jar = next((BUILT / "registry").glob("*-runner.jar"), "")
        command = java("registry", *words, "-Xmx512m", "-jar", jar)
        super().__init__(command, folder / "registry.log", lambda: listening(port))

    def ask(self, method, path, content=None):
        return super().ask(method, API + path, content)

    def start(self):
        super().start()
        wait_until(self.is_ready, f"the registry is ready; {self.log} is its log", START_SECONDS_MAX)

    def is_ready(self):
        return Service.ask(self, "GET", "/health/ready")["status"] == "UP"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listening(port):
    """Returns the address of the listener on a port, if there is one."""
    with socket.socket() as probe:
        return f"http://127.0.0.1:{port}" if probe.connect_ex(("127.0.0.1", port)) == 0 else None


def schema(version):
    fields = [{"name": f"field{number}", "type": "long", "default": 0} for number in range(version)]
    return json.dumps({"type": "record", "name": "Click", "fields": fields})


def ids(registry, subject):
    """The id of each version; all versions must be as they were registered."""
    found = {}
    for version in registry.ask("GET", f"/subjects/{subject}/versions"):
        entry = registry.ask("GET", f"/subjects/{subject}/versions/{version}")
        assert json.loads(entry["schema"]) == json.loads(schema(version))
        assert json.loads(registry.ask("GET", f"/schemas/ids/{entry['id']}")["schema"]) == json.loads(schema(version))
        found[version] = entry["id"]
    return found


@pytest.mark.timeout(180)
def test_schemas_outlast_the_registry_and_the_server(tmp_path):
    server = Server(program(), tmp_path / "data", *QUICK_GROUPS)
    registry = Registry(server.address, tmp_path)
    for version in range(1, VERSIONS + 1):
        registry.ask("POST", "/subjects/clicks/versions", {"schema": schema(version)})
    registry.ask("POST", "/subjects/deleted/versions", {"schema": schema(1)})
    registry.ask("PUT", "/config/clicks", {"compatibility": "BACKWARD"})
    registry.ask("DELETE", "/subjects/deleted")
    before = ids(registry, "clicks")
    assert list(before) == list(range(1, VERSIONS + 1))
    assert topic_setting(server.address, JOURNAL, "cleanup.policy") == "compact"

    registry.kill()
    server.kill()
    server.start()
    registry.start()
    assert registry.ask("GET", "/subjects") == ["clicks"]
    assert ids(registry, "clicks") == before
    assert registry.ask("GET", "/config/clicks")["compatibilityLevel"] == "BACKWARD"
    # The registry goes on while the server restarts.
    server.kill()
    server.start()
    added = registry.ask("POST", "/subjects/clicks/versions", {"schema": schema(VERSIONS + 1)})
    assert added["id"] not in before.values()
    assert len(ids(registry, "clicks")) == VERSIONS + 1
    registry.kill()
    server.stop()
    assert "panicked" not in server.logs(), server.logs()
