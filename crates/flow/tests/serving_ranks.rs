//! Flows that answer requests on several ranks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millstream_exchange::Ranks;
use millstream_flow::serving::{
    Body, Call, CallError, Reply, Request, RequestSettings, Requests, Respond, Response,
};
use millstream_flow::{BoxError, DeadLetter, DeadLetters, Emit, Flow, FlowSettings, Pool, Running};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, Serializer, ser};

/// A bound far above the time of any step.
const LIMIT: Duration = Duration::from_secs(30);

/// A time that no test lets pass.
const LONG: Duration = Duration::from_secs(600);

/// The workers of each rank.
const WORKERS: usize = 2;

/// Enough users that each of four ranks owns some.
const USERS: u64 = 32;

/// A rank of a serving flow.
struct Rank {
    requests: Requests,
    running: Running,
}

/// Starts a flow on ranks that are threads. `build` adds its operators.
fn start(
    count: u32,
    time_max: Duration,
    build: impl Fn(&Flow, &Requests, u32) + Sync,
) -> Vec<Rank> {
    let build = &build;
    let start_rank = move |ranks: Ranks| {
        let rank = ranks.rank();
        let settings = FlowSettings {
            workers: WORKERS.try_into().unwrap(),
            pool: Pool::new(WORKERS.try_into().unwrap()),
            ranks,
            dead_letters: Some(Arc::new(NoLetters)),
            ..FlowSettings::default()
        };
        let flow = Flow::with_settings("serve", settings);
        let settings = RequestSettings {
            time_max,
            ..RequestSettings::default()
        };
        let requests = Requests::new(&flow, settings);
        build(&flow, &requests, rank);
        let running = flow.run().unwrap();
        requests.begin(&running).unwrap();
        Rank { requests, running }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = Ranks::threads(count)
            .into_iter()
            .map(|ranks| scope.spawn(move || start_rank(ranks)))
            .collect();
        let ranks = threads.into_iter().map(|thread| thread.join().unwrap());
        ranks.collect()
    })
}

/// Keeps no item that an operator fails for.
struct NoLetters;

impl DeadLetters for NoLetters {
    fn put(&self, _: &[DeadLetter]) -> Result<(), BoxError> {
        Ok(())
    }
}

/// The part of the path that decides the owner.
fn user(call: &Call) -> String {
    call.segment(0).unwrap_or_default()
}

/// Starts a flow whose only operator is `answer` at the owner of the user; it replies, or drops the call.
fn start_answering(
    count: u32,
    time_max: Duration,
    answer: impl Fn(u32, &Call) -> Option<Reply> + Clone + Send + Sync + 'static,
) -> Vec<Rank> {
    start(count, time_max, move |flow, requests, rank| {
        let answer = answer.clone();
        flow.sources("requests", requests.sources(WORKERS))
            .key_by(user)
            .map("answer", move |_, call| answer(rank, call))
            .flat_map(|reply: &Option<Reply>, emit: &mut Emit<'_, Reply>| {
                if let Some(reply) = reply {
                    emit(reply);
                }
            })
            .sink("respond", Respond);
    })
}

#[track_caller]
fn wait_until(condition: impl Fn() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(since.elapsed() < LIMIT, "it takes too long");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until no rank holds a call.
#[track_caller]
fn wait_until_free(ranks: &[Rank]) {
    wait_until(|| ranks.iter().all(|rank| rank.requests.waiting() == 0));
}

#[track_caller]
fn text(rank: &Rank, path: &str) -> String {
    let response = rank.requests.call(Request::get(path)).wait().unwrap();
    response.body_text().unwrap().to_owned()
}

/// Returns users that each of two ranks owns.
fn user_of_rank(ranks: &[Rank], rank: u32) -> String {
    let mut users = (0..USERS).map(|user| format!("/{user}"));
    let rank = rank.to_string();
    let found = users.find(|user| text(&ranks[0], &format!("{user}/owner")) == rank);
    found.expect("each rank owns a user")
}

#[test]
fn callers_on_all_ranks_get_the_state_of_the_owner() {
    for count in [1, 2, 4] {
        let ranks = start(count, LONG, |flow, requests, _| {
            let visits = flow.values::<String, u64>("visits");
            flow.sources("requests", requests.sources(WORKERS))
                .key_by(user)
                .update(
                    "count",
                    &visits,
                    |_user, visits, call: &Call, emit: &mut Emit<'_, Reply>| {
                        let number = visits.unwrap_or(0) + 1;
                        *visits = Some(number);
                        emit(&call.reply(Response::json(&number).header("X-Path", call.path())));
                        // The first reply counts.
                        emit(&call.reply(Response::new(500)));
                    },
                )
                .sink("respond", Respond);
        });
        for number in 0..20 {
            let rank = &ranks[number as usize % ranks.len()];
            for user in 0..USERS {
                assert_eq!(text(rank, &format!("/{user}")), (number + 1).to_string());
            }
        }
        // All at once.
        thread::scope(|scope| {
            for (rank, caller) in ranks.iter().cycle().zip(0..8) {
                scope.spawn(move || {
                    for number in 0..100 {
                        let path = format!("/{}/{caller}-{number}", number % USERS);
                        let response = rank.requests.call(Request::get(&path)).wait().unwrap();
                        let headers: Vec<_> = response.headers().collect();
                        assert_eq!(headers[1], ("X-Path", &*path));
                    }
                });
            }
        });
        // The last handles go with the items of the flow.
        wait_until_free(&ranks);
        for rank in &ranks {
            assert_eq!(rank.running.lost_wakeups(), 0);
        }
    }
}

