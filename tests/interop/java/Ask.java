import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Apache's request and reply. Driven by JSON lines: {"id": any, "topic": t, "body": text, "timeout": ms} is sent as
 * a request and answered with the reply. With the property "replies" it answers the requests of that topic, each with
 * its body in capitals, and prints what became of the answer. "stop" ends it.
 *
 * <p>Properties: namesrv, group, replies.
 */
public final class Ask {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(System.getProperty("group"));
        producer.setNamesrvAddr(System.getProperty("namesrv"));
        producer.setInstanceName("ask" + System.nanoTime());
        producer.start();
        if (System.getProperty("replies") != null) {
            reply(producer, System.getProperty("replies"));
        }
        print(new JSONObject().fluentPut("event", "started"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            JSONObject answer = new JSONObject().fluentPut("event", "replied").fluentPut("id", command.get("id"));
            Message request = new Message(command.getString("topic"),
                command.getString("body").getBytes(StandardCharsets.UTF_8));
            // In 5.3.3 the request without a callback ends when its message is sent, not when the reply is there.
            producer.request(request, new RequestCallback() {
                @Override
                public void onSuccess(Message reply) {
                    print(answer.fluentPut("body", new String(reply.getBody(), StandardCharsets.UTF_8)));
                }

                @Override
                public void onException(Throwable failure) {
                    print(answer.fluentPut("error", causes(failure)));
                }
            }, command.getLongValue("timeout"));
        }
        producer.shutdown();
        print(new JSONObject().fluentPut("event", "stopped"));
        System.exit(0);
    }

    private static void reply(DefaultMQProducer producer, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(System.getProperty("group") + "-repliers");
        consumer.setNamesrvAddr(System.getProperty("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                JSONObject event = new JSONObject().fluentPut("event", "answered");
                try {
                    String body = new String(message.getBody(), StandardCharsets.UTF_8).toUpperCase();
                    Message reply = MessageUtil.createReplyMessage(message, body.getBytes(StandardCharsets.UTF_8));
                    SendResult result = producer.send(reply, 3_000);
                    print(event.fluentPut("status", result.getSendStatus().name())
                        .fluentPut("topic", result.getMessageQueue().getTopic()).fluentPut("body", body));
                } catch (Exception failure) {
                    print(event.fluentPut("status", "FAILED").fluentPut("error", causes(failure)));
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }

    private static String causes(Throwable failure) {
        return failure.getCause() == null ? failure.toString() : failure + "; " + causes(failure.getCause());
    }

    private static synchronized void print(JSONObject event) {
        OUT.println(event);
        OUT.flush();
    }
}
