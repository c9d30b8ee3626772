package flink;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;

/**
 * Events of Nexmark from a file in blocks, which the slots read in turn. A row is (kind, person, auction, bid, time). Text stays
 * the bytes that were read, so a column that no operator uses costs next to nothing.
 */
final class EventFile implements Source<RowData, NoSplit, Void> {
    private static final int PERSON = 0;
    private static final int AUCTION = 1;

    private final String path;
    private final int slots;

    EventFile(Path path, int slots) {
        this.path = path.toString();
        this.slots = slots;
    }

    @Override
    public Boundedness getBoundedness() {
        // In streams, also of bounded input, results come as they change.
        return Boundedness.CONTINUOUS_UNBOUNDED;
    }

    @Override
    public SourceReader<RowData, NoSplit> createReader(SourceReaderContext context)
            throws IOException {
        return new Reader(FileChannel.open(Path.of(path)), context.getIndexOfSubtask(), slots);
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

    private static final class Reader implements SourceReader<RowData, NoSplit> {
        private static final int EVENTS_PER_POLL = 64;

        private final FileChannel file;
        private final int slots;

        /** Blocks of other slots before the next one of this slot. */
        private int others;

        private long position;
        private byte[] block = {};
        private int next;

        Reader(FileChannel file, int slot, int slots) {
            this.file = file;
            this.slots = slots;
            others = slot;
        }

        @Override
        public void start() {}

        @Override
        public InputStatus pollNext(ReaderOutput<RowData> output) throws IOException {
            if (next == block.length && !readBlock()) {
                return InputStatus.END_OF_INPUT;
            }
            for (int events = 0; events < EVENTS_PER_POLL && next < block.length; events++) {
                output.collect(event());
            }
            return InputStatus.MORE_AVAILABLE;
        }

        private boolean readBlock() throws IOException {
            while (position < file.size()) {
                int length = read(4).order(ByteOrder.LITTLE_ENDIAN).getInt();
                if (others-- > 0) {
                    position += length;
                    continue;
                }
                others = slots - 1;
                block = read(length).array();
                next = 0;
                return true;
            }
            return false;
        }

        private ByteBuffer read(int bytes) throws IOException {
            ByteBuffer buffer = ByteBuffer.allocate(bytes);
            while (buffer.hasRemaining()) {
                int read = file.read(buffer, position);
                if (read < 0) {
                    throw new EOFException("the file of events ends within a block");
                }
                position += read;
            }
            return buffer.flip();
        }

        private RowData event() {
            int kind = (int) number();
            RowData person = null;
            RowData auction = null;
            RowData bid = null;
            TimestampData time;
            if (kind == PERSON) {
                long id = number();
                StringData name = text();
                StringData email = text();
                StringData card = text();
                StringData city = text();
                StringData state = text();
                time = time();
                person = GenericRowData.of(id, name, email, card, city, state, text());
            } else if (kind == AUCTION) {
                long id = number();
                StringData item = text();
                StringData description = text();
                long initialBid = number();
                long reserve = number();
                time = time();
                TimestampData expires = time();
                long seller = number();
                auction =
                        GenericRowData.of(
                                id, item, description, initialBid, reserve, expires, seller,
                                number(), text());
            } else {
                long auctionId = number();
                long bidder = number();
                long price = number();
                StringData channel = text();
                StringData url = text();
                time = time();
                bid = GenericRowData.of(auctionId, bidder, price, channel, url, text());
            }
            return GenericRowData.of(kind, person, auction, bid, time);
        }

        /** Seven bits in a byte, the lowest first. */
        private long number() {
            long number = 0;
            for (int shift = 0; ; shift += 7) {
                byte bits = block[next++];
                number |= (bits & 0x7fL) << shift;
                if (bits >= 0) {
                    return number;
                }
            }
        }

        private TimestampData time() {
            long zigzag = number();
            return TimestampData.fromEpochMillis(zigzag >>> 1 ^ -(zigzag & 1));
        }

        private StringData text() {
            int length = (int) number();
            StringData text = StringData.fromBytes(block, next, length);
            next += length;
            return text;
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
        public void close() throws IOException {
            file.close();
        }
    }
}
