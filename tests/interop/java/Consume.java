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
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageQueueListener;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * Apache's push consumer: prints each delivery and each change of its queues as a JSON line, until "stop".
 *
 * <p>Settings: group, topic (several by commas), tags (*), sql (in place of tags), orderly (false), fail (none | first | always), delayLevel (1),
 * maxReconsume (-1), from (first | last | timestamp), threads (4), broadcast (false), clientRebalance (true), trace (false),
 * invisible (60000): for how long a popped message is hidden from others,
 * hold (none): bodies by commas whose handling never ends.
 *
 * <p>Properties: namesrv, and the settings of one consumer; or no group, for any number of consumers:
 * {"consumer": name, settings} starts one, and {"consumer": name, "stop": true} ends it. Their lines have its name.
 */
public final class Consume {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    private final JSONObject settings;
    private final DefaultMQPushConsumer consumer;

    public static void main(String[] arguments) throws Exception {
        Map<String, Consume> consumers = new ConcurrentHashMap<>();
        if (System.getProperty("group") == null) {
            print(new JSONObject().fluentPut("event", "started"));
        } else {
            JSONObject settings = new JSONObject();
            System.getProperties().forEach((name, value) -> settings.put(name.toString(), value));
            Consume only = new Consume(settings);
            consumers.put("", only);
            if (!only.start()) {
                System.exit(0);
            }
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            String name = command.getString("consumer");
            if (command.getBooleanValue("stop")) {
                new Thread(consumers.remove(name)::stop).start();
            } else {
                Consume added = new Consume(command);
                consumers.put(name, added);
                new Thread(added::start).start();
            }
        }
        for (Consume each : consumers.values()) {
            each.consumer.shutdown();
        }
        print(new JSONObject().fluentPut("event", "stopped"));
        System.exit(0);
    }

    private Consume(JSONObject settings) throws MQClientException {
        this.settings = settings;
        consumer = new DefaultMQPushConsumer(settings.getString("group"));
        consumer.setNamesrvAddr(System.getProperty("namesrv"));
        consumer.setConsumeFromWhere(switch (text("from", "first")) {
            case "last" -> ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET;
            case "timestamp" -> ConsumeFromWhere.CONSUME_FROM_TIMESTAMP;
            default -> ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET;
        });
        consumer.setConsumeThreadMin(settings.getIntValue("threads", 4));
        consumer.setConsumeThreadMax(settings.getIntValue("threads", 4));
        consumer.setMaxReconsumeTimes(settings.getIntValue("maxReconsume", -1));
        consumer.setEnableTrace(settings.getBooleanValue("trace"));
        // By default a shutdown does not wait for a listener that is about to return, and its offset is not committed.
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        if (settings.getBooleanValue("broadcast")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        consumer.setClientRebalance(settings.getBooleanValue("clientRebalance", true));
        consumer.setPopInvisibleTime(settings.getLongValue("invisible", 60_000L));
        consumer.setMessageQueueListener(new MessageQueueListener() {
            @Override
            public void messageQueueChanged(String topic, Set<MessageQueue> all, Set<MessageQueue> mine) {
                JSONArray queues = new JSONArray();
                for (MessageQueue queue : new TreeSet<>(mine)) {
                    queues.add(queue.getBrokerName() + ":" + queue.getQueueId());
                }
                print(event("queues").fluentPut("topic", topic).fluentPut("queues", queues));
            }
        });
        for (String topic : settings.getString("topic").split(",")) {
            String sql = settings.getString("sql");
            if (sql == null) {
                consumer.subscribe(topic, text("tags", "*"));
            } else {
                consumer.subscribe(topic, MessageSelector.bySql(sql));
            }
        }
        if (settings.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                context.setSuspendCurrentQueueTimeMillis(200);
                return accept(messages) ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(settings.getIntValue("delayLevel", 1));
                return accept(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
    }

    private boolean start() {
        try {
            consumer.start();
        } catch (MQClientException refused) {
            print(event("refused").fluentPut("reason", String.valueOf(refused.getMessage())));
            return false;
        }
        print(event("started").fluentPut("clientId", consumer.buildMQClientId()));
        return true;
    }

    private void stop() {
        consumer.shutdown();
        print(event("stopped"));
    }

    private String text(String name, String otherwise) {
        return settings.containsKey(name) ? settings.getString(name) : otherwise;
    }

    private JSONObject event(String kind) {
        JSONObject event = new JSONObject().fluentPut("event", kind);
        return settings.containsKey("consumer") ? event.fluentPut("consumer", settings.getString("consumer")) : event;
    }

    private boolean accept(List<MessageExt> messages) {
        boolean succeeded = true;
        boolean held = false;
        Set<String> hold = Set.of(text("hold", "none").split(","));
        for (MessageExt message : messages) {
            boolean accepted = switch (text("fail", "none")) {
                case "always" -> false;
                case "first" -> message.getReconsumeTimes() > 0;
                default -> true;
            };
            succeeded &= accepted;
            held |= hold.contains(new String(message.getBody(), StandardCharsets.UTF_8));
            print(event("message").fluentPut("accepted", accepted)
                .fluentPut("topic", message.getTopic()).fluentPut("broker", message.getBrokerName())
                .fluentPut("queueId", message.getQueueId()).fluentPut("offset", message.getQueueOffset())
                .fluentPut("body", new String(message.getBody(), StandardCharsets.UTF_8))
                .fluentPut("tags", message.getTags()).fluentPut("keys", message.getKeys())
                .fluentPut("flag", message.getFlag()).fluentPut("reconsumeTimes", message.getReconsumeTimes())
                .fluentPut("msgId", message.getMsgId()).fluentPut("offsetMsgId",
                    message.getProperty(MessageConst.PROPERTY_ORIGIN_MESSAGE_ID))
                .fluentPut("properties", message.getProperties())
                .fluentPut("bornHost", message.getBornHostString()).fluentPut("storeHost", message.getStoreHost().toString())
                .fluentPut("storeTimestamp", message.getStoreTimestamp())
                .fluentPut("bornTimestamp", message.getBornTimestamp())
                .fluentPut("thread", Thread.currentThread().getName())
                .fluentPut("atMs", System.currentTimeMillis()));
        }
        while (held) {
            LockSupport.park();
            Thread.interrupted(); // A shutdown interrupts the thread; the loop would spin.
        }
        return succeeded;
    }

    private static synchronized void print(JSONObject line) {
        OUT.println(line.toJSONString());
        OUT.flush();
    }
}
