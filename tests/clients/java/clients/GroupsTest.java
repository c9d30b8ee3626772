package clients;

import static clients.Cluster.bytes;
import static clients.Cluster.consumer;
import static clients.Cluster.partitions;
import static clients.Cluster.producer;
import static clients.Cluster.take;
import static clients.Cluster.text;
import static clients.Cluster.topic;
import static clients.Cluster.waitUntil;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Members come and go, and every record is read by one of them. */
class GroupsTest {
    private static final int PARTITIONS = 4;
    private static final Duration SHORT = Duration.ofMillis(50);

    private static KafkaConsumer<byte[], byte[]> member(String protocol, String group) {
        return switch (protocol) {
            case "consumer" -> consumer(group, "group.protocol", "consumer");
            case "cooperative" -> consumer(group, "heartbeat.interval.ms", 500,
                    "partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
            default -> consumer(group, "heartbeat.interval.ms", 500);
        };
    }

    private static void produceEverywhere(String topic, int from, int to) {
        try (var producer = producer()) {
            for (int n = from; n < to; n++) {
                producer.send(new ProducerRecord<>(topic, n % PARTITIONS, null, bytes("" + n)));
            }
        }
    }

    /** Polls all members until each has this number of partitions; returns the records that they read meanwhile. */
    private static List<String> settle(List<KafkaConsumer<byte[], byte[]>> members, int each) {
        List<String> values = new ArrayList<>();
        waitUntil(each + " partitions for each member", () -> {
            for (var member : members) {
                member.poll(SHORT).forEach(record -> values.add(text(record.value())));
                commit(member);
            }
            return members.stream().allMatch(member -> member.assignment().size() == each);
        });
        return values;
    }

    private static void commit(KafkaConsumer<byte[], byte[]> member) {
        try {
            member.commitSync();
        } catch (RebalanceInProgressException error) {
            // The next poll continues the rebalance, and its commit includes this record.
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"classic", "cooperative", "consumer"})
    void membersShareTheirPartitionsAndEveryRecordIsReadOnce(String protocol) {
        String topic = topic(PARTITIONS);
        List<String> values = new ArrayList<>();
        var first = member(protocol, topic);
        try (var second = member(protocol, topic)) {
            produceEverywhere(topic, 0, 100);
            first.subscribe(List.of(topic));
            values.addAll(settle(List.of(first), PARTITIONS));
            second.subscribe(List.of(topic));
            values.addAll(settle(List.of(first, second), PARTITIONS / 2));
            Set<TopicPartition> all = new HashSet<>(first.assignment());
            all.addAll(second.assignment());
            assertEquals(Set.copyOf(partitions(topic, PARTITIONS)), all);

            produceEverywhere(topic, 100, 200);
            first.close();
            values.addAll(settle(List.of(second), PARTITIONS));
            take(second, 200 - values.size()).forEach(record -> values.add(text(record.value())));
        } finally {
            first.close();
        }
        List<Integer> sorted = values.stream().map(Integer::valueOf).sorted().toList();
        assertEquals(IntStream.range(0, 200).boxed().toList(), sorted);
    }

    @ParameterizedTest
    @ValueSource(strings = {"classic", "consumer"})
    void theNextMemberGetsOffsetsWithTheirMetadata(String protocol) {
        String topic = topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        Cluster.produce(topic, "a", "b", "c");
        try (var first = member(protocol, topic)) {
            first.subscribe(List.of(topic));
            take(first, 3);
            first.commitSync(Map.of(partition, new OffsetAndMetadata(2, "half way")));
            var committed = first.committed(Set.of(partition)).get(partition);
            assertEquals(2, committed.offset());
            assertEquals("half way", committed.metadata());
        }
        try (var second = member(protocol, topic)) {
            second.subscribe(List.of(topic));
            assertEquals("c", text(take(second, 1).get(0).value()));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"classic", "consumer"})
    void aMemberSubscribesToAPatternAndUnsubscribes(String protocol) {
        String topic = topic(1);
        try (var member = member(protocol, topic)) {
            member.subscribe(Pattern.compile(Pattern.quote(topic) + ".*"));
            assertEquals(List.of(), settle(List.of(member), 1));
            member.unsubscribe();
            assertEquals(Set.of(), member.assignment());
            member.subscribe(List.of(topic));
            settle(List.of(member), 1);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"classic", "consumer"})
    void aStaticMemberComesBackToItsPartitions(String protocol) {
        String topic = topic(PARTITIONS);
        Object[] settings = {"group.protocol", protocol, "group.instance.id", "static"};
        try (var other = member(protocol, topic)) {
            Set<TopicPartition> before;
            try (var member = consumer(topic, settings)) {
                member.subscribe(List.of(topic));
                other.subscribe(List.of(topic));
                settle(List.of(member, other), PARTITIONS / 2);
                before = member.assignment();
            }
            other.poll(SHORT);
            assertEquals(PARTITIONS / 2, other.assignment().size());
            try (var member = consumer(topic, settings)) {
                member.subscribe(List.of(topic));
                settle(List.of(member, other), PARTITIONS / 2);
                assertEquals(before, member.assignment());
            }
        }
    }
}
