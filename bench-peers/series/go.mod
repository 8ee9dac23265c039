module coreplane/bench-peers/series

go 1.24
