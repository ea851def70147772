import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * Kafka's Java clients: a producer, and any number of consumers by name, each a thread; prints what they do as JSON
 * lines, until "stop".
 *
 * <p>Properties: servers; "producer.X" is the producer's setting X, "common.X" everybody's. Questions: create (topic, partitions), produce (topic, partition, values),
 * subscribe (name, topic, settings), close (name), remove (group, instance), clear: close all.
 */
public final class KafkaClients {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, Member> MEMBERS = new HashMap<>();
    private static KafkaProducer<String, String> producer;

    public static void main(String[] arguments) throws Exception {
        print(event("started").put("version", AppInfoParser.getVersion()));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            JsonNode question = JSON.readTree(line);
            ObjectNode answer = event("answer").put("id", question.get("id").asInt());
            try {
                answer(question, answer);
            } catch (Exception failed) {
                Throwable cause = failed.getCause() == null ? failed : failed.getCause();
                answer.put("error", cause.getClass().getSimpleName()).put("reason", cause.getMessage());
            }
            print(answer);
        }
        endAll();
        if (producer != null) {
            producer.close();
        }
        print(event("stopped"));
        System.exit(0);
    }

    private static void answer(JsonNode question, ObjectNode answer) throws Exception {
        switch (question.get("do").asText()) {
            case "produce" -> produce(question, answer);
            case "create" -> {
                try (Admin admin = Admin.create(common())) {
                    admin.createTopics(List.of(new NewTopic(question.get("topic").asText(),
                        question.get("partitions").asInt(), (short) 1))).all().get();
                }
            }
            case "subscribe" -> {
                Member member = new Member(question);
                MEMBERS.put(question.get("name").asText(), member);
                member.thread.start();
            }
            case "remove" -> {
                try (Admin admin = Admin.create(common())) {
                    admin.removeMembersFromConsumerGroup(question.get("group").asText(),
                        new RemoveMembersFromConsumerGroupOptions(
                            List.of(new MemberToRemove(question.get("instance").asText())))).all().get();
                }
            }
            case "clear" -> endAll();
            case "close" -> MEMBERS.remove(question.get("name").asText()).end();
            default -> throw new IllegalArgumentException(question.toString());
        }
    }

    private static void endAll() throws InterruptedException {
        for (Member member : MEMBERS.values()) {
            member.end();
        }
        MEMBERS.clear();
    }

    private static void produce(JsonNode question, ObjectNode answer) throws Exception {
        if (producer == null) {
            Properties settings = common();
            putAll(settings, "producer.");
            producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        }
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (JsonNode value : question.get("values")) {
            ProducerRecord<String, String> record = new ProducerRecord<>(question.get("topic").asText(),
                question.get("partition").asInt(), "key", value.asText());
            record.headers().add("header", new byte[] {0, (byte) 0xff});
            sent.add(producer.send(record));
        }
        producer.flush();
        var offsets = answer.putArray("offsets");
        for (Future<RecordMetadata> each : sent) {
            offsets.add(each.get().offset());
        }
    }

    private static Properties common() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", System.getProperty("servers"));
        settings.put("enable.metrics.push", "false");
        putAll(settings, "common.");
        return settings;
    }

    private static void putAll(Properties settings, String prefix) {
        for (String name : System.getProperties().stringPropertyNames()) {
            if (name.startsWith(prefix)) {
                settings.put(name.substring(prefix.length()), System.getProperty(name));
            }
        }
    }

    private static ObjectNode event(String kind) {
        return JSON.createObjectNode().put("event", kind);
    }

    private static synchronized void print(ObjectNode line) {
        try {
            OUT.println(JSON.writeValueAsString(line));
        } catch (JsonProcessingException bug) {
            throw new IllegalStateException(bug);
        }
        OUT.flush();
    }

    /** One consumer, polled by its thread; what a poll returned is committed before the next one. */
    private static final class Member implements ConsumerRebalanceListener {
        final Thread thread;
        private final String name;
        private final KafkaConsumer<String, String> consumer;
        private volatile boolean isEnding;

        Member(JsonNode question) {
            name = question.get("name").asText();
            Properties settings = common();
            settings.put("auto.offset.reset", "earliest");
            settings.put("enable.auto.commit", "false");
            question.get("settings").fields().forEachRemaining(each -> settings.put(each.getKey(), each.getValue().asText()));
            consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
            String topic = question.get("topic").asText();
            if (topic.startsWith("^")) {
                consumer.subscribe(new SubscriptionPattern(topic.substring(1)), this);
            } else {
                consumer.subscribe(List.of(topic), this);
            }
            thread = new Thread(this::run, name);
        }

        private void run() {
            try {
                while (!isEnding) {
                    boolean isAny = false;
                    for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(50))) {
                        isAny = true;
                        print(event("record").put("name", name).put("partition", record.partition())
                            .put("offset", record.offset()).put("key", record.key()).put("value", record.value())
                            .put("header", record.headers().lastHeader("header") == null ? null
                                : HexFormat.of().formatHex(record.headers().lastHeader("header").value())));
                    }
                    if (isAny) {
                        consumer.commitSync();
                        print(event("committed").put("name", name));
                    }
                }
                consumer.close();
                print(event("closed").put("name", name));
            } catch (RuntimeException failed) {
                print(event("failed").put("name", name).put("error", failed.getClass().getSimpleName())
                    .put("reason", failed.getMessage()));
            }
        }

        void end() throws InterruptedException {
            isEnding = true;
            thread.join();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            changed("assigned", partitions);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            changed("revoked", partitions);
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            changed("lost", partitions);
        }

        private void changed(String kind, Collection<TopicPartition> partitions) {
            ObjectNode line = event(kind).put("name", name);
            var numbers = line.putArray("partitions");
            partitions.stream().mapToInt(TopicPartition::partition).sorted().forEach(numbers::add);
            var owned = line.putArray("owned");
            consumer.assignment().stream().mapToInt(TopicPartition::partition).sorted().forEach(owned::add);
            print(line);
        }
    }
}
