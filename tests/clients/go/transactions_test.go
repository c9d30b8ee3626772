package clients

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestOnlyCommittedRecordsAreRead(t *testing.T) {
	ctx := within(t)
	topic := newTopic(t, 1)
	client := newClient(t, kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	for _, number := range numbers(0, 6) {
		must(t, client.BeginTransaction())
		must(t, client.ProduceSync(ctx, kgo.StringRecord(number)).FirstErr())
		isGood := number != "0001" && number != "0004"
		must(t, client.EndTransaction(ctx, kgo.TransactionEndTry(isGood)))
	}
	expected := []string{"0000", "0002", "0003", "0005"}
	sameAll(t, readCommitted(t, ctx, topic, 4), expected)
}

func TestANewerProducerFencesTheOlderOne(t *testing.T) {
	ctx := within(t)
	topic := newTopic(t, 1)
	older := newClient(t, kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	must(t, older.BeginTransaction())
	must(t, older.ProduceSync(ctx, kgo.StringRecord("older")).FirstErr())
	newer := newClient(t, kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	must(t, newer.BeginTransaction())
	must(t, newer.ProduceSync(ctx, kgo.StringRecord("newer")).FirstErr())
	err := older.EndTransaction(ctx, kgo.TryCommit)
	isFenced := errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)
	same(t, isFenced, true)
	must(t, newer.EndTransaction(ctx, kgo.TryCommit))
	sameAll(t, readCommitted(t, ctx, topic, 1), []string{"newer"})
}

// Two sessions of a group move records from one topic to another; one gives up every third time, and one
// leaves half way.
func TestRecordsAreMovedExactlyOnceByAGroup(t *testing.T) {
	ctx := within(t)
	from, to := newTopic(t, 4), newTopic(t, 1)
	produce(t, ctx, from, 4, numbers(0, 400)...)
	var lock sync.Mutex
	moved := 0
	move := func(id string, movesMax int) {
		session, err := kgo.NewGroupTransactSession(seeds(), kgo.TransactionalID(from+id),
			kgo.ConsumerGroup(from), kgo.ConsumeTopics(from), kgo.DefaultProduceTopic(to),
			kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.RequireStableFetchOffsets(),
			kgo.HeartbeatInterval(300*time.Millisecond),
			kgo.FetchIsolationLevel(kgo.ReadCommitted()),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
		if err != nil {
			t.Error(err)
			return
		}
		defer session.CloseAllowingRebalance()
		isDone := func() bool {
			lock.Lock()
			defer lock.Unlock()
			return moved >= 400 || ctx.Err() != nil
		}
		for n := 0; n < movesMax && !isDone(); n++ {
			records := session.PollRecords(ctx, 10).Records()
			if err := session.Begin(); err != nil {
				t.Error(err)
				return
			}
			for _, record := range records {
				session.Produce(ctx, kgo.SliceRecord(record.Value), nil)
			}
			committed, err := session.End(ctx, kgo.TransactionEndTry(n%3 != 2))
			if err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
			if committed {
				lock.Lock()
				moved += len(records)
				lock.Unlock()
			}
		}
	}
	var sessions sync.WaitGroup
	sessions.Go(func() { move("-a", 8) })
	sessions.Go(func() { move("-b", 1000) })
	found := readCommitted(t, ctx, to, 400)
	slices.Sort(found)
	sameAll(t, found, numbers(0, 400))
	sessions.Wait()
}

func TestAnAbandonedTransactionIsAborted(t *testing.T) {
	ctx := within(t)
	topic := newTopic(t, 1)
	client := newClient(t, kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic),
		kgo.TransactionTimeout(time.Second))
	must(t, client.BeginTransaction())
	must(t, client.ProduceSync(ctx, kgo.StringRecord("forgotten")).FirstErr())
	produce(t, ctx, topic, 1, "behind")
	sameAll(t, readCommitted(t, ctx, topic, 1), []string{"behind"})
	err := client.EndTransaction(ctx, kgo.TryCommit)
	same(t, err != nil && !strings.Contains(err.Error(), "context"), true)
}
