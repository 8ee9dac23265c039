package main

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"time"
)

// Which lines a writer sends, batch after batch.
type batches struct {
	fleet *fleet
	lines int
	// Devices of a writer; all, if batches are taken in turn.
	devices []int
	bodies  [][]byte
	isAhead bool
}

// The batches of some devices, by time.
func newBatches(of *fleet, devices []int, lines int, isAhead bool) *batches {
	it := &batches{fleet: of, lines: lines, devices: devices, isAhead: isAhead}
	if isAhead {
		it.bodies = make([][]byte, it.count())
		inParallel(it.count(), func(number int) { it.bodies[number] = it.make(nil, number) })
	}
	return it
}

func (it *batches) total() int { return len(it.devices) * it.fleet.steps }
func (it *batches) count() int { return (it.total() + it.lines - 1) / it.lines }

func (it *batches) make(body []byte, number int) []byte {
	for at := number * it.lines; at < min((number+1)*it.lines, it.total()); at++ {
		body = it.fleet.line(body, it.devices[at%len(it.devices)], at/len(it.devices))
	}
	return body
}

// The body of a batch; `scratch` is for one that is made only now.
func (it *batches) body(scratch []byte, number int) []byte {
	if it.isAhead {
		return it.bodies[number]
	}
	return it.make(scratch[:0], number)
}

type loadFigures struct {
	Lines    int     `json:"lines"`
	Points   int     `json:"points"`
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"`
	LinesPer float64 `json:"lines_per_second"`
	PerPoint float64 `json:"points_per_second"`
	Batch    figures `json:"batch"`
}

// Writes everything that the fleet has.
func (it *plan) load() (any, error) {
	all := make([]int, it.devices)
	for device := range all {
		all[device] = device
	}
	var own []*batches
	if it.order == "own" {
		for writer := range it.clients {
			var devices []int
			for device := writer; device < it.devices; device += it.clients {
				devices = append(devices, device)
			}
			own = append(own, newBatches(it.fleet, devices, it.batch, !it.isStream))
		}
	} else {
		own = append(own, newBatches(it.fleet, all, it.batch, !it.isStream))
	}
	var bytes, turn atomic.Int64
	path := it.dialect.writePath()
	times, took, err := race(it.clients, 0, func(writer int) (func() (bool, error), error) {
		its, place := own[writer%len(own)], 0
		conn, err := dial(it.address)
		var scratch []byte
		return func() (bool, error) {
			number := place
			if it.order != "own" {
				number = int(turn.Add(1) - 1)
			}
			if number >= its.count() {
				conn.close()
				return true, nil
			}
			place++
			scratch = its.body(scratch, number)
			bytes.Add(int64(len(scratch)))
			return false, conn.ask("POST", path, scratch)
		}, err
	})
	if err != nil {
		return nil, err
	}
	lines := it.devices * it.fleet.steps
	points, seconds := lines*len(fields), took.Seconds()
	return loadFigures{lines, points, bytes.Load(), seconds, float64(lines) / seconds, float64(points) / seconds,
		figuresOf(times, took)}, nil
}

// Appends the line of one point: no device has two of a step.
func (it *plan) single(body []byte, device, step int) []byte {
	body = append(append(append(body, "single"...), it.fleet.tags[device]...), " value="...)
	body = append(strconv.AppendInt(body, int64(step%100), 10), "i "...)
	return append(strconv.AppendInt(body, timeOf(step), 10), "000000\n"...)
}

// Inserts one point a request, for so long, each device in turn; each has been acknowledged before the next one of its
// connection is sent. Every series is there before the clock starts.
func (it *plan) insert() (any, error) {
	path := it.dialect.writePath()
	conn, err := dial(it.address)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	var body []byte
	for device := range it.devices {
		body = it.single(body, device, it.first)
	}
	if err := conn.ask("POST", path, body); err != nil {
		return nil, err
	}
	limit := time.Duration(it.ms) * time.Millisecond
	times, took, err := race(it.clients, limit, func(client int) (func() (bool, error), error) {
		conn, err := dial(it.address)
		device, step := client, it.first+1
		var body []byte
		return func() (bool, error) {
			body = it.single(body[:0], device, step)
			if device += it.clients; device >= it.devices {
				device, step = client, step+1
			}
			return false, conn.ask("POST", path, body)
		}, err
	})
	return insertFigures{figuresOf(times, took), len(times) + it.devices}, err
}

type insertFigures struct {
	figures
	// Points that have been acknowledged.
	Written int `json:"written"`
}

// How many points there are: of one field of all devices, or of those that were inserted.
func (it *plan) count() (any, error) {
	conn, err := dial(it.address)
	if err != nil {
		return nil, err
	}
	defer conn.close()
	found := map[string]float64{}
	for _, column := range [][2]string{{"cpu", fields[0]}, {"single", "value"}} {
		path := it.dialect.countPath(column[0], column[1])
		if err := conn.ask("GET", path, nil); err != nil {
			return nil, err
		}
		got, err := it.dialect.read(question{kind: "count", fields: 1}, conn.body.Bytes())
		if err != nil {
			return nil, fmt.Errorf("%w: %.300s", err, conn.body.String())
		}
		found[column[0]] = 0
		for _, samples := range got {
			found[column[0]] = samples[0].value
		}
	}
	return found, nil
}
