package flink;

import java.io.IOException;
import measure.Measured;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.reader.StreamFormat;
import org.apache.flink.core.fs.FSDataInputStream;

/**
 * The lines that start in a range of a file. Flink's own TextLineInputFormat does not read parts of
 * files, so that one slot would do all the work; it also takes more time for a line.
 */
final class Lines implements StreamFormat<String> {
    private static final int BUFFER_BYTES = 256 << 10;

    @Override
    public Reader createReader(
            Configuration configuration, FSDataInputStream file, long fileBytes, long rangeEnd)
            throws IOException {
        return new Reader(file, rangeEnd);
    }

    @Override
    public Reader restoreReader(
            Configuration configuration,
            FSDataInputStream file,
            long restoredOffset,
            long fileBytes,
            long rangeEnd) {
        throw new UnsupportedOperationException("this job has no checkpoints");
    }

    @Override
    public boolean isSplittable() {
        return true;
    }

    @Override
    public TypeInformation<String> getProducedType() {
        return Types.STRING;
    }

    static final class Reader implements StreamFormat.Reader<String> {
        private final FSDataInputStream file;
        /** Lines that start here or later are not read. */
        private final long end;
        /** Where in the file the next line starts. */
        private long position;

        private byte[] buffer = new byte[BUFFER_BYTES];
        /** The part of the buffer that is not handed out yet. */
        private int from = 0;
        private int to = 0;

        private Reader(FSDataInputStream file, long end) throws IOException {
            this.file = file;
            this.end = end;
            position = file.getPos();
            if (position > 0) {
                // The line that runs into the range belongs to the one before.
                position--;
                file.seek(position);
                read();
            }
        }

        @Override
        public String read() throws IOException {
            if (position >= end) {
                return null;
            }
            int searched = 0;
            while (true) {
                for (int at = from + searched; at < to; at++) {
                    if (buffer[at] == '\n') {
                        return take(at - from, 1);
                    }
                }
                searched = to - from;
                if (!fill()) {
                    return searched == 0 ? null : take(searched, 0);
                }
            }
        }

        private String take(int bytes, int newlineBytes) {
            String line = new String(buffer, from, bytes, Measured.BYTES);
            from += bytes + newlineBytes;
            position += bytes + newlineBytes;
            return line;
        }

        /** Reads more behind the bytes that are not handed out yet; false at the end of the file. */
        private boolean fill() throws IOException {
            int kept = to - from;
            byte[] target = kept == buffer.length ? new byte[2 * kept] : buffer;
            System.arraycopy(buffer, from, target, 0, kept);
            buffer = target;
            from = 0;
            to = kept;
            int read = file.read(buffer, to, buffer.length - to);
            to += Math.max(read, 0);
            return read > 0;
        }

        @Override
        public void close() throws IOException {
            file.close();
        }
    }
}
