import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Apache's producer and consumer that sign their requests, driven by lines.
 *
 * <p>Lines: "send TOPIC BODY", "batch TOPIC BODY", "transaction TOPIC BODY" (decided when the broker asks), "consume GROUP TOPIC",
 * "stop". It prints {"event": "sent"} with the status, or the broker's refusal as "code text", and {"event": "message"}.
 *
 * <p>Properties: namesrv, name; accessKey and secretKey, without which nothing is signed.
 */
public final class Signed {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final String NAMESRV = System.getProperty("namesrv");

    public static void main(String[] arguments) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(System.getProperty("name") + "_producers", hook());
        producer.setNamesrvAddr(NAMESRV);
        producer.setSendMsgTimeout(30_000);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setHeartbeatBrokerInterval(1_000);
        producer.setTransactionListener(new Committing());
        producer.start();
        print("started", "\"name\": \"" + System.getProperty("name") + "\"");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("consume")) {
                consume(words[1], words[2]);
                continue;
            }
            Message message = new Message(words[1], "TagA", words[2], words[2].getBytes(StandardCharsets.UTF_8));
            try {
                print("sent", "\"body\": \"" + words[2] + "\", \"status\": \"" + send(producer, words[0], message) + "\"");
            } catch (Exception failed) {
                Throwable cause = failed.getCause() instanceof MQBrokerException ? failed.getCause() : failed;
                String code = cause instanceof MQBrokerException ? ((MQBrokerException) cause).getResponseCode() + " " : "";
                String text = cause instanceof MQBrokerException ? ((MQBrokerException) cause).getErrorMessage() : cause.toString();
                print("sent", "\"body\": \"" + words[2] + "\", \"status\": \""
                    + (code + text).replace("\"", "'").replace("\n", " ").replace("\\", "/") + "\"");
            }
        }
        print("stopped", "\"name\": \"" + System.getProperty("name") + "\"");
        System.exit(0);
    }

    private static String send(TransactionMQProducer producer, String kind, Message message) throws Exception {
        if (kind.equals("batch")) {
            List<Message> two = new ArrayList<>();
            two.add(message);
            two.add(new Message(message.getTopic(), "TagA", "second", "second".getBytes(StandardCharsets.UTF_8)));
            return producer.send(two).getSendStatus().name();
        }
        if (kind.equals("transaction")) {
            return producer.sendMessageInTransaction(message, null).getSendStatus().name();
        }
        return producer.send(message).getSendStatus().name();
    }

    private static void consume(String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(group, hook(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(NAMESRV);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                print("message", "\"group\": \"" + group + "\", \"body\": \""
                    + new String(message.getBody(), StandardCharsets.UTF_8) + "\"");
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private static RPCHook hook() {
        String key = System.getProperty("accessKey");
        return key == null ? null : new AclClientRPCHook(new SessionCredentials(key, System.getProperty("secretKey")));
    }

    private static synchronized void print(String event, String members) {
        OUT.println("{\"event\": \"" + event + "\", " + members + "}");
        OUT.flush();
    }

    private static final class Committing implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.UNKNOW;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }
}
