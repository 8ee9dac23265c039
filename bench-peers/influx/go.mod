module coreplane/bench-peers/influx

go 1.24
