package clients;

import static clients.Cluster.admin;
import static clients.Cluster.assertRefused;
import static clients.Cluster.consumer;
import static clients.Cluster.get;
import static clients.Cluster.partitions;
import static clients.Cluster.produce;
import static clients.Cluster.producer;
import static clients.Cluster.read;
import static clients.Cluster.take;
import static clients.Cluster.topic;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.BrokerIdNotRegisteredException;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidRequestException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Work of administrators. */
class AdminTest {
    @Test
    void topicsAreCreatedDescribedGrownAndDeleted() {
        String topic = topic(2, "retention.ms", "7000");
        try (Admin admin = admin()) {
            assertTrue(get(admin.listTopics().names()).contains(topic));
            var described = get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
            assertEquals(2, described.partitions().size());
            var ids = TopicCollection.ofTopicIds(List.of(described.topicId()));
            var byId = get(admin.describeTopics(ids).allTopicIds()).get(described.topicId());
            assertEquals(topic, byId.name());

            var again = new NewTopic(topic, 1, (short) 1);
            assertRefused(TopicExistsException.class, admin.createTopics(List.of(again)).all());
            var bad = new NewTopic("bad name", 1, (short) 1);
            assertRefused(InvalidTopicException.class, admin.createTopics(List.of(bad)).all());

            get(admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all());
            described = get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
            assertEquals(3, described.partitions().size());
            var fewer = admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(1)));
            assertRefused(InvalidPartitionsException.class, fewer.all());

            get(admin.deleteTopics(ids).all());
            assertFalse(get(admin.listTopics().names()).contains(topic));
            var gone = admin.describeTopics(List.of(topic)).allTopicNames();
            assertRefused(UnknownTopicOrPartitionException.class, gone);
        }
    }

    @Test
    void settingsAreReadAndChanged() {
        String topic = topic(1, "retention.ms", "7000");
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        try (Admin admin = admin()) {
            assertEquals("7000", settings(admin, resource).get("retention.ms").value());
            var set = new AlterConfigOp(new ConfigEntry("max.message.bytes", "5000"), OpType.SET);
            var unset = new AlterConfigOp(new ConfigEntry("retention.ms", null), OpType.DELETE);
            get(admin.incrementalAlterConfigs(Map.of(resource, List.of(set, unset))).all());
            Config changed = settings(admin, resource);
            assertEquals("5000", changed.get("max.message.bytes").value());
            assertFalse(changed.get("max.message.bytes").isDefault());
            assertTrue(changed.get("retention.ms").isDefault());

            var wrong = new AlterConfigOp(new ConfigEntry("retention.ms", "x"), OpType.SET);
            var refused = admin.incrementalAlterConfigs(Map.of(resource, List.of(wrong)));
            assertRefused(InvalidConfigurationException.class, refused.all());
            var broker = new ConfigResource(ConfigResource.Type.BROKER, brokerId(admin));
            assertFalse(settings(admin, broker).entries().isEmpty());
        }
    }

    private static Config settings(Admin admin, ConfigResource resource) {
        return get(admin.describeConfigs(List.of(resource)).all()).get(resource);
    }

    private static String brokerId(Admin admin) {
        return get(admin.describeCluster().nodes()).iterator().next().idString();
    }

    @Test
    void theOnlyBrokerIsNotUnregistered() {
        try (Admin admin = admin()) {
            assertRefused(BrokerIdNotRegisteredException.class, admin.unregisterBroker(7).all());
            assertRefused(InvalidRequestException.class, admin.unregisterBroker(1).all());
        }
    }

    @Test
    void theClusterIsDescribed() {
        String topic = topic(1);
        produce(topic, "value");
        try (Admin admin = admin()) {
            var cluster = admin.describeCluster();
            assertFalse(get(cluster.clusterId()).isEmpty());
            var node = get(cluster.nodes()).iterator().next();
            assertEquals(Cluster.ADDRESS, node.host() + ":" + node.port());
            assertEquals(node, get(cluster.controller()));
            var folders = get(admin.describeLogDirs(List.of(node.id())).allDescriptions());
            var replicas = folders.get(node.id()).values().iterator().next().replicaInfos();
            assertTrue(replicas.get(new TopicPartition(topic, 0)).size() > 0);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"classic", "consumer"})
    void groupsAreListedDescribedChangedAndDeleted(String protocol) {
        String topic = topic(1);
        String group = topic;
        TopicPartition partition = new TopicPartition(topic, 0);
        produce(topic, "a", "b");
        try (Admin admin = admin()) {
            try (var member = consumer(group, "group.protocol", protocol, "client.id", "member")) {
                member.subscribe(List.of(topic));
                take(member, 2);
                member.commitSync();
                var listed = get(admin.listConsumerGroups().valid()).stream();
                assertTrue(listed.anyMatch(listing -> listing.groupId().equals(group)));
                var described =
                        get(admin.describeConsumerGroups(List.of(group)).all()).get(group);
                var only = described.members().iterator().next();
                assertEquals("member", only.clientId());
                assertEquals(Set.of(partition), only.assignment().topicPartitions());
                var refused = admin.deleteConsumerGroups(List.of(group)).all();
                assertRefused(GroupNotEmptyException.class, refused);
            }
            assertEquals(2, committed(admin, group).get(partition).offset());
            var earlier = Map.of(partition, new OffsetAndMetadata(1, "earlier"));
            get(admin.alterConsumerGroupOffsets(group, earlier).all());
            assertEquals("earlier", committed(admin, group).get(partition).metadata());
            get(admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all());
            assertFalse(committed(admin, group).containsKey(partition));
            get(admin.deleteConsumerGroups(List.of(group)).all());
            var gone = admin.deleteConsumerGroups(List.of(group)).all();
            assertRefused(GroupIdNotFoundException.class, gone);
        }
    }

    private static Map<TopicPartition, OffsetAndMetadata> committed(Admin admin, String group) {
        return get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
    }

    @Test
    void recordsAreDeletedAndOffsetsListed() {
        String topic = topic(1);
        TopicPartition partition = partitions(topic, 1).get(0);
        produce(topic, "a", "b", "c");
        try (Admin admin = admin()) {
            var before = Map.of(partition, RecordsToDelete.beforeOffset(2));
            var deleted = admin.deleteRecords(before).lowWatermarks().get(partition);
            assertEquals(2, get(deleted).lowWatermark());
            assertEquals(2, offset(admin, partition, OffsetSpec.earliest()));
            assertEquals(3, offset(admin, partition, OffsetSpec.latest()));
            assertEquals(2, offset(admin, partition, OffsetSpec.forTimestamp(0)));
            assertEquals(List.of("c"), read(topic, 1));
            var beyond = Map.of(partition, RecordsToDelete.beforeOffset(9));
            assertRefused(OffsetOutOfRangeException.class, admin.deleteRecords(beyond).all());
        }
    }

    @Test
    void theRecordWithTheNewestTimeMayPrecedeTheLastOne() {
        TopicPartition partition = partitions(topic(1), 1).get(0);
        try (Admin admin = admin(); var producer = producer()) {
            for (long time : List.of(1000L, 3000L, 2000L)) {
                get(producer.send(new ProducerRecord<>(partition.topic(), 0, time, null, new byte[0])));
            }
            assertEquals(1, offset(admin, partition, OffsetSpec.maxTimestamp()));
        }
    }

    private static long offset(Admin admin, TopicPartition partition, OffsetSpec spec) {
        return get(admin.listOffsets(Map.of(partition, spec)).partitionResult(partition)).offset();
    }
}
