import com.alibaba.fastjson2.JSONObject;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Apache's message store on a directory: prints every message of a topic as a JSON line, appends some, stops.
 *
 * <p>Properties: root, commitLogFile, consumeQueueFile (file sizes), topic, queues, append (0),
 * timestamps (list: of each the offsets in queue 0), halt (false: stop cleanly), host (127.0.0.1: born and
 * store host), ext (false: tag codes in a file of their own).
 */
public final class Store {
    private static final PrintStream OUT =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(System.getProperty("root"));
        config.setMappedFileSizeCommitLog(Integer.getInteger("commitLogFile"));
        config.setMappedFileSizeConsumeQueue(Integer.getInteger("consumeQueueFile"));
        config.setMaxHashSlotNum(100);
        config.setMaxIndexNum(1000);
        config.setEnableConsumeQueueExt(Boolean.getBoolean("ext"));
        config.setHaListenPort(0);
        config.setTimerWheelEnable(false);
        config.setDiskMaxUsedSpaceRatio(95);
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("store", false),
            (topic, queueId, offset, tagsCode, time, bits, properties) -> { }, new BrokerConfig(),
            new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("load failed");
        }
        store.start();
        String topic = System.getProperty("topic");
        for (int i = 0; i < Integer.getInteger("append", 0); i++) {
            PutMessageResult result = store.putMessage(message(topic, i));
            if (!result.isOk()) {
                throw new IllegalStateException(result.toString());
            }
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.onSpinWait();
        }
        for (int queueId = 0; queueId < Integer.getInteger("queues"); queueId++) {
            print(store, topic, queueId);
        }
        for (String text : System.getProperty("timestamps", "").split(",", 0)) {
            if (!text.isEmpty()) {
                printOffsets(store, topic, Long.parseLong(text));
            }
        }
        if (Boolean.getBoolean("halt")) {
            Runtime.getRuntime().halt(0);
        }
        store.shutdown();
        System.exit(0);
    }

    private static void printOffsets(DefaultMessageStore store, String topic, long timestamp) {
        JSONObject line = new JSONObject().fluentPut("event", "at").fluentPut("timestamp", timestamp);
        for (BoundaryType boundary : BoundaryType.values()) {
            line.put(boundary.getName(), store.getOffsetInQueueByTime(topic, 0, timestamp, boundary));
        }
        say(line);
    }

    private static void print(DefaultMessageStore store, String topic, int queueId) throws Exception {
        long offset = store.getMinOffsetInQueue(topic, queueId);
        long end = store.getMaxOffsetInQueue(topic, queueId);
        say(new JSONObject().fluentPut("event", "queue").fluentPut("queue", queueId).fluentPut("min", offset)
            .fluentPut("max", end));
        while (offset < end) {
            GetMessageResult result = store.getMessage("reader", topic, queueId, offset, 32, null);
            for (ByteBuffer buffer : result.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(buffer);
                Set<String> names = new TreeSet<>(message.getProperties().keySet());
                say(new JSONObject().fluentPut("event", "message").fluentPut("queue", message.getQueueId())
                    .fluentPut("offset", message.getQueueOffset()).fluentPut("physical", message.getCommitLogOffset())
                    .fluentPut("body", new String(message.getBody(), StandardCharsets.UTF_8))
                    .fluentPut("tags", message.getTags()).fluentPut("names", names)
                    .fluentPut("id", message.getMsgId()).fluentPut("born", message.getBornHost().toString())
                    .fluentPut("stored", message.getStoreTimestamp()));
            }
            if (result.getNextBeginOffset() <= offset) {
                throw new IllegalStateException(result.toString());
            }
            offset = result.getNextBeginOffset();
            result.release();
        }
    }

    private static MessageExtBrokerInner message(String topic, int i) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setQueueId(i % Integer.getInteger("queues"));
        message.setBody(("apache " + i).getBytes(StandardCharsets.UTF_8));
        message.setTags(i % 2 == 0 ? "even" : "odd");
        message.setKeys("key" + i);
        MessageAccessor.putProperty(message, "color", "blau");
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(TopicFilterType.SINGLE_TAG, message.getTags()));
        message.setBornTimestamp(System.currentTimeMillis());
        String host = System.getProperty("host", "127.0.0.1");
        message.setBornHost(new InetSocketAddress(host, 4321));
        message.setStoreHost(new InetSocketAddress(host, 10911));
        return message;
    }

    private static void say(JSONObject line) {
        OUT.println(line);
        OUT.flush();
    }
}
