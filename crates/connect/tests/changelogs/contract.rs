//! Changes count exactly once: those that a complete checkpoint names, and no others.

use std::task::Waker;

use millstream_flow::FinalError;

use crate::support::{World, for_both, start, table, wait};

#[test]
fn the_newest_change_of_each_key_is_restored() {
    for_both(|world| {
        let large = vec![7; 700_000];
        let mut run = world.begin(None);
        assert_eq!(run.restore().unwrap(), table(&[]));
        run.store(
            1,
            &[
                (b"ada", Some(b"1")),
                (b"bob", Some(b"1")),
                (b"", Some(b"no name")),
                (b"\0\xff", Some(b"")),
                (b"ada", Some(b"2")),
            ],
        );
        let prepared = run.store(
            2,
            &[
                (b"bob", None),
                (b"ada", Some(b"3")),
                (b"large", Some(&large)),
            ],
        );
        drop(run);
        let expected = table(&[
            (b"", b"no name"),
            (b"\0\xff", b""),
            (b"ada", b"3"),
            (b"large", &large),
        ]);
        let mut run = world.begin(Some(&prepared));
        assert!(run.restore().unwrap() == expected);
        // A key may come back.
        let prepared = run.store(3, &[(b"bob", Some(b"4")), (b"large", None), (b"", None)]);
        drop(run);
        let expected = table(&[(b"\0\xff", b""), (b"ada", b"3"), (b"bob", b"4")]);
        let restored = world.begin(Some(&prepared)).restore().unwrap();
        assert_eq!(restored, expected);
    });
}

#[test]
fn a_later_run_commits_the_changes_that_the_checkpoint_names_and_aborts_the_rest() {
    for_both(|world| {
        let mut run = world.begin(None);
        run.push(&[(b"ada", Some(b"1"))]).unwrap();
        let named = run.0.prepare(1).unwrap();
        // The checkpoint after it was never complete, …
        run.push(&[(b"ada", Some(b"2")), (b"bob", Some(b"2"))])
            .unwrap();
        run.0.prepare(2).unwrap();
        // … and this is of none.
        run.push(&[(b"ada", None)]).unwrap();
        drop(run);
        let mut run = world.begin(Some(&named));
        assert_eq!(run.restore().unwrap(), table(&[(b"ada", b"1")]));
        let named = run.store(2, &[(b"eve", Some(b"3"))]);
        drop(run);
        let restored = world.begin(Some(&named)).restore().unwrap();
        assert_eq!(restored, table(&[(b"ada", b"1"), (b"eve", b"3")]));
    });
}

#[test]
fn a_run_does_not_begin_without_changes_that_the_checkpoint_names() {
    for_both(|world| {
        let mut run = world.begin(None);
        run.push(&[(b"ada", Some(b"1"))]).unwrap();
        let named = run.0.prepare(1).unwrap();
        drop(run);
        world.abort_by_force();
        let mut run = world.open().unwrap();
        let error = run.0.recover(&start(0, 1, Some(&named))).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("was aborted by force"), "{error}");
    });
}

/// The next checkpoint did not name the transaction, so a start from it missed the changes.
#[test]
fn a_run_ends_when_prepared_changes_were_aborted_by_force() {
    for_both(|world| {
        let mut run = world.begin(None);
        run.push(&[(b"ada", Some(b"1"))]).unwrap();
        run.0.prepare(1).unwrap();
        world.abort_by_force();
        let committed = wait(|| run.0.commit(1, Waker::noop()));
        assert!(committed.is_err());
    });
}

#[test]
fn a_flow_that_starts_over_aborts_all_open_transactions() {
    for_both(|world| {
        let mut run = world.begin(None);
        run.push(&[(b"ada", Some(b"1"))]).unwrap();
        run.0.prepare(1).unwrap();
        drop(run);
        assert_eq!(world.begin(None).restore().unwrap(), table(&[]));
    });
}

#[test]
fn a_checkpoint_without_changes_opens_no_transaction() {
    for_both(|world| {
        let mut run = world.begin(None);
        for checkpoint in 1..20 {
            run.store(checkpoint, &[]);
        }
        let prepared = run.store(20, &[(b"ada", Some(b"1"))]);
        drop(run);
        let restored = world.begin(Some(&prepared)).restore().unwrap();
        assert_eq!(restored, table(&[(b"ada", b"1")]));
    });
}

/// More checkpoints than may be undecided at once.
#[test]
fn a_changelog_reuses_transaction_ids_after_their_commit() {
    for_both(|world| {
        let mut run = world.begin(None);
        for checkpoint in 1..=30_u64 {
            let number = checkpoint.to_be_bytes();
            run.push(&[(b"count", Some(&number)), (&number, Some(b""))])
                .unwrap();
            run.0.prepare(checkpoint).unwrap();
            if checkpoint % 5 == 0 {
                run.commit(checkpoint);
            }
        }
        drop(run);
        let restored = world.begin(None).restore().unwrap();
        assert_eq!(restored.len(), 31);
        assert_eq!(restored[&b"count"[..]], 30_u64.to_be_bytes());
    });
}

