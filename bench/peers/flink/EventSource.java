package flink;

import ads.Event;
import ads.Feed;
import ads.Made;
import ads.Order;
import ads.Run;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.locks.LockSupport;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/** Events as they fall due, made in memory by each slot. The events of a slot follow from its number. */
final class EventSource implements Source<Event, NoSplit, Void> {
    private final Order order;

    EventSource(Order order) {
        this.order = order;
    }

    @Override
    public Boundedness getBoundedness() {
        return Boundedness.CONTINUOUS_UNBOUNDED;
    }

    @Override
    public SourceReader<Event, NoSplit> createReader(SourceReaderContext context) {
        return new Reader(order, context.getIndexOfSubtask());
    }

    @Override
    public SplitEnumerator<NoSplit, Void> createEnumerator(
            SplitEnumeratorContext<NoSplit> context) {
        return new NoSplit.Enumerator();
    }

    @Override
    public SplitEnumerator<NoSplit, Void> restoreEnumerator(
            SplitEnumeratorContext<NoSplit> context, Void checkpoint) {
        return new NoSplit.Enumerator();
    }

    @Override
    public SimpleVersionedSerializer<NoSplit> getSplitSerializer() {
        return new NoSplit.Serializer<>();
    }

    @Override
    public SimpleVersionedSerializer<Void> getEnumeratorCheckpointSerializer() {
        return new NoSplit.Serializer<>();
    }

    private static final class Reader implements SourceReader<Event, NoSplit> {
        private final int instance;
        private final Feed feed;
        private final Run run = Run.current();

        Reader(Order order, int instance) {
            this.instance = instance;
            feed = new Feed(order, instance, 0, new Made());
        }

        @Override
        public void start() {
            try {
                run.start();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }

        @Override
        public InputStatus pollNext(ReaderOutput<Event> output) {
            long elapsedNanos = run.elapsedNanos();
            int events = feed.due(elapsedNanos);
            if (feed.isOver()) {
                run.made(instance, feed.made());
                return InputStatus.END_OF_INPUT;
            }
            if (events == 0) {
                LockSupport.parkNanos(feed.waitNanos());
                return InputStatus.MORE_AVAILABLE;
            }
            Event event = feed.make(events, elapsedNanos);
            long timeMs = event.timeMs();
            for (int made = 0; made < events; made++) {
                output.collect(event, timeMs);
                event.next();
            }
            return InputStatus.MORE_AVAILABLE;
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public List<NoSplit> snapshotState(long checkpoint) {
            return List.of();
        }

        @Override
        public void addSplits(List<NoSplit> splits) {}

        @Override
        public void notifyNoMoreSplits() {}

        @Override
        public void close() {}
    }
}
