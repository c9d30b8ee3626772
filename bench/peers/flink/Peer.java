package flink;

import measure.Measured;
import measure.Measured.Counted;
import measure.WhiteSpace;
import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.api.common.accumulators.LongCounter;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.core.fs.Path;
import org.apache.flink.runtime.minicluster.MiniCluster;
import org.apache.flink.runtime.minicluster.MiniClusterConfiguration;
import org.apache.flink.runtime.util.EnvironmentInformation;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.legacy.RichSinkFunction;
import org.apache.flink.util.Collector;

/**
 * The count as a job of the DataStream API: lines, words, those that start with the prefix, their
 * number. All operators are chained in each of two slots of a cluster within this process.
 */
public final class Peer {
    private static final int SLOTS = 2;

    private static final String COUNT = "count";
    private static final String WORDS = "words";

    public static void main(String[] arguments) throws Exception {
        var settings =
                new MiniClusterConfiguration.Builder()
                        .setNumTaskManagers(1)
                        .setNumSlotsPerTaskManager(SLOTS)
                        .withRandomPorts()
                        .build();
        try (var cluster = new MiniCluster(settings)) {
            cluster.start();
            Measured.run(
                    "flink",
                    EnvironmentInformation.getVersion(),
                    arguments,
                    (file, prefix) -> count(cluster, file, prefix));
        }
    }

    private static Counted count(MiniCluster cluster, String file, String prefix)
            throws Exception {
        var environment = StreamExecutionEnvironment.getExecutionEnvironment(new Configuration());
        environment.setParallelism(SLOTS);
        environment.getConfig().enableObjectReuse();

        var source =
                FileSource.forRecordStreamFormat(new Lines(), new Path(file))
                        .setFileEnumerator(Ranges::new)
                        .build();
        environment
                .fromSource(source, WatermarkStrategy.noWatermarks(), "lines")
                .flatMap(new Split())
                .filter(word -> word.startsWith(prefix))
                .addSink(new CountWords());

        JobExecutionResult result =
                cluster.executeJobBlocking(environment.getStreamGraph().getJobGraph());
        return new Counted(result.getAccumulatorResult(COUNT), result.getAccumulatorResult(WORDS));
    }

    private static final class Split extends RichFlatMapFunction<String, String> {
        private transient LongCounter words;

        @Override
        public void open(OpenContext context) {
            words = getRuntimeContext().getLongCounter(WORDS);
        }

        @Override
        public void flatMap(String line, Collector<String> out) {
            long count = 0;
            int start = WhiteSpace.skip(line, 0);
            while (start < line.length()) {
                int end = WhiteSpace.next(line, start);
                out.collect(line.substring(start, end));
                count++;
                start = WhiteSpace.skip(line, end);
            }
            words.add(count);
        }
    }

    private static final class CountWords extends RichSinkFunction<String> {
        private transient LongCounter count;

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getLongCounter(COUNT);
        }

        @Override
        public void invoke(String word, Context context) {
            count.add(1);
        }
    }
}
