"""The server is killed and started again: acknowledged records are still there, and clients continue."""

import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import ConfigResource

from clients import (
    SECONDS_MAX,
    admin,
    consumer,
    create_topic,
    produce_all,
    producer,
    take,
    wait_until,
)

PARTITIONS = 4


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_no_acknowledged_record_is_lost(own_server, compression):
    topic = "acknowledged"
    create_topic(own_server.address, topic, PARTITIONS)
    source = producer(
        own_server.address,
        acks="all",
        linger_ms=2,
        compression_type=compression,
        retry_backoff_ms=50,
        reconnect_backoff_max_ms=200,
    )
    acknowledged = {}
    failed = []

    def on_delivery(error, message):
        if error:
            failed.append(error)
        else:
            acknowledged[message.partition(), message.offset()] = message.value()

    sent = 0
    for _ in range(3):
        crash = own_server.kill_after(0.7)
        while crash.is_alive():
            try:
                source.produce(
                    topic, b"%d" % sent, partition=sent % PARTITIONS, on_delivery=on_delivery
                )
                sent += 1
            except BufferError:
                pass
            source.poll(0.001 if sent % 50 == 0 else 0)
        crash.join()
        own_server.start()
    assert source.flush(SECONDS_MAX) == 0
    assert failed == []
    assert sent > 1000

    stored = read_all(own_server.address, topic)
    for place, value in acknowledged.items():
        assert stored.get(place) == value, place
    # Records sent twice, since the answer was lost, may be stored twice.
    assert {int(value) for value in stored.values()} == set(range(sent))


def read_all(address, topic):
    """All records of a topic, by partition and offset."""
    source = consumer(address, "reader", enable_auto_commit=False)
    stored = {}
    for partition in range(PARTITIONS):
        low, high = source.get_watermark_offsets(TopicPartition(topic, partition), 10)
        source.assign([TopicPartition(topic, partition, low)])
        for message in take(source, high - low):
            stored[partition, message.offset()] = message.value()
    source.close()
    return stored


@pytest.mark.parametrize("crashes", [True, False], ids=["crash", "stop"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_outlast_the_server(own_server, crashes, protocol):
    topic = "outlasts"
    create_topic(own_server.address, topic, retention_bytes=123456)
    produce_all(producer(own_server.address), topic, [{"value": b"%d" % n} for n in range(20)])
    settings = {"enable_auto_commit": False, "group_protocol": protocol}
    member = consumer(own_server.address, "group", **settings)
    member.subscribe([topic])
    take(member, 10)
    member.commit(offsets=[TopicPartition(topic, 0, 10, metadata="note")], asynchronous=False)

    if crashes:
        own_server.kill()
    else:
        own_server.stop()
    own_server.start()

    heir = consumer(own_server.address, "group", **settings)
    committed = heir.committed([TopicPartition(topic, 0)], 10)[0]
    assert (committed.offset, committed.metadata) == (10, "note")

    # The member goes on in the group.
    produce_all(producer(own_server.address), topic, [{"value": b"20"}])
    assert [int(message.value()) for message in take(member, 11)] == list(range(10, 21))
    answer = member.commit(offsets=[TopicPartition(topic, 0, 15)], asynchronous=False)
    assert answer[0].error is None
    member.close()
    heir.subscribe([topic])
    assert [int(message.value()) for message in take(heir, 6)] == list(range(15, 21))
    heir.close()

    resource = ConfigResource("topic", topic)
    client = admin(own_server.address)
    described = client.describe_configs([resource])[resource].result(SECONDS_MAX)
    assert described["retention.bytes"].value == "123456"


def test_a_consumer_goes_on_after_a_crash(own_server):
    topic = "goes-on"
    create_topic(own_server.address, topic)
    reader = consumer(own_server.address, "group", fetch_wait_max_ms=5000)
    reader.assign([TopicPartition(topic, 0, 0)])
    for run in range(3):
        values = [b"%d %d" % (run, number) for number in range(100)]
        produce_all(producer(own_server.address), topic, [{"value": value} for value in values])
        assert [message.value() for message in take(reader, 100)] == values
        own_server.kill()
        own_server.start()
    reader.close()


def lose_last_batch(data):
    """Takes the batch of the record `lost` away, as a loss of power does to bytes that were not synced."""
    (log,) = [path for path in data.glob("streams/*/*.log") if b"lost" in path.read_bytes()]
    # It says up to where the bytes were synced.
    log.with_suffix(".index").unlink(missing_ok=True)
    stored = log.read_bytes()
    # Batches follow the file's head; each has its length.
    at = last = 4096
    while at < len(stored):
        last, at = at, at + 12 + int.from_bytes(stored[at + 8 : at + 12], "big")
    log.write_bytes(stored[:last])


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "whole"])
def test_a_consumer_learns_from_the_epoch_that_records_are_lost(own_server, is_lost):
    topic = "epochs"
    create_topic(own_server.address, topic, millstream_durability="written")
    source = producer(own_server.address)
    for value in [b"a", b"b", b"lost"]:
        produce_all(source, topic, [{"value": value}])
    reader = consumer(own_server.address, "group", auto_offset_reset="error", enable_auto_commit=False)
    reader.assign([TopicPartition(topic, 0, 0)])
    assert [message.leader_epoch() for message in take(reader, 3)] == [0, 0, 0]

    own_server.kill()
    if is_lost:
        lose_last_batch(own_server.data)
    own_server.start()
    # Other records take the offset of the lost one, so that the offset alone does not show the loss.
    for value in [b"x", b"y"]:
        produce_all(source, topic, [{"value": value}])
    if is_lost:
        error = error_of(reader)
        assert error.code() == KafkaError._AUTO_OFFSET_RESET
        assert "truncation" in error.str(), error.str()
        reader.assign([TopicPartition(topic, 0, 2)])
    found = [(message.value(), message.leader_epoch()) for message in take(reader, 2)]
    assert found == [(b"x", 1), (b"y", 1)]
    reader.close()


def error_of(source):
    """The next error of a consumer that is not about its connection."""

    def find():
        message = source.poll(0.2)
        assert message is None or message.error(), message.value()
        error = message and message.error()
        lost = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
        return error if error and error.code() not in lost else None

    return wait_until(find, "an error")
