package secure;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.SaslAuthenticationException;
import org.apache.kafka.common.errors.TopicAuthorizationException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Logs in over TLS to a server where alice may read and write one topic. */
class LoginTest {
    private static final String TOPIC = System.getProperty("millstream.topic");

    private static Map<String, Object> settings(String mechanism, String password) {
        String module = mechanism.equals("PLAIN") ? "plain.Plain" : "scram.Scram";
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", System.getProperty("millstream.address"));
        settings.put("security.protocol", "SASL_SSL");
        settings.put("ssl.truststore.type", "PEM");
        settings.put("ssl.truststore.location", System.getProperty("millstream.authority"));
        settings.put("sasl.mechanism", mechanism);
        settings.put("sasl.jaas.config", "org.apache.kafka.common.security." + module
                + "LoginModule required username=\"alice\" password=\"" + password + "\";");
        return settings;
    }

    @ParameterizedTest
    @ValueSource(strings = {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"})
    void recordsAreWrittenAndRead(String mechanism) throws Exception {
        var settings = settings(mechanism, "alice secret");
        var text = new StringSerializer();
        try (var producer = new KafkaProducer<>(settings, text, text)) {
            producer.send(new ProducerRecord<>(TOPIC, mechanism)).get();
        }
        settings.put("group.id", TOPIC);
        var reading = new StringDeserializer();
        try (var consumer = new KafkaConsumer<>(settings, reading, reading)) {
            consumer.assign(consumer.partitionsFor(TOPIC).stream()
                    .map(found -> new TopicPartition(TOPIC, found.partition()))
                    .toList());
            // Others of these tests have committed to the group meanwhile.
            consumer.seekToBeginning(consumer.assignment());
            ConsumerRecords<String, String> records = ConsumerRecords.empty();
            for (int n = 0; n < 100 && records.isEmpty(); n++) {
                records = consumer.poll(Duration.ofMillis(100));
            }
            assertFalse(records.isEmpty());
            consumer.commitSync();
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"PLAIN", "SCRAM-SHA-512"})
    void aWrongPasswordIsRefused(String mechanism) {
        try (Admin admin = Admin.create(settings(mechanism, "wrong"))) {
            var names = admin.listTopics().names();
            var thrown = assertThrows(ExecutionException.class, names::get);
            assertInstanceOf(SaslAuthenticationException.class, thrown.getCause());
        }
    }

    @Test
    void aRequestWithoutARuleIsRefused() {
        try (Admin admin = Admin.create(settings("SCRAM-SHA-512", "alice secret"))) {
            var deleted = admin.deleteTopics(List.of(TOPIC)).all();
            var thrown = assertThrows(ExecutionException.class, deleted::get);
            assertInstanceOf(TopicAuthorizationException.class, thrown.getCause());
        }
    }
}
