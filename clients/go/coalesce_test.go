package tollgate

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestAChecksBytesBoundItsLength(t *testing.T) {
	long := strings.Repeat("\x01", 1000)
	for _, check := range []Check{
		{Key: long},
		{Policy: long, Key: long, Meta: long, ID: long, Over: Drain, Cost: Cost(maxInteger)},
		{Key: "k", Quotas: []QuotaSpec{{Name: long, Per: long}, {Rate: long, Burst: maxInteger, Limit: maxInteger}}},
	} {
		text, err := json.Marshal(check)
		if err != nil {
			t.Fatal(err)
		}
		if check.bytes() < len(text) {
			t.Errorf("%d bytes for a check of %d", check.bytes(), len(text))
		}
	}
}
