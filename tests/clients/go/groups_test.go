package clients

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// group holds the partitions and the values read of the members of a consumer group.
type group struct {
	name       string
	options    []kgo.Opt
	lock       sync.Mutex
	partitions map[*kgo.Client]int
	values     []string
}

// join starts a member that commits all that it reads until its client is closed.
func (g *group) join(t *testing.T, ctx context.Context) *kgo.Client {
	count := func(sign int) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, client *kgo.Client, changed map[string][]int32) {
			g.lock.Lock()
			defer g.lock.Unlock()
			g.partitions[client] += sign * len(changed[g.name])
		}
	}
	client := newClient(t, append(g.options, kgo.ConsumerGroup(g.name), kgo.ConsumeTopics(g.name),
		kgo.HeartbeatInterval(300*time.Millisecond), kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(count(1)), kgo.OnPartitionsRevoked(count(-1)),
		kgo.OnPartitionsLost(count(-1)))...)
	go func() {
		for {
			fetches := client.PollFetches(ctx)
			if fetches.IsClientClosed() || ctx.Err() != nil {
				return
			}
			if err := client.CommitRecords(ctx, fetches.Records()...); err != nil {
				t.Errorf("commit: %v", err)
			}
			g.lock.Lock()
			g.values = append(g.values, values(fetches.Records())...)
			g.lock.Unlock()
			client.AllowRebalance()
		}
	}()
	return client
}

// settle waits until each of these members has the given number of partitions.
func (g *group) settle(t *testing.T, each int, members ...*kgo.Client) {
	t.Helper()
	g.waitUntil(t, "partitions", func() bool {
		return !slices.ContainsFunc(members, func(member *kgo.Client) bool {
			return g.partitions[member] != each
		})
	})
}

// hasRead waits until just these values have been read, in whichever order.
func (g *group) hasRead(t *testing.T, expected []string) {
	t.Helper()
	g.waitUntil(t, "records", func() bool { return len(g.values) >= len(expected) })
	slices.Sort(g.values)
	sameAll(t, g.values, expected)
}

func (g *group) waitUntil(t *testing.T, what string, isSo func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeMax); ; time.Sleep(10 * time.Millisecond) {
		g.lock.Lock()
		done := isSo()
		g.lock.Unlock()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s: %v, %d values", what, g.partitions, len(g.values))
		}
	}
}

func TestMembersShareTheirPartitionsAndEveryRecordIsReadOnce(t *testing.T) {
	for name, options := range map[string][]kgo.Opt{
		"cooperative-sticky": {kgo.Balancers(kgo.CooperativeStickyBalancer())},
		"range":              {kgo.Balancers(kgo.RangeBalancer())},
		"server-side":        {kgo.Balancers(kgo.StickyBalancer()), kgo.ServerSideBalancer()},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := within(t)
			topic := newTopic(t, 4)
			g := group{name: topic, options: options, partitions: map[*kgo.Client]int{}}
			produce(t, ctx, topic, 4, numbers(0, 100)...)
			first := g.join(t, ctx)
			g.settle(t, 4, first)
			second := g.join(t, ctx)
			g.settle(t, 2, first, second)
			produce(t, ctx, topic, 4, numbers(100, 200)...)
			g.hasRead(t, numbers(0, 200))
			first.CloseAllowingRebalance()
			g.settle(t, 4, second)
			produce(t, ctx, topic, 4, numbers(200, 300)...)
			g.hasRead(t, numbers(0, 300))
		})
	}
}
