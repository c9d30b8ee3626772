import java.nio.ByteBuffer;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.record.TimestampType;

/** Reads record batches from stdin and writes their records as one batch in the given compression. */
class Golden {
    public static void main(String[] args) throws Exception {
        var from = MemoryRecords.readableRecords(ByteBuffer.wrap(System.in.readAllBytes()));
        var compression = Compression.of(CompressionType.forName(args[0])).build();
        var builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 20), compression, TimestampType.CREATE_TIME, 0);
        for (var batch : from.batches()) {
            batch.ensureValid();
            for (Record record : batch) {
                builder.append(new SimpleRecord(record));
            }
        }
        var to = builder.build().buffer();
        System.out.write(to.array(), to.arrayOffset() + to.position(), to.remaining());
        System.out.flush();
    }
}
