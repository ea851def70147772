import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * What Apache's clients of all ages have, from 4.9 on: consumers of each kind, and one producer of each, driven by lines.
 *
 * <p>Lines: "send TOPIC BODY", "batch TOPIC BODY,BODY", "delay TOPIC BODY", "ordered TOPIC BODY", "transaction TOPIC BODY commit|rollback", "stop".
 * It prints {"event": "sent"} for each, and {"event": "message"} with the kind of consumer for each delivery.
 *
 * <p>Properties: namesrv, prefix of groups and topics: PREFIX_concurrent, _orderly, _popped and _pulled are
 * read, _traces written.
 */
public final class Features {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final String NAMESRV = System.getProperty("namesrv");
    private static final String PREFIX = System.getProperty("prefix");

    public static void main(String[] arguments) throws Exception {
        DefaultMQPushConsumer concurrent = consumer("concurrent");
        concurrent.start();
        DefaultMQPushConsumer orderly = consumer("orderly");
        orderly.start();
        DefaultMQPushConsumer popped = consumer("popped");
        boolean pops = assignedByBroker(popped);
        if (pops) {
            popped.start();
        }
        DefaultLitePullConsumer pulled = pulling();
        DefaultMQProducer producer = new DefaultMQProducer(PREFIX + "_producers", true, PREFIX + "_traces");
        producer.setNamesrvAddr(NAMESRV);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        TransactionMQProducer transactions = new TransactionMQProducer(PREFIX + "_transactions");
        transactions.setNamesrvAddr(NAMESRV);
        transactions.setSendMsgTimeout(30_000);
        transactions.setHeartbeatBrokerInterval(1_000);
        transactions.setTransactionListener(new Deciding());
        transactions.start();
        print("started", "\"pops\": " + pops);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            String[] words = line.split(" ");
            Message message = new Message(words[1], "TagA", words[2], words[2].getBytes(StandardCharsets.UTF_8));
            String status;
            switch (words[0]) {
                case "send":
                    status = producer.send(message).getSendStatus().name();
                    break;
                case "batch":
                    List<Message> batch = new ArrayList<>();
                    for (String body : words[2].split(",")) {
                        batch.add(new Message(words[1], "TagA", body, body.getBytes(StandardCharsets.UTF_8)));
                    }
                    status = producer.send(batch).getSendStatus().name();
                    break;
                case "delay":
                    message.setDelayTimeLevel(1);
                    status = producer.send(message).getSendStatus().name();
                    break;
                case "ordered":
                    status = producer.send(message, (queues, one, key) -> queues.get((int) key % queues.size()), 0)
                        .getSendStatus().name();
                    break;
                case "transaction":
                    message.putUserProperty("decision", words[3]);
                    status = transactions.sendMessageInTransaction(message, null).getSendStatus().name();
                    break;
                default:
                    throw new IllegalArgumentException(line);
            }
            print("sent", "\"body\": \"" + words[2] + "\", \"status\": \"" + status + "\"");
        }
        concurrent.shutdown();
        orderly.shutdown();
        pulled.shutdown();
        if (pops) {
            popped.shutdown();
        }
        transactions.shutdown();
        producer.shutdown();
        print("stopped", "\"pops\": " + pops);
        System.exit(0);
    }

    private static DefaultMQPushConsumer consumer(String kind) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(PREFIX + "_" + kind);
        consumer.setNamesrvAddr(NAMESRV);
        consumer.setInstanceName(kind);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(PREFIX + "_" + kind, "*");
        if (kind.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                handled(kind, messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                handled(kind, messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        return consumer;
    }

    /** Starts a lite pull consumer, and a thread that polls it as long as the program runs. */
    private static DefaultLitePullConsumer pulling() throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(PREFIX + "_pulled");
        consumer.setNamesrvAddr(NAMESRV);
        consumer.setInstanceName("pulled");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollTimeoutMillis(100);
        consumer.subscribe(PREFIX + "_pulled", "*");
        consumer.start();
        Thread polling = new Thread(() -> {
            while (consumer.isRunning()) {
                handled("pulled", consumer.poll());
            }
        });
        polling.setDaemon(true);
        polling.start();
        return consumer;
    }

    /** Has brokers assign queues, or hand out messages; returns whether this version can. */
    private static boolean assignedByBroker(DefaultMQPushConsumer consumer) throws Exception {
        try {
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            return true;
        } catch (NoSuchMethodException old) {
            return false;
        }
    }

    private static void handled(String kind, List<MessageExt> messages) {
        for (MessageExt message : messages) {
            print("message", "\"kind\": \"" + kind + "\", \"body\": \""
                + new String(message.getBody(), StandardCharsets.UTF_8) + "\", \"popped\": "
                + (message.getProperty("POP_CK") != null) + ", \"waitedMs\": "
                + (message.getStoreTimestamp() - message.getBornTimestamp()));
        }
    }

    private static synchronized void print(String event, String fields) {
        OUT.println("{\"event\": \"" + event + "\", " + fields + "}");
        OUT.flush();
    }

    private static final class Deciding implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            switch (message.getUserProperty("decision")) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }
}
