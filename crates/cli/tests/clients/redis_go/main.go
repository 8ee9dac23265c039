// go-redis (github.com/redis/go-redis/v9), unmodified, against a server that is killed and opened again in the middle: PORT.
//
// The conversation first, in both versions of the protocol, then writes without an end. After the line "loaded" the server
// may be killed; the client comes back by itself, and what was acknowledged is read again. The last line begins with "done".
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var ctx = context.Background()

// every byte that there is.
var every = func() string {
	bytes := make([]byte, 256)
	for at := range bytes {
		bytes[at] = byte(at)
	}
	return string(bytes)
}()

func must(err error) {
	if err != nil {
		log.Output(2, err.Error())
		os.Exit(1)
	}
}

func check(is bool, what ...any) {
	if !is {
		log.Output(2, fmt.Sprint(what...))
		os.Exit(1)
	}
}

// is fails unless the answer is this one.
func is[T comparable](expected T) func(T, error) {
	return func(answer T, err error) {
		if err != nil || answer != expected {
			log.Output(2, fmt.Sprintf("%v instead of %v: %v", answer, expected, err))
			os.Exit(1)
		}
	}
}

// fails fails unless the answer is an error of the server that has these words.
func fails(err error, words string) {
	var answer redis.Error
	if !errors.As(err, &answer) || !strings.Contains(err.Error(), words) {
		log.Output(2, fmt.Sprintf("%v instead of %v", err, words))
		os.Exit(1)
	}
}

func texts(r, _ *redis.Client) {
	is("OK")(r.Set(ctx, "greeting", "hello", 0).Result())
	is("hello")(r.Get(ctx, "greeting").Result())
	check(r.Get(ctx, "none").Err() == redis.Nil)
	is(int64(12))(r.Append(ctx, "greeting", ", world").Result())
	is("hello")(r.GetRange(ctx, "greeting", 0, 4).Result())
	is(int64(12))(r.SetRange(ctx, "greeting", 7, "redis").Result())
	is(int64(12))(r.StrLen(ctx, "greeting").Result())
	is("OK")(r.MSet(ctx, "a", 1, "b", 2).Result())
	values, err := r.MGet(ctx, "a", "none", "b").Result()
	check(err == nil && fmt.Sprint(values) == "[1 <nil> 2]", values, err)
	is(false)(r.MSetNX(ctx, "b", 3, "c", 3).Result())
	is(int64(41))(r.IncrBy(ctx, "n", 41).Result())
	is(int64(40))(r.Decr(ctx, "n").Result())
	is(40.5)(r.IncrByFloat(ctx, "n", 0.5).Result())
	is("1")(r.GetDel(ctx, "a").Result())
	is(int64(1))(r.Exists(ctx, "a", "b").Result())
}

func binary(r, _ *redis.Client) {
	is("OK")(r.Set(ctx, every, every, 0).Result())
	is(every)(r.Get(ctx, every).Result())
	large := strings.Repeat(every, 5<<12)
	is("OK")(r.Set(ctx, "large", large, 0).Result())
	found, err := r.Get(ctx, "large").Result()
	check(err == nil && found == large, len(found), err)
}

func options(r, _ *redis.Client) {
	is("OK")(r.SetArgs(ctx, "k", "1", redis.SetArgs{Mode: "NX"}).Result())
	check(r.SetArgs(ctx, "k", "2", redis.SetArgs{Mode: "NX"}).Err() == redis.Nil)
	is(false)(r.SetXX(ctx, "absent", "2", 0).Result())
	is("1")(r.SetArgs(ctx, "k", "3", redis.SetArgs{Mode: "XX", Get: true}).Result())
	is("OK")(r.Set(ctx, "k", "4", 100*time.Second).Result())
	is("OK")(r.Set(ctx, "k", "5", redis.KeepTTL).Result())
	ttl, err := r.TTL(ctx, "k").Result()
	check(err == nil && ttl > 0 && ttl <= 100*time.Second, ttl, err)
	is(true)(r.Persist(ctx, "k").Result())
	is(time.Duration(-1))(r.TTL(ctx, "k").Result())
	then := time.Now().Add(time.Hour).Truncate(time.Second)
	is("OK")(r.SetArgs(ctx, "k", "6", redis.SetArgs{ExpireAt: then}).Result())
	is(time.Duration(then.Unix()) * time.Second)(r.ExpireTime(ctx, "k").Result())
	is(false)(r.ExpireGT(ctx, "k", time.Second).Result())
	is(true)(r.ExpireLT(ctx, "k", 50*time.Second).Result())
	is("OK")(r.Set(ctx, "brief", "x", 20*time.Millisecond).Result())
	for r.Exists(ctx, "brief").Val() == 1 {
	}
	check(r.Get(ctx, "brief").Err() == redis.Nil)
}

func transactions(r, rival *redis.Client) {
	answers, err := r.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "x", 1, 0)
		pipe.Incr(ctx, "x")
		return nil
	})
	check(err == nil && answers[1].(*redis.IntCmd).Val() == 2, answers, err)
	attempts := 0
	// The first attempt is thwarted by a rival, the second is made.
	add := func(tx *redis.Tx) error {
		value, err := tx.Get(ctx, "x").Int()
		must(err)
		attempts++
		if attempts == 1 {
			must(rival.Set(ctx, "x", 100, 0).Err())
		}
		_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			return pipe.Set(ctx, "x", value+1, 0).Err()
		})
		return err
	}
	check(r.Watch(ctx, add, "x") == redis.TxFailedErr)
	is("100")(r.Get(ctx, "x").Result())
	must(r.Watch(ctx, add, "x"))
	is("101")(r.Get(ctx, "x").Result())
	_, err = r.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "x", 1, 0)
		pipe.Do(ctx, "NONSENSE")
		return nil
	})
	fails(err, "EXECABORT")
	is("101")(r.Get(ctx, "x").Result())
}

