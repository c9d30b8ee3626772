package hazelcast;

import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.config.Config;
import com.hazelcast.config.EventJournalConfig;
import com.hazelcast.config.MapConfig;
import com.hazelcast.config.PartitioningStrategyConfig;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.jet.Job;
import com.hazelcast.jet.Util;
import com.hazelcast.jet.accumulator.LongAccumulator;
import com.hazelcast.jet.config.JobConfig;
import com.hazelcast.jet.config.ProcessingGuarantee;
import com.hazelcast.jet.core.JobStatus;
import com.hazelcast.jet.impl.JobExecutionRecord;
import com.hazelcast.jet.impl.JobRepository;
import com.hazelcast.jet.pipeline.JournalInitialPosition;
import com.hazelcast.jet.pipeline.Pipeline;
import com.hazelcast.jet.pipeline.Sinks;
import com.hazelcast.jet.pipeline.Sources;
import com.hazelcast.map.EventJournalMapEvent;
import com.hazelcast.map.IMap;
import com.hazelcast.partition.PartitioningStrategy;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.logging.Level;
import java.util.logging.Logger;

/**
 * Measures the time from the moment when a map with an event journal has accepted an event until a
 * client's answer shows it. The events and the load are those of the benchmark's own flow.
 */
public final class FreshnessPeer {
    private static final String EVENTS = "events";
    private static final String LAST = "last";

    /** The keys of the events. The reader asks for the first one. */
    private static final int KEYS = 10;

    /**
     * The entries of the map with the events: a new event takes the place of an old one, so the map
     * stays as large as it is. The journal records each of them.
     */
    private static final int ENTRIES = 10_000;

    /**
     * The journal keeps this number of events of each partition: two seconds of a key at the full
     * rate. A job that is further behind does not sustain the rate, and the garbage collector copies
     * all events of a longer journal.
     */
    private static final int JOURNAL_EVENTS = 20_000;

    /**
     * Each snapshot stores the journal's position in each partition, so fewer than the default of
     * 271 make it cheaper. With 27 no two of the ten keys share a partition.
     */
    private static final int PARTITIONS = 27;

    /** The pause between the end of a snapshot and the start of the next one. */
    private static final long SNAPSHOT_EVERY_MS = 10;

    /** The producer sends the events that are due together, at most as often as this. */
    private static final long SEND_EVERY_NS = 1_000_000;

    /** The pause of the reader between two answers. */
    private static final long READ_EVERY_NS = 200_000;

    /**
     * Events before the end of this time do not count: Java compiles the code meanwhile, so the rate
     * grows from nothing.
     */
    private static final double WARM_UP_SECONDS = 10;

    /** All events are shown this long after the last one at the latest. */
    private static final double SHOWN_MAX_SECONDS = 30;

    /** The rate is sustained if the last event is shown this soon after the producer has ended, */
    private static final double SHOWN_SUSTAINED_SECONDS = 1;

    /** and if the map has accepted this part of the events. */
    private static final double ACCEPTED_SUSTAINED = 0.99;

    /** Events that were accepted together: the numbers from the first one on. */
    private record Accepted(long first, long until, long atNs) {}

    /** An event of the first key that no answer has shown yet. */
    private record Waiting(long number, long acceptedNs) {}

    /** All events of a key lie in one partition, so the journal keeps their order. */
    public static final class ByKey implements PartitioningStrategy<Object> {
        @Override
        public Object getPartitionKey(Object number) {
            return number instanceof Long value ? value % KEYS : null;
        }
    }

    private final double rate;
    private final double seconds;

    /** Events with lower numbers are sent to warm up. */
    private final long firstCounted;

    private final Queue<Accepted> accepted = new ConcurrentLinkedQueue<>();
    private volatile boolean hasEnded;
    private volatile boolean hasFailed;
    private double eventsPerSecond;
    private final long[] tookNs;
    private int shown;
    private boolean areAllShown;
    private double shownAfterSeconds;

    private FreshnessPeer(double rate, double seconds) {
        this.rate = rate;
        this.seconds = seconds;
        firstCounted = due(WARM_UP_SECONDS);
        tookNs = new long[(int) (rate * seconds / KEYS * 1.1) + 1_000];
    }

    /** The arguments are the events in a second and the seconds that count. */
    public static void main(String[] arguments) {
        try {
            System.out.println(
                    measured(Double.parseDouble(arguments[0]), Double.parseDouble(arguments[1])));
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            // Threads of Hazelcast would keep the process.
            System.exit(1);
        }
    }

