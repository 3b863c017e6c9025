// Sends each line of standard input, a JSON array of words, and prints each answer as JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/redis/go-redis/v9"
)

func main() {
	client := redis.NewClient(&redis.Options{Addr: os.Args[1]})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var words []any
		if err := json.Unmarshal(lines.Bytes(), &words); err != nil {
			panic(err)
		}
		var answer any
		answer, err := client.Do(context.Background(), words...).Result()
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
