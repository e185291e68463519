import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.rmi.Remote;
import java.rmi.RemoteException;
import java.rmi.registry.LocateRegistry;
import java.rmi.registry.Registry;
import java.rmi.server.UnicastRemoteObject;
import java.util.Arrays;
import java.util.Locale;

/**
 * Java RMI as a contestant (bench/lib/contestant.h).
 *
 * <pre>java -cp FOLDER RmiPeer CLIENT_CPU SERVER_CPU</pre>
 *
 * The server is this class again; it ends with its standard input, which the client holds.
 * Both are pinned by starting them under taskset. References are dropped explicitly (unexported),
 * since RMI's own collector only acts when the client's garbage is collected.
 */
public class RmiPeer {
    public interface Obj extends Remote {
        long get() throws RemoteException;
    }

    public interface Bench extends Remote {
        void nothing() throws RemoteException;

        byte[] echo(byte[] data) throws RemoteException;

        Obj make() throws RemoteException;

        void drop() throws RemoteException;
    }

    static class ObjServer implements Obj {
        public long get() {
            return 7;
        }
    }

    static class BenchServer implements Bench {
        private ObjServer last;

        public void nothing() {}

        public byte[] echo(byte[] data) {
            return data;
        }

        public synchronized Obj make() throws RemoteException {
            last = new ObjServer();
            return (Obj) UnicastRemoteObject.exportObject(last, 0);
        }

        public synchronized void drop() throws RemoteException {
            UnicastRemoteObject.unexportObject(last, true);
        }
    }

    interface Once {
        void run() throws Exception;
    }

    private static final int WARM_UP_CALLS = 8000;

    private static void serve() throws Exception {
        Registry registry = LocateRegistry.createRegistry(0);
        BenchServer server = new BenchServer();
        registry.bind("bench", UnicastRemoteObject.exportObject(server, 0));
        // A registry does not tell the port that it was given; its text does.
        String text = registry.toString();
        int at = text.indexOf("endpoint:[");
        String port = text.substring(text.indexOf(':', at + 10) + 1, text.indexOf(']', at));
        System.out.println(port);
        System.out.flush();
        while (System.in.read() >= 0) {}
        System.exit(0);
    }

    private static double medianUs(double seconds, Once once) throws Exception {
        long[] times = new long[200000];
        int n = 0;
        long begin = System.nanoTime(), last = begin;
        while (n < times.length && last - begin < seconds * 1e9) {
            once.run();
            long now = System.nanoTime();
            times[n++] = now - last;
            last = now;
        }
        Arrays.sort(times, 0, n);
        return times[n / 2] / 1e3;
    }

    private static double rate(double seconds, Once once) throws Exception {
        long begin = System.nanoTime(), now = begin;
        int n = 0;
        for (; now - begin < seconds * 1e9; n++) {
            once.run();
            now = System.nanoTime();
        }
        return n * 1e9 / (now - begin);
    }

    private static Double answer(Bench bench, String figure, double seconds) throws Exception {
        byte[] small = new byte[64], middle = new byte[64 << 10], large = new byte[1 << 20];
        switch (figure) {
            case "sync_64":
                return medianUs(seconds, () -> bench.echo(small));
            case "sync_null":
                return medianUs(seconds, () -> bench.nothing());
            case "sync_64k":
                return medianUs(seconds, () -> bench.echo(middle));
            case "sync_1m":
                return medianUs(seconds, () -> bench.echo(large));
            case "rate_64":
                return rate(seconds, () -> bench.echo(small));
            case "create_fetch_drop":
                return rate(seconds, () -> {
                    bench.make().get();
                    bench.drop();
                });
            default:
                return null;
        }
    }

    private static void pin(String cpu) throws Exception {
        String pid = Long.toString(ProcessHandle.current().pid());
        new ProcessBuilder("taskset", "-a", "-p", "-c", cpu, pid)
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start()
                .waitFor();
    }

    public static void main(String[] args) throws Exception {
        System.setProperty("java.rmi.server.hostname", "127.0.0.1");
        if (args[0].equals("server")) {
            serve();
        }
        Process server =
                new ProcessBuilder(
                                "taskset", "-c", args[1],
                                "java", "-cp", System.getProperty("java.class.path"),
                                "RmiPeer", "server")
                        .redirectError(ProcessBuilder.Redirect.INHERIT)
                        .start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(server.getInputStream()));
        int port = Integer.parseInt(lines.readLine());
        pin(args[0]);
        Bench bench = (Bench) LocateRegistry.getRegistry("127.0.0.1", port).lookup("bench");
        byte[] small = new byte[64];
        for (int i = 0; i < WARM_UP_CALLS; i++) { // until the compiler has seen it often enough
            bench.nothing();
            bench.echo(small);
        }
        System.out.println("ready");
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = questions.readLine()) != null; ) {
            String[] words = line.split(" ");
            Double value = answer(bench, words[0], Double.parseDouble(words[1]));
            System.out.println(value == null ? "-" : String.format(Locale.ROOT, "%.6f", value));
        }
        server.getOutputStream().close();
        server.waitFor();
        System.exit(0);
    }
}
