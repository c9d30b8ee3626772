"""Compacted topics: records have keys, settings are shown as given, and readers accept gaps in the offsets."""

import random

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigResource, NewTopic, ResourceType

import processes
from clients import (
    SECONDS_MAX,
    admin,
    alter_topic,
    consumer,
    create_topic,
    kcat,
    produce_all,
    producer,
    python_consumer,
    python_producer,
    read_partition,
    read_to_ends,
    take,
    wait_until,
    transactional,
)
from test_records import COMPRESSIONS

#: The records without a key of each batch of `BATCH` records.
KEYLESS = [0, 3, 8]
BATCH = 9

SETTINGS = {
    "cleanup.policy": "compact,delete",
    "delete.retention.ms": "5000",
    "max.compaction.lag.ms": "60000",
    "min.cleanable.dirty.ratio": "0.1",
    "min.compaction.lag.ms": "1000",
}


def answers(target, topic, keys):
    """Produces a record for each key, as one batch; returns the error of each."""
    errors = {}
    # All records wait for the batch, and none for the topic.
    target.list_topics(topic, SECONDS_MAX)
    for number, key in enumerate(keys):

        def on_delivery(error, _, number=number):
            errors[number] = error and error.code()

        target.produce(topic, b"value", key, on_delivery=on_delivery)
    assert target.flush(SECONDS_MAX) == 0
    return [errors[number] for number in range(len(keys))]


def batch_of_keys():
    return [None if number in KEYLESS else b"%d" % number for number in range(BATCH)]


def values(messages):
    return [(message.key(), message.value()) for message in messages]


