package tollgate_test

import (
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"tollgate-limiter"
)

// serverOf is the start of README.md, with the nodes of a test.
func serverOf(mux http.Handler, nodes []string) *http.Server {
	client, err := tollgate.New(tollgate.Options{Nodes: nodes})
	if err != nil {
		log.Fatal(err)
	}
	limit := client.Middleware(tollgate.Limit{Policy: "per-ip"})
	server := &http.Server{Addr: "127.0.0.1:8080", Handler: limit(mux)}
	return server
}

var block = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

func blocks(t *testing.T, language string) []string {
	t.Helper()
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, match := range block.FindAllStringSubmatch(string(readme), -1) {
		if match[1] == language {
			found = append(found, match[2])
		}
	}
	return found
}

func TestEachBlockOfGoInTheReadmeRunsInATest(t *testing.T) {
	var tested string
	for _, file := range []string{"recipes_test.go", "readme_test.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			tested += strings.TrimLeft(line, "\t")
		}
	}
	found := blocks(t, "go")
	if len(found) < 8 {
		t.Errorf("only %d blocks", len(found))
	}
	for _, block := range found {
		block = strings.ReplaceAll(block, `[]string{"http://127.0.0.1:7070"}`, "nodes")
		var plain string
		for line := range strings.Lines(block) {
			plain += strings.TrimLeft(line, "\t")
		}
		if !strings.Contains(tested, plain) {
			t.Errorf("no test runs\n%s", block)
		}
	}
}

const program = `package main

import (
	"fmt"
	"net/http"

	"tollgate-limiter"
	tollgategin "tollgate-limiter/gin"
)

func main() {
	client, err := tollgate.New(tollgate.Options{})
	_, _ = client.Middleware(tollgate.Limit{})(http.NotFoundHandler()), tollgategin.Middleware(client, tollgategin.Limit{})
	fmt.Println("installed", err)
}
`

func TestTheInstallLinesWorkInAnEmptyFolder(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	lines := strings.Join(blocks(t, "sh"), "")
	script := "set -e\ngo mod init example.com/program\n" + strings.ReplaceAll(lines, "/path/to/tollgate", root) +
		"go run .\ngo build -o program .\n"
	if err := os.WriteFile(filepath.Join(folder, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("sh", "-c", script)
	command.Dir = folder
	output, err := command.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "installed <nil>") {
		t.Errorf("%v\n%s", err, output)
	}
}
