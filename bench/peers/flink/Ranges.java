package flink;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.enumerate.FileEnumerator;
import org.apache.flink.core.fs.Path;

/**
 * Ranges of files. Flink's own enumerators cut a file by the blocks of its file system, and a local
 * file is one block.
 */
final class Ranges implements FileEnumerator {
    private static final long RANGE_BYTES = 64 << 20;

    @Override
    public Collection<FileSourceSplit> enumerateSplits(Path[] paths, int splitsMin)
            throws IOException {
        List<FileSourceSplit> ranges = new ArrayList<>();
        for (Path path : paths) {
            var status = path.getFileSystem().getFileStatus(path);
            long length = status.getLen();
            for (long start = 0; start < length; start += RANGE_BYTES) {
                String id = path + "@" + start;
                long bytes = Math.min(RANGE_BYTES, length - start);
                long modified = status.getModificationTime();
                ranges.add(new FileSourceSplit(id, path, start, bytes, modified, length));
            }
        }
        return ranges;
    }
}
