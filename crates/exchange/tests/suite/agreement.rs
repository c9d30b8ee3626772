//! The beginning.

use std::collections::BTreeSet;

use millstream_exchange::{Fingerprint, Ranks};

use super::{agree, assert_failed, on_each};

fn fingerprint(graph: u64, description: &str) -> Fingerprint {
    Fingerprint {
        program: "words 1".to_owned(),
        graph,
        description: description.to_owned(),
    }
}

#[test]
fn all_ranks_get_one_seed_to_which_each_rank_contributes() {
    for count in [1, 2, 3, 8] {
        let seeds = |change: u32| -> BTreeSet<u64> {
            let seeds = on_each(count, |ranks| {
                let random = 1000 + 7 * u64::from(ranks.rank()) + u64::from(ranks.rank() == change);
                let seed = ranks.agree(fingerprint(1, "source"), random).unwrap();
                ranks.leave().unwrap();
                seed
            });
            seeds.into_iter().collect()
        };
        let unchanged = seeds(u32::MAX);
        assert_eq!(unchanged.len(), 1);
        for rank in 0..count {
            assert!(seeds(rank).is_disjoint(&unchanged));
        }
    }
}

#[test]
fn all_ranks_report_which_rank_differs_and_how() {
    let outcomes = on_each(5, |ranks| {
        let second = if ranks.rank() == 3 { "sum" } else { "count" };
        let hash = u64::from(ranks.rank() == 3);
        ranks.agree(fingerprint(hash, &format!("source\n{second}\nsink")), 1)
    });
    for outcome in outcomes {
        let what = "its graph differs from rank 0's: line 2 is \"sum\" here and \"count\" there";
        assert_failed(outcome, 3, what);
    }
}

#[test]
fn a_rank_that_cannot_start_fails_the_ranks_that_wait_for_it() {
    let outcomes = on_each(4, |ranks| {
        if ranks.rank() == 2 {
            ranks.fail("it cannot read its settings");
        }
        ranks.agree(fingerprint(1, "source"), 1)
    });
    for outcome in outcomes {
        assert_failed(outcome, 2, "it cannot read its settings");
    }
}

#[test]
fn a_rank_that_dies_before_it_agrees_fails_the_ranks_that_wait_for_it() {
    let outcomes = on_each(4, |ranks| {
        (ranks.rank() != 1).then(|| ranks.agree(fingerprint(1, "source"), 1))
    });
    for outcome in outcomes.into_iter().flatten() {
        assert_failed(outcome, 1, "ended without a word");
    }
}

#[test]
fn ranks_can_agree_many_times() {
    let seeds = on_each(6, |ranks| {
        let seeds: Vec<u64> = (0..200)
            .map(|round| {
                let random = (round << 8) + u64::from(ranks.rank());
                ranks.agree(fingerprint(round, "source"), random).unwrap()
            })
            .collect();
        ranks.leave().unwrap();
        seeds
    });
    assert!(seeds.iter().all(|others| *others == seeds[0]));
    assert_eq!(seeds[0].len(), 200);
}

#[test]
fn one_rank_alone_agrees_with_itself() {
    let ranks = Ranks::alone();
    assert_eq!((ranks.rank(), ranks.count()), (0, 1));
    assert_eq!(agree(&ranks), Ok(1));
    assert_eq!(ranks.leave(), Ok(()));
    assert_eq!(ranks.failure(), None);
}
