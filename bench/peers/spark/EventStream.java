package spark;

import ads.Generator;
import ads.Order;
import ads.Run;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.types.StructType;

/**
 * Hands out the events that have fallen due since the last micro-batch, to each core half of them.
 * The first micro-batch, in which Spark plans the query and compiles it, has a few events and comes
 * before the start.
 */
final class EventStream implements MicroBatchStream {
    /** The events of each instance in the first micro-batch, without a rate. */
    private static final long FIRST_EVENTS = 200_000;

    /** Without a rate a micro-batch gets as many events as take this time. */
    private static final double BATCH_NANOS = 1e9;

    /** How many events each instance has made. */
    static final class Count extends Offset {
        final long events;

        Count(long events) {
            this.events = events;
        }

        @Override
        public String json() {
            return Long.toString(events);
        }
    }

    private final Run run = Run.current();
    private final Order order = run.order();
    private final StructType schema;
    private boolean isWarm = false;
    private long last = 0;
    private long lastNanos = 0;
    private long batchEvents = FIRST_EVENTS;

    EventStream(StructType schema) {
        this.schema = schema;
    }

    @Override
    public Offset initialOffset() {
        return new Count(0);
    }

    @Override
    public Offset latestOffset() {
        if (last == 0) {
            last = Generator.BATCH_EVENTS;
            return new Count(last);
        }
        if (!isWarm) {
            isWarm = true;
            run.startAll();
        }
        long nanos = run.elapsedNanos();
        long rate = order.instanceRate();
        if (rate > 0) {
            double due = (double) nanos * rate / 1e9;
            return new Count(Math.max(last, Math.min(order.instanceEvents(), (long) due)));
        }
        if (nanos < order.durationMs() * 1_000_000) {
            if (lastNanos > 0) {
                double factor = BATCH_NANOS / (nanos - lastNanos);
                batchEvents = (long) (batchEvents * Math.max(0.5, Math.min(2, factor)));
            }
            last += batchEvents;
            lastNanos = nanos;
        }
        return new Count(last);
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        var parts = new InputPartition[Order.INSTANCES];
        for (int instance = 0; instance < parts.length; instance++) {
            parts[instance] =
                    new EventReader.Part(
                            instance, ((Count) start).events, ((Count) end).events);
        }
        return parts;
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new EventReader.Factory(order, schema);
    }

    @Override
    public Offset deserializeOffset(String json) {
        return new Count(Long.parseLong(json));
    }

    @Override
    public void commit(Offset end) {}

    @Override
    public void stop() {}
}
