import java.io.InputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.namesrv.NamesrvStartup;

/**
 * Starts a name server and a broker of Apache's, and the programs beside this one at them, so that Java can list the
 * classes that all of them load. Argument: a directory for the store.
 */
public final class Archive {
    private static final int PROGRAM_TIMEOUT_S = 60;

    private interface Program {
        void main(String[] arguments) throws Exception;
    }

    public static void main(String[] arguments) {
        try {
            use(Path.of(arguments[0]));
            // A clean stop of the broker would take 20 s.
            Runtime.getRuntime().halt(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
    }

    private static void use(Path home) throws Exception {
        System.setProperty("rocketmq.home.dir", home.toString());
        int namePort = freePort();
        String namesrv = "127.0.0.1:" + namePort;
        Path nameFile = Files.writeString(home.resolve("namesrv.conf"), "listenPort=" + namePort + "\nbindAddress=127.0.0.1\n");
        NamesrvStartup.main(new String[] {"-c", nameFile.toString()});
        int port = freePort();
        Path brokerFile = Files.writeString(home.resolve("broker.conf"), String.join("\n", "brokerIP1=127.0.0.1",
            "bindAddress=127.0.0.1", "brokerName=a", "listenPort=" + port, "haListenPort=" + freePort(), "namesrvAddr=" + namesrv,
            "storePathRootDir=" + home.resolve("store"), "storePathCommitLog=" + home.resolve("store").resolve("commitlog"),
            "mappedFileSizeCommitLog=1048576", "mappedFileSizeTimerLog=1048576", "maxHashSlotNum=100", "maxIndexNum=400",
            "diskMaxUsedSpaceRatio=95"));
        BrokerStartup.main(new String[] {"-c", brokerFile.toString()});

        System.setProperty("namesrv", namesrv);
        System.setProperty("group", "archive");
        System.setProperty("topic", "archive");
        String address = "127.0.0.1:" + port;
        run(Admin::main,
            "{'arguments': ['updateTopic', '-b', '" + address + "', '-t', 'archive', '-r', '1', '-w', '1']}",
            "{'arguments': ['topicRoute', '-n', '" + namesrv + "', '-t', 'archive']}");
        run(Produce::main, "{'id': 1, 'kind': 'sync', 'topic': 'archive', 'body': 'body', 'properties': {'a': 1}}");
        run(Transact::main, "{'id': 1, 'topic': 'archive', 'body': 'body', 'local': 'commit', 'check': 'commit'}");
        run(Consume::main);
        System.setProperty("orderly", "true");
        run(Consume::main);
        // Consumers fetch meanwhile.
        run(Offsets::main, "{'id': 1, 'ask': 'pull', 'topic': 'archive', 'broker': 'a', 'tags': '*', 'count': 1}");
    }

    /** Run a program until it has handled these commands and waits for another. */
    private static void run(Program program, String... commands) throws Exception {
        CountDownLatch handled = new CountDownLatch(1);
        byte[] text = (String.join("\n", commands) + "\n").replace('\'', '"').getBytes(StandardCharsets.UTF_8);
        System.setIn(new InputStream() {
            private boolean isRead = commands.length == 0;

            @Override
            public int read() {
                throw new UnsupportedOperationException();
            }

            @Override
            public int read(byte[] into, int start, int length) {
                while (isRead) {
                    handled.countDown();
                    LockSupport.park();
                }
                isRead = true;
                System.arraycopy(text, 0, into, start, text.length);
                return text.length;
            }
        });
        Thread thread = new Thread(() -> {
            try {
                program.main(new String[0]);
            } catch (Exception failure) {
                failure.printStackTrace();
                System.exit(1);
            }
        });
        thread.start();
        if (!handled.await(PROGRAM_TIMEOUT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("a program has not handled " + String.join(" ", commands));
        }
    }

    private static int freePort() throws Exception {
        try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return socket.getLocalPort();
        }
    }
}
