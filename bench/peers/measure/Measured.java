package measure;

import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.charset.Charset;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;

/** Runs a count as every peer does: once on a sample, then on the file, and prints its time and memory. */
public final class Measured {
    /** How many words start with the prefix, and how many there are, or null if that is unknown. */
    public record Counted(long count, Long words) {}

    /** A count of words of a file that start with a prefix, both as strings of {@link #BYTES}. */
    public interface Count {
        Counted of(String file, String prefix) throws Exception;
    }

    /**
     * Text as bytes, each a character: white space and prefixes are found as in UTF-8, in half the
     * memory wherever text is not all ASCII.
     */
    public static final Charset BYTES = StandardCharsets.ISO_8859_1;

    /**
     * To be called when all is started up.
     *
     * @param arguments those of the program: FILE PREFIX SAMPLE STARTED, the last in seconds since
     *     1970
     */
    public static void run(String peer, String version, String[] arguments, Count count)
            throws Exception {
        String file = arguments[0];
        byte[] prefixBytes = arguments[1].getBytes(StandardCharsets.UTF_8);
        String prefix = new String(prefixBytes, BYTES);
        String sample = arguments[2];
        double startupSeconds =
                System.currentTimeMillis() / 1e3 - Double.parseDouble(arguments[3]);

        count.of(sample, prefix);
        double cpuBefore = cpuSeconds();
        long before = System.nanoTime();
        Counted counted = count.of(file, prefix);
        double seconds = (System.nanoTime() - before) / 1e9;
        double cpuSeconds = cpuSeconds() - cpuBefore;
        System.out.printf(
                Locale.ROOT,
                "{\"peer\":\"%s\",\"version\":\"%s\",\"count\":%d,\"words\":%d,\"seconds\":%.3f,"
                        + "\"startup_seconds\":%.3f,\"cpu_seconds\":%.3f,\"peak_bytes\":%d}%n",
                peer, version, counted.count, counted.words, seconds,
                startupSeconds, cpuSeconds, peakBytes());
    }

    /** Of all threads of this process. */
    private static double cpuSeconds() {
        var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    /** The most memory that this process ever had resident. */
    private static long peakBytes() throws IOException {
        try (var lines = Files.lines(Path.of("/proc/self/status"))) {
            String line = lines.filter(status -> status.startsWith("VmHWM:")).findFirst().get();
            return Long.parseLong(line.replaceAll("\\D", "")) * 1024;
        }
    }

    private Measured() {}
}
