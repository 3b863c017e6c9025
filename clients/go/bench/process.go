package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// process is a child with the address where it listens.
type process struct {
	address string
	command *exec.Cmd
}

func start(address, program string, arguments ...string) (*process, error) {
	command := exec.Command(program, arguments...)
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		return nil, err
	}
	process := &process{address, command}
	for range 500 {
		if connection, err := net.Dial("tcp", address); err == nil {
			connection.Close()
			return process, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	process.stop()
	return nil, fmt.Errorf("%s does not listen at %s", program, address)
}

func (p *process) stop() {
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}

// cpu is the user and system time so far, fields 14 and 15 of /proc/PID/stat, in ticks of 10 ms.
func (p *process) cpu() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.command.Process.Pid))
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	user, _ := strconv.ParseInt(string(fields[11]), 10, 64)
	system, _ := strconv.ParseInt(string(fields[12]), 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

type backends struct{ node, redis *process }

func startBackends() (*backends, error) {
	redisAddress, nodeAddress := freeAddress(), freeAddress()
	host, port, err := net.SplitHostPort(redisAddress)
	if err != nil {
		return nil, err
	}
	redis, err := start(redisAddress, "redis-server", "--bind", host, "--port", port, "--save", "", "--appendonly", "no")
	if err != nil {
		return nil, err
	}
	binary := environment("TOLLGATE_BIN", "../../../target/release/tollgate")
	node, err := start(nodeAddress, binary, "serve", "--listen", nodeAddress, "--config", "bench.yaml",
		"--store", "redis://"+redisAddress)
	if err != nil {
		redis.stop()
		return nil, err
	}
	return &backends{node, redis}, nil
}

func (b *backends) cpu() time.Duration { return b.node.cpu() + b.redis.cpu() }

func (b *backends) stop() {
	b.node.stop()
	b.redis.stop()
}

func startServer(backends *backends, kind string) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	address := freeAddress()
	return start(address, program, "-serve", kind, "-listen", address,
		"-node", "http://"+backends.node.address, "-redis", backends.redis.address)
}

func freeAddress() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return ""
	}
	defer listener.Close()
	return listener.Addr().String()
}
