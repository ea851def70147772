import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/**
 * Apache's client pops, in order unless asked otherwise, as its proxy does: its push consumer cannot. Driven by
 * JSON lines until "stop", for any group.
 *
 * <p>{"group": g, "topic": t, "ask": "pop", "queueId": n, "count": n, "invisible": ms, "attempt": id, "order": boolean}
 * <br>{"ask": "ack", "handle": of a message} and {"ask": "change", "handle": of a message, "invisible": ms}
 *
 * <p>Properties: namesrv, broker (address), brokerName.
 */
public final class Pop {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final String BROKER = System.getProperty("broker");
    private static final String BROKER_NAME = System.getProperty("brokerName");
    private static final long TIMEOUT_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer client = new DefaultMQProducer("interop_pop");
        client.setNamesrvAddr(System.getProperty("namesrv"));
        client.start();
        MQClientAPIImpl api = client.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
        print(new JSONObject().fluentPut("event", "started"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            JSONObject question = JSON.parseObject(line);
            JSONObject answer = new JSONObject().fluentPut("event", "answer").fluentPut("id", question.get("id"));
            try {
                print(answer.fluentPut("answer", ask(api, question)));
            } catch (Exception failure) {
                print(answer.fluentPut("error", failure.toString()));
            }
        }
        client.shutdown();
        print(new JSONObject().fluentPut("event", "stopped"));
        System.exit(0);
    }

    private static Object ask(MQClientAPIImpl api, JSONObject question) throws Exception {
        return switch (question.getString("ask")) {
            case "pop" -> pop(api, question);
            case "ack" -> ack(api, question);
            case "change" -> change(api, question);
            default -> throw new IllegalArgumentException(question.toString());
        };
    }

    private static JSONArray pop(MQClientAPIImpl api, JSONObject question) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(question.getString("group"));
        header.setTopic(question.getString("topic"));
        header.setQueueId(question.getIntValue("queueId"));
        header.setMaxMsgNums(question.getIntValue("count"));
        header.setInvisibleTime(question.getLongValue("invisible"));
        header.setInitMode(0);
        header.setExpType("TAG");
        header.setExp("*");
        header.setOrder(question.getBooleanValue("order", true));
        header.setAttemptId(question.getString("attempt"));
        header.setPollTime(0);
        header.setBornTime(System.currentTimeMillis());
        CompletableFuture<PopResult> popped = new CompletableFuture<>();
        api.popMessageAsync(BROKER_NAME, BROKER, header, TIMEOUT_MS, new PopCallback() {
            @Override
            public void onSuccess(PopResult result) {
                popped.complete(result);
            }

            @Override
            public void onException(Throwable failure) {
                popped.completeExceptionally(failure);
            }
        });
        JSONArray messages = new JSONArray();
        List<MessageExt> found = popped.get(TIMEOUT_MS, TimeUnit.MILLISECONDS).getMsgFoundList();
        for (MessageExt message : found == null ? List.<MessageExt>of() : found) {
            messages.add(new JSONObject()
                .fluentPut("body", new String(message.getBody(), StandardCharsets.UTF_8))
                .fluentPut("handle", message.getProperty(MessageConst.PROPERTY_POP_CK))
                .fluentPut("times", message.getReconsumeTimes()));
        }
        return messages;
    }

    private static String ack(MQClientAPIImpl api, JSONObject question) throws Exception {
        String handle = question.getString("handle");
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup(question.getString("group"));
        header.setTopic(question.getString("topic"));
        header.setQueueId(ExtraInfoUtil.getQueueId(ExtraInfoUtil.split(handle)));
        header.setOffset(ExtraInfoUtil.getQueueOffset(ExtraInfoUtil.split(handle)));
        header.setExtraInfo(handle);
        Answered answered = new Answered();
        api.ackMessageAsync(BROKER, TIMEOUT_MS, answered, header);
        return answered.result.get(TIMEOUT_MS, TimeUnit.MILLISECONDS).getStatus().name();
    }

    private static String change(MQClientAPIImpl api, JSONObject question) throws Exception {
        String handle = question.getString("handle");
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setConsumerGroup(question.getString("group"));
        header.setTopic(question.getString("topic"));
        header.setQueueId(ExtraInfoUtil.getQueueId(ExtraInfoUtil.split(handle)));
        header.setOffset(ExtraInfoUtil.getQueueOffset(ExtraInfoUtil.split(handle)));
        header.setExtraInfo(handle);
        header.setInvisibleTime(question.getLongValue("invisible"));
        Answered answered = new Answered();
        api.changeInvisibleTimeAsync(BROKER_NAME, BROKER, header, TIMEOUT_MS, answered);
        return answered.result.get(TIMEOUT_MS, TimeUnit.MILLISECONDS).getExtraInfo();
    }

    private static final class Answered implements AckCallback {
        private final CompletableFuture<AckResult> result = new CompletableFuture<>();

        @Override
        public void onSuccess(AckResult answer) {
            result.complete(answer);
        }

        @Override
        public void onException(Throwable failure) {
            result.completeExceptionally(failure);
        }
    }

    private static synchronized void print(JSONObject line) {
        OUT.println(line.toJSONString());
        OUT.flush();
    }
}
