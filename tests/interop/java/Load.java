import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * A load generator over Apache's producer: threads that send synchronously, or in batches, to a topic that exists.
 *
 * <p>Properties: namesrv, topic, threads (32), size (1024), warmup seconds (3), seconds (10) or messages (0 = by
 * time), batch (1). Prints one JSON line: messages and latencies after the warm-up only.
 */
public final class Load {
    private static final int SAMPLES_MAX = 1 << 20;

    public static void main(String[] arguments) throws Exception {
        String topic = System.getProperty("topic");
        int threads = Integer.getInteger("threads", 32);
        int batch = Integer.getInteger("batch", 1);
        byte[] body = new byte[Integer.getInteger("size", 1024)];
        Arrays.fill(body, (byte) 'x');
        long warmupNanos = Integer.getInteger("warmup", 3) * 1_000_000_000L;
        long measureNanos = Integer.getInteger("seconds", 10) * 1_000_000_000L;
        long messagesMax = Long.getLong("messages", 0);

        DefaultMQProducer producer = new DefaultMQProducer("interop_load", hook());
        producer.setNamesrvAddr(System.getProperty("namesrv"));
        producer.start();
        // The route is fetched before the clock starts, and a topic that is missing ends the program here.
        producer.fetchPublishMessageQueues(topic);

        AtomicLong claimed = new AtomicLong();
        AtomicLong sent = new AtomicLong();
        AtomicLong all = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        int[][] micros = new int[threads][];
        CountDownLatch finished = new CountDownLatch(threads);
        long start = System.nanoTime() + warmupNanos;
        long end = messagesMax > 0 ? Long.MAX_VALUE : start + measureNanos;
        for (int t = 0; t < threads; t++) {
            int index = t;
            new Thread(() -> {
                int[] mine = new int[SAMPLES_MAX / threads];
                int samples = 0;
                long now = System.nanoTime();
                while (now < end) {
                    boolean measured = now >= start;
                    if (measured && messagesMax > 0 && claimed.getAndAdd(batch) >= messagesMax) {
                        break;
                    }
                    boolean good;
                    try {
                        if (batch == 1) {
                            good = producer.send(new Message(topic, body)).getSendStatus() == SendStatus.SEND_OK;
                        } else {
                            Message[] messages = new Message[batch];
                            Arrays.setAll(messages, i -> new Message(topic, body));
                            good = producer.send(Arrays.asList(messages)).getSendStatus() == SendStatus.SEND_OK;
                        }
                    } catch (Exception failure) {
                        good = false;
                        if (failed.get() == 0) {
                            failure.printStackTrace();
                        }
                    }
                    long after = System.nanoTime();
                    all.addAndGet(batch);
                    if (measured) {
                        (good ? sent : failed).addAndGet(batch);
                        mine[samples++ % mine.length] = (int) ((after - now) / 1000);
                    }
                    now = after;
                }
                micros[index] = Arrays.copyOf(mine, Math.min(samples, mine.length));
                finished.countDown();
            }).start();
        }
        finished.await();
        double seconds = (System.nanoTime() - start) / 1e9;
        int[] sorted = Arrays.stream(micros).flatMapToInt(Arrays::stream).sorted().toArray();
        System.out.printf(Locale.ROOT,
            "{\"msgs\": %d, \"with_warmup\": %d, \"failed\": %d, \"seconds\": %.3f, \"rate\": %.0f, \"p50_us\": %d, \"p99_us\": %d}%n",
            sent.get(), all.get(), failed.get(), seconds, sent.get() / seconds, percentile(sorted, 0.50), percentile(sorted, 0.99));
        producer.shutdown();
        System.exit(0);
    }

    private static int percentile(int[] sorted, double share) {
        return sorted.length == 0 ? 0 : sorted[(int) Math.min(sorted.length - 1L, (long) (sorted.length * share))];
    }

    /** The hook that signs, if the properties accessKey and secretKey are set. */
    private static RPCHook hook() {
        String key = System.getProperty("accessKey");
        return key == null ? null : new AclClientRPCHook(new SessionCredentials(key, System.getProperty("secretKey")));
    }
}
