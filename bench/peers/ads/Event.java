package ads;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;

/**
 * An event where it lies in a block: time (8 bytes), ad (4), kind (1), form (1), length (2), user,
 * page, address (16 each), user agent (48 to 96), little-endian. As in
 * apps/ads/src/workload/mod.rs.
 */
public final class Event {
    public static final int VIEW = 0;
    public static final int CLICK = 1;

    static final VarHandle LONG =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.LITTLE_ENDIAN);
    static final VarHandle INT =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.LITTLE_ENDIAN);
    static final VarHandle SHORT =
            MethodHandles.byteArrayViewVarHandle(short[].class, ByteOrder.LITTLE_ENDIAN);

    static final int AD = 8;
    static final int KIND = 12;
    static final int FORM = 13;
    static final int LENGTH = 14;
    static final int USER = 16;
    static final int AGENT = 64;

    private final byte[] block;
    private int at;

    Event(byte[] block) {
        this.block = block;
    }

    /** To an event that starts there. */
    public void to(int start) {
        at = start;
    }

    /** Where it starts in the block. */
    public int start() {
        return at;
    }

    /** To the event behind. */
    public void next() {
        at += (short) SHORT.get(block, at + LENGTH);
    }

    /** When it was made, in milliseconds since 1970. */
    public long timeMs() {
        return (long) LONG.get(block, at);
    }

    public int ad() {
        return (int) INT.get(block, at + AD);
    }

    public int kind() {
        return block[at + KIND];
    }
}
