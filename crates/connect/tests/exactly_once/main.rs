//! Results of flows in streams: readers of committed records see each once, however the flow ends.

mod contract;
mod killed;
mod letter_streams;
mod letters;
mod world;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_client::{
    ProducerConfig, ProducerRecord, TransactionConfig, TransactionalProducer, partition_of_key,
};
use millstream_connect::FlowTransactionId;
use millstream_exchange::Ranks;
use proptest::prelude::*;

use world::{Fault, Into, PARTITIONS, World, wait_until};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn each_result_is_in_the_stream_once_although_ranks_die(
        into in prop_oneof![Just(Into::Log), Just(Into::Server)],
        ranks in 1u32..4,
        deaths in prop::collection::vec((0u32..4, 0u64..300), 0..4),
    ) {
        let world = World::new(into, 20_000);
        for (rank, after_ms) in deaths {
            world.run(ranks, Some((rank % ranks, Duration::from_millis(after_ms))));
        }
        prop_assert!(world.run(ranks, None));
        world.check(ranks);
    }
}

/// Runs until results are prepared for checkpoints that the flow does not know to be complete, and dies.
fn die_undecided(world: &World, fault: Fault) {
    world.fault(fault);
    let running = world.start(&Ranks::alone()).unwrap();
    wait_until("some checkpoints are tried", || {
        running.checkpoints().unwrap().failed > 3
    });
    drop(running);
    assert_eq!(world.results().len(), 0, "nothing is committed");
    world.fault(Fault::None);
}

#[test]
fn a_resuming_flow_commits_the_transactions_that_its_checkpoint_names() {
    for into in [Into::Log, Into::Server] {
        let world = World::new(into, 20_000);
        die_undecided(&world, Fault::Unknown);
        let running = world.start(&Ranks::alone()).unwrap();
        wait_until("they are committed, whatever comes", || {
            !world.results().is_empty()
        });
        running.join().unwrap();
        world.check(1);
    }
}

#[test]
fn a_resuming_flow_aborts_other_transactions_and_writes_their_results_again() {
    for into in [Into::Log, Into::Server] {
        let world = World::new(into, 20_000);
        die_undecided(&world, Fault::Lost);
        assert!(world.run(1, None));
        world.check(1);
    }
}

#[test]
fn a_flow_on_fewer_ranks_aborts_open_transactions_of_more_ranks() {
    for into in [Into::Log, Into::Server] {
        let world = World::new(into, 20_000);
        world.fault(Fault::Lost);
        world.run(3, Some((2, Duration::from_millis(300))));
        world.fault(Fault::None);
        world.forget_checkpoints();
        assert!(world.run(1, None));
        // Otherwise readers would wait at open transactions.
        world.check(1);
    }
}

#[test]
fn results_go_to_all_partitions_by_their_keys() {
    for into in [Into::Log, Into::Server] {
        let world = World::new(into, 5000);
        assert!(world.run(1, None));
        let mut used = BTreeSet::new();
        for (key, partition) in world.partitions() {
            assert_eq!(
                partition as usize,
                partition_of_key(&key, PARTITIONS as usize)
            );
            used.insert(partition);
        }
        assert_eq!(used.len() as u32, PARTITIONS);
    }
}

#[test]
fn a_flow_without_checkpoints_commits_its_results_at_its_end() {
    for into in [Into::Log, Into::Server] {
        let world = World::new(into, 5000).without_checkpoints();
        world.start(&Ranks::alone()).unwrap().join().unwrap();
        world.check(1);
        assert!(world.open_transactions().is_empty());
    }
}

#[test]
fn a_fenced_flow_commits_nothing_more() {
    let world = World::new(Into::Server, u64::MAX);
    let running = world.start(&Ranks::alone()).unwrap();
    wait_until("results come", || !world.results().is_empty());
    // Another one of the same name begins elsewhere, and does not know of the checkpoints.
    let other = World::beside(&world, 5000);
    let begun = other.start(&Ranks::alone()).unwrap();
    let error = running.join().unwrap_err().to_string();
    assert!(
        error.contains("a newer producer has taken its place"),
        "{error}"
    );
    begun.join().unwrap();
}

#[test]
fn an_administrator_sees_the_flow_of_an_orphaned_transaction_and_ends_it() {
    let world = World::new(Into::Server, 20_000);
    die_undecided(&world, Fault::Lost);
    let orphans = world.open_transactions();
    assert!(!orphans.is_empty());
    for id in &orphans {
        let of = FlowTransactionId::parse(id).unwrap();
        assert_eq!(
            (of.flow.as_str(), of.sink.as_str(), of.rank),
            ("counted", "results", 0)
        );
    }
    // A transaction that belongs to no flow.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = world.client();
    runtime.block_on(async {
        let config = TransactionConfig {
            id: "other".to_owned(),
            timeout: Duration::from_secs(60),
            two_phase: false,
        };
        let other = TransactionalProducer::new(&client, ProducerConfig::default(), config);
        let other = Arc::new(other.await.unwrap());
        other.begin().unwrap();
        let record = ProducerRecord {
            topic: "results",
            partition: Some(0),
            ..ProducerRecord::default()
        };
        other.send(record).await.unwrap();
        other.abort().await.unwrap();
        for id in &orphans {
            let open = client.transaction(id).await.unwrap().unwrap();
            assert!(open.is_open() && open.timeout.is_none());
            client
                .end_transaction(id, open.identity, false)
                .await
                .unwrap();
        }
    });
    assert!(world.open_transactions().is_empty());
    assert_eq!(world.results().len(), 0);
    // The flow goes on all the same.
    thread::scope(|scope| scope.spawn(|| assert!(world.run(1, None))).join().unwrap());
    world.check(1);
}
