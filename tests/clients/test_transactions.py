"""Nothing twice, and all or nothing: idempotent producers and transactions."""

import time

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from clients import (
    SECONDS_MAX,
    consumer,
    create_topic,
    produce_all,
    producer,
    python_consumer,
    python_producer,
    read_partition,
    take,
    transactional,
)


def values(messages):
    return [message.value() for message in messages]


def ends(address, topic, isolation):
    """The first and the last offset that a consumer of this isolation may read up to."""
    source = consumer(address, topic, isolation_level=isolation)
    found = source.get_watermark_offsets(TopicPartition(topic, 0), 10)
    source.close()
    return found


def test_no_record_comes_twice_after_crashes_of_the_server(own_server):
    topic = "once"
    create_topic(own_server.address, topic)
    source = producer(
        own_server.address,
        enable_idempotence=True,
        linger_ms=2,
        retry_backoff_ms=50,
        reconnect_backoff_max_ms=200,
    )
    failed = []
    sent = 0
    for _ in range(3):
        crash = own_server.kill_after(0.7)
        while crash.is_alive():
            try:
                source.produce(
                    topic,
                    b"%d" % sent,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                sent += 1
            except BufferError:
                pass
            source.poll(0.001 if sent % 50 == 0 else 0)
        crash.join()
        own_server.start()
    assert source.flush(SECONDS_MAX) == 0
    assert failed == []
    _, count = ends(own_server.address, topic, "read_uncommitted")
    assert count == sent
    stored = values(read_partition(own_server.address, topic, count))
    assert stored == [b"%d" % number for number in range(sent)]


def test_kafka_python_is_idempotent_by_default(address, name):
    create_topic(address, name)
    target = python_producer(address, enable_idempotence=True, linger_ms=1)
    futures = [target.send(name, b"%d" % number) for number in range(1000)]
    assert [future.get(30).offset for future in futures] == list(range(1000))
    target.close()


def test_only_committed_records_are_read(address, name):
    create_topic(address, name)
    source = transactional(address, name)
    for number, is_good in enumerate([True, False, True]):
        source.begin_transaction()
        produce_all(source, name, [{"value": b"%d %d" % (number, n)} for n in range(10)])
        if is_good:
            source.commit_transaction(SECONDS_MAX)
        else:
            source.abort_transaction(SECONDS_MAX)
    produce_all(producer(address), name, [{"value": b"last"}])

    committed = [b"%d %d" % (number, n) for number in (0, 2) for n in range(10)] + [b"last"]
    read = read_partition(address, name, len(committed), isolation_level="read_committed")
    assert values(read) == committed
    # Each transaction's end takes an offset, too.
    assert read[-1].offset() == 33
    everything = read_partition(address, name, 31, isolation_level="read_uncommitted")
    assert values(everything)[10] == b"1 0"
    by_python = python_consumer(address, name, group_id=None, isolation_level="read_committed")
    assert [next(by_python).value for _ in committed] == committed
    by_python.close()


def test_an_open_transaction_holds_back_later_records(address, name):
    create_topic(address, name)
    source = transactional(address, name)
    source.begin_transaction()
    produce_all(source, name, [{"value": b"open"}])
    produce_all(producer(address), name, [{"value": b"behind"}])
    assert ends(address, name, "read_uncommitted") == (0, 2)
    assert ends(address, name, "read_committed") == (0, 0)
    reader = consumer(address, name, isolation_level="read_committed")
    reader.assign([TopicPartition(name, 0, 0)])
    assert reader.poll(1) is None
    source.commit_transaction(SECONDS_MAX)
    assert values(take(reader, 2)) == [b"open", b"behind"]
    reader.close()


def test_offsets_are_part_of_a_transaction(address, name):
    create_topic(address, f"{name}-in")
    create_topic(address, f"{name}-out")
    produce_all(producer(address), f"{name}-in", [{"value": b"%d" % n} for n in range(30)])
    reader = consumer(address, name, enable_auto_commit=False, isolation_level="read_committed")
    reader.subscribe([f"{name}-in"])
    source = transactional(address, name)
    for is_good in [True, False]:
        messages = take(reader, 10)
        source.begin_transaction()
        for message in messages:
            source.produce(f"{name}-out", b"out " + message.value())
        source.send_offsets_to_transaction(
            reader.position(reader.assignment()), reader.consumer_group_metadata(), SECONDS_MAX
        )
        if is_good:
            source.commit_transaction(SECONDS_MAX)
        else:
            source.abort_transaction(SECONDS_MAX)
    committed = reader.committed([TopicPartition(f"{name}-in", 0)], 10)[0]
    assert committed.offset == 10
    reader.close()
    produce_all(producer(address), f"{name}-out", [{"value": b"last"}])
    read = read_partition(address, f"{name}-out", 11, isolation_level="read_committed")
    assert values(read) == [b"out %d" % n for n in range(10)] + [b"last"]


def test_a_newer_producer_fences_the_older_one(address, name):
    create_topic(address, name)
    older = transactional(address, name)
    older.begin_transaction()
    produce_all(older, name, [{"value": b"older"}])
    newer = transactional(address, name)
    with pytest.raises(KafkaException) as refused:
        older.commit_transaction(SECONDS_MAX)
    assert refused.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    newer.begin_transaction()
    produce_all(newer, name, [{"value": b"newer"}])
    newer.commit_transaction(SECONDS_MAX)
    read = read_partition(address, name, 1, isolation_level="read_committed")
    assert values(read) == [b"newer"]


def test_an_abandoned_transaction_is_aborted(address, name):
    create_topic(address, name)
    source = transactional(address, name, transaction_timeout_ms=2000)
    source.begin_transaction()
    produce_all(source, name, [{"value": b"forgotten"}])
    produce_all(producer(address), name, [{"value": b"behind"}])
    started = time.monotonic()
    read = read_partition(address, name, 1, isolation_level="read_committed")
    assert values(read) == [b"behind"]
    assert time.monotonic() - started < 20
    with pytest.raises(KafkaException):
        source.commit_transaction(SECONDS_MAX)


@pytest.mark.parametrize("is_good", [True, False], ids=["commit", "abort"])
def test_a_transaction_outlasts_a_crash_of_the_server(own_server, is_good):
    topic = "outlasts"
    create_topic(own_server.address, topic)
    source = transactional(own_server.address, topic, reconnect_backoff_max_ms=200)
    source.begin_transaction()
    produce_all(source, topic, [{"value": b"before"}])
    own_server.kill()
    own_server.start()
    assert ends(own_server.address, topic, "read_committed") == (0, 0)
    produce_all(source, topic, [{"value": b"after"}])
    if is_good:
        source.commit_transaction(SECONDS_MAX)
    else:
        source.abort_transaction(SECONDS_MAX)
    own_server.kill()
    own_server.start()
    produce_all(producer(own_server.address), topic, [{"value": b"last"}])
    expected = [b"before", b"after", b"last"] if is_good else [b"last"]
    read = read_partition(own_server.address, topic, len(expected), isolation_level="read_committed")
    assert values(read) == expected


def test_transactions_of_kafka_python(address, name):
    create_topic(address, name)
    target = python_producer(address, enable_idempotence=True, transactional_id=name)
    target.init_transactions()
    for number in range(4):
        target.begin_transaction()
        target.send(name, b"%d" % number)
        target.abort_transaction() if number % 2 else target.commit_transaction()
    target.close()
    produce_all(producer(address), name, [{"value": b"last"}])
    read = read_partition(address, name, 3, isolation_level="read_committed")
    assert values(read) == [b"0", b"2", b"last"]
