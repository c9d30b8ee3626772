"""Connections that are cut in the middle of frames: nothing is lost, nothing comes twice, order stays."""

import pytest

from clients import (
    SECONDS_MAX,
    create_topic,
    produce_all,
    producer,
    python_producer,
    read_partition,
    transactional,
)
from proxy import CuttingProxy

RECORDS = 4000
# One of this number of frames is cut.
FRAMES = 12


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("library", ["librdkafka", "kafka-python"])
def test_idempotent_producers_neither_lose_nor_repeat_records(address, name, library, seed):
    create_topic(address, name)
    expected = [b"%d" % number for number in range(RECORDS)]
    with CuttingProxy(address, 1 / FRAMES, seed) as proxy:
        if library == "librdkafka":
            target = producer(
                proxy.address,
                enable_idempotence=True,
                batch_num_messages=20,
                linger_ms=1,
                retry_backoff_ms=20,
                reconnect_backoff_ms=10,
                reconnect_backoff_max_ms=50,
            )
            produce_all(target, name, [{"value": value} for value in expected])
        else:
            target = python_producer(
                proxy.address,
                enable_idempotence=True,
                batch_size=200,
                retry_backoff_ms=20,
                reconnect_backoff_ms=10,
                reconnect_backoff_max_ms=50,
            )
            futures = [target.send(name, value) for value in expected]
            assert [future.get(SECONDS_MAX).offset for future in futures] == list(range(RECORDS))
            proxy.stop_cutting()
            target.close()
        assert proxy.cuts > 5
    produce_all(producer(address), name, [{"value": b"last"}])
    read = read_partition(address, name, RECORDS + 1)
    assert [message.value() for message in read] == [*expected, b"last"]


@pytest.mark.parametrize("seed", [1, 2])
def test_transactions_are_atomic_when_connections_break(address, name, seed):
    create_topic(address, name)
    expected = []
    with CuttingProxy(address, 1 / FRAMES, seed) as proxy:
        source = transactional(
            proxy.address,
            name,
            retry_backoff_ms=20,
            reconnect_backoff_ms=10,
            reconnect_backoff_max_ms=50,
        )
        for number in range(25):
            source.begin_transaction()
            records = [b"%d %d" % (number, n) for n in range(20)]
            produce_all(source, name, [{"value": record} for record in records])
            if number % 3 == 0:
                source.abort_transaction(SECONDS_MAX)
            else:
                source.commit_transaction(SECONDS_MAX)
                expected += records
        assert proxy.cuts > 5
    produce_all(producer(address), name, [{"value": b"last"}])
    expected.append(b"last")
    read = read_partition(address, name, len(expected), isolation_level="read_committed")
    assert [message.value() for message in read] == expected