func pipelines(r, _ *redis.Client) {
	answers, err := r.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for at := 0; at < 3000; at++ {
			pipe.Set(ctx, fmt.Sprint("p:", at), at, 0)
			pipe.Get(ctx, fmt.Sprint("p:", at))
		}
		return nil
	})
	check(err == nil && len(answers) == 6000, len(answers), err)
	for at := 0; at < 3000; at++ {
		is(fmt.Sprint(at))(answers[2*at+1].(*redis.StringCmd).Result())
	}
	pipe := r.Pipeline()
	set, incr, get := pipe.Set(ctx, "t", "x", 0), pipe.Incr(ctx, "t"), pipe.Get(ctx, "t")
	_, err = pipe.Exec(ctx)
	fails(err, "not an integer")
	fails(incr.Err(), "not an integer")
	check(set.Val() == "OK" && get.Val() == "x")
}

func scans(r, _ *redis.Client) {
	found := map[string]bool{}
	keys := r.Scan(ctx, 0, "p:1*", 100).Iterator()
	for keys.Next(ctx) {
		found[keys.Val()] = true
	}
	must(keys.Err())
	for at := 0; at < 3000; at++ {
		key := fmt.Sprint("p:", at)
		check(found[key] == strings.HasPrefix(key, "p:1"), key)
	}
}

func failures(r, _ *redis.Client) {
	must(r.Set(ctx, "text", "no number", 0).Err())
	fails(r.Incr(ctx, "text").Err(), "ERR value is not an integer or out of range")
	fails(r.Do(ctx, "NONSENSE").Err(), "ERR unknown command 'NONSENSE'")
	fails(r.Do(ctx, "SET", "text", "x", "PX", 0).Err(), "ERR invalid expire time in 'set' command")
	fails(r.Rename(ctx, "none", "x").Err(), "ERR no such key")
	is("no number")(r.Get(ctx, "text").Result())
}

func administration(r, _ *redis.Client) {
	hello, err := r.Do(ctx, "HELLO").Result()
	must(err)
	_, isMap := hello.(map[any]any)
	check(isMap == (r.Options().Protocol == 3), hello)
	info, err := r.Info(ctx, "server").Result()
	check(err == nil && strings.Contains(info, "redis_version:7"), info, err)
	clients, err := r.ClientList(ctx).Result()
	check(err == nil && strings.Contains(clients, "lib-name=go-redis"), clients, err)
}

func value(number int) string {
	return fmt.Sprint(number, ":", strings.Repeat("v", number%300))
}

// load writes until the server is gone and back; the numbers of the writes that were acknowledged.
func load(r *redis.Client) (acknowledged []int) {
	losses, after, told := 0, 0, false
	for first := 0; after < 500; first += 50 {
		pipe := r.Pipeline()
		some := make([]*redis.StatusCmd, 50)
		for at := range some {
			some[at] = pipe.Set(ctx, fmt.Sprint("w:", first+at), value(first+at), 0)
		}
		// What is on its way when the connection is lost fails, and may be there or not.
		_, err := pipe.Exec(ctx)
		if err != nil {
			var answer redis.Error
			check(!errors.As(err, &answer), err)
			losses++
			time.Sleep(time.Millisecond)
		}
		for at, set := range some {
			// Where it gets no connection the client tells Exec alone: the commands have neither error nor answer.
			if set.Err() == nil && (err == nil || set.Val() != "") {
				is("OK")(set.Result())
				acknowledged = append(acknowledged, first+at)
			}
		}
		if losses > 0 && err == nil {
			after += len(some)
		}
		if !told && len(acknowledged) >= 2000 {
			told = true
			fmt.Println("loaded")
		}
	}
	return acknowledged
}

func connect(protocol, retries int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: "127.0.0.1:" + os.Args[1], Protocol: protocol, MaxRetries: retries,
		DialTimeout: time.Minute, ReadTimeout: time.Minute, WriteTimeout: time.Minute})
}

func main() {
	log.SetFlags(log.Lshortfile)
	parts := []func(r, rival *redis.Client){
		texts, binary, options, transactions, pipelines, scans, failures, administration}
	for _, protocol := range []int{2, 3} {
		r, rival := connect(protocol, 0), connect(protocol, 0)
		must(r.FlushAll(ctx).Err())
		for _, part := range parts {
			part(r, rival)
		}
		must(r.Close())
		must(rival.Close())
		fmt.Printf("RESP%d: %d parts\n", protocol, len(parts))
	}
	// Without attempts of its own, so that each loss is seen.
	r := connect(3, -1)
	must(r.Set(ctx, "kept", every, 1000*time.Second).Err())
	acknowledged := load(r)
	for _, number := range acknowledged {
		is(value(number))(r.Get(ctx, fmt.Sprint("w:", number)).Result())
	}
	is(every)(r.Get(ctx, "kept").Result())
	check(r.TTL(ctx, "kept").Val() > 0)
	must(r.Close())
	fmt.Println("done:", len(acknowledged), "writes")
}
