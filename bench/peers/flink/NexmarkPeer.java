package flink;

import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.Locale;
import java.util.StringJoiner;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.Table;
import org.apache.flink.table.api.TableDescriptor;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.api.config.ExecutionConfigOptions;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

/** Queries of Nexmark as SQL in two slots of a cluster within this process, with a checkpoint every second. See nexmark.sh. */
public final class NexmarkPeer {
    private static final int SLOTS = 2;

    private static final long CHECKPOINT_EVERY_MS = 1000;

    /** Flink may hold changes back for this time, so that it updates its state and its results more seldom. */
    private static final Duration MINI_BATCH = Duration.ofSeconds(2);

    private static final long MINI_BATCH_EVENTS = 50_000;

    public static void main(String[] arguments) throws Exception {
        var cluster =
                new MiniCluster(
                        new MiniClusterConfiguration.Builder()
                                .setNumTaskManagers(1)
                                .setNumSlotsPerTaskManager(SLOTS)
                                .withRandomPorts()
                                .build());
        // No other output comes between the answers.
        PrintStream out = System.out;
        System.setOut(System.err);
        try (cluster;
                var lines =
                        new BufferedReader(
                                new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            cluster.start();
            var peer = new NexmarkPeer(cluster, Path.of(arguments[0]));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split(" ", 3);
                Path events = Path.of(words[2]);
                out.println(
                        words[0].equals("run")
                                ? peer.run(words[1], events)
                                : peer.check(words[1], events));
                out.flush();
            }
        }
    }

    private final MiniCluster cluster;
    private final Path folder;

    private NexmarkPeer(MiniCluster cluster, Path folder) {
        this.cluster = cluster;
        this.folder = folder;
    }

    private String run(String name, Path events) throws Exception {
        var environment = environment();
        var tables = tables(environment, events);
        Table results = tables.sqlQuery(NexmarkQueries.of(name));
        var schema =
                Schema.newBuilder()
                        .fromRowDataType(results.getResolvedSchema().toSinkRowDataType())
                        .build();
        tables.createStatementSet()
                .addInsert(
                        TableDescriptor.forConnector("blackhole").schema(schema).build(), results)
                .attachAsDataStream();
        JobGraph job = environment.getStreamGraph().getJobGraph();
        // The heap of the query before this one is no part of it.
        System.gc();
        double cpuBefore = cpuSeconds();
        long before = System.nanoTime();
        cluster.executeJobBlocking(job);
        double seconds = (System.nanoTime() - before) / 1e9;
        double cpuSeconds = cpuSeconds() - cpuBefore;
        long checkpoints =
                cluster.getExecutionGraph(job.getJobID())
                        .get()
                        .getCheckpointStatsSnapshot()
                        .getCounts()
                        .getNumberOfCompletedCheckpoints();
        return String.format(
                Locale.ROOT,
                "{\"seconds\":%.3f,\"cpu_seconds\":%.3f,\"checkpoints\":%d,\"peak_bytes\":%d}",
                seconds, cpuSeconds, checkpoints, peakBytes());
    }

    private String check(String name, Path events) throws Exception {
        Left.ROWS.set(0);
        Left.HASHES.set(0);
        var environment = environment();
        var tables = tables(environment, events);
        tables.toChangelogStream(tables.sqlQuery(NexmarkQueries.of(name)))
                .map(Left::add)
                .returns(Long.class)
                .sinkTo(new DiscardingSink<>());
        cluster.executeJobBlocking(environment.getStreamGraph().getJobGraph());
        return String.format(
                "{\"rows\":%d,\"hashes\":\"%016x\"}", Left.ROWS.get(), Left.HASHES.get());
    }

    private StreamExecutionEnvironment environment() {
        var settings = new Configuration();
        // Cheaper than RocksDB at this size of the state, although each checkpoint stores all of it.
        settings.set(StateBackendOptions.STATE_BACKEND, "hashmap");
        settings.set(
                CheckpointingOptions.CHECKPOINTS_DIRECTORY,
                folder.resolve("checkpoints").toUri().toString());
        var environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        environment.setParallelism(SLOTS);
        environment.getConfig().enableObjectReuse();
        environment.enableCheckpointing(CHECKPOINT_EVERY_MS, CheckpointingMode.EXACTLY_ONCE);
        return environment;
    }

