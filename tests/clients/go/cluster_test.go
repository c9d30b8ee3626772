// Package clients drives the server with franz-go. The address comes from MILLSTREAM_ADDRESS.
package clients

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const timeMax = 30 * time.Second

// within gives a test a deadline for all that it asks.
func within(t *testing.T) context.Context {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), timeMax)
	t.Cleanup(cancel)
	return ctx
}

func newClient(t *testing.T, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(append(options, seeds())...)
	must(t, err)
	t.Cleanup(client.CloseAllowingRebalance)
	return client
}

func seeds() kgo.Opt {
	return kgo.SeedBrokers(os.Getenv("MILLSTREAM_ADDRESS"))
}

func newAdmin(t *testing.T) *kadm.Client {
	return kadm.NewClient(newClient(t))
}

// newTopic creates a topic whose name no other test uses.
func newTopic(t *testing.T, partitions int32) string {
	t.Helper()
	name := fmt.Sprintf("go-%x", rand.Uint64())
	_, err := newAdmin(t).CreateTopic(context.Background(), partitions, 1, nil, name)
	must(t, err)
	return name
}

// produce sends values round the partitions of a topic.
func produce(t *testing.T, ctx context.Context, topic string, partitions int32, values ...string) {
	t.Helper()
	client := newClient(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	var records []*kgo.Record
	for n, value := range values {
		record := kgo.StringRecord(value)
		record.Topic, record.Partition = topic, int32(n)%partitions
		records = append(records, record)
	}
	must(t, client.ProduceSync(ctx, records...).FirstErr())
}

// readCommitted returns this number of values of a topic's only partition.
func readCommitted(t *testing.T, ctx context.Context, topic string, count int) []string {
	t.Helper()
	return values(take(t, ctx, newClient(t,
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted())), count))
}

func take(t *testing.T, ctx context.Context, client *kgo.Client, count int) []*kgo.Record {
	t.Helper()
	var records []*kgo.Record
	for len(records) < count {
		fetches := client.PollRecords(ctx, count-len(records))
		must(t, fetches.Err())
		records = append(records, fetches.Records()...)
		client.AllowRebalance()
	}
	return records
}

func values(records []*kgo.Record) []string {
	var values []string
	for _, record := range records {
		values = append(values, string(record.Value))
	}
	return values
}

// numbers gives texts of the numbers from the first up to the last, without it.
func numbers(from, to int) []string {
	var texts []string
	for n := from; n < to; n++ {
		texts = append(texts, fmt.Sprintf("%04d", n))
	}
	return texts
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same[T comparable](t *testing.T, found, expected T) {
	t.Helper()
	if found != expected {
		t.Fatalf("%v, expected %v", found, expected)
	}
}

func sameAll[T comparable](t *testing.T, found, expected []T) {
	t.Helper()
	if !slices.Equal(found, expected) {
		t.Fatalf("%v, expected %v", found, expected)
	}
}
