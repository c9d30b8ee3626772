package clients

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestEveryCompressionComesBackInOrder(t *testing.T) {
	codecs := map[string]kgo.CompressionCodec{
		"none":   kgo.NoCompression(),
		"gzip":   kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(),
		"lz4":    kgo.Lz4Compression(),
		"zstd":   kgo.ZstdCompression(),
	}
	for name, codec := range codecs {
		t.Run(name, func(t *testing.T) {
			ctx := within(t)
			topic := newTopic(t, 1)
			producer := newClient(t, kgo.ProducerBatchCompression(codec),
				kgo.ProducerBatchMaxBytes(4000), kgo.DefaultProduceTopic(topic))
			var records []*kgo.Record
			for _, number := range numbers(0, 2000) {
				records = append(records, kgo.StringRecord(number))
			}
			must(t, producer.ProduceSync(ctx, records...).FirstErr())
			same(t, records[1999].Offset, 1999)
			sameAll(t, readCommitted(t, ctx, topic, 2000), numbers(0, 2000))
		})
	}
}

func TestHeadersTimesAndNullsAreKept(t *testing.T) {
	ctx := within(t)
	topic := newTopic(t, 1)
	at := time.UnixMilli(1_234_567)
	full := &kgo.Record{Key: []byte("key"), Value: []byte("value"), Timestamp: at}
	full.Headers = []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a"}, {Key: ""}}
	client := newClient(t, kgo.DefaultProduceTopic(topic), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(t, client.ProduceSync(ctx, full, &kgo.Record{}).FirstErr())
	records := take(t, ctx, client, 2)
	same(t, string(records[0].Key)+string(records[0].Value), "keyvalue")
	same(t, records[0].Timestamp.UnixMilli(), at.UnixMilli())
	same(t, len(records[0].Headers), 3)
	same(t, string(records[0].Headers[0].Value), "1")
	same(t, records[0].Headers[1].Value == nil, true)
	same(t, records[1].Key == nil && records[1].Value == nil, true)
}

func TestLargeRecordsPassAndTooLargeOnesAreRefused(t *testing.T) {
	ctx := within(t)
	topic := newTopic(t, 1)
	client := newClient(t, kgo.DefaultProduceTopic(topic), kgo.ConsumeTopics(topic),
		kgo.ProducerBatchMaxBytes(16<<20), kgo.BrokerMaxWriteBytes(32<<20),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	large := bytes.Repeat([]byte("large"), 1_600_000)
	must(t, client.ProduceSync(ctx, kgo.SliceRecord(large)).FirstErr())
	err := client.ProduceSync(ctx, kgo.SliceRecord(make([]byte, 9_000_000))).FirstErr()
	same(t, errors.Is(err, kerr.MessageTooLarge), true)
	must(t, client.ProduceSync(ctx, kgo.StringRecord("behind")).FirstErr())
	records := take(t, ctx, client, 2)
	same(t, bytes.Equal(records[0].Value, large), true)
	same(t, string(records[1].Value), "behind")
}
