import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

/**
 * The members of a group in one process of a bench: "join NAME" starts one, "stop NAME" ends it as a user would, and
 * "stop" or the end of the input ends all. Says "ready", "started NAME" and "stopped NAME".
 *
 * <p>Properties: directory (of the members' journals, NAME.bin).
 */
final class Members {
    /** Number, when it was sent and when it was delivered, in microseconds since 1970, and the queue. */
    static final int ENTRY_BYTES = 32;

    private Members() {
    }

    /** Consumes from the member's start until `stops` is down. */
    interface Consumption {
        void run(Member member) throws Exception;
    }

    /** One member: where it writes what it received, and when it ends. */
    static final class Member {
        final CountDownLatch stops = new CountDownLatch(1);
        private final String name;
        private final FileOutputStream journal;
        private final Thread thread;

        private Member(String name, Consumption consumption) throws IOException {
            this.name = name;
            journal = new FileOutputStream(Path.of(System.getProperty("directory"), name + ".bin").toFile());
            thread = new Thread(() -> live(consumption), name);
        }

        private void live(Consumption consumption) {
            try (journal) {
                consumption.run(this);
                System.out.println("stopped " + name);
            } catch (Throwable failure) {
                failure.printStackTrace();
                System.exit(1);
            }
        }

        void started() {
            System.out.println("started " + name);
        }

        /** Appends whole entries; several threads may. */
        synchronized void append(ByteBuffer entries) throws IOException {
            journal.write(entries.array());
        }
    }

    static long nowUs() {
        return ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
    }

    static void serve(Consumption consumption) throws Exception {
        Map<String, Member> members = new HashMap<>();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.out.println("ready");
        for (String line = in.readLine(); line != null && !line.equals("stop"); line = in.readLine()) {
            String name = line.substring(line.indexOf(' ') + 1);
            if (line.startsWith("join ")) {
                Member member = new Member(name, consumption);
                members.put(name, member);
                member.thread.start();
            } else {
                members.get(name).stops.countDown();
            }
        }
        for (Member member : members.values()) {
            member.stops.countDown();
        }
        for (Member member : members.values()) {
            member.thread.join();
        }
        System.exit(0);
    }
}
