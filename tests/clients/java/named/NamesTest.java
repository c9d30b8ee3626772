package named;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;

/** Verifies the name in the server's certificate on each connection, as Java's client does by itself. */
class NamesTest {
    @Test
    void recordsAreWrittenAndReadByTheNameInTheCertificate() throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", System.getProperty("millstream.address"));
        settings.put("security.protocol", "SSL");
        settings.put("ssl.truststore.type", "PEM");
        settings.put("ssl.truststore.location", System.getProperty("millstream.authority"));
        String topic = "names-" + UUID.randomUUID();
        var text = new StringSerializer();
        try (var producer = new KafkaProducer<>(settings, text, text)) {
            producer.send(new ProducerRecord<>(topic, "value")).get();
        }
        settings.put("group.id", topic);
        settings.put("auto.offset.reset", "earliest");
        var reading = new StringDeserializer();
        try (var consumer = new KafkaConsumer<>(settings, reading, reading)) {
            consumer.subscribe(List.of(topic));
            ConsumerRecords<String, String> records = ConsumerRecords.empty();
            for (int n = 0; n < 300 && records.isEmpty(); n++) {
                records = consumer.poll(Duration.ofMillis(100));
            }
            assertEquals("value", records.iterator().next().value());
        }
    }
}