#[test]
fn a_call_passes_several_ranks_and_its_response_comes_back() {
    let ranks = start(4, LONG, |flow, requests, rank| {
        flow.sources("requests", requests.sources(WORKERS))
            .key_by(user)
            .map("first", move |_, call: &Call| (call.clone(), rank))
            .key_by(|(call, _)| call.segment(1))
            .map("second", move |_, (call, first): &(Call, u32)| {
                (call.clone(), *first, rank)
            })
            .gather("last", 3)
            .map(|(call, first, second)| {
                let mut body = call.body().to_vec();
                body.reverse();
                let reply = Response::bytes("application/x", body);
                call.reply(reply.header("X-Way", &format!("{first}{second}")))
            })
            .sink("respond", Respond);
    });
    // Of several parts between ranks, and empty.
    for length in [500_000, 0, 1] {
        let body: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
        let reversed: Vec<u8> = body.iter().rev().copied().collect();
        let mut ways = BTreeSet::new();
        for (rank, number) in ranks.iter().cycle().zip(0..24) {
            let path = format!("/{number}/{}?q=a%20b", number * 7);
            let request = Request::post(&path, body.clone()).with_header("X-Bytes", vec![200]);
            let response = rank.requests.call(request).wait().unwrap();
            let Body::Whole(bytes) = response.body() else {
                panic!("it is whole");
            };
            assert!(*bytes == reversed, "{length}");
            ways.insert(response.headers().nth(1).unwrap().1.to_owned());
        }
        assert!(ways.len() > 4, "{ways:?}");
    }
    wait_until_free(&ranks);
}

#[test]
fn a_call_that_another_rank_drops_fails_at_once() {
    let ranks = start_answering(2, LONG, |rank, call| match call.segment(1).as_deref() {
        Some("owner") => Some(call.reply(Response::json(&rank))),
        Some("panics") => panic!("a test of a panic for secret {}", call.path()),
        _ => None,
    });
    for owner in 0..2 {
        let user = user_of_rank(&ranks, owner);
        for rank in &ranks {
            for path in ["/left/out", "/panics"] {
                let call = rank.requests.call(Request::get(&format!("{user}{path}")));
                let error = call.wait().unwrap_err();
                assert!(matches!(error, CallError::Dropped { .. }), "{error}");
                assert!(!error.to_string().contains("secret"));
            }
        }
    }
    wait_until_free(&ranks);
    assert!(ranks.iter().all(|rank| rank.running.failure().is_none()));
}

#[test]
fn a_call_is_late_while_another_rank_holds_it() {
    let held: Arc<Mutex<Vec<Call>>> = Arc::default();
    let keep = Arc::clone(&held);
    let time_max = Duration::from_millis(200);
    let ranks = start_answering(2, time_max, move |rank, call| {
        if call.segment(1).as_deref() == Some("owner") {
            return Some(call.reply(Response::json(&rank)));
        }
        keep.lock().push(call.clone());
        None
    });
    let user = user_of_rank(&ranks, 1);
    let since = Instant::now();
    let error = ranks[0].requests.call(Request::get(&user)).wait();
    assert!(matches!(error, Err(CallError::Late { .. })), "{error:?}");
    assert!(since.elapsed() >= time_max);
    // The place is taken until the other rank has dropped the call.
    assert_eq!(ranks[0].requests.waiting(), 1);
    wait_until(|| held.lock().iter().all(Call::is_settled));
    held.lock().clear();
    wait_until_free(&ranks);
}

/// An item that another rank cannot get: its call is encoded before its encoding fails.
#[derive(Debug, Clone, Deserialize)]
struct Odd(Call, Failing);

#[derive(Debug, Clone, Deserialize)]
struct Failing {
    panics: bool,
}

impl Serialize for Odd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.0, &self.1).serialize(serializer)
    }
}

impl Serialize for Failing {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        assert!(!self.panics, "a test of a panic");
        Err(ser::Error::custom("a test of a failure"))
    }
}

