import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.ByteBufferOutputStream;

/** Writes batches, and what the filter of Kafka's log cleaner leaves of them, into a folder. */
class Cleaned {
    static final long NOW = 1_000_000;
    static final long DELETE_RETENTION_MS = 500;

    /** Drops the records whose keys begin with "old", and tombstones whose horizon has passed. */
    static class Filter extends MemoryRecords.RecordFilter {
        final MemoryRecords.RecordFilter.BatchRetention retention;

        Filter(BatchRetention retention) {
            super(NOW, DELETE_RETENTION_MS);
            this.retention = retention;
        }

        @Override
        protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
            return new BatchRetentionResult(retention, batch.isControlBatch());
        }

        @Override
        protected boolean shouldRetainRecord(RecordBatch batch, Record record) {
            if (batch.isControlBatch()) {
                return true;
            }
            byte[] key = new byte[record.keySize()];
            record.key().get(key);
            boolean isOver = batch.deleteHorizonMs().isPresent() && batch.deleteHorizonMs().getAsLong() <= NOW;
            return !new String(key).startsWith("old") && (record.hasValue() || !isOver);
        }
    }

    static SimpleRecord record(long time, String key, String value, Header... headers) {
        return new SimpleRecord(time, key.getBytes(), value == null ? null : value.getBytes(), headers);
    }

    static void put(ByteBuffer buffer, Compression codec, TimestampType type, long base, long horizon, SimpleRecord... records) {
        var builder = new MemoryRecordsBuilder(new ByteBufferOutputStream(buffer), (byte) 2, codec, type, base, 700, -1, (short) -1, -1,
            false, false, 3, buffer.remaining(), horizon);
        for (var record : records) {
            builder.append(record);
        }
        builder.close();
    }

    static void write(Path folder, String name, ByteBuffer source, MemoryRecords.RecordFilter.BatchRetention retention) throws Exception {
        source.flip();
        var cleaned = ByteBuffer.allocate(1 << 16);
        MemoryRecords.readableRecords(source.duplicate()).filterTo(new Filter(retention), cleaned, BufferSupplier.NO_CACHING);
        cleaned.flip();
        for (var file : new Object[][] {{"source", source}, {"cleaned", cleaned}}) {
            var buffer = (ByteBuffer) file[1];
            byte[] bytes = new byte[buffer.remaining()];
            buffer.duplicate().get(bytes);
            Files.write(folder.resolve(name + "." + file[0] + ".bin"), bytes);
        }
    }

    public static void main(String[] args) throws Exception {
        var folder = Path.of(args[0]);
        var none = Compression.NONE;
        var create = TimestampType.CREATE_TIME;
        var delete = MemoryRecords.RecordFilter.BatchRetention.DELETE_EMPTY;
        var header = new RecordHeader("k.city", "Namur".getBytes());

        var source = ByteBuffer.allocate(1 << 16);
        put(source, none, create, 40, -1, record(1000, "old", "1"), record(990, "a", "2", header), record(1010, "old", "3"),
            record(1020, "b", "4"), record(1005, "old", "5"));
        write(folder, "values", source, delete);

        source = ByteBuffer.allocate(1 << 16);
        put(source, none, create, 40, -1, record(1000, "a", null, header), record(990, "old", null), record(1010, "b", "2"));
        write(folder, "tombstones", source, delete);

        source = ByteBuffer.allocate(1 << 16);
        put(source, none, create, 40, NOW + 7, record(1000, "a", null), record(990, "old", "1"), record(1010, "b", "2"));
        write(folder, "horizon-ahead", source, delete);

        source = ByteBuffer.allocate(1 << 16);
        put(source, none, TimestampType.LOG_APPEND_TIME, 40, -1, record(1000, "a", "1"), record(990, "old", "2"));
        write(folder, "append-time", source, delete);

        source = ByteBuffer.allocate(1 << 16);
        var marker = new EndTransactionMarker(ControlRecordType.COMMIT, 5);
        MemoryRecords.writeEndTransactionalMarker(source, 40, 1000, 3, 77, (short) 2, marker);
        write(folder, "marker", source, delete);

        // Another pass over its result leaves it as it is.
        source = ByteBuffer.allocate(1 << 16);
        source.put(Files.readAllBytes(folder.resolve("marker.cleaned.bin")));
        write(folder, "marker-again", source, delete);

        source = ByteBuffer.allocate(1 << 16);
        put(source, none, create, 40, -1, record(1000, "old", "1"), record(1010, "old", "2"));
        write(folder, "empty", source, MemoryRecords.RecordFilter.BatchRetention.RETAIN_EMPTY);
    }
}
