package tollgategin_test

import (
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"tollgate-limiter"
	tollgategin "tollgate-limiter/gin"
	"tollgate-limiter/internal/testnode"
)

// The blocks of README.md stand in these two functions as they do there.

func start(client *tollgate.Client) *gin.Engine {
	engine := gin.New()
	if err := engine.SetTrustedProxies(nil); err != nil {
		log.Fatal(err)
	}
	engine.Use(tollgategin.Middleware(client, tollgategin.Limit{Policy: "per-ip"}))
	return engine
}

func failedLogins(engine *gin.Engine, client *tollgate.Client, login gin.HandlerFunc) {
	limit := tollgategin.Middleware(client, tollgategin.Limit{
		Policy: "login",
		Key:    func(c *gin.Context) string { return c.PostForm("user") },
		Refund: func(c *gin.Context) bool { return c.Writer.Status() == http.StatusOK },
	})
	engine.POST("/login", limit, login)
}

func recipes(t *testing.T) *tollgate.Client {
	t.Helper()
	node := testnode.Start(t, "go/testdata/recipes.yaml")
	client, err := tollgate.New(tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestTheStartLimitsRequests(t *testing.T) {
	engine := start(recipes(t))
	var remaining []int64
	engine.GET("/", func(c *gin.Context) {
		remaining = append(remaining, *tollgate.FromContext(c.Request.Context()).Remaining)
	})
	for range 5 {
		engine.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}
	if len(remaining) != 3 || remaining[2] != 0 {
		t.Errorf("the handler saw %v of a limit of 3", remaining)
	}
}

func TestTheRecipeForLoginsCountsFailedOnesOnly(t *testing.T) {
	client, engine := recipes(t), gin.New()
	failedLogins(engine, client, func(c *gin.Context) {
		if c.PostForm("password") != "right" {
			c.Status(http.StatusUnauthorized)
		}
	})
	login := func(want int, password string) {
		t.Helper()
		form := strings.NewReader(url.Values{"user": {"anna"}, "password": {password}}.Encode())
		request := httptest.NewRequest(http.MethodPost, "/login", form)
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		recorder := httptest.NewRecorder()
		engine.ServeHTTP(recorder, request)
		if err := client.Close(t.Context()); err != nil || recorder.Code != want {
			t.Errorf("want %d, got %d, %v", want, recorder.Code, err)
		}
	}
	for range 5 {
		login(http.StatusOK, "right")
	}
	for range 3 {
		login(http.StatusUnauthorized, "wrong")
	}
	login(http.StatusTooManyRequests, "right")
}

var block = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

func TestEachBlockOfGoInTheReadmeRunsInATest(t *testing.T) {
	tested, readme := plain(read(t, "readme_test.go")), read(t, "README.md")
	for _, match := range block.FindAllStringSubmatch(readme, -1) {
		if match[1] == "go" && !strings.Contains(tested, plain(match[2])) {
			t.Errorf("no test runs\n%s", match[2])
		}
	}
}

// The block runs as it is printed, but at ports that are free.
func TestTheShellBlockOfTheReadmeReachesTheExample(t *testing.T) {
	bin := t.TempDir()
	binary, err := filepath.Abs(testnode.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	node, application := testnode.FreeAddress(t), testnode.FreeAddress(t)
	config := strings.ReplaceAll(read(t, "examples/realip/tollgate.yaml"), "127.0.0.1:7070", node)
	for name, text := range map[string]string{
		"tollgate": "#!/bin/sh\nexec " + binary + " \"$@\"\n", "tollgate.yaml": config,
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var script string
	for _, match := range block.FindAllStringSubmatch(read(t, "README.md"), -1) {
		if match[1] == "sh" {
			script += match[2]
		}
	}
	script = strings.NewReplacer("examples/realip/tollgate.yaml", filepath.Join(bin, "tollgate.yaml"),
		"go run ./examples/realip", "go run ./examples/realip -listen "+application+" -node http://"+node,
		"127.0.0.1:8080", application).Replace(script)
	command := exec.CommandContext(t.Context(), "sh", "-c", script)
	command.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log, err := os.Create(filepath.Join(bin, "log"))
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout, command.Stderr = log, log
	err = command.Run()
	if process := command.Process; process != nil {
		_ = syscall.Kill(-process.Pid, syscall.SIGKILL) // the node and the example
	}
	output := read(t, log.Name())
	if err != nil || !strings.Contains(output, "200 OK") || !strings.Contains(output, "Ratelimit:") {
		t.Errorf("%v\n%s", err, output)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// plain drops the indentation.
func plain(text string) string {
	return regexp.MustCompile(`(?m)^\t+`).ReplaceAllString(text, "")
}
