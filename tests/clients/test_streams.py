"""Kafka Streams: runs the tests and the application that stand in `streams`, which scripts/setup.sh builds."""

import time
from collections import defaultdict

import pytest

import processes
from clients import consumer, create_topic, produce_all, producer, wait_until
from jvm import java
from test_java import run_java

KEYS = 17
RECORDS = 500
CRASHES = 3


@pytest.mark.timeout(180)
def test_streams(address):
    run_java("streams", "streams", address, seconds_max=170)


def start(address, application, protocol, folder):
    """An instance of the application that counts the records of each key; its output contains its number of tasks."""
    words = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "streams.Application"]
    with open(folder / "said", "w") as said:
        command = java("java-streams", *words, address, application, protocol, folder / "state")
        return processes.start(command, stdout=said)


def counts(address, topic, count):
    """Returns the counts committed to a topic, by key, once this number has come."""
    found = defaultdict(list)

    def is_read():
        for message in reader.consume(1000, 0.1):
            assert message.error() is None, message.error()
            found[message.key().decode()].append(int.from_bytes(message.value(), "big"))
        return sum(map(len, found.values())) >= count

    reader = consumer(address, f"reader-of-{topic}", isolation_level="read_committed")
    reader.subscribe([topic])
    try:
        wait_until(is_read, f"{count} counts", 100)
    finally:
        reader.close()
    return found


@pytest.mark.timeout(180)
@pytest.mark.parametrize("protocol", ["streams", "classic"])
def test_an_application_outlives_crashes_of_the_server(own_server, name, tmp_path, protocol):
    address = own_server.address
    for topic in ["in", "out"]:
        create_topic(address, f"{name}-{topic}", 2)
    instance = start(address, name, protocol, tmp_path)
    try:
        wait_until(lambda: (tmp_path / "said").read_text().split()[-1:] == ["5"], "all tasks run", 60)
        for _ in range(CRASHES):
            records = [{"key": str(n % KEYS), "value": str(n)} for n in range(RECORDS)]
            produce_all(producer(address), f"{name}-in", records)
            # In the midst of its work.
            time.sleep(0.3)
            own_server.kill()
            own_server.start()
        found = counts(address, f"{name}-out", CRASHES * RECORDS)
    finally:
        instance.kill()
        instance.wait()
    each = [CRASHES * len(range(key, RECORDS, KEYS)) for key in range(KEYS)]
    assert found == {str(key): list(range(1, count + 1)) for key, count in enumerate(each)}
