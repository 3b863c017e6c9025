//go:build race

package tollgate_test

const race = true
