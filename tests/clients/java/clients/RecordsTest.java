package clients;

import static clients.Cluster.assertRefused;
import static clients.Cluster.bytes;
import static clients.Cluster.consumer;
import static clients.Cluster.get;
import static clients.Cluster.partitions;
import static clients.Cluster.produce;
import static clients.Cluster.producer;
import static clients.Cluster.read;
import static clients.Cluster.send;
import static clients.Cluster.take;
import static clients.Cluster.text;
import static clients.Cluster.topic;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Records come back as they were sent, at the offsets that the producer got. */
class RecordsTest {
    @ParameterizedTest
    @ValueSource(strings = {"none", "gzip", "snappy", "lz4", "zstd"})
    void everyCompressionComesBackInOrder(String compression) {
        String topic = topic(1);
        List<String> values = IntStream.range(0, 2000).mapToObj(n -> "value " + n).toList();
        for (String acks : List.of("1", "all")) {
            try (var producer = producer("compression.type", compression, "acks", acks,
                    "enable.idempotence", acks.equals("all"), "batch.size", 2000, "linger.ms", 1)) {
                List<Future<RecordMetadata>> sent =
                        values.stream().map(value -> send(producer, topic, value)).toList();
                long first = get(sent.get(0)).offset();
                for (int n = 0; n < values.size(); n++) {
                    assertEquals(first + n, get(sent.get(n)).offset());
                }
            }
        }
        List<String> twice = new ArrayList<>(values);
        twice.addAll(values);
        assertEquals(twice, read(topic, twice.size()));
    }

    @Test
    void headersTimesAndNullsAreKept() {
        String topic = topic(1);
        try (var producer = producer(); var consumer = consumer(null)) {
            var full = new ProducerRecord<>(topic, 0, 1_234_567L, bytes("key"), bytes("value"));
            full.headers().add("a", bytes("1")).add("a", bytes("2")).add("none", null);
            get(producer.send(full));
            get(producer.send(new ProducerRecord<>(topic, 0, null, (byte[]) null)));
            get(producer.send(new ProducerRecord<>(topic, 0, new byte[0], new byte[0])));

            consumer.assign(partitions(topic, 1));
            var records = take(consumer, 3);
            var first = records.get(0);
            assertEquals("key", text(first.key()));
            assertEquals(1_234_567L, first.timestamp());
            var headers = first.headers().toArray();
            assertEquals(List.of("a", "a", "none"), List.of(
                    headers[0].key(), headers[1].key(), headers[2].key()));
            assertEquals("2", text(first.headers().lastHeader("a").value()));
            assertNull(headers[2].value());
            assertNull(records.get(1).key());
            assertNull(records.get(1).value());
            assertEquals(0, records.get(2).key().length);
            assertEquals(0, records.get(2).value().length);
        }
    }

    @Test
    void largeRecordsPassAndTooLargeOnesAreRefused() {
        String topic = topic(1);
        byte[] large = new byte[8_000_000];
        large[large.length - 1] = 1;
        try (var producer = producer("max.request.size", 16 << 20); var consumer = consumer(null)) {
            get(producer.send(new ProducerRecord<>(topic, large)));
            var tooLarge = new ProducerRecord<byte[], byte[]>(topic, new byte[9_000_000]);
            assertRefused(RecordTooLargeException.class, producer.send(tooLarge));
            get(producer.send(new ProducerRecord<>(topic, bytes("behind"))));
            consumer.assign(partitions(topic, 1));
            var records = take(consumer, 2);
            assertArrayEquals(large, records.get(0).value());
            assertEquals("behind", text(records.get(1).value()));
        }
    }

    @Test
    void positionsAreFoundByTimeAndAtBothEnds() {
        String topic = topic(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (var producer = producer("batch.size", 0); var consumer = consumer(null)) {
            for (long time = 1000; time <= 5000; time += 1000) {
                get(producer.send(new ProducerRecord<>(topic, 0, time, null, bytes("at " + time))));
            }
            assertEquals(Map.of(partition, 0L), consumer.beginningOffsets(List.of(partition)));
            assertEquals(Map.of(partition, 5L), consumer.endOffsets(List.of(partition)));
            var found = consumer.offsetsForTimes(Map.of(partition, 2001L)).get(partition);
            assertEquals(2, found.offset());
            assertEquals(3000, found.timestamp());
            assertNull(consumer.offsetsForTimes(Map.of(partition, 9000L)).get(partition));
            consumer.assign(List.of(partition));
            consumer.seek(partition, found.offset());
            assertEquals("at 3000", text(take(consumer, 3).get(0).value()));
            consumer.seekToEnd(List.of(partition));
            assertEquals(5, consumer.position(partition));
        }
    }

    @Test
    void aPausedPartitionResumesAtItsPosition() {
        String topic = topic(2);
        produce(topic, "a", "b", "c");
        try (var consumer = consumer(null, "max.poll.records", 1)) {
            var partitions = partitions(topic, 2);
            consumer.assign(partitions);
            assertEquals("a", text(take(consumer, 1).get(0).value()));
            consumer.pause(partitions.subList(0, 1));
            assertEquals(0, consumer.poll(Duration.ofMillis(300)).count());
            consumer.resume(partitions);
            var rest = take(consumer, 2).stream().map(record -> text(record.value())).toList();
            assertEquals(List.of("b", "c"), rest);
            assertFalse(consumer.currentLag(partitions.get(0)).isEmpty());
        }
    }
}
