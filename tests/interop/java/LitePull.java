import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Apache's lite pull consumer: prints each message and each change of its queues as a JSON line, until "stop".
 *
 * <p>Properties: namesrv, group, topic, tags (*).
 */
public final class LitePull {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(System.getProperty("group"));
        consumer.setNamesrvAddr(System.getProperty("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommitIntervalMillis(1_000);
        consumer.setPollTimeoutMillis(100);
        consumer.subscribe(System.getProperty("topic"), System.getProperty("tags", "*"));
        consumer.start();
        print(new JSONObject().fluentPut("event", "started"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Set<MessageQueue> mine = Set.of();
        while (!in.ready()) {
            if (!mine.equals(consumer.assignment())) {  // subscribe() replaces a listener of ours.
                mine = new TreeSet<>(consumer.assignment());
                JSONArray queues = new JSONArray();
                for (MessageQueue queue : mine) {
                    queues.add(queue.getBrokerName() + ":" + queue.getQueueId());
                }
                print(new JSONObject().fluentPut("event", "queues").fluentPut("queues", queues));
            }
            for (MessageExt message : consumer.poll()) {
                print(new JSONObject().fluentPut("event", "message").fluentPut("queueId", message.getQueueId())
                    .fluentPut("offset", message.getQueueOffset())
                    .fluentPut("body", new String(message.getBody(), StandardCharsets.UTF_8)));
            }
        }
        consumer.commitSync();
        consumer.shutdown();
        print(new JSONObject().fluentPut("event", "stopped"));
        System.exit(0);
    }

    private static synchronized void print(JSONObject event) {
        OUT.println(event.toString());
        OUT.flush();
    }
}
