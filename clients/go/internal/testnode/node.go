// Package testnode starts real Tollgate nodes for tests.
package testnode

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Node is a running process.
type Node struct {
	Address string
	config  string
	more    []string
	process *exec.Cmd
}

// Start runs a node with a file of the directory clients. It ends with the test.
func Start(t testing.TB, config string, arguments ...string) *Node {
	t.Helper()
	node := &Node{Address: FreeAddress(t), config: filepath.Join(Clients(t), config), more: arguments}
	node.Restart(t)
	t.Cleanup(func() { node.Kill() })
	return node
}

// URL is that of a node without TLS.
func (n *Node) URL() string { return "http://" + n.Address }

// Kill ends the process at once, and its connections.
func (n *Node) Kill() {
	if n.process != nil {
		_ = n.process.Process.Kill()
		_ = n.process.Wait()
		n.process = nil
	}
}

// Freeze stops the process. It accepts connections, and answers nothing until Thaw.
func (n *Node) Freeze(t testing.TB) { signal(t, n.process, syscall.SIGSTOP) }

// Thaw continues a frozen process.
func (n *Node) Thaw(t testing.TB) { signal(t, n.process, syscall.SIGCONT) }

func signal(t testing.TB, process *exec.Cmd, signal os.Signal) {
	t.Helper()
	if err := process.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// Restart runs the node at its address, and returns when it answers.
func (n *Node) Restart(t testing.TB) {
	t.Helper()
	arguments := append([]string{"serve", "--listen", n.Address, "--config", n.config}, n.more...)
	process := exec.Command(Binary(t), arguments...)
	log, err := os.Create(filepath.Join(t.TempDir(), "node.log"))
	if err != nil {
		t.Fatal(err)
	}
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		t.Fatalf("TOLLGATE_BIN must name the binary of a node: %v", err)
	}
	n.process = process
	if !listens(n.Address) {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("the node at %s does not answer:\n%s", n.Address, text)
	}
}

// Redis is a running server for several nodes.
type Redis struct {
	URL     string
	process *exec.Cmd
}

// StartRedis runs a server. It ends with the test.
func StartRedis(t testing.TB) *Redis {
	t.Helper()
	address := FreeAddress(t)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	process := exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no")
	process.Dir = t.TempDir()
	if err := process.Start(); err != nil {
		t.Fatalf("install redis-server: %v", err)
	}
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	})
	if !listens(address) {
		t.Fatalf("redis-server does not listen at %s", address)
	}
	return &Redis{"redis://" + address, process}
}

// UsedMemory returns the memory of all data, in bytes.
func (r *Redis) UsedMemory(t testing.TB) int {
	t.Helper()
	connection, err := net.Dial("tcp", strings.TrimPrefix(r.URL, "redis://"))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	_, _ = io.WriteString(connection, "INFO memory\r\nQUIT\r\n")
	text, _ := io.ReadAll(connection)
	_, used, _ := strings.Cut(string(text), "used_memory:")
	used, _, _ = strings.Cut(used, "\r")
	bytes, err := strconv.Atoi(used)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

// Freeze stops the server. It accepts connections, and answers nothing until Thaw.
func (r *Redis) Freeze(t testing.TB) { signal(t, r.process, syscall.SIGSTOP) }

// Thaw continues a frozen server.
func (r *Redis) Thaw(t testing.TB) { signal(t, r.process, syscall.SIGCONT) }

func listens(address string) bool {
	for range 1000 {
		if connection, err := net.Dial("tcp", address); err == nil {
			connection.Close()
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return false
}

// Reset forgets what counts for a key.
func (n *Node) Reset(t testing.TB, policy, key string) {
	t.Helper()
	url := fmt.Sprintf("%s/v1/usage?policy=%s&key=%s", n.URL(), policy, key)
	request, err := http.NewRequest(http.MethodDelete, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		t.Fatalf("DELETE %s: %s", url, reply.Status)
	}
}

// FreeAddress returns a loopback address where nothing listens.
func FreeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// Clients returns the directory of all clients, which has their cases.
func Clients(t testing.TB) string {
	t.Helper()
	directory, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; directory != "/"; directory = filepath.Dir(directory) {
		if _, err := os.Stat(filepath.Join(directory, "cases.json")); err == nil {
			return directory
		}
	}
	t.Fatal("these tests need the repository: no directory above has cases.json")
	return ""
}

// Binary returns the path of the program.
func Binary(t testing.TB) string {
	if path := os.Getenv("TOLLGATE_BIN"); path != "" {
		return path
	}
	return filepath.Join(Clients(t), "..", "target", "debug", "tollgate")
}
