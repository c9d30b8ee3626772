"""Positions: by time, at both ends, and committed by groups."""

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from kafka import TopicPartition as PythonPartition

from clients import (
    admin,
    consumer,
    create_topic,
    kcat,
    produce_all,
    producer,
    python_consumer,
    take,
)

TIME_MS = 1_700_000_000_000
COUNT = 1000


@pytest.fixture
def timed_topic(address, name):
    """A thousand records, ten milliseconds apart, in batches of a hundred."""
    create_topic(address, name)
    source = producer(address, batch_num_messages=100, linger_ms=100)
    produce_all(
        source, name, [{"value": b"%d" % n, "timestamp": TIME_MS + 10 * n} for n in range(COUNT)]
    )
    return name


def test_offsets_by_time(address, timed_topic):
    # The time asked for, and the first record of that time or later.
    cases = {
        0: 0,
        TIME_MS: 0,
        TIME_MS + 1: 1,
        TIME_MS + 4995: 500,
        TIME_MS + 5000: 500,
        TIME_MS + 10 * (COUNT - 1): COUNT - 1,
    }
    source = consumer(address, f"{timed_topic}-g")
    by_python = python_consumer(address, group_id=None)
    for time_ms, expected in cases.items():
        found = source.offsets_for_times([TopicPartition(timed_topic, 0, time_ms)], 10)
        assert (found[0].error, found[0].offset) == (None, expected)
        partition = PythonPartition(timed_topic, 0)
        found = by_python.offsets_for_times({partition: time_ms})[partition]
        assert (found.offset, found.timestamp) == (expected, TIME_MS + 10 * expected)
    after_all = source.offsets_for_times([TopicPartition(timed_topic, 0, TIME_MS + 10 * COUNT)], 10)
    assert after_all[0].offset == confluent_kafka.OFFSET_END
    source.close()
    by_python.close()


def test_both_ends_and_the_newest_time(address, timed_topic):
    source = consumer(address, f"{timed_topic}-g")
    partition = TopicPartition(timed_topic, 0)
    assert source.get_watermark_offsets(partition, 10) == (0, COUNT)
    source.close()
    client = admin(address)
    for spec, expected in [
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), COUNT),
        (OffsetSpec.for_timestamp(TIME_MS + 15), 2),
        (OffsetSpec.max_timestamp(), COUNT - 1),
    ]:
        found = client.list_offsets({partition: spec})[partition].result(10)
        assert found.offset == expected, spec
    printed = kcat(address, "-Q", "-t", f"{timed_topic}:0:{TIME_MS + 15}")
    assert printed.strip() == f"{timed_topic} [0] offset 2"


def test_a_consumer_begins_at_any_position(address, timed_topic):
    printed = kcat(address, "-C", "-t", timed_topic, "-o", "250", "-c", "2", "-f", "%s ")
    assert printed == "250 251 "
    printed = kcat(address, "-C", "-t", timed_topic, "-o", "-3", "-e", "-q", "-f", "%s ")
    assert printed == "997 998 999 "
    start = f"s@{TIME_MS + 4000}"
    printed = kcat(address, "-C", "-t", timed_topic, "-o", start, "-c", "1", "-f", "%s ")
    assert printed == "400 "


def test_a_position_out_of_range_is_reported(address, timed_topic):
    source = consumer(address, f"{timed_topic}-g", auto_offset_reset="error")
    source.assign([TopicPartition(timed_topic, 0, COUNT + 5)])
    message = source.poll(20)
    assert message is not None
    assert message.error().code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET
    source.close()


def test_the_end_of_a_partition_is_reported_and_new_records_wake_waiting_consumers(address, timed_topic):
    source = consumer(address, f"{timed_topic}-g", enable_partition_eof=True)
    source.assign([TopicPartition(timed_topic, 0, COUNT - 1)])
    assert take(source, 1)[0].value() == b"999"
    assert source.poll(10).error().code() == confluent_kafka.KafkaError._PARTITION_EOF
    source.close()

    source = consumer(address, f"{timed_topic}-g", fetch_wait_max_ms=20_000)
    source.assign([TopicPartition(timed_topic, 0, COUNT - 1)])
    assert take(source, 1)[0].value() == b"999"
    # A fetch that waits up to 20 s is under way by now; the record ends the wait.
    assert source.poll(0.5) is None
    produce_all(producer(address), timed_topic, [{"value": b"new"}])
    assert source.poll(5).value() == b"new"
    source.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_commits_return_with_their_metadata(address, timed_topic, protocol):
    group = f"{timed_topic}-g"
    source = consumer(address, group, enable_auto_commit=False, group_protocol=protocol)
    source.subscribe([timed_topic])
    assert [message.offset() for message in take(source, 10)] == list(range(10))
    answer = source.commit(
        offsets=[TopicPartition(timed_topic, 0, 7, metadata="half done")], asynchronous=False
    )
    assert answer[0].error is None
    source.close()

    source = consumer(address, group, enable_auto_commit=False, group_protocol=protocol)
    committed = source.committed([TopicPartition(timed_topic, 0)], 10)[0]
    assert (committed.offset, committed.metadata) == (7, "half done")
    source.subscribe([timed_topic])
    assert take(source, 1)[0].offset() == 7
    source.close()


def test_commits_of_missing_partitions_are_refused(address, timed_topic):
    source = consumer(address, f"{timed_topic}-g", enable_auto_commit=False)
    places = [TopicPartition(timed_topic, 0, 7), TopicPartition(timed_topic, 99, 7)]
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        source.commit(offsets=places, asynchronous=False)
    code = refused.value.args[0].code()
    assert code == confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
    assert source.committed(places[:1], 10)[0].offset == 7
    source.close()


def test_positions_of_kafka_python(address, timed_topic):
    group = f"{timed_topic}-g"
    source = python_consumer(address, timed_topic, group_id=group, enable_auto_commit=False)
    assert next(source).offset == 0
    partition = PythonPartition(timed_topic, 0)
    assert source.beginning_offsets([partition]) == {partition: 0}
    assert source.end_offsets([partition]) == {partition: COUNT}
    source.seek(partition, 900)
    assert next(source).offset == 900
    source.commit()
    source.close()
    source = python_consumer(address, timed_topic, group_id=group)
    assert source.committed(partition) == 901
    assert next(source).offset == 901
    source.close()
