"""Groups whose members come, go, crash and come back, in both protocols."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

import processes
from clients import (
    consumer,
    create_topic,
    kcat,
    produce_all,
    producer,
    python_consumer,
    take,
    wait_until,
)

# The shortest that is allowed.
SESSION_MS = 6000

# Each way to share the partitions of a group.
KINDS = {
    "range": {"partition_assignment_strategy": "range", "session_timeout_ms": SESSION_MS},
    "round robin": {"partition_assignment_strategy": "roundrobin", "session_timeout_ms": SESSION_MS},
    "cooperative": {
        "partition_assignment_strategy": "cooperative-sticky",
        "session_timeout_ms": SESSION_MS,
    },
    "KIP-848": {"group_protocol": "consumer"},
    "KIP-848 range": {"group_protocol": "consumer", "group_remote_assignor": "range"},
}


class Member:
    """A consumer of a group that is polled by a thread, as an application would."""

    def __init__(self, address, group, topic, **settings):
        self.consumer = consumer(address, group, **settings)
        self.consumer.subscribe([topic])
        self.messages = []
        self.errors = []
        self.assigned = set()
        self.is_done = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while not self.is_done.is_set():
            message = self.consumer.poll(0.1)
            self.assigned = {(part.topic, part.partition) for part in self.consumer.assignment()}
            if message is None:
                continue
            if message.error():
                self.errors.append(message.error())
            else:
                self.messages.append((message.partition(), message.offset()))

    def partitions(self):
        return {partition for _, partition in self.assigned}

    def leave(self):
        self.is_done.set()
        self.thread.join()
        self.consumer.close()


def share(members, count):
    """Whether the members have all partitions between them, each one once, and about as many each."""
    parts = [member.partitions() for member in members]
    fair = count // len(members)
    return (
        sorted(partition for part in parts for partition in part) == list(range(count))
        and all(fair <= len(part) <= fair + 1 for part in parts)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_members_come_and_go(address, name, kind):
    create_topic(address, name, partitions=6)
    members = []

    def join():
        members.append(Member(address, name, name, **KINDS[kind]))

    try:
        join()
        wait_until(lambda: share(members, 6), "one has all")
        join()
        wait_until(lambda: share(members, 6), "two share")
        join()
        wait_until(lambda: share(members, 6), "three share")
        members.pop(0).leave()
        wait_until(lambda: share(members, 6), "the other two share again")

        produce_all(producer(address), name, [{"value": b"v", "partition": n % 6} for n in range(60)])
        expected = sorted((partition, offset) for partition in range(6) for offset in range(10))
        wait_until(
            lambda: sorted(m for member in members for m in member.messages) == expected,
            "each record came to one member",
        )
        assert [error for member in members for error in member.errors] == []
    finally:
        for member in members:
            member.leave()

    # A later member continues behind the records read.
    asked = [TopicPartition(name, partition) for partition in range(6)]
    later = consumer(address, name)
    committed = later.committed(asked, 10)
    later.close()
    assert [partition.offset for partition in committed] == [10] * 6


def test_a_cooperative_rebalance_leaves_partitions_where_they_are(address, name):
    create_topic(address, name, partitions=6)
    lost = []
    settings = KINDS["cooperative"]
    first = consumer(address, name, **settings)
    first.subscribe([name], on_revoke=lambda _, partitions: lost.append(len(partitions)))
    second = consumer(address, name, **settings)
    try:
        wait_until(lambda: first.poll(0.1) or len(first.assignment()) == 6, "the first has all")
        second.subscribe([name])
        wait_until(
            lambda: (first.poll(0.05), second.poll(0.05), len(second.assignment()) == 3)[-1],
            "the second has its half",
        )
        assert lost == [3]
        assert len(first.assignment()) == 3
    finally:
        first.close()
        second.close()


def start_member(address, group, topic, *settings):
    return processes.start(
        [sys.executable, Path(__file__).with_name("member.py"), address, group, topic, *settings],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_partitions_of_a_member_that_crashed_go_to_another(address, name):
    create_topic(address, name)
    session = f"session.timeout.ms={SESSION_MS}"
    victim = start_member(address, name, name, session)
    assert victim.stdout.readline() == "assigned 0\n"
    produce_all(producer(address), name, [{"value": b"%d" % n} for n in range(1000)])
    for offset in range(20):
        assert victim.stdout.readline() == f"committed 0 {offset}\n"
    victim.kill()
    # It has printed all records before its commit, except for one commit that the kill may have interrupted.
    printed = victim.stdout.read().splitlines()
    victim.wait()
    next_offset = 20 + sum(line.startswith("committed") for line in printed)

    heir = consumer(address, name, session_timeout_ms=SESSION_MS)
    try:
        heir.subscribe([name])
        started = time.monotonic()
        first = take(heir, 1)[0].offset()
        assert first in (next_offset, next_offset + 1)
        assert time.monotonic() - started < SESSION_MS / 1000 + 10
        offsets = [message.offset() for message in take(heir, 999 - first)]
        assert offsets == list(range(first + 1, 1000))
    finally:
        heir.close()


def test_a_static_member_that_crashed_comes_back_to_its_partitions(address, name):
    create_topic(address, name, partitions=2)
    settings = ["session.timeout.ms=30000"]
    stays = Member(address, name, name, group_instance_id="stays", session_timeout_ms=30000)
    victim = None
    try:
        wait_until(lambda: share([stays], 2), "the first has both")
        victim = start_member(address, name, name, "group.instance.id=victim", *settings)
        given = victim.stdout.readline()
        assert given in ("assigned 0\n", "assigned 1\n")
        wait_until(lambda: len(stays.partitions()) == 1, "the first has the other one")
        kept = stays.partitions()
        victim.kill()
        victim.wait()
        # Within its session it has them again at once, and the other one is not disturbed.
        started = time.monotonic()
        victim = start_member(address, name, name, "group.instance.id=victim", *settings)
        assert victim.stdout.readline() == given
        assert time.monotonic() - started < 10
        assert stays.partitions() == kept
    finally:
        if victim:
            victim.kill()
            victim.wait()
        stays.leave()


def test_members_of_different_clients_share_a_group(address, name):
    create_topic(address, name, partitions=4)
    first = Member(
        address, name, name, partition_assignment_strategy="range", session_timeout_ms=SESSION_MS
    )
    second = python_consumer(address, name, group_id=name, session_timeout_ms=SESSION_MS)
    try:
        wait_until(
            lambda: (second.poll(100), len(second.assignment()) == len(first.partitions()) == 2)[-1],
            "each has two",
            # Where cores are short, kafka-python misses its timers, and members come and go for a while.
            seconds_max=75,
        )
        theirs = {partition.partition for partition in second.assignment()}
        assert theirs | first.partitions() == set(range(4))
    finally:
        second.close()
        first.leave()


def test_kcat_joins_a_group(address, name):
    create_topic(address, name)
    kcat(address, "-P", "-t", name, text="1\n2\n3\n")
    read = ["-X", "auto.offset.reset=earliest", "-e", "-q", "-G", name, name]
    assert kcat(address, *read) == "1\n2\n3\n"
    kcat(address, "-P", "-t", name, text="4\n")
    assert kcat(address, *read) == "4\n"


def test_a_group_notices_new_topics_and_partitions(address, name):
    create_topic(address, f"{name}-a")
    settings = {"topic_metadata_refresh_interval_ms": 500, "session_timeout_ms": SESSION_MS}
    member = Member(address, name, f"^{name}-.*", **settings)
    try:
        wait_until(lambda: len(member.assigned) == 1, "the topic that is there")
        create_topic(address, f"{name}-b", partitions=2)
        wait_until(lambda: len(member.assigned) == 3, "the new topic")
    finally:
        member.leave()
