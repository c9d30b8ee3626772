package streams;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListStreamsGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.StreamsGroupDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.HostInfo;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** An application of Kafka Streams with state, both in groups of its own (KIP-1071) and in classic groups. */
class StreamsTest {
    private static final String ADDRESS = System.getProperty("millstream.address");
    private static final int RECORDS = 1000;
    private static final int KEYS = 17;
    private static final Duration LONG = Duration.ofSeconds(70);
    private static final Duration CLOSE = Duration.ofSeconds(20);

    private final String application = "streams-" + UUID.randomUUID();
    private final String in = application + "-in";
    private final String out = application + "-out";
    private final List<KafkaStreams> instances = new ArrayList<>();
    private final List<Instance> processes = new ArrayList<>();
    private final Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", ADDRESS));

    /** An instance in a process of its own. */
    private class Instance {
        private final Process process;
        private volatile int tasks;

        Instance(String protocol) throws Exception {
            var java = ProcessHandle.current().info().command().orElseThrow();
            process = new ProcessBuilder(java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
                    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", System.getProperty("java.class.path"),
                    "streams.Application", ADDRESS, application, protocol, folder())
                    .redirectError(ProcessBuilder.Redirect.INHERIT).start();
            var lines = new BufferedReader(new InputStreamReader(process.getInputStream()));
            var reader = new Thread(() -> lines.lines().forEach(line -> tasks = Integer.parseInt(line)));
            reader.setDaemon(true);
            reader.start();
            processes.add(this);
        }
    }

    @BeforeEach
    void prepare() throws Exception {
        var group = new ConfigResource(ConfigResource.Type.GROUP, application);
        var quick = Map.of("streams.session.timeout.ms", "6000", "streams.heartbeat.interval.ms", "1000");
        var settings = quick.entrySet().stream().map(it ->
                new AlterConfigOp(new ConfigEntry(it.getKey(), it.getValue()), AlterConfigOp.OpType.SET));
        admin.incrementalAlterConfigs(Map.of(group, settings.toList())).all().get();
        admin.createTopics(List.of(new NewTopic(in, 2, (short) 1), new NewTopic(out, 2, (short) 1))).all().get();
    }

    @AfterEach
    void end() {
        instances.forEach(instance -> instance.close(CLOSE));
        processes.forEach(instance -> instance.process.destroyForcibly());
        admin.close();
    }

    private static String folder() throws Exception {
        return Files.createTempDirectory("streams").toString();
    }

    private KafkaStreams start(String protocol) throws Exception {
        return start(protocol, Application.topology(in, out), Map.of());
    }

    private KafkaStreams start(String protocol, Topology topology, Map<String, String> more) throws Exception {
        var settings = Application.settings(ADDRESS, application, protocol, folder());
        settings.putAll(more);
        var streams = new KafkaStreams(topology, settings);
        streams.setUncaughtExceptionHandler(error -> StreamThreadExceptionResponse.SHUTDOWN_APPLICATION);
        instances.add(streams);
        streams.start();
        return streams;
    }

    private void produce() throws Exception {
        var records = IntStream.range(0, RECORDS).mapToObj(n -> new ProducerRecord<>(in, "" + n % KEYS, "" + n));
        produce(records.toList());
    }

    private static void produce(List<ProducerRecord<String, String>> records) {
        Map<String, Object> settings = Map.of("bootstrap.servers", ADDRESS);
        var text = new StringSerializer();
        try (var producer = new KafkaProducer<>(settings, text, text)) {
            records.forEach(producer::send);
            producer.flush();
        }
    }

