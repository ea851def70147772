import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Apache's producer, driven by JSON lines: one command in, one answer out, in any order for async ones.
 *
 * <p>Properties: namesrv, group, timeout (5000), trace (false).
 *
 * <p>{"kind": "sync" | "async" | "oneway" | "batch" | "hash" | "queue" | "queues" | "recall", "id": any, "topic": t,
 * "body": text, "repeat": n, "tags": t, "keys": k, "properties": {}, "delayLevel": n, "deliverAt": ms, "hashBy": text,
 * "queueId": n, "broker": name, "messages": [...]}; "stop" ends it.
 */
public final class Produce {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(System.getProperty("group", "interop_producers"));
        producer.setNamesrvAddr(System.getProperty("namesrv"));
        producer.setSendMsgTimeout(Integer.getInteger("timeout", 5000));
        producer.setEnableTrace(Boolean.getBoolean("trace"));
        producer.start();
        print(new JSONObject().fluentPut("event", "started").fluentPut("clientId", producer.buildMQClientId()));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            try {
                run(producer, command);
            } catch (Exception failure) {
                print(failed(command, failure));
            }
        }
        producer.shutdown();
        print(new JSONObject().fluentPut("event", "stopped"));
        System.exit(0);
    }

    private static void run(DefaultMQProducer producer, JSONObject command) throws Exception {
        switch (command.getString("kind")) {
            case "sync" -> print(sent(command, producer.send(message(command, command))));
            case "async" -> producer.send(message(command, command), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    print(sent(command, result));
                }

                @Override
                public void onException(Throwable failure) {
                    print(failed(command, failure));
                }
            });
            case "oneway" -> {
                producer.sendOneway(message(command, command));
                print(answer(command).fluentPut("status", "SENT"));
            }
            case "batch" -> {
                List<Message> messages = new ArrayList<>();
                JSONArray wanted = command.getJSONArray("messages");
                for (int i = 0; i < wanted.size(); i++) {
                    messages.add(message(command, wanted.getJSONObject(i)));
                }
                print(sent(command, producer.send(messages)));
            }
            case "hash" -> print(sent(command,
                producer.send(message(command, command), new SelectMessageQueueByHash(), command.getString("hashBy"))));
            case "queue" -> print(sent(command, producer.send(message(command, command),
                (queues, one, wanted) -> queues.stream().filter(q -> q.getQueueId() == (int) wanted).findFirst().get(),
                command.getIntValue("queueId"))));
            case "queues" -> {
                JSONArray queues = new JSONArray();
                for (MessageQueue queue : producer.fetchPublishMessageQueues(command.getString("topic"))) {
                    queues.add(new JSONObject()
                        .fluentPut("broker", queue.getBrokerName()).fluentPut("queueId", queue.getQueueId()));
                }
                print(answer(command).fluentPut("queues", queues));
            }
            case "recall" -> print(answer(command).fluentPut("status", "SEND_OK").fluentPut("msgId",
                producer.recallMessage(command.getString("topic"), command.getString("handle"))));
            default -> throw new IllegalArgumentException("kind " + command.getString("kind"));
        }
    }

    private static Message message(JSONObject command, JSONObject wanted) {
        String body = wanted.getString("body").repeat(Math.max(1, wanted.getIntValue("repeat")));
        Message message = new Message(command.getString("topic"), body.getBytes(StandardCharsets.UTF_8));
        if (wanted.containsKey("tags")) {
            message.setTags(wanted.getString("tags"));
        }
        if (wanted.containsKey("keys")) {
            message.setKeys(wanted.getString("keys"));
        }
        if (wanted.containsKey("delayLevel")) {
            message.setDelayTimeLevel(wanted.getIntValue("delayLevel"));
        }
        if (wanted.containsKey("deliverAt")) {
            message.setDeliverTimeMs(wanted.getLongValue("deliverAt"));
        }
        if (wanted.containsKey("flag")) {
            message.setFlag(wanted.getIntValue("flag"));
        }
        if (wanted.containsKey("properties")) {
            for (Map.Entry<String, Object> entry : wanted.getJSONObject("properties").entrySet()) {
                message.putUserProperty(entry.getKey(), entry.getValue().toString());
            }
        }
        return message;
    }

    private static JSONObject answer(JSONObject command) {
        return new JSONObject().fluentPut("event", "sent").fluentPut("id", command.get("id"))
            .fluentPut("kind", command.getString("kind"));
    }

    private static JSONObject sent(JSONObject command, SendResult result) {
        return answer(command).fluentPut("status", result.getSendStatus().name())
            .fluentPut("msgId", result.getMsgId()).fluentPut("offsetMsgId", result.getOffsetMsgId())
            .fluentPut("broker", result.getMessageQueue().getBrokerName())
            .fluentPut("queueId", result.getMessageQueue().getQueueId())
            .fluentPut("offset", result.getQueueOffset()).fluentPut("regionId", result.getRegionId())
            .fluentPut("recallHandle", result.getRecallHandle())
            .fluentPut("traceOn", result.isTraceOn()).fluentPut("transactionId", result.getTransactionId());
    }

    private static JSONObject failed(JSONObject command, Throwable failure) {
        int code = failure instanceof MQBrokerException broker ? broker.getResponseCode()
            : failure instanceof MQClientException client ? client.getResponseCode() : -1;
        return answer(command).fluentPut("status", "FAILED").fluentPut("code", code)
            .fluentPut("error", failure.toString());
    }

    private static synchronized void print(JSONObject line) {
        OUT.println(line.toJSONString());
        OUT.flush();
    }
}
