//! Long answers within the limits of an output, and over them.

use crate::wire::many::{KEYS, info, of_keys, one_loop, slices, start, strings};
use coreplane_server::{Config, OutputLimit};
use std::time::{Duration, Instant};

/// The clients that were disconnected, in `INFO`.
const DROPS: &str = "client_output_buffer_limit_disconnections";

fn limited(hard_bytes: u64) -> Config {
    Config { output_limit: OutputLimit { hard_bytes, ..OutputLimit::default() }, ..one_loop() }
}

#[test]
fn an_answer_over_the_limit_ends_the_connection_while_it_is_made() {
    let server = start(limited(1 << 20), KEYS, 1);
    let mut other = server.connect();
    for (round, request) in
        [b"KEYS *\r\n".to_vec(), b"SCAN 0 COUNT 1000000\r\n".to_vec()].iter().enumerate()
    {
        let mut greedy = server.connect();
        greedy.send(request);
        // No byte of the answer is sent.
        assert!(greedy.is_closed());
        assert_eq!(info(&mut other, DROPS), round as u64 + 1);
    }
    // Others stay within the limit, though their answers are many.
    for _ in 0..3 {
        assert_eq!(strings(&other.ask(&[b"KEYS", b"key:0000*"])).len(), 10_000);
    }
    assert_eq!(info(&mut other, DROPS), 2);
}

#[test]
fn values_over_the_limit_end_the_connection_and_changes_are_made() {
    let server = start(limited(1 << 20), 3_000, 1_000);
    let mut other = server.connect();
    let mut transaction = b"MULTI\r\nSET a 1\r\n".to_vec();
    transaction.extend(of_keys("MGET", 0..400));
    (0..10).for_each(|_| transaction.extend(of_keys("MGET", 0..400)));
    transaction.extend(b"SET b 2\r\nEXEC\r\n");
    for (round, request) in [of_keys("MGET", 0..3_000), transaction].iter().enumerate() {
        let mut greedy = server.connect();
        greedy.send(request);
        // The answer is over the limit before a byte of it is sent, however fast the client reads.
        let got = greedy.rest();
        assert!(got.len() <= 1 << 20, "{}", got.len());
        assert_eq!(info(&mut other, DROPS), round as u64 + 1);
    }
    assert_eq!(other.say("MGET a b"), "*2\\r\\n$1\\r\\n1\\r\\n$1\\r\\n2\\r\\n");
}

/// Each of these answers is within the limit; a client that does not read has too many of them.
#[test]
fn answers_that_pend_over_the_limit_end_the_connection() {
    let server = start(limited(1 << 20), 500, 1_000);
    let mut other = server.connect();
    let mut greedy = server.connect();
    // More bytes than the sockets' buffers hold.
    let many = 160;
    assert!(greedy.try_send(&of_keys("MGET", 0..500)));
    assert_eq!(strings(&greedy.reply()).len(), 500);
    let mut pipeline = of_keys("MGET", 0..500).repeat(many);
    pipeline.extend(b"SET behind 1\r\n");
    greedy.try_send(&pipeline);
    let since = Instant::now();
    while info(&mut other, DROPS) == 0 {
        assert!(since.elapsed() < Duration::from_secs(30), "it is not disconnected");
        std::thread::yield_now();
    }
    assert!(greedy.rest().len() < many * 500 * 1_000);
    assert_eq!(other.say("GET behind"), "$-1\\r\\n");
    // A client that takes each answer before the next one gets all.
    for _ in 0..4 {
        other.send(&of_keys("MGET", 0..500));
        assert_eq!(strings(&other.reply()).len(), 500);
    }
    assert_eq!(info(&mut other, DROPS), 1);
}

/// While a slow client does not read, its answer is not extended: only some of its many answers are pending.
#[test]
fn a_long_answer_waits_for_a_client_that_does_not_take_it() {
    let server = start(one_loop(), 5_000, 10_000);
    let mut other = server.connect();
    let mut slow = server.connect();
    // Two answers of fifty megabytes each, more than all buffers on the way.
    let mut pipeline = of_keys("MGET", 0..5_000);
    pipeline.extend(of_keys("MGET", 0..5_000));
    slow.send(&pipeline);
    // All of the first answer is made, and no more as long as the client does not read.
    let mut last = (0, 0);
    loop {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let now = (slices(&mut other), info(&mut other, "client_recent_max_output_buffer"));
        if now == last && now.0 > 0 {
            break;
        }
        last = now;
    }
    assert!(last.1 < 52 << 20, "{last:?}");
    let statistics = other.say("INFO commandstats");
    assert!(!statistics.contains("cmdstat_mget"), "neither has ended: {statistics}");
    for _ in 0..2 {
        assert_eq!(strings(&slow.reply()).len(), 5_000);
    }
    assert_eq!(slow.say("PING"), "+PONG\\r\\n");
}
