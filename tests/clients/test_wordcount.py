"""Kafka Streams' word count, killed again and again, beside a plain count. Its state is in a compacted topic."""

import os
import random
import time
import urllib.parse
import urllib.request
from collections import Counter

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

import processes
from clients import (
    SECONDS_MAX,
    admin,
    consumer,
    create_topic,
    produce_all,
    producer,
    read_to_ends,
    topic_setting,
    wait_until,
)
from conftest import program
from jvm import java
from server import QUICK_GROUPS, Server

#: How often the application, the server or both are killed, and where the moments come from.
KILLS = int(os.environ.get("MILLSTREAM_KILLS", 3))
SEED = int(os.environ.get("MILLSTREAM_SEED", 16))

#: With its own timeouts the application notices a crash after 45 seconds, and commits every 30 seconds.
HAS_DEFAULTS = "MILLSTREAM_DEFAULTS" in os.environ
QUICK = ["session.timeout.ms=3000", "heartbeat.interval.ms=500"]
#: The longest time between two crashes, and from the last one to the end.
PAUSE_SECONDS_MAX, END_SECONDS_MAX = (60, 240) if HAS_DEFAULTS else (5, 60)

PARTITIONS = 3
LINES = 6000
STEP = 20
WORDS = 2000


def lines(draw):
    """Lines of words, some of which are much more frequent than others."""
    def word():
        return f"wörd-{int(draw.paretovariate(0.5)) % WORDS}"

    return [" ".join(word() for _ in range(draw.randrange(1, 9))) for _ in range(LINES)]


class Application:
    def __init__(self, address, name, folder, settings):
        words = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "streams.WordCount"]
        self.command = java("java-streams", *words, address, name, folder / "state", *settings)
        self.said = folder / "said"
        self.start()

    def start(self):
        with open(self.said, "ab") as said:
            self.process = processes.start(self.command, stdout=said, stderr=said)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.terminate()
        assert self.process.wait(SECONDS_MAX) == 143, self.said.read_text()

    def is_running(self):
        return "RUNNING" in self.said.read_text().split()


def feed(source, topic, lines, seconds):
    """Writes lines, spread over this number of seconds."""
    for start in range(0, len(lines), STEP):
        produce_all(source, topic, [{"value": line} for line in lines[start : start + STEP]])
        time.sleep(seconds * STEP / len(lines))


def crash(draw, victim, server, application):
    if victim != "server":
        application.kill()
    if victim != "application":
        server.kill()
        time.sleep(draw.uniform(0, 1))
        server.start()
    if victim != "server":
        application.start()


@pytest.mark.timeout(120 + KILLS * PAUSE_SECONDS_MAX + 2 * END_SECONDS_MAX)
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_words_are_counted_through_crashes(name, tmp_path, guarantee):
    server = Server(program(), tmp_path / "data", "--http", "127.0.0.1:0", *([] if HAS_DEFAULTS else QUICK_GROUPS))
    address = server.address
    for topic in ["in", "out"]:
        create_topic(address, f"{name}-{topic}", PARTITIONS)
    settings = [] if guarantee == "at_least_once" else [f"processing.guarantee={guarantee}"]
    if not HAS_DEFAULTS:
        settings += QUICK + (["commit.interval.ms=1000"] if guarantee == "at_least_once" else [])
    application = Application(address, name, tmp_path, settings)
    wait_until(application.is_running, "the application runs", END_SECONDS_MAX)

    draw = random.Random(SEED)
    written = lines(draw)
    victims = ["server", "application", "both"]
    source = producer(address, enable_idempotence=True)
    for number in range(KILLS + 1):
        feed(source, f"{name}-in", written[number :: KILLS + 1], draw.uniform(0, PAUSE_SECONDS_MAX))
        if number < KILLS:
            crash(draw, victims[number % len(victims)], server, application)

    expected = Counter(word for line in written for word in line.split(" "))
    wait_until(lambda: is_done(address, name, guarantee, expected), "all words are counted", END_SECONDS_MAX)
    application.stop()
    counts = newest(address, f"{name}-out")
    if guarantee == "exactly_once_v2":
        assert counts == expected
    else:
        # After a crash the application repeats the work that it had not committed.
        assert counts.keys() == expected.keys()
        assert {word for word in counts if counts[word] < expected[word]} == set()

    check_state(server, f"{name}-counts-changelog", counts, draw)
    server.stop()
    assert "panicked" not in server.logs(), server.logs()


def check_state(server, changelog, counts, draw):
    """The changelog is a compacted topic: its newest records are the state, and each is found by key."""
    assert topic_setting(server.address, changelog, "cleanup.policy") == "compact"
    assert newest(server.address, changelog) == counts
    for word in draw.sample(sorted(counts), 20):
        url = f"{server.http}/kv/{changelog}/{urllib.parse.quote(word)}"
        with urllib.request.urlopen(url, timeout=SECONDS_MAX) as answer:
            assert int.from_bytes(answer.read(), "big") == counts[word], word


def is_done(address, name, guarantee, expected):
    if guarantee == "exactly_once_v2":
        return sum(newest(address, f"{name}-out").values()) >= expected.total()
    return is_committed(address, name, [f"{name}-in", f"{name}-counts-repartition"])


def newest(address, topic):
    """The newest committed value of each key of a topic, a number."""
    messages = read_to_ends(address, topic, PARTITIONS, isolation_level="read_committed")
    return {message.key().decode(): int.from_bytes(message.value(), "big") for message in messages}


def is_committed(address, group, topics):
    """Whether the group has committed the ends of all partitions."""
    partitions = [TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS)]
    asked = ConsumerGroupTopicPartitions(group, partitions)
    client = admin(address)
    answer = client.list_consumer_group_offsets([asked])[group].result(SECONDS_MAX)
    source = consumer(address, group)
    ends = {(p.topic, p.partition): source.get_watermark_offsets(p, SECONDS_MAX)[1] for p in partitions}
    source.close()
    return all(p.offset == ends[p.topic, p.partition] for p in answer.topic_partitions)
