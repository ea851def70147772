import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * How fast Apache's push consumer drains a topic: from its first delivery to its last, as one JSON line.
 *
 * <p>Properties: namesrv, topic, group (a fresh one), messages, consumeBatch (32), clientRebalance (true), threads (20), deadline seconds (120).
 */
public final class Drain {
    public static void main(String[] arguments) throws Exception {
        long wanted = Long.getLong("messages");
        AtomicLong received = new AtomicLong();
        AtomicLong bytes = new AtomicLong();
        AtomicLong firstNanos = new AtomicLong();
        AtomicLong lastNanos = new AtomicLong();
        CountDownLatch drained = new CountDownLatch(1);

        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(System.getProperty("group"), hook());
        consumer.setNamesrvAddr(System.getProperty("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(Integer.getInteger("consumeBatch", 32));
        // After SET_MESSAGE_REQUEST_MODE the broker has such a consumer pop.
        consumer.setClientRebalance(Boolean.parseBoolean(System.getProperty("clientRebalance", "true")));
        consumer.setConsumeThreadMin(Integer.getInteger("threads", 20));
        consumer.setConsumeThreadMax(Integer.getInteger("threads", 20));
        consumer.subscribe(System.getProperty("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            firstNanos.compareAndSet(0, System.nanoTime());
            messages.forEach(message -> bytes.addAndGet(message.getBody().length));
            if (received.addAndGet(messages.size()) >= wanted && lastNanos.compareAndSet(0, System.nanoTime())) {
                drained.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        long start = System.nanoTime();
        consumer.start();
        boolean complete = drained.await(Integer.getInteger("deadline", 120), TimeUnit.SECONDS);
        lastNanos.compareAndSet(0, System.nanoTime());
        double seconds = (lastNanos.get() - firstNanos.get()) / 1e9;
        System.out.printf(Locale.ROOT,
            "{\"msgs\": %d, \"complete\": %b, \"bytes\": %d, \"seconds\": %.3f, \"rate\": %.0f, \"first_ms\": %d}%n",
            received.get(), complete, bytes.get(), seconds, received.get() / seconds,
            (firstNanos.get() - start) / 1_000_000);
        System.out.flush();
        // A shutdown would commit and drain what is cached; the number is known, so nothing waits for that.
        Runtime.getRuntime().halt(0);
    }

    /** The hook that signs, if the properties accessKey and secretKey are set. */
    private static RPCHook hook() {
        String key = System.getProperty("accessKey");
        return key == null ? null : new AclClientRPCHook(new SessionCredentials(key, System.getProperty("secretKey")));
    }
}
