package tollgate_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"tollgate-limiter"
	"tollgate-limiter/internal/testnode"
)

// The recipes stand in README.md as they do here: see readme_test.go.

func byAddress(client *tollgate.Client) func(http.Handler) http.Handler {
	address, err := tollgate.ForwardedIP("10.0.0.0/8")
	if err != nil {
		log.Fatal(err)
	}
	limit := client.Middleware(tollgate.Limit{Policy: "per-ip", Address: address})
	return limit
}

type store struct{}

// User waits for the session of a token.
func (store) User(_ context.Context, authorization string) string {
	return strings.TrimPrefix(authorization, "Bearer ")
}

func byUser(client *tollgate.Client) func(http.Handler) http.Handler {
	var sessions store
	limit := client.Middleware(tollgate.Limit{
		Policy: "per-user",
		Key:    func(r *http.Request) string { return sessions.User(r.Context(), r.Header.Get("Authorization")) },
	})
	return limit
}

func userOf(r *http.Request) string { return r.Header.Get("X-User") }
func planOf(r *http.Request) string { return r.Header.Get("X-Plan") }

func tokensOfAModel(client *tollgate.Client) func(http.Handler) http.Handler {
	limit := client.Middleware(tollgate.Limit{
		Policy: "tokens",
		Key:    userOf,
		Look:   true,
		Drain: func(_ *http.Request, response tollgate.Response) int64 {
			tokens, _ := strconv.ParseInt(response.Header.Get("X-Tokens"), 10, 64)
			return tokens
		},
	})
	return limit
}

func answer(_ context.Context, w http.ResponseWriter) int64 {
	_, _ = io.WriteString(w, "An answer of a model")
	return 5
}

func tokensAndPlaces(client *tollgate.Client) (func(http.Handler) http.Handler, http.HandlerFunc) {
	limit := client.Middleware(tollgate.Limit{
		Policy: "chat",
		Key:    userOf,
		Cost:   func(*http.Request) int64 { return 900 },
		Hold:   true,
	})
	chat := func(w http.ResponseWriter, r *http.Request) {
		tokens := answer(r.Context(), w)
		if hold := tollgate.HoldFromContext(r.Context()); hold != nil {
			hold.SetCost(tokens)
		}
	}
	return limit, chat
}

func failedLogins(client *tollgate.Client) func(http.Handler) http.Handler {
	limit := client.Middleware(tollgate.Limit{
		Policy: "login",
		Key:    func(r *http.Request) string { return r.FormValue("user") },
		Refund: func(_ *http.Request, response tollgate.Response) bool { return response.Status == http.StatusOK },
	})
	return limit
}

func byPlan(client *tollgate.Client) func(http.Handler) http.Handler {
	limit := client.Middleware(tollgate.Limit{Policy: "report", PlanOf: planOf, Key: userOf})
	return limit
}

func pageForBrowsers(client *tollgate.Client) func(http.Handler) http.Handler {
	limit := client.Middleware(tollgate.Limit{
		Policy: "per-ip",
		Body: func(r *http.Request, answer *tollgate.Answer) (contentType, body string) {
			wait, _ := answer.RetryAfter()
			if !strings.Contains(r.Header.Get("Accept"), "text/html") {
				return "text/plain; charset=utf-8", fmt.Sprintf("try again in %s", wait)
			}
			return "text/html; charset=utf-8", fmt.Sprintf("<!doctype html><title>Slow down</title><p>Please wait %s.", wait)
		},
	})
	return limit
}

func metricsOf(client *tollgate.Client) http.HandlerFunc {
	metrics := func(w http.ResponseWriter, _ *http.Request) {
		stats := client.Stats()
		fmt.Fprintf(w, "tollgate_client_allowed_total %d\ntollgate_client_denied_total %d\n", stats.Allowed, stats.Denied)
		fmt.Fprintf(w, "tollgate_client_passed_total %d\ntollgate_client_failures_total %d\n", stats.Passed, stats.Failures)
	}
	return metrics
}

func severalLimits(client *tollgate.Client, mux *http.ServeMux, search http.Handler) {
	perIP := client.Middleware(tollgate.Limit{Policy: "per-ip"})
	perUser := client.Middleware(tollgate.Limit{Policy: "per-user", Key: userOf})
	mux.Handle("/search", perIP(perUser(search)))
}

func remaining(w http.ResponseWriter, r *http.Request) {
	if decision := tollgate.FromContext(r.Context()); decision != nil && decision.Remaining != nil {
		fmt.Fprintf(w, "%d requests remain", *decision.Remaining)
	}
}

// application answers behind a recipe, and follow waits for what comes after a response.
type application struct {
	client  *tollgate.Client
	handler http.Handler
}

type recipe func(*tollgate.Client) func(http.Handler) http.Handler

