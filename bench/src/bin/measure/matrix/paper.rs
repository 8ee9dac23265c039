//! What the MKVS paper says: its tables, and what its text tells of its figures.

/// The paper's systems, in the order of its columns.
pub(super) const SYSTEMS: [&str; 8] =
    ["mkvs", "mkvs-gekv", "mkvs-ekv", "pmem-kv", "pmem-redis", "redis", "mongodb", "memcached"];

/// Operations a second of [`SYSTEMS`], at so many threads.
type Throughput = (u64, [u32; 8]);

/// Tables 1 and 2: 1000 records are inserted.
pub(super) const LOAD: [Throughput; 5] = [
    (1, [5226, 4933, 4765, 4539, 4603, 4500, 1364, 1818]),
    (2, [6580, 6320, 5451, 5397, 5702, 5649, 1808, 1960]),
    (4, [7301, 6994, 6113, 6064, 6057, 6037, 2409, 2481]),
    (8, [7526, 7313, 7143, 6915, 6995, 6944, 2493, 2174]),
    (16, [7221, 6759, 6172, 5873, 6112, 6012, 2770, 2247]),
];

/// Tables 3 and 4: workload B, 1000 records, 1000 operations.
pub(super) const B: [Throughput; 5] = [
    (1, [11_805, 12_083, 10_869, 10_154, 10_358, 6451, 1615, 1700]),
    (2, [14_467, 14_322, 12_157, 10_538, 11_254, 7936, 1956, 1488]),
    (4, [15_950, 15_353, 12_987, 11_293, 12_036, 9708, 2403, 2695]),
    (8, [16_601, 16_029, 11_363, 10_481, 10_879, 9433, 2439, 2525]),
    (16, [15_477, 14_728, 10_866, 9588, 10_258, 8547, 2652, 2004]),
];

/// Tables 5 and 6: workload A, 1000 records, 1000 operations.
pub(super) const A: [Throughput; 5] = [
    (1, [8624, 8504, 7863, 7455, 7514, 5714, 1262, 1890]),
    (2, [10_854, 9851, 9233, 8530, 8823, 8124, 1893, 2145]),
    (4, [11_953, 11_524, 9708, 9434, 9673, 9618, 2183, 2906]),
    (8, [12_833, 12_571, 11_069, 9503, 11_014, 10_894, 2717, 2597]),
    (16, [12_097, 11_684, 10_526, 9148, 9749, 9523, 2409, 2369]),
];

/// Mean times of tables 1, 3 and 5, in what the paper calls milliseconds: what they are of, which
/// of our means that is, and for [`SYSTEMS`].
pub(super) const TIMES: [(&str, &str, &str, [f64; 8]); 4] = [
    ("table 1, insert", "load", "write", [135.0, 139.0, 176.0, 148.0, 144.0, 150.0, 503.0, 417.0]),
    ("table 3, B: read", "b", "read", [1.62, 1.55, 1.67, 1.69, 1.68, 80.0, 359.0, 436.0]),
    ("table 5, A: read", "a", "read", [1.34, 1.33, 1.36, 1.38, 1.38, 101.0, 411.0, 386.0]),
    ("table 5, A: update", "a", "write", [150.0, 158.0, 167.0, 177.0, 172.0, 85.0, 658.0, 404.0]),
];

/// What the text says of a point of a figure: MKVS over Redis, and over memcached, at least.
#[derive(Debug, Clone, Copy)]
pub(super) struct Point {
    pub(super) records: u64,
    pub(super) operations: u64,
    pub(super) over_redis: f64,
    pub(super) over_memcached: f64,
}

const fn point(records: u64, operations: u64, over_redis: f64, over_memcached: f64) -> Point {
    Point { records, operations, over_redis, over_memcached }
}

/// A figure that is drawn and has no numbers: its number, workload, points, and all that the text
/// tells.
pub(super) const FIGURES: [(u32, &str, &[Point], &str); 4] = [
    (
        3,
        "b",
        &[
            point(5000, 1000, 1.0, 1.0),
            point(10_000, 1000, 1.0, 1.0),
            point(20_000, 1000, 1.0, 1.0),
        ],
        "The values are in the picture alone. The text: the three prototypes are always ahead of the \
         others; at 10,000 records MKVS is 53.1 % above PMEM-KV and 9.4 times above MongoDB.",
    ),
    (
        4,
        "b",
        &[point(1000, 5000, 1.19, 1.19), point(1000, 10_000, 1.3, 1.3)],
        "The values are in the picture alone. The text: MKVS is 0.19 to 11.7 times above the five others \
         at 5,000 operations, 30 % to 18.6 times at 10,000; the three prototypes are always ahead.",
    ),
    (
        5,
        "a",
        &[
            point(5000, 1000, 1.0, 1.0),
            point(10_000, 1000, 1.0, 3.9),
            point(20_000, 1000, 1.0, 1.0),
        ],
        "The values are in the picture alone. The text: the three prototypes are always ahead; at 10,000 \
         records MKVS is 34.8 % above PMEM-Redis and 2.9 times above memcached.",
    ),
    (
        6,
        "a",
        &[point(1000, 5000, 1.34, 1.34), point(1000, 10_000, 1.22, 1.22)],
        "The values are in the picture alone. The text: MKVS is 0.34 to 7.8 times above the five others at \
         5,000 operations, 0.22 to 11.4 times at 10,000; the three prototypes are always ahead.",
    ),
];

/// The figure of a system in a row.
pub(super) fn of(row: &[u32; 8], system: &str) -> Option<f64> {
    let at = SYSTEMS.iter().position(|name| *name == system)?;
    row.get(at).map(|figure| f64::from(*figure))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_have_the_ratios_that_the_text_names() {
        let ratio =
            |row: &[u32; 8], other: &str| of(row, "mkvs").unwrap() / of(row, other).unwrap();
        // "2.8 times compared with MongoDB and is 16% higher than Redis"
        assert!((ratio(&LOAD[0].1, "mongodb") - 3.83).abs() < 0.01);
        assert!((ratio(&LOAD[0].1, "redis") - 1.16).abs() < 0.01);
        // "MKVS lose 2% read throughput compared to MKVS-GEKV"; "increases by 9% compared with MKVS-EKV"
        assert!((ratio(&B[0].1, "mkvs-gekv") - 0.98).abs() < 0.01);
        assert!((ratio(&B[0].1, "mkvs-ekv") - 1.09).abs() < 0.01);
        // "5.98 times compared with MongoDB", "14.8% compared with PMEM-Redis"
        assert!((ratio(&A[0].1, "mongodb") - 6.83).abs() < 0.01);
        assert!((ratio(&A[0].1, "pmem-redis") - 1.148).abs() < 0.001);
        // "The most obvious degradation is Redis by 12.6%, while MKVS is only 5.7%"
        let fall = |name| 1.0 - of(&A[4].1, name).unwrap() / of(&A[3].1, name).unwrap();
        assert!((fall("redis") - 0.126).abs() < 0.001 && (fall("mkvs") - 0.057).abs() < 0.001);
        assert_eq!(of(&A[0].1, "etcd"), None);
    }
}