    private static String measured(double rate, double seconds) throws Exception {
        // A logger without a reference would lose its level.
        Logger logger = Logger.getLogger("com.hazelcast");
        logger.setLevel(Level.WARNING);
        HazelcastInstance member = Hazelcast.newHazelcastInstance(config());
        HazelcastInstance client = HazelcastClient.newHazelcastClient(clientOf(member));
        Job job = member.getJet().newJob(pipeline(), jobConfig());
        while (job.getStatus() != JobStatus.RUNNING) {
            Thread.sleep(10);
        }
        var peer = new FreshnessPeer(rate, seconds);
        job.getFuture().whenComplete((done, failure) -> peer.hasFailed = true);
        double snapshotsPerSecond = peer.run(member, client, job);
        // The end of the members ends the job, too.
        String printed = peer.printed(snapshotsPerSecond);
        logger.setLevel(Level.OFF);
        client.getLifecycleService().terminate();
        member.getLifecycleService().terminate();
        return printed;
    }

    private static Config config() {
        var config = new Config();
        config.setProperty("hazelcast.phone.home.enabled", "false");
        config.setProperty("hazelcast.logging.type", "jdk");
        config.setProperty("hazelcast.partition.count", String.valueOf(PARTITIONS));
        config.setProperty("hazelcast.socket.bind.any", "false");
        config.getJetConfig().setEnabled(true);
        var network = config.getNetworkConfig();
        network.getInterfaces().setEnabled(true).addInterface("127.0.0.1");
        network.getJoin().getAutoDetectionConfig().setEnabled(false);
        network.getJoin().getMulticastConfig().setEnabled(false);
        // The journal's capacity is that of all partitions together.
        var journal = new EventJournalConfig();
        journal.setEnabled(true).setCapacity(JOURNAL_EVENTS * PARTITIONS);
        var byKey = new PartitioningStrategyConfig(ByKey.class.getName());
        var events = new MapConfig(EVENTS);
        events.setEventJournalConfig(journal).setPartitioningStrategyConfig(byKey);
        config.addMapConfig(events);
        return config;
    }

    private static ClientConfig clientOf(HazelcastInstance member) {
        var address = member.getCluster().getLocalMember().getAddress();
        var config = new ClientConfig();
        config.setProperty("hazelcast.logging.type", "jdk");
        config.getNetworkConfig().addAddress("127.0.0.1:" + address.getPort());
        return config;
    }

    /** Keeps the number of the last event of each key. */
    private static Pipeline pipeline() {
        var source =
                Sources.<Long, Long, Long>mapJournal(
                        EVENTS,
                        JournalInitialPosition.START_FROM_OLDEST,
                        EventJournalMapEvent::getNewValue,
                        event -> true);
        var pipeline = Pipeline.create().setPreserveOrder(true);
        pipeline.readFrom(source)
                .withoutTimestamps()
                .groupingKey(number -> number % KEYS)
                .mapStateful(LongAccumulator::new, FreshnessPeer::next)
                .writeTo(Sinks.map(LAST));
        return pipeline;
    }

    /** The state is the number of the key's events so far. A lost or repeated event fails the job. */
    private static Map.Entry<Long, Long> next(LongAccumulator events, Long key, Long number) {
        long expected = key + KEYS * events.get();
        if (number != expected) {
            throw new IllegalStateException("event " + number + " in place of " + expected);
        }
        events.add(1);
        return Util.entry(key, number);
    }

    private static JobConfig jobConfig() {
        return new JobConfig()
                .setName("fresh")
                .setProcessingGuarantee(ProcessingGuarantee.EXACTLY_ONCE)
                .setSnapshotIntervalMillis(SNAPSHOT_EVERY_MS);
    }

    /** Returns the snapshots in a second. */
    private double run(HazelcastInstance member, HazelcastInstance client, Job job)
            throws Exception {
        IMap<Long, Long> events = member.getMap(EVENTS);
        IMap<Long, Long> last = client.getMap(LAST);
        IMap<Long, JobExecutionRecord> records =
                member.getMap(JobRepository.JOB_EXECUTION_RECORDS_MAP_NAME);
        long beganNs = System.nanoTime();
        var reader = CompletableFuture.runAsync(() -> read(last));
        long snapshots = records.get(job.getId()).snapshotId();
        produce(events, beganNs);
        double took = (System.nanoTime() - beganNs) / 1e9;
        JobExecutionRecord record = records.get(job.getId());
        hasEnded = true;
        reader.get((long) SHOWN_MAX_SECONDS * 2, TimeUnit.SECONDS);
        return record == null ? 0 : (record.snapshotId() - snapshots) / took;
    }

