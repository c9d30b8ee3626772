package flink;

import java.util.List;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.core.io.SimpleVersionedSerializer;

/** A source that makes its own events has no splits to assign. */
final class NoSplit implements SourceSplit {
    @Override
    public String splitId() {
        return "";
    }

    static final class Enumerator implements SplitEnumerator<NoSplit, Void> {
        @Override
        public void start() {}

        @Override
        public void handleSplitRequest(int instance, String host) {}

        @Override
        public void addSplitsBack(List<NoSplit> splits, int instance) {}

        @Override
        public void addReader(int instance) {}

        @Override
        public Void snapshotState(long checkpoint) {
            return null;
        }

        @Override
        public void close() {}
    }

    static final class Serializer<T> implements SimpleVersionedSerializer<T> {
        @Override
        public int getVersion() {
            return 0;
        }

        @Override
        public byte[] serialize(T nothing) {
            return new byte[0];
        }

        @Override
        public T deserialize(int version, byte[] bytes) {
            throw new UnsupportedOperationException("this job has no checkpoints");
        }
    }
}
