import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Apache's push consumer for bench/java_rebalance: appends each message's body, the time in microseconds and the
 * queue to a file, until a line comes in.
 *
 * <p>Properties: namesrv, group, topic, journal, orderly (false).
 */
public final class RebalanceMember {
    private static final int ENTRY_BYTES = 32;

    public static void main(String[] arguments) throws Exception {
        FileOutputStream journal = new FileOutputStream(System.getProperty("journal"));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(System.getProperty("group"));
        consumer.setNamesrvAddr(System.getProperty("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        consumer.subscribe(System.getProperty("topic"), "*");
        if (Boolean.getBoolean("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                write(journal, messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                write(journal, messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        System.out.println("started");
        System.in.read();
        consumer.shutdown();
        System.out.println("stopped");
        System.exit(0);
    }

    private static void write(FileOutputStream journal, List<MessageExt> messages) {
        ByteBuffer entries = ByteBuffer.allocate(ENTRY_BYTES * messages.size());
        long nowUs = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
        for (MessageExt message : messages) {
            entries.put(message.getBody()).putLong(nowUs).putLong(message.getQueueId());
        }
        synchronized (journal) {
            try {
                journal.write(entries.array());
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }
}
