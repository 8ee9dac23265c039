// Lettuce (io.lettuce:lettuce-core), unmodified, against a server that is killed and opened again in the middle: PORT.
//
// The conversation first, in both versions of the protocol, then writes without an end. After the line "loaded" the server
// may be killed; the client comes back by itself, and what was acknowledged is read again. The last line begins with "done".

import io.lettuce.core.ClientOptions;
import io.lettuce.core.ExpireArgs;
import io.lettuce.core.KeyScanCursor;
import io.lettuce.core.KeyValue;
import io.lettuce.core.RedisChannelHandler;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisConnectionStateListener;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.SetArgs;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.StatusOutput;
import io.lettuce.core.protocol.ProtocolVersion;
import java.io.IOException;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicInteger;

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
        } catch (RedisCommandExecutionException error) {
            if (error.getMessage().contains(words)) return;
            throw error;
        }
        throw new AssertionError("it does not fail with " + words);
    }

    static void strings(RedisCommands<String, String> redis) {
        is("OK", redis.set("greeting", "hello"));
        is("hello", redis.get("greeting"));
        is(null, redis.get("none"));
        is(12L, redis.append("greeting", ", world"));
        is("hello", redis.getrange("greeting", 0, 4));
        is(12L, redis.setrange("greeting", 7, "redis"));
        is(12L, redis.strlen("greeting"));
        is("OK", redis.mset(Map.of("a", "1", "b", "2")));
        is(List.of(KeyValue.just("a", "1"), KeyValue.empty("none"), KeyValue.just("b", "2")), redis.mget("a", "none", "b"));
        is(false, redis.msetnx(Map.of("b", "3", "c", "3")));
        is(41L, redis.incrby("n", 41));
        is(40L, redis.decr("n"));
        is(40.5, redis.incrbyfloat("n", 0.5));
        is("1", redis.getdel("a"));
        is(1L, redis.exists("a", "b"));
    }

    static void binary(RedisCommands<byte[], byte[]> redis) {
        is("OK", redis.set(EVERY, EVERY));
        is(EVERY, redis.get(EVERY));
        byte[] large = new byte[5 << 20];
        for (int at = 0; at < large.length; at++) large[at] = (byte) (at * 7);
        is("OK", redis.set("large".getBytes(), large));
        is(large, redis.get("large".getBytes()));
    }

    static void options(RedisCommands<String, String> redis) {
        is("OK", redis.set("k", "1", SetArgs.Builder.nx()));
        is(null, redis.set("k", "2", SetArgs.Builder.nx()));
        is(null, redis.set("absent", "2", SetArgs.Builder.xx()));
        is("1", redis.setGet("k", "3", SetArgs.Builder.xx()));
        is("OK", redis.set("k", "4", SetArgs.Builder.ex(100)));
        is("OK", redis.set("k", "5", SetArgs.Builder.keepttl()));
        long ttl = redis.ttl("k");
        is(true, ttl > 0 && ttl <= 100);
        is(true, redis.persist("k"));
        is(-1L, redis.ttl("k"));
        Instant then = Instant.ofEpochMilli(System.currentTimeMillis() + 1_000_000);
        is("OK", redis.set("k", "6", SetArgs.Builder.pxAt(then)));
        is(then.toEpochMilli(), redis.pexpiretime("k"));
        is(false, redis.expire("k", 1, ExpireArgs.Builder.gt()));
        is(true, redis.expire("k", 50, ExpireArgs.Builder.lt()));
        is("OK", redis.set("brief", "x", SetArgs.Builder.px(20)));
        while (redis.exists("brief") == 1) Thread.onSpinWait();
        is(null, redis.get("brief"));
    }

    static void transactions(RedisCommands<String, String> redis, RedisCommands<String, String> rival) {
        is("OK", redis.multi());
        redis.set("x", "1");
        redis.incr("x");
        is(List.of("OK", 2L), redis.exec().stream().toList());
        is("OK", redis.watch("x"));
        rival.set("x", "changed");
        redis.multi();
        redis.set("x", "mine");
        TransactionResult thwarted = redis.exec();
        is(true, thwarted.wasDiscarded());
        is("changed", redis.get("x"));
        redis.multi();
        redis.set("x", "1");
        is("OK", redis.discard());
        is("changed", redis.get("x"));
    }

    static void pipelines(StatefulRedisConnection<String, String> connection) throws Exception {
        var redis = connection.async();
        List<RedisFuture<String>> answers = new ArrayList<>();
        connection.setAutoFlushCommands(false);
        for (int at = 0; at < 3000; at++) {
            redis.set("p:" + at, "" + at);
            answers.add(redis.get("p:" + at));
        }
        redis.set("t", "x");
        RedisFuture<Long> failed = redis.incr("t");
        RedisFuture<String> there = redis.get("t");
        connection.flushCommands();
        connection.setAutoFlushCommands(true);
        for (int at = 0; at < 3000; at++) is("" + at, answers.get(at).get());
        is("x", there.get());
        is(true, failed.handle((answer, error) -> error.getMessage().contains("not an integer")).toCompletableFuture().get());
    }

    static void scans(RedisCommands<String, String> redis) {
        Set<String> found = new TreeSet<>();
        ScanArgs some = ScanArgs.Builder.matches("p:1*").limit(100);
        KeyScanCursor<String> page = redis.scan(some);
        found.addAll(page.getKeys());
        while (!page.isFinished()) {
            page = redis.scan(page, some);
            found.addAll(page.getKeys());
        }
        Set<String> expected = new TreeSet<>();
        for (int at = 0; at < 3000; at++) if (("" + at).startsWith("1")) expected.add("p:" + at);
        is(expected, found);
    }

    static void errors(RedisCommands<String, String> redis) {
        redis.set("text", "no number");
        fails("ERR value is not an integer or out of range", () -> redis.incr("text"));
        fails("ERR unknown command 'NONSENSE'",
            () -> redis.dispatch(() -> "NONSENSE".getBytes(), new StatusOutput<>(StringCodec.UTF8)));
        fails("ERR invalid expire time in 'set' command", () -> redis.set("text", "x", SetArgs.Builder.px(0)));
        fails("ERR no such key", () -> redis.rename("none", "x"));
        is("no number", redis.get("text"));
    }

    static String value(int number) {
        return number + ":" + "v".repeat(number % 300);
    }

    /** Writes until the server is gone and back; the numbers of the writes that were acknowledged. */
    static List<Integer> load(StatefulRedisConnection<String, String> connection) throws Exception {
        AtomicInteger losses = new AtomicInteger();
        connection.addListener(new RedisConnectionStateListener() {
            @Override
            public void onRedisDisconnected(RedisChannelHandler<?, ?> of) {
                losses.incrementAndGet();
            }
        });
        List<Integer> acknowledged = new ArrayList<>();
        int after = 0;
        boolean isTold = false;
        for (int first = 0; after < 500; first += 50) {
            List<RedisFuture<String>> answers = new ArrayList<>();
            for (int number = first; number < first + 50; number++) {
                answers.add(connection.async().set("w:" + number, value(number)));
            }
            for (int at = 0; at < answers.size(); at++) {
                try {
                    is("OK", answers.get(at).get());
                    acknowledged.add(first + at);
                    if (losses.get() > 0) after++;
                } catch (ExecutionException error) {
                    // What is on its way when the connection is lost is sent again, or fails by an error of the socket.
                    if (!(error.getCause() instanceof IOException)) throw error;
                }
            }
            if (!isTold && acknowledged.size() >= 2000) {
                isTold = true;
                System.out.println("loaded");
            }
        }
        return acknowledged;
    }

    static RedisClient client(int port, ProtocolVersion protocol) {
        RedisClient client = RedisClient.create(RedisURI.create("127.0.0.1", port));
        client.setOptions(ClientOptions.builder().protocolVersion(protocol).build());
        return client;
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        for (ProtocolVersion protocol : List.of(ProtocolVersion.RESP2, ProtocolVersion.RESP3)) {
            RedisClient client = client(port, protocol);
            var connection = client.connect();
            var redis = connection.sync();
            redis.flushall();
            strings(redis);
            binary(client.connect(ByteArrayCodec.INSTANCE).sync());
            options(redis);
            transactions(redis, client.connect().sync());
            pipelines(connection);
            scans(redis);
            errors(redis);
            is(true, redis.info("server").contains("redis_version:7"));
            client.shutdown(Duration.ZERO, Duration.ofSeconds(30));
            System.out.println(protocol + ": 8 parts");
        }
        RedisClient client = client(port, ProtocolVersion.RESP3);
        var raw = client.connect(ByteArrayCodec.INSTANCE).sync();
        raw.set("kept".getBytes(), EVERY, SetArgs.Builder.ex(1000));
        var connection = client.connect();
        List<Integer> acknowledged = load(connection);
        for (int number : acknowledged) is(value(number), connection.sync().get("w:" + number));
        is(EVERY, raw.get("kept".getBytes()));
        is(true, raw.ttl("kept".getBytes()) > 0);
        client.shutdown(Duration.ZERO, Duration.ofSeconds(30));
        System.out.println("done: " + acknowledged.size() + " writes");
    }
}
