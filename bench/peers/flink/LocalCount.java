package flink;

import flink.AdsPeer.Count;
import flink.AdsPeer.Keyed;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.streaming.api.operators.AbstractStreamOperator;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;

/**
 * The first of two phases of a windowed count, as Flink's SQL puts it before the exchange: counts by window and key in
 * the slot where the events are, and hands them on when the watermark ends the window. So the exchange carries a count
 * for each key and not each event.
 */
final class LocalCount extends AbstractStreamOperator<Count>
        implements OneInputStreamOperator<Keyed, Count> {
    private final long windowMs;
    /** By start. */
    private transient TreeMap<Long, Partials> windows;
    /** Where the last event belonged: those that follow mostly do, too. */
    private transient long lastStart;
    private transient Partials last;

    LocalCount(long windowMs) {
        this.windowMs = windowMs;
    }

    @Override
    public void open() throws Exception {
        super.open();
        windows = new TreeMap<>();
        last = null;
    }

    @Override
    public void processElement(StreamRecord<Keyed> element) {
        Keyed event = element.getValue();
        long start = event.timeMs - Math.floorMod(event.timeMs, windowMs);
        if (last == null || start != lastStart) {
            last = windows.computeIfAbsent(start, unused -> new Partials());
            lastStart = start;
        }
        last.add(event.key, event.timeMs);
    }

    @Override
    public void processWatermark(Watermark mark) throws Exception {
        while (!windows.isEmpty() && windows.firstKey() + windowMs - 1 <= mark.getTimestamp()) {
            Map.Entry<Long, Partials> over = windows.pollFirstEntry();
            long start = over.getKey();
            StreamRecord<Count> record = new StreamRecord<>(null, start + windowMs - 1);
            over.getValue()
                    .forEach(
                            (key, count, timeMs) -> {
                                Count partial = new Count();
                                partial.windowMs = start;
                                partial.key = key;
                                partial.count = count;
                                partial.timeMs = timeMs;
                                output.collect(record.replace(partial));
                            });
            last = null;
        }
        super.processWatermark(mark);
    }

    /** Counts and largest times by key: a table with open addressing, so that no number becomes an object. */
    private static final class Partials {
        interface Visit {
            void of(int key, long count, long timeMs);
        }

        private int[] keys = new int[1024];
        private long[] counts = new long[1024];
        private long[] times = new long[1024];
        private int used = 0;

        void add(int key, long timeMs) {
            int at = place(key);
            if (counts[at] == 0) {
                if (4 * used >= 3 * keys.length) {
                    grow();
                    at = place(key);
                }
                used++;
                keys[at] = key;
                times[at] = timeMs;
            }
            counts[at]++;
            times[at] = Math.max(times[at], timeMs);
        }

        /** Where a key is, or would be: a place without a count is free. */
        private int place(int key) {
            int mask = keys.length - 1;
            int at = (key * 0x9E3779B9 >>> 12) & mask;
            while (counts[at] != 0 && keys[at] != key) {
                at = (at + 1) & mask;
            }
            return at;
        }

        private void grow() {
            int[] oldKeys = keys;
            long[] oldCounts = counts;
            long[] oldTimes = times;
            keys = new int[2 * oldKeys.length];
            counts = new long[keys.length];
            times = new long[keys.length];
            for (int old = 0; old < oldKeys.length; old++) {
                if (oldCounts[old] != 0) {
                    int at = place(oldKeys[old]);
                    keys[at] = oldKeys[old];
                    counts[at] = oldCounts[old];
                    times[at] = oldTimes[old];
                }
            }
        }

        void forEach(Visit visit) {
            for (int at = 0; at < keys.length; at++) {
                if (counts[at] != 0) {
                    visit.of(keys[at], counts[at], times[at]);
                }
            }
        }
    }
}