    /** Checks that every record was counted once: the counts of each key are 1, 2, 3 and so on. */
    private void checkCounts(int records) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", ADDRESS);
        settings.put("group.id", UUID.randomUUID().toString());
        settings.put("auto.offset.reset", "earliest");
        settings.put("isolation.level", "read_committed");
        Map<String, List<Long>> counts = new TreeMap<>();
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new LongDeserializer())) {
            consumer.subscribe(List.of(out));
            long end = System.nanoTime() + LONG.toNanos();
            // A little longer than until all have come: nothing may come twice.
            int read = 0;
            int quiet = 0;
            while (System.nanoTime() < end && (read < records || quiet < 5)) {
                var fetched = consumer.poll(Duration.ofMillis(100));
                for (ConsumerRecord<String, Long> record : fetched) {
                    counts.computeIfAbsent(record.key(), key -> new ArrayList<>()).add(record.value());
                }
                read += fetched.count();
                quiet = fetched.isEmpty() ? quiet + 1 : 0;
            }
        }
        Map<String, List<Long>> expected = new TreeMap<>();
        for (int key = 0; key < KEYS; key++) {
            int rounds = records / RECORDS;
            int each = RECORDS / KEYS + (key < RECORDS % KEYS ? 1 : 0);
            expected.put("" + key, LongStream.rangeClosed(1, (long) rounds * each).boxed().toList());
        }
        assertEquals(expected, counts);
    }

    private static void await(String what, BooleanSupplier isSo) throws Exception {
        long end = System.nanoTime() + LONG.toNanos();
        while (!isSo.getAsBoolean()) {
            assertTrue(System.nanoTime() < end, what);
            Thread.sleep(50);
        }
    }

    private StreamsGroupDescription describe() throws Exception {
        return admin.describeStreamsGroups(List.of(application)).describedGroups().get(application).get();
    }

    /** The state; null while there is no group. */
    private GroupState stateOfGroup() {
        try {
            return describe().groupState();
        } catch (ExecutionException error) {
            assertEquals(GroupIdNotFoundException.class, error.getCause().getClass());
            return null;
        } catch (Exception error) {
            throw new RuntimeException(error);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"streams", "classic"})
    void tasksMoveBetweenInstancesAndEveryRecordIsCountedOnce(String protocol) throws Exception {
        produce();
        var first = start(protocol);
        await("one instance has all tasks", () -> Application.tasks(first) == Application.TASKS);
        var second = start(protocol);
        await("both have tasks", () -> Application.tasks(first) > 0 && Application.tasks(second) > 0
                && Application.tasks(first) + Application.tasks(second) == Application.TASKS);
        produce();
        first.close(CLOSE);
        await("the other takes over", () -> Application.tasks(second) == Application.TASKS);
        produce();
        checkCounts(3 * RECORDS);
    }

    @ParameterizedTest
    @ValueSource(strings = {"streams", "classic"})
    void tasksOfAnInstanceThatIsKilledMoveAndEveryRecordIsCountedOnce(String protocol) throws Exception {
        var first = new Instance(protocol);
        var second = new Instance(protocol);
        await("both have tasks", () -> first.tasks > 0 && second.tasks > 0
                && first.tasks + second.tasks == Application.TASKS);
        produce();
        first.process.destroyForcibly();
        produce();
        await("the other takes over", () -> second.tasks == Application.TASKS);
        checkCounts(2 * RECORDS);
    }

    @Test
    void groupsAreListedDescribedAndDeleted() throws Exception {
        produce();
        var only = start("streams");
        await("all tasks run", () -> Application.tasks(only) == Application.TASKS);
        checkCounts(RECORDS);
        var group = describe();
        assertEquals(GroupState.STABLE, group.groupState());
        assertEquals(Set.of("0", "1"), group.subtopologies().stream().map(part -> part.subtopologyId())
                .collect(Collectors.toSet()));
        for (var part : group.subtopologies()) {
            part.repartitionSourceTopics().forEach((name, topic) -> assertEquals(3, topic.partitions()));
            part.stateChangelogTopics().forEach((name, topic) -> assertEquals(3, topic.partitions()));
        }
        assertEquals(1, group.members().size());
        var tasks = group.members().iterator().next().assignment().activeTasks();
        assertEquals(Map.of("0", List.of(0, 1), "1", List.of(0, 1, 2)), tasks.stream()
                .collect(Collectors.toMap(task -> task.subtopologyId(), task -> task.partitions())));
        var listed = admin.listGroups(ListGroupsOptions.forStreamsGroups()).all().get();
        assertTrue(listed.stream().anyMatch(it -> it.groupId().equals(application)
                && it.type().equals(Optional.of(GroupType.STREAMS))));
        var inUse = assertThrows(ExecutionException.class,
                () -> admin.deleteStreamsGroups(List.of(application)).all().get());
        assertEquals(GroupNotEmptyException.class, inUse.getCause().getClass());
        only.close(CLOSE);
        await("the group is empty", () -> stateOfGroup() == GroupState.EMPTY);

        var spec = Map.of(application, new ListStreamsGroupOffsetsSpec());
        var offsets = admin.listStreamsGroupOffsets(spec).partitionsToOffsetAndMetadata(application).get();
        var sum = List.of(0, 1).stream().mapToLong(p -> offsets.get(new TopicPartition(in, p)).offset()).sum();
        assertEquals(RECORDS, sum);
        var partition = new TopicPartition(in, 0);
        admin.alterStreamsGroupOffsets(application, Map.of(partition, new OffsetAndMetadata(7))).all().get();
        var altered = admin.listStreamsGroupOffsets(spec).partitionsToOffsetAndMetadata(application).get();
        assertEquals(7, altered.get(partition).offset());
        admin.deleteStreamsGroupOffsets(application, Set.of(partition)).all().get();
        var deleted = admin.listStreamsGroupOffsets(spec).partitionsToOffsetAndMetadata(application).get();
        assertEquals(null, deleted.get(partition));
        admin.deleteStreamsGroups(List.of(application)).all().get();
        var gone = assertThrows(ExecutionException.class, this::describe);
        assertEquals(GroupIdNotFoundException.class, gone.getCause().getClass());
    }

    /** Windows, sessions, versions, and joins of streams, of tables and by foreign keys. */
    private Topology storesOfAllKinds(String other) {
        var strings = Serdes.String();
        var hour = Duration.ofHours(1);
        var builder = new StreamsBuilder();
        var stream = builder.stream(in, Consumed.with(strings, strings));
        var table = builder.table(other, Consumed.with(strings, strings),
                Materialized.as(Stores.persistentVersionedKeyValueStore("versions", hour)));
        var grouped = stream.groupByKey(Grouped.with(strings, strings));
        grouped.windowedBy(TimeWindows.ofSizeWithNoGrace(hour))
                .count(Materialized.as("windows"))
                .toStream((window, count) -> window.key())
                .to(out, Produced.with(strings, Serdes.Long()));
        grouped.windowedBy(SessionWindows.ofInactivityGapWithNoGrace(hour)).count(Materialized.as("sessions"));
        stream.join(table, (left, right) -> left + right, Joined.with(strings, strings, strings));
        stream.join(stream.mapValues(value -> value + "!"), (left, right) -> left + right,
                JoinWindows.ofTimeDifferenceWithNoGrace(hour), StreamJoined.with(strings, strings, strings));
        var latest = stream.toTable(Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("latest")
                .withKeySerde(strings).withValueSerde(strings));
        latest.join(table, value -> value, (left, right) -> left + right, Materialized.with(strings, strings));
        return builder.build();
    }

    @ParameterizedTest
    @ValueSource(strings = {"streams", "classic"})
    void storesOfAllKindsAreRestoredFromTheirChangelogs(String protocol) throws Exception {
        var other = application + "-other";
        admin.createTopics(List.of(new NewTopic(other, 2, (short) 1))).all().get();
        for (int round = 1; round <= 2; round++) {
            produce();
            // In an empty folder.
            var instance = start(protocol, storesOfAllKinds(other), Map.of());
            checkCounts(round * RECORDS);
            instance.close(CLOSE);
        }
        var made = admin.listTopics().names().get().stream().filter(name -> name.startsWith(application))
                .filter(name -> name.endsWith("-changelog") || name.endsWith("-topic")).toList();
        assertTrue(made.size() >= 8, made::toString);
        assertEquals("compact", policy("latest"));
        assertEquals("compact,delete", policy("windows"));
    }

    /** The policy of a store's changelog. */
    private String policy(String store) throws Exception {
        var topic = new ConfigResource(ConfigResource.Type.TOPIC, application + "-" + store + "-changelog");
        return admin.describeConfigs(List.of(topic)).all().get().get(topic).get("cleanup.policy").value();
    }

    @Test
    void anApplicationThatStartsBeforeItsTopicsWaitsForThem() throws Exception {
        admin.deleteTopics(List.of(in)).all().get();
        var only = start("streams");
        await("the group is known", () -> stateOfGroup() == GroupState.NOT_READY);
        admin.createTopics(List.of(new NewTopic(in, 2, (short) 1))).all().get();
        await("all tasks run", () -> Application.tasks(only) == Application.TASKS);
        produce();
        checkCounts(RECORDS);
    }

    /** Kafka's client refuses regular expressions with the other protocol. */
    @Test
    void anApplicationFindsItsTopicsByARegularExpression() throws Exception {
        var strings = Serdes.String();
        var builder = new StreamsBuilder();
        builder.stream(Pattern.compile(application + "-i."), Consumed.with(strings, strings))
                .groupByKey(Grouped.with(strings, strings))
                .count(Materialized.as(Application.STORE))
                .toStream()
                .to(out, Produced.with(strings, Serdes.Long()));
        start("classic", builder.build(), Map.of());
        produce();
        checkCounts(RECORDS);
    }

    @Test
    void instancesFindTheStoreOfAKey() throws Exception {
        var first = start("streams", Application.topology(in, out), Map.of("application.server", "first:1"));
        var second = start("streams", Application.topology(in, out), Map.of("application.server", "second:2"));
        await("both have tasks", () -> Application.tasks(first) > 0 && Application.tasks(second) > 0
                && Application.tasks(first) + Application.tasks(second) == Application.TASKS);
        produce();
        checkCounts(RECORDS);
        for (int n = 0; n < KEYS; n++) {
            var key = "" + n;
            await("both name the host of the key", () -> {
                var hosts = Stream.of(first, second).map(it ->
                        it.queryMetadataForKey(Application.STORE, key, new StringSerializer()).activeHost());
                return hosts.distinct().count() == 1;
            });
            var host = first.queryMetadataForKey(Application.STORE, key, new StringSerializer()).activeHost();
            var there = host.equals(new HostInfo("first", 1)) ? first : second;
            ReadOnlyKeyValueStore<String, Long> store = there.store(StoreQueryParameters
                    .fromNameAndType(Application.STORE, QueryableStoreTypes.<String, Long>keyValueStore()));
            assertTrue(store.get(key) != null, key + " is at " + host);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"streams", "classic"})
    void oneInstanceShutsDownAllInstancesOfTheApplication(String protocol) throws Exception {
        var first = start(protocol);
        var second = start(protocol);
        await("both have tasks", () -> Application.tasks(first) > 0 && Application.tasks(second) > 0);
        produce(List.of(new ProducerRecord<>(in, "key", Application.POISON)));
        await("both end", () -> Stream.of(first, second).allMatch(it -> it.state() == KafkaStreams.State.ERROR));
    }
}
