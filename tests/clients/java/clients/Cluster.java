package clients;

import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The server under test, and helpers for steps that many tests do. */
final class Cluster {
    static final String ADDRESS = System.getProperty("millstream.address");
    static final Duration SECONDS_MAX = Duration.ofSeconds(30);

    private Cluster() {}

    static Map<String, Object> settings(Object... pairs) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", ADDRESS));
        for (int n = 0; n < pairs.length; n += 2) {
            settings.put((String) pairs[n], pairs[n + 1]);
        }
        return settings;
    }

    static Admin admin() {
        return Admin.create(settings());
    }

    static KafkaProducer<byte[], byte[]> producer(Object... pairs) {
        var bytes = new ByteArraySerializer();
        return new KafkaProducer<>(settings(pairs), bytes, bytes);
    }

    /** A producer that may begin a transaction. */
    static KafkaProducer<byte[], byte[]> transactional(String id, Object... pairs) {
        var settings = settings(pairs);
        settings.put("transactional.id", id);
        var bytes = new ByteArraySerializer();
        var producer = new KafkaProducer<>(settings, bytes, bytes);
        producer.initTransactions();
        return producer;
    }

    /** A consumer that begins at the earliest record and commits nothing by itself. */
    static KafkaConsumer<byte[], byte[]> consumer(String group, Object... pairs) {
        var settings = settings(pairs);
        settings.put("group.id", group);
        settings.putIfAbsent("auto.offset.reset", "earliest");
        settings.putIfAbsent("enable.auto.commit", false);
        var bytes = new ByteArrayDeserializer();
        return new KafkaConsumer<>(settings, bytes, bytes);
    }

    /** A new topic, with settings in pairs. */
    static String topic(int partitions, String... pairs) {
        String name = "java-" + UUID.randomUUID();
        Map<String, String> settings = new HashMap<>();
        for (int n = 0; n < pairs.length; n += 2) {
            settings.put(pairs[n], pairs[n + 1]);
        }
        try (Admin admin = admin()) {
            var topic = new NewTopic(name, partitions, (short) 1).configs(settings);
            get(admin.createTopics(List.of(topic)).all());
        }
        return name;
    }

    static List<TopicPartition> partitions(String topic, int count) {
        List<TopicPartition> partitions = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            partitions.add(new TopicPartition(topic, n));
        }
        return partitions;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    static Future<RecordMetadata> send(KafkaProducer<byte[], byte[]> to, String topic, String value) {
        return to.send(new ProducerRecord<>(topic, 0, null, bytes(value)));
    }

    /** Sends values to partition 0 with a producer of its own. */
    static void produce(String topic, String... values) {
        try (var producer = producer()) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (String value : values) {
                sent.add(send(producer, topic, value));
            }
            sent.forEach(Cluster::get);
        }
    }

    static List<ConsumerRecord<byte[], byte[]>> take(KafkaConsumer<byte[], byte[]> from, int count) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        waitUntil("records", () -> {
            from.poll(Duration.ofMillis(100)).forEach(records::add);
            return records.size() >= count;
        });
        return records;
    }

    /** The first values of partition 0, without a group. */
    static List<String> read(String topic, int count, Object... pairs) {
        try (var consumer = consumer(null, pairs)) {
            consumer.assign(partitions(topic, 1));
            consumer.seekToBeginning(consumer.assignment());
            return take(consumer, count).stream().map(record -> text(record.value())).toList();
        }
    }

    static List<String> readCommitted(String topic, int count) {
        return read(topic, count, "isolation.level", "read_committed");
    }

    static <T> T get(Future<T> future) {
        try {
            return future.get();
        } catch (ExecutionException | InterruptedException error) {
            throw new AssertionError(error);
        }
    }

    /** Checks that the request is refused with an error of this class. */
    static void assertRefused(Class<? extends Exception> error, Future<?> future) {
        var thrown = assertThrows(ExecutionException.class, future::get);
        assertInstanceOf(error, thrown.getCause());
    }

    /** Repeats the question until the answer is yes; each question waits by itself. */
    static void waitUntil(String what, BooleanSupplier isSo) {
        long deadline = System.nanoTime() + SECONDS_MAX.toNanos();
        while (!isSo.getAsBoolean()) {
            assertTrue(System.nanoTime() < deadline, "not within " + SECONDS_MAX + ": " + what);
        }
    }
}
