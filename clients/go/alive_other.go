//go:build !unix

package tollgate

import "net"

// alive cannot look without reading here. A dead connection breaks the next call, and the retry
// makes a new one.
func alive(net.Conn) bool { return true }
