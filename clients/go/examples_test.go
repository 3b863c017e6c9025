package tollgate_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"

	"tollgate-limiter"
)

func Example() {
	client, err := tollgate.New(tollgate.Options{Nodes: []string{"http://127.0.0.1:7070"}})
	if err != nil {
		log.Fatal(err)
	}
	limit := client.Middleware(tollgate.Limit{Policy: "per-ip"})
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", limit(http.NotFoundHandler())))
}

func ExampleClient_Check() {
	client, err := tollgate.New(tollgate.Options{})
	if err != nil {
		log.Fatal(err)
	}
	check := tollgate.Check{Policy: "sms", Key: "user-42", Cost: tollgate.Cost(3)}
	answer, err := client.Check(context.Background(), check)
	var problem *tollgate.Problem
	switch {
	case errors.As(err, &problem):
		fmt.Println("the node rejected the check:", problem.Detail)
	case err != nil:
		fmt.Println("no decision:", err)
	case answer.Allowed:
		fmt.Println("allowed")
	default:
		wait, fits := answer.RetryAfter()
		fmt.Println("denied", wait, fits)
	}
}
