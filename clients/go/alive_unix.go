//go:build unix

package tollgate

import (
	"crypto/tls"
	"net"
	"syscall"
)

// alive reports whether the node still has an idle connection open. It looks and reads nothing.
func alive(connection net.Conn) bool {
	secure, encrypted := connection.(*tls.Conn)
	if encrypted {
		connection = secure.NetConn()
	}
	socket, ok := connection.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	open := false
	err = raw.Read(func(descriptor uintptr) bool {
		var first [1]byte
		n, _, err := syscall.Recvfrom(int(descriptor), first[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		// TLS may have a message of its own to read. Plain HTTP must be silent.
		open = err == syscall.EAGAIN || err == nil && n > 0 && encrypted
		return true
	})
	return err == nil && open
}
