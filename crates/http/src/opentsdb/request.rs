//! Requests of `/api/query`: in JSON, or in parameters (`m=sum:rate:1m-avg:metric{host=*}`).

use super::aggregate::Aggregator;
use super::downsample::{Downsample, Rate};
use super::filter::{Filter, check};
use super::list::Few;
use super::moment::Moment;
use super::point::wrong_json;
use crate::parameters::Parameters;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::BTreeMap;

/// The maximum number of sub-queries.
const SUBS_MAX: usize = 100;

/// The maximum number of filters of a query, in all of its sub-queries: each may be an expression, which takes
/// memory when it is compiled.
const FILTERS_MAX: usize = 256;

/// # Errors
/// If a query has too many sub-queries, or filters.
fn check_counts(subs: usize, filters: usize) -> Result<(), String> {
    if subs > SUBS_MAX {
        return Err(format!("A query has at most {SUBS_MAX} sub-queries"));
    }
    if filters > FILTERS_MAX {
        return Err(format!("A query has at most {FILTERS_MAX} filters"));
    }
    Ok(())
}

/// A query.
#[derive(Debug)]
pub(super) struct Query {
    /// Milliseconds since 1970.
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) subs: Vec<Sub>,
    /// True if times of the answer are milliseconds.
    pub(super) is_in_milliseconds: bool,
    /// True if points of the answer are lists.
    pub(super) has_arrays: bool,
}

