// The thesis's workload: so many puts or gets of keys and values of 10 bytes, by so many clients, each waiting for an
// answer before it asks again. On etcd by its own client; on whatever speaks the Redis protocol by a plain socket.
// Clients have a connection each, or share some: etcd's client sends the requests of all who share it over one HTTP/2
// connection, and the plain socket is shared in the same way, by a pipeline.
//
//	go run . -endpoints 127.0.0.1:2379 -clients 20 -operations 50000 -keys 50000 -what put
package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

type store interface {
	put(key, value string) error
	get(key string) error
	ping() error
}

type etcd struct{ client *clientv3.Client }

func openEtcd(endpoints []string) store {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:   endpoints,
		DialTimeout: 5 * time.Second,
		Logger:      zap.NewNop(),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return etcd{client}
}

func (it etcd) put(key, value string) error {
	_, err := it.client.Put(context.Background(), key, value)
	return err
}

func (it etcd) get(key string) error {
	_, err := it.client.Get(context.Background(), key)
	return err
}

func (it etcd) ping() error { return fmt.Errorf("etcd has no ping") }

type redis struct {
	stream net.Conn
	reader *bufio.Reader
}

func openResp(endpoint string) store {
	stream, err := net.Dial("tcp", endpoint)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return redis{stream, bufio.NewReader(stream)}
}

func writeCommand(to io.Writer, words []string) {
	fmt.Fprintf(to, "*%d\r\n", len(words))
	for _, word := range words {
		fmt.Fprintf(to, "$%d\r\n%s\r\n", len(word), word)
	}
}

func (it redis) call(words ...string) error {
	var text bytes.Buffer
	writeCommand(&text, words)
	if _, err := it.stream.Write(text.Bytes()); err != nil {
		return err
	}
	return it.readAnswer()
}

func (it redis) readAnswer() error {
	line, err := it.reader.ReadString('\n')
	if err != nil {
		return err
	}
	if line[0] == '-' {
		return fmt.Errorf("%s", line)
	}
	if line[0] == '$' && line[1] != '-' {
		_, err = it.reader.ReadString('\n')
	}
	return err
}

func (it redis) put(key, value string) error { return it.call("SET", key, value) }
func (it redis) get(key string) error        { return it.call("GET", key) }
func (it redis) ping() error                 { return it.call("PING") }

// A socket that callers share: one routine sends what has been asked so far in one write, one gives each caller its answer
// in the order of the requests.
type pipeline struct{ requests chan request }

type request struct {
	words  []string
	answer chan error
}

func openPipeline(endpoint string, callers int) store {
	single := openResp(endpoint).(redis)
	it := pipeline{make(chan request, callers)}
	asked := make(chan request, callers)
	go func() {
		writer := bufio.NewWriterSize(single.stream, 64<<10)
		for request := range it.requests {
			asked <- request
			// What could not be sent is not answered: the reader meets the end of the stream.
			writeCommand(writer, request.words)
			if len(it.requests) == 0 {
				writer.Flush()
			}
		}
	}()
	go func() {
		for request := range asked {
			request.answer <- single.readAnswer()
		}
	}()
	return it
}

func (it pipeline) call(words ...string) error {
	answer := make(chan error, 1)
	it.requests <- request{words, answer}
	return <-answer
}

func (it pipeline) put(key, value string) error { return it.call("SET", key, value) }
func (it pipeline) get(key string) error        { return it.call("GET", key) }
func (it pipeline) ping() error                 { return it.call("PING") }

func main() {
	endpoints := flag.String("endpoints", "127.0.0.1:2379", "where the nodes are, by commas")
	clients := flag.Int("clients", 1, "clients at a time")
	connections := flag.Int("connections", 0, "connections that the clients share, 0: each has its own")
	operations := flag.Int("operations", 1000, "operations in all")
	keys := flag.Int("keys", 50000, "keys of which one is drawn for each operation")
	what := flag.String("what", "put", "put, get, or ping (of a Redis protocol alone)")
	least := flag.Int("value-least", 10, "bytes of a value at least")
	most := flag.Int("value-most", 10, "bytes of a value at most")
	resp := flag.Bool("resp", false, "speak the Redis protocol to the first endpoint")
	flag.Parse()

	open := func() store {
		first := strings.Split(*endpoints, ",")[0]
		switch {
		case !*resp:
			return openEtcd(strings.Split(*endpoints, ","))
		case *connections > 0:
			return openPipeline(first, *clients)
		default:
			return openResp(first)
		}
	}
	shared := make([]store, *connections)
	for at := range shared {
		shared[at] = open()
	}
	each := *operations / *clients
	text := strings.Repeat("0123456789", *most/10+1)
	took := make([][]time.Duration, *clients)
	var ready, done sync.WaitGroup
	begin := make(chan struct{})
	for at := range *clients {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			var client store
			if len(shared) > 0 {
				client = shared[at%len(shared)]
			} else {
				client = open()
			}
			random := rand.New(rand.NewSource(int64(at)))
			key := func() string { return fmt.Sprintf("key%07d", random.Intn(*keys)) }
			// The connection is made before the time is taken.
			if err := client.get(key()); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			ready.Done()
			<-begin
			for range each {
				var err error
				since := time.Now()
				switch *what {
				case "get":
					err = client.get(key())
				case "ping":
					err = client.ping()
				default:
					err = client.put(key(), text[:*least+random.Intn(*most-*least+1)])
				}
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				took[at] = append(took[at], time.Since(since))
			}
		}()
	}
	ready.Wait()
	since := time.Now()
	close(begin)
	done.Wait()
	all := time.Since(since)
	var every []time.Duration
	for _, some := range took {
		every = append(every, some...)
	}
	sort.Slice(every, func(a, b int) bool { return every[a] < every[b] })
	at := func(share float64) float64 {
		return float64(every[int(share*float64(len(every)-1))].Nanoseconds()) / 1000
	}
	fmt.Printf("{\"what\":\"%s\",\"clients\":%d,\"connections\":%d,\"operations\":%d,\"per_second\":%.0f,\"p50_us\":%.1f,\"p90_us\":%.1f,\"p99_us\":%.1f}\n",
		*what, *clients, *connections, len(every), float64(len(every))/all.Seconds(), at(0.5), at(0.9), at(0.99))
}