@pytest.mark.parametrize("is_idempotent", [False, True], ids=["plain", "idempotent"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_librdkafka_learns_which_records_lack_a_key(address, name, compression, is_idempotent):
    create_topic(address, name, cleanup_policy="compact")
    target = producer(address, compression_type=compression, linger_ms=300, enable_idempotence=is_idempotent)
    assert answers(target, name, batch_of_keys()) == [
        KafkaError.INVALID_RECORD if number in KEYLESS else KafkaError._INVALID_DIFFERENT_RECORD
        for number in range(BATCH)
    ]
    # The broker stores nothing of the batch, and takes the next one. An empty key is a key.
    assert answers(target, name, [b"a", b""]) == [None, None]
    assert values(read_partition(address, name, 2)) == [(b"a", b"value"), (b"", b"value")]


def test_the_first_hundred_records_without_a_key_are_named(address, name):
    create_topic(address, name, cleanup_policy="compact")
    errors = answers(producer(address, linger_ms=300), name, [b"key"] + 300 * [None])
    assert errors[:101] == [KafkaError._INVALID_DIFFERENT_RECORD] + 100 * [KafkaError.INVALID_RECORD]
    assert set(errors[101:]) == {KafkaError._INVALID_DIFFERENT_RECORD}


@pytest.mark.parametrize("compression", [None, "gzip", "lz4"])
def test_kafka_python_learns_which_records_lack_a_key(address, name, compression):
    create_topic(address, name, cleanup_policy="compact")
    target = python_producer(address, compression_type=compression, linger_ms=300, retries=0)
    sent = [target.send(name, b"value", key) for key in batch_of_keys()]
    refused = []
    for future in sent:
        with pytest.raises(Exception) as raised:
            future.get(SECONDS_MAX)
        refused.append(type(raised.value).__name__)
        if refused[-1] == "InvalidRecordError":
            assert name in str(raised.value)
    assert [number for number, error in enumerate(refused) if error == "InvalidRecordError"] == KEYLESS
    assert target.send(name, b"value", b"key").get(SECONDS_MAX).offset == 0
    target.close()


def test_kcat_is_refused_without_a_key(address, name):
    create_topic(address, name, cleanup_policy="compact")
    words = ["kcat", "-b", address, "-P", "-t", name]
    done = processes.run(words, input="value\n", capture_output=True, text=True, timeout=SECONDS_MAX)
    assert "Broker failed to validate record" in done.stderr, done.stderr
    kcat(address, "-P", "-t", name, "-K:", "-Z", text="a:1\nb:2\na:\n")
    # -1 is the length of a tombstone's value.
    assert kcat(address, "-C", "-t", name, "-e", "-q", "-f", "%o %k %S\\n").split("\n")[-2] == "2 a -1"


def test_a_record_without_a_key_ends_its_transaction_only(address, name):
    create_topic(address, name, cleanup_policy="compact")
    target = transactional(address, name, linger_ms=300, compression_type="lz4")
    target.begin_transaction()
    assert answers(target, name, [b"a"]) == [None]
    assert answers(target, name, [b"b", None, None]) == [
        KafkaError._INVALID_DIFFERENT_RECORD,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_RECORD,
    ]
    with pytest.raises(KafkaException) as raised:
        target.commit_transaction(SECONDS_MAX)
    assert raised.value.args[0].txn_requires_abort()
    target.abort_transaction(SECONDS_MAX)
    # librdkafka goes on behind the sequences of the refused batch. The broker refuses this gap, as Kafka does, and
    # librdkafka then begins with a new epoch.
    target.begin_transaction()
    answers(target, name, [b"gap"])
    target.abort_transaction(SECONDS_MAX)
    target.begin_transaction()
    assert answers(target, name, [b"c", b"d"]) == [None, None]
    target.commit_transaction(SECONDS_MAX)
    read = read_partition(address, name, 2, isolation_level="read_committed")
    assert [message.key() for message in read] == [b"c", b"d"]


def settings_of(client, topic):
    """The settings of compaction, each with whether the topic itself has it."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = client.describe_configs([resource])[resource].result(SECONDS_MAX)
    return {key: (entries[key].value, not entries[key].is_default) for key in SETTINGS}


def test_settings_of_compaction_are_shown_as_given(address, name):
    client = admin(address)
    client.create_topics([NewTopic(name, 1, 1, config=SETTINGS)])[name].result(SECONDS_MAX)
    assert settings_of(client, name) == {key: (value, True) for key, value in SETTINGS.items()}

    alter_topic(client, name, min_cleanable_dirty_ratio="0.9", delete_retention_ms="0")
    alter_topic(client, name, max_compaction_lag_ms=None, min_compaction_lag_ms=None, operation=AlterConfigOpType.DELETE)
    assert settings_of(client, name) == {
        "cleanup.policy": ("compact,delete", True),
        "delete.retention.ms": ("0", True),
        "max.compaction.lag.ms": (str(2**63 - 1), False),
        "min.cleanable.dirty.ratio": ("0.9", True),
        "min.compaction.lag.ms": ("0", False),
    }

    # The policy is a list.
    alter_topic(client, name, cleanup_policy="delete", operation=AlterConfigOpType.SUBTRACT)
    assert settings_of(client, name)["cleanup.policy"] == ("compact", True)
    alter_topic(client, name, cleanup_policy="delete", operation=AlterConfigOpType.APPEND)
    assert settings_of(client, name)["cleanup.policy"] == ("compact,delete", True)

    # The older request replaces all settings.
    resource = ConfigResource(ResourceType.TOPIC, name, set_config={"cleanup.policy": "compact"})
    client.alter_configs([resource])[resource].result(SECONDS_MAX)
    defaults = {
        "cleanup.policy": ("compact", True),
        "delete.retention.ms": ("86400000", False),
        "max.compaction.lag.ms": (str(2**63 - 1), False),
        "min.cleanable.dirty.ratio": ("0.5", False),
        "min.compaction.lag.ms": ("0", False),
    }
    assert settings_of(client, name) == defaults


@pytest.mark.parametrize(
    "wrong",
    [
        {"cleanup.policy": "compress"},
        {"min.cleanable.dirty.ratio": "1.1"},
        {"min.cleanable.dirty.ratio": "-0.1"},
        {"min.compaction.lag.ms": "-1"},
        {"max.compaction.lag.ms": "0"},
        {"delete.retention.ms": "-1"},
        {"min.compaction.lag.ms": "2000", "max.compaction.lag.ms": "1000"},
    ],
    ids=str,
)
def test_wrong_settings_of_compaction_are_refused(address, name, wrong):
    client = admin(address)
    with pytest.raises(KafkaException) as created:
        client.create_topics([NewTopic(name, 1, 1, config=wrong)])[name].result(SECONDS_MAX)
    assert created.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert list(wrong)[0] in created.value.args[0].str()

    create_topic(address, name, cleanup_policy="compact")
    before = settings_of(client, name)
    with pytest.raises(KafkaException) as altered:
        alter_topic(client, name, **wrong)
    assert altered.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert settings_of(client, name) == before


def test_a_topic_with_records_becomes_compacted_and_back(address, name):
    client = admin(address)
    create_topic(address, name)
    target = producer(address)
    produce_all(target, name, [{"value": b"0"}, {"value": b"1", "key": b"k"}])
    alter_topic(client, name, cleanup_policy="compact")
    assert answers(target, name, [None]) == [KafkaError.INVALID_RECORD]
    produce_all(target, name, [{"value": b"2", "key": b"k"}, {"key": b"k"}])
    alter_topic(client, name, cleanup_policy="delete")
    produce_all(target, name, [{"value": b"4"}])
    assert values(read_partition(address, name, 5)) == [
        (None, b"0"),
        (b"k", b"1"),
        (b"k", b"2"),
        (b"k", None),
        (None, b"4"),
    ]


def test_the_beginning_of_a_compacted_topic_is_not_deleted(address, name):
    create_topic(address, name, cleanup_policy="compact")
    client = admin(address)
    produce_all(producer(address), name, [{"key": b"k"}] * 3)
    before = TopicPartition(name, 0, 2)
    with pytest.raises(KafkaException) as refused:
        client.delete_records([before])[before].result(SECONDS_MAX)
    assert refused.value.args[0].code() == KafkaError.POLICY_VIOLATION
    alter_topic(client, name, cleanup_policy="compact,delete")
    assert client.delete_records([before])[before].result(SECONDS_MAX).low_watermark == 2


class Table:
    """The records written to a compacted topic of one partition, and those that a reader must and may find."""

    KEYS = 50
    TRANSACTIONS = 40
    RECORDS = 100
    VALUE_BYTES = 1000

    def __init__(self):
        #: The committed records, by offset.
        self.records = {}
        #: The offset of the newest committed record of each key.
        self.newest = {}

    def fill(self, address, topic, draw):
        """Transactions of updates and tombstones, a fourth of which are aborted."""
        target = transactional(address, topic, linger_ms=5)
        for number in range(self.TRANSACTIONS):
            target.begin_transaction()
            delivered = produce_all(target, topic, [self.draw_record(draw) for _ in range(self.RECORDS)])
            if draw.random() < 0.25:
                target.abort_transaction(SECONDS_MAX)
                continue
            target.commit_transaction(SECONDS_MAX)
            for message in delivered:
                self.records[message.offset()] = (message.key(), message.value())
                self.newest[message.key()] = message.offset()

    def draw_record(self, draw):
        key = b"%d" % draw.randrange(self.KEYS)
        return {"key": key, "value": None if draw.random() < 0.1 else draw.randbytes(self.VALUE_BYTES)}

    def check(self, read):
        """`read` has the offset, key and value of each record, in the order that a client read them."""
        offsets = [offset for offset, _, _ in read]
        assert offsets == sorted(set(offsets))
        for offset, key, value in read:
            assert self.records[offset] == (key, value), offset
        for key, offset in self.newest.items():
            # Compaction may remove a tombstone.
            assert offset in offsets or self.records[offset][1] is None, key


def test_readers_find_the_newest_record_of_each_key_in_order(own_server, name):
    address = own_server.address
    settings = {"segment_bytes": 1 << 20, "min_cleanable_dirty_ratio": 0, "delete_retention_ms": 0}
    create_topic(address, name, cleanup_policy="compact", **settings)
    table = Table()
    for round_ in range(2):
        table.fill(address, name, random.Random(round_))
        own_server.kill()
        own_server.start()
        read = read_by_librdkafka(address, name)
        table.check(read)
        table.check(read_by_kafka_python(address, name))
        words = ["-C", "-t", name, "-e", "-q", "-X", "isolation.level=read_committed"]
        printed = kcat(address, *words, "-f", "%o %k %S\\n")
        by_kcat = [tuple(map(int, line.split())) for line in printed.splitlines()]
        assert [offset for offset, _, _ in by_kcat] == sorted({offset for offset, _, _ in by_kcat})
        for offset, key, length in by_kcat:
            expected, value = table.records[offset]
            assert (b"%d" % key, length) == (expected, -1 if value is None else len(value))
        check_seeks(address, name, table, random.Random(round_))


def check_seeks(address, topic, table, draw):
    """A reader that begins at any offset, also at one that has no record, gets the next record. Compaction may go on, so
    records that are not the newest of their keys may be there or not."""
    live = sorted(offset for offset in table.newest.values() if table.records[offset][1] is not None)
    source = consumer(address, topic, isolation_level="read_committed", enable_auto_commit=False)
    for start in draw.sample(range(live[-1] + 1), 20):
        source.assign([TopicPartition(topic, 0, start)])
        found = take(source, 1)[0].offset()
        following = next(offset for offset in live if offset >= start)
        assert start <= found <= following and found in table.records
    source.close()


def read_by_librdkafka(address, topic):
    messages = read_to_ends(address, topic, isolation_level="read_committed")
    return [(message.offset(), message.key(), message.value()) for message in messages]


def read_by_kafka_python(address, topic):
    settings = {"isolation_level": "read_committed", "consumer_timeout_ms": 2000, "group_id": None}
    source = python_consumer(address, topic, **settings)
    read = [(record.offset, record.key, record.value) for record in source]
    source.close()
    return read


#: The server looks for partitions that are due every second; a loaded machine is slow.
COMPACTED_SECONDS_MAX = 120

#: A partition is due with each file that is closed, and when its open file has records for longer than a second.
DUE = {
    "segment_bytes": 1 << 20,
    "min_cleanable_dirty_ratio": "0.01",
    "max_compaction_lag_ms": 1000,
    "file_delete_delay_ms": 0,
}


def repeated(keys, count, value_bytes=1000):
    return [{"key": b"%d" % (n % keys), "value": b"%d " % n + bytes(value_bytes)} for n in range(count)]


def test_a_topic_is_compacted_while_clients_read_it(address, name):
    keys, count, deleted = 50, 5000, 5
    later = {**DUE, "max_compaction_lag_ms": 2**63 - 1, "min_compaction_lag_ms": 3_600_000}
    create_topic(address, name, cleanup_policy="compact", delete_retention_ms=5000, **later)
    target = producer(address, linger_ms=5)
    newest = {}
    for message in produce_all(target, name, repeated(keys, count)):
        newest[message.key()] = max(newest.get(message.key(), -1), message.offset())
    # A consumer with a stored offset that compaction takes the record of, and one in the middle of the topic.
    stored, place = 1234, f"{name}-stored"
    group = consumer(address, place, enable_auto_commit=False)
    group.commit(offsets=[TopicPartition(name, 0, stored)], asynchronous=False)
    reader = consumer(address, f"{name}-middle", enable_auto_commit=False, queued_max_messages_kbytes=64)
    reader.assign([TopicPartition(name, 0, 0)])
    begun = [message.offset() for message in take(reader, 500)]
    assert begun == list(range(500))
    alter_topic(admin(address), name, min_compaction_lag_ms=0, **DUE)
    for message in produce_all(target, name, [{"key": b"%d" % n} for n in range(deleted)]):
        newest[message.key()] = message.offset()
    end = max(newest.values()) + 1

    def compacted():
        read = read_by_librdkafka(address, name)
        return read if len(read) <= keys else None

    read = wait_until(compacted, "the topic is compacted", COMPACTED_SECONDS_MAX)
    live = {key: offset for key, offset in newest.items() if int(key) >= deleted}
    found = {key: offset for offset, key, value in read if value is not None}
    assert found == live, "each key has its newest record, at its offset"

    # Both go on, and miss no record that is left.
    rest = take(reader, 1)
    while rest[-1].offset() < max(live.values()):
        rest += take(reader, 1)
    offsets = [message.offset() for message in rest]
    assert offsets[0] >= 500 and offsets == sorted(set(offsets))
    assert set(live.values()) <= set(offsets)
    reader.close()
    group.subscribe([name])
    following = [message.offset() for message in take(group, len(live))]
    group.close()
    assert following[: len(live)] == sorted(live.values()) and stored not in following

    # Tombstones go without new records; the end of the topic stays.
    def without_tombstones():
        return all(value is not None for _, _, value in read_by_librdkafka(address, name))

    wait_until(without_tombstones, "the tombstones go", COMPACTED_SECONDS_MAX)
    assert {key: offset for offset, key, _ in read_by_librdkafka(address, name)} == live
    source = consumer(address, f"{name}-end")
    assert source.get_watermark_offsets(TopicPartition(name, 0), SECONDS_MAX) == (0, end)
    source.close()
    assert produce_all(target, name, [{"key": b"new", "value": b"1"}])[0].offset() == end


def test_a_topic_with_records_is_compacted_when_its_policy_says_so(address, name):
    create_topic(address, name, **DUE)
    target = producer(address, linger_ms=5)
    written = produce_all(target, name, repeated(10, 3000))
    assert len(read_by_librdkafka(address, name)) == 3000
    alter_topic(admin(address), name, cleanup_policy="compact,delete")

    def is_compacted():
        return len(read_by_librdkafka(address, name)) == 10

    wait_until(is_compacted, "the topic is compacted", COMPACTED_SECONDS_MAX)
    assert [offset for offset, _, _ in read_by_librdkafka(address, name)] == [
        message.offset() for message in written[-10:]
    ]
