package main

import (
	"fmt"
	"math/rand/v2"
	"sort"
	"strconv"
	"strings"
)

// Devices and what they measure, as TSBS's use case cpu-only has them: ten tags, ten integers every ten seconds, each a
// random walk with steps N(0,1) between 0 and 100, cut to an integer. The walks are TSBS's; its random numbers are not.

const (
	// 2016-01-01, on the hour.
	epochMs    = int64(1_451_606_400_000)
	intervalMs = int64(10_000)
	hourSteps  = int(3_600_000 / intervalMs)
)

var fields = []string{"usage_user", "usage_system", "usage_idle", "usage_nice", "usage_iowait", "usage_irq", "usage_softirq",
	"usage_steal", "usage_guest", "usage_guest_nice"}

var regions = []struct {
	name        string
	datacenters int
}{
	{"us-east-1", 4}, {"us-west-1", 2}, {"us-west-2", 3}, {"eu-west-1", 3}, {"eu-central-1", 2}, {"ap-southeast-1", 2},
	{"ap-southeast-2", 2}, {"ap-northeast-1", 2}, {"sa-east-1", 3},
}

type fleet struct {
	devices, steps int
	// Of each device: its tags, from the first comma to the space.
	tags []string
	// Of each device, of each field, its steps.
	values []uint8
}

func tagsOf(seed uint64, device int, isSorted bool) string {
	draws := rand.New(rand.NewPCG(seed, 1<<40|uint64(device)))
	of := func(some ...string) string { return some[draws.IntN(len(some))] }
	region := regions[draws.IntN(len(regions))]
	tags := []string{
		fmt.Sprintf("hostname=host_%d", device),
		"region=" + region.name,
		fmt.Sprintf("datacenter=%s%c", region.name, 'a'+draws.IntN(region.datacenters)),
		fmt.Sprintf("rack=%d", draws.IntN(100)),
		"os=" + of("Ubuntu16.10", "Ubuntu16.04LTS", "Ubuntu15.10"),
		"arch=" + of("x64", "x86"),
		"team=" + of("SF", "NYC", "LON", "CHI"),
		fmt.Sprintf("service=%d", draws.IntN(20)),
		fmt.Sprintf("service_version=%d", draws.IntN(2)),
		"service_environment=" + of("production", "staging", "test"),
	}
	if isSorted {
		sort.Strings(tags)
	}
	return "," + strings.Join(tags, ",")
}

func newFleet(seed uint64, devices, steps int, isSorted bool) *fleet {
	it := &fleet{devices: devices, steps: steps, values: make([]uint8, devices*len(fields)*steps)}
	for device := range devices {
		it.tags = append(it.tags, tagsOf(seed, device, isSorted))
	}
	inParallel(devices, func(device int) {
		for field := range fields {
			draws := rand.New(rand.NewPCG(seed, uint64(device*len(fields)+field)))
			walk := draws.Float64() * 100
			column := it.column(device, field)
			for step := range column {
				column[step] = uint8(walk)
				walk = min(max(walk+draws.NormFloat64(), 0), 100)
			}
		}
	})
	return it
}

func (it *fleet) column(device, field int) []uint8 {
	at := (device*len(fields) + field) * it.steps
	return it.values[at : at+it.steps]
}

func timeOf(step int) int64 {
	return epochMs + int64(step)*intervalMs
}

// Appends the line of a device at a step.
func (it *fleet) line(body []byte, device, step int) []byte {
	body = append(append(body, "cpu"...), it.tags[device]...)
	separator := byte(' ')
	at := device*len(fields)*it.steps + step
	for _, name := range fields {
		body = append(append(append(body, separator), name...), '=')
		body = append(strconv.AppendUint(body, uint64(it.values[at]), 10), 'i')
		separator, at = ',', at+it.steps
	}
	body = strconv.AppendInt(append(body, ' '), timeOf(step), 10)
	// Milliseconds so far.
	return append(body, "000000\n"...)
}
