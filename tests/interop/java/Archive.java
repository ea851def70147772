import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.namesrv.NamesrvStartup;

/**
 * Sends a message through a name server and a broker of its own, so that Java can list the classes that all of them
 * load. Argument: a directory for the store.
 */
public final class Archive {
    // A broker whose first attempt to register failed registers 10 s later.
    private static final int ATTEMPTS = 120;
    private static final long PAUSE_MS = 500;

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
        Path brokerFile = Files.writeString(home.resolve("broker.conf"), String.join("\n", "brokerIP1=127.0.0.1",
            "bindAddress=127.0.0.1", "listenPort=" + freePort(), "haListenPort=" + freePort(), "namesrvAddr=" + namesrv,
            "storePathRootDir=" + home.resolve("store"), "storePathCommitLog=" + home.resolve("store").resolve("commitlog"),
            "mappedFileSizeCommitLog=1048576", "mappedFileSizeTimerLog=1048576", "maxHashSlotNum=100", "maxIndexNum=400",
            "diskMaxUsedSpaceRatio=95"));
        BrokerStartup.main(new String[] {"-c", brokerFile.toString()});

        DefaultMQProducer producer = new DefaultMQProducer("archive_producers");
        producer.setNamesrvAddr(namesrv);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        for (int attempt = 1; true; attempt++) {
            try {
                producer.send(new Message("archive", "body".getBytes()));
                break;
            } catch (MQClientException notRegistered) {
                if (attempt == ATTEMPTS) {
                    throw notRegistered;
                }
                Thread.sleep(PAUSE_MS);
            }
        }
        CountDownLatch received = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("archive_consumers");
        consumer.setNamesrvAddr(namesrv);
        consumer.subscribe("archive", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            received.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        received.await(ATTEMPTS * PAUSE_MS, TimeUnit.MILLISECONDS);
        consumer.shutdown();
        producer.shutdown();
    }

    private static int freePort() throws Exception {
        try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return socket.getLocalPort();
        }
    }
}
