module tollgate-limiter

go 1.25.0
