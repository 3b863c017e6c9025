// Caller checks one key at a steady rate, for clients/bench/leases:
//
//	caller NODES POLICY KEY RATE SECONDS
//
// NODES has commas between the URLs. It waits for a line, and prints each check: its begin and end in us
// since 1970, whether it was allowed, and its source.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"tollgate-limiter"
)

const workers = 8

func main() {
	options := tollgate.Options{Nodes: strings.Split(os.Args[1], ","), Deadline: 10 * time.Second}
	client, err := tollgate.New(options)
	if err != nil {
		log.Fatal(err)
	}
	check := tollgate.Check{Policy: os.Args[2], Key: os.Args[3]}
	rate, seconds := number(os.Args[4]), number(os.Args[5])
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	lines := make([][]string, workers)
	began := time.Now()
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for i := worker; i < rate*seconds; i += workers {
				time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(rate))))
				begin := time.Now().UnixMicro()
				answer, err := client.Check(context.Background(), check)
				if err != nil {
					log.Fatal(err)
				}
				line := fmt.Sprint(begin, time.Now().UnixMicro(), answer.Allowed, " ", answer.Source)
				lines[worker] = append(lines[worker], line)
				if time.Since(began) > time.Duration(seconds)*time.Second {
					return
				}
			}
		})
	}
	all.Wait()
	if err := client.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	for _, each := range lines {
		fmt.Println(strings.Join(each, "\n"))
	}
}

func number(text string) int {
	number, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	return number
}