func newApplication(t *testing.T, recipe recipe, next http.HandlerFunc) application {
	t.Helper()
	node := testnode.Start(t, "go/testdata/recipes.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	return application{client, recipe(client)(next)}
}

// ask sends a request with these headers, and requires the status.
func (a application) ask(t *testing.T, want int, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	request := httptest.NewRequest(http.MethodGet, "/search", nil)
	request.RemoteAddr = "10.0.0.1:4711"
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		request.Header.Set(name, value)
	}
	return a.serve(t, want, request)
}

func (a application) serve(t *testing.T, want int, request *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	recorder := httptest.NewRecorder()
	a.handler.ServeHTTP(recorder, request)
	if err := a.client.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if recorder.Code != want {
		t.Errorf("want %d, got %d %s", want, recorder.Code, recorder.Body)
	}
	return recorder
}

const passed, denied = http.StatusOK, http.StatusTooManyRequests

func TestTheRecipeByAddressLimitsEachAddressBehindTheProxy(t *testing.T) {
	app := newApplication(t, byAddress, remaining)
	for _, want := range []int{passed, passed, passed, denied} {
		app.ask(t, want, "X-Forwarded-For: 198.51.100.1, 203.0.113.7:4711")
	}
	if body := app.ask(t, passed, "X-Forwarded-For: 203.0.113.8").Body.String(); body != "2 requests remain" {
		t.Errorf("the handler wrote %q", body)
	}
}

func TestTheRecipeByUserLimitsEachUser(t *testing.T) {
	app := newApplication(t, byUser, remaining)
	for _, want := range []int{passed, passed, denied} {
		app.ask(t, want, "Authorization: Bearer anna")
	}
	app.ask(t, passed, "Authorization: Bearer ben")
}

func TestTheRecipeForTokensDeniesWhenNothingIsLeft(t *testing.T) {
	app := newApplication(t, tokensOfAModel, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Tokens", r.Header.Get("X-Used"))
	})
	for _, want := range []int{passed, passed, passed, denied, denied} {
		app.ask(t, want, "X-User: anna", "X-Used: 400")
	}
	app.ask(t, passed, "X-User: ben", "X-Used: 0")
}

func TestTheRecipeForTokensAndPlacesCostsWhatTheAnswerUsed(t *testing.T) {
	app := newApplication(t, func(client *tollgate.Client) func(http.Handler) http.Handler {
		limit, chat := tokensAndPlaces(client)
		return func(http.Handler) http.Handler { return limit(chat) }
	}, nil)
	for range 3 {
		app.ask(t, passed, "X-User: anna")
	}
	usage, err := app.client.Usage(t.Context(), tollgate.Check{Policy: "chat", Key: "anna"})
	if err != nil || *usage.Remaining != 985 || *usage.InFlight != 0 {
		t.Errorf("%+v, %v", usage, err)
	}
}

