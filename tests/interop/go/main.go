// Apache's Go client as a program that a test drives by lines, and that answers with JSON lines.
//
// It signs with ACCESS_KEY and SECRET_KEY, if they are in its environment.
//
// Its arguments are the name server and a prefix of topics and groups. Consumers of PREFIX_concurrent,
// PREFIX_orderly, PREFIX_tagged (tag a or b), PREFIX_filtered (SQL: number > 2) and two that broadcast
// PREFIX_broadcast print each message. Commands, a line each, are "stop" or
//
//	send|async|oneway|ordered|delay KIND BODY    tagged KIND TAG BODY    numbered KIND NUMBER BODY
//	batch KIND BODY,BODY,…    transaction KIND commit|rollback|unknown BODY
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type event map[string]any

var (
	printing sync.Mutex
	names    primitive.NamesrvAddr
	signer   = primitive.Credentials{AccessKey: os.Getenv("ACCESS_KEY"), SecretKey: os.Getenv("SECRET_KEY")}
)

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

// transactions decides by a message's body, and commits what the broker has to ask about.
type transactions struct{}

func (transactions) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	switch message.GetProperty("end") {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (transactions) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	say(event{"event": "checked", "body": string(message.Body)})
	return primitive.CommitMessageState
}

func consume(prefix, kind, name string, selector consumer.MessageSelector, more ...consumer.Option) rocketmq.PushConsumer {
	options := append([]consumer.Option{
		consumer.WithNameServer(names), consumer.WithGroupName(prefix + "_" + name), consumer.WithInstance(name),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithConsumeMessageBatchMaxSize(1),
	}, more...)
	if signer.AccessKey != "" {
		options = append(options, consumer.WithCredentials(signer))
	}
	member, err := rocketmq.NewPushConsumer(options...)
	must(err)
	handle := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			body := string(message.Body)
			say(event{
				"event": "message", "kind": name, "body": body, "times": message.ReconsumeTimes, "queueId": message.Queue.QueueId,
				"waitedMs": time.Now().UnixMilli() - message.BornTimestamp, "tags": message.GetTags(), "keys": message.GetKeys(),
			})
			if body == "again" && message.ReconsumeTimes == 0 {
				return consumer.ConsumeRetryLater, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	must(member.Subscribe(prefix+"_"+kind, selector, handle))
	must(member.Start())
	return member
}

func send(sender rocketmq.Producer, ender rocketmq.TransactionProducer, prefix string, words []string) {
	how, topic, body := words[0], prefix+"_"+words[1], words[len(words)-1]
	message := primitive.NewMessage(topic, []byte(body))
	message.WithKeys([]string{"key-" + body})
	var result *primitive.SendResult
	var err error
	background := context.Background()
	switch how {
	case "async":
		must(sender.SendAsync(background, func(_ context.Context, sent *primitive.SendResult, failed error) {
			sentOrNot(body, sent, failed)
		}, message))
		return
	case "oneway":
		sentOrNot(body, &primitive.SendResult{Status: primitive.SendOK}, sender.SendOneWay(background, message))
		return
	case "batch":
		var messages []*primitive.Message
		for _, each := range strings.Split(body, ",") {
			messages = append(messages, primitive.NewMessage(topic, []byte(each)))
		}
		result, err = sender.SendSync(background, messages...)
	case "transaction":
		message.WithProperty("end", words[2])
		var ended *primitive.TransactionSendResult
		ended, err = ender.SendMessageInTransaction(background, message)
		if err == nil {
			result = ended.SendResult
		}
	default:
		switch how {
		case "ordered":
			message.WithShardingKey("one")
		case "delay":
			message.WithDelayTimeLevel(1)
		case "tagged":
			message.WithTag(words[2])
		case "numbered":
			message.WithProperty("number", words[2])
		}
		result, err = sender.SendSync(background, message)
	}
	sentOrNot(body, result, err)
}

func sentOrNot(body string, result *primitive.SendResult, err error) {
	line := event{"event": "sent", "body": body, "status": "failed"}
	if err != nil {
		line["error"] = err.Error()
	} else if result.Status == primitive.SendOK {
		line["status"] = "SEND_OK"
	}
	say(line)
}

func main() {
	rlog.SetLogLevel("error")
	names = primitive.NamesrvAddr{os.Args[1]}
	prefix, all := os.Args[2], consumer.MessageSelector{}
	members := []rocketmq.PushConsumer{
		consume(prefix, "concurrent", "concurrent", all),
		consume(prefix, "orderly", "orderly", all, consumer.WithConsumerOrder(true)),
		consume(prefix, "tagged", "tagged", consumer.MessageSelector{Type: consumer.TAG, Expression: "a || b"}),
		consume(prefix, "filtered", "filtered", consumer.MessageSelector{Type: consumer.SQL92, Expression: "number > 2"}),
		consume(prefix, "broadcast", "broadcast1", all, consumer.WithConsumerModel(consumer.BroadCasting)),
		consume(prefix, "broadcast", "broadcast2", all, consumer.WithConsumerModel(consumer.BroadCasting)),
	}
	signed := func(options ...producer.Option) []producer.Option {
		if signer.AccessKey != "" {
			options = append(options, producer.WithCredentials(signer))
		}
		return options
	}
	sender, err := rocketmq.NewProducer(signed(
		producer.WithNameServer(names), producer.WithGroupName(prefix+"_producers"), producer.WithInstanceName("sender"),
		producer.WithQueueSelector(producer.NewHashQueueSelector()), producer.WithSendMsgTimeout(30*time.Second),
	)...)
	must(err)
	must(sender.Start())
	ender, err := rocketmq.NewTransactionProducer(
		transactions{}, signed(producer.WithNameServer(names), producer.WithGroupName(prefix+"_transactions"),
			producer.WithInstanceName("ender"))...,
	)
	must(err)
	must(ender.Start())
	say(event{"event": "started"})
	for in := bufio.NewScanner(os.Stdin); in.Scan() && in.Text() != "stop"; {
		send(sender, ender, prefix, strings.Fields(in.Text()))
	}
	for _, member := range members {
		must(member.Shutdown())
	}
	must(sender.Shutdown())
	must(ender.Shutdown())
	say(event{"event": "stopped"})
}
