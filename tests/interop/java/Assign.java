import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.TopicPartition;

/**
 * What Kafka's four assignors give each member.
 *
 * One question a line, {"topics": {name: partitions, ...}, "members": [{"id", "topics": [...], "owned":
 * [[topic, partition], ...], "generation", "instance"}, ...]}, and one answer: by assignor, by member.
 */
public class Assign {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        PrintWriter out = new PrintWriter(System.out, false, java.nio.charset.StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            out.println(JSON.toJSONString(answer(JSON.parseObject(line))));
        }
        out.flush();
    }

    private static Map<String, Object> answer(JSONObject question) {
        Map<String, Integer> topics = new HashMap<>();
        JSONObject counts = question.getJSONObject("topics");
        for (String topic : counts.keySet()) {
            topics.put(topic, counts.getInteger(topic));
        }
        Map<String, Object> answer = new TreeMap<>();
        answer.put("range", shares(new RangeAssignor().assign(topics, members(question, false))));
        answer.put("roundrobin", shares(new RoundRobinAssignor().assign(topics, members(question, false))));
        answer.put("sticky", shares(new StickyAssignor().assign(topics, members(question, true))));
        answer.put("cooperative-sticky",
            shares(new CooperativeStickyAssignor().assign(topics, members(question, false))));
        return answer;
    }

    /** The eager assignor reads what members held from the user data that it wrote for them. */
    private static Map<String, Subscription> members(JSONObject question, boolean eager) {
        Map<String, Subscription> members = new HashMap<>();
        for (Object each : question.getJSONArray("members")) {
            JSONObject member = (JSONObject) each;
            List<String> topics = member.getJSONArray("topics").toJavaList(String.class);
            List<TopicPartition> owned = new ArrayList<>();
            for (Object partition : member.getJSONArray("owned")) {
                owned.add(new TopicPartition(((JSONArray) partition).getString(0), ((JSONArray) partition).getIntValue(1)));
            }
            int generation = member.getIntValue("generation");
            ConsumerPartitionAssignor writer = eager ? new StickyAssignor() : new CooperativeStickyAssignor();
            writer.onAssignment(new Assignment(owned), new ConsumerGroupMetadata("group", generation, member.getString("id"), Optional.empty()));
            Subscription subscription = new Subscription(
                topics, writer.subscriptionUserData(new HashSet<>(topics)), owned, generation, Optional.empty());
            subscription.setGroupInstanceId(Optional.ofNullable(member.getString("instance")));
            members.put(member.getString("id"), subscription);
        }
        return members;
    }

    private static Map<String, List<List<Object>>> shares(Map<String, List<TopicPartition>> assignment) {
        Map<String, List<List<Object>>> shares = new TreeMap<>();
        assignment.forEach((member, partitions) -> {
            List<List<Object>> share = new ArrayList<>();
            partitions.forEach(partition -> share.add(List.of(partition.topic(), partition.partition())));
            shares.put(member, share);
        });
        return shares;
    }
}
