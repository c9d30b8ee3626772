package shares;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.BooleanSupplier;
import java.util.function.IntFunction;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The server under test, and helpers for steps that many tests of share groups do. */
public final class Shares {
    public static final Duration SHORT = Duration.ofMillis(100);
    private static final Duration SECONDS_MAX = Duration.ofSeconds(40);

    private Shares() {}

    private static Map<String, Object> settings(Object... pairs) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", System.getProperty("millstream.address"));
        for (int n = 0; n < pairs.length; n += 2) {
            settings.put((String) pairs[n], pairs[n + 1]);
        }
        return settings;
    }

    public static Admin admin() {
        return Admin.create(settings());
    }

    /** A member of the group that is called like its topic. */
    public static KafkaShareConsumer<String, String> member(String topic, String mode, Object... pairs) {
        var settings = settings(pairs);
        settings.put("group.id", topic);
        settings.put("share.acknowledgement.mode", mode);
        var strings = new StringDeserializer();
        var member = new KafkaShareConsumer<>(settings, strings, strings);
        member.subscribe(List.of(topic));
        return member;
    }

    /** A producer with a transactional id. */
    public static KafkaProducer<String, String> transactional(String id) {
        var strings = new StringSerializer();
        return new KafkaProducer<>(settings("transactional.id", id, "linger.ms", 0), strings, strings);
    }

    /** A new topic with one partition, and a share group of the same name that begins at its first record. */
    public static String topic() {
        String topic = "shares-" + UUID.randomUUID();
        try (Admin admin = admin()) {
            get(admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all());
            try (var member = member(topic, "implicit")) {
                waitUntil("the group begins", () -> {
                    member.poll(SHORT);
                    return get(admin.listGroups().all()).stream().anyMatch(group -> group.groupId().equals(topic));
                });
            }
            get(admin.alterShareGroupOffsets(topic, Map.of(new TopicPartition(topic, 0), 0L)).all());
        }
        return topic;
    }

    /** Gives the group of this name another setting. */
    public static void set(Admin admin, String group, String setting, String value) {
        var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        var change = new AlterConfigOp(new ConfigEntry(setting, value), AlterConfigOp.OpType.SET);
        get(admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all());
    }

    /** Sends the numbers from 0 on. */
    public static void produce(String topic, int count) {
        produce(topic, count, n -> null);
    }

    /** Sends the numbers from 0 on, each with a key of its own. */
    public static void produce(String topic, int count, IntFunction<String> key) {
        var strings = new StringSerializer();
        try (var producer = new KafkaProducer<>(settings("linger.ms", 5), strings, strings)) {
            for (int n = 0; n < count; n++) {
                producer.send(new ProducerRecord<>(topic, 0, key.apply(n), "" + n));
            }
        }
    }

    /** Where the group is: all records before are finished. */
    public static long startOffset(Admin admin, String topic) {
        var offset = offset(admin, topic);
        return offset == null ? -1 : offset.startOffset();
    }

    /** Where the group is, or null. */
    public static SharePartitionOffsetInfo offset(Admin admin, String topic) {
        var partition = new TopicPartition(topic, 0);
        var asked = Map.of(topic, new ListShareGroupOffsetsSpec().topicPartitions(List.of(partition)));
        return get(admin.listShareGroupOffsets(asked).partitionsToOffsetInfo(topic)).get(partition);
    }

    public static <T> T get(Future<T> future) {
        try {
            return future.get();
        } catch (ExecutionException | InterruptedException error) {
            throw new AssertionError(error);
        }
    }

    /** Repeats the question until the answer is yes; each question waits by itself. */
    public static void waitUntil(String what, BooleanSupplier isSo) {
        long deadline = System.nanoTime() + SECONDS_MAX.toNanos();
        while (!isSo.getAsBoolean()) {
            assertTrue(System.nanoTime() < deadline, "not within " + SECONDS_MAX + ": " + what);
        }
    }
}
