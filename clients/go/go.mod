module tollgate-limiter

go 1.25.0

require github.com/felixge/httpsnoop v1.0.4
