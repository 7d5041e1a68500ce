// The agent of go-nsq; see ../steps.py.
package main

import (
	"encoding/json"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	nsq "github.com/nsqio/go-nsq"
)

const tick = 20 * time.Millisecond

var (
	started = time.Now()
	writing sync.Mutex
)

type event struct {
	Event    string  `json:"event"`
	At       float64 `json:"at_s"`
	Body     string  `json:"body"`
	Attempts uint16  `json:"attempts"`
	Reason   string  `json:"reason"`
}

func tell(said event) {
	said.At = time.Since(started).Seconds()
	writing.Lock()
	defer writing.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		log.Fatal(err)
	}
}

func main() {
	var given struct {
		Topic, Channel, Lookup string
		Addresses              []string
	}
	if err := json.Unmarshal([]byte(os.Args[1]), &given); err != nil {
		log.Fatal(err)
	}
	config := nsq.NewConfig()
	config.MaxInFlight = 10
	if given.Lookup == "" {
		config.LookupdPollInterval = time.Second // It also says when it connects again.
	} else {
		config.LookupdPollJitter = 0 // By default it does not ask in the first 0 to 18 s.
	}
	consumer, err := nsq.NewConsumer(given.Topic, given.Channel, config)
	if err != nil {
		log.Fatal(err)
	}
	consumer.AddHandler(nsq.HandlerFunc(func(message *nsq.Message) error {
		tell(event{Event: "received", Body: string(message.Body), Attempts: message.Attempts})
		return nil
	}))
	if given.Lookup == "" {
		err = consumer.ConnectToNSQDs(given.Addresses)
	} else {
		err = consumer.ConnectToNSQLookupd(given.Lookup)
	}
	if err != nil {
		log.Fatal(err)
	}
	publish(given.Topic, given.Addresses)
}

// publish publishes numbers by a producer for each address, and by the next one after an error.
func publish(topic string, addresses []string) {
	var producers []*nsq.Producer
	for _, address := range addresses {
		producer, err := nsq.NewProducer(address, nsq.NewConfig())
		if err != nil {
			log.Fatal(err)
		}
		producers = append(producers, producer)
	}
	used := 0
	for number := 0; ; number++ {
		body := strconv.Itoa(number)
		for {
			err := producers[used].Publish(topic, []byte(body))
			if err == nil {
				break
			}
			tell(event{Event: "failed", Body: body, Reason: err.Error()})
			used = (used + 1) % len(producers)
			time.Sleep(tick)
		}
		tell(event{Event: "published", Body: body})
		time.Sleep(tick)
	}
}
