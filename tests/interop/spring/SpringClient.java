package interop;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.MessageModel;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.annotation.SelectorType;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQPushConsumerLifecycleListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.Banner;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Service;

/**
 * An application with rocketmq-spring's starter, driven by lines until "stop"; it answers with JSON lines.
 *
 * <p>Properties: rocketmq.name-server, and prefix, that of its topics and groups. Commands: "send|async|oneway|ordered|
 * delay|timer KIND BODY", "tagged KIND TAG BODY", "numbered KIND NUMBER BODY", "batch KIND BODY,BODY,…",
 * "transaction KIND commit|rollback|unknown BODY".
 */
@SpringBootApplication
public class SpringClient {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int TIMEOUT_MS = 30_000;

    public static void main(String[] arguments) throws Exception {
        ConfigurableApplicationContext context =
            new SpringApplicationBuilder(SpringClient.class).bannerMode(Banner.Mode.OFF).run(arguments);
        RocketMQTemplate template = context.getBean(RocketMQTemplate.class);
        String prefix = context.getEnvironment().getProperty("prefix");
        print("started", Map.of());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            String[] words = line.split(" ");
            send(template, prefix + "_" + words[1], words, words[words.length - 1]);
        }
        context.close();
        print("stopped", Map.of());
        System.exit(0);
    }

    private static void send(RocketMQTemplate template, String topic, String[] words, String body) throws Exception {
        Message<String> message = MessageBuilder.withPayload(body).setHeader("KEYS", "key-" + body).build();
        SendResult result = null;
        switch (words[0]) {
            case "send":
                result = template.syncSend(topic, message, TIMEOUT_MS);
                break;
            case "tagged":
                result = template.syncSend(topic + ":" + words[2], message, TIMEOUT_MS);
                break;
            case "numbered":
                result = template.syncSend(
                    topic, MessageBuilder.fromMessage(message).setHeader("number", words[2]).build(), TIMEOUT_MS);
                break;
            case "ordered":
                result = template.syncSendOrderly(topic, message, "one", TIMEOUT_MS);
                break;
            case "delay":
                result = template.syncSend(topic, message, TIMEOUT_MS, 1);
                break;
            case "timer":
                result = template.syncSendDelayTimeSeconds(topic, message, 1);
                break;
            case "batch":
                List<Message<String>> batch = Stream.of(body.split(","))
                    .map(each -> MessageBuilder.withPayload(each).build()).collect(Collectors.toList());
                result = template.syncSend(topic, batch, TIMEOUT_MS);
                break;
            case "transaction":
                result = template.sendMessageInTransaction(topic, message, words[2]);
                break;
            case "oneway":
                template.sendOneWay(topic, message);
                print("sent", Map.of("body", body, "status", "SEND_OK"));
                return;
            case "async":
                template.asyncSend(topic, message, new SendCallback() {
                    @Override
                    public void onSuccess(SendResult sent) {
                        print("sent", Map.of("body", body, "status", sent.getSendStatus().name()));
                    }

                    @Override
                    public void onException(Throwable failure) {
                        print("sent", Map.of("body", body, "status", failure.toString()));
                    }
                }, TIMEOUT_MS);
                return;
            default:
                throw new IllegalArgumentException(words[0]);
        }
        print("sent", Map.of("body", body, "status", result.getSendStatus().name()));
    }

    static synchronized void print(String event, Map<String, ?> fields) {
        Map<String, Object> line = new LinkedHashMap<>(fields);
        line.put("event", event);
        try {
            OUT.println(JSON.writeValueAsString(line));
        } catch (Exception failure) {
            throw new IllegalStateException(failure);
        }
        OUT.flush();
    }

    abstract static class Printing implements RocketMQListener<MessageExt>, RocketMQPushConsumerLifecycleListener {
        private final String kind;

        Printing(String kind) {
            this.kind = kind;
        }

        /** Members that broadcast would begin with what is sent after their first rebalance. */
        @Override
        public void prepareStart(DefaultMQPushConsumer consumer) {
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        }

        @Override
        public void onMessage(MessageExt message) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            print("message", Map.of("kind", kind, "body", body, "times", message.getReconsumeTimes(),
                "queueId", message.getQueueId(), "keys", String.valueOf(message.getKeys()),
                "waitedMs", System.currentTimeMillis() - message.getBornTimestamp()));
            if (body.equals("again") && message.getReconsumeTimes() == 0) {
                throw new IllegalStateException("once more");
            }
        }
    }

    @Service
    @RocketMQMessageListener(topic = "${prefix}_concurrent", consumerGroup = "${prefix}_concurrent")
    static class Concurrent extends Printing {
        Concurrent() {
            super("concurrent");
        }
    }

    @Service
    @RocketMQMessageListener(
        topic = "${prefix}_orderly", consumerGroup = "${prefix}_orderly", consumeMode = ConsumeMode.ORDERLY)
    static class Orderly extends Printing {
        Orderly() {
            super("orderly");
        }
    }

    @Service
    @RocketMQMessageListener(
        topic = "${prefix}_tagged", consumerGroup = "${prefix}_tagged", selectorExpression = "a || b")
    static class Tagged extends Printing {
        Tagged() {
            super("tagged");
        }
    }

    @Service
    @RocketMQMessageListener(topic = "${prefix}_filtered", consumerGroup = "${prefix}_filtered",
        selectorType = SelectorType.SQL92, selectorExpression = "number > 2")
    static class Filtered extends Printing {
        Filtered() {
            super("filtered");
        }
    }

    @Service
    @RocketMQMessageListener(topic = "${prefix}_broadcast", consumerGroup = "${prefix}_broadcast",
        messageModel = MessageModel.BROADCASTING)
    static class Broadcast extends Printing {
        Broadcast() {
            super("broadcast");
        }
    }

    @RocketMQTransactionListener
    static class Transactions implements RocketMQLocalTransactionListener {
        @Override
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object end) {
            switch (String.valueOf(end)) {
                case "commit":
                    return RocketMQLocalTransactionState.COMMIT;
                case "rollback":
                    return RocketMQLocalTransactionState.ROLLBACK;
                default:
                    return RocketMQLocalTransactionState.UNKNOWN;
            }
        }

        @Override
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            print("checked", Map.of("body", new String((byte[]) message.getPayload(), StandardCharsets.UTF_8)));
            return RocketMQLocalTransactionState.COMMIT;
        }
    }
}
