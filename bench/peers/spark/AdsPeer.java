package spark;

import static org.apache.spark.sql.functions.broadcast;
import static org.apache.spark.sql.functions.col;
import static org.apache.spark.sql.functions.count;
import static org.apache.spark.sql.functions.lit;
import static org.apache.spark.sql.functions.max;
import static org.apache.spark.sql.functions.when;
import static org.apache.spark.sql.functions.window;

import ads.Event;
import ads.Generator;
import ads.Order;
import ads.Orders;
import ads.Run;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * SWA, YSB and YSB* as queries of Structured Streaming on two threads, in micro-batches that follow
 * each other at once. Since there is one windowed aggregation in a query, YSB* counts views and
 * clicks in the same one, as in the paper.
 */
public final class AdsPeer {
    /** The checkpoints that Spark requires are in memory: disks are not measured. */
    private static final Path IN_MEMORY = Path.of("/dev/shm");

    public static void main(String[] arguments) throws Exception {
        var session =
                SparkSession.builder()
                        .master("local[" + Order.INSTANCES + "]")
                        .appName("peer")
                        .config("spark.ui.enabled", "false")
                        .config("spark.sql.shuffle.partitions", Order.INSTANCES)
                        .config("spark.sql.session.timeZone", "UTC")
                        .config("spark.sql.streaming.metricsEnabled", "false")
                        .getOrCreate();
        try (session) {
            Orders.answer(order -> run(session, order));
        }
    }

    private static void run(SparkSession session, Order order) throws Exception {
        Path checkpoints =
                Files.createTempDirectory(
                        Files.isDirectory(IN_MEMORY)
                                ? IN_MEMORY
                                : Path.of(System.getProperty("java.io.tmpdir")),
                        "spark-peer");
        try {
            var events =
                    session.readStream()
                            .format(EventTable.class.getName())
                            .load()
                            .withWatermark("time", "0 seconds");
            var counts = results(session, order, events);
            Run run = Run.current();
            var query =
                    counts.writeStream()
                            .outputMode("append")
                            .option("checkpointLocation", checkpoints.toString())
                            .foreachBatch(AdsPeer::release)
                            .start();
            run.awaitStart();
            long leftMs = order.durationMs() - run.elapsedNanos() / 1_000_000;
            Thread.sleep(Math.max(0, leftMs));
            query.processAllAvailable();
            query.stop();
        } finally {
            delete(checkpoints);
        }
    }

    private static Dataset<Row> results(SparkSession session, Order order, Dataset<Row> events) {
        Column windows = window(col("time"), order.windowMs() + " milliseconds").as("window");
        Column time = max(col("time")).as("time");
        Column none = lit(0L).as("clicks");
        var isView = col("kind").equalTo(lit((byte) Event.VIEW));
        var isClick = col("kind").equalTo(lit((byte) Event.CLICK));
        var campaigns = broadcast(campaigns(session));
        var counted =
                switch (order.app()) {
                    case "swa" -> events.groupBy(windows, col("ad").as("key"))
                            .agg(count(lit(1)).as("count"), none, time);
                    case "ysb" -> events.filter(isView)
                            .join(campaigns, "ad")
                            .groupBy(windows, col("campaign").as("key"))
                            .agg(count(lit(1)).as("count"), none, time);
                    default -> events.filter(isView.or(isClick))
                            .join(campaigns, "ad")
                            .groupBy(windows, col("campaign").as("key"))
                            .agg(
                                    count(when(isView, 1)).as("count"),
                                    count(when(isClick, 1)).as("clicks"),
                                    time)
                            // As a join, which has nothing where one side has nothing.
                            .filter(col("count").gt(0).and(col("clicks").gt(0)));
                };
        return counted.select(
                col("window.start"),
                col("key"),
                col("count"),
                col("clicks"),
                col("clicks").cast("double").divide(col("count")).as("ratio"),
                col("time"));
    }

    /** The table of the static join. */
    private static Dataset<Row> campaigns(SparkSession session) {
        List<Row> rows = new ArrayList<>();
        int[] campaigns = Generator.campaigns();
        for (int ad = 0; ad < campaigns.length; ad++) {
            rows.add(RowFactory.create(ad, campaigns[ad]));
        }
        var schema =
                new StructType()
                        .add("ad", DataTypes.IntegerType, false)
                        .add("campaign", DataTypes.IntegerType, false);
        return session.createDataFrame(rows, schema);
    }

    private static void release(Dataset<Row> counts, long batch) {
        for (Row row : counts.collectAsList()) {
            Run.current()
                    .release(
                            row.getTimestamp(0).getTime(),
                            row.getInt(1),
                            row.getLong(2),
                            row.getLong(3),
                            row.getDouble(4),
                            row.getTimestamp(5).getTime());
        }
    }

    private static void delete(Path folder) throws IOException {
        try (var paths = Files.walk(folder)) {
            for (Path path : paths.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(path);
            }
        }
    }

    private AdsPeer() {}
}
