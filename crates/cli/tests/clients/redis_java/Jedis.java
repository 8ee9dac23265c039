// Jedis (redis.clients:jedis), unmodified, against a server that is killed and opened again in the middle: PORT.
//
// The conversation first, in both versions of the protocol, then writes without an end. After the line "loaded" the server
// may be killed; the client comes back, and what was acknowledged is read again. The last line begins with "done".

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.args.ExpiryOption;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.util.KeyValue;

class Conversation {
    static final byte[] EVERY = new byte[256];

    static {
        for (int at = 0; at < EVERY.length; at++) EVERY[at] = (byte) at;
    }

    static void is(Object expected, Object answer) {
        if (!Objects.deepEquals(expected, answer)) throw new AssertionError(answer + " instead of " + expected);
    }

    /** Fails unless `call` fails with an error of the server that has these words. */
    static void fails(String words, Runnable call) {
        try {
            call.run();
        } catch (JedisDataException error) {
            if (error.getMessage().contains(words)) return;
            throw error;
        }
        throw new AssertionError("it does not fail with " + words);
    }

    static void strings(RedisClient redis) {
        is("OK", redis.set("greeting", "hello"));
        is("hello", redis.get("greeting"));
        is(null, redis.get("none"));
        is(12L, redis.append("greeting", ", world"));
        is("hello", redis.getrange("greeting", 0, 4));
        is(12L, redis.setrange("greeting", 7, "redis"));
        is(12L, redis.strlen("greeting"));
        is("OK", redis.mset("a", "1", "b", "2"));
        is(Arrays.asList("1", null, "2"), redis.mget("a", "none", "b"));
        is(0L, redis.msetnx("b", "3", "c", "3"));
        is(41L, redis.incrBy("n", 41));
        is(40L, redis.decr("n"));
        is(40.5, redis.incrByFloat("n", 0.5));
        is("1", redis.getDel("a"));
        is(1L, redis.exists("a", "b"));
    }

    static void binary(RedisClient redis) {
        is("OK", redis.set(EVERY, EVERY));
        is(EVERY, redis.get(EVERY));
        byte[] large = new byte[5 << 20];
        for (int at = 0; at < large.length; at++) large[at] = (byte) (at * 7);
        is("OK", redis.set("large".getBytes(), large));
        is(large, redis.get("large".getBytes()));
    }

    static void options(RedisClient redis) {
        is("OK", redis.set("k", "1", SetParams.setParams().nx()));
        is(null, redis.set("k", "2", SetParams.setParams().nx()));
        is(null, redis.set("absent", "2", SetParams.setParams().xx()));
        is("1", redis.setGet("k", "3", SetParams.setParams().xx()));
        is("OK", redis.set("k", "4", SetParams.setParams().ex(100)));
        is("OK", redis.set("k", "5", SetParams.setParams().keepTtl()));
        long ttl = redis.ttl("k");
        is(true, ttl > 0 && ttl <= 100);
        is(1L, redis.persist("k"));
        is(-1L, redis.ttl("k"));
        long then = System.currentTimeMillis() + 1_000_000;
        is("OK", redis.set("k", "6", SetParams.setParams().pxAt(then)));
        is(then, redis.pexpireTime("k"));
        is(0L, redis.expire("k", 1, ExpiryOption.GT));
        is(1L, redis.expire("k", 50, ExpiryOption.LT));
        is("OK", redis.set("brief", "x", SetParams.setParams().px(20)));
        while (redis.exists("brief")) Thread.onSpinWait();
        is(null, redis.get("brief"));
    }

    static void transactions(RedisClient redis) {
        try (AbstractTransaction transaction = redis.multi()) {
            transaction.set("x", "1");
            Response<Long> two = transaction.incr("x");
            is(List.of("OK", 2L), transaction.exec());
            is(2L, two.get());
        }
        try (AbstractTransaction transaction = redis.transaction(false)) {
            transaction.watch("x");
            redis.set("x", "changed");
            transaction.multi();
            transaction.set("x", "mine");
            is(null, transaction.exec());
        }
        is("changed", redis.get("x"));
        try (AbstractTransaction transaction = redis.multi()) {
            transaction.set("x", "1");
            transaction.sendCommand(() -> "NONSENSE".getBytes(), new String[0]);
            fails("EXECABORT", transaction::exec);
        }
        is("changed", redis.get("x"));
    }

