// The workloads of the TS-PMEM paper (section 6) on InfluxDB, as YCSB-TS writes them: testworkloada loads points with one tag
// and asks for single ones; testworkloadb loads points with three tags, asks for ranges of time, and scans, counts, sums and
// averages ranges. Several sources begin at the same time, each with threads of its own, and each thread waits for an answer
// before it asks again. Every answer is held against what was written.
//
//	go run . -url http://127.0.0.1:8086 -workload b -phase load -sources 6 -threads 4 -points 10000
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand"
	"net/http"
	"net/url"
	"os"
	"sort"
	"sync"
	"time"
)

// A source's points are so far apart, from here on.
const (
	start    = int64(1_600_000_000_000_000_000)
	interval = int64(time.Second)
)

type plan struct {
	url, workload         string
	threads               int
	points, queries, more int64
	window                int64
}

type source struct {
	plan
	number int
	client *http.Client
	tags   string
}

func valueOf(source int, point int64) int64 {
	return (point*7919 + int64(source)*104729) % 1_000_003
}

func newSource(of plan, number int) *source {
	tags := fmt.Sprintf("TAG0=source%d", number)
	if of.workload == "b" {
		tags += fmt.Sprintf(",TAG1=site%d,TAG2=unit%d", number%3, number%2)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: of.threads, MaxConnsPerHost: of.threads}
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	return &source{plan: of, number: number, client: client, tags: tags}
}

func (it *source) ask(request *http.Request, want int) ([]byte, error) {
	answer, err := it.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != want {
		err = fmt.Errorf("%s: %s", answer.Status, body)
	}
	return body, err
}

func (it *source) write(point int64) error {
	line := fmt.Sprintf("usermetric,%s value=%di %d\n", it.tags, valueOf(it.number, point), start+point*interval)
	request, err := http.NewRequest("POST", it.url+"/write?db=testdb", bytes.NewBufferString(line))
	if err != nil {
		return err
	}
	_, err = it.ask(request, http.StatusNoContent)
	return err
}

