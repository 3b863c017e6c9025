package conformance

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

// match compares as clients/README.md describes. A nil expectation at the top is none.
func match(t *testing.T, where string, want, got any) {
	t.Helper()
	if want != nil && !matches(want, got) {
		expected, _ := json.Marshal(want)
		actual, _ := json.Marshal(got)
		t.Errorf("%s: want %s, got %s", where, expected, actual)
	}
}

func matches(want, got any) bool {
	switch want := want.(type) {
	case map[string]any:
		return matchesObject(want, got)
	case []any:
		list, _ := got.([]any)
		if len(list) != len(want) {
			return false
		}
		for i := range want {
			if !matches(want[i], list[i]) {
				return false
			}
		}
		return true
	default:
		return reflect.DeepEqual(want, got)
	}
}

func matchesObject(want map[string]any, got any) bool {
	if bounds, ok := want["$between"].([]any); ok {
		number, ok := numberOf(got)
		return ok && number >= bounds[0].(float64) && number <= bounds[1].(float64)
	}
	if text, ok := want["$starts"].(string); ok {
		value, _ := got.(string)
		return strings.HasPrefix(value, text)
	}
	object, ok := got.(map[string]any)
	if !ok {
		return false
	}
	for name, value := range want {
		member, present := object[name]
		// Types of Go leave out an optional member that is 0.
		if !present && value == float64(0) {
			continue
		}
		if !matches(value, member) {
			return false
		}
	}
	return true
}

func numberOf(value any) (float64, bool) {
	switch value := value.(type) {
	case float64:
		return value, true
	case string:
		number, err := strconv.ParseFloat(value, 64)
		return number, err == nil
	}
	return 0, false
}

// asJSON turns a typed answer into what the expectations compare.
func asJSON(t *testing.T, value any) any {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var generic any
	if err := json.Unmarshal(text, &generic); err != nil {
		t.Fatal(err)
	}
	return generic
}

func within(t *testing.T, where string, limitMS int, took time.Duration) {
	t.Helper()
	if limit := time.Duration(limitMS) * time.Millisecond; limitMS > 0 && took > limit {
		t.Errorf("%s took %s, more than %s", where, took, limit)
	}
}
