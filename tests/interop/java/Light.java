import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;

/**
 * Apache's push consumer on a light topic, set up as Apache's examples do: no name server has a route to it. Until "stop".
 *
 * <p>Properties: namesrv, group, topic, parent (a topic of the broker), broker (address), brokerName,
 * pop (false): the broker assigns the queue; else the program names it. fail (none | first).
 */
public final class Light {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final String TOPIC = System.getProperty("topic");
    private static final String BROKER_NAME = System.getProperty("brokerName");
    private static final boolean FAILS = System.getProperty("fail", "none").equals("first");

    public static void main(String[] arguments) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(System.getProperty("group"));
        consumer.setNamesrvAddr(System.getProperty("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPopInvisibleTime(Long.getLong("invisible", 60_000L));
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            boolean succeeded = true;
            for (MessageExt message : messages) {
                succeeded &= !FAILS || message.getReconsumeTimes() > 0;
                print(new JSONObject().fluentPut("event", "message")
                    .fluentPut("body", new String(message.getBody(), StandardCharsets.UTF_8))
                    .fluentPut("topic", message.getTopic()).fluentPut("reconsumeTimes", message.getReconsumeTimes())
                    .fluentPut("popped", message.getProperty("POP_CK") != null));
            }
            context.setDelayLevelWhenNextConsume(1);
            return succeeded ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.setClientRebalance(!Boolean.getBoolean("pop"));
        consumer.start();
        MQClientInstance client = consumer.getDefaultMQPushConsumerImpl().getmQClientFactory();
        // By the parent's route the client learns the broker's address.
        client.updateTopicRouteInfoFromNameServer(System.getProperty("parent"));
        BrokerData broker = new BrokerData("DefaultCluster", BROKER_NAME, new HashMap<>());
        broker.getBrokerAddrs().put(MixAll.MASTER_ID, System.getProperty("broker"));
        TopicRouteData route = new TopicRouteData();
        route.setBrokerDatas(new ArrayList<>(List.of(broker)));
        client.getTopicRouteTable().put(TOPIC, route);
        if (!Boolean.getBoolean("pop")) {
            consumer.getDefaultMQPushConsumerImpl().updateTopicSubscribeInfo(
                TOPIC, java.util.Set.of(new MessageQueue(TOPIC, BROKER_NAME, MixAll.LMQ_QUEUE_ID)));
        }
        client.doRebalance();
        print(new JSONObject().fluentPut("event", "started").fluentPut("clientId", consumer.buildMQClientId()));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            throw new IllegalArgumentException(line);
        }
        consumer.shutdown();
        print(new JSONObject().fluentPut("event", "stopped"));
        System.exit(0);
    }

    private static synchronized void print(JSONObject line) {
        OUT.println(line.toJSONString());
        OUT.flush();
    }
}
