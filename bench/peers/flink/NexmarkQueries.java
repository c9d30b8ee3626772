package flink;

import java.util.Map;
import org.apache.flink.table.functions.ScalarFunction;

/** The queries of the application nexmark as SQL, with the same columns. Fields of events are in the order of the alphabet. */
final class NexmarkQueries {
    /** By kind, views of the table {@code events}. */
    static final String[] VIEWS = {
        """
        CREATE TEMPORARY VIEW person AS SELECT person.id AS id, person.name AS name, person.city AS city,
            person.state AS state, date_time FROM events WHERE kind = 0
        """,
        """
        CREATE TEMPORARY VIEW auction AS SELECT auction.category AS category, date_time, auction.description AS description,
            auction.expires AS expires, auction.extra AS extra, auction.id AS id, auction.initial_bid AS initial_bid,
            auction.item_name AS item_name, auction.reserve AS reserve, auction.seller AS seller FROM events WHERE kind = 1
        """,
        """
        CREATE TEMPORARY VIEW bid AS SELECT bid.auction AS auction, bid.bidder AS bidder, bid.channel AS channel, date_time,
            bid.extra AS extra, bid.price AS price, bid.url AS url FROM events WHERE kind = 2
        """,
    };

    private static final String BID =
            "B.auction, B.bidder, B.channel, B.date_time, B.extra, B.price, B.url";

    private static final String AUCTION =
            "A.category, A.date_time AS begins, A.description, A.expires, A.extra AS auction_extra, A.id, A.initial_bid,"
                    + " A.item_name, A.reserve, A.seller";

    private static final String COUNTS =
            distinct("auction") + ", " + distinct("bidder") + ", " + bids();

