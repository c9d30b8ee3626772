package ads;

import java.nio.charset.StandardCharsets;

/**
 * The events of one instance, a block at a time: the same ones, in the same bytes, as apps/ads/src/workload makes. The
 * content of an event follows from its instance and number.
 */
public final class Generator {
    public static final int ADS = 1000;
    public static final int CAMPAIGNS = 100;

    /** The most events that are made at a time. */
    public static final int BATCH_EVENTS = 256;

    private static final int SCATTER = 7919;
    private static final int AGENT_BYTES_MAX = 96;
    private static final int[] AGENT_LENGTHS = {48, 56, 64, 72, 72, 80, 88, 96};
    private static final byte[][] AGENTS = agents();
    private static final long[] PEOPLE = {
        0x9E6C63D0876A68DEL,
        0x3C79AC492BA7B653L,
        0x1C69B3F74AC4AE35L,
        0xD6E8FEB86659FD93L,
        0xA0761D6478BD642FL,
        0xE7037ED1A0B428DBL,
    };

    private final byte[] block = new byte[BATCH_EVENTS * (Event.AGENT + AGENT_BYTES_MAX)];
    private final Event event = new Event(block);
    private final long seed;

    public Generator(int instance) {
        seed = ((long) instance << 40) + 1;
    }

    /** The campaign of each ad, by the ad's number. */
    public static int[] campaigns() {
        int[] campaigns = new int[ADS];
        for (int ad = 0; ad < ADS; ad++) {
            campaigns[ad] = ad * SCATTER % ADS / (ADS / CAMPAIGNS);
        }
        return campaigns;
    }

    private static byte[][] agents() {
        String name =
                "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0 (with a number of addons)";
        byte[][] agents = new byte[AGENT_LENGTHS.length][];
        for (int number = 0; number < agents.length; number++) {
            agents[number] = name.getBytes(StandardCharsets.ISO_8859_1);
            agents[number][8] = (byte) ('1' + number);
        }
        return agents;
    }

    /** Fills the block with the events from a number on; returns a view of the first. */
    public Event fill(long number, int events, long timeMs) {
        int at = 0;
        for (int made = 0; made < events; made++) {
            at += write(bits(seed + number + made), timeMs, at);
        }
        event.to(0);
        return event;
    }

    /** The finalizer of SplitMix64. */
    private static long bits(long number) {
        long bits = number * 0x9E3779B97F4A7C15L;
        bits = (bits ^ (bits >>> 30)) * 0xBF58476D1CE4E5B9L;
        bits = (bits ^ (bits >>> 27)) * 0x94D049BB133111EBL;
        return bits ^ (bits >>> 31);
    }

    private int write(long bits, long timeMs, int at) {
        int agent = (int) (bits >>> 32) & 7;
        int length = Event.AGENT + AGENT_LENGTHS[agent];
        Event.LONG.set(block, at, timeMs);
        Event.INT.set(block, at + Event.AD, (int) (((bits >>> 32) * ADS) >>> 32));
        block[at + Event.KIND] = (byte) (((bits & 0xFFFFFFFFL) * 3) >>> 32);
        block[at + Event.FORM] = (byte) (((bits & 0xFFFF) * 5) >>> 16);
        Event.SHORT.set(block, at + Event.LENGTH, (short) length);
        for (int word = 0; word < PEOPLE.length; word++) {
            Event.LONG.set(block, at + Event.USER + 8 * word, bits ^ PEOPLE[word]);
        }
        System.arraycopy(AGENTS[agent], 0, block, at + Event.AGENT, AGENT_BYTES_MAX);
        return length;
    }
}
