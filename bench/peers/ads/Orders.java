package ads;

import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;

/** Reads orders, a line each, and prints the result of each; see ads.sh. */
public final class Orders {
    /** Runs an order, and reports its results to {@link Run#current}. */
    public interface Worker {
        void run(Order order) throws Exception;
    }

    public static void answer(Worker worker) throws Exception {
        // No other output mixes with the answers.
        PrintStream out = System.out;
        System.setOut(System.err);
        try (var lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                Order order = Order.parse(line);
                double cpuBefore = cpuSeconds();
                Run.begin(order);
                worker.run(order);
                out.println(Run.current().json(cpuSeconds() - cpuBefore));
                out.flush();
            }
        }
    }

    /** Of all threads of this process. */
    private static double cpuSeconds() throws IOException {
        var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    private Orders() {}
}
