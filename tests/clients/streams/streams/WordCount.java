package streams;

import java.util.List;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/** Kafka Streams' word count, with its defaults for all settings that it is not given. */
class WordCount {
    static final String STORE = "counts";

    private static Topology topology(String in, String out) {
        var builder = new StreamsBuilder();
        var strings = Serdes.String();
        builder.stream(in, Consumed.with(strings, strings))
                .flatMapValues(line -> List.of(line.split(" ")))
                .groupBy((key, word) -> word, Grouped.with(strings, strings))
                .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(STORE)
                        .withKeySerde(strings).withValueSerde(Serdes.Long()))
                .toStream()
                .to(out, Produced.with(strings, Serdes.Long()));
        return builder.build();
    }

    /** Runs until it is asked to end, or is killed. Prints its states. */
    public static void main(String[] arguments) {
        var application = arguments[1];
        var settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", application);
        settings.put("state.dir", arguments[2]);
        for (var setting : List.of(arguments).subList(3, arguments.length)) {
            settings.put(setting.substring(0, setting.indexOf('=')), setting.substring(setting.indexOf('=') + 1));
        }
        var streams = new KafkaStreams(topology(application + "-in", application + "-out"), settings);
        streams.setStateListener((now, before) -> System.out.println(now));
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
