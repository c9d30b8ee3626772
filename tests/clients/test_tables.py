"""Kafka Streams joins two tables exactly once, with standby tasks, while an instance and the server are killed."""

import os
import random
import re
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

import processes
from clients import SECONDS_MAX, create_topic, produce_all, producer, read_to_ends, topic_setting, wait_until
from conftest import program
from jvm import java
from server import QUICK_GROUPS, Server
from test_compacted import DUE

SEED = int(os.environ.get("MILLSTREAM_SEED", 7))

PARTITIONS = 4
KEYS = 60
#: The updates of each table that are written together, and the pause after them.
STEP = 25
PAUSE_SECONDS = 0.1

SETTINGS = [
    "group.protocol=classic",
    "processing.guarantee=exactly_once_v2",
    "num.standby.replicas=1",
    "statestore.cache.max.bytes=0",
    "session.timeout.ms=3000",
    "heartbeat.interval.ms=500",
    # An instance that was killed leaves a transaction. The other one waits for its end.
    "producer.transaction.timeout.ms=3000",
]


class Instance:
    """A process of the application."""

    def __init__(self, address, application, folder):
        words = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-Xmx256m", "streams.TableJoin"]
        self.command = java("java-streams", *words, address, application, folder / "state", *SETTINGS)
        self.folder = folder
        folder.mkdir()
        self.start()

    def start(self):
        with open(self.folder / "said", "w") as said, open(self.folder / "log", "a") as log:
            self.process = processes.start(self.command, stdout=said, stderr=log)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def lines(self):
        assert self.process.poll() is None, (self.folder / "log").read_text()
        return [line.split() for line in (self.folder / "said").read_text().splitlines()]

    def tasks(self):
        """Its active and its standby tasks."""
        found = [(int(line[1]), int(line[2])) for line in self.lines() if line[0] == "tasks"]
        return found[-1] if found else (0, 0)

    def restores(self, start):
        """The restores for active tasks that it has printed from a line on. For each changelog: the offset at which the
        restore began, the offset behind its end, and the number of records, once they are restored."""
        found = {}
        for line in self.lines()[start:]:
            if line[0] == "restoring":
                found[line[1]] = [int(line[2]), int(line[3])]
            elif line[0] == "restored":
                found[line[1]].append(int(line[2]))
        return found


class Input:
    """Updates of both tables. A value is the name of its table and its version, so the values of a key go up."""

    def __init__(self, draw):
        self.draw = draw
        self.versions = Counter()
        #: The newest value of each key, None for a tombstone.
        self.newest = {"left": {}, "right": {}}

    def updates(self, table):
        for _ in range(STEP):
            key = self.draw.randrange(KEYS)
            self.versions[table, key] += 1
            is_tombstone = is_deleted(key) and self.draw.random() < 0.3
            value = None if is_tombstone else f"{table} {self.versions[table, key]}"
            self.newest[table][str(key)] = value
            yield {"key": str(key), "value": value}

    def feed(self, address, name, end):
        """Writes until the end is set."""
        target = producer(address, enable_idempotence=True)
        while not end.wait(PAUSE_SECONDS):
            for table in self.newest:
                produce_all(target, f"{name}-{table}", self.updates(table))

    def join(self):
        left, right = self.newest["left"], self.newest["right"]
        pairs = {key: (left[key], right[key]) for key in left.keys() & right.keys()}
        return {key: " ".join(pair) for key, pair in pairs.items() if None not in pair}


def is_deleted(key):
    """Whether updates delete the key now and then."""
    return key % 3 == 0


def read_committed(address, topic):
    """The committed values of each key of a topic, in their order."""
    found = defaultdict(list)
    for message in read_to_ends(address, topic, PARTITIONS, isolation_level="read_committed"):
        found[message.key().decode()].append(message.value() and message.value().decode())
    return found


def newest(address, topic):
    """The newest committed value of each key that has one."""
    values = {key: values[-1] for key, values in read_committed(address, topic).items()}
    return {key: value for key, value in values.items() if value is not None}


