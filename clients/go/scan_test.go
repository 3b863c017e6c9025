package tollgate

import (
	"encoding/json"
	"reflect"
	"testing"
)

// decisions as nodes write them.
var decisions = []string{
	`{"allowed":true,"policy":"default","key":"a","cost":1,"charged":1,"limit":1000,"remaining":999,"retry_after_ms":0,"reset_after_ms":1014,"quota":"1s","source":"store","reason":"ok","quotas":[{"name":"1s","limit":1000,"window_ms":1000,"remaining":999,"reset_after_ms":1014},{"name":"10s","limit":5000,"window_ms":10000,"remaining":4999,"reset_after_ms":10076}]}`,
	`{"allowed":false,"policy":"listed","key":"mallory","cost":1,"charged":0,"limit":null,"remaining":null,"retry_after_ms":null,"reset_after_ms":null,"quota":null,"source":"list","reason":"deny_listed","quotas":[]}`,
	`{"allowed":true,"policy":"p","key":"k","cost":1000000000000000,"charged":0,"limit":1,"remaining":0,"retry_after_ms":0,"reset_after_ms":0,"quota":"x","source":"store","reason":"shadow","replayed":true,"refunded":true}`,
	`{"allowed":false,"policy":"p","key":"k","cost":8,"charged":2,"owed":6,"limit":10,"remaining":0,"retry_after_ms":9,"reset_after_ms":9,"quota":"1h","source":"store","reason":"over_limit","quotas":[{"name":"1h","limit":10,"window_ms":3600000,"remaining":0,"reset_after_ms":9,"charged":2}]}`,
}

func TestScannedAnswersEqualThoseOfTheStandardDecoder(t *testing.T) {
	for _, text := range decisions {
		var fast, standard Answer
		if !scanned([]byte(text), &fast) {
			t.Errorf("left to the standard decoder: %s", text)
		}
		if err := json.Unmarshal([]byte(text), &standard); err != nil || !reflect.DeepEqual(fast, standard) {
			t.Errorf("%+v, %+v, %v", fast, standard, err)
		}
		var batch batchAnswer
		body := `{"results": [` + text + ", " + text + "]}\n"
		if !scanned([]byte(body), &batch) || !reflect.DeepEqual(batch.Results[1].Answer, standard) {
			t.Errorf("batch: %+v", batch)
		}
	}
}

func TestTheScannerLeavesSurprisesToTheStandardDecoder(t *testing.T) {
	for _, text := range []string{
		``, `{`, `{"allowed"}`, `{"allowed":true`, `{"allowed":true,}`, `{"allowed":true} x`, `{"allowed":yes}`,
		`{"key":"a\n"}`, `{"key":"ü"}`, `{"key":"a`, `{"cost":1.5}`, `{"cost":-1}`, `{"cost":1e3}`, `{"cost":01}`,
		`{"cost":1234567890123456789}`, `{"new_member":1}`, `{"fallback":{"mode":"local","cause":"timeout"}}`,
		`{"error":{}}`, `[]`, `null`,
	} {
		if scanned([]byte(text), &Answer{}) {
			t.Errorf("understood %s", text)
		}
	}
}

// Whatever the scanner accepts, the standard decoder reads alike.
func FuzzScanner(f *testing.F) {
	for _, text := range decisions {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var fast, standard Answer
		if !scanned([]byte(text), &fast) {
			return
		}
		if err := json.Unmarshal([]byte(text), &standard); err != nil {
			t.Fatalf("accepted %q: %v", text, err)
		}
	})
}
