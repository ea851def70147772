import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Apache's push consumers for bench/java_rebalance and bench/rolling_deploy, as `Members`: each appends a message's
 * body, the time and the queue to its journal.
 *
 * <p>Properties: directory, namesrv, group, topic, orderly (false), threads (each member's; the client's default).
 */
public final class RebalanceMember {
    public static void main(String[] arguments) throws Exception {
        Members.serve(RebalanceMember::consume);
    }

    private static void consume(Members.Member member) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(System.getProperty("group"));
        consumer.setNamesrvAddr(System.getProperty("namesrv"));
        // Members of one process would share a client, and so an id.
        consumer.setInstanceName(Thread.currentThread().getName());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        Integer threads = Integer.getInteger("threads");
        if (threads != null) {
            consumer.setConsumeThreadMin(threads);
            consumer.setConsumeThreadMax(threads);
        }
        consumer.subscribe(System.getProperty("topic"), "*");
        if (Boolean.getBoolean("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                write(member, messages);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                write(member, messages);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        member.started();
        member.stops.await();
        consumer.shutdown();
    }

    private static void write(Members.Member member, List<MessageExt> messages) {
        ByteBuffer entries = ByteBuffer.allocate(Members.ENTRY_BYTES * messages.size());
        long nowUs = Members.nowUs();
        for (MessageExt message : messages) {
            entries.put(message.getBody()).putLong(nowUs).putLong(message.getQueueId());
        }
        try {
            member.append(entries);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