#[test]
fn each_rank_restores_the_state_of_all_ranks_after_the_number_of_ranks_changed() {
    for_both(|world| {
        let mut prepared = Vec::new();
        let mut runs: Vec<_> = (0..3).map(|rank| world.begin_as(rank, 3, None)).collect();
        for (key, run) in [b"a", b"b", b"c"].into_iter().zip(&mut runs) {
            run.push(&[(key, Some(b"1"))]).unwrap();
            prepared.push(run.0.prepare(1).unwrap());
            // It is not in the checkpoint.
            run.push(&[(key, Some(b"2"))]).unwrap();
        }
        // Only one rank got the commit before all ended.
        runs[1].commit(1);
        drop(runs);
        // Ranks of another number: each decides the transactions of its checkpoint, and all before any restores.
        for (rank, prepared) in (0..3).zip(&prepared) {
            world.begin_as(rank, 3, Some(prepared));
        }
        let mut runs = [world.begin_as(0, 2, None), world.begin_as(1, 2, None)];
        // The other rank may have begun.
        runs[0].push(&[(b"d", Some(b"3"))]).unwrap();
        for run in &mut runs {
            let expected = table(&[(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]);
            assert_eq!(run.restore().unwrap(), expected);
        }
    });
}

/// The flow then pushes the same changes again, or newer ones.
#[test]
fn a_changelog_takes_changes_again_after_an_error() {
    for_both(|world| {
        let mut run = world.begin(None);
        run.store(1, &[(b"ada", Some(b"1"))]);
        let stream = world.log.stream("shop.state.users").unwrap();
        let mut config = stream.config();
        config.chunk_bytes_max = Some(millstream_base::ByteSize(10_000));
        world
            .log
            .alter_stream("shop.state.users", |stream| {
                stream.chunk_bytes_max = config.chunk_bytes_max;
            })
            .unwrap();
        let large = vec![7; 50_000];
        for _ in 0..10 {
            let changes = [(&b"bob"[..], Some(&b"1"[..])), (b"ada", Some(&large))];
            let error = run.push(&changes).unwrap_err().to_string();
            for expected in [
                "stream shop.state.users: the change of key \"ada\" has ",
                "and the stream takes 9.8 KiB at once",
            ] {
                assert!(error.contains(expected), "{error}");
            }
            run.0.give_up();
        }
        let prepared = run.store(2, &[(b"ada", Some(b"2")), (b"bob", Some(b"2"))]);
        drop(run);
        let restored = world.begin(Some(&prepared)).restore().unwrap();
        assert_eq!(restored, table(&[(b"ada", b"2"), (b"bob", b"2")]));
    });
}

/// An element that began anew with another type has older changes.
#[test]
fn restoring_needs_only_the_last_change_of_each_key() {
    for_both(|world| {
        let mut run = world.begin(None);
        run.store(1, &[(b"ada", Some(b"old")), (b"bob", Some(b"old"))]);
        let prepared = run.store(2, &[(b"ada", Some(b"1")), (b"bob", None)]);
        drop(run);
        let mut found = Vec::new();
        let mut run = world.begin(Some(&prepared));
        let read = &mut |key: &[u8], value: Option<&[u8]>| match value {
            Some(b"old") => Err("it is old".into()),
            value => {
                found.push((key.to_vec(), value.map(<[u8]>::to_vec)));
                Ok(())
            }
        };
        run.0.restore(Some(2), read).unwrap();
        found.sort_unstable();
        let expected = [
            (b"ada".to_vec(), Some(b"1".to_vec())),
            (b"bob".to_vec(), None),
        ];
        assert_eq!(found, expected);
        let prepared = run.store(3, &[(b"bob", Some(b"old"))]);
        drop(run);
        let mut run = world.begin(Some(&prepared));
        let error = run.0.restore(Some(3), &mut |_, value| match value {
            Some(b"old") => Err("it is old".into()),
            _ => Ok(()),
        });
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("it is old; has another program written"),
            "{error}"
        );
    });
}

#[test]
fn a_changelog_aborts_the_transaction_that_it_gives_up() {
    for_both(|world| {
        let mut run = world.begin(None);
        run.store(1, &[(b"ada", Some(b"1"))]);
        for _ in 0..20 {
            run.push(&[(b"ada", Some(b"2")), (b"bob", Some(b"2"))])
                .unwrap();
            assert!(!world.is_decided());
            run.0.give_up();
        }
        let prepared = run.store(2, &[(b"eve", Some(b"3"))]);
        world.wait_until_decided();
        drop(run);
        let restored = world.begin(Some(&prepared)).restore().unwrap();
        assert_eq!(restored, table(&[(b"ada", b"1"), (b"eve", b"3")]));
    });
}

#[test]
fn a_second_run_on_a_server_fences_the_first() {
    let world = World::start(true);
    let mut first = world.begin(None);
    first.store(1, &[(b"ada", Some(b"1"))]);
    first.push(&[(b"ada", Some(b"2"))]).unwrap();
    let mut second = world.begin(None);
    assert_eq!(second.restore().unwrap(), table(&[(b"ada", b"1")]));
    for _ in 0..3 {
        let error = first.push(&[(b"ada", Some(b"3"))]).unwrap_err();
        assert!(error.is::<FinalError>(), "{error}");
        let error = error.to_string();
        assert!(error.starts_with("another run of flow \"shop\""), "{error}");
    }
    second.store(2, &[(b"bob", Some(b"2"))]);
    let restored = world.begin(None).restore().unwrap();
    assert_eq!(restored, table(&[(b"ada", b"1"), (b"bob", b"2")]));
}