/// A sub-query.
#[derive(Debug)]
pub(super) struct Sub {
    pub(super) metric: String,
    pub(super) aggregator: Aggregator,
    pub(super) filters: Vec<Filter>,
    /// True if series must have the tags of the filters and no others.
    pub(super) is_explicit: bool,
    pub(super) rate: Option<Rate>,
    pub(super) downsample: Option<Downsample>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AskedQuery {
    start: Option<Moment>,
    end: Option<Moment>,
    #[serde(default)]
    queries: Few<AskedSub, SUBS_MAX>,
    #[serde(default)]
    ms_resolution: bool,
    #[serde(default)]
    delete: bool,
    timezone: Option<String>,
    use_calendar: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AskedSub {
    aggregator: Option<String>,
    metric: Option<String>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    #[serde(default)]
    filters: Few<AskedFilter, FILTERS_MAX>,
    #[serde(default)]
    rate: bool,
    rate_options: Option<AskedRate>,
    downsample: Option<String>,
    #[serde(default)]
    explicit_tags: bool,
    #[serde(default)]
    tsuids: Few<IgnoredAny, 0>,
    percentiles: Option<Few<IgnoredAny, 0>>,
    show_histogram_buckets: Option<bool>,
    pre_aggregate: Option<bool>,
}

/// # Errors
/// If an option is set that changes numbers, and that is not supported.
fn check_options(options: &[(&str, bool)]) -> Result<(), String> {
    let set = options.iter().find(|(_, is_set)| *is_set);
    set.map_or(Ok(()), |(name, _)| Err(format!("{name} is not supported")))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AskedFilter {
    #[serde(rename = "type")]
    kind: Option<String>,
    tagk: Option<String>,
    filter: Option<String>,
    #[serde(default)]
    group_by: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AskedRate {
    #[serde(default)]
    counter: bool,
    counter_max: Option<f64>,
    reset_value: Option<f64>,
    #[serde(default)]
    drop_resets: bool,
}

impl AskedSub {
    fn sub(self) -> Result<Sub, String> {
        if !self.tsuids.0.is_empty() {
            return Err("tsuids are not supported: name a metric".to_owned());
        }
        check_options(&[
            ("percentiles", self.percentiles.is_some_and(|it| !it.0.is_empty())),
            ("showHistogramBuckets", self.show_histogram_buckets == Some(true)),
            ("preAggregate", self.pre_aggregate == Some(true)),
        ])?;
        let aggregator = self.aggregator.ok_or("Missing the aggregation function")?;
        let metric = self.metric.filter(|metric| !metric.is_empty());
        let mut filters = Vec::new();
        for (key, text) in &self.tags {
            filters.push(Filter::of_tag(key, text, true)?);
            check(&filters)?;
        }
        for asked in &self.filters.0 {
            let kind = asked.kind.as_deref().ok_or("Missing filter type")?;
            let key = asked.tagk.as_deref().ok_or("Missing tagk")?;
            let text = asked.filter.as_deref().unwrap_or_default();
            filters.push(Filter::of(kind, key, text, asked.group_by)?);
            check(&filters)?;
        }
        let rate = self.rate_options.map_or(Rate::default(), |it| Rate {
            is_counter: it.counter,
            max: it.counter_max.unwrap_or(Rate::default().max),
            reset: it.reset_value.unwrap_or_default(),
            drops_resets: it.drop_resets,
        });
        let downsample = self.downsample.filter(|text| !text.is_empty());
        Ok(Sub {
            metric: metric.ok_or("Missing the metric or tsuids, provide at least one")?,
            aggregator: Aggregator::of_name(&aggregator)
                .ok_or_else(|| format!("No such aggregator: {aggregator}"))?,
            filters,
            is_explicit: self.explicit_tags,
            rate: self.rate.then_some(rate),
            downsample: downsample.map(|text| Downsample::of(&text)).transpose()?,
        })
    }
}

impl Query {
    fn new(
        start: Option<Moment>,
        end: Option<Moment>,
        subs: Vec<Sub>,
        now: i64,
    ) -> Result<Self, String> {
        let start = start.ok_or("Missing start time")?.milliseconds(now)?;
        let end = end.map_or(Ok(now), |end| end.milliseconds(now))?;
        if end < start {
            return Err("End time must be greater than the start time".to_owned());
        }
        if subs.is_empty() {
            return Err("Missing queries".to_owned());
        }
        Ok(Self { start, end, subs, is_in_milliseconds: false, has_arrays: false })
    }

    /// The bytes that its filters take while it runs, about.
    pub(super) fn bytes(&self) -> usize {
        filters_of(&self.subs).map(Filter::bytes_at_work).sum()
    }

    /// The query of a JSON body, with the parameters of its URL; `now` is in milliseconds.
    pub(super) fn of_json(text: &[u8], url: &Parameters, now: i64) -> Result<Self, String> {
        let asked: AskedQuery = serde_json::from_slice(text).map_err(|it| wrong_json(&it))?;
        if asked.delete {
            return Err("Deleting data is not enabled".to_owned());
        }
        let has_zone = asked.timezone.is_some_and(|it| !matches!(&*it, "" | "UTC"));
        check_options(&[
            ("timezone", has_zone),
            ("useCalendar", asked.use_calendar == Some(true)),
        ])?;
        let is_in_milliseconds = asked.ms_resolution || has_flag(url, "ms");
        let has_arrays = has_flag(url, "arrays");
        let queries = asked.queries.0;
        let filters = queries.iter().map(|sub| sub.tags.len() + sub.filters.0.len()).sum();
        check_counts(queries.len(), filters)?;
        let mut subs = Vec::new();
        for asked in queries {
            subs.push(asked.sub()?);
            check(filters_of(&subs))?;
        }
        Ok(Self { is_in_milliseconds, has_arrays, ..Self::new(asked.start, asked.end, subs, now)? })
    }

    /// The query of the parameters of a URL; `now` is in milliseconds.
    pub(super) fn of_url(url: &Parameters, now: i64) -> Result<Self, String> {
        if url.has("tsuid") {
            return Err("tsuids are not supported: name a metric".to_owned());
        }
        let moment = |name| url.some(name).map(|text| Moment::Text(text.to_owned()));
        let (mut subs, mut filters) = (Vec::new(), 0);
        for text in url.all("m") {
            let sub = sub_of_text(text)?;
            filters += sub.filters.len();
            subs.push(sub);
            check_counts(subs.len(), filters)?;
            check(filters_of(&subs))?;
        }
        let query = Self::new(moment("start"), moment("end"), subs, now)?;
        let (is_in_milliseconds, has_arrays) = (has_flag(url, "ms"), has_flag(url, "arrays"));
        Ok(Self { is_in_milliseconds, has_arrays, ..query })
    }
}

fn filters_of(subs: &[Sub]) -> impl Iterator<Item = &Filter> {
    subs.iter().flat_map(|sub| &sub.filters)
}

fn has_flag(url: &Parameters, name: &str) -> bool {
    url.has(name) && url.get(name) != "false"
}

/// `agg:[rate[{counter[,max[,reset]]}]:][interval-function[-fill]:][explicit_tags:]metric[{groups}[{filters}]]`
fn sub_of_text(text: &str) -> Result<Sub, String> {
    let (head, braces) = match text.find("{") {
        // The braces of a rate come before its colon.
        Some(at) if !text.get(at..).is_some_and(|rest| rest.contains("}:")) => text.split_at(at),
        Some(_) => match text.rfind("}:").and_then(|at| Some((at, text.get(at + 2..)?.find('{')?)))
        {
            Some((at, brace)) => text.split_at(at + 2 + brace),
            None => (text, ""),
        },
        None => (text, ""),
    };
    let parts: Vec<&str> = head.split(':').collect();
    let [aggregator, options @ .., metric] = parts.as_slice() else {
        return Err(format!("Invalid parameter m={text}"));
    };
    let mut sub = Sub {
        metric: (*metric).to_owned(),
        aggregator: Aggregator::of_name(aggregator)
            .ok_or_else(|| format!("No such aggregator: {aggregator}"))?,
        filters: Vec::new(),
        is_explicit: false,
        rate: None,
        downsample: None,
    };
    if metric.is_empty() {
        return Err(format!("Invalid parameter m={text}"));
    }
    for option in options {
        match *option {
            "explicit_tags" => sub.is_explicit = true,
            option if option.starts_with("rate") => sub.rate = Some(rate_of_text(option)?),
            option => sub.downsample = Some(Downsample::of(option)?),
        }
    }
    let groups = braces.strip_prefix('{').map(|rest| rest.split_once('}').unwrap_or((rest, "")));
    if let Some((groups, rest)) = groups {
        push_filters(groups, true, &mut sub.filters)?;
        let filters = rest.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        match (filters, rest) {
            (Some(filters), _) => push_filters(filters, false, &mut sub.filters)?,
            (None, "") => {}
            _ => return Err(format!("Invalid parameter m={text}")),
        }
    }
    Ok(sub)
}

fn push_filters(text: &str, is_group: bool, filters: &mut Vec<Filter>) -> Result<(), String> {
    // Commas within parentheses belong to an expression.
    let mut depth = 0_u32;
    let pieces = text.split(|it: char| {
        depth = match it {
            '(' => depth + 1,
            ')' => depth.saturating_sub(1),
            _ => depth,
        };
        it == ',' && depth == 0
    });
    for piece in pieces.filter(|piece| !piece.is_empty()) {
        let (key, text) = piece.split_once('=').ok_or_else(|| format!("Invalid tag: {piece}"))?;
        filters.push(Filter::of_tag(key.trim(), text.trim(), is_group)?);
        check_counts(1, filters.len())?;
        check(&*filters)?;
    }
    Ok(())
}

fn rate_of_text(text: &str) -> Result<Rate, String> {
    let wrong = || format!("Invalid rate options: {text}");
    let Some(options) = text.strip_prefix("rate").filter(|rest| !rest.is_empty()) else {
        return Ok(Rate::default());
    };
    let options = options.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let mut parts = options.ok_or_else(wrong)?.split(',');
    let mut rate = Rate::default();
    match parts.next() {
        Some("counter") => rate.is_counter = true,
        Some("dropcounter") => (rate.is_counter, rate.drops_resets) = (true, true),
        _ => return Err(wrong()),
    }
    if let Some(max) = parts.next().filter(|max| !max.is_empty()) {
        rate.max = max.parse().map_err(|_| wrong())?;
    }
    if let Some(reset) = parts.next().filter(|reset| !reset.is_empty()) {
        rate.reset = reset.parse().map_err(|_| wrong())?;
    }
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opentsdb::aggregate::Function;

    const NOW: i64 = 1_700_000_000_000;

    fn url(query: &str) -> Result<Query, String> {
        Query::of_url(&Parameters::of(Some(query)), NOW)
    }

    #[test]
    fn sub_queries_are_read_from_their_text() {
        let query = url(
            "start=1h-ago&ms=true&m=sum:rate:1m-avg:sys.cpu{host=*,dc=lga|phx}{rack=regexp(a(1,2)),x=y}",
        );
        let query = query.unwrap();
        let sub = &query.subs[0];
        assert_eq!((sub.metric.as_str(), sub.filters.len()), ("sys.cpu", 4));
        let groups: Vec<bool> = sub.filters.iter().map(|filter| filter.is_group).collect();
        assert_eq!(groups, [true, true, false, false]);
        assert!(sub.rate.is_some() && query.is_in_milliseconds && !query.has_arrays);
        assert_eq!(sub.downsample.unwrap().function, Function::Average);
        let counter = url("start=1&m=avg:rate{counter,100,5}:m{a=b}&arrays").unwrap();
        let rate = counter.subs[0].rate.unwrap();
        assert_eq!((rate.is_counter, rate.max, rate.reset), (true, 100.0, 5.0));
        assert_eq!((counter.subs[0].metric.as_str(), counter.has_arrays), ("m", true));
        assert!(url("start=1&m=avg:rate{counter}:m").unwrap().subs[0].filters.is_empty());
    }

    #[test]
    fn queries_are_read_from_json() {
        let json = r#"{"start":1356998400,"end":"1356998460","msResolution":true,"queries":[{"aggregator":"sum","metric":"m",
            "rate":true,"rateOptions":{"counter":true,"counterMax":9},"downsample":"1m-max-nan","tags":{"host":"*"},
            "filters":[{"type":"regexp","tagk":"dc","filter":".*","groupBy":false}]}]}"#;
        let query =
            Query::of_json(json.as_bytes(), &Parameters::of(Some("arrays=true")), NOW).unwrap();
        assert_eq!((query.start, query.end), (1_356_998_400_000, 1_356_998_460_000));
        assert!(query.has_arrays && query.is_in_milliseconds);
        assert_eq!((query.subs[0].filters.len(), query.subs[0].rate.unwrap().max), (2, 9.0));
    }

    #[test]
    fn sub_queries_are_counted() {
        let subs = |count| {
            let sub = r#"{"aggregator":"sum","metric":"m"}"#;
            let list = vec![sub; count].join(",");
            let json = format!("{{\"start\":1,\"queries\":[{list}]}}");
            Query::of_json(json.as_bytes(), &Parameters::default(), NOW).map(|it| it.subs.len())
        };
        assert_eq!(subs(SUBS_MAX), Ok(SUBS_MAX));
        assert_eq!(subs(SUBS_MAX + 5), Err("A query has at most 100 sub-queries".to_owned()));
    }

    #[test]
    fn what_is_no_query_is_refused() {
        for wrong in [
            "",
            "start=1",
            "m=sum:m",
            "start=1&m=sum",
            "start=1&m=sum:",
            "start=1&m=nope:m",
            "start=1&m=sum:1m-avg",
            "start=1&m=sum:what:m",
            "start=1&m=sum:m{host}",
            "start=1&m=sum:m{a=b}x",
            "start=1&m=sum:rate{x}:m",
            "start=2&end=1&m=sum:m",
            "start=1&tsuid=sum:00",
        ] {
            // A metric with this name may exist.
            assert!(url(wrong).is_err() || wrong.ends_with("1m-avg"), "{wrong}");
        }
        let of_json = |text: &str| Query::of_json(text.as_bytes(), &Parameters::default(), NOW);
        for wrong in [
            "",
            "{}",
            "[]",
            r#"{"start":1,"queries":[{}]}"#,
            r#"{"start":1,"queries":[],"delete":true}"#,
        ] {
            assert!(of_json(wrong).is_err(), "{wrong}");
        }
        // Options that change numbers.
        let of = |query: &str, sub: &str| {
            let sub = format!(r#"{{"aggregator":"sum","metric":"m"{sub}}}"#);
            of_json(&format!(r#"{{"start":1,"queries":[{sub}]{query}}}"#)).map(|it| it.subs.len())
        };
        for (query, sub) in [
            (r#","timezone":"Asia/Tokyo""#, ""),
            (r#","useCalendar":true"#, ""),
            ("", r#","percentiles":[99.9]"#),
            ("", r#","showHistogramBuckets":true"#),
            ("", r#","preAggregate":true"#),
        ] {
            let wrong = of(query, sub).unwrap_err();
            assert!(wrong.ends_with(" is not supported"), "{query}{sub}: {wrong}");
        }
        let zone = r#","timezone":"UTC","useCalendar":false,"padding":true"#;
        assert_eq!(of(zone, r#","percentiles":[],"preAggregate":null,"index":0"#), Ok(1));
    }
}
