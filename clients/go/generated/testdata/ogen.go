package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"run/client"
)

// tokens has none: a node on this machine needs none.
type tokens struct{}

func (tokens) Token(context.Context, client.OperationName) (client.Token, error) {
	return client.Token{}, nil
}

func (tokens) AdminToken(context.Context, client.OperationName) (client.AdminToken, error) {
	return client.AdminToken{}, nil
}

func (tokens) GateToken(context.Context, client.OperationName) (client.GateToken, error) {
	return client.GateToken{}, nil
}

func main() {
	node, err := client.NewClient(os.Args[1], tokens{})
	if err != nil {
		log.Fatal(err)
	}
	reply, err := node.Check(context.Background(), &client.Check{Key: client.Key(os.Args[2])}, client.CheckParams{})
	if err != nil {
		log.Fatal(err)
	}
	answer, decided := reply.(*client.CheckAnswerHeaders)
	if !decided {
		log.Fatalf("%+v", reply)
	}
	fmt.Println("allowed", answer.Response.Allowed)
}
