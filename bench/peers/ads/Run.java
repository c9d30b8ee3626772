package ads;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;

/**
 * The run in progress in this process. Its instances report to it from any thread or task of the system.
 */
public final class Run {
    private static volatile Run current;

    private final Order order;
    private final CountDownLatch ready = new CountDownLatch(Order.INSTANCES);
    private final Made[] made = new Made[Order.INSTANCES];
    private final List<String> released = new ArrayList<>();
    private long startNanos;
    private double seconds = 0;

    private Run(Order order) {
        this.order = order;
    }

    static void begin(Order order) {
        current = new Run(order);
    }

    public static Run current() {
        return current;
    }

    public Order order() {
        return order;
    }

    /** To be called by each instance when it could make events, if there are threads for all; waits for them. */
    public void start() throws InterruptedException {
        synchronized (this) {
            startNanos = System.nanoTime();
            ready.countDown();
        }
        ready.await();
    }

    /** Starts all instances, where one thread does that. */
    public synchronized void startAll() {
        startNanos = System.nanoTime();
        for (int instance = 0; instance < Order.INSTANCES; instance++) {
            ready.countDown();
        }
    }

    public void awaitStart() throws InterruptedException {
        ready.await();
    }

    /** Since the start. */
    public long elapsedNanos() {
        return System.nanoTime() - startNanos;
    }

    /** Now, by the clock that gives events their times. */
    public double nowMs() {
        return order.startMs() + elapsedNanos() / 1e6;
    }

    /** The events that an instance has made so far. */
    public synchronized Made madeSoFar(int instance) {
        return made[instance] == null ? new Made() : made[instance];
    }

    /** To be called by each instance when it has made its last event, or more of them. */
    public synchronized void made(int instance, Made by) {
        made[instance] = by;
        seconds = elapsedNanos() / 1e9;
    }

    /** To be called when a window returns its result for a key. */
    public synchronized void release(
            long windowMs, int key, long count, long clicks, double ratio, long timeMs) {
        released.add(
                String.format(
                        Locale.ROOT,
                        "[%d,%d,%d,%d,%.9f,%d,%.3f]",
                        windowMs, key, count, clicks, ratio, timeMs, nowMs()));
    }

    synchronized String json(double cpuSeconds) {
        var instances = new ArrayList<String>();
        for (Made by : made) {
            instances.add(by.json());
        }
        return String.format(
                Locale.ROOT,
                "{\"seconds\":%.3f,\"cpu_seconds\":%.3f,\"made\":[%s],\"released\":[%s]}",
                seconds, cpuSeconds, String.join(",", instances), String.join(",", released));
    }
}
