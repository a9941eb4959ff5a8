import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import javax.sql.DataSource;

/**
 * Threads that share the two connections of a pool. Queries of OrderDao take 5 ms, those of ReportDao 400 ms, and both
 * report threads together keep both connections busy most of the time.
 *
 * Arguments: the pool's DataSource, "com.zaxxer.hikari.HikariDataSource" or
 * "org.apache.tomcat.jdbc.pool.DataSource". The pool and the H2 driver must be on the class path. Commands on stdin,
 * answers on stdout: "ready PID" once; "go SECONDS" is answered by "done orders=N reports=N".
 */
public class PoolLoad {
    static volatile long end;

    static final class OrderDao {
        static int find(DataSource pool) throws Exception {
            try (Connection connection = pool.getConnection(); Statement statement = connection.createStatement()) {
                statement.execute("call sleep(5)");
            }
            return 1;
        }
    }

    static final class ReportDao {
        static int run(DataSource pool) throws Exception {
            try (Connection connection = pool.getConnection(); Statement statement = connection.createStatement()) {
                statement.execute("call sleep(400)");
            }
            return 1;
        }
    }

    interface Query {
        int run(DataSource pool) throws Exception;
    }

    static final class Worker extends Thread {
        final DataSource pool;
        final Query query;
        int queries;

        Worker(String name, DataSource pool, Query query) {
            super(name);
            this.pool = pool;
            this.query = query;
        }

        @Override
        public void run() {
            try {
                while (System.nanoTime() < end) {
                    queries += query.run(pool);
                }
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }
    }

    static DataSource open(String name) throws Exception {
        Object pool = Class.forName(name).getConstructor().newInstance();
        boolean isHikari = name.contains("hikari");
        String[] properties = isHikari ? new String[] {"setJdbcUrl", "setMaximumPoolSize"}
                                       : new String[] {"setUrl", "setMaxActive"};
        pool.getClass().getMethod(properties[0], String.class).invoke(pool, "jdbc:h2:mem:pool;DB_CLOSE_DELAY=-1");
        pool.getClass().getMethod(properties[1], int.class).invoke(pool, 2);
        if (!isHikari) {
            pool.getClass().getMethod("setDriverClassName", String.class).invoke(pool, "org.h2.Driver");
        }
        return (DataSource) pool;
    }

    public static void main(String[] args) throws Exception {
        DataSource pool = open(args[0]);
        try (Connection connection = pool.getConnection(); Statement statement = connection.createStatement()) {
            statement.execute("create alias sleep for \"java.lang.Thread.sleep(long)\"");
        } catch (SQLException error) {
            throw new IllegalStateException(error);
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            end = System.nanoTime() + (long) (Double.parseDouble(line.split(" ")[1]) * 1e9);
            System.out.println("done " + go(pool));
        }
        System.exit(0);
    }

    static String go(DataSource pool) throws InterruptedException {
        List<Worker> orders = new ArrayList<>();
        List<Worker> reports = new ArrayList<>();
        for (int i = 1; i <= 5; i++) {
            orders.add(new Worker("order-" + i, pool, OrderDao::find));
        }
        for (int i = 1; i <= 2; i++) {
            reports.add(new Worker("report-" + i, pool, ReportDao::run));
        }
        List<Worker> all = new ArrayList<>(orders);
        all.addAll(reports);
        all.forEach(Thread::start);
        for (Worker worker : all) {
            worker.join();
        }
        int found = orders.stream().mapToInt(worker -> worker.queries).sum();
        int made = reports.stream().mapToInt(worker -> worker.queries).sum();
        return "orders=" + found + " reports=" + made;
    }
}
