import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What Apache's clients of all ages have, from 4.9 on: consumers of each kind, and one producer of each, driven by lines.
 *
 * <p>Lines: "send TOPIC BODY", "batch TOPIC BODY,BODY", "delay TOPIC BODY", "ordered TOPIC BODY", "numbered TOPIC BODY NUMBER", "prioritised TOPIC BODY PRIORITY",
 * "timer TOPIC BODY", "transaction TOPIC BODY commit|rollback|unknown", "stop". It prints {"event": "sent"} for each, with the status LACKS
 * if this version cannot, and {"event": "message"} with the kind of consumer for each delivery. "request TOPIC BODY" prints {"event": "replied"}
 * too, "pull TOPIC all" a message for each one there, and a check of a transaction {"event": "checked"}.
 *
 * <p>Properties: namesrv, prefix of groups and topics: PREFIX_concurrent, _orderly, _popped, _pulled, _filtered (numbers over 2),
 * _requested (answered in capitals) and _broadcast (by two) are read, _traces written.
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
        popped.setConsumeThreadMin(1);  // Its messages are handled in the order in which they were popped.
        popped.setConsumeThreadMax(1);
        if (pops) {
            popped.start();
        }
        DefaultLitePullConsumer pulled = pulling();
        DefaultMQPushConsumer filtered = consumer("filtered");
        filtered.subscribe(PREFIX + "_filtered", MessageSelector.bySql("number > 2"));
        filtered.start();
        List<DefaultMQPushConsumer> broadcast = new ArrayList<>();
        for (int number = 1; number <= 2; number++) {
            DefaultMQPushConsumer one = consumer("broadcast", "broadcast" + number);
            broadcasting(one);
            one.start();
            broadcast.add(one);
        }
        DefaultMQPullConsumer puller = new DefaultMQPullConsumer(PREFIX + "_pullers");
        puller.setNamesrvAddr(NAMESRV);
        puller.setInstanceName("pullers");
        puller.start();
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
        DefaultMQPushConsumer replier = replying(producer);
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
                case "numbered":
                    message.putUserProperty("number", words[3]);
                    status = producer.send(message).getSendStatus().name();
                    break;
                case "prioritised":
                    status = isPrioritised(message, Integer.parseInt(words[3]))
                        ? producer.send(message).getSendStatus().name() : "LACKS";
                    break;
                case "timer":
                    status = isTimed(message) ? producer.send(message).getSendStatus().name() : "LACKS";
                    break;
                case "request":
                    producer.request(message, new Replied(words[2]), 60_000);
                    status = "SEND_OK";
                    break;
                case "pull":
                    pullAll(puller, words[1]);
                    status = "SEND_OK";
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
        filtered.shutdown();
        broadcast.forEach(DefaultMQPushConsumer::shutdown);
        puller.shutdown();
        replier.shutdown();
        if (pops) {
            popped.shutdown();
        }
        transactions.shutdown();
        producer.shutdown();
        print("stopped", "\"pops\": " + pops);
        System.exit(0);
    }

    private static DefaultMQPushConsumer consumer(String kind) throws Exception {
        return consumer(kind, kind);
    }

    private static DefaultMQPushConsumer consumer(String kind, String instance) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(PREFIX + "_" + kind);
        consumer.setNamesrvAddr(NAMESRV);
        consumer.setInstanceName(instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(PREFIX + "_" + kind, "*");
        if (kind.equals("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                handled(kind, messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                handled(instance, messages);
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

    /** Makes a consumer broadcast: the class of its argument has moved between versions. */
    private static void broadcasting(DefaultMQPushConsumer consumer) throws Exception {
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                for (Object model : method.getParameterTypes()[0].getEnumConstants()) {
                    if (model.toString().equals("BROADCASTING")) {
                        method.invoke(consumer, model);
                    }
                }
            }
        }
    }

    /** Has a message delivered a second and a half from now; returns whether this version can. */
    private static boolean isTimed(Message message) throws Exception {
        try {
            Message.class.getMethod("setDeliverTimeMs", long.class).invoke(message, System.currentTimeMillis() + 1_500);
            return true;
        } catch (NoSuchMethodException old) {
            return false;
        }
    }

    /** Gives a message a priority; returns whether this version can. */
    private static boolean isPrioritised(Message message, int priority) throws Exception {
        try {
            Message.class.getMethod("setPriority", int.class).invoke(message, priority);
            return true;
        } catch (NoSuchMethodException old) {
            return false;
        }
    }

    /** Answers requests, each with its body in capitals. */
    private static DefaultMQPushConsumer replying(DefaultMQProducer producer) throws Exception {
        DefaultMQPushConsumer consumer = consumer("requested");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    String body = new String(message.getBody(), StandardCharsets.UTF_8).toUpperCase();
                    producer.send(MessageUtil.createReplyMessage(message, body.getBytes(StandardCharsets.UTF_8)));
                } catch (Exception failure) {
                    print("failed", "\"why\": \"" + failure.getClass().getName() + "\"");
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    /** Prints every message of a topic. */
    private static void pullAll(DefaultMQPullConsumer consumer, String topic) throws Exception {
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long offset = consumer.minOffset(queue);
            while (offset < consumer.maxOffset(queue)) {
                PullResult result = consumer.pull(queue, "*", offset, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    handled("fetched", result.getMsgFoundList());
                }
                offset = result.getNextBeginOffset();
            }
            consumer.updateConsumeOffset(queue, offset);
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
            print("checked", "\"body\": \"" + new String(message.getBody(), StandardCharsets.UTF_8) + "\"");
            return LocalTransactionState.COMMIT_MESSAGE;
        }
    }

    private static final class Replied implements RequestCallback {
        private final String body;

        Replied(String body) {
            this.body = body;
        }

        @Override
        public void onSuccess(Message reply) {
            print("replied", "\"to\": \"" + body + "\", \"body\": \""
                + new String(reply.getBody(), StandardCharsets.UTF_8) + "\"");
        }

        @Override
        public void onException(Throwable failure) {
            print("replied", "\"to\": \"" + body + "\", \"body\": \"" + failure.getClass().getName() + "\"");
        }
    }
}
