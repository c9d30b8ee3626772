package spark;

import ads.Event;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;

/** The requested fields. */
final class EventColumns {
    static final StructType SCHEMA =
            new StructType()
                    .add("time", DataTypes.TimestampType, false)
                    .add("ad", DataTypes.IntegerType, false)
                    .add("kind", DataTypes.ByteType, false);

    static ColumnVector[] of(StructType schema, Event event, int[] starts) {
        StructField[] fields = schema.fields();
        var columns = new ColumnVector[fields.length];
        for (int number = 0; number < fields.length; number++) {
            columns[number] =
                    switch (fields[number].name()) {
                        case "time" -> new Time(event, starts);
                        case "ad" -> new Ad(event, starts);
                        default -> new Kind(event, starts);
                    };
        }
        return columns;
    }

    private static final class Time extends EventColumn {
        Time(Event event, int[] starts) {
            super(DataTypes.TimestampType, event, starts);
        }

        /** In microseconds since 1970. */
        @Override
        public long getLong(int row) {
            return at(row).timeMs() * 1000;
        }
    }

    private static final class Ad extends EventColumn {
        Ad(Event event, int[] starts) {
            super(DataTypes.IntegerType, event, starts);
        }

        @Override
        public int getInt(int row) {
            return at(row).ad();
        }
    }

    private static final class Kind extends EventColumn {
        Kind(Event event, int[] starts) {
            super(DataTypes.ByteType, event, starts);
        }

        @Override
        public byte getByte(int row) {
            return (byte) at(row).kind();
        }
    }

    private EventColumns() {}
}
