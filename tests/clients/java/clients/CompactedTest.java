package clients;

import static clients.Cluster.admin;
import static clients.Cluster.assertRefused;
import static clients.Cluster.bytes;
import static clients.Cluster.consumer;
import static clients.Cluster.get;
import static clients.Cluster.partitions;
import static clients.Cluster.producer;
import static clients.Cluster.readCommitted;
import static clients.Cluster.take;
import static clients.Cluster.text;
import static clients.Cluster.topic;
import static clients.Cluster.transactional;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Compacted topics: their records have keys, and their settings are kept as given. */
class CompactedTest {
    /** The key of each record of a batch. */
    private static final String[] KEYS = {"a", null, "b", "c", null};

    private static ProducerRecord<byte[], byte[]> record(String topic, String key, String value) {
        return new ProducerRecord<>(topic, 0, key == null ? null : bytes(key), value == null ? null : bytes(value));
    }

    private static List<Future<RecordMetadata>> sendBatch(KafkaProducer<byte[], byte[]> producer, String topic) {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (String key : KEYS) {
            sent.add(producer.send(record(topic, key, "value")));
        }
        return sent;
    }

    /** The records without a key are named, and the others fail with them. */
    private static void checkRefusals(List<Future<RecordMetadata>> sent, String topic) {
        for (int n = 0; n < KEYS.length; n++) {
            Future<RecordMetadata> future = sent.get(n);
            Throwable cause = assertThrows(ExecutionException.class, future::get).getCause();
            assertEquals(KEYS[n] == null ? InvalidRecordException.class : KafkaException.class, cause.getClass());
            if (KEYS[n] == null) {
                assertTrue(cause.getMessage().contains(topic), cause::getMessage);
            }
        }
    }

    @ParameterizedTest
    @CsvSource({"none,true", "none,false", "gzip,true", "snappy,false", "lz4,true", "zstd,false"})
    void recordsWithoutAKeyAreRefusedByTheirNumbers(String compression, boolean isIdempotent) {
        String topic = topic(1, "cleanup.policy", "compact");
        try (var producer = producer("compression.type", compression, "linger.ms", 300,
                "enable.idempotence", isIdempotent)) {
            checkRefusals(sendBatch(producer, topic), topic);
            assertEquals(0, get(producer.send(record(topic, "a", "value"))).offset());
            // An empty key is a key.
            assertEquals(1, get(producer.send(record(topic, "", "value"))).offset());
        }
    }

    @Test
    void aRecordWithoutAKeyEndsItsTransactionOnly() {
        String topic = topic(1, "cleanup.policy", "compact");
        try (var producer = transactional(topic, "linger.ms", 300)) {
            producer.beginTransaction();
            get(producer.send(record(topic, "a", "aborted")));
            checkRefusals(sendBatch(producer, topic), topic);
            assertThrows(KafkaException.class, producer::commitTransaction);
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(record(topic, "a", "committed"));
            producer.commitTransaction();
        }
        assertEquals(List.of("committed"), readCommitted(topic, 1));
    }

    @Test
    void tombstonesAreRead() {
        String topic = topic(1, "cleanup.policy", "compact");
        try (var producer = producer(); var consumer = consumer(null)) {
            get(producer.send(record(topic, "a", "1")));
            get(producer.send(record(topic, "b", "2")));
            get(producer.send(record(topic, "a", null)));
            consumer.assign(partitions(topic, 1));
            var read = take(consumer, 3);
            assertEquals("a", text(read.get(2).key()));
            assertEquals(2, read.get(2).offset());
            assertNull(read.get(2).value());
        }
    }

    @Test
    void settingsOfCompactionAreShownAsGiven() {
        String topic = topic(1, "cleanup.policy", "compact,delete", "min.cleanable.dirty.ratio", "0.1",
                "min.compaction.lag.ms", "1000", "max.compaction.lag.ms", "60000", "delete.retention.ms", "5000");
        try (Admin admin = admin()) {
            assertEquals("compact,delete 0.1 1000 60000 5000", settings(admin, topic));
            alter(admin, topic, OpType.SUBTRACT, "cleanup.policy", "delete");
            alter(admin, topic, OpType.SET, "min.compaction.lag.ms", "0");
            alter(admin, topic, OpType.DELETE, "delete.retention.ms", null);
            assertEquals("compact 0.1 0 60000 86400000", settings(admin, topic));
            alter(admin, topic, OpType.APPEND, "cleanup.policy", "delete");
            alter(admin, topic, OpType.SUBTRACT, "cleanup.policy", "compact");
            alter(admin, topic, OpType.DELETE, "min.cleanable.dirty.ratio", null);
            assertEquals("delete 0.5 0 60000 86400000", settings(admin, topic));
            for (String wrong : List.of("min.cleanable.dirty.ratio=2", "max.compaction.lag.ms=0",
                    "min.compaction.lag.ms=70000", "cleanup.policy=compress", "delete.retention.ms=-1")) {
                String[] pair = wrong.split("=");
                var refused = change(admin, topic, OpType.SET, pair[0], pair[1]);
                assertRefused(InvalidConfigurationException.class, refused);
            }
            assertEquals("delete 0.5 0 60000 86400000", settings(admin, topic));
        }
    }

    private static String settings(Admin admin, String topic) {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        var config = get(admin.describeConfigs(List.of(resource)).all()).get(resource);
        var names = List.of("cleanup.policy", "min.cleanable.dirty.ratio", "min.compaction.lag.ms",
                "max.compaction.lag.ms", "delete.retention.ms");
        return String.join(" ", names.stream().map(name -> config.get(name).value()).toList());
    }

    private static void alter(Admin admin, String topic, OpType operation, String name, String value) {
        get(change(admin, topic, operation, name, value));
    }

    private static Future<Void> change(Admin admin, String topic, OpType operation, String name, String value) {
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        var change = new AlterConfigOp(new ConfigEntry(name, value), operation);
        return admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all();
    }
}
