import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

/**
 * Uses an in-memory database of the H2 driver, which must be on the class path: tables, indices, joins,
 * groups, views, transactions and errors.
 *
 * "go ROUNDS" repeats all of it ROUNDS times and is answered by "done SUM". SUM depends only on ROUNDS.
 */
public class SqlLoad {
    private static final String[] SCHEMA = {
        "create table author(id int primary key, name varchar(40) not null, born date)",
        "create table book(id int primary key, author int, title varchar(80), price decimal(8, 2),"
                + " foreign key (author) references author(id))",
        "create index by_price on book(price)",
        "create view cheap as select title, price from book where price < 20",
        "create sequence numbers start with 100",
    };
    private static final String[] QUESTIONS = {
        "select a.name, count(*), sum(b.price), max(b.title) from author a join book b on b.author = a.id"
                + " group by a.name having count(*) > 1 order by 2 desc, 1",
        "select title from cheap where title like '%7%' union select name from author order by 1",
        "select id, (select count(*) from book x where x.price < b.price) from book b where price"
                + " between 5 and 40 order by id",
        "select upper(name), substring(name, 2, 3), length(name), extract(year from born), case when"
                + " born < date '1950-01-01' then 'old' else 'new' end from author order by id",
        "select distinct cast(price as int) / 10 from book where author in (select id from author where"
                + " name > 'M') order by 1",
        "with recursive t(n) as (select 1 union all select n + 1 from t where n < 20) select sum(n), avg(n) from t",
        "select author, title, row_number() over (partition by author order by price) from book order by 1, 2",
    };

    private static long sum;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready " + ProcessHandle.current().pid());
        for (String line = in.readLine(); line != null && !line.equals("quit"); line = in.readLine()) {
            int rounds = Integer.parseInt(line.substring("go ".length()));
            sum = 0;
            for (int round = 0; round < rounds; round++) {
                try (Connection connection = DriverManager.getConnection("jdbc:h2:mem:round" + round)) {
                    work(connection, 30 + round % 7);
                }
            }
            System.out.println("done " + sum);
        }
    }

    private static void work(Connection connection, int authors) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            for (String table : SCHEMA) {
                statement.execute(table);
            }
            fill(connection, authors);
            for (String question : QUESTIONS) {
                add(statement.executeQuery(question));
            }
            connection.setAutoCommit(false);
            sum += statement.executeUpdate("update book set price = price * 1.1 where price < 10");
            sum += statement.executeUpdate("delete from book where title like '%13%'");
            connection.rollback();
            sum += statement.executeUpdate("merge into author key(id) values (1, 'Zoe', date '1999-12-31')");
            connection.commit();
            add(statement.executeQuery("select next value for numbers from author"));
            try {
                statement.execute("select nothing from nowhere");
            } catch (SQLException e) {
                sum += e.getErrorCode();
            }
        }
        DatabaseMetaData data = connection.getMetaData();
        add(data.getColumns(null, "PUBLIC", "%", "%"));
    }

    private static void fill(Connection connection, int authors) throws SQLException {
        try (PreparedStatement author = connection.prepareStatement("insert into author values (?, ?, ?)");
                PreparedStatement book = connection.prepareStatement("insert into book values (?, ?, ?, ?)")) {
            for (int i = 0; i < authors; i++) {
                author.setInt(1, i);
                author.setString(2, "Author " + Integer.toString(i * 7919 % 1000, 36));
                author.setDate(3, java.sql.Date.valueOf(String.format("19%02d-01-02", i * 13 % 100)));
                author.addBatch();
            }
            sum += author.executeBatch().length;
            for (int i = 0; i < authors * 5; i++) {
                book.setInt(1, i);
                book.setInt(2, i * 31 % authors);
                book.setString(3, "Title " + i);
                book.setBigDecimal(4, java.math.BigDecimal.valueOf(i * 37 % 5000, 2));
                sum += book.executeUpdate();
            }
        }
    }

    private static void add(ResultSet rows) throws SQLException {
        int columns = rows.getMetaData().getColumnCount();
        while (rows.next()) {
            for (int column = 1; column <= columns; column++) {
                String value = rows.getString(column);
                sum = sum * 31 + (value == null ? 7 : value.hashCode());
            }
        }
        rows.close();
    }
}
