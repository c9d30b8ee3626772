package flink;

import ads.Event;
import ads.Generator;
import ads.Order;
import ads.Orders;
import ads.Run;
import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
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
 * two slots of a cluster within this process. There are no checkpoints; objects are used again.
 */
public final class AdsPeer {
    /** Watermarks tell each other what time it is so often: less than what is told of latency. */
    private static final Duration WATERMARKS_EVERY = Duration.ofMillis(10);

    public static void main(String[] arguments) throws Exception {
        var settings =
                new MiniClusterConfiguration.Builder()
                        .setNumTaskManagers(1)
                        .setNumSlotsPerTaskManager(Order.INSTANCES)
                        .withRandomPorts()
                        .build();
        try (var cluster = new MiniCluster(settings)) {
            cluster.start();
            Orders.answer(order -> run(cluster, order));
        }
    }

    private static void run(MiniCluster cluster, Order order) throws Exception {
        var environment = StreamExecutionEnvironment.getExecutionEnvironment(new Configuration());
        environment.setParallelism(Order.INSTANCES);
        environment.getConfig().enableObjectReuse();
        environment.getConfig().setAutoWatermarkInterval(WATERMARKS_EVERY.toMillis());
        DataStream<Event> events =
                environment.fromSource(
                        new EventSource(order),
                        WatermarkStrategy.forMonotonousTimestamps(),
                        "events",
                        Types.GENERIC(Event.class));
        switch (order.app()) {
            case "swa" -> {
                var ads = events.map(event -> Tuple2.of(event.ad(), event.timeMs())).returns(KEYED);
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

    /** A key, and the time of an event: the fastest type that Flink has its own serializer for. */
    private static final org.apache.flink.api.common.typeinfo.TypeInformation<Tuple2<Integer, Long>>
            KEYED = Types.TUPLE(Types.INT, Types.LONG);

    /** Events of one kind, by the campaign of their ad. */
    private static DataStream<Tuple2<Integer, Long>> campaigns(DataStream<Event> events, int kind) {
        int[] campaigns = Generator.campaigns();
        return events.filter(event -> event.kind() == kind)
                .map(event -> Tuple2.of(campaigns[event.ad()], event.timeMs()))
                .returns(KEYED);
    }

    private static DataStream<Count> count(
            DataStream<Tuple2<Integer, Long>> keyed, Order order) {
        return keyed.keyBy(event -> event.f0)
                .window(windows(order))
                .aggregate(new Counting(), new OfWindow());
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

    /** What a window says of a key. */
    public static final class Count {
        public long windowMs;
        public int key;
        public long count;
        public long clicks;
        public double ratio;
        /** The largest time of its events. */
        public long timeMs = Long.MIN_VALUE;
    }

    private static final class Counting
            implements AggregateFunction<Tuple2<Integer, Long>, Count, Count> {
        @Override
        public Count createAccumulator() {
            return new Count();
        }

        @Override
        public Count add(Tuple2<Integer, Long> event, Count count) {
            count.count++;
            count.timeMs = Math.max(count.timeMs, event.f1);
            return count;
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
