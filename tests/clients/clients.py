"""Helpers for steps that many tests do with the clients."""

import time

import confluent_kafka
import kafka
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

import processes

SECONDS_MAX = 30


def create_topic(address, name, partitions=1, **settings):
    """Creates a topic; `_` in the name of a setting stands for `.`."""
    settings = {key.replace("_", "."): str(value) for key, value in settings.items()}
    topic = NewTopic(name, partitions, 1, config=settings)
    client = admin(address)
    client.create_topics([topic])[name].result(SECONDS_MAX)


def admin(address):
    """An administrator. Keep it: it must live for as long as its answers are waited for."""
    return AdminClient({"bootstrap.servers": address})


def alter_topic(client, name, operation=AlterConfigOpType.SET, **settings):
    """Changes settings of a topic; `_` in the name of a setting stands for `.`."""
    change = [
        ConfigEntry(key.replace("_", "."), None if value is None else str(value), incremental_operation=operation)
        for key, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=change)
    client.incremental_alter_configs([resource])[resource].result(SECONDS_MAX)


def topic_setting(address, topic, name):
    """The value of a topic's setting, as administrators see it."""
    client = admin(address)
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return client.describe_configs([resource])[resource].result(SECONDS_MAX)[name].value


def producer(address, **settings):
    """A producer of librdkafka; `produce_all` checks the result of every record."""
    return confluent_kafka.Producer({"bootstrap.servers": address, **dotted(settings)})


def transactional(address, name, **settings):
    """A producer of librdkafka that may begin a transaction."""
    source = producer(address, transactional_id=name, **settings)
    source.init_transactions(SECONDS_MAX)
    return source


def consumer(address, group, **settings):
    """A consumer of librdkafka that begins at the earliest record."""
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            **dotted(settings),
        }
    )


def dotted(settings):
    return {key.replace("_", "."): value for key, value in settings.items()}


def produce_all(target, topic, records):
    """Produces records, each a dict of arguments; returns the deliveries in the order of the answers."""
    delivered = []

    def on_delivery(error, message):
        delivered.append((error, message))

    for record in records:
        target.produce(topic, on_delivery=on_delivery, **record)
        target.poll(0)
    left = target.flush(SECONDS_MAX)
    assert left == 0, f"{left} records without an answer"
    errors = [error for error, _ in delivered if error is not None]
    assert not errors, errors[:3]
    return [message for _, message in delivered]


def read_partition(address, topic, count, partition=0, **settings):
    """The first records of a partition, without a group."""
    source = consumer(address, f"{topic}-reader", enable_auto_commit=False, **settings)
    try:
        source.assign(
            [confluent_kafka.TopicPartition(topic, partition, confluent_kafka.OFFSET_BEGINNING)]
        )
        return take(source, count)
    finally:
        source.close()


def read_to_ends(address, topic, partitions=1, **settings):
    """Yields the messages of all partitions of a topic, without a group, until each has come to its end."""
    source = consumer(address, f"reader-of-{topic}", enable_auto_commit=False, enable_partition_eof=True, **settings)
    try:
        source.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in range(partitions)])
        at_end = set()
        while len(at_end) < partitions:
            message = source.poll(SECONDS_MAX)
            assert message is not None, "the end does not come"
            if message.error():
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                at_end.add(message.partition())
            else:
                yield message
    finally:
        source.close()


def take(source, count, seconds_max=SECONDS_MAX):
    """Returns this number of messages of a consumer of librdkafka; fewer is a failure."""
    messages = []
    deadline = time.monotonic() + seconds_max
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages"
        for message in source.consume(count - len(messages), 0.2):
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


def wait_until(is_so, what, seconds_max=SECONDS_MAX):
    """Asks until the answer is yes, and gives that answer."""
    deadline = time.monotonic() + seconds_max
    while not (answer := is_so()):
        assert time.monotonic() < deadline, f"not within {seconds_max} s: {what}"
        time.sleep(0.05)
    return answer


def python_producer(address, **settings):
    """A producer of kafka-python, without a producer id unless one is asked for."""
    settings = {"enable_idempotence": False, **settings}
    return kafka.KafkaProducer(bootstrap_servers=address, **settings)


def python_consumer(address, *topics, **settings):
    """A consumer of kafka-python that begins at the earliest record and ends when nothing comes."""
    settings = {"auto_offset_reset": "earliest", "consumer_timeout_ms": 10_000, **settings}
    return kafka.KafkaConsumer(*topics, bootstrap_servers=address, **settings)


def kcat(address, *arguments, text=""):
    """Runs kcat, which must succeed; returns its output."""
    done = processes.run(
        ["kcat", "-b", address, *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
