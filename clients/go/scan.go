package tollgate

import "bytes"

// scanner reads the decisions of a node at a fraction of the CPU of encoding/json. It knows the form
// that nodes write. Anything else makes it bad, and encoding/json decodes the response instead.
type scanner struct {
	text []byte
	at   int
	bad  bool
}

// whole reports whether all of the text was understood.
func (s *scanner) whole() bool { return s.peek() == 0 && s.at == len(s.text) && !s.bad }

// peek returns the next byte after white space, or 0 at the end or after a surprise.
func (s *scanner) peek() byte {
	for !s.bad && s.at < len(s.text) {
		switch next := s.text[s.at]; next {
		case ' ', '\n', '\r', '\t':
			s.at++
		default:
			return next
		}
	}
	return 0
}

func (s *scanner) accept(want byte) bool {
	if s.peek() != want {
		return false
	}
	s.at++
	return true
}

func (s *scanner) require(want byte) {
	if !s.accept(want) {
		s.bad = true
	}
}

func (s *scanner) literal(want string) bool {
	if s.peek() == 0 || !bytes.HasPrefix(s.text[s.at:], []byte(want)) {
		return false
	}
	s.at += len(want)
	return true
}

// object calls read with the name of each member. It must read the value.
func (s *scanner) object(read func(name []byte)) {
	s.require('{')
	if s.accept('}') {
		return
	}
	for !s.bad {
		name := s.bytes()
		s.require(':')
		read(name)
		if s.accept('}') {
			return
		}
		s.require(',')
	}
}

func (s *scanner) array(read func()) {
	s.require('[')
	if s.accept(']') {
		return
	}
	for !s.bad {
		read()
		if s.accept(']') {
			return
		}
		s.require(',')
	}
}

// bytes returns a text without escapes, which nodes write for most keys.
func (s *scanner) bytes() []byte {
	s.require('"')
	rest := s.text[s.at:]
	end := bytes.IndexByte(rest, '"')
	if s.bad || end < 0 {
		s.bad = true
		return nil
	}
	for _, each := range rest[:end] {
		if each == '\\' || each < ' ' || each >= 0x80 {
			s.bad = true
			return nil
		}
	}
	s.at += end + 1
	return rest[:end]
}

func (s *scanner) string() string { return string(s.bytes()) }

func (s *scanner) bool() bool {
	if s.literal("true") {
		return true
	}
	s.bad = s.bad || !s.literal("false")
	return false
}

// number reads an integer from 0 with at most 18 digits.
func (s *scanner) number() int64 {
	const most = 18
	s.peek()
	var number int64
	begin := s.at
	for s.at < len(s.text) && s.text[s.at] >= '0' && s.text[s.at] <= '9' {
		number = number*10 + int64(s.text[s.at]-'0')
		s.at++
	}
	digits := s.at - begin
	follows := s.at < len(s.text) && bytes.IndexByte([]byte(".eE"), s.text[s.at]) >= 0
	s.bad = s.bad || digits == 0 || digits > most || follows || digits > 1 && s.text[begin] == '0'
	return number
}

// optional returns place with the number, or nil for null.
func (s *scanner) optional(place *int64) *int64 {
	if s.literal("null") {
		return nil
	}
	*place = s.number()
	return place
}

func (a *Answer) scan(s *scanner) {
	places := new(places)
	s.object(func(name []byte) {
		if string(name) == "refunded" {
			a.Refunded = s.bool()
			return
		}
		a.member(s, name, places)
	})
}

func (b *batchAnswer) scan(s *scanner) {
	s.object(func(name []byte) {
		s.bad = s.bad || string(name) != "results"
		s.array(func() {
			b.Results = append(b.Results, BatchResult{})
			b.Results[len(b.Results)-1].Answer.scan(s)
		})
	})
}

// places are the targets of a decision's pointers, in one allocation.
type places struct {
	limit, remaining, retryAfter, resetAfter int64
	quota                                    string
}

func (d *Decision) member(s *scanner, name []byte, places *places) {
	switch string(name) {
	case "allowed":
		d.Allowed = s.bool()
	case "policy":
		d.Policy = s.string()
	case "key":
		d.Key = s.string()
	case "cost":
		d.Cost = s.number()
	case "charged":
		d.Charged = s.number()
	case "owed":
		d.Owed = s.number()
	case "limit":
		d.Limit = s.optional(&places.limit)
	case "remaining":
		d.Remaining = s.optional(&places.remaining)
	case "retry_after_ms":
		d.RetryAfterMS = s.optional(&places.retryAfter)
	case "reset_after_ms":
		d.ResetAfterMS = s.optional(&places.resetAfter)
	case "quota":
		if !s.literal("null") {
			places.quota = s.string()
			d.Quota = &places.quota
		}
	case "source":
		d.Source = sourceOf(s.bytes())
	case "reason":
		d.Reason = reasonOf(s.bytes())
	case "quotas":
		d.Quotas = make([]QuotaState, 0, 2)
		s.array(func() { d.Quotas = append(d.Quotas, quotaOf(s)) })
	case "replayed":
		d.Replayed = s.bool()
	default:
		s.bad = true
	}
}

func quotaOf(s *scanner) (quota QuotaState) {
	s.object(func(name []byte) {
		switch string(name) {
		case "name":
			quota.Name = s.string()
		case "limit":
			quota.Limit = s.number()
		case "window_ms":
			quota.WindowMS = s.number()
		case "remaining":
			quota.Remaining = s.number()
		case "reset_after_ms":
			quota.ResetAfterMS = s.number()
		case "charged":
			quota.Charged = s.number()
		default:
			s.bad = true
		}
	})
	return quota
}

// sourceOf and reasonOf allocate nothing for the usual values.
func sourceOf(text []byte) Source {
	if string(text) == string(SourceStore) {
		return SourceStore
	}
	return Source(text)
}

func reasonOf(text []byte) Reason {
	if string(text) == string(ReasonOK) {
		return ReasonOK
	}
	return Reason(text)
}
