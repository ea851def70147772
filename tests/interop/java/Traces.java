import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceType;
import org.apache.rocketmq.common.message.MessageType;

/**
 * Apache's codec of traces: prints a record of each type as its encoder writes it; then, for each line with an id
 * and trace data, what its decoder reads. "stop" ends it.
 */
public final class Traces {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final long AT_MS = 1_777_629_600_123L;

    public static void main(String[] arguments) throws Exception {
        for (TraceType type : TraceType.values()) {
            encode(type.name(), type, AccessChannel.LOCAL, false);
            encode(type.name() + " with texts that are null", type, AccessChannel.LOCAL, true);
        }
        encode("SubAfter of access channel CLOUD", TraceType.SubAfter, AccessChannel.CLOUD, false);
        print(new JSONObject().fluentPut("event", "encoded_all"));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            JSONObject asked = JSON.parseObject(line);
            JSONArray records = new JSONArray();
            for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(asked.getString("data"))) {
                records.add(described(context));
            }
            print(new JSONObject().fluentPut("event", "decoded").fluentPut("id", asked.get("id"))
                .fluentPut("records", records));
        }
        print(new JSONObject().fluentPut("event", "stopped"));
        System.exit(0);
    }

    private static void encode(String what, TraceType type, AccessChannel channel, boolean withNulls) {
        TraceBean bean = new TraceBean();
        bean.setTopic("Orders");
        bean.setMsgId("0A000007049218B4AAC26BAFDBFB0000");
        bean.setOffsetMsgId("C0A8010A00002A9F00000000075BCD15");
        bean.setTags(withNulls ? null : "created");
        bean.setKeys(withNulls ? null : "key-1 schlüssel-2");
        bean.setStoreHost("192.168.1.10:10911");
        bean.setRetryTimes(3);
        bean.setBodyLength(100);
        bean.setMsgType(MessageType.Trans_msg_Commit);
        bean.setTransactionState(LocalTransactionState.COMMIT_MESSAGE);
        bean.setTransactionId(withNulls ? null : "0A000007049218B4AAC26BAFDBFB0001");
        bean.setFromTransactionCheck(withNulls);
        TraceContext context = new TraceContext();
        context.setTraceType(type);
        context.setTimeStamp(AT_MS);
        context.setRegionId("DefaultRegion");
        context.setGroupName("billing");
        context.setRequestId("0A000008049318B4AAC26BAFDBFC0000");
        context.setCostTime(7);
        context.setSuccess(!withNulls);
        context.setContextCode(4);
        context.setAccessChannel(channel);
        context.setTraceBeans(List.of(bean));
        print(new JSONObject().fluentPut("event", "encoded").fluentPut("what", what)
            .fluentPut("data", TraceDataEncoder.encoderFromContextBean(context).getTransData()));
    }

    private static JSONObject described(TraceContext context) {
        TraceBean bean = context.getTraceBeans().get(0);
        return new JSONObject().fluentPut("type", context.getTraceType().name())
            .fluentPut("timeStamp", context.getTimeStamp()).fluentPut("regionId", context.getRegionId())
            .fluentPut("groupName", context.getGroupName()).fluentPut("requestId", context.getRequestId())
            .fluentPut("costTime", context.getCostTime()).fluentPut("success", context.isSuccess())
            .fluentPut("contextCode", context.getContextCode()).fluentPut("topic", bean.getTopic())
            .fluentPut("msgId", bean.getMsgId()).fluentPut("offsetMsgId", bean.getOffsetMsgId())
            .fluentPut("tags", bean.getTags()).fluentPut("keys", bean.getKeys())
            .fluentPut("storeHost", bean.getStoreHost()).fluentPut("retryTimes", bean.getRetryTimes())
            .fluentPut("bodyLength", bean.getBodyLength())
            .fluentPut("msgType", bean.getMsgType() == null ? null : bean.getMsgType().ordinal())
            .fluentPut("transactionId", bean.getTransactionId())
            .fluentPut("transactionState", bean.getTransactionState())
            .fluentPut("fromTransactionCheck", bean.isFromTransactionCheck());
    }

    private static synchronized void print(JSONObject line) {
        OUT.println(line.toJSONString());
        OUT.flush();
    }
}
