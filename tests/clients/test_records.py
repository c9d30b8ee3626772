"""Records arrive as they were sent: with every compression, through every pair of clients."""

import random

import confluent_kafka
import pytest

from clients import (
    create_topic,
    kcat,
    produce_all,
    producer,
    python_consumer,
    python_producer,
    read_partition,
)

COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]

HEADERS = [("first", b"1"), ("empty", b""), ("null", None), ("first", b"again"), ("ünï", b"\x00\xff")]

TIME_MS = 1_600_000_000_000

# Key, value and headers of records at the edges of the valid range.
SHAPES = [
    (b"key", b"value", []),
    (None, b"no key", []),
    (b"no value", None, []),
    (None, None, []),
    (b"", b"", []),
    (b"headers", b"v", HEADERS),
    (bytes(range(256)), bytes(range(256)) * 40, []),
]


def sent_shapes():
    return [
        {"key": key, "value": value, "headers": headers, "timestamp": TIME_MS + 1000 * number}
        for number, (key, value, headers) in enumerate(SHAPES)
    ]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_librdkafka_to_all(address, name, compression):
    create_topic(address, name)
    # They all go in one batch, so that they are compressed at all.
    source = producer(address, compression_type=compression, linger_ms=200)
    many = [{"value": b"x" * 1000, "timestamp": TIME_MS} for _ in range(500)]
    delivered = produce_all(source, name, sent_shapes() + many)
    assert [message.offset() for message in delivered] == list(range(len(SHAPES) + 500))

    messages = read_partition(address, name, len(SHAPES) + 500, check_crcs=True)
    for number, (message, (key, value, headers)) in enumerate(zip(messages, SHAPES)):
        assert (message.key(), message.value()) == (key, value)
        assert (message.headers() or []) == headers
        assert message.timestamp() == (
            confluent_kafka.TIMESTAMP_CREATE_TIME,
            TIME_MS + 1000 * number,
        )
    assert all(message.value() == b"x" * 1000 for message in messages[len(SHAPES) :])

    check_python_reads(address, name, SHAPES)
    printed = kcat(address, "-C", "-t", name, "-c", "2", "-f", "%k %s %T %o\\n")
    assert printed == f"key value {TIME_MS} 0\n no key {TIME_MS + 1000} 1\n"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_kafka_python_to_all(address, name, compression):
    create_topic(address, name)
    target = python_producer(
        address, compression_type=None if compression == "none" else compression, linger_ms=200
    )
    # It sends no record that has neither key nor value, and no header that is null.
    shapes = [
        (key, value, [header for header in headers if header[1] is not None])
        for key, value, headers in SHAPES
        if (key, value) != (None, None)
    ]
    futures = [
        target.send(name, value, key, headers=headers, timestamp_ms=TIME_MS + 1000 * number)
        for number, (key, value, headers) in enumerate(shapes)
    ]
    assert [future.get(30).offset for future in futures] == list(range(len(shapes)))
    target.close()

    messages = read_partition(address, name, len(shapes), check_crcs=True)
    assert [(m.key(), m.value(), m.headers() or []) for m in messages] == shapes
    check_python_reads(address, name, shapes)


def check_python_reads(address, topic, shapes):
    source = python_consumer(address, topic, group_id=None)
    records = [next(source) for _ in shapes]
    source.close()
    for number, (record, (key, value, headers)) in enumerate(zip(records, shapes)):
        assert (record.offset, record.key, record.value) == (number, key, value)
        assert list(record.headers) == headers
        assert record.timestamp == TIME_MS + 1000 * number


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_kcat_to_kcat(address, name, compression):
    lines = "".join(f"k{number}:value {number}\n" for number in range(1000))
    sent = kcat_produce(address, name, lines, compression)
    assert sent == ""
    printed = kcat(address, "-C", "-t", name, "-e", "-q", "-K:")
    assert printed == lines


def kcat_produce(address, topic, lines, compression):
    # The topic is created by asking for it.
    return kcat(address, "-P", "-t", topic, "-K:", "-z", compression, text=lines)


def test_kcat_sees_headers_and_partitions(address, name):
    create_topic(address, name, partitions=3)
    kcat(address, "-P", "-t", name, "-p", "2", "-H", "a=1", "-H", "b=", text="v\n")
    printed = kcat(address, "-C", "-t", name, "-p", "2", "-e", "-q", "-f", "%p %o %h %s\\n")
    assert printed == "2 0 a=1,b= v\n"
    assert f'topic "{name}" with 3 partitions' in kcat(address, "-L", "-t", name)


def test_many_batches_in_flight_keep_their_order(address, name):
    create_topic(address, name, partitions=4)
    source = producer(address, linger_ms=1, batch_num_messages=50)
    records = [
        {"key": b"k", "value": str(number).encode(), "partition": number % 4}
        for number in range(20_000)
    ]
    produce_all(source, name, records)
    for partition in range(4):
        messages = read_partition(address, name, 5000, partition)
        numbers = [int(message.value()) for message in messages]
        assert numbers == list(range(partition, 20_000, 4))


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_kind_of_acknowledgement(address, name, acks):
    create_topic(address, name)
    produce_all(producer(address, acks=acks), name, [{"value": b"%d" % n} for n in range(100)])
    values = [message.value() for message in read_partition(address, name, 100)]
    assert values == [b"%d" % n for n in range(100)]


def test_many_partitions(address, name):
    partitions = 500
    create_topic(address, name, partitions)
    records = [{"value": b"%d" % n, "partition": n % partitions} for n in range(2 * partitions)]
    delivered = produce_all(producer(address), name, records)
    assert sorted((m.partition(), m.offset()) for m in delivered) == [
        (partition, offset) for partition in range(partitions) for offset in range(2)
    ]
    source = python_consumer(address, name, group_id=None)
    seen = sorted(int(next(source).value) for _ in range(2 * partitions))
    source.close()
    assert seen == list(range(2 * partitions))


def test_a_large_record_passes_and_a_larger_one_is_refused(address, name):
    create_topic(address, name)
    source = producer(address, message_max_bytes=20 << 20)
    content = random.Random(7).randbytes(16 << 20)
    near = content[: (8 << 20) - 4096]
    beyond = content[: (8 << 20) + 4096]
    produce_all(source, name, [{"value": near}])

    answers = []
    source.produce(name, beyond, on_delivery=lambda error, _: answers.append(error))
    assert source.flush(30) == 0
    assert answers[0].code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE

    # The connection and the topic are as good as before.
    produce_all(source, name, [{"value": b"small"}])
    messages = read_partition(address, name, 2, fetch_message_max_bytes=1 << 20)
    assert [message.value() for message in messages] == [near, b"small"]


def test_a_topic_may_have_its_own_limit(address, name):
    create_topic(address, name, max_message_bytes=2000)
    target = python_producer(address, retries=0)
    assert target.send(name, b"x" * 1500).get(30).offset == 0
    with pytest.raises(Exception) as refused:
        target.send(name, b"x" * 2500).get(30)
    assert type(refused.value).__name__ == "MessageSizeTooLargeError"
    target.close()
