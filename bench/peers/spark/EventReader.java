package spark;

import ads.Event;
import ads.Feed;
import ads.Generator;
import ads.Order;
import ads.Run;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Makes the events of one instance in one micro-batch, a block at a time. */
final class EventReader implements PartitionReader<ColumnarBatch> {
    /** The events of an instance from one number to another. */
    record Part(int instance, long from, long to) implements InputPartition {}

    record Factory(Order order, StructType schema) implements PartitionReaderFactory {
        @Override
        public boolean supportColumnarReads(InputPartition part) {
            return true;
        }

        @Override
        public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition part) {
            return new EventReader(order, schema, (Part) part);
        }

        @Override
        public PartitionReader<InternalRow> createReader(InputPartition part) {
            throw new UnsupportedOperationException("events are read by columns");
        }
    }

    private final Run run = Run.current();
    private final StructType schema;
    private final Part part;
    private final Feed feed;
    private final int[] starts = new int[Generator.BATCH_EVENTS];
    private ColumnarBatch batch;
    private long next;

    private EventReader(Order order, StructType schema, Part part) {
        this.schema = schema;
        this.part = part;
        feed = new Feed(order, part.instance, part.from, run.madeSoFar(part.instance));
        next = part.from;
    }

    @Override
    public boolean next() {
        int events = (int) Math.min(part.to - next, Generator.BATCH_EVENTS);
        if (events == 0) {
            return false;
        }
        // The first micro-batch comes before the start.
        Event event = feed.make(events, part.from == 0 ? 0 : run.elapsedNanos());
        next += events;
        for (int row = 0; row < events; row++) {
            starts[row] = event.start();
            event.next();
        }
        if (batch == null) {
            batch = new ColumnarBatch(EventColumns.of(schema, event, starts));
        }
        batch.setNumRows(events);
        return true;
    }

    @Override
    public ColumnarBatch get() {
        return batch;
    }

    @Override
    public void close() {
        run.made(part.instance, feed.made());
    }
}
