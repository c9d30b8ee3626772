package sharecrash;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.junit.jupiter.api.Test;
import shares.Shares;

/** The test kills the server in the middle, when this program has made a file, and starts it again. */
class CrashTest {
    private static final int RECORDS = 1_000_000;
    private static final int MEMBERS = 8;
    private static final int RECORDS_PER_POLL = 500;
    private static final Path MARK = Path.of(System.getProperty("millstream.mark"));

    /** The acknowledgement may have been lost, or its answer. */
    private static final int UNCERTAIN = 1;
    /** The acknowledgement was answered. */
    private static final int ACKNOWLEDGED = 2;

    private final String topic = Shares.topic();
    /** By offset. */
    private final AtomicIntegerArray states = new AtomicIntegerArray(RECORDS);
    private final AtomicInteger settled = new AtomicInteger();
    private final AtomicInteger uncertain = new AtomicInteger();
    private final Map<Long, String> faults = new ConcurrentHashMap<>();

    @Test
    void eightMembersOfOnePartitionAcknowledgeEachOfAMillionRecordsOnceAcrossACrash() throws Exception {
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
        assertEquals(RECORDS, settled.get());
        int lost = uncertain.get();
        // Each member has at most one request without an answer, and the records that a batch's end brings along.
        assertTrue(lost <= 2 * MEMBERS * RECORDS_PER_POLL, () -> lost + " acknowledgements without an answer");
        try (var admin = Shares.admin()) {
            assertEquals(RECORDS, Shares.startOffset(admin, topic));
        }
        try (var late = Shares.member(topic, "explicit")) {
            assertTrue(late.poll(Shares.SHORT).isEmpty());
        }
    }

    private void work(boolean leavesEarly) {
        try (var admin = Shares.admin();
                var member = Shares.member(topic, "explicit", "max.poll.records", RECORDS_PER_POLL)) {
            Shares.waitUntil("all is acknowledged", () -> {
                var records = member.poll(Shares.SHORT);
                if (leavesEarly && !records.isEmpty()) {
                    // With the records that it holds.
                    return true;
                }
                handle(member, records);
                return settled.get() >= RECORDS && Shares.startOffset(admin, topic) == RECORDS;
            });
        }
    }

    private void handle(KafkaShareConsumer<String, String> member, Iterable<ConsumerRecord<String, String>> records) {
        List<Long> accepted = new ArrayList<>();
        for (var record : records) {
            long offset = record.offset();
            assertEquals("" + offset, record.value());
            if (states.get((int) offset) == ACKNOWLEDGED) {
                faults.put(offset, "delivered after its acknowledgement was answered");
            }
            boolean isReleased = record.deliveryCount().get() == 1 && offset % 5000 == 0;
            member.acknowledge(record, isReleased ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
            if (!isReleased) {
                accepted.add(offset);
            }
        }
        var answers = member.commitSync();
        boolean isAnswered = !answers.isEmpty() && answers.values().stream().allMatch(error -> error.isEmpty());
        for (long offset : accepted) {
            int before = states.getAndSet((int) offset, isAnswered ? ACKNOWLEDGED : UNCERTAIN);
            if (before == ACKNOWLEDGED) {
                faults.put(offset, "acknowledged twice");
            }
            if (before == 0) {
                settled.incrementAndGet();
            }
            if (!isAnswered) {
                uncertain.incrementAndGet();
            }
        }
        if (settled.get() > RECORDS / 3 && !Files.exists(MARK)) {
            mark();
        }
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
