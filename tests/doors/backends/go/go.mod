module tollgate.example/backend

go 1.22