    private static final Map<String, String> QUERIES =
            Map.ofEntries(
                    Map.entry("q0", "SELECT * FROM bid"),
                    Map.entry(
                            "q1",
                            "SELECT auction, bidder, CAST(price AS DOUBLE) * 0.908E0, date_time, extra FROM bid"),
                    Map.entry("q2", "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0"),
                    Map.entry(
                            "q3",
                            """
                            SELECT P.name, P.city, P.state, A.id FROM auction A JOIN person P ON A.seller = P.id
                            WHERE A.category = 10 AND P.state IN ('OR', 'ID', 'CA')
                            """),
                    Map.entry(
                            "q4",
                            """
                            SELECT category, AVG(CAST(winning AS DOUBLE)) FROM (
                                SELECT A.id, A.category, MAX(B.price) AS winning FROM auction A JOIN bid B ON A.id = B.auction
                                WHERE B.date_time BETWEEN A.date_time AND A.expires GROUP BY A.id, A.category
                            ) GROUP BY category
                            """),
                    Map.entry(
                            "q5",
                            """
                            WITH counts AS (
                                SELECT auction, COUNT(*) AS bids, window_start, window_end
                                FROM TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
                                GROUP BY auction, window_start, window_end)
                            SELECT C.auction, C.bids, C.window_start FROM counts C JOIN (
                                SELECT MAX(bids) AS most, window_start, window_end FROM counts GROUP BY window_start, window_end
                            ) M ON C.window_start = M.window_start AND C.window_end = M.window_end AND C.bids = M.most
                            """),
                    Map.entry(
                            "q7",
                            "SELECT "
                                    + BID
                                    + """
                             FROM (SELECT * FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND))) B
                            JOIN (SELECT MAX(price) AS highest, window_start, window_end
                                FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
                                GROUP BY window_start, window_end) M
                            ON B.window_start = M.window_start AND B.window_end = M.window_end AND B.price = M.highest
                            """),
                    Map.entry(
                            "q8",
                            """
                            SELECT P.id, P.name, P.window_start FROM (
                                SELECT id, name, window_start, window_end
                                FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
                                GROUP BY id, name, window_start, window_end) P
                            JOIN (SELECT seller, window_start, window_end
                                FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
                                GROUP BY seller, window_start, window_end) A
                            ON P.id = A.seller AND P.window_start = A.window_start AND P.window_end = A.window_end
                            """),
                    Map.entry(
                            "q9",
                            "SELECT category, begins, description, expires, auction_extra, id, initial_bid, item_name, reserve,"
                                    + " seller, auction, bidder, channel, date_time, extra, price, url FROM (SELECT "
                                    + AUCTION
                                    + ", "
                                    + BID
                                    + """
                            , ROW_NUMBER() OVER (PARTITION BY A.id ORDER BY B.price DESC, B.date_time) AS place
                            FROM auction A JOIN bid B ON A.id = B.auction
                            WHERE B.date_time BETWEEN A.date_time AND A.expires) WHERE place <= 1
                            """),
                    Map.entry(
                            "q10",
                            """
                            SELECT auction, bidder, price, date_time, extra, DATE_FORMAT(date_time, 'yyyy-MM-dd'),
                                DATE_FORMAT(date_time, 'HH:mm') FROM bid
                            """),
                    Map.entry(
                            "q11",
                            """
                            SELECT bidder, COUNT(*), window_start, window_end FROM TABLE(SESSION(
                                TABLE bid PARTITION BY bidder, DESCRIPTOR(date_time), INTERVAL '10' SECOND))
                            GROUP BY bidder, window_start, window_end
                            """),
                    Map.entry(
                            "q12",
                            """
                            SELECT bidder, COUNT(*), window_start, window_end FROM TABLE(TUMBLE(
                                (SELECT bidder, PROCTIME() AS now FROM bid), DESCRIPTOR(now), INTERVAL '10' SECOND))
                            GROUP BY bidder, window_start, window_end
                            """),
                    Map.entry(
                            "q13",
                            "SELECT auction, bidder, price, date_time, of_table(MOD(auction, 10000)) FROM bid"),
                    Map.entry(
                            "q14",
                            """
                            SELECT auction, bidder, euros, CASE WHEN HOUR(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
                                WHEN HOUR(date_time) <= 6 OR HOUR(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END,
                                date_time, extra, letters_c(extra)
                            FROM (SELECT *, CAST(price AS DOUBLE) * 0.908E0 AS euros FROM bid)
                            WHERE euros > 1000000 AND euros < 50000000
                            """),
                    Map.entry(
                            "q15",
                            "SELECT DATE_FORMAT(date_time, 'yyyy-MM-dd'), "
                                    + COUNTS
                                    + " FROM bid GROUP BY DATE_FORMAT(date_time, 'yyyy-MM-dd')"),
                    Map.entry(
                            "q16",
                            "SELECT channel, DATE_FORMAT(date_time, 'yyyy-MM-dd'), MAX(DATE_FORMAT(date_time, 'HH:mm')), "
                                    + COUNTS
                                    + " FROM bid GROUP BY channel, DATE_FORMAT(date_time, 'yyyy-MM-dd')"),
                    Map.entry(
                            "q17",
                            "SELECT auction, DATE_FORMAT(date_time, 'yyyy-MM-dd'), "
                                    + bids()
                                    + ", MIN(price), MAX(price), AVG(CAST(price AS DOUBLE)), SUM(price)"
                                    + " FROM bid GROUP BY auction, DATE_FORMAT(date_time, 'yyyy-MM-dd')"),
                    Map.entry("q18", top("bidder, auction", "date_time DESC, price DESC", 1)),
                    Map.entry("q19", top("auction", "price DESC, date_time", 10)),
                    Map.entry(
                            "q20",
                            "SELECT "
                                    + AUCTION
                                    + ", "
                                    + BID
                                    + " FROM auction A JOIN bid B ON A.id = B.auction WHERE A.category = 10"),
                    Map.entry(
                            "q21",
                            """
                            SELECT * FROM (SELECT auction, bidder, price, channel, CASE LOWER(channel) WHEN 'apple' THEN '0'
                                WHEN 'google' THEN '1' WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3'
                                ELSE REGEXP_EXTRACT(url, '(^|&)channel_id=([^&]*)', 2) END AS channel_id FROM bid)
                            WHERE channel_id IS NOT NULL
                            """),
                    Map.entry(
                            "q22",
                            """
                            SELECT auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3), SPLIT_INDEX(url, '/', 4),
                                SPLIT_INDEX(url, '/', 5) FROM bid
                            """));

    static String of(String name) {
        String query = QUERIES.get(name);
        if (query == null) {
            throw new IllegalArgumentException("there is no query " + name);
        }
        return query;
    }

    private static String top(String keys, String order, int rows) {
        return "SELECT auction, bidder, channel, date_time, extra, price, url FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY "
                + keys
                + " ORDER BY "
                + order
                + ") AS place FROM bid) WHERE place <= "
                + rows;
    }

    private static String bids() {
        return byPrice("COUNT(*)");
    }

    private static String distinct(String column) {
        return byPrice("COUNT(DISTINCT " + column + ")");
    }

    private static String byPrice(String count) {
        return count
                + ", "
                + count
                + " FILTER (WHERE price < 10000), "
                + count
                + " FILTER (WHERE price >= 10000 AND price < 1000000), "
                + count
                + " FILTER (WHERE price >= 1000000)";
    }

    /** The table of q13 in memory: cheaper for Flink than a lookup join with a connector. */
    public static final class OfTable extends ScalarFunction {
        private final Map<Long, Long> rows = new java.util.HashMap<>();

        public OfTable() {
            for (long row = 0; row < 10_000; row++) {
                rows.put(row, row);
            }
        }

        public Long eval(Long key) {
            return rows.get(key);
        }
    }

    public static final class LettersC extends ScalarFunction {
        public long eval(String text) {
            long letters = 0;
            for (int index = 0; index < text.length(); index++) {
                if (text.charAt(index) == 'c') {
                    letters++;
                }
            }
            return letters;
        }
    }

    private NexmarkQueries() {}
}
