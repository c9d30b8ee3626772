package spark;

import ads.Event;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** One field of the events of a block, read where they lie. */
abstract class EventColumn extends ColumnVector {
    /** The block's events. */
    final Event event;

    /** Where each event starts. */
    final int[] starts;

    EventColumn(DataType type, Event event, int[] starts) {
        super(type);
        this.event = event;
        this.starts = starts;
    }

    Event at(int row) {
        event.to(starts[row]);
        return event;
    }

    @Override
    public void close() {}

    @Override
    public boolean hasNull() {
        return false;
    }

    @Override
    public int numNulls() {
        return 0;
    }

    @Override
    public boolean isNullAt(int row) {
        return false;
    }

    @Override
    public long getLong(int row) {
        throw otherType();
    }

    @Override
    public int getInt(int row) {
        throw otherType();
    }

    @Override
    public byte getByte(int row) {
        throw otherType();
    }

    @Override
    public short getShort(int row) {
        throw otherType();
    }

    @Override
    public boolean getBoolean(int row) {
        throw otherType();
    }

    @Override
    public float getFloat(int row) {
        throw otherType();
    }

    @Override
    public double getDouble(int row) {
        throw otherType();
    }

    @Override
    public ColumnarArray getArray(int row) {
        throw otherType();
    }

    @Override
    public ColumnarMap getMap(int row) {
        throw otherType();
    }

    @Override
    public Decimal getDecimal(int row, int precision, int scale) {
        throw otherType();
    }

    @Override
    public UTF8String getUTF8String(int row) {
        throw otherType();
    }

    @Override
    public byte[] getBinary(int row) {
        throw otherType();
    }

    @Override
    public ColumnVector getChild(int ordinal) {
        throw otherType();
    }

    private UnsupportedOperationException otherType() {
        return new UnsupportedOperationException("this column is of type " + dataType());
    }
}