    static void pipelines(RedisClient redis) {
        List<Response<String>> answers = new ArrayList<>();
        try (var pipeline = redis.pipelined()) {
            for (int at = 0; at < 3000; at++) {
                pipeline.set("p:" + at, "" + at);
                answers.add(pipeline.get("p:" + at));
            }
            pipeline.sync();
        }
        for (int at = 0; at < 3000; at++) is("" + at, answers.get(at).get());
        try (var pipeline = redis.pipelined()) {
            pipeline.set("t", "x");
            Response<Long> failed = pipeline.incr("t");
            Response<String> there = pipeline.get("t");
            pipeline.sync();
            fails("not an integer", failed::get);
            is("x", there.get());
        }
    }

    static void scans(RedisClient redis) {
        Set<String> found = new TreeSet<>();
        String cursor = ScanParams.SCAN_POINTER_START;
        do {
            var page = redis.scan(cursor, new ScanParams().match("p:1*").count(100));
            found.addAll(page.getResult());
            cursor = page.getCursor();
        } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
        Set<String> expected = new TreeSet<>();
        for (int at = 0; at < 3000; at++) if (("" + at).startsWith("1")) expected.add("p:" + at);
        is(expected, found);
    }

    static void errors(RedisClient redis) {
        redis.set("text", "no number");
        fails("ERR value is not an integer or out of range", () -> redis.incr("text"));
        fails("ERR unknown command 'NONSENSE'", () -> redis.sendCommand(() -> "NONSENSE".getBytes()));
        fails("ERR invalid expire time in 'set' command", () -> redis.set("text", "x", SetParams.setParams().px(0)));
        fails("ERR no such key", () -> redis.rename("none", "x"));
        is("no number", redis.get("text"));
    }

    static String value(int number) {
        return number + ":" + "v".repeat(number % 300);
    }

    /** Writes until the server is gone and back; the numbers of the writes that were acknowledged. */
    static List<Integer> load(RedisClient redis) throws InterruptedException {
        List<Integer> acknowledged = new ArrayList<>();
        int after = 0;
        boolean isLost = false, isTold = false;
        for (int number = 0; after < 500; number++) {
            try {
                is("OK", redis.set("w:" + number, value(number)));
                acknowledged.add(number);
                if (isLost) after++;
            } catch (JedisConnectionException error) {
                // What is on its way when the connection is lost may be there or not.
                isLost = true;
                Thread.sleep(1);
            }
            if (!isTold && acknowledged.size() >= 2000) {
                isTold = true;
                System.out.println("loaded");
            }
        }
        return acknowledged;
    }

    static RedisClient connect(int port, RedisProtocol protocol) {
        return RedisClient.builder().hostAndPort(new HostAndPort("127.0.0.1", port))
            .clientConfig(DefaultJedisClientConfig.builder().protocol(protocol)
                .connectionTimeoutMillis(60_000).socketTimeoutMillis(60_000).build()).build();
    }

    public static void main(String[] arguments) throws InterruptedException {
        int port = Integer.parseInt(arguments[0]);
        for (RedisProtocol protocol : List.of(RedisProtocol.RESP2, RedisProtocol.RESP3)) {
            try (RedisClient redis = connect(port, protocol)) {
                redis.flushAll();
                strings(redis);
                binary(redis);
                options(redis);
                transactions(redis);
                pipelines(redis);
                scans(redis);
                errors(redis);
                List<?> hello = (List<?>) redis.sendCommand(Protocol.Command.HELLO);
                is(protocol == RedisProtocol.RESP3, hello.get(0) instanceof KeyValue);
            }
            System.out.println(protocol + ": 8 parts");
        }
        try (RedisClient redis = connect(port, RedisProtocol.RESP3)) {
            redis.set("kept".getBytes(), EVERY, SetParams.setParams().ex(1000));
            List<Integer> acknowledged = load(redis);
            for (int number : acknowledged) is(value(number), redis.get("w:" + number));
            is(EVERY, redis.get("kept".getBytes()));
            is(true, redis.ttl("kept") > 0);
            System.out.println("done: " + acknowledged.size() + " writes");
        }
    }
}
