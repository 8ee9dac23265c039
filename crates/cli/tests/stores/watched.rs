//! The reports of a served matrix about itself: INFO and the metrics, each name of them.

use crate::pool::Place;
use crate::session::{Client, Outcome, Reply, Served};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

const KEYS: u64 = 1000;

/// The answer to a scrape, by family: its type, its text for people, and its samples.
type Families = BTreeMap<String, (String, String, BTreeMap<String, f64>)>;

fn scrape(served: &Served) -> Outcome<Families> {
    let place = served.line.split("metrics on ").nth(1).and_then(|rest| rest.split(';').next());
    let mut stream = TcpStream::connect(place.ok_or("no metrics")?)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split("\r\n\r\n").nth(1).ok_or("no body")?;
    let mut families = Families::new();
    let (mut name, mut help) = (String::new(), String::new());
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (family, text) = rest.split_once(' ').ok_or("no help")?;
            (name, help) = (family.to_owned(), text.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let kind = rest.strip_prefix(&format!("{name} ")).ok_or_else(|| line.to_owned())?;
            let family = (kind.to_owned(), help.clone(), BTreeMap::new());
            assert!(families.insert(name.clone(), family).is_none(), "{name} comes twice");
        } else {
            let (sample, value) = line.rsplit_once(' ').ok_or("no value")?;
            let (_, _, samples) = families.get_mut(&name).ok_or("a sample without a family")?;
            let of = sample.split('{').next().unwrap_or_default();
            let end =
                of.strip_prefix(&*name).ok_or_else(|| format!("{sample} is not of {name}"))?;
            assert!(["", "_bucket", "_sum", "_count"].contains(&end), "{sample}");
            assert!(samples.insert(sample.to_owned(), value.parse()?).is_none(), "{sample} twice");
        }
    }
    Ok(families)
}

/// The samples of a family, by the value of their label.
fn by_label(families: &Families, kind: &str, name: &str) -> Outcome<BTreeMap<String, f64>> {
    let (is, _, samples) = families.get(name).ok_or_else(|| format!("no {name}"))?;
    assert_eq!(is, kind, "{name}");
    let label = |sample: &str| sample.split('"').nth(1).unwrap_or_default().to_owned();
    Ok(samples.iter().map(|(sample, value)| (label(sample), *value)).collect())
}

fn read_and_write(client: &mut Client) -> Outcome<()> {
    for number in 0..KEYS {
        let key = format!("key:{number}");
        assert_eq!(client.call(&[b"SET", key.as_bytes(), b"value"])?, Reply::ok());
        client.call(&[b"GET", key.as_bytes()])?;
        let absent = format!("absent:{number}");
        assert_eq!(client.call(&[b"GET", absent.as_bytes()])?, Reply::Bulk(None));
    }
    // A thread reads mostly on one device, and only some gets are timed. These gets come after the others: a thread
    // that seldom misses does not ask the filter.
    for number in 0..KEYS * (GETS - 1) {
        client.call(&[b"GET", format!("key:{}", number % KEYS).as_bytes()])?;
    }
    Ok(())
}

/// The number of gets of each key.
const GETS: u64 = 8;

const DEVICES: [&str; 4] = ["g0d0", "g0d1", "g1d0", "g1d1"];

/// The figures of every existing device.
const OF_DEVICES: [(&str, &str); 23] = [
    ("gauge", "queue"),
    ("gauge", "queue_bytes"),
    ("gauge", "queue_bytes_max"),
    ("counter", "queue_waits_total"),
    ("counter", "ring_reads_total"),
    ("counter", "hedge_wins_total"),
    ("counter", "hedge_losses_total"),
    ("counter", "hedge_cancelled_total"),
    ("counter", "hedges_total"),
    ("gauge", "ring_read_mean_seconds"),
    ("gauge", "hedge_delay_seconds"),
    ("gauge", "unsteady"),
    ("gauge", "records"),
    ("gauge", "live_bytes"),
    ("gauge", "pool_bytes"),
    ("gauge", "free_bytes"),
    ("gauge", "dram_bytes"),
    ("counter", "log_bytes_written_total"),
    ("counter", "cleaner_bytes_copied_total"),
    ("counter", "flushes_total"),
    ("counter", "fences_total"),
    ("counter", "scrubbed_pages_total"),
    ("counter", "damaged_pages_total"),
];

const OF_GROUPS: [(&str, &str); 8] = [
    ("gauge", "devices_current"),
    ("counter", "hits_total"),
    ("counter", "filter_denied_total"),
    ("counter", "filter_false_hits_total"),
    ("counter", "filter_unasked_misses_total"),
    ("gauge", "filter_keys"),
    ("gauge", "filter_capacity"),
    ("gauge", "filter_bytes"),
];

