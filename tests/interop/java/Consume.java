import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
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
 * <p>Properties: namesrv, group, topic (several by commas), tags (*), sql (in place of tags), orderly (false), fail (none | first | always), delayLevel (1),
 * maxReconsume (-1), from (first | last | timestamp), threads (4), broadcast (false), clientRebalance (true), trace (false),
 * invisible (60000): for how long a popped message is hidden from others,
 * hold (none): bodies by commas whose handling never ends.
 */
public final class Consume {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final String FAIL = System.getProperty("fail", "none");
    private static final Set<String> HOLD = Set.of(System.getProperty("hold", "none").split(","));
    private static final int DELAY_LEVEL = Integer.getInteger("delayLevel", 1);

    public static void main(String[] arguments) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(System.getProperty("group"));
        consumer.setNamesrvAddr(System.getProperty("namesrv"));
        consumer.setConsumeFromWhere(switch (System.getProperty("from", "first")) {
            case "last" -> ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET;
            case "timestamp" -> ConsumeFromWhere.CONSUME_FROM_TIMESTAMP;
            default -> ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET;
        });
        consumer.setConsumeThreadMin(Integer.getInteger("threads", 4));
        consumer.setConsumeThreadMax(Integer.getInteger("threads", 4));
        consumer.setMaxReconsumeTimes(Integer.getInteger("maxReconsume", -1));
        consumer.setEnableTrace(Boolean.getBoolean("trace"));
        // By default a shutdown does not wait for a listener that is about to return, and its offset is not committed.
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        if (Boolean.getBoolean("broadcast")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        consumer.setClientRebalance(Boolean.parseBoolean(System.getProperty("clientRebalance", "true")));
        consumer.setPopInvisibleTime(Long.getLong("invisible", 60_000L));
        consumer.setMessageQueueListener(new MessageQueueListener() {
            @Override
            public void messageQueueChanged(String topic, Set<MessageQueue> all, Set<MessageQueue> mine) {
                JSONArray queues = new JSONArray();
                for (MessageQueue queue : new TreeSet<>(mine)) {
                    queues.add(queue.getBrokerName() + ":" + queue.getQueueId());
                }
                print(new JSONObject().fluentPut("event", "queues").fluentPut("topic", topic)
                    .fluentPut("queues", queues));
            }
        });
        for (String topic : System.getProperty("topic").split(",")) {
            String sql = System.getProperty("sql");
            if (sql == null) {
                consumer.subscribe(topic, System.getProperty("tags", "*"));
            } else {
                consumer.subscribe(topic, MessageSelector.bySql(sql));
            }
        }
        if (Boolean.getBoolean("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                context.setSuspendCurrentQueueTimeMillis(200);
                return accept(messages) ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(DELAY_LEVEL);
                return accept(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        try {
            consumer.start();
        } catch (MQClientException refused) {
            print(new JSONObject().fluentPut("event", "refused").fluentPut("reason", String.valueOf(refused.getMessage())));
            System.exit(0);
        }
        print(new JSONObject().fluentPut("event", "started").fluentPut("clientId", consumer.buildMQClientId()));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            throw new IllegalArgumentException(line);
        }
        consumer.shutdown();
        print(new JSONObject().fluentPut("event", "stopped"));
        System.exit(0);
    }

    private static boolean accept(List<MessageExt> messages) {
        boolean succeeded = true;
        boolean held = false;
        for (MessageExt message : messages) {
            boolean accepted = switch (FAIL) {
                case "always" -> false;
                case "first" -> message.getReconsumeTimes() > 0;
                default -> true;
            };
            succeeded &= accepted;
            held |= HOLD.contains(new String(message.getBody(), StandardCharsets.UTF_8));
            print(new JSONObject().fluentPut("event", "message").fluentPut("accepted", accepted)
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
        }
        return succeeded;
    }

    private static synchronized void print(JSONObject line) {
        OUT.println(line.toJSONString());
        OUT.flush();
    }
}
