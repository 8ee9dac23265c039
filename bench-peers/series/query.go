package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// What the walks say that the answer is.
func (it *fleet) expected(of question) answer {
	found := answer{}
	if of.kind == "hours" {
		for device := range it.devices {
			for field := range of.fields {
				column, name := it.column(device, field), fmt.Sprintf("host_%d %s", device, fields[field])
				for from := of.from; from < of.to; from += hourSteps {
					found[name] = append(found[name], sample{timeOf(from), meanOf(column[from : from+hourSteps])})
				}
			}
		}
		return found
	}
	name, part := keyOf(of, "", ""), it.column(of.device, 0)[of.from:of.to]
	switch of.kind {
	case "range":
		for at, value := range part {
			found[name] = append(found[name], sample{timeOf(of.from + at), float64(value)})
		}
	case "count":
		found[name] = []sample{{0, float64(len(part))}}
	case "sum":
		found[name] = []sample{{0, math.Round(meanOf(part) * float64(len(part)))}}
	case "mean":
		found[name] = []sample{{0, meanOf(part)}}
	}
	return found
}

func meanOf(values []uint8) float64 {
	sum := 0
	for _, value := range values {
		sum += int(value)
	}
	return float64(sum) / float64(len(values))
}

func same(got, want answer) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d series instead of %d", len(got), len(want))
	}
	for name, wanted := range want {
		its := got[name]
		if len(its) != len(wanted) {
			return fmt.Errorf("%s has %d samples instead of %d", name, len(its), len(wanted))
		}
		for at, sample := range wanted {
			if its[at].time != sample.time || math.Abs(its[at].value-sample.value) > 1e-12*math.Abs(sample.value) {
				return fmt.Errorf("%s, sample %d is %v instead of %v", name, at, its[at], sample)
			}
		}
	}
	return nil
}

type kind struct {
	name     string
	question question
	// Hours that it asks about; of several devices it begins on the hour. And how many times it is asked, of a hundred.
	hours, share int
}

var kinds = []kind{
	{"range-1h", question{kind: "range"}, 1, 100},
	{"range-12h", question{kind: "range"}, 12, 100},
	{"count-4h", question{kind: "count"}, 4, 100},
	{"sum-4h", question{kind: "sum"}, 4, 100},
	{"mean-4h", question{kind: "mean"}, 4, 100},
	{"hours-1", question{kind: "hours", fields: 1}, 12, 5},
	{"hours-10", question{kind: "hours", fields: 10}, 12, 2},
}

// A random one of its kind; false if the load is too short.
func (it *plan) draw(of kind, draws *rand.Rand) (question, bool) {
	drawn, steps := of.question, it.fleet.steps
	length := min(of.hours*hourSteps, steps/hourSteps*hourSteps)
	if length == 0 {
		return drawn, false
	}
	drawn.device = draws.IntN(it.devices)
	if drawn.kind == "hours" {
		drawn.from = draws.IntN((steps-length)/hourSteps+1) * hourSteps
	} else {
		drawn.from = draws.IntN(steps - length + 1)
	}
	drawn.to = drawn.from + length
	return drawn, true
}

type queryFigures struct {
	figures
	Hours float64 `json:"hours"`
	Bytes int64   `json:"bytes"`
}

// Asks each kind so often, one after the other; each answer is held against the walks, outside of its time.
func (it *plan) query() (any, error) {
	conn, err := dial(it.address)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	all := map[string]queryFigures{}
	for number, kind := range kinds {
		if it.kinds != "" && !slices.Contains(strings.Split(it.kinds, ","), kind.name) {
			continue
		}
		draws := rand.New(rand.NewPCG(it.seed, uint64(number)))
		var times []time.Duration
		var bytes int64
		var sum time.Duration
		hours := 0.0
		// One more before, which is not counted.
		for turn := -1; turn < max(it.queries*kind.share/100, 2); turn++ {
			drawn, isPossible := it.draw(kind, draws)
			if !isPossible {
				break
			}
			path := it.dialect.path(drawn)
			since := time.Now()
			if err := conn.ask("GET", path, nil); err != nil {
				return nil, err
			}
			took := time.Since(since)
			if err := it.check(drawn, conn.body.Bytes()); err != nil {
				return nil, fmt.Errorf("%s %s: %w: %.300s", kind.name, path, err, conn.body.String())
			}
			if turn >= 0 {
				times, sum = append(times, took), sum+took
				bytes += int64(conn.body.Len())
			}
			hours = float64(drawn.to-drawn.from) / float64(hourSteps)
		}
		if len(times) > 0 {
			bytes /= int64(len(times))
			all[kind.name] = queryFigures{figuresOf(times, sum), hours, bytes}
		}
	}
	return all, nil
}

func (it *plan) check(asked question, body []byte) error {
	got, err := it.dialect.read(asked, body)
	if err != nil {
		return err
	}
	return same(got, it.fleet.expected(asked))
}

// Says that it is ready, and asks until it is answered and the answer is right: when that was, in nanoseconds since 1970.
func (it *plan) firstAnswer() (any, error) {
	asked := question{kind: "mean", device: it.devices / 2, from: it.fleet.steps / 2}
	asked.to = min(asked.from+hourSteps, it.fleet.steps)
	path := it.dialect.path(asked)
	fmt.Println("ready")
	end := time.Now().Add(time.Duration(it.ms) * time.Millisecond)
	for {
		conn, err := dial(it.address)
		if err == nil {
			for err == nil {
				if err = conn.ask("GET", path, nil); err == nil {
					if err = it.check(asked, conn.body.Bytes()); err == nil {
						conn.close()
						return map[string]int64{"ns": time.Now().UnixNano()}, nil
					}
				}
			}
			conn.close()
		}
		if time.Now().After(end) {
			return nil, err
		}
		time.Sleep(time.Millisecond)
	}
}
