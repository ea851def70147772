import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Apache's mqadmin, many commands in one process: a process of its own takes a second to start for each.
 *
 * <p>{"id": any, "arguments": ["topicRoute", "-n", address, "-t", topic]} is answered with what the command
 * printed: {"event": "ran", "id": any, "out": text, "err": text}. "stop" ends it, and so does a command line that
 * mqadmin cannot parse. {"id": any, "forbid": {"broker": address, "group": g, "topic": t, "readable": yes}} calls what
 * mqadmin has no command for, and its answer has "readable"; without "readable" it only asks.
 */
public final class Admin {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        print(new JSONObject().fluentPut("event", "started"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            if (command.containsKey("forbid")) {
                print(new JSONObject().fluentPut("event", "ran").fluentPut("id", command.get("id"))
                    .fluentPut("readable", forbid(command.getJSONObject("forbid"))));
                continue;
            }
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            MQAdminStartup.main0(command.getJSONArray("arguments").toArray(String.class), null);
            print(new JSONObject()
                .fluentPut("event", "ran").fluentPut("id", command.get("id"))
                .fluentPut("out", out.toString(StandardCharsets.UTF_8))
                .fluentPut("err", err.toString(StandardCharsets.UTF_8)));
        }
        print(new JSONObject().fluentPut("event", "stopped"));
        System.exit(0);
    }

    private static Boolean forbid(JSONObject wanted) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(wanted.getString("namesrv"));
        admin.start();
        try {
            return admin.updateAndGetGroupReadForbidden(wanted.getString("broker"), wanted.getString("group"),
                wanted.getString("topic"), wanted.getBoolean("readable")).getReadable();
        } finally {
            admin.shutdown();
        }
    }

    private static void print(JSONObject event) {
        OUT.println(event.toJSONString());
        OUT.flush();
    }
}
