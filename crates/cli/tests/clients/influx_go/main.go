// InfluxDB's own client for Go, version 1 (github.com/influxdata/influxdb1-client/v2), unmodified, against a server with a
// password: PORT USER PASSWORD. Whatever is not as InfluxDB answers it ends it with an error.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	influx "github.com/influxdata/influxdb1-client/v2"
)

const points = 3000

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func check(is bool, what ...any) {
	if !is {
		log.Fatal(what...)
	}
}

// ask asks, and fails for the error of a statement as well.
func ask(c influx.Client, q influx.Query) []influx.Result {
	response, err := c.Query(q)
	must(err)
	must(response.Error())
	return response.Results
}

func batch(precision string, some func(at int) *influx.Point) influx.BatchPoints {
	batch, err := influx.NewBatchPoints(influx.BatchPointsConfig{Database: "go", Precision: precision})
	must(err)
	for at := 0; at < points; at++ {
		batch.AddPoint(some(at))
	}
	return batch
}

func point(at int, fields map[string]any) *influx.Point {
	tags := map[string]string{"host": fmt.Sprintf("h %d", at%3), "site": `a,b=c`}
	point, err := influx.NewPoint("cpu load", tags, fields, time.Unix(1_500_000_000+int64(at), 0))
	must(err)
	return point
}

func write(c influx.Client) {
	must(c.Write(batch("s", func(at int) *influx.Point {
		return point(at, map[string]any{"load": float64(at) / 8, "text": fmt.Sprintf("\"%d\", =\n", at), "even": at%2 == 0})
	})))
	// A second field of the same points, and nanoseconds.
	must(c.Write(batch("ns", func(at int) *influx.Point {
		return point(at, map[string]any{"count": int64(at) << 40})
	})))
}

func read(c influx.Client) {
	found := ask(c, influx.NewQuery(`SELECT * FROM "cpu load"`, "go", "s"))
	rows := found[0].Series[0].Values
	check(len(rows) == points, "points: ", len(rows))
	for at, row := range rows {
		// time, count, even, host, load, site, text
		time, _ := row[0].(json.Number).Int64()
		count, _ := row[1].(json.Number).Int64()
		load, _ := row[4].(json.Number).Float64()
		check(time == 1_500_000_000+int64(at) && count == int64(at)<<40 && load == float64(at)/8, row)
		check(row[2] == (at%2 == 0) && row[3] == fmt.Sprintf("h %d", at%3) && row[5] == "a,b=c", row)
		check(row[6] == fmt.Sprintf("\"%d\", =\n", at), row)
	}
	groups := ask(c, influx.NewQuery(`SELECT count(load), max(count) FROM "cpu load" GROUP BY host`, "go", ""))
	check(len(groups[0].Series) == 3, groups)
	for _, group := range groups[0].Series {
		check(group.Values[0][1] == json.Number("1000"), group)
	}
	chunked := influx.NewQuery(`SELECT load FROM "cpu load"`, "go", "ns")
	chunked.Chunked, chunked.ChunkSize = true, 70
	number := 0
	for _, result := range ask(c, chunked) {
		for _, series := range result.Series {
			number += len(series.Values)
		}
	}
	check(number == points, "chunks: ", number)
	stream, err := c.QueryAsChunk(chunked)
	must(err)
	defer stream.Close()
	for number = 0; ; {
		response, err := stream.NextResponse()
		if err != nil {
			break
		}
		for _, series := range response.Results[0].Series {
			check(len(series.Values) <= 70, "a chunk of ", len(series.Values))
			number += len(series.Values)
		}
	}
	check(number == points, "a stream of chunks: ", number)
}

func fail(c influx.Client, address string) {
	for _, wrong := range []string{"SELECT", "SELECT load FROM", "SELECT load FROM m WHERE time ="} {
		response, err := c.Query(influx.NewQuery(wrong, "go", ""))
		check(err != nil || response.Error() != nil, wrong, ": no error")
	}
	conflict := batch("s", func(at int) *influx.Point { return point(at, map[string]any{"load": "a text"}) })
	err := c.Write(conflict)
	check(err != nil, "no conflict")
	stranger, err := influx.NewHTTPClient(influx.HTTPConfig{Addr: address, Username: "me", Password: "wrong"})
	must(err)
	response, err := stranger.Query(influx.NewQuery("SHOW DATABASES", "", ""))
	check(err != nil || response.Error() != nil, "no password is needed")
}

func main() {
	log.SetFlags(log.Lshortfile)
	address, user, password := "http://127.0.0.1:"+os.Args[1], os.Args[2], os.Args[3]
	for _, encoding := range []influx.ContentEncoding{influx.DefaultEncoding, influx.GzipEncoding} {
		c, err := influx.NewHTTPClient(influx.HTTPConfig{
			Addr: address, Username: user, Password: password, WriteEncoding: encoding})
		must(err)
		_, version, err := c.Ping(10 * time.Second)
		must(err)
		check(version == "1.6.7", version)
		ask(c, influx.NewQuery("CREATE DATABASE go", "", ""))
		write(c)
		read(c)
		fail(c, address)
		ask(c, influx.NewQuery("DROP DATABASE go", "", ""))
		must(c.Close())
	}
	fmt.Println("done")
}