def compactions(http, stream):
    """How often the partitions of a stream were compacted since the start of the server."""
    with urllib.request.urlopen(f"{http}/metrics", timeout=SECONDS_MAX) as answer:
        text = answer.read().decode()
    pattern = rf'^millstream_partition_compactions_total{{stream="{stream}",partition="\d+"}} (\d+)$'
    return sum(map(int, re.findall(pattern, text, re.M)))


def is_compacted(address, topic):
    return all(len(values) == 1 for values in read_committed(address, topic).values())


def check_steps(outputs):
    """Each result follows from one update of one table, so none is doubled, and none comes from an older state."""
    steps = [tuple(int(version) for version in re.findall(r"\d+", output)) for output in outputs]
    for (left, right), (next_left, next_right) in zip(steps, steps[1:]):
        # Compaction may remove updates of the left table before they are read; those of the right one all stay.
        assert (next_left > left and next_right == right) or (next_left == left and next_right == right + 1), outputs


def check_takeover(standby, start, changelogs):
    """The instance restores only the end of each changelog of its standby tasks, which it has followed."""
    count = len(changelogs) * PARTITIONS // 2

    def restores():
        found = standby.restores(start)
        return len(found) == count and all(len(restore) == 3 for restore in found.values()) and found

    for changelog, (first, end, records) in wait_until(restores, "the stores are restored").items():
        assert first >= end / 2 > 0, changelog
        assert records <= end - first, changelog


def crash(server, instances, changelogs):
    """Kills an instance and starts it again, then the server."""
    draw = random.Random(SEED)
    wait_until(lambda: all(compactions(server.http, it) for it in changelogs), "the changelogs are compacted", 60)
    time.sleep(draw.uniform(1, 2))
    standby, victim = instances
    start = len(standby.lines())
    victim.kill()
    wait_until(lambda: standby.tasks()[0] == PARTITIONS, "the standby tasks take over", 60)
    check_takeover(standby, start, changelogs)
    victim.start()
    time.sleep(draw.uniform(1, 3))
    server.kill()
    server.start()
    time.sleep(draw.uniform(0, 1))


@pytest.mark.timeout(180)
def test_a_join_of_tables_is_exact_through_crashes(name, tmp_path):
    server = Server(program(), tmp_path / "data", "--http", "127.0.0.1:0", *QUICK_GROUPS)
    address = server.address
    create_topic(address, f"{name}-left", PARTITIONS, cleanup_policy="compact", **DUE)
    create_topic(address, f"{name}-right", PARTITIONS, cleanup_policy="compact", min_compaction_lag_ms=3_600_000)
    create_topic(address, f"{name}-out", PARTITIONS)
    changelogs = [f"{name}-{store}-changelog" for store in ["left", "right", "joined"]]
    instances = [Instance(address, name, tmp_path / str(number)) for number in range(2)]
    half = PARTITIONS // 2

    def is_balanced():
        return all(instance.tasks() == (half, half) for instance in instances)

    wait_until(is_balanced, "each instance has active and standby tasks", 60)

    given, end = Input(random.Random(SEED)), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        feeding = pool.submit(given.feed, address, name, end)
        try:
            crash(server, instances, changelogs)
        finally:
            end.set()
        feeding.result(60)

    expected = given.join()
    wait_until(lambda: newest(address, f"{name}-out") == expected, "the join is complete", 60)
    wait_until(is_balanced, "both instances work again", 60)
    for changelog in changelogs:
        assert topic_setting(address, changelog, "cleanup.policy") == "compact"
        wait_until(lambda: is_compacted(address, changelog), f"{changelog} has one record of each key", 60)
    for instance in instances:
        instance.kill()
    outputs = read_committed(address, f"{name}-out")
    for key in range(KEYS):
        if not is_deleted(key):
            check_steps(outputs[str(key)])
    assert newest(address, f"{name}-out") == expected
    assert newest(address, changelogs[-1]) == expected
    server.stop()
    assert "panicked" not in server.logs(), server.logs()
