package streams;

import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.ThreadMetadata;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueStore;

/** Joins two tables by their keys. The tables and the result each have a store with a changelog. */
class TableJoin {
    /** The server compacts a changelog when records have been in its open file for a second. */
    private static final Map<String, String> CHANGELOG = Map.of("segment.bytes", "1048576",
            "min.cleanable.dirty.ratio", "0.01", "max.compaction.lag.ms", "1000", "file.delete.delay.ms", "0");

    private static Materialized<String, String, KeyValueStore<Bytes, byte[]>> store(String name) {
        return Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as(name)
                .withKeySerde(Serdes.String()).withValueSerde(Serdes.String()).withLoggingEnabled(CHANGELOG);
    }

    private static Topology topology(String application) {
        var builder = new StreamsBuilder();
        var strings = Serdes.String();
        var left = builder.table(application + "-left", Consumed.with(strings, strings), store("left"));
        var right = builder.table(application + "-right", Consumed.with(strings, strings), store("right"));
        left.join(right, (one, other) -> one + " " + other, store("joined"))
                .toStream()
                .to(application + "-out", Produced.with(strings, strings));
        return builder.build();
    }

    /** Prints the changelogs that are restored for active tasks: from which offset, up to which, and how many records. */
    private static class Restores implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition changelog, String store, long from, long end) {
            System.out.println("restoring " + changelog + " " + from + " " + end);
        }

        @Override
        public void onBatchRestored(TopicPartition changelog, String store, long end, long records) {
        }

        @Override
        public void onRestoreEnd(TopicPartition changelog, String store, long records) {
            System.out.println("restored " + changelog + " " + records);
        }
    }

    private static String tasks(Set<ThreadMetadata> threads) {
        int active = threads.stream().mapToInt(thread -> thread.activeTasks().size()).sum();
        int standby = threads.stream().mapToInt(thread -> thread.standbyTasks().size()).sum();
        return "tasks " + active + " " + standby;
    }

    /** Runs until it is killed. Prints how many active and standby tasks it has, and its restores. */
    public static void main(String[] arguments) throws Exception {
        var application = arguments[1];
        var settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", application);
        settings.put("state.dir", arguments[2]);
        for (var setting : List.of(arguments).subList(3, arguments.length)) {
            settings.put(setting.substring(0, setting.indexOf('=')), setting.substring(setting.indexOf('=') + 1));
        }
        var streams = new KafkaStreams(topology(application), settings);
        streams.setGlobalStateRestoreListener(new Restores());
        streams.start();
        var last = "";
        while (true) {
            var now = tasks(streams.metadataForLocalThreads());
            if (!now.equals(last)) {
                System.out.println(now);
                last = now;
            }
            Thread.sleep(50);
        }
    }
}
