package flink;

import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Locale;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.JobID;
import org.apache.flink.api.common.JobStatus;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.CheckpointingOptions;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.ExternalizedCheckpointRetention;
import org.apache.flink.configuration.MemorySize;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.configuration.TaskManagerOptions;
import org.apache.flink.core.execution.CheckpointingMode;
import org.apache.flink.runtime.checkpoint.CheckpointStatsSnapshot;
import org.apache.flink.runtime.jobgraph.JobGraph;
import org.apache.flink.runtime.jobgraph.SavepointRestoreSettings;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * A count by key as a job of the DataStream API in two slots of a cluster within this process. Each key's count is a value in
 * RocksDB; there is a checkpoint every second, which stores new files of RocksDB only. Objects are used again. See state.sh.
 */
public final class StatePeer {
    private static final int SLOTS = 2;

    private static final long CHECKPOINT_EVERY_MS = 1000;

    /** For RocksDB's caches and write buffers, of all slots. */
    private static final MemorySize MANAGED_MEMORY = MemorySize.ofMebiBytes(1024);

    /** A first event must come, and checkpoints must be stored, within this time. */
    private static final long WAIT_MS_MAX = 60_000;

    public static void main(String[] arguments) throws Exception {
        var settings = new Configuration();
        settings.set(TaskManagerOptions.MANAGED_MEMORY_SIZE, MANAGED_MEMORY);
        var cluster =
                new MiniCluster(
                        new MiniClusterConfiguration.Builder()
                                .setConfiguration(settings)
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
            var peer = new StatePeer(cluster, Path.of(arguments[0]));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split(" ");
                long keys = Long.parseLong(words[1]);
                long number = Long.parseLong(words[2]);
                out.println(
                        words[0].equals("count")
                                ? peer.count(keys, number)
                                : peer.recover(keys, number));
                out.flush();
            }
        }
    }

    private final MiniCluster cluster;
    private final Path folder;

    private StatePeer(MiniCluster cluster, Path folder) {
        this.cluster = cluster;
        this.folder = folder;
    }

    private String count(long keys, long events) throws Exception {
        Seen.begin();
        double cpuBefore = cpuSeconds();
        JobGraph job = job(new KeyOf(keys, true), events);
        cluster.executeJobBlocking(job);
        double cpuSeconds = cpuSeconds() - cpuBefore;
        CheckpointStatsSnapshot stats = checkpoints(job.getJobID());
        return String.format(
                Locale.ROOT,
                "{\"events\":%d,\"seconds\":%.3f,\"cpu_seconds\":%.3f,\"checkpoints\":%d,\"checkpoint_ms\":%d}",
                Seen.EVENTS.get(),
                Seen.seconds(),
                cpuSeconds,
                stats.getCounts().getNumberOfCompletedCheckpoints(),
                stats.getSummaryStats().getEndToEndDurationStats().getAverage());
    }

    private String recover(long keys, long wanted) throws Exception {
        Seen.begin();
        JobGraph first = job(new KeyOf(keys, false), Long.MAX_VALUE);
        cluster.submitJob(first).get();
        // Each slot takes all keys in turn.
        waitFor(() -> Seen.EVENTS.get() > SLOTS * keys);
        long before = checkpoints(first.getJobID()).getCounts().getNumberOfCompletedCheckpoints();
        waitFor(
                () ->
                        checkpoints(first.getJobID()).getCounts().getNumberOfCompletedCheckpoints()
                                >= before + wanted);
        Thread.sleep(CHECKPOINT_EVERY_MS / 2);
        String stored =
                checkpoints(first.getJobID())
                        .getHistory()
                        .getLatestCompletedCheckpoint()
                        .getExternalPath();
        end(first.getJobID());

        Seen.begin();
        JobGraph second = job(new KeyOf(keys, false), Long.MAX_VALUE);
        second.setSavepointRestoreSettings(SavepointRestoreSettings.forPath(stored));
        long startedAt = System.nanoTime();
        cluster.submitJob(second).get();
        waitFor(() -> Seen.first != 0);
        double seconds = (Seen.first - startedAt) / 1e9;
        end(second.getJobID());
        return String.format(Locale.ROOT, "{\"seconds\":%.3f}", seconds);
    }

    private void end(JobID job) throws Exception {
        cluster.cancelJob(job).get();
        waitFor(() -> cluster.getJobStatus(job).get() == JobStatus.CANCELED);
    }

    private CheckpointStatsSnapshot checkpoints(JobID job) throws Exception {
        return cluster.getExecutionGraph(job).get().getCheckpointStatsSnapshot();
    }

    private JobGraph job(KeyOf keyOf, long events) {
        var settings = new Configuration();
        settings.set(StateBackendOptions.STATE_BACKEND, "rocksdb");
        settings.set(CheckpointingOptions.INCREMENTAL_CHECKPOINTS, true);
        settings.set(
                CheckpointingOptions.CHECKPOINTS_DIRECTORY,
                folder.resolve("checkpoints").toUri().toString());
        settings.set(
                CheckpointingOptions.EXTERNALIZED_CHECKPOINT_RETENTION,
                ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION);
        settings.setString(
                "state.backend.rocksdb.localdir", folder.resolve("rocksdb").toString());
        var environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        environment.setParallelism(SLOTS);
        environment.getConfig().enableObjectReuse();
        environment.enableCheckpointing(CHECKPOINT_EVERY_MS, CheckpointingMode.EXACTLY_ONCE);
        environment
                .fromSequence(0, events - 1)
                .map(keyOf)
                .returns(Types.LONG)
                .keyBy(key -> key)
                .process(new Count())
                .sinkTo(new DiscardingSink<>());
        return environment.getStreamGraph().getJobGraph();
    }

    /** Scatters numbers over the keys or takes the keys in turn, as the flow that this is compared with does. */
    private static final class KeyOf extends RichMapFunction<Long, Long> {
        private final long keys;
        private final boolean scatters;
        private transient boolean isFirst;

        KeyOf(long keys, boolean scatters) {
            this.keys = keys;
            this.scatters = scatters;
        }

        @Override
        public void open(OpenContext context) {
            isFirst = true;
        }

        @Override
        public Long map(Long number) {
            if (isFirst) {
                isFirst = false;
                Seen.first();
            }
            return (scatters ? number * 0x9E3779B97F4A7C15L >>> 32 : number) % keys;
        }
    }

    private static final class Count extends KeyedProcessFunction<Long, Long, Long> {
        /** How often the time of the last event is noted. */
        private static final int NOTE_EVERY = 256;

        private transient ValueState<Long> count;
        private transient int notNoted;

        @Override
        public void open(OpenContext context) {
            var descriptor = new ValueStateDescriptor<>("count", Types.LONG);
            count = getRuntimeContext().getState(descriptor);
        }

        @Override
        public void processElement(Long key, Context context, Collector<Long> out)
                throws Exception {
            Long before = count.value();
            count.update(before == null ? 1 : before + 1);
            if (++notNoted == NOTE_EVERY) {
                note();
            }
        }

        @Override
        public void close() {
            Seen.EVENTS.addAndGet(notNoted);
            notNoted = 0;
        }

        private void note() {
            Seen.EVENTS.addAndGet(notNoted);
            Seen.last = System.nanoTime();
            notNoted = 0;
        }
    }

    /** The counts that the instances of the running job have reached. */
    private static final class Seen {
        static final AtomicLong EVENTS = new AtomicLong();
        static volatile long first;
        static volatile long last;

        static void begin() {
            EVENTS.set(0);
            first = 0;
            last = 0;
        }

        static synchronized void first() {
            if (first == 0) {
                first = System.nanoTime();
            }
        }

        static double seconds() {
            return (last - first) / 1e9;
        }
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static void waitFor(Condition condition) throws Exception {
        long until = System.currentTimeMillis() + WAIT_MS_MAX;
        while (!condition.holds()) {
            if (System.currentTimeMillis() > until) {
                throw new IllegalStateException("Flink is too slow");
            }
            Thread.sleep(1);
        }
    }

    /** Of all threads of this process. */
    private static double cpuSeconds() {
        var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }
}
