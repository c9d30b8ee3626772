import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's own tools one after the other in one JVM, since a JVM takes seconds to start.
 *
 * Reads a line of JSON for each: {"main": class, "args": [...], "input": text}. Writes a line of JSON when the tool has
 * ended: {"code": exit code, "said": its output}.
 */
public final class Tools {
    /** Thrown where a tool would end the JVM. */
    private static final class Exited extends Error {
        Exited() {
            super(null, null, false, false);
        }
    }

    /** The shutdown hooks of the present tool. */
    private static final List<Runnable> hooks = new ArrayList<>();

    /** The code of the first exit of a tool; later exits, while the first one unwinds, do not count. */
    private static Integer code;

    public static void main(String[] args) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream out = System.out;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        Exit.Procedure exit = (status, message) -> {
            code = code == null ? status : code;
            // Some tools take this for an error and print it, which they cannot where the JVM really ends.
            System.setOut(new PrintStream(OutputStream.nullOutputStream()));
            System.setErr(System.out);
            throw new Exited();
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = json.readTree(line);
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            PrintStream to = new PrintStream(said, true);
            System.setOut(to);
            System.setErr(to);
            System.setIn(new ByteArrayInputStream(asked.path("input").asText().getBytes()));
            List<String> toolArgs = new ArrayList<>();
            asked.get("args").forEach(arg -> toolArgs.add(arg.asText()));
            code = null;
            try {
                run(asked.get("main").asText(), toolArgs.toArray(new String[0]));
            } catch (Exited ended) {
                // The code is noted.
            } catch (Throwable failed) {
                failed.printStackTrace(to);
                code = code == null ? 1 : code;
            }
            for (Runnable hook : hooks) {
                hook.run();
            }
            hooks.clear();
            to.flush();
            Map<String, Object> answer = Map.of("code", code == null ? 0 : code, "said", said.toString());
            out.println(json.writeValueAsString(answer));
            out.flush();
        }
    }

    private static void run(String main, String[] args) throws Throwable {
        try {
            Class.forName(main).getMethod("main", String[].class).invoke(null, (Object) args);
        } catch (InvocationTargetException thrown) {
            throw thrown.getCause();
        }
    }
}
