package main

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Times of requests of one kind.
type figures struct {
	Count     int     `json:"count"`
	PerSecond float64 `json:"per_second"`
	MeanUs    float64 `json:"mean_us"`
	P50Us     float64 `json:"p50_us"`
	P99Us     float64 `json:"p99_us"`
}

func figuresOf(times []time.Duration, took time.Duration) figures {
	if len(times) == 0 {
		return figures{}
	}
	slices.Sort(times)
	var sum time.Duration
	for _, time := range times {
		sum += time
	}
	us := func(it time.Duration) float64 { return float64(it.Nanoseconds()) / 1e3 }
	count := len(times)
	return figures{count, float64(count) / took.Seconds(), us(sum) / float64(count), us(times[count/2]), us(times[count*99/100])}
}

// Does the same for each number, on all processors.
func inParallel(count int, do func(number int)) {
	var next atomic.Int64
	var done sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		done.Add(1)
		go func() {
			defer done.Done()
			for number := next.Add(1) - 1; number < int64(count); number = next.Add(1) - 1 {
				do(int(number))
			}
		}()
	}
	done.Wait()
}

// Has each client work until `next` says that there is nothing more for it, or for so long if there is a limit, all from the same
// moment on: their times, and how long it took. What a client works with is made by `prepare`, before the clock starts.
func race(clients int, limit time.Duration, prepare func(client int) (next func() (bool, error), err error)) (
	[]time.Duration, time.Duration, error) {
	var ready, done sync.WaitGroup
	var lock sync.Mutex
	var failure error
	var times []time.Duration
	begin := make(chan struct{})
	fail := func(err error) {
		lock.Lock()
		defer lock.Unlock()
		if failure == nil {
			failure = err
		}
	}
	for client := range clients {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			next, err := prepare(client)
			ready.Done()
			if err != nil {
				fail(err)
				return
			}
			<-begin
			var own []time.Duration
			for first, since := time.Now(), time.Now(); limit == 0 || since.Sub(first) < limit; since = time.Now() {
				isDone, err := next()
				if err != nil {
					fail(err)
				}
				if err != nil || isDone {
					break
				}
				own = append(own, time.Since(since))
			}
			lock.Lock()
			defer lock.Unlock()
			times = append(times, own...)
		}()
	}
	ready.Wait()
	since := time.Now()
	close(begin)
	done.Wait()
	return times, time.Since(since), failure
}
