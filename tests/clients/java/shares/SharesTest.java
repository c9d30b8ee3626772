package shares;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.InvalidRecordStateException;
import org.junit.jupiter.api.Test;

/** Members of a share group get records, and acknowledge, release or reject each. */
class SharesTest {
    private static List<ConsumerRecord<String, String>> take(KafkaShareConsumer<String, String> from, int count) {
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        Shares.waitUntil(count + " records", () -> {
            from.poll(Shares.SHORT).forEach(records::add);
            return records.size() >= count;
        });
        assertEquals(count, records.size());
        return records;
    }

    private static void commit(KafkaShareConsumer<String, String> member) {
        member.commitSync().forEach((partition, error) -> assertTrue(error.isEmpty(), () -> partition + ": " + error));
    }

    private static List<String> values(List<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).toList();
    }

    @Test
    void releasedRecordsComeAgainWithTheirDeliveryCountAndRejectedOnesDoNot() {
        String topic = Shares.topic();
        Shares.produce(topic, 3);
        try (var admin = Shares.admin(); var member = Shares.member(topic, "explicit")) {
            var records = take(member, 3);
            assertEquals(List.of("0", "1", "2"), values(records));
            member.acknowledge(records.get(0), AcknowledgeType.RELEASE);
            member.acknowledge(records.get(1), AcknowledgeType.REJECT);
            member.acknowledge(records.get(2), AcknowledgeType.ACCEPT);
            commit(member);
            var again = take(member, 1).get(0);
            assertEquals("0", again.value());
            assertEquals(2, again.deliveryCount().get().intValue());
            member.acknowledge(again);
            commit(member);
            assertEquals(3, Shares.startOffset(admin, topic));
        }
    }

    @Test
    void theNextPollAcknowledgesTheRecordsOfTheLastOne() {
        String topic = Shares.topic();
        Shares.produce(topic, 100);
        try (var admin = Shares.admin()) {
            try (var member = Shares.member(topic, "implicit", "max.poll.records", 10)) {
                Set<String> values = new java.util.HashSet<>();
                Shares.waitUntil("all records, each acknowledged", () -> {
                    member.poll(Shares.SHORT).forEach(record -> assertTrue(values.add(record.value())));
                    return values.size() == 100 && Shares.startOffset(admin, topic) == 100;
                });
            }
            try (var other = Shares.member(topic, "implicit")) {
                assertEquals(0, other.poll(Duration.ofSeconds(1)).count());
            }
        }
    }

    @Test
    void recordsOfAClosedMemberGoToAnother() {
        String topic = Shares.topic();
        Shares.produce(topic, 5);
        try (var other = Shares.member(topic, "explicit")) {
            try (var member = Shares.member(topic, "explicit")) {
                take(member, 5);
            }
            var records = take(other, 5);
            records.forEach(record -> assertEquals(2, record.deliveryCount().get().intValue()));
            records.forEach(other::acknowledge);
            commit(other);
        }
    }

    @Test
    void recordsOfAKilledMemberGoToAnother() throws Exception {
        String topic = Shares.topic();
        Shares.produce(topic, 5);
        var command = List.of(ProcessHandle.current().info().command().get(), "-XX:+UseSerialGC",
                "-Dmillstream.address=" + System.getProperty("millstream.address"),
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                "-cp", System.getProperty("java.class.path"), Holder.class.getName(), topic, "5");
        Process holder = new ProcessBuilder(command).redirectErrorStream(true).start();
        try (var other = Shares.member(topic, "explicit");
                var says = new BufferedReader(new InputStreamReader(holder.getInputStream()))) {
            assertEquals("holds 5", says.readLine());
            assertEquals(0, other.poll(Shares.SHORT).count());
            holder.destroyForcibly();
            var records = take(other, 5);
            records.forEach(record -> assertEquals(2, record.deliveryCount().get().intValue()));
            records.forEach(other::acknowledge);
            commit(other);
        } finally {
            holder.destroyForcibly();
        }
    }

    @Test
    void recordsWithAnExpiredLockGoToAnotherMemberAndLateAcknowledgementsAreRefused() {
        String topic = Shares.topic();
        try (var admin = Shares.admin();
                var slow = Shares.member(topic, "explicit");
                var other = Shares.member(topic, "explicit")) {
            Shares.set(admin, topic, "share.record.lock.duration.ms", "1000");
            Shares.produce(topic, 2);
            var late = take(slow, 2);
            var records = take(other, 2);
            assertEquals(2, records.get(0).deliveryCount().get().intValue());
            late.forEach(slow::acknowledge);
            var refused = slow.commitSync().values().iterator().next();
            assertInstanceOf(InvalidRecordStateException.class, refused.get());
        }
    }

    @Test
    void aMemberRenewsTheLocksOfItsRecordsAndAcknowledgesThem() {
        String topic = Shares.topic();
        try (var admin = Shares.admin(); var member = Shares.member(topic, "explicit")) {
            Shares.produce(topic, 2);
            var records = take(member, 2);
            assertEquals(2, Shares.offset(admin, topic).lag().get());
            member.acknowledge(records.get(0), AcknowledgeType.RENEW);
            member.acknowledge(records.get(1), AcknowledgeType.ACCEPT);
            commit(member);
            assertEquals(1, Shares.offset(admin, topic).lag().get());
            // The client gives out renewed records again, without another delivery.
            var renewed = take(member, 1).get(0);
            assertEquals("0", renewed.value());
            assertEquals(1, renewed.deliveryCount().get().intValue());
            member.acknowledge(renewed);
            commit(member);
            assertEquals(2, Shares.startOffset(admin, topic));
            assertEquals(0, Shares.offset(admin, topic).lag().get());
        }
    }

    @Test
    void aMemberWithALimitOfRecordsLeavesTheRestOfTheBatchToOthers() {
        String topic = Shares.topic();
        Shares.produce(topic, 30);
        Object[] settings = {"share.acquire.mode", "record_limit", "max.poll.records", 10};
        try (var member = Shares.member(topic, "explicit", settings);
                var other = Shares.member(topic, "explicit", settings)) {
            // Neither acknowledges before the other has its own.
            take(member, 10);
            take(other, 10);
        }
    }

    @Test
    void recordsOfAKeyComeOneAfterTheOtherToUnchangedMembers() throws Exception {
        String topic = Shares.topic();
        int keys = 20;
        int count = 600;
        try (var admin = Shares.admin()) {
            Shares.set(admin, topic, "share.order", "key");
        }
        Shares.produce(topic, count, n -> "key" + n % keys);
        var finished = new ConcurrentHashMap<String, Integer>();
        var out = ConcurrentHashMap.<String>newKeySet();
        var failures = new ConcurrentLinkedQueue<String>();
        var left = new AtomicInteger(count);
        Runnable work = () -> {
            var random = new Random(Thread.currentThread().getId());
            try (var member = Shares.member(topic, "explicit", "max.poll.records", 8)) {
                Shares.waitUntil("all records", () -> {
                    for (var record : member.poll(Shares.SHORT)) {
                        if (!out.add(record.key())) {
                            failures.add("two records of " + record.key() + " are out: " + record.value());
                        }
                        int n = Integer.parseInt(record.value());
                        int last = finished.getOrDefault(record.key(), n - keys);
                        if (n != n % keys && !finished.containsKey(record.key()) || last != n - keys) {
                            failures.add(n + " came after " + last);
                        }
                        out.remove(record.key());
                        if (record.deliveryCount().get() < 3 && random.nextInt(5) == 0) {
                            member.acknowledge(record, AcknowledgeType.RELEASE);
                        } else {
                            finished.put(record.key(), n);
                            left.decrementAndGet();
                            member.acknowledge(record, AcknowledgeType.ACCEPT);
                        }
                    }
                    commit(member);
                    return left.get() == 0 || !failures.isEmpty();
                });
            }
        };
        var threads = Stream.generate(() -> new Thread(work)).limit(4).toList();
        threads.forEach(Thread::start);
        for (var thread : threads) {
            thread.join();
        }
        assertEquals(List.of(), List.copyOf(failures));
        try (var admin = Shares.admin()) {
            assertEquals(count, Shares.startOffset(admin, topic));
        }
    }

    @Test
    void administratorsSeeMoveAndDeleteShareGroups() throws Exception {
        String topic = Shares.topic();
        var partition = new TopicPartition(topic, 0);
        Shares.produce(topic, 4);
        try (Admin admin = Shares.admin()) {
            try (var member = Shares.member(topic, "explicit")) {
                take(member, 4);
                var listed = Shares.get(admin.listGroups(ListGroupsOptions.forShareGroups()).all());
                var group = listed.stream().filter(one -> one.groupId().equals(topic)).findAny().get();
                assertEquals(GroupType.SHARE, group.type().get());
                var described = Shares.get(admin.describeShareGroups(List.of(topic)).all()).get(topic);
                assertEquals(GroupState.STABLE, described.groupState());
                var assigned = described.members().iterator().next().assignment().topicPartitions();
                assertEquals(Set.of(partition), assigned);
                var refused = assertThrows(ExecutionException.class,
                        () -> admin.alterShareGroupOffsets(topic, Map.of(partition, 0L)).all().get());
                assertInstanceOf(GroupNotEmptyException.class, refused.getCause());
            }
            Shares.get(admin.alterShareGroupOffsets(topic, Map.of(partition, 2L)).all());
            assertEquals(2, Shares.startOffset(admin, topic));
            try (var member = Shares.member(topic, "explicit")) {
                assertEquals(List.of("2", "3"), values(take(member, 2)));
            }
            Shares.get(admin.deleteShareGroupOffsets(topic, Set.of(topic)).all());
            assertEquals(-1, Shares.startOffset(admin, topic));
            Shares.get(admin.deleteShareGroups(List.of(topic)).all());
            var listed = Shares.get(admin.listGroups(ListGroupsOptions.forShareGroups()).all());
            assertTrue(listed.stream().noneMatch(group -> group.groupId().equals(topic)));
        }
    }
}
