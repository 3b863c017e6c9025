package testnode

import (
	"bytes"
	"log/slog"
	"sync"
)

// Log keeps what a client logs.
type Log struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

// Write adds lines.
func (l *Log) Write(lines []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.Write(lines)
}

// String returns the lines so far.
func (l *Log) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.String()
}

// Logger returns a logger that writes here, as text.
func (l *Log) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