    private StreamTableEnvironment tables(StreamExecutionEnvironment environment, Path events) {
        var tables = StreamTableEnvironment.create(environment);
        tables.getConfig()
                .set(ExecutionConfigOptions.TABLE_EXEC_MINIBATCH_ENABLED, true)
                .set(ExecutionConfigOptions.TABLE_EXEC_MINIBATCH_ALLOW_LATENCY, MINI_BATCH)
                .set(ExecutionConfigOptions.TABLE_EXEC_MINIBATCH_SIZE, MINI_BATCH_EVENTS);
        tables.createTemporarySystemFunction("of_table", NexmarkQueries.OfTable.class);
        tables.createTemporarySystemFunction("letters_c", NexmarkQueries.LettersC.class);
        InternalTypeInfo<RowData> rows = InternalTypeInfo.of((RowType) EVENT.getLogicalType());
        var stream =
                environment.fromSource(
                        new EventFile(events, SLOTS),
                        WatermarkStrategy.noWatermarks(),
                        "events",
                        rows);
        var schema =
                Schema.newBuilder()
                        .fromRowDataType(EVENT)
                        .watermark("date_time", "date_time - INTERVAL '4' SECOND")
                        .build();
        tables.createTemporaryView("events", stream, schema);
        for (String view : NexmarkQueries.VIEWS) {
            tables.executeSql(view);
        }
        return tables;
    }

    private static final DataType TIME = DataTypes.TIMESTAMP(3);
    private static final DataType NUMBER = DataTypes.BIGINT();
    private static final DataType TEXT = DataTypes.STRING();

    private static final DataType EVENT =
            DataTypes.ROW(
                    DataTypes.FIELD("kind", DataTypes.INT().notNull()),
                    DataTypes.FIELD(
                            "person",
                            DataTypes.ROW(
                                    DataTypes.FIELD("id", NUMBER),
                                    DataTypes.FIELD("name", TEXT),
                                    DataTypes.FIELD("email_address", TEXT),
                                    DataTypes.FIELD("credit_card", TEXT),
                                    DataTypes.FIELD("city", TEXT),
                                    DataTypes.FIELD("state", TEXT),
                                    DataTypes.FIELD("extra", TEXT))),
                    DataTypes.FIELD(
                            "auction",
                            DataTypes.ROW(
                                    DataTypes.FIELD("id", NUMBER),
                                    DataTypes.FIELD("item_name", TEXT),
                                    DataTypes.FIELD("description", TEXT),
                                    DataTypes.FIELD("initial_bid", NUMBER),
                                    DataTypes.FIELD("reserve", NUMBER),
                                    DataTypes.FIELD("expires", TIME),
                                    DataTypes.FIELD("seller", NUMBER),
                                    DataTypes.FIELD("category", NUMBER),
                                    DataTypes.FIELD("extra", TEXT))),
                    DataTypes.FIELD(
                            "bid",
                            DataTypes.ROW(
                                    DataTypes.FIELD("auction", NUMBER),
                                    DataTypes.FIELD("bidder", NUMBER),
                                    DataTypes.FIELD("price", NUMBER),
                                    DataTypes.FIELD("channel", TEXT),
                                    DataTypes.FIELD("url", TEXT),
                                    DataTypes.FIELD("extra", TEXT))),
                    DataTypes.FIELD("date_time", TIME)).notNull();

    /** The rows that the changes of the running job leave. */
    public static final class Left {
        static final AtomicLong ROWS = new AtomicLong();
        static final AtomicLong HASHES = new AtomicLong();

        static Long add(Row row) {
            boolean isAdded =
                    row.getKind() == RowKind.INSERT || row.getKind() == RowKind.UPDATE_AFTER;
            var text = new StringJoiner("\t");
            for (int column = 0; column < row.getArity(); column++) {
                text.add(text(row.getField(column)));
            }
            long hash = hash(text.toString());
            ROWS.addAndGet(isAdded ? 1 : -1);
            HASHES.addAndGet(isAdded ? hash : -hash);
            return hash;
        }

        private static String text(Object column) {
            if (column instanceof LocalDateTime time) {
                return Long.toString(time.toInstant(ZoneOffset.UTC).toEpochMilli());
            }
            // Rounded as in Rust: of the exact value, and halves to even.
            return column instanceof Double number
                    ? new BigDecimal(number).setScale(3, RoundingMode.HALF_EVEN).toPlainString()
                    : String.valueOf(column);
        }

        /** FNV-1a. */
        private static long hash(String text) {
            long hash = 0xcbf29ce484222325L;
            for (byte letter : text.getBytes(StandardCharsets.UTF_8)) {
                hash = (hash ^ letter & 0xff) * 0x100000001b3L;
            }
            return hash;
        }
    }

    /** Of all threads of this process. */
    private static double cpuSeconds() {
        var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    /** The most memory that this process ever had resident. */
    private static long peakBytes() throws IOException {
        try (var lines = Files.lines(Path.of("/proc/self/status"))) {
            String line = lines.filter(status -> status.startsWith("VmHWM:")).findFirst().get();
            return Long.parseLong(line.replaceAll("\\D", "")) * 1024;
        }
    }
}
