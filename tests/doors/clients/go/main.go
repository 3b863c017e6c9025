// Sends each line of standard input, a JSON array of words, and prints each answer as JSON.
//
//	client go-redis|go-redis-cluster|rueidis ADDRESS
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// A client that sends the words of one command.
type client func(words []string) (any, error)

func main() {
	send := open(os.Args[1], os.Args[2])
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var words []string
		if err := json.Unmarshal(lines.Bytes(), &words); err != nil {
			panic(err)
		}
		answer, err := send(words)
		if err != nil {
			answer = map[string]string{"error": err.Error()}
		}
		text, err := json.Marshal(answer)
		if err != nil {
			panic(err)
		}
		fmt.Println(string(text))
	}
}

func open(name, address string) client {
	switch name {
	case "go-redis":
		return goRedis(redis.NewClient(&redis.Options{Addr: address}))
	case "go-redis-cluster":
		return goRedis(redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address}}))
	case "rueidis":
		return rueidisClient(address)
	}
	panic("there is no client " + name)
}

func goRedis(client redis.UniversalClient) client {
	return func(words []string) (any, error) {
		command := make([]any, len(words))
		for place, word := range words {
			command[place] = word
		}
		return client.Do(context.Background(), command...).Result()
	}
}

func rueidisClient(address string) client {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}})
	if err != nil {
		return func([]string) (any, error) { return nil, err }
	}
	return func(words []string) (any, error) {
		if command, ok := throttle(client, words); ok {
			return client.Do(context.Background(), command).ToAny()
		}
		return client.Do(context.Background(), client.B().Arbitrary(words...).Build()).ToAny()
	}
}

// throttle builds a command by rueidis' own builder, if all its numbers are right.
func throttle(client rueidis.Client, words []string) (rueidis.Completed, bool) {
	if len(words) != 6 || !strings.EqualFold(words[0], "CL.THROTTLE") {
		return rueidis.Completed{}, false
	}
	var numbers [4]int64
	for place, word := range words[2:] {
		number, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return rueidis.Completed{}, false
		}
		numbers[place] = number
	}
	return client.B().ClThrottle().Key(words[1]).MaxBurst(numbers[0]).CountPerPeriod(numbers[1]).
		Period(numbers[2]).Quantity(numbers[3]).Build(), true
}
