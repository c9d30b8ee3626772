package flink;

import ads.Event;
import ads.Generator;
import ads.Order;
import ads.Orders;
import ads.Run;
import java.io.Serializable;
import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.legacy.SinkFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/**
 * SWA, YSB and YSB* as jobs of the DataStream API, with its own windows, aggregates and join, in
 * two slots of a cluster within this process. Aggregates have two phases, as in Flink's SQL. There
 * are no checkpoints; objects are used again.
 */
public final class AdsPeer {
    /** The interval of watermarks: less than the resolution of the reported latency. */
    private static final Duration WATERMARKS_EVERY = Duration.ofMillis(10);

    /**
     * Its argument is how long a buffer of the exchange waits to be full, in milliseconds. Behind
     * the first phase few ever are, so this is in each latency.
     */
    public static void main(String[] arguments) throws Exception {
        long buffersWaitMs = Long.parseLong(arguments[0]);
        var settings =
                new MiniClusterConfiguration.Builder()
                        .setNumTaskManagers(1)
                        .setNumSlotsPerTaskManager(Order.INSTANCES)
                        .withRandomPorts()
                        .build();
        try (var cluster = new MiniCluster(settings)) {
            cluster.start();
            Orders.answer(order -> run(cluster, order, buffersWaitMs));
        }
    }

    private static void run(MiniCluster cluster, Order order, long buffersWaitMs)
            throws Exception {
        var environment = StreamExecutionEnvironment.getExecutionEnvironment(new Configuration());
        environment.setParallelism(Order.INSTANCES);
        environment.getConfig().enableObjectReuse();
        environment.getConfig().setAutoWatermarkInterval(WATERMARKS_EVERY.toMillis());
        environment.setBufferTimeout(buffersWaitMs);
        DataStream<Event> events =
                environment.fromSource(
                        new EventSource(order),
                        WatermarkStrategy.forMonotonousTimestamps(),
                        "events",
                        Types.GENERIC(Event.class));
        switch (order.app()) {
            case "swa" -> {
                var ads = events.map(new Keep(null)).returns(KEYED);
                count(ads, order).addSink(new Release());
            }
            case "ysb" -> count(campaigns(events, Event.VIEW), order).addSink(new Release());
            default -> {
                var views = count(campaigns(events, Event.VIEW), order);
                var clicks = count(campaigns(events, Event.CLICK), order);
                views.join(clicks)
                        .where(count -> count.key)
                        .equalTo(count -> count.key)
                        .window(windows(order))
                        .apply(AdsPeer::ratio)
                        .addSink(new Release());
            }
        }
        cluster.executeJobBlocking(environment.getStreamGraph().getJobGraph());
    }

    private static final TypeInformation<Keyed> KEYED = Types.POJO(Keyed.class);
    private static final TypeInformation<Count> COUNT = Types.POJO(Count.class);

    /** Events of one kind, by the campaign of their ad. */
    private static DataStream<Keyed> campaigns(DataStream<Event> events, int kind) {
        return events.filter(event -> event.kind() == kind)
                .map(new Keep(Generator.campaigns()))
                .returns(KEYED);
    }

    private static DataStream<Count> count(DataStream<Keyed> keyed, Order order) {
        return keyed.transform("count in the slot", COUNT, new LocalCount(order.windowMs()))
                .keyBy(count -> count.key)
                .window(windows(order))
                .aggregate(new Summing(), new OfWindow());
    }

    private static TumblingEventTimeWindows windows(Order order) {
        return TumblingEventTimeWindows.of(Duration.ofMillis(order.windowMs()));
    }

    private static Count ratio(Count views, Count clicks) {
        Count both = new Count();
        both.windowMs = views.windowMs;
        both.key = views.key;
        both.count = views.count;
        both.clicks = clicks.count;
        both.ratio = (double) clicks.count / views.count;
        both.timeMs = Math.max(views.timeMs, clicks.timeMs);
        return both;
    }

    /** The result of a window for a key. */
    public static final class Count {
        public long windowMs;
        public int key;
        public long count;
        public long clicks;
        public double ratio;
        /** The largest time of its events. */
        public long timeMs = Long.MIN_VALUE;
    }

    /** The state of an event: its key and its time. */
    public static final class Keyed implements Serializable {
        public int key;
        public long timeMs;
    }

    /** The next operator is in the same chain and is done with an object before it gets the next: it is always the same. */
    private static final class Keep implements MapFunction<Event, Keyed> {
        /** By ad; the ad itself is the key where there are none. */
        private final int[] campaigns;

        private final Keyed keyed = new Keyed();

        Keep(int[] campaigns) {
            this.campaigns = campaigns;
        }

        @Override
        public Keyed map(Event event) {
            keyed.key = campaigns == null ? event.ad() : campaigns[event.ad()];
            keyed.timeMs = event.timeMs();
            return keyed;
        }
    }

    /** The second phase: the sum of the slots' counts. */
    private static final class Summing implements AggregateFunction<Count, Count, Count> {
        @Override
        public Count createAccumulator() {
            return new Count();
        }

        @Override
        public Count add(Count partial, Count count) {
            return merge(count, partial);
        }

        @Override
        public Count getResult(Count count) {
            return count;
        }

        @Override
        public Count merge(Count count, Count other) {
            count.count += other.count;
            count.timeMs = Math.max(count.timeMs, other.timeMs);
            return count;
        }
    }

    private static final class OfWindow
            extends ProcessWindowFunction<Count, Count, Integer, TimeWindow> {
        @Override
        public void process(
                Integer key, Context context, Iterable<Count> counts, Collector<Count> out) {
            Count count = counts.iterator().next();
            count.key = key;
            count.windowMs = context.window().getStart();
            out.collect(count);
        }
    }

    private static final class Release implements SinkFunction<Count> {
        @Override
        public void invoke(Count count, Context context) {
            Run.current()
                    .release(
                            count.windowMs,
                            count.key,
                            count.count,
                            count.clicks,
                            count.ratio,
                            count.timeMs);
        }
    }

    private AdsPeer() {}
}
