package sharecrash;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.junit.jupiter.api.Test;
import shares.Shares;

/** The server is killed in the middle; the test's file tells when, and it is started again. */
class CrashTest {
    private static final int RECORDS = 3000;
    private static final int MEMBERS = 8;
    private static final Path MARK = Path.of(System.getProperty("millstream.mark"));

    private final String topic = Shares.topic();
    /** Values whose acknowledgement was answered. */
    private final Set<String> acknowledged = ConcurrentHashMap.newKeySet();
    /** Values whose acknowledgement may have been lost, or its answer. */
    private final Set<String> uncertain = ConcurrentHashMap.newKeySet();
    private final Map<String, String> faults = new ConcurrentHashMap<>();

    @Test
    void eightMembersOfOnePartitionAcknowledgeEachRecordOnceAcrossACrash() throws Exception {
        Shares.produce(topic, RECORDS);
        ExecutorService threads = Executors.newFixedThreadPool(MEMBERS);
        List<Future<?>> done = new ArrayList<>();
        for (int n = 0; n < MEMBERS; n++) {
            boolean leavesEarly = n == 0;
            done.add(threads.submit(() -> work(leavesEarly)));
        }
        for (Future<?> future : done) {
            future.get();
        }
        threads.shutdown();
        assertEquals(Map.of(), faults);
        Set<String> all = IntStream.range(0, RECORDS).mapToObj(n -> "" + n).collect(Collectors.toSet());
        Set<String> finished = ConcurrentHashMap.newKeySet();
        finished.addAll(acknowledged);
        finished.addAll(uncertain);
        assertEquals(all, finished);
        try (var admin = Shares.admin()) {
            assertEquals(RECORDS, Shares.startOffset(admin, topic));
        }
    }

    private void work(boolean leavesEarly) {
        try (var admin = Shares.admin();
                var member = Shares.member(topic, "explicit", "max.poll.records", 20)) {
            Shares.waitUntil("all is acknowledged", () -> {
                var records = member.poll(Shares.SHORT);
                if (leavesEarly && !records.isEmpty()) {
                    // With what it holds.
                    return true;
                }
                handle(member, records);
                return acknowledged.size() + uncertain.size() >= RECORDS
                        && Shares.startOffset(admin, topic) == RECORDS;
            });
        }
    }

    private void handle(KafkaShareConsumer<String, String> member, Iterable<ConsumerRecord<String, String>> records) {
        List<String> accepted = new ArrayList<>();
        for (var record : records) {
            if (acknowledged.contains(record.value())) {
                faults.put(record.value(), "delivered after its acknowledgement was answered");
            }
            boolean isReleased = record.deliveryCount().get() == 1 && record.offset() % 50 == 0;
            member.acknowledge(record, isReleased ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
            if (!isReleased) {
                accepted.add(record.value());
            }
        }
        var answers = member.commitSync();
        boolean isAnswered = !answers.isEmpty() && answers.values().stream().allMatch(error -> error.isEmpty());
        for (String value : accepted) {
            if (!isAnswered) {
                uncertain.add(value);
            } else if (!acknowledged.add(value)) {
                faults.put(value, "acknowledged twice");
            }
        }
        if (acknowledged.size() > RECORDS / 3 && !Files.exists(MARK)) {
            mark();
        }
        assertTrue(acknowledged.size() <= RECORDS);
    }

    private static synchronized void mark() {
        try {
            if (!Files.exists(MARK)) {
                Files.createFile(MARK);
            }
        } catch (java.io.IOException error) {
            throw new AssertionError(error);
        }
    }
}
