import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * What Apache's six allocation strategies give each client.
 *
 * One question a line, {"queues": [[topic, broker, id], ...], "clients": [...], "rooms": [...], "configured": [...]}
 * (the last are places in queues), and one answer: by strategy, by client, the places of its queues.
 */
public class Allocate {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        PrintWriter out = new PrintWriter(System.out, false, java.nio.charset.StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.toJSONString(answer(JSON.parseObject(line))));
        }
        out.flush();
        // The client's logging holds a thread that would keep us here.
        System.exit(0);
    }

    private static Map<String, List<List<Integer>>> answer(JSONObject question) {
        List<MessageQueue> queues = new ArrayList<>();
        Map<MessageQueue, Integer> places = new HashMap<>();
        for (Object each : question.getJSONArray("queues")) {
            JSONArray queue = (JSONArray) each;
            places.put(new MessageQueue(queue.getString(0), queue.getString(1), queue.getIntValue(2)), queues.size());
            queues.add(new MessageQueue(queue.getString(0), queue.getString(1), queue.getIntValue(2)));
        }
        List<String> clients = question.getJSONArray("clients").toJavaList(String.class);

        Map<String, List<List<Integer>>> answer = new LinkedHashMap<>();
        for (AllocateMessageQueueStrategy strategy : strategies(question, queues)) {
            List<List<Integer>> shares = new ArrayList<>();
            for (String client : clients) {
                List<Integer> share = new ArrayList<>();
                for (MessageQueue queue : strategy.allocate("group", client, queues, clients)) {
                    share.add(places.get(queue));
                }
                shares.add(share);
            }
            answer.put(strategy.getName(), shares);
        }
        return answer;
    }

    private static List<AllocateMessageQueueStrategy> strategies(JSONObject question, List<MessageQueue> queues) {
        AllocateMessageQueueByConfig byConfig = new AllocateMessageQueueByConfig();
        List<MessageQueue> configured = new ArrayList<>();
        for (Object place : question.getJSONArray("configured")) {
            configured.add(queues.get((Integer) place));
        }
        byConfig.setMessageQueueList(configured);
        AllocateMessageQueueByMachineRoom machineRoom = new AllocateMessageQueueByMachineRoom();
        machineRoom.setConsumeridcs(new HashSet<>(question.getJSONArray("rooms").toJavaList(String.class)));
        AllocateMachineRoomNearby.MachineRoomResolver rooms = new AllocateMachineRoomNearby.MachineRoomResolver() {
            @Override
            public String brokerDeployIn(MessageQueue queue) {
                return queue.getBrokerName().split("@")[0];
            }

            @Override
            public String consumerDeployIn(String client) {
                return client.split("@")[0];
            }
        };
        return List.of(
            new AllocateMessageQueueAveragely(),
            new AllocateMessageQueueAveragelyByCircle(),
            new AllocateMessageQueueConsistentHash(),
            byConfig,
            machineRoom,
            new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), rooms),
            new AllocateMachineRoomNearby(new AllocateMessageQueueAveragelyByCircle(), rooms));
    }
}
