"""Kafka Connect: a distributed worker keeps connectors, offsets and states in three compacted topics."""

import os
import random
import re
import time

import pytest

from clients import create_topic, read_partition, topic_setting, wait_until
from conftest import program
from jvm import java
from server import QUICK_GROUPS, Server
from service import Service

#: How often the worker, the server or both are killed, and where the moments come from.
KILLS = int(os.environ.get("MILLSTREAM_KILLS", 2))
SEED = int(os.environ.get("MILLSTREAM_SEED", 5))
PAUSE_SECONDS_MAX = 6
LINES = 500

OWN_TOPICS = ["configs", "offsets", "states"]

SETTINGS = {
    "group.id": "connect",
    "config.storage.topic": "configs",
    "offset.storage.topic": "offsets",
    "status.storage.topic": "states",
    "config.storage.replication.factor": 1,
    "offset.storage.replication.factor": 1,
    "status.storage.replication.factor": 1,
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "listeners": "http://127.0.0.1:0",
    "plugin.discovery": "service_load",
    # Lines are read once, although the worker is killed.
    "exactly.once.source.support": "enabled",
    "consumer.isolation.level": "read_committed",
    # The next worker, and its reader of the sink's topic, begin soon after a crash.
    "session.timeout.ms": 3000,
    "heartbeat.interval.ms": 500,
    "consumer.session.timeout.ms": 3000,
    "consumer.heartbeat.interval.ms": 500,
    "scheduled.rebalance.max.delay.ms": 0,
    "offset.flush.interval.ms": 500,
    # A worker that was killed may leave a transaction. The next one begins when it has ended.
    "producer.transaction.timeout.ms": 3000,
}


class Worker(Service):
    def __init__(self, address, folder):
        settings = folder / "worker.properties"
        given = {**SETTINGS, "bootstrap.servers": address}
        settings.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        logger = "-Dorg.slf4j.simpleLogger"
        levels = [f"{logger}.defaultLogLevel=warn", f"{logger}.log.org.apache.kafka.connect.runtime.rest=info"]
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        command = java("connect", *levels, "-Xmx512m", main, settings)
        super().__init__(command, folder / "worker.log", self.address_in_log)

    def address_in_log(self):
        found = re.search(r"advertising URL (http://\S+?)/?\s", self.logs())
        return found and found.group(1)

    def wait_for(self, connector, state):
        """Waits until a connector, and its task if it has one in this state, are so."""

        def is_so():
            found = self.ask("GET", f"/connectors/{connector}/status")
            failed = [task["trace"] for task in found["tasks"] if task["state"] == "FAILED"]
            assert not failed, failed[0]
            states = {found["connector"]["state"], *(task["state"] for task in found["tasks"])}
            return states == {state} and (state == "STOPPED" or found["tasks"])

        wait_until(is_so, f"{connector} is {state}")


class Files:
    """A file of lines, which a connector reads into a topic, and a file that another one writes from that topic."""

    def __init__(self, folder):
        self.source, self.sink = folder / "source.txt", folder / "sink.txt"
        self.lines = []
        self.sink.touch()

    def append(self, count, seconds=0):
        """Writes lines, spread over this number of seconds."""
        with open(self.source, "a") as file:
            for _ in range(count):
                self.lines.append(f"line {len(self.lines)}")
                file.write(f"{self.lines[-1]}\n")
                file.flush()
                time.sleep(seconds / count)

    def connectors(self, topic):
        package = "org.apache.kafka.connect.file"
        source = {"connector.class": f"{package}.FileStreamSourceConnector", "file": str(self.source), "topic": topic}
        sink = {"connector.class": f"{package}.FileStreamSinkConnector", "file": str(self.sink), "topics": topic}
        return {"source": source, "sink": sink}

    def sunk(self):
        return self.sink.read_text().splitlines()


def source_position(worker):
    """How many bytes of the file are in the topic, by the offset that the connector has stored."""
    offsets = worker.ask("GET", "/connectors/source/offsets")["offsets"]
    return offsets[0]["offset"]["position"] if offsets else 0


def values(address, topic, count):
    read = read_partition(address, topic, count, isolation_level="read_committed")
    return [message.value().decode() for message in read]


@pytest.mark.timeout(120 + KILLS * 4 * PAUSE_SECONDS_MAX)
def test_connectors_go_on_after_crashes(name, tmp_path):
    server = Server(program(), tmp_path / "data", *QUICK_GROUPS)
    create_topic(server.address, name)
    worker = Worker(server.address, tmp_path)
    files = Files(tmp_path)
    files.append(LINES)
    for connector, config in files.connectors(name).items():
        assert worker.ask("PUT", f"/connectors/{connector}/config", config)["name"] == connector
    wait_until(lambda: files.sunk() == files.lines, "all lines are written")
    # The worker has made its topics, and does not start with others.
    for topic in OWN_TOPICS:
        assert topic_setting(server.address, topic, "cleanup.policy") == "compact"

    draw = random.Random(SEED)
    for number in range(KILLS):
        files.append(LINES, draw.uniform(0, PAUSE_SECONDS_MAX))
        victims = ["worker server", "worker", "server"][number % 3]
        if "worker" in victims:
            worker.kill()
        if "server" in victims:
            server.kill()
            server.start()
        if "worker" in victims:
            worker.start()
    files.append(LINES)

    wait_until(lambda: source_position(worker) == files.source.stat().st_size, "all lines are read", 60)
    assert values(server.address, name, len(files.lines)) == files.lines
    # The sink commits its offsets after it has written, so a crash may repeat lines.
    wait_until(lambda: set(files.sunk()) == set(files.lines), "all lines are written")
    for connector in ["source", "sink"]:
        worker.wait_for(connector, "RUNNING")

    check_commands(server.address, worker, files, name)
    worker.kill()
    server.stop()
    assert "panicked" not in server.logs(), server.logs()


def check_commands(address, worker, files, topic):
    """Pauses, restarts, resets and deletes connectors: each is a record of the worker's topics, or a tombstone."""
    worker.ask("PUT", "/connectors/source/pause")
    worker.wait_for("source", "PAUSED")
    worker.kill()
    worker.start()
    wait_until(lambda: sorted(worker.ask("GET", "/connectors")) == ["sink", "source"], "both are there again")
    worker.wait_for("source", "PAUSED")
    files.append(LINES)
    worker.ask("PUT", "/connectors/source/resume")
    worker.wait_for("source", "RUNNING")
    assert values(address, topic, len(files.lines)) == files.lines

    worker.ask("PUT", "/connectors/source/stop")
    worker.wait_for("source", "STOPPED")
    worker.ask("DELETE", "/connectors/source/offsets")
    assert source_position(worker) == 0
    worker.ask("PUT", "/connectors/source/resume")
    assert values(address, topic, 2 * len(files.lines)) == 2 * files.lines
    worker.ask("DELETE", "/connectors/sink")
    wait_until(lambda: worker.ask("GET", "/connectors") == ["source"], "the sink is deleted")
