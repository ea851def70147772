import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerInterceptor;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Kafka's Java consumer for bench/kafka_rebalance: appends each record's value, the time in microseconds and the
 * partition to a file. Says "ready", joins when it is told "join", says "committed" after each automatic commit, and
 * ends at "stop".
 *
 * <p>Properties: servers, topic (the group's name, too), journal, protocol (classic: cooperative-sticky; consumer),
 * session (of the classic protocol, in ms).
 */
public final class KafkaRebalanceMember {
    private static final int ENTRY_BYTES = 32;
    private static final Duration POLL = Duration.ofMillis(100);

    public static void main(String[] arguments) throws Exception {
        CountDownLatch joins = new CountDownLatch(1);
        CountDownLatch stops = new CountDownLatch(1);
        Thread orders = new Thread(() -> read(joins, stops));
        orders.setDaemon(true);
        System.out.println("ready");
        orders.start();
        joins.await();
        if (stops.getCount() > 0) {
            consume(stops);
        }
        System.exit(0);
    }

    private static void read(CountDownLatch joins, CountDownLatch stops) {
        try (BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                (line.equals("join") ? joins : stops).countDown();
                if (line.equals("stop")) {
                    break;
                }
            }
        } catch (IOException closed) {
            System.err.println("the orders ended: " + closed);
        }
        stops.countDown();
        joins.countDown();
    }

    private static void consume(CountDownLatch stops) throws IOException {
        String topic = System.getProperty("topic");
        try (FileOutputStream journal = new FileOutputStream(System.getProperty("journal"));
                KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings(topic))) {
            consumer.subscribe(List.of(topic));
            System.out.println("started");
            while (stops.getCount() > 0) {
                write(journal, consumer.poll(POLL));
            }
        }
        System.out.println("stopped");
    }

    private static Properties settings(String group) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", System.getProperty("servers"));
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("interceptor.classes", SaysCommitted.class.getName());
        if (System.getProperty("protocol").equals("consumer")) {
            settings.put("group.protocol", "consumer");
        } else {
            settings.put("partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
            settings.put("session.timeout.ms", System.getProperty("session"));
        }
        return settings;
    }

    private static void write(FileOutputStream journal, ConsumerRecords<byte[], byte[]> records) throws IOException {
        ByteBuffer entries = ByteBuffer.allocate(ENTRY_BYTES * records.count());
        long nowUs = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
        for (ConsumerRecord<byte[], byte[]> record : records) {
            entries.put(record.value()).putLong(nowUs).putLong(record.partition());
        }
        journal.write(entries.array());
    }

    /** Prints a line after each commit. */
    public static final class SaysCommitted implements ConsumerInterceptor<byte[], byte[]> {
        @Override
        public ConsumerRecords<byte[], byte[]> onConsume(ConsumerRecords<byte[], byte[]> records) {
            return records;
        }

        @Override
        public void onCommit(Map<TopicPartition, OffsetAndMetadata> offsets) {
            System.out.println("committed");
        }

        @Override
        public void close() {
        }

        @Override
        public void configure(Map<String, ?> settings) {
        }
    }
}
