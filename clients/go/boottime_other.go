//go:build !linux

package tollgate

// sinceBoot is in us. It may stand still while the machine is suspended, and then the wall clock
// decides.
func sinceBoot() int64 { return now() / 1000 }
