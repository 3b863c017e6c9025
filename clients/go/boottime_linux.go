package tollgate

import (
	"syscall"
	"unsafe"
)

// sinceBoot is in us, and runs on while the machine is suspended.
func sinceBoot() int64 {
	const clockBoottime = 7
	var time syscall.Timespec
	_, _, failed := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&time)), 0)
	if failed != 0 {
		return now() / 1000
	}
	return time.Nano() / 1000
}