func TestTheJobRunsOnceAtATime(t *testing.T) {
	node := testnode.Start(t, "go/testdata/recipes.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	runs := 0
	job(t.Context(), client, "anna", func(context.Context) {
		runs++
		job(t.Context(), client, "anna", func(context.Context) { runs++ })
	})
	job(t.Context(), client, "anna", func(context.Context) { runs++ })
	if runs != 2 {
		t.Errorf("%d runs, not 2", runs)
	}
}

func job(ctx context.Context, client *tollgate.Client, customer string, run func(context.Context)) {
	hold, err := client.Hold(ctx, tollgate.Check{Policy: "jobs", Key: customer})
	var denied *tollgate.Denied
	switch {
	case errors.As(err, &denied): // as many run as may, with denied.Decision.RetryAfter()
		return
	case err != nil:
		return
	}
	defer hold.Settle()
	run(hold.Context())
}

func TestTheRecipeForLoginsCountsFailedOnesOnly(t *testing.T) {
	app := newApplication(t, failedLogins, func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("password") != "right" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	login := func(want int, user, password string) {
		t.Helper()
		form := strings.NewReader(url.Values{"user": {user}, "password": {password}}.Encode())
		request := httptest.NewRequest(http.MethodPost, "/login", form)
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		app.serve(t, want, request)
	}
	for range 10 {
		login(passed, "anna", "right")
	}
	for range 3 {
		login(http.StatusUnauthorized, "anna", "wrong")
	}
	login(denied, "anna", "wrong")
	login(denied, "anna", "right")
	login(passed, "ben", "right")
}

func TestTheRecipeByPlanLimitsEachPlan(t *testing.T) {
	app := newApplication(t, byPlan, remaining)
	for _, want := range []int{passed, denied} {
		app.ask(t, want, "X-User: anna")
	}
	for _, want := range []int{passed, passed, passed, passed, passed, denied} {
		app.ask(t, want, "X-User: ben", "X-Plan: pro")
	}
}

func TestTheRecipeForBrowsersAnswersAPage(t *testing.T) {
	app := newApplication(t, pageForBrowsers, remaining)
	for range 3 {
		app.ask(t, passed)
	}
	page := app.ask(t, denied, "Accept: text/html")
	text := app.ask(t, denied, "Accept: application/json")
	if kind := page.Header().Get("Content-Type"); kind != "text/html; charset=utf-8" || !strings.Contains(page.Body.String(), "Please wait") {
		t.Errorf("%s: %s", kind, page.Body)
	}
	if kind := text.Header().Get("Content-Type"); kind != "text/plain; charset=utf-8" {
		t.Errorf("%s: %s", kind, text.Body)
	}
}

func TestAServiceIsTestedWithoutANode(t *testing.T) {
	app := http.HandlerFunc(remaining)
	limits := tollgate.NewFake(tollgate.Decision{Allowed: true}, tollgate.FakeDenial(30_000), tollgate.FakeFailure())
	handler := limits.Middleware(tollgate.Limit{})(app)
	for _, status := range []int{http.StatusOK, http.StatusTooManyRequests, http.StatusOK} {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/", nil))
		if recorder.Code != status {
			t.Errorf("status %d, want %d", recorder.Code, status)
		}
	}
}

func TestTheRecipesPassRequestsWhileNoNodeAnswers(t *testing.T) {
	client := newClient(t, tollgate.Options{Nodes: []string{"http://" + testnode.FreeAddress(t)}})
	chats, chat := tokensAndPlaces(client)
	mux := http.NewServeMux()
	severalLimits(client, mux, http.HandlerFunc(remaining))
	handlers := []http.Handler{chats(chat), mux}
	for _, recipe := range []recipe{byAddress, byUser, tokensOfAModel, failedLogins, byPlan} {
		handlers = append(handlers, recipe(client)(http.HandlerFunc(remaining)))
	}
	for i, handler := range handlers {
		recorder := httptest.NewRecorder()
		request := httptest.NewRequest(http.MethodGet, "/search", nil)
		request.Header.Set("X-User", "anna")
		if handler.ServeHTTP(recorder, request); recorder.Code != passed {
			t.Errorf("recipe %d got %d", i, recorder.Code)
		}
	}
	recorder := httptest.NewRecorder()
	metricsOf(client)(recorder, nil)
	if text := recorder.Body.String(); !strings.Contains(text, "tollgate_client_passed_total 8\n") {
		t.Errorf("eight checks had no decision: %s", text)
	}
}

func TestTheRecipeOfSeveralLimitsAppliesEachOfThem(t *testing.T) {
	app := newApplication(t, func(client *tollgate.Client) func(http.Handler) http.Handler {
		return func(next http.Handler) http.Handler {
			mux := http.NewServeMux()
			severalLimits(client, mux, next)
			return mux
		}
	}, remaining)
	app.ask(t, passed, "X-User: anna")
	reply := app.ask(t, passed, "X-User: anna")
	got := strings.Join(reply.Header().Values("RateLimit-Policy"), ", ")
	if want := `"1h";q=3;w=3600, "per-user/1h";q=2;w=3600`; got != want {
		t.Errorf("RateLimit-Policy: want %s, got %s", want, got)
	}
	app.ask(t, denied, "X-User: anna")
	app.ask(t, denied, "X-User: ben") // the fourth request of the address
}

func TestTheStartLimitsRequests(t *testing.T) {
	node := testnode.Start(t, "go/testdata/recipes.yaml")
	server := serverOf(http.HandlerFunc(remaining), []string{node.URL()})
	for i := range 5 {
		recorder := httptest.NewRecorder()
		server.Handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/", nil))
		if want := map[bool]int{true: passed, false: denied}[i < 3]; recorder.Code != want {
			t.Errorf("request %d got %d", i, recorder.Code)
		}
	}
}

func TestTheCallEndsInOneOfItsWays(t *testing.T) {
	node := testnode.Start(t, "go/testdata/recipes.yaml")
	client := newClient(t, tollgate.Options{Nodes: []string{node.URL()}, Deadline: 5 * time.Second})
	first, err := sms(t.Context(), client, "anna")
	if err != nil || !first.Allowed {
		t.Errorf("%+v, %v", first, err)
	}
	if second, err := sms(t.Context(), client, "anna"); err != nil || second.Allowed {
		t.Errorf("%+v, %v", second, err)
	}
}

func sms(ctx context.Context, client *tollgate.Client, user string) (*tollgate.Answer, error) {
	check := tollgate.Check{Policy: "sms", Key: user, Cost: tollgate.Cost(3), Once: true}
	answer, err := client.Check(ctx, check)
	var problem *tollgate.Problem
	switch {
	case errors.As(err, &problem): // the node rejected the call
	case err != nil: // no node answered within the deadline
	case !answer.Allowed: // a denial, with answer.RetryAfter()
	}
	return answer, err
}
