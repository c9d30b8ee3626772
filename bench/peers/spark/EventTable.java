package spark;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table of events as they fall due, made in memory by each core. */
public final class EventTable implements TableProvider, SupportsRead {
    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return EventColumns.SCHEMA;
    }

    @Override
    public Table getTable(
            StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return this;
    }

    @Override
    public String name() {
        return "events";
    }

    @Override
    @SuppressWarnings("deprecation") // The alternative needs a catalog.
    public StructType schema() {
        return EventColumns.SCHEMA;
    }

    @Override
    public Set<TableCapability> capabilities() {
        return Set.of(TableCapability.MICRO_BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new Columns();
    }

    /** The columns that a query reads. */
    private static final class Columns implements ScanBuilder, SupportsPushDownRequiredColumns {
        private StructType columns = EventColumns.SCHEMA;

        @Override
        public void pruneColumns(StructType required) {
            columns = required;
        }

        @Override
        public Scan build() {
            return new Events(columns);
        }
    }

    private record Events(StructType columns) implements Scan {
        @Override
        public StructType readSchema() {
            return columns;
        }

        @Override
        public MicroBatchStream toMicroBatchStream(String checkpoint) {
            return new EventStream(columns);
        }
    }
}
