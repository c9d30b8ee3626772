package ads;

import java.io.Serializable;

/**
 * The run that an instance must do.
 *
 * @param app swa, ysb or ysb-star
 * @param rate events per second of all instances together; 0: as many as can be
 * @param startMs the time of events at the start, in milliseconds since 1970
 */
public record Order(String app, long rate, long durationMs, long windowMs, long startMs)
        implements Serializable {
    /** Instances of the generator, slots, threads. */
    public static final int INSTANCES = 2;

    static Order parse(String line) {
        String[] words = line.split(" ");
        return new Order(
                words[0],
                Long.parseLong(words[1]),
                Long.parseLong(words[2]),
                Long.parseLong(words[3]),
                Long.parseLong(words[4]));
    }

    /** Events per second of one instance. */
    public long instanceRate() {
        return rate / INSTANCES;
    }

    /** How many events an instance makes, where there is a rate. */
    public long instanceEvents() {
        return instanceRate() * durationMs / 1000;
    }
}
