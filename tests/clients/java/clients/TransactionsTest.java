package clients;

import static clients.Cluster.admin;
import static clients.Cluster.assertRefused;
import static clients.Cluster.bytes;
import static clients.Cluster.consumer;
import static clients.Cluster.get;
import static clients.Cluster.produce;
import static clients.Cluster.readCommitted;
import static clients.Cluster.send;
import static clients.Cluster.take;
import static clients.Cluster.text;
import static clients.Cluster.topic;
import static clients.Cluster.transactional;
import static clients.Cluster.waitUntil;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeFalse;

import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;
import org.apache.kafka.common.utils.AppInfoParser;
import org.junit.jupiter.api.Test;

/** All of a transaction or nothing. */
class TransactionsTest {
    @Test
    void onlyCommittedRecordsAreRead() {
        String topic = topic(1);
        try (var producer = transactional(topic)) {
            for (int n = 0; n < 6; n++) {
                producer.beginTransaction();
                send(producer, topic, "a " + n);
                send(producer, topic, "b " + n);
                if (n % 3 == 1) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        produce(topic, "last");
        var expected = List.of("a 0", "b 0", "a 2", "b 2", "a 3", "b 3", "a 5", "b 5", "last");
        assertEquals(expected, readCommitted(topic, expected.size()));
    }

    @Test
    void aNewerProducerFencesTheOlderOne() {
        String topic = topic(1);
        try (var older = transactional(topic)) {
            older.beginTransaction();
            get(send(older, topic, "older"));
            try (var newer = transactional(topic)) {
                assertThrows(ProducerFencedException.class, older::commitTransaction);
                newer.beginTransaction();
                send(newer, topic, "newer");
                newer.commitTransaction();
            }
        }
        assertEquals(List.of("newer"), readCommitted(topic, 1));
    }

    @Test
    void anAdministratorFencesAProducer() {
        String topic = topic(1);
        try (var producer = transactional(topic); var admin = admin()) {
            producer.beginTransaction();
            get(send(producer, topic, "shut out"));
            get(admin.fenceProducers(List.of(topic)).all());
            var error = assertThrows(KafkaException.class, () -> {
                send(producer, topic, "more");
                producer.commitTransaction();
            });
            assertTrue(error instanceof ProducerFencedException
                    || error instanceof InvalidProducerEpochException
                    || error.getCause() instanceof InvalidProducerEpochException, error.toString());
        }
        produce(topic, "last");
        assertEquals(List.of("last"), readCommitted(topic, 1));
    }

    @Test
    void everyTransactionHasItsOwnEpoch() {
        assumeFalse(AppInfoParser.getVersion().startsWith("3."), "clients before 4.0 do not know that");
        String topic = topic(1);
        try (var producer = transactional(topic); var admin = admin()) {
            for (int n = 0; n < 3; n++) {
                producer.beginTransaction();
                send(producer, topic, "in " + n);
                if (n == 1) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
            var described = get(admin.describeTransactions(List.of(topic)).description(topic));
            assertEquals(3, described.producerEpoch());
        }
        assertEquals(List.of("in 0", "in 2"), readCommitted(topic, 2));
    }

    @Test
    void anAdministratorAbortsATransaction() {
        String topic = topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (var producer = transactional(topic); var admin = admin()) {
            producer.beginTransaction();
            get(send(producer, topic, "aborted"));
            var found = get(admin.describeProducers(List.of(partition)).partitionResult(partition));
            var state = found.activeProducers().get(0);
            var spec = new AbortTransactionSpec(partition, state.producerId(),
                    (short) state.producerEpoch(), state.coordinatorEpoch().orElse(0));
            get(admin.abortTransaction(spec).all());
            assertThrows(KafkaException.class, producer::commitTransaction);
        }
        produce(topic, "last");
        assertEquals(List.of("last"), readCommitted(topic, 1));
    }

    @Test
    void anAbandonedTransactionIsAborted() {
        String topic = topic(1);
        try (var producer = transactional(topic, "transaction.timeout.ms", 1000)) {
            producer.beginTransaction();
            get(send(producer, topic, "forgotten"));
            produce(topic, "behind");
            assertEquals(List.of("behind"), readCommitted(topic, 1));
            assertThrows(KafkaException.class, producer::commitTransaction);
        }
    }

    @Test
    void offsetsCommitAndAbortWithTheirTransaction() {
        String in = topic(1);
        String out = topic(1);
        TopicPartition partition = new TopicPartition(in, 0);
        produce(in, "0", "1", "2", "3");
        try (var consumer = consumer(in, "max.poll.records", 1); var producer = transactional(in)) {
            consumer.subscribe(List.of(in));
            for (int n = 0; n < 4; n++) {
                var record = take(consumer, 1).get(0);
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(out, bytes("out " + text(record.value()))));
                var next = Map.of(partition, new OffsetAndMetadata(record.offset() + 1));
                producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
                if (n == 3) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
            assertEquals(3, consumer.committed(Set.of(partition)).get(partition).offset());
        }
        produce(out, "last");
        assertEquals(List.of("out 0", "out 1", "out 2", "last"), readCommitted(out, 4));
    }

    @Test
    void administratorsSeeTransactions() {
        String topic = topic(1);
        try (var producer = transactional(topic); var admin = admin()) {
            producer.beginTransaction();
            get(send(producer, topic, "open"));
            var described = get(admin.describeTransactions(List.of(topic)).description(topic));
            assertEquals(TransactionState.ONGOING, described.state());
            assertEquals(Set.of(new TopicPartition(topic, 0)), described.topicPartitions());
            assertEquals(TransactionState.ONGOING, stateInList(topic));
            producer.commitTransaction();
            waitUntil("the transaction's end",
                    () -> stateInList(topic) == TransactionState.COMPLETE_COMMIT);
            var unknown = admin.describeTransactions(List.of("unknown")).description("unknown");
            assertRefused(TransactionalIdNotFoundException.class, unknown);
        }
    }

    private static TransactionState stateInList(String id) {
        try (var admin = admin()) {
            return get(admin.listTransactions().all()).stream()
                    .filter(listing -> listing.transactionalId().equals(id))
                    .map(TransactionListing::state)
                    .findAny()
                    .orElseThrow();
        }
    }

    @Test
    void administratorsSeeTheProducersOfAPartition() {
        String topic = topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (var producer = transactional(topic); var admin = admin()) {
            producer.beginTransaction();
            get(send(producer, topic, "a"));
            get(send(producer, topic, "b"));
            var found = get(admin.describeProducers(List.of(partition)).partitionResult(partition));
            var state = found.activeProducers().get(0);
            assertEquals(1, found.activeProducers().size());
            assertEquals(1, state.lastSequence());
            assertEquals(0, state.currentTransactionStartOffset().getAsLong());
            producer.abortTransaction();
        }
    }
}
