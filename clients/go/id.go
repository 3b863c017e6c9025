package tollgate

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"sync/atomic"
)

// ids makes ids that no other process makes: a random text of the client and a number.
type ids struct {
	prefix string
	last   atomic.Uint64
}

func newIDs() *ids { return &ids{prefix: rand.Text() + "-"} }

func (i *ids) next() string {
	const base = 36
	return i.prefix + strconv.FormatUint(i.last.Add(1), base)
}

func hashed(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}
