import java.io.IOException;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerInterceptor;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Kafka's Java consumers for bench/kafka_rebalance and bench/rolling_deploy, as `Members`: each appends a record's
 * value, the time and the partition to its journal. Says "committed" after each automatic commit.
 *
 * <p>Properties: directory, servers, topic (the group's name, too), protocol (classic: cooperative-sticky; consumer),
 * session (of the classic protocol, in ms; the client's default).
 */
public final class KafkaRebalanceMember {
    private static final Duration POLL = Duration.ofMillis(100);

    public static void main(String[] arguments) throws Exception {
        Members.serve(KafkaRebalanceMember::consume);
    }

    private static void consume(Members.Member member) throws IOException {
        String topic = System.getProperty("topic");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings(topic))) {
            consumer.subscribe(List.of(topic));
            member.started();
            while (member.stops.getCount() > 0) {
                write(member, consumer.poll(POLL));
            }
        }
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
            if (System.getProperty("session") != null) {
                settings.put("session.timeout.ms", System.getProperty("session"));
            }
        }
        return settings;
    }

    private static void write(Members.Member member, ConsumerRecords<byte[], byte[]> records) throws IOException {
        ByteBuffer entries = ByteBuffer.allocate(Members.ENTRY_BYTES * records.count());
        long nowUs = Members.nowUs();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            entries.put(record.value()).putLong(nowUs).putLong(record.partition());
        }
        member.append(entries);
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
