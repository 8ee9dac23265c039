module coreplane/clients

go 1.19

require github.com/influxdata/influxdb1-client v0.0.0-20220302092344-a9ab5670611c
