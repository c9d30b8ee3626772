package shares;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TransactionAbortableException;
import org.junit.jupiter.api.Test;

/** A member acknowledges records in the transaction that produces their results. */
class TransactionsTest {
    private static ConsumerRecord<String, String> next(KafkaShareConsumer<String, String> member) {
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        Shares.waitUntil("a record", () -> {
            member.poll(Shares.SHORT).forEach(records::add);
            return !records.isEmpty();
        });
        assertEquals(1, records.size());
        return records.get(0);
    }

    /** Makes the acknowledgement of a record part of the producer's transaction. */
    private static void acknowledge(KafkaProducer<String, String> producer, ConsumerRecord<String, String> record) {
        var partition = new TopicPartition(record.topic(), record.partition());
        var receipt = record.offset() + "@" + record.deliveryCount().get();
        producer.sendOffsetsToTransaction(
                Map.of(partition, new OffsetAndMetadata(record.offset() + 1, receipt)),
                new ConsumerGroupMetadata(record.topic()));
    }

    @Test
    void aRecordAndItsResultAreOneTransaction() {
        String topic = Shares.topic();
        String results = Shares.topic();
        Shares.produce(topic, 20);
        try (var admin = Shares.admin();
                var member = Shares.member(topic, "explicit", "max.poll.records", 1, "share.acquire.mode",
                        "record_limit");
                var producer = Shares.transactional(topic)) {
            producer.initTransactions();
            var aborted = new ArrayList<String>();
            for (int committed = 0; committed < 20;) {
                // The client may hold a later record already when it gets an aborted one again.
                var record = next(member);
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(results, record.value()));
                acknowledge(producer, record);
                // The consumer wants to know of each record, and the transaction decides.
                member.acknowledge(record, AcknowledgeType.ACCEPT);
                member.commitSync().forEach((of, error) -> assertTrue(error.isEmpty(), () -> of + ": " + error));
                if (record.offset() % 5 == 0 && record.deliveryCount().get() == 1) {
                    producer.abortTransaction();
                    aborted.add(record.value());
                    continue;
                }
                producer.commitTransaction();
                committed++;
            }
            assertEquals(List.of("0", "5", "10", "15"), aborted);
            Shares.waitUntil("the group has the outcome", () -> Shares.startOffset(admin, topic) == 20);
        }
        List<String> values = new ArrayList<>();
        try (var admin = Shares.admin();
                var reader = Shares.member(results, "implicit")) {
            Shares.set(admin, results, "share.isolation.level", "read_committed");
            Shares.waitUntil("all results", () -> {
                reader.poll(Shares.SHORT).forEach(record -> values.add(record.value()));
                return values.size() >= 20;
            });
            reader.poll(Shares.SHORT).forEach(record -> values.add(record.value()));
        }
        values.sort(Comparator.comparingInt(Integer::parseInt));
        assertEquals(IntStream.range(0, 20).mapToObj(Integer::toString).toList(), values);
    }

    @Test
    void aLostRecordAbortsTheTransactionAndTheProducerGoesOn() {
        String topic = Shares.topic();
        Shares.produce(topic, 1);
        try (var member = Shares.member(topic, "explicit"); var producer = Shares.transactional(topic)) {
            producer.initTransactions();
            var lost = next(member);
            member.acknowledge(lost, AcknowledgeType.RELEASE);
            member.commitSync();
            producer.beginTransaction();
            assertThrows(TransactionAbortableException.class, () -> acknowledge(producer, lost));
            producer.abortTransaction();
            var again = next(member);
            producer.beginTransaction();
            acknowledge(producer, again);
            member.acknowledge(again, AcknowledgeType.ACCEPT);
            member.commitSync();
            producer.commitTransaction();
        }
    }
}
