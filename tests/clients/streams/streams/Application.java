package streams;

import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;

/** An application that counts the records of each key, in a state store behind a repartition topic. */
class Application {
    /** Its tasks: two of the source, three of the repartition topic. */
    static final int TASKS = 5;
    static final String STORE = "counts";
    /** A record with this value ends the instance that reads it. */
    static final String POISON = "poison";

    static Topology topology(String in, String out) {
        var builder = new StreamsBuilder();
        var strings = Serdes.String();
        builder.stream(in, Consumed.with(strings, strings))
                .peek((key, value) -> {
                    if (value.equals(POISON)) {
                        throw new IllegalArgumentException(POISON);
                    }
                })
                .repartition(Repartitioned.<String, String>as("r")
                        .withKeySerde(strings).withValueSerde(strings).withNumberOfPartitions(3))
                .groupByKey(Grouped.with(strings, strings))
                .count(Materialized.as(STORE))
                .toStream()
                .to(out, Produced.with(strings, Serdes.Long()));
        return builder.build();
    }

    static Properties settings(String address, String application, String protocol, String folder) {
        var settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("application.id", application);
        settings.put("group.protocol", protocol);
        settings.put("processing.guarantee", "exactly_once_v2");
        settings.put("commit.interval.ms", "100");
        settings.put("state.dir", folder);
        // Every count is emitted, and not only the last one before a commit.
        settings.put("statestore.cache.max.bytes", "0");
        if (protocol.equals("classic")) {
            settings.put("session.timeout.ms", "6000");
        }
        return settings;
    }

    static int tasks(KafkaStreams streams) {
        return streams.metadataForLocalThreads().stream().mapToInt(thread -> thread.activeTasks().size()).sum();
    }

    /** Runs until it is killed, and prints how many tasks it has. */
    public static void main(String[] arguments) throws Exception {
        var application = arguments[1];
        var settings = settings(arguments[0], application, arguments[2], arguments[3]);
        var streams = new KafkaStreams(topology(application + "-in", application + "-out"), settings);
        streams.start();
        int last = -1;
        while (true) {
            int now = tasks(streams);
            if (now != last) {
                System.out.println(now);
                last = now;
            }
            Thread.sleep(50);
        }
    }
}
