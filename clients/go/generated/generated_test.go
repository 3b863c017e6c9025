// Package generated tests that generators of clients understand /openapi.json: what they generate
// compiles and makes a check.
package generated

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	// The code that the generators write needs these.
	_ "github.com/go-faster/errors"
	_ "github.com/go-faster/jx"
	_ "github.com/oapi-codegen/runtime"
	_ "github.com/ogen-go/ogen/conv"
	_ "github.com/ogen-go/ogen/http"
	_ "github.com/ogen-go/ogen/json"
	_ "github.com/ogen-go/ogen/middleware"
	_ "github.com/ogen-go/ogen/ogenerrors"
	_ "github.com/ogen-go/ogen/ogenregex"
	_ "github.com/ogen-go/ogen/otelogen"
	_ "github.com/ogen-go/ogen/uri"
	_ "github.com/ogen-go/ogen/validate"
	_ "go.opentelemetry.io/otel"
	_ "go.opentelemetry.io/otel/attribute"
	_ "go.opentelemetry.io/otel/codes"
	_ "go.opentelemetry.io/otel/metric"
	_ "go.opentelemetry.io/otel/semconv/v1.39.0"
	_ "go.opentelemetry.io/otel/trace"

	"tollgate-limiter/internal/testnode"
)

func TestAGeneratedClientMakesACheck(t *testing.T) {
	node := testnode.Start(t, "cases.yaml")
	for generator, arguments := range map[string][]string{
		"oapi-codegen": {"-generate", "types,client", "-package", "client", "-o", "client/client.go", "openapi.json"},
		"ogen":         {"--target", "client", "--package", "client", "--clean", "openapi.json"},
	} {
		t.Run(generator, func(t *testing.T) {
			// The module has the generators and what their code needs, so the program belongs to it.
			folder, err := os.MkdirTemp(".", "run-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(folder) })
			program := strings.ReplaceAll(read(t, filepath.Join("testdata", generator+".go")), "run/client",
				"tollgate-limiter/generated/"+filepath.Base(folder)+"/client")
			write(t, folder, "main.go", program)
			write(t, folder, "openapi.json", fetch(t, node.URL()+"/openapi.json"))
			if err := os.Mkdir(filepath.Join(folder, "client"), 0o700); err != nil {
				t.Fatal(err)
			}
			run(t, folder, append([]string{"tool", generator}, arguments...)...)
			for _, want := range []string{"allowed true", "allowed true", "allowed false"} {
				if output := run(t, folder, "run", ".", node.URL(), generator); !strings.Contains(output, want) {
					t.Errorf("want %s, got %s", want, output)
				}
			}
		})
	}
}

func run(t *testing.T, folder string, arguments ...string) string {
	t.Helper()
	command := exec.Command("go", arguments...)
	command.Dir = folder
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("go %v: %v\n%s", arguments, err, output)
	}
	return string(output)
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	reply, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, folder, file, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, file), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
