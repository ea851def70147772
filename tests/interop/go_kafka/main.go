// A member of a Kafka group, of franz-go or Sarama, that prints JSON lines and ends at "stop".
//
//	client franz|sarama BROKER TOPIC GROUP
//
// It commits each record after it has printed it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"sort"
	"sync"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

type event map[string]any

var printing sync.Mutex

func say(line event) {
	printing.Lock()
	defer printing.Unlock()
	text, _ := json.Marshal(line)
	os.Stdout.Write(append(text, '\n'))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// owner prints the partitions that the member has after each change.
type owner struct {
	topic string
	mutex sync.Mutex
	owned map[int32]bool
}

func (o *owner) change(partitions []int32, has bool) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	for _, each := range partitions {
		if has {
			o.owned[each] = true
		} else {
			delete(o.owned, each)
		}
	}
	sorted := []int{}
	for each := range o.owned {
		sorted = append(sorted, int(each))
	}
	sort.Ints(sorted)
	say(event{"event": "owned", "partitions": sorted})
}

func record(partition int32, offset int64, value []byte) {
	at := time.Now().UnixMilli()
	say(event{"event": "record", "partition": partition, "offset": offset, "value": string(value), "at_ms": at})
}

func franz(ctx context.Context, broker, topic, group string) {
	has := owner{topic: topic, owned: map[int32]bool{}}
	changes := func(to bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			has.change(partitions[topic], to)
		}
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(broker), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(10*time.Second),
		kgo.OnPartitionsAssigned(changes(true)), kgo.OnPartitionsRevoked(changes(false)), kgo.OnPartitionsLost(changes(false)),
	)
	must(err)
	defer client.Close()
	for ctx.Err() == nil {
		client.PollFetches(ctx).EachRecord(func(each *kgo.Record) {
			record(each.Partition, each.Offset, each.Value)
			if err := client.CommitRecords(ctx, each); err != nil && ctx.Err() == nil {
				say(event{"event": "failed", "error": err.Error()})
			}
		})
	}
}

type handler struct{ has *owner }

func (h handler) Setup(session sarama.ConsumerGroupSession) error {
	h.has.change(session.Claims()[h.has.topic], true)
	return nil
}

func (h handler) Cleanup(session sarama.ConsumerGroupSession) error {
	h.has.change(session.Claims()[h.has.topic], false)
	return nil
}

func (h handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for each := range claim.Messages() {
		record(each.Partition, each.Offset, each.Value)
		session.MarkMessage(each, "")
		session.Commit()
	}
	return nil
}

func saramas(ctx context.Context, broker, topic, group string) {
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	member, err := sarama.NewConsumerGroup([]string{broker}, group, config)
	must(err)
	defer member.Close()
	has := owner{topic: topic, owned: map[int32]bool{}}
	for ctx.Err() == nil {
		if err := member.Consume(ctx, []string{topic}, handler{&has}); err != nil {
			// The broker is away: the program tries again.
			say(event{"event": "retry", "error": err.Error()})
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func main() {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() && lines.Text() != "stop" {
		}
		stop()
	}()
	members := map[string]func(context.Context, string, string, string){"franz": franz, "sarama": saramas}
	members[os.Args[1]](ctx, os.Args[2], os.Args[3], os.Args[4])
	say(event{"event": "stopped"})
}
