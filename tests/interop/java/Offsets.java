import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Apache's pull consumer as a question-and-answer program about offsets, driven by JSON lines until "stop".
 *
 * <p>{"ask": "queues" | "min" | "max" | "search" | "earliest" | "committed" | "commit" | "pull", "topic": t,
 * "broker": name, "queueId": n, "timestamp": ms, "offset": n, "tags": expression, "count": n}
 */
public final class Offsets {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(System.getProperty("group", "interop_offsets"));
        consumer.setNamesrvAddr(System.getProperty("namesrv"));
        consumer.start();
        print(new JSONObject().fluentPut("event", "started").fluentPut("clientId", consumer.buildMQClientId()));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            JSONObject question = JSON.parseObject(line);
            JSONObject answer = new JSONObject().fluentPut("event", "answer").fluentPut("id", question.get("id"));
            try {
                print(answer.fluentPut("answer", ask(consumer, question)));
            } catch (Exception failure) {
                print(answer.fluentPut("error", failure.toString()));
            }
        }
        consumer.shutdown();
        print(new JSONObject().fluentPut("event", "stopped"));
        System.exit(0);
    }

    private static Object ask(DefaultMQPullConsumer consumer, JSONObject question) throws Exception {
        MessageQueue queue = new MessageQueue(
            question.getString("topic"), question.getString("broker"), question.getIntValue("queueId"));
        switch (question.getString("ask")) {
            case "queues":
                JSONArray queues = new JSONArray();
                for (MessageQueue one : new TreeSet<>(consumer.fetchSubscribeMessageQueues(queue.getTopic()))) {
                    queues.add(new JSONObject()
                        .fluentPut("broker", one.getBrokerName()).fluentPut("queueId", one.getQueueId()));
                }
                return queues;
            case "min":
                return consumer.minOffset(queue);
            case "max":
                return consumer.maxOffset(queue);
            case "search":
                return consumer.searchOffset(queue, question.getLongValue("timestamp"));
            case "earliest":
                return consumer.earliestMsgStoreTime(queue);
            case "committed":
                return consumer.fetchConsumeOffset(queue, true);
            case "commit":
                consumer.updateConsumeOffset(queue, question.getLongValue("offset"));
                consumer.getOffsetStore().updateConsumeOffsetToBroker(queue, question.getLongValue("offset"), false);
                return question.getLongValue("offset");
            case "pull":
                PullResult result = consumer.pull(queue, question.getString("tags"),
                    question.getLongValue("offset"), question.getIntValue("count"));
                JSONArray bodies = new JSONArray();
                if (result.getMsgFoundList() != null) {
                    for (MessageExt message : result.getMsgFoundList()) {
                        bodies.add(new String(message.getBody(), StandardCharsets.UTF_8));
                    }
                }
                return new JSONObject().fluentPut("status", result.getPullStatus().name())
                    .fluentPut("next", result.getNextBeginOffset()).fluentPut("min", result.getMinOffset())
                    .fluentPut("max", result.getMaxOffset()).fluentPut("bodies", bodies);
            default:
                throw new IllegalArgumentException(question.getString("ask"));
        }
    }

    private static synchronized void print(JSONObject line) {
        OUT.println(line.toJSONString());
        OUT.flush();
    }
}
