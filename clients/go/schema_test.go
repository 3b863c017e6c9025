package tollgate_test

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

// schema is the part of a JSON schema that the API uses.
type schema struct {
	Ref        string            `json:"$ref"`
	Type       any               `json:"type"`
	Properties map[string]schema `json:"properties"`
	Required   []string          `json:"required"`
	Items      *schema           `json:"items"`
	AllOf      []schema          `json:"allOf"`
	OneOf      []schema          `json:"oneOf"`
	AnyOf      []schema          `json:"anyOf"`
}

type schemas map[string]schema

// recent has members that an older node does not know.
var recent = []string{"over", "owed", "charged", "plan"}

func TestTypesMatchTheSchemaOfANode(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	reply, err := http.Get(node.URL() + "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	var document struct {
		Components struct {
			Schemas schemas `json:"schemas"`
		} `json:"components"`
	}
	if err := json.NewDecoder(reply.Body).Decode(&document); err != nil {
		t.Fatal(err)
	}
	all := document.Components.Schemas
	for name, value := range map[string]any{
		"Check": tollgate.Check{}, "CheckTogether": tollgate.Check{}, "Refund": tollgate.Refund{},
		"CheckAnswer": tollgate.Answer{}, "TogetherAnswer": tollgate.AllAnswer{},
		"RefundAnswer": tollgate.RefundAnswer{}, "Usage": tollgate.Usage{}, "Problem": tollgate.Problem{},
		"HoldId": tollgate.HoldName{}, "Settlement": tollgate.Settlement{},
		"SettleResult": tollgate.SettleAnswer{}, "RenewResult": tollgate.RenewAnswer{},
	} {
		t.Run(name, func(t *testing.T) {
			answer := !slices.Contains([]string{"Check", "CheckTogether", "Refund", "HoldId", "Settlement"}, name)
			all.compare(t, name, schema{Ref: "#/components/schemas/" + name}, reflect.TypeOf(value), answer)
		})
	}
	t.Run("BatchAnswer", func(t *testing.T) {
		result := *all["BatchAnswer"].Properties["results"].Items
		all.compare(t, "result", result, reflect.TypeOf(tollgate.BatchResult{}), false)
	})
}

// compare walks a schema beside a type. Members that an answer always has must not be optional.
func (s schemas) compare(t *testing.T, where string, want schema, got reflect.Type, answer bool) {
	t.Helper()
	want = s.resolved(want)
	if slices.Equal(want.kinds(), []string{"null"}) {
		return // a member that this call forbids, and another one has
	}
	nullable := got.Kind() == reflect.Pointer
	if nullable {
		got = got.Elem()
	}
	kinds := want.kinds()
	if answer && slices.Contains(kinds, "null") && !nullable && got.Kind() != reflect.Slice {
		t.Errorf("%s may be null, but %s may not", where, got)
	}
	if kind := kindOf(got); len(kinds) > 0 && !slices.Contains(kinds, kind) {
		t.Errorf("%s is %v, but %s is %s", where, kinds, got, kind)
	}
	switch got.Kind() {
	case reflect.Slice:
		if want.Items != nil {
			s.compare(t, where+"[]", *want.Items, got.Elem(), answer)
		}
	case reflect.Struct:
		s.compareMembers(t, where, want, got, answer)
	}
}

func (s schemas) compareMembers(t *testing.T, where string, want schema, got reflect.Type, answer bool) {
	t.Helper()
	members := membersOf(got)
	for name, member := range members {
		property, known := want.Properties[name]
		switch {
		case known:
			s.compare(t, where+"."+name, property, member.Type, answer)
		case !slices.Contains(recent, name):
			t.Errorf("%s.%s is unknown to the node", where, name)
		}
	}
	for name := range want.Properties {
		member, present := members[name]
		if !present && !ignored(where, name) {
			t.Errorf("%s.%s is absent from %s", where, name, got)
		}
		optional := strings.Contains(member.Tag.Get("json"), "omitempty")
		if present && answer && slices.Contains(want.Required, name) && optional {
			t.Errorf("%s.%s is required, but optional in %s", where, name, got)
		}
	}
}

// absent has members of a feature that this client does not have.
var absent = []string{"wait_ms", "start_in_ms", "lease_span_ms", "entry"}

// ignored members are absent, belong to the calls of operators, or stand in a type that two calls share.
func ignored(where, name string) bool {
	return slices.Contains(absent, name) || strings.HasSuffix(where, "violations[]") && (name == "line" || name == "column" || name == "file")
}

// resolved follows a reference, and merges the alternatives, of which a type of Go has all members.
func (s schemas) resolved(want schema) schema {
	if want.Ref != "" {
		want = s[strings.TrimPrefix(want.Ref, "#/components/schemas/")]
	}
	parts := slices.Concat(want.AllOf, want.OneOf, want.AnyOf)
	if len(parts) == 0 {
		return want
	}
	merged := schema{Properties: map[string]schema{}, Items: want.Items, Type: want.Type}
	for name, property := range want.Properties {
		merged.Properties[name] = property
	}
	var types []any
	for _, part := range parts {
		part = s.resolved(part)
		for name, property := range part.Properties {
			if known, has := merged.Properties[name]; !has || slices.Equal(known.kinds(), []string{"null"}) {
				merged.Properties[name] = property
			}
		}
		merged.Required = append(merged.Required, part.Required...)
		for _, kind := range part.kinds() {
			types = append(types, kind)
		}
	}
	if merged.Type == nil {
		merged.Type = types
	}
	return merged
}

func (s schema) kinds() []string {
	switch kind := s.Type.(type) {
	case string:
		return []string{kind}
	case []any:
		kinds := make([]string, len(kind))
		for i, each := range kind {
			kinds[i], _ = each.(string)
		}
		return kinds
	}
	return nil
}

func kindOf(got reflect.Type) string {
	switch got.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64:
		return "integer"
	case reflect.String:
		return "string"
	case reflect.Slice:
		return "array"
	default:
		return "object"
	}
}

// membersOf returns the fields by their JSON names, those of embedded types among them.
func membersOf(got reflect.Type) map[string]reflect.StructField {
	members := map[string]reflect.StructField{}
	for _, field := range reflect.VisibleFields(got) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.Anonymous && name != "" && name != "-" && len(field.Index) <= 3 {
			members[name] = field
		}
	}
	return members
}
