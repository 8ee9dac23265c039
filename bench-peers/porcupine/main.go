// Another judge of the histories that `crates/cli/tests/partitions.rs` writes down: Porcupine.
//
//	COREPLANE_HISTORY_FILE=/tmp/history.jsonl cargo test -p coreplane-cli --test partitions
//	go run . /tmp/history.jsonl
//
// A line is a call: {client, key, op, expected, value, made, begin, end}. What was not answered has no end: it may be
// made at any time after it was asked for, or never.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

type line struct {
	Client   int     `json:"client"`
	Key      int     `json:"key"`
	Op       string  `json:"op"`
	Expected *uint64 `json:"expected"`
	Value    *uint64 `json:"value"`
	Made     bool    `json:"made"`
	Begin    int64   `json:"begin"`
	End      *int64  `json:"end"`
}

// The value of a key; 0 is none, for none is written.
type state = uint64

func number(it *uint64) uint64 {
	if it == nil {
		return 0
	}
	return *it
}

// What the value is after the call was made; false if it changes nothing.
func (it line) makes(now state) (state, bool) {
	switch it.Op {
	case "put":
		return number(it.Value), true
	case "swap":
		return number(it.Value), now != 0 && now == number(it.Expected)
	case "delete":
		return 0, now != 0
	}
	return now, false
}

var model = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[int][]porcupine.Operation{}
		for _, operation := range history {
			key := operation.Input.(line).Key
			byKey[key] = append(byKey[key], operation)
		}
		var all [][]porcupine.Operation
		for _, operations := range byKey {
			all = append(all, operations)
		}
		return all
	},
	Init: func() []any { return []any{state(0)} },
	Step: func(now, input, output any) []any {
		it, before := input.(line), now.(state)
		after, changes := it.makes(before)
		switch {
		case it.Op == "get":
			if before == number(it.Value) {
				return []any{before}
			}
			return nil
		case it.End == nil && changes:
			return []any{before, after}
		case it.End == nil:
			return []any{before}
		case it.Made && changes:
			return []any{after}
		case !it.Made && !changes:
			return []any{before}
		}
		return nil
	},
	Equal: func(one, other any) bool { return one == other },
}

func main() {
	file, err := os.Open(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	var history []porcupine.Operation
	lost := 0
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var it line
		if err := json.Unmarshal(lines.Bytes(), &it); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		end, client := int64(math.MaxInt64), it.Client
		if it.End != nil {
			end = *it.End
		} else {
			// Its client goes on meanwhile: it is one of its own.
			lost++
			client = 1000 + lost
		}
		history = append(history, porcupine.Operation{
			ClientId: client, Input: it, Call: it.Begin, Output: it.Made, Return: end})
	}
	result := porcupine.CheckOperationsTimeout(model.ToModel(), history, 10*time.Minute)
	fmt.Printf("%d calls, %d of them not answered: %s\n", len(history), lost, result)
	if result != porcupine.Ok {
		os.Exit(1)
	}
}
