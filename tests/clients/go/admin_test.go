package clients

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestTopicsAreCreatedGrownDescribedAndDeleted(t *testing.T) {
	ctx := within(t)
	topic := newTopic(t, 2)
	admin := newAdmin(t)
	_, err := admin.CreateTopic(ctx, 1, 1, nil, topic)
	same(t, errors.Is(err, kerr.TopicAlreadyExists), true)
	grown, err := admin.UpdatePartitions(ctx, 5, topic)
	must(t, err)
	must(t, grown.Error())
	topics, err := admin.ListTopics(ctx, topic)
	must(t, err)
	same(t, len(topics[topic].Partitions), 5)

	value := "5000"
	change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &value}}
	altered, err := admin.AlterTopicConfigs(ctx, change, topic)
	must(t, err)
	must(t, altered[0].Err)
	described, err := admin.DescribeTopicConfigs(ctx, topic)
	must(t, err)
	for _, config := range described[0].Configs {
		if config.Key == "max.message.bytes" {
			same(t, config.MaybeValue(), value)
		}
	}

	_, err = admin.DeleteTopic(ctx, topic)
	must(t, err)
	_, err = admin.DeleteTopic(ctx, topic)
	same(t, errors.Is(err, kerr.UnknownTopicOrPartition), true)
}

func TestOffsetsOfAGroupAreSetReadAndDeletedWithIt(t *testing.T) {
	ctx := within(t)
	topic := newTopic(t, 1)
	produce(t, ctx, topic, 1, numbers(0, 10)...)
	admin := newAdmin(t)
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 0, 4, -1)
	must(t, admin.CommitAllOffsets(ctx, topic, offsets))
	member := newClient(t, kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic))
	sameAll(t, values(take(t, ctx, member, 6)), numbers(4, 10))
	must(t, member.CommitUncommittedOffsets(ctx))
	lags, err := admin.Lag(ctx, topic)
	must(t, err)
	must(t, lags.Error())
	same(t, lags[topic].State, "Stable")
	same(t, len(lags[topic].Members), 1)
	same(t, lags[topic].Lag.Total(), 0)

	_, err = admin.DeleteGroup(ctx, topic)
	same(t, errors.Is(err, kerr.NonEmptyGroup), true)
	member.CloseAllowingRebalance()
	_, err = admin.DeleteGroup(ctx, topic)
	must(t, err)
	listed, err := admin.ListGroups(ctx)
	must(t, err)
	_, isThere := listed[topic]
	same(t, isThere, false)
}

func TestRecordsAreDeletedAndOffsetsListed(t *testing.T) {
	ctx := within(t)
	topic := newTopic(t, 1)
	produce(t, ctx, topic, 1, numbers(0, 10)...)
	admin := newAdmin(t)
	before := kadm.Offsets{}
	before.AddOffset(topic, 0, 7, -1)
	deleted, err := admin.DeleteRecords(ctx, before)
	must(t, err)
	must(t, deleted.Error())
	starts, err := admin.ListStartOffsets(ctx, topic)
	must(t, err)
	ends, err := admin.ListEndOffsets(ctx, topic)
	must(t, err)
	same(t, starts[topic][0].Offset, 7)
	same(t, ends[topic][0].Offset, 10)
	sameAll(t, readCommitted(t, ctx, topic, 3), numbers(7, 10))
}

func TestTheClusterItsTransactionsAndProducersAreDescribed(t *testing.T) {
	ctx := within(t)
	topic := newTopic(t, 1)
	admin := newAdmin(t)
	cluster, err := admin.BrokerMetadata(ctx)
	must(t, err)
	same(t, len(cluster.Brokers), 1)

	client := newClient(t, kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	must(t, client.BeginTransaction())
	must(t, client.ProduceSync(ctx, kgo.StringRecord("open")).FirstErr())
	transactions, err := admin.DescribeTransactions(ctx, topic)
	must(t, err)
	same(t, transactions[topic].State, "Ongoing")
	partitions := kadm.TopicsSet{}
	partitions.Add(topic, 0)
	producers, err := admin.DescribeProducers(ctx, partitions)
	must(t, err)
	found := producers[topic].Partitions[0].ActiveProducers
	same(t, found[transactions[topic].ProducerID].CurrentTxnStartOffset, 0)
	must(t, client.EndTransaction(ctx, kgo.TryAbort))
	listed, err := admin.ListTransactions(ctx, nil, nil)
	must(t, err)
	same(t, listed[topic].State != "Ongoing", true)
}
