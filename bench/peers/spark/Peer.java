package spark;

import java.util.Iterator;
import measure.Measured;
import measure.Measured.Counted;
import measure.WhiteSpace;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapred.TextInputFormat;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;

/**
 * The count with the RDD API on two threads: lines, words, those that start with the prefix, their
 * number.
 */
public final class Peer {
    private static final int THREADS = 2;

    public static void main(String[] arguments) throws Exception {
        var settings =
                new SparkConf()
                        .setMaster("local[" + THREADS + "]")
                        .setAppName("peer")
                        .set("spark.ui.enabled", "false");
        try (var context = new JavaSparkContext(settings)) {
            Measured.run(
                    "spark",
                    context.version(),
                    arguments,
                    (file, prefix) -> new Counted(count(context, file, prefix), null));
        }
    }

    private static long count(JavaSparkContext context, String file, String prefix) {
        return lines(context, file)
                .flatMap(Words::new)
                .filter(word -> word.startsWith(prefix))
                .count();
    }

    /** As JavaSparkContext.textFile, but as bytes rather than UTF-8. */
    private static JavaRDD<String> lines(JavaSparkContext context, String file) {
        return context.hadoopFile(
                        file, TextInputFormat.class, LongWritable.class, Text.class, THREADS)
                .map(line -> bytes(line._2));
    }

    private static String bytes(Text line) {
        return new String(line.getBytes(), 0, line.getLength(), Measured.BYTES);
    }

    private static final class Words implements Iterator<String> {
        private final String line;
        /** Where the next word starts. */
        private int start;

        Words(String line) {
            this.line = line;
            start = WhiteSpace.skip(line, 0);
        }

        @Override
        public boolean hasNext() {
            return start < line.length();
        }

        @Override
        public String next() {
            int end = WhiteSpace.next(line, start);
            String word = line.substring(start, end);
            start = WhiteSpace.skip(line, end);
            return word;
        }
    }
}
