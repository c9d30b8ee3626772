package ads;

import java.util.ArrayList;
import java.util.List;

/** How many events one instance has made, by window, in order of time. */
public final class Made {
    private final List<long[]> windows = new ArrayList<>();

    /** Adds this number of events to the window that starts at this time. */
    public void add(long windowMs, long events) {
        long[] last = windows.isEmpty() ? null : windows.get(windows.size() - 1);
        if (last != null && last[0] == windowMs) {
            last[1] += events;
        } else {
            windows.add(new long[] {windowMs, events});
        }
    }

    String json() {
        var parts = new ArrayList<String>();
        for (long[] window : windows) {
            parts.add("[" + window[0] + "," + window[1] + "]");
        }
        return "[" + String.join(",", parts) + "]";
    }
}
