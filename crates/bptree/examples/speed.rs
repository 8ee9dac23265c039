//! Speed.
use coreplane_bptree::{Bptree, Options, PAGE_SIZE};
use coreplane_engine::{Engine, Ordered, WriteOptions};
use coreplane_pmem::MediaChoice;
use std::time::Instant;
fn key(n: u64) -> [u8; 16] {
    let h = n.wrapping_mul(0x9E3779B97F4A7C15); let h = (h ^ h >> 32).wrapping_mul(0xD6E8FEB86659FD93); let h = h ^ h >> 32;
    let mut k = *b"user000000000000"; let mut v = h; for b in k[4..].iter_mut().rev() { *b = b'0' + (v % 10) as u8; v /= 10; } k
}
fn main() {
    let dir = std::env::args().nth(1).unwrap();
    let n: u64 = std::env::args().nth(2).map_or(1_000_000, |s| s.parse().unwrap());
    let vlen: usize = std::env::args().nth(3).map_or(100, |s| s.parse().unwrap());
    let page: u32 = std::env::args().nth(4).map_or(PAGE_SIZE, |s| s.parse().unwrap());
    let path = std::path::Path::new(&dir).join("bp");
    let _ = std::fs::remove_file(&path);
    let s = Bptree::create(&path, 6 << 30, page, MediaChoice::Emulated("none".into()), &Options::default()).unwrap();
    let v = vec![7u8; vlen];
    let w = WriteOptions::default();
    let time = |name: &str, ops: u64, f: &mut dyn FnMut(u64)| { let t = Instant::now(); for i in 0..ops { f(i) } let e = t.elapsed().as_secs_f64(); println!("{name:12} {:.3} M/s  {:.0} ns", ops as f64 / e / 1e6, e * 1e9 / ops as f64); };
    time("load", n, &mut |i| { s.put(&key(i), &v, &w).unwrap(); });
    let mut x = 88172645463325252u64;
    let mut rnd = move || { x ^= x << 13; x ^= x >> 7; x ^= x << 17; x };
    let ops = 1_000_000;
    time("get", ops, &mut |_| { let k = key(rnd() % n); let mut l = 0; let f = s.get_with(&k, Default::default(), &mut |r| l = r.value.len()).unwrap(); assert!(f.hit && l == vlen); });
    time("overwrite", std::env::var("OW").map_or(ops, |s| s.parse().unwrap()), &mut |_| { s.put(&key(rnd() % n), &v, &w).unwrap(); });
    time("A", ops, &mut |_| { let r = rnd(); let k = key((r >> 1) % n); if r & 1 == 0 { s.put(&k, &v, &w).unwrap(); } else { s.get_with(&k, Default::default(), &mut |_| {}).unwrap(); } });
    time("scan50", 100_000, &mut |_| { let mut c = 0; let mut sum = 0u64; s.scan(&key(rnd() % n), None, false, 50, &mut |e| { c += 1; sum += e.record.map_or(0, |r| r.value.to_cow()[0] as u64); true }).unwrap(); assert!(c > 0 && sum > 0); });
    let st = s.stats();
    println!("dram/key {:.1}  used {:.0} B/key", st.dram_bytes as f64 / n as f64, (st.pool_bytes - st.free_bytes) as f64 / n as f64);
    let t = Instant::now(); drop(s); let s = Bptree::open(&path, MediaChoice::Emulated("none".into()), &Options::default(), &|_| {}).unwrap(); println!("reopen {:?} len {}", t.elapsed(), s.len().unwrap());
    std::fs::remove_file(&path).unwrap();
}
