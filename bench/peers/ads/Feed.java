package ads;

/** The events of one instance as they fall due, as in apps/ads/src/workload/feed.rs. */
public final class Feed {
    private static final long GRACE_NANOS = 50_000_000;
    private static final long WAIT_NANOS_MIN = 500_000;

    private final Order order;
    private final Generator generator;
    private final Made made;
    private long next;
    private long waitNanos = 0;
    private boolean isOver = false;

    /** Begins at an event; adds its counts after those made before. */
    public Feed(Order order, int instance, long from, Made made) {
        this.order = order;
        this.made = made;
        generator = new Generator(instance);
        next = from;
    }

    /** The number of events that are due now and form the next block; 0 if none is, or ever will be. */
    public int due(long elapsedNanos) {
        long durationNanos = order.durationMs() * 1_000_000;
        long rate = order.instanceRate();
        if (rate == 0) {
            isOver = elapsedNanos >= durationNanos;
            return isOver ? 0 : Generator.BATCH_EVENTS;
        }
        long total = order.instanceEvents();
        isOver = next >= total || elapsedNanos >= durationNanos + GRACE_NANOS;
        if (isOver) {
            return 0;
        }
        long due = Math.min(total, (long) ((double) elapsedNanos * rate / 1e9));
        long nextNanos = (next + 1) * 1_000_000_000 / rate;
        waitNanos = Math.max(WAIT_NANOS_MIN, nextNanos - elapsedNanos);
        return (int) Math.max(0, Math.min(due - next, Generator.BATCH_EVENTS));
    }

    public boolean isOver() {
        return isOver;
    }

    /** Until an event is due, when none was. */
    public long waitNanos() {
        return waitNanos;
    }

    /** Makes this number of events; returns a view of the first. */
    public Event make(int events, long elapsedNanos) {
        long rate = order.instanceRate();
        long sinceStartMs =
                rate == 0 ? elapsedNanos / 1_000_000 : (next + events) * 1000 / rate;
        long timeMs = order.startMs() + sinceStartMs;
        Event event = generator.fill(next, events, timeMs);
        next += events;
        made.add(timeMs - Math.floorMod(timeMs, order.windowMs()), events);
        return event;
    }

    public Made made() {
        return made;
    }
}
