import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's command line tools, all in one process, which ends at "stop".
 *
 * <p>Questions: {"main": class in org.apache.kafka.tools, "arguments": [...]}. The answer has the output and the exit code.
 */
public final class KafkaTools {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final ObjectMapper JSON = new ObjectMapper();

    private static ByteArrayOutputStream printed;
    private static ObjectNode answer;

    /** Thrown in place of ending the process. */
    private static final class Ended extends RuntimeException {
    }

    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure((code, message) -> {
            end(code);
            throw new Ended();
        });
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            JsonNode question = JSON.readTree(line);
            answer = JSON.createObjectNode().put("event", "ran").put("id", question.get("id").asInt());
            printed = new ByteArrayOutputStream();
            PrintStream both = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setOut(both);
            System.setErr(both);
            run(question);
            OUT.println(answer);
            OUT.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(JsonNode question) throws Exception {
        Class<?> tool = Class.forName("org.apache.kafka.tools." + question.get("main").asText());
        String[] arguments = JSON.convertValue(question.get("arguments"), String[].class);
        try {
            tool.getMethod("main", String[].class).invoke(null, (Object) arguments);
            end(0);
        } catch (InvocationTargetException failure) {
            if (!(failure.getCause() instanceof Ended)) {
                throw failure;
            }
        }
    }

    /** Keep what counts at the first end: a tool that catches everything would report another. */
    private static void end(int code) {
        if (!answer.has("code")) {
            answer.put("code", code).put("out", printed.toString(StandardCharsets.UTF_8));
        }
    }
}
