// Time series as TSBS's cpu-only has them, written to a server and asked of it again: Coreplane, InfluxDB, VictoriaMetrics. One
// phase a call. All that is random follows from the seed, so that each phase knows what the others wrote, and every answer is held
// against that.
//
//	go run . -address 127.0.0.1:8086 -dialect influxql -phase load -clients 4 -steps 2000
//	load    lines in batches, as fast as they are taken
//	insert  one point a request, for -ms
//	query   ranges, counts, sums and means of a device, means of all by the hour
//	count   how many points are there
//	first   asks until the first right answer comes
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

type plan struct {
	address, order string
	seed           uint64
	devices        int
	clients, batch int
	isStream       bool
	ms, first      int
	queries        int
	kinds          string
	dialect        dialect
	fleet          *fleet
}

func main() {
	of := plan{}
	flag.StringVar(&of.address, "address", "127.0.0.1:8086", "where the server is")
	name := flag.String("dialect", "influxql", "influxql or metricsql")
	phase := flag.String("phase", "load", "load, insert, query, count, first")
	flag.Uint64Var(&of.seed, "seed", 1, "of tags and walks")
	flag.IntVar(&of.devices, "devices", 1000, "devices")
	steps := flag.Int("steps", 2000, "lines of a device, one for every ten seconds")
	tags := flag.String("tags", "tsbs", "the order of tags in a line: tsbs, or sorted as Telegraf writes them")
	flag.StringVar(&of.order, "order", "turn", "turn: batches by time, as TSBS's loader hands them out; own: a writer has its devices")
	flag.IntVar(&of.clients, "clients", 4, "connections")
	flag.IntVar(&of.batch, "batch", 5000, "lines of a batch")
	flag.BoolVar(&of.isStream, "stream", false, "batches are made only when they are sent")
	flag.IntVar(&of.ms, "ms", 3000, "of inserts, and of patience")
	flag.IntVar(&of.first, "first", 0, "the step of the first insert")
	flag.IntVar(&of.queries, "queries", 200, "of each kind at most")
	flag.StringVar(&of.kinds, "kinds", "", "of queries; all")
	flag.Parse()
	of.dialect = influxql{}
	if *name == "metricsql" {
		of.dialect = metricsql{}
	}
	of.fleet = newFleet(of.seed, of.devices, *steps, *tags == "sorted")
	phases := map[string]func() (any, error){
		"load": of.load, "insert": of.insert, "query": of.query, "count": of.count, "first": of.firstAnswer,
	}
	run, isThere := phases[*phase]
	if !isThere {
		fmt.Fprintln(os.Stderr, "no such phase:", *phase)
		os.Exit(2)
	}
	found, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// What cannot be shown has nobody to tell.
	_ = json.NewEncoder(os.Stdout).Encode(found)
}
