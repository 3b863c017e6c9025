module tollgate.example/tollgate

go 1.25.0