// The rows of the answer to a question about the points from `first`, so many.
func (it *source) query(what string, first, count int64) ([][]json.Number, error) {
	text := fmt.Sprintf("SELECT %s FROM usermetric WHERE time >= %d AND time < %d AND TAG0 = 'source%d'",
		what, start+first*interval, start+(first+count)*interval, it.number)
	request, err := http.NewRequest("GET", it.url+"/query?epoch=ns&db=testdb&q="+url.QueryEscape(text), nil)
	if err != nil {
		return nil, err
	}
	body, err := it.ask(request, http.StatusOK)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Results []struct {
			Error  string
			Series []struct{ Values [][]json.Number }
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	if len(answer.Results) != 1 || answer.Results[0].Error != "" || len(answer.Results[0].Series) != 1 {
		return nil, fmt.Errorf("%s: %s", text, body)
	}
	return answer.Results[0].Series[0].Values, nil
}

func (it *source) scan(first, count int64) error {
	rows, err := it.query("value", first, count)
	if err != nil {
		return err
	}
	if int64(len(rows)) != count {
		return fmt.Errorf("source %d has %d of %d points from %d", it.number, len(rows), count, first)
	}
	for at, row := range rows {
		point := first + int64(at)
		if row[0].String() != fmt.Sprint(start+point*interval) || row[1].String() != fmt.Sprint(valueOf(it.number, point)) {
			return fmt.Errorf("source %d, point %d is %v", it.number, point, row)
		}
	}
	return nil
}

func (it *source) aggregate(what string, first, count int64) error {
	var sum float64
	for point := first; point < first+count; point++ {
		sum += float64(valueOf(it.number, point))
	}
	want := map[string]float64{"count": float64(count), "sum": sum, "mean": sum / float64(count)}[what]
	rows, err := it.query(what+"(value)", first, count)
	if err != nil {
		return err
	}
	got, err := rows[0][1].Float64()
	if err == nil && math.Abs(got-want) > 1e-6*math.Abs(want) {
		err = fmt.Errorf("%s of source %d from %d is %v instead of %v", what, it.number, first, got, want)
	}
	return err
}

// What one thread is to do, in this order.
func (it *source) steps(phase string, thread int) []func() (string, error) {
	var all []func() (string, error)
	share := func(count int64) int64 {
		return (count + int64(it.threads) - 1 - int64(thread)) / int64(it.threads)
	}
	if phase == "load" {
		for point := int64(thread); point < it.points; point += int64(it.threads) {
			all = append(all, func() (string, error) { return "write", it.write(point) })
		}
		return all
	}
	draws := rand.New(rand.NewSource(int64(it.number*1000 + thread)))
	length := int64(1)
	if it.workload == "b" {
		length = min(it.window, it.points)
	}
	drawn := func(name string, ask func(first, count int64) error) {
		first := draws.Int63n(it.points - length + 1)
		all = append(all, func() (string, error) { return name, ask(first, length) })
	}
	for range share(it.queries) {
		drawn("query", it.scan)
	}
	for range share(it.more) {
		if it.workload == "b" {
			drawn("scan", it.scan)
			for _, name := range []string{"count", "sum", "mean"} {
				drawn(name, func(first, count int64) error { return it.aggregate(name, first, count) })
			}
		}
	}
	draws.Shuffle(len(all), func(one, other int) { all[one], all[other] = all[other], all[one] })
	return all
}

type figures struct {
	Count     int     `json:"count"`
	PerSecond float64 `json:"per_second"`
	MeanUs    float64 `json:"mean_us"`
	P50Us     float64 `json:"p50_us"`
	P99Us     float64 `json:"p99_us"`
}

func figuresOf(times []time.Duration, took time.Duration) figures {
	sort.Slice(times, func(one, other int) bool { return times[one] < times[other] })
	var sum time.Duration
	for _, time := range times {
		sum += time
	}
	us := func(it time.Duration) float64 { return float64(it.Nanoseconds()) / 1e3 }
	count := len(times)
	return figures{count, float64(count) / took.Seconds(), us(sum) / float64(count), us(times[count/2]), us(times[count*99/100])}
}

func run(of plan, phase string, sources int) (map[string]figures, error) {
	var all []*source
	for number := range sources {
		all = append(all, newSource(of, number))
	}
	var ready, done sync.WaitGroup
	var lock sync.Mutex
	var failure error
	begin, times := make(chan struct{}), map[string][]time.Duration{}
	for _, source := range all {
		for thread := range of.threads {
			ready.Add(1)
			done.Add(1)
			go func() {
				defer done.Done()
				steps, own := source.steps(phase, thread), map[string][]time.Duration{}
				ready.Done()
				<-begin
				var err error
				for _, step := range steps {
					since := time.Now()
					name, failed := step()
					own[name] = append(own[name], time.Since(since))
					if failed != nil {
						err = failed
						break
					}
				}
				lock.Lock()
				defer lock.Unlock()
				for name, some := range own {
					times[name] = append(times[name], some...)
				}
				if err != nil {
					failure = err
				}
			}()
		}
	}
	ready.Wait()
	since := time.Now()
	close(begin)
	done.Wait()
	took := time.Since(since)
	found := map[string]figures{}
	var together []time.Duration
	for name, some := range times {
		found[name] = figuresOf(some, took)
		together = append(together, some...)
	}
	found["all"] = figuresOf(together, took)
	return found, failure
}

func main() {
	var of plan
	flag.StringVar(&of.url, "url", "http://127.0.0.1:8086", "where InfluxDB is")
	flag.StringVar(&of.workload, "workload", "a", "a or b")
	flag.IntVar(&of.threads, "threads", 4, "threads of a source")
	flag.Int64Var(&of.points, "points", 10000, "points of a source")
	flag.Int64Var(&of.queries, "queries", 1000, "queries of a source")
	flag.Int64Var(&of.more, "more", 250, "scans, counts, sums and means of a source, of each so many")
	flag.Int64Var(&of.window, "window", 100, "points in a range of time")
	phase := flag.String("phase", "load", "load or run")
	sources := flag.Int("sources", 1, "sources")
	flag.Parse()
	found, err := run(of, *phase, *sources)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// What cannot be shown has nobody to tell.
	_ = json.NewEncoder(os.Stdout).Encode(found)
}
