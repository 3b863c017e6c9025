package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
)

// load sends requests over connections that stay open, and requires the status each time.
func load(address string, connections, requests, status int) error {
	var all sync.WaitGroup
	failures := make([]error, connections)
	for i := range connections {
		all.Go(func() { failures[i] = loadOne(address, requests/connections, status) })
	}
	all.Wait()
	return errors.Join(failures...)
}

func loadOne(address string, requests, status int) error {
	connection, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer connection.Close()
	reader := textproto.NewReader(bufio.NewReader(connection))
	for range requests {
		if _, err := io.WriteString(connection, "GET / HTTP/1.1\r\nHost: bench\r\n\r\n"); err != nil {
			return err
		}
		if err := readResponse(reader, status); err != nil {
			return err
		}
	}
	return nil
}

func readResponse(reader *textproto.Reader, want int) error {
	status, err := reader.ReadLine()
	if err != nil {
		return err
	}
	length := 0
	for {
		line, err := reader.ReadLine()
		if err != nil {
			return err
		}
		if line == "" {
			break
		}
		if value, found := strings.CutPrefix(line, "Content-Length: "); found {
			if length, err = strconv.Atoi(value); err != nil {
				return err
			}
		}
	}
	if !strings.HasPrefix(status, "HTTP/1.1 "+strconv.Itoa(want)) {
		return fmt.Errorf("the server answers %s", status)
	}
	_, err = reader.R.Discard(length)
	return err
}