    /** Sends numbered events at the rate, however long the map takes. */
    private void produce(IMap<Long, Long> events, long beganNs) {
        double lasts = WARM_UP_SECONDS + seconds;
        long first = 0;
        long all = due(lasts);
        while (first < all && !hasFailed) {
            double elapsed = Math.min((System.nanoTime() - beganNs) / 1e9, lasts);
            // A larger batch would have two events for one entry, and the journal only one of them.
            long until = Math.min(due(elapsed), first + ENTRIES);
            if (until > first) {
                Map<Long, Long> due = new LinkedHashMap<>();
                for (long number = first; number < until; number++) {
                    due.put(number % ENTRIES, number);
                }
                events.setAll(due);
                accepted.add(new Accepted(first, until, System.nanoTime()));
                first = until;
            }
            LockSupport.parkNanos(SEND_EVERY_NS);
        }
        double counts = (System.nanoTime() - beganNs) / 1e9 - WARM_UP_SECONDS;
        eventsPerSecond = first > firstCounted ? (first - firstCounted) / counts : 0;
    }

    /** Returns the number of events that are due this many seconds after the start. */
    private long due(double elapsed) {
        double warm = Math.min(elapsed, WARM_UP_SECONDS);
        double atFullRate = elapsed - warm;
        return (long) (rate * (warm * warm / WARM_UP_SECONDS / 2 + atFullRate));
    }

    /** Asks for the last event of the first key until all accepted ones are shown. */
    private void read(IMap<Long, Long> last) {
        var waiting = new ArrayDeque<Waiting>();
        long endedNs = 0;
        while (true) {
            // Read before the last events are taken in: then none come behind it.
            if (hasEnded && endedNs == 0) {
                endedNs = System.nanoTime();
            }
            Long answer = last.get(0L);
            long shownNs = System.nanoTime();
            for (Accepted batch; (batch = accepted.poll()) != null; ) {
                long number = (batch.first + KEYS - 1) / KEYS * KEYS;
                for (; number < batch.until; number += KEYS) {
                    waiting.add(new Waiting(number, batch.atNs));
                }
            }
            while (!waiting.isEmpty() && answer != null && answer >= waiting.peek().number) {
                Waiting event = waiting.poll();
                if (event.number >= firstCounted) {
                    // The job may be faster than the answer to the producer.
                    tookNs[shown++] = Math.max(shownNs - event.acceptedNs, 0);
                }
            }
            if (endedNs != 0) {
                shownAfterSeconds = (shownNs - endedNs) / 1e9;
                areAllShown = waiting.isEmpty();
                if (areAllShown || hasFailed || shownAfterSeconds > SHOWN_MAX_SECONDS) {
                    return;
                }
            }
            LockSupport.parkNanos(READ_EVERY_NS);
        }
    }

    private String printed(double snapshotsPerSecond) {
        boolean isReached =
                !hasFailed
                        && areAllShown
                        && shownAfterSeconds < SHOWN_SUSTAINED_SECONDS
                        && eventsPerSecond >= ACCEPTED_SUSTAINED * rate;
        Arrays.sort(tookNs, 0, shown);
        return String.format(
                Locale.ROOT,
                "{\"rate\":%.0f,\"is_reached\":%b,\"events_per_s\":%.0f,\"snapshots_per_s\":%.1f,"
                        + "\"events\":%d,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"p99_9_ms\":%.3f,"
                        + "\"p99_99_ms\":%.3f,\"most_ms\":%.3f}",
                rate, isReached, eventsPerSecond, snapshotsPerSecond,
                shown, percentileMs(50), percentileMs(99), percentileMs(99.9),
                percentileMs(99.99), percentileMs(100));
    }

    /** The time that this percentage of the events is not above; zero without any. */
    private double percentileMs(double percent) {
        int rank = (int) Math.ceil(shown * percent / 100);
        return shown == 0 ? 0 : tookNs[Math.min(Math.max(rank, 1), shown) - 1] / 1e6;
    }
}
