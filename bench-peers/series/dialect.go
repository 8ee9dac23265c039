package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// What is asked: of the points of a device, or of all, whose steps are `from` and up to but not `to`.
type question struct {
	// "range": points; "count", "sum", "mean": one value; "hours": means of each hour, of each device.
	kind     string
	device   int
	fields   int
	from, to int
}

type sample struct {
	// Milliseconds; 0 of a value of all.
	time  int64
	value float64
}

// By device and field: "host_7 usage_user".
type answer map[string][]sample

// How a server is written to and asked.
type dialect interface {
	writePath() string
	path(of question) string
	// How many points a field has in all.
	countPath(measurement, field string) string
	read(of question, body []byte) (answer, error)
}

// InfluxDB, and what speaks as it does.
type influxql struct{}

func (influxql) writePath() string { return "/write?db=bench" }

func influxPath(text string) string {
	return "/query?db=bench&epoch=ms&q=" + url.QueryEscape(text)
}

func (influxql) path(of question) string {
	where := fmt.Sprintf("time >= %dms AND time < %dms", timeOf(of.from), timeOf(of.to))
	one := fmt.Sprintf("hostname = 'host_%d' AND %s", of.device, where)
	switch of.kind {
	case "range":
		return influxPath(fmt.Sprintf("SELECT %s FROM cpu WHERE %s", fields[0], one))
	case "hours":
		var what []string
		for _, field := range fields[:of.fields] {
			what = append(what, fmt.Sprintf("mean(%s) AS %s", field, field))
		}
		return influxPath(fmt.Sprintf("SELECT %s FROM cpu WHERE %s GROUP BY time(1h), hostname", strings.Join(what, ", "), where))
	}
	return influxPath(fmt.Sprintf("SELECT %s(%s) FROM cpu WHERE %s", of.kind, fields[0], one))
}

func (influxql) countPath(measurement, field string) string {
	return influxPath(fmt.Sprintf("SELECT count(%s) FROM %s", field, measurement))
}

func (influxql) read(of question, body []byte) (answer, error) {
	var all struct {
		Results []struct {
			Error  string
			Series []struct {
				Tags    map[string]string
				Columns []string
				Values  [][]*float64
			}
		}
	}
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, err
	}
	found := answer{}
	for _, result := range all.Results {
		if result.Error != "" {
			return nil, fmt.Errorf("%s", result.Error)
		}
		for _, series := range result.Series {
			for column, field := range series.Columns[1:] {
				name := keyOf(of, series.Tags["hostname"], field)
				for _, row := range series.Values {
					if row[column+1] == nil {
						continue
					}
					it := sample{0, *row[column+1]}
					if of.kind == "range" || of.kind == "hours" {
						it.time = int64(*row[0])
					}
					found[name] = append(found[name], it)
				}
			}
		}
	}
	return found, nil
}

func keyOf(of question, hostname, field string) string {
	if of.kind == "hours" {
		return hostname + " " + field
	}
	return fmt.Sprintf("host_%d %s", of.device, fields[0])
}

// VictoriaMetrics: a field is a metric. A window of time has its end and not its beginning, hence the milliseconds; answers are
// not taken from its cache.
type metricsql struct{}

func (metricsql) writePath() string { return "/write" }

func seconds(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', 3, 64) }

func instant(query string, time int64) string {
	return "/api/v1/query?nocache=1&time=" + seconds(time) + "&query=" + url.QueryEscape(query)
}

func (metricsql) path(of question) string {
	from, to := timeOf(of.from), timeOf(of.to)
	one := fmt.Sprintf(`cpu_%s{hostname="host_%d"}`, fields[0], of.device)
	switch of.kind {
	case "range":
		return "/api/v1/export?start=" + seconds(from) + "&end=" + seconds(to-1) + "&match[]=" + url.QueryEscape(one)
	case "hours":
		metrics := fmt.Sprintf(`{__name__=~"cpu_(%s)"}`, strings.Join(fields[:of.fields], "|"))
		if of.fields == 1 {
			metrics = "cpu_" + fields[0]
		}
		query := fmt.Sprintf("avg(avg_over_time(%s[1h])) by (__name__, hostname)", metrics)
		return "/api/v1/query_range?nocache=1&step=3600&start=" + seconds(from+3_600_000-1) + "&end=" + seconds(to-1) +
			"&query=" + url.QueryEscape(query)
	}
	name := map[string]string{"count": "count", "sum": "sum", "mean": "avg"}[of.kind]
	return instant(fmt.Sprintf("%s_over_time(%s[%ds])", name, one, (to-from)/1000), to-1)
}

func (metricsql) countPath(measurement, field string) string {
	const days = 400
	return instant(fmt.Sprintf("sum(count_over_time(%s_%s[%dd]))", measurement, field, days), epochMs+days*86_400_000-1)
}

func (metricsql) read(of question, body []byte) (answer, error) {
	found := answer{}
	if of.kind == "range" {
		var raw struct {
			Values     []float64
			Timestamps []int64
		}
		for _, line := range strings.Split(strings.TrimSpace(string(body)), "\n") {
			if err := json.Unmarshal([]byte(line), &raw); err != nil {
				return nil, err
			}
			for at, value := range raw.Values {
				found[keyOf(of, "", "")] = append(found[keyOf(of, "", "")], sample{raw.Timestamps[at], value})
			}
		}
		return found, nil
	}
	var all struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
				Values [][2]any
			}
		}
	}
	if err := json.Unmarshal(body, &all); err != nil {
		return nil, err
	}
	if all.Status != "success" {
		return nil, fmt.Errorf("%s", all.Error)
	}
	for _, result := range all.Data.Result {
		name := keyOf(of, result.Metric["hostname"], strings.TrimPrefix(result.Metric["__name__"], "cpu_"))
		values := result.Values
		if of.kind != "hours" {
			values = [][2]any{result.Value}
		}
		for _, pair := range values {
			at, isNumber := pair[0].(float64)
			text, isText := pair[1].(string)
			value, err := strconv.ParseFloat(text, 64)
			if !isNumber || !isText || err != nil {
				return nil, fmt.Errorf("no sample: %v", pair)
			}
			it := sample{0, value}
			if of.kind == "hours" {
				// Of the hour that ends there.
				it.time = int64(at*1000+1.5) - 3_600_000
			}
			found[name] = append(found[name], it)
		}
	}
	return found, nil
}