const OF_THE_MATRIX: [(&str, &str); 12] = [
    ("gauge", "matrix_degraded"),
    ("gauge", "matrix_groups"),
    ("gauge", "matrix_slots_moving"),
    ("gauge", "matrix_epoch"),
    ("counter", "matrix_ring_reads_total"),
    ("counter", "matrix_hedge_wins_total"),
    ("counter", "matrix_hedge_losses_total"),
    ("counter", "matrix_hedge_cancelled_total"),
    ("counter", "matrix_hedges_total"),
    ("counter", "engine_filter_denied_total"),
    ("counter", "engine_filter_false_hits_total"),
    ("counter", "engine_damaged_reads_total"),
];

/// A place without a device, g1d0, is reported, too.
fn check_metrics(families: &Families) -> Outcome<()> {
    for (name, (kind, help, _)) in families {
        assert!(kind != "untyped" && help.ends_with('.'), "{name}: {kind}, {help}");
    }
    let all: BTreeSet<String> = DEVICES.map(str::to_owned).into();
    let there: BTreeSet<String> = ["g0d0", "g0d1", "g1d1"].map(str::to_owned).into();
    let current = by_label(families, "gauge", "coreplane_device_current")?;
    assert_eq!(current.keys().cloned().collect::<BTreeSet<_>>(), all);
    assert!(current.iter().all(|(device, is)| (*is == 1.0) == (device != "g1d0")), "{current:?}");
    for (kind, name) in OF_DEVICES {
        let told = by_label(families, kind, &format!("coreplane_device_{name}"))?;
        assert_eq!(told.keys().cloned().collect::<BTreeSet<_>>(), there, "{name}");
    }
    for name in ["get", "put"] {
        let family = format!("coreplane_device_{name}_seconds");
        let (kind, _, samples) = families.get(&family).ok_or("no histogram")?;
        assert_eq!(kind, "histogram");
        for device in &there {
            let of = |end: &str, label: &str| samples[&format!("{family}_{end}{{{label}}}")];
            let label = format!("device=\"{device}\"");
            let count = of("count", &label);
            assert!(count > 0.0 && of("sum", &label) > 0.0, "{name} on {device}");
            assert_eq!(of("bucket", &format!("{label},le=\"+Inf\"")), count);
        }
    }
    for (kind, name) in OF_GROUPS {
        let told = by_label(families, kind, &format!("coreplane_group_{name}"))?;
        assert_eq!(told.keys().map(String::as_str).collect::<Vec<_>>(), ["g0", "g1"], "{name}");
    }
    for (kind, name) in OF_THE_MATRIX {
        assert_eq!(by_label(families, kind, &format!("coreplane_{name}"))?.len(), 1, "{name}");
    }
    let sum = |name: &str| -> Outcome<f64> {
        Ok(by_label(families, "counter", &format!("coreplane_group_{name}"))?.values().sum())
    };
    let keys = KEYS as f64;
    let misses = ["filter_denied_total", "filter_false_hits_total", "filter_unasked_misses_total"];
    let misses: f64 = misses.into_iter().map(sum).sum::<Outcome<f64>>()?;
    assert_eq!(misses, keys);
    assert_eq!(sum("hits_total")?, keys * GETS as f64);
    // The filter is made for 1 % of false answers.
    assert!(sum("filter_denied_total")? > 0.9 * keys);
    Ok(())
}

#[test]
fn a_served_matrix_tells_of_every_device_and_group() -> Outcome<()> {
    let place = Place::in_memory()?;
    for engine in ["bptree", "scmkv"] {
        let arguments = ["--matrix", "2x2", "--engine", engine, "--size", "32MiB"];
        let matrix = place.created(engine, &arguments)?;
        std::fs::remove_file(matrix.path.join("g1d0"))?;
        let served = matrix.serve(&["--metrics", "127.0.0.1:0"])?;
        let mut client = served.connect()?;
        read_and_write(&mut client)?;
        let families = scrape(&served)?;
        check_metrics(&families)?;
        assert_eq!(by_label(&families, "gauge", "coreplane_matrix_degraded")?[""], 1.0);
        let records = by_label(&families, "gauge", "coreplane_engine_records")?[""];
        assert_eq!(records, KEYS as f64);
        let Reply::Bulk(Some(info)) = client.call(&[b"INFO"])? else {
            return Err("INFO is a text".into());
        };
        let info = String::from_utf8(info)?;
        let line = |start: &str| {
            let line = info.lines().find(|line| line.starts_with(start));
            line.ok_or_else(|| format!("no {start} in {info}"))
        };
        for device in DEVICES {
            let line = line(&format!("device_{device}:current="))?;
            assert_eq!(line.contains("current=1"), device != "g1d0", "{line}");
            assert_eq!(line.contains(",put_p99_ns_below="), device != "g1d0", "{line}");
            assert_eq!(line.contains(",free_bytes="), device != "g1d0", "{line}");
        }
        for group in ["group_g0:", "group_g1:"] {
            assert!(line(group)?.contains("filter_denied="));
        }
        assert!(info.contains(&format!("keys={KEYS},")) && info.contains("matrix_degraded:1"));
        served.terminate()?;
    }
    Ok(())
}