#[test]
fn a_call_fails_at_once_if_the_item_around_it_cannot_be_encoded() {
    let ranks = start(2, LONG, |flow, requests, rank| {
        flow.sources("requests", requests.sources(WORKERS))
            .map(|call: &Call| {
                let panics = call.segment(1).as_deref() == Some("panics");
                Odd(call.clone(), Failing { panics })
            })
            .key_by(|Odd(call, _)| user(call))
            .map("answer", move |_, Odd(call, _)| {
                call.reply(Response::json(&rank))
            })
            .sink("respond", Respond);
    });
    let mut dropped = 0;
    for user in 0..USERS {
        for path in ["fails", "panics"] {
            let request = Request::get(&format!("/{user}/{path}"));
            match ranks[0].requests.call(request).wait() {
                // Its user is on the rank of the caller.
                Ok(response) => assert_eq!(response.body_text(), Some("0")),
                Err(error) => {
                    assert!(matches!(error, CallError::Dropped { .. }), "{error}");
                    dropped += 1;
                }
            }
        }
    }
    assert!(dropped > 0, "the other rank owns users");
    wait_until_free(&ranks);
}

#[test]
fn a_failure_of_a_rank_answers_the_calls_of_all_ranks() {
    let ranks = start(2, LONG, |flow, requests, rank| {
        let state = flow.values::<String, u64>("state");
        flow.sources("requests", requests.sources(WORKERS))
            .key_by(user)
            .update(
                "panic",
                &state,
                move |_, _, call: &Call, emit: &mut Emit<'_, Reply>| match call
                    .segment(1)
                    .as_deref()
                {
                    Some("owner") => emit(&call.reply(Response::json(&rank))),
                    Some("panics") => panic!("a test of a panic with a secret"),
                    // It is in the flow for good.
                    _ => std::mem::forget(call.clone()),
                },
            )
            .sink("respond", Respond);
    });
    let users = [0, 1].map(|rank| user_of_rank(&ranks, rank));
    let waiting: Vec<_> = ranks
        .iter()
        .flat_map(|rank| {
            users
                .each_ref()
                .map(|user| rank.requests.call(Request::get(user)))
        })
        .collect();
    let panics = Request::get(&format!("{}/panics", users[1]));
    let panics = ranks[0].requests.call(panics);
    for call in waiting {
        let error = call.wait().unwrap_err();
        assert!(matches!(error, CallError::Failed { .. }), "{error}");
        assert!(!error.to_string().contains("secret"));
    }
    let error = panics.wait().unwrap_err();
    assert!(
        matches!(error, CallError::Failed { .. } | CallError::Dropped { .. }),
        "{error}"
    );
    for rank in &ranks {
        let refused = rank.requests.call(Request::get("/")).wait();
        assert!(matches!(refused, Err(CallError::Failed { .. })));
        assert!(rank.running.join().is_err());
    }
}

#[test]
fn a_stop_answers_the_calls_that_other_ranks_have_and_ends_the_others() {
    let seen = Arc::new(AtomicUsize::new(0));
    let noted = Arc::clone(&seen);
    let ranks = start_answering(2, Duration::from_secs(2), move |rank, call| {
        match call.segment(1).as_deref() {
            Some("owner") => Some(call.reply(Response::json(&rank))),
            Some("slow") => {
                thread::sleep(Duration::from_millis(20));
                noted.fetch_add(1, Ordering::Relaxed);
                Some(call.reply(Response::text("slow")))
            }
            // It is in the flow for good.
            _ => {
                std::mem::forget(call.clone());
                None
            }
        }
    });
    let users = [0, 1].map(|rank| user_of_rank(&ranks, rank));
    let mut slow = Vec::new();
    let mut kept = Vec::new();
    for rank in &ranks {
        for user in &users {
            let calls = (0..5).map(|_| rank.requests.call(Request::get(&format!("{user}/slow"))));
            slow.extend(calls);
            kept.push(rank.requests.call(Request::get(user)));
        }
    }
    wait_until(|| seen.load(Ordering::Relaxed) > 0);
    ranks[0].running.stop();
    let mut responses = 0;
    for call in slow {
        match call.wait() {
            Ok(response) => {
                assert_eq!(response.body_text(), Some("slow"));
                responses += 1;
            }
            // The flow had not read it.
            Err(CallError::Ended { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(responses, seen.load(Ordering::Relaxed));
    for call in kept {
        let error = call.wait().unwrap_err();
        let is_end = matches!(error, CallError::Ended { .. } | CallError::Late { .. });
        assert!(is_end, "{error}");
    }
    for rank in &ranks {
        rank.running.join().unwrap();
        let refused = rank.requests.call(Request::get("/")).wait();
        assert!(matches!(refused, Err(CallError::Ended { .. })));
    }
}
