package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"run/client"
)

func main() {
	node, err := client.NewClientWithResponses(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	reply, err := node.CheckWithResponse(context.Background(), nil, client.Check{Key: os.Args[2]})
	if err != nil || reply.JSON200 == nil {
		log.Fatal(err, reply)
	}
	fmt.Println("allowed", reply.JSON200.Allowed)
}
