"""Work of administrators: topics, settings, groups, records, the cluster."""

import kafka
import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import TopicPartition as PythonPartition

from clients import admin, consumer, create_topic, produce_all, producer, take

SECONDS_MAX = 20


def error_of(future):
    with pytest.raises(KafkaException) as raised:
        future.result(SECONDS_MAX)
    return raised.value.args[0].code()


def partition_count(client, topic):
    return len(client.list_topics(topic, timeout=10).topics[topic].partitions)


def test_topics_are_created_grown_and_deleted(address, name):
    client = admin(address)
    create_topic(address, name, partitions=2)
    assert partition_count(client, name) == 2
    assert error_of(client.create_topics([NewTopic(name, 1, 1)])[name]) == (
        KafkaError.TOPIC_ALREADY_EXISTS
    )
    produce_all(producer(address), name, [{"value": b"v", "partition": 1}])

    client.create_partitions([NewPartitions(name, 5)])[name].result(SECONDS_MAX)
    assert partition_count(client, name) == 5
    produce_all(producer(address), name, [{"value": b"v", "partition": 4}])
    assert error_of(client.create_partitions([NewPartitions(name, 3)])[name]) == (
        KafkaError.INVALID_PARTITIONS
    )

    client.delete_topics([name])[name].result(SECONDS_MAX)
    assert name not in client.list_topics(timeout=10).topics
    assert error_of(client.delete_topics([name])[name]) == KafkaError.UNKNOWN_TOPIC_OR_PART

    # A new topic of the same name has nothing of the old one.
    create_topic(address, name)
    source = consumer(address, name)
    assert source.get_watermark_offsets(TopicPartition(name, 0), 10) == (0, 0)
    source.close()


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("bad name", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("..", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("x" * 300, 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("replicas", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("partitions", 50_000, 1), KafkaError.INVALID_PARTITIONS),
        (NewTopic("setting", 1, 1, config={"no.such": "1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("value", 1, 1, config={"retention.ms": "x"}), KafkaError.INVALID_CONFIG),
    ],
    ids=lambda value: value.topic[:10] if isinstance(value, NewTopic) else None,
)
def test_invalid_topics_are_refused(address, topic, error):
    client = admin(address)
    assert error_of(client.create_topics([topic])[topic.topic]) == error
    assert topic.topic not in client.list_topics(timeout=10).topics


def test_a_topic_that_is_only_checked_is_not_created(address, name):
    client = admin(address)
    client.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(SECONDS_MAX)
    assert name not in client.list_topics(timeout=10).topics


def test_settings_are_read_and_changed(address, name):
    client = admin(address)
    create_topic(address, name, retention_ms=1000)

    def settings():
        resource = ConfigResource(ResourceType.TOPIC, name)
        entries = client.describe_configs([resource])[resource].result(SECONDS_MAX)
        return {key: (entry.value, entry.is_default) for key, entry in entries.items()}

    assert settings()["retention.ms"] == ("1000", False)
    assert settings()["cleanup.policy"] == ("delete", True)

    change = [
        ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ConfigEntry("max.message.bytes", "5000", incremental_operation=AlterConfigOpType.SET),
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=change)
    client.incremental_alter_configs([resource])[resource].result(SECONDS_MAX)
    assert settings()["retention.ms"] == ("-1", True)
    assert settings()["max.message.bytes"] == ("5000", False)

    # The older request replaces all settings.
    resource = ConfigResource(ResourceType.TOPIC, name, set_config={"retention.bytes": "7000"})
    client.alter_configs([resource])[resource].result(SECONDS_MAX)
    assert settings()["retention.bytes"] == ("7000", False)
    assert settings()["max.message.bytes"][1]

    change = [ConfigEntry("retention.ms", "x", incremental_operation=AlterConfigOpType.SET)]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=change)
    future = client.incremental_alter_configs([resource])[resource]
    assert error_of(future) == KafkaError.INVALID_CONFIG


def test_groups_are_listed_described_and_deleted(address, name):
    client = admin(address)
    create_topic(address, name)
    produce_all(producer(address), name, [{"value": b"v"}] * 10)
    members = {}
    for protocol in ["classic", "consumer"]:
        source = consumer(address, f"{name}-{protocol}", group_protocol=protocol, client_id="c 1")
        source.subscribe([name])
        take(source, 10)
        source.commit(asynchronous=False)
        members[f"{name}-{protocol}"] = source
    groups = list(members)

    listed = client.list_consumer_groups().result(SECONDS_MAX).valid
    assert {group.group_id: group.state for group in listed if group.group_id in groups} == {
        group: ConsumerGroupState.STABLE for group in groups
    }
    for group, future in client.describe_consumer_groups(groups).items():
        described = future.result(SECONDS_MAX)
        assert described.state == ConsumerGroupState.STABLE
        assert [member.client_id for member in described.members] == ["c 1"]
        assigned = described.members[0].assignment.topic_partitions
        assert [(partition.topic, partition.partition) for partition in assigned] == [(name, 0)]
        assert error_of(client.delete_consumer_groups([group])[group]) == KafkaError.NON_EMPTY_GROUP

    for group, source in members.items():
        source.close()
        partition = TopicPartition(name, 0, 4)
        change = ConsumerGroupTopicPartitions(group, [partition])
        client.alter_consumer_group_offsets([change])[group].result(SECONDS_MAX)
        asked = ConsumerGroupTopicPartitions(group)
        described = client.list_consumer_group_offsets([asked])[group].result(SECONDS_MAX)
        assert [(p.topic, p.partition, p.offset) for p in described.topic_partitions] == [(name, 0, 4)]

    for group, future in client.delete_consumer_groups(groups).items():
        future.result(SECONDS_MAX)
    listed = client.list_consumer_groups().result(SECONDS_MAX).valid
    assert not {group.group_id for group in listed} & set(groups)
    future = client.delete_consumer_groups(["no such group"])["no such group"]
    assert error_of(future) == KafkaError.GROUP_ID_NOT_FOUND


def test_the_beginning_of_a_partition_is_deleted(address, name):
    client = admin(address)
    create_topic(address, name)
    produce_all(producer(address, batch_num_messages=10), name, [{"value": b"v"}] * 100)
    partition = TopicPartition(name, 0, 45)
    result = client.delete_records([partition])[partition].result(SECONDS_MAX)
    assert result.low_watermark == 45
    source = consumer(address, name)
    assert source.get_watermark_offsets(TopicPartition(name, 0), 10) == (45, 100)
    source.subscribe([name])
    assert [message.offset() for message in take(source, 55)] == list(range(45, 100))
    source.close()


def test_the_cluster_is_described(address):
    host, port = address.split(":")
    client = admin(address)
    cluster = client.describe_cluster(include_authorized_operations=True).result(SECONDS_MAX)
    operations = {operation.name for operation in cluster.authorized_operations}
    assert operations == {
        "CREATE",
        "ALTER",
        "DESCRIBE",
        "CLUSTER_ACTION",
        "DESCRIBE_CONFIGS",
        "ALTER_CONFIGS",
        "IDEMPOTENT_WRITE",
    }
    assert [(node.host, node.port) for node in cluster.nodes] == [(host, int(port))]
    assert cluster.controller.id == cluster.nodes[0].id
    assert cluster.cluster_id


def test_kafka_python_manages_topics_and_groups(address, name):
    client = kafka.KafkaAdminClient(bootstrap_servers=address)
    client.create_topics({name: {"num_partitions": 2, "configs": {"retention.ms": "5000"}}})
    assert name in client.list_topics()
    client.create_partitions({name: 3})
    described = client.describe_topics([name])[0]
    assert len(described["partitions"]) == 3
    resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, name)
    described = client.describe_configs([resource])
    assert "5000" in str(described)

    produce_all(producer(address), name, [{"value": b"v", "partition": 0}] * 10)
    source = kafka.KafkaConsumer(bootstrap_servers=address, group_id=name)
    partition = PythonPartition(name, 0)
    assert source.end_offsets([partition]) == {partition: 10}
    source.assign([partition])
    source.commit({partition: kafka.OffsetAndMetadata(5, "", -1)})
    source.close()
    offsets = client.list_group_offsets([name])[name]
    assert offsets[partition].offset == 5
    assert name in str(client.list_groups())
    client.delete_groups([name])
    assert name not in str(client.list_groups())
    client.delete_topics([name])
    assert name not in client.list_topics()
    client.close()
