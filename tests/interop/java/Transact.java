import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Apache's producer of transactions, driven by JSON lines: {"id": any, "topic": t, "body": text, "local": state,
 * "check": state}, where a state is commit, rollback or unknown; prints each check that it is asked. "stop" ends it.
 *
 * <p>Properties: namesrv, group.
 */
public final class Transact {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(System.getProperty("group"));
        producer.setNamesrvAddr(System.getProperty("namesrv"));
        producer.setHeartbeatBrokerInterval(1_000);
        producer.setPollNameServerInterval(1_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return state(message.getUserProperty("local"));
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                print(new JSONObject().fluentPut("event", "check").fluentPut("topic", message.getTopic())
                    .fluentPut("queueId", message.getQueueId()).fluentPut("transactionId", message.getTransactionId())
                    .fluentPut("times", message.getUserProperty("TRANSACTION_CHECK_TIMES"))
                    .fluentPut("body", new String(message.getBody(), StandardCharsets.UTF_8)));
                return state(message.getUserProperty("check"));
            }
        });
        producer.start();
        print(new JSONObject().fluentPut("event", "started"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            JSONObject command = JSON.parseObject(line);
            JSONObject answer = new JSONObject().fluentPut("event", "sent").fluentPut("id", command.get("id"));
            try {
                Message message = new Message(command.getString("topic"),
                    command.getString("body").getBytes(StandardCharsets.UTF_8));
                message.setTags("TagA");
                message.putUserProperty("local", command.getString("local"));
                message.putUserProperty("check", command.getString("check"));
                TransactionSendResult result = producer.sendMessageInTransaction(message, null);
                print(answer.fluentPut("status", result.getSendStatus().name())
                    .fluentPut("msgId", result.getMsgId()).fluentPut("transactionId", result.getTransactionId()));
            } catch (Exception failure) {
                print(answer.fluentPut("status", "FAILED").fluentPut("error", failure.toString()));
            }
        }
        producer.shutdown();
        print(new JSONObject().fluentPut("event", "stopped"));
        System.exit(0);
    }

    private static LocalTransactionState state(String name) {
        return switch (name) {
            case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
            case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
            default -> LocalTransactionState.UNKNOW;
        };
    }

    private static synchronized void print(JSONObject event) {
        OUT.println(event);
        OUT.flush();
    }
}
