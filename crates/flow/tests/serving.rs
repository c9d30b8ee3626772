//! Flows that answer requests.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Wake};
use std::thread;
use std::time::{Duration, Instant};

use millstream_flow::serving::{
    Call, CallError, Pending, Reply, Request, RequestSettings, Requests, Respond, Response,
};
use millstream_flow::{
    BoxError, Class, DeadLetter, DeadLetters, Emit, Flow, FlowSettings, Objective, Pool, Running,
};
use parking_lot::Mutex;

/// A bound far above the time of any step.
const LIMIT: Duration = Duration::from_secs(30);

/// A time that no test lets pass.
const LONG: Duration = Duration::from_secs(600);

/// Drops dead letters, and counts them.
#[derive(Default)]
struct Counted(AtomicU64);

impl DeadLetters for Counted {
    fn put(&self, letters: &[DeadLetter]) -> Result<(), BoxError> {
        self.0.fetch_add(letters.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

fn time(time_max: Duration) -> RequestSettings {
    RequestSettings {
        time_max,
        ..RequestSettings::default()
    }
}

fn workers(count: usize) -> FlowSettings {
    FlowSettings {
        workers: count.try_into().unwrap(),
        ..FlowSettings::default()
    }
}

/// Starts a flow whose only operator is `answer`; it replies, or drops the call.
fn start(
    settings: FlowSettings,
    requests: RequestSettings,
    answer: impl Fn(&Call) -> Option<Reply> + Send + Sync + 'static,
) -> (Requests, Running) {
    let count = settings.workers.get();
    let flow = Flow::with_settings("serve", settings);
    let requests = Requests::new(&flow, requests);
    flow.sources("requests", requests.sources(count))
        .flat_map(move |call: &Call, emit: &mut Emit<'_, Reply>| {
            if let Some(reply) = answer(call) {
                emit(&reply);
            }
        })
        .sink("respond", Respond);
    let running = flow.run().unwrap();
    requests.begin(&running).unwrap();
    (requests, running)
}

/// Starts a flow that keeps calls, and answers none.
fn start_held(requests: RequestSettings) -> (Requests, Running, Arc<Mutex<Vec<Call>>>) {
    let held: Arc<Mutex<Vec<Call>>> = Arc::default();
    let keep = Arc::clone(&held);
    let (requests, running) = start(workers(2), requests, move |call| {
        keep.lock().push(call.clone());
        None
    });
    (requests, running, held)
}

#[track_caller]
fn wait_until(condition: impl Fn() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(since.elapsed() < LIMIT, "it takes too long");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for a future, as a runtime without timers does.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Thread(thread::Thread);
    impl Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Thread(thread::current())).into();
    let mut future = pin!(future);
    let since = Instant::now();
    loop {
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        if let std::task::Poll::Ready(output) = polled {
            return output;
        }
        assert!(since.elapsed() < LIMIT, "it takes too long");
        thread::park_timeout(LIMIT);
    }
}

fn text(pending: Pending) -> String {
    let response = pending.wait().unwrap();
    response.body_text().unwrap().to_owned()
}

#[test]
fn each_of_many_callers_gets_its_own_response() {
    let (requests, running) = start(workers(3), time(LONG), |call| {
        Some(call.reply(Response::text(call.query("n").unwrap())))
    });
    thread::scope(|scope| {
        for caller in 0..8 {
            let requests = &requests;
            scope.spawn(move || {
                for number in 0..200 {
                    let n = format!("{caller}-{number}");
                    let pending = requests.call(Request::get(&format!("/?n={n}")));
                    match number % 2 {
                        0 => assert_eq!(text(pending), n),
                        _ => assert_eq!(block_on(pending).unwrap().body_text(), Some(&*n)),
                    }
                }
            });
        }
    });
    // The last handles go with the items of the flow.
    wait_until(|| requests.waiting() == 0);
    assert_eq!(running.lost_wakeups(), 0);
}

#[test]
fn an_operator_by_key_answers_with_the_state_of_the_key() {
    let flow = Flow::with_settings("visits", workers(3));
    let requests = Requests::new(&flow, time(LONG));
    let visits = flow.values::<String, u64>("visits");
    flow.sources("requests", requests.sources(3))
        .key_by(|call: &Call| call.segment(0).unwrap_or_default())
        .update(
            "count",
            &visits,
            |_user, visits, call: &Call, emit: &mut Emit<'_, Reply>| {
                let number = visits.unwrap_or(0) + 1;
                *visits = Some(number);
                emit(&call.reply(Response::json(&number)));
                // The first reply counts.
                emit(&call.reply(Response::new(500)));
            },
        )
        .sink("respond", Respond);
    let running = flow.run().unwrap();
    requests.begin(&running).unwrap();
    for number in 1..=50 {
        for user in ["ann", "ben", "cat"] {
            let call = requests.call(Request::get(&format!("/{user}")));
            assert_eq!(text(call), number.to_string());
        }
    }
    assert_eq!(visits.get(&"ann".to_owned()), Some(50));
}

#[test]
fn a_full_queue_refuses_at_once_and_takes_requests_again() {
    let bounds = RequestSettings {
        requests_max: 3,
        requests_bytes_max: 1_000,
        body_bytes_max: 900,
        time_max: LONG,
        ..RequestSettings::default()
    };
    let (requests, _running, held) = start_held(bounds);
    let calls: Vec<_> = (0..3).map(|_| requests.call(Request::get("/"))).collect();
    let full = requests.call(Request::get("/")).wait();
    assert!(
        matches!(full, Err(CallError::Full { requests: 3, .. })),
        "{full:?}"
    );
    wait_until(|| held.lock().len() == 3);
    // The flow has answered, and dropped them.
    for call in held.lock().drain(..) {
        drop(call.reply(Response::new(204)));
    }
    for call in calls {
        assert!(matches!(call.wait(), Err(CallError::Dropped { .. })));
    }
    wait_until(|| requests.waiting() == 0);
    let large = || requests.call(Request::post("/", vec![0; 600]));
    let first = large();
    let full = large().wait();
    assert!(
        matches!(full, Err(CallError::Full { requests: 1, .. })),
        "{full:?}"
    );
    let too_large = requests.call(Request::post("/", vec![0; 901])).wait();
    let expected = CallError::TooLarge {
        flow: "serve".to_owned(),
        bytes_max: 900,
    };
    assert_eq!(too_large.unwrap_err(), expected);
    wait_until(|| held.lock().len() == 1);
    drop(first);
    held.lock().clear();
    wait_until(|| requests.waiting() == 0);
    let again = large();
    wait_until(|| held.lock().len() == 1);
    drop(again);
}

#[test]
fn a_call_without_a_reply_is_late_whether_its_caller_waits_or_polls() {
    let (requests, _running, held) = start_held(time(Duration::from_millis(100)));
    let late = CallError::Late {
        flow: "serve".to_owned(),
        time_max: Duration::from_millis(100),
    };
    let since = Instant::now();
    assert_eq!(requests.call(Request::get("/")).wait().unwrap_err(), late);
    assert!(since.elapsed() >= Duration::from_millis(100));
    // The runtime has no timers: the flow says that it is late.
    let polled = block_on(requests.call(Request::get("/")));
    assert_eq!(polled.unwrap_err(), late);
    // A late reply is ignored.
    assert!(held.lock().iter().all(Call::is_settled));
    assert_eq!(requests.waiting(), 2);
    held.lock().clear();
    wait_until(|| requests.waiting() == 0);
}

#[test]
fn the_flow_does_not_get_a_call_that_was_given_up_or_is_late_while_it_waits() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let is_open = Arc::new(AtomicBool::new(false));
    let (noted, opened) = (Arc::clone(&seen), Arc::clone(&is_open));
    let (requests, _running) = start(workers(1), time(Duration::from_millis(100)), move |call| {
        noted.lock().push(call.path().to_owned());
        wait_until(|| opened.load(Ordering::SeqCst));
        Some(call.reply(Response::text("here")))
    });
    let first = requests.call(Request::get("/first"));
    wait_until(|| !seen.lock().is_empty());
    drop(requests.call(Request::get("/given/up")));
    let late = requests.call(Request::get("/late"));
    assert!(matches!(late.wait(), Err(CallError::Late { .. })));
    assert!(matches!(first.wait(), Err(CallError::Late { .. })));
    is_open.store(true, Ordering::SeqCst);
    wait_until(|| requests.call(Request::get("/next")).wait().is_ok());
    let seen = seen.lock();
    assert_eq!(seen[..2], ["/first", "/next"]);
    assert!(seen[1..].iter().all(|path| path == "/next"), "{seen:?}");
    wait_until(|| requests.waiting() == 0);
}

#[test]
fn a_call_that_the_flow_drops_fails_at_once() {
    let letters = Arc::new(Counted::default());
    let settings = FlowSettings {
        dead_letters: Some(Arc::clone(&letters) as Arc<dyn DeadLetters>),
        ..workers(2)
    };
    let (requests, running) = start(settings, time(LONG), |call| match call.path() {
        "/left/out" => None,
        "/panics" => panic!("a test of a panic for secret {}", call.path()),
        _ => Some(call.reply(Response::text("here"))),
    });
    for path in ["/left/out", "/panics", "/left/out"] {
        let error = requests.call(Request::get(path)).wait().unwrap_err();
        assert!(matches!(error, CallError::Dropped { .. }));
        assert!(!error.to_string().contains("secret"));
        assert_eq!(text(requests.call(Request::get("/"))), "here");
    }
    assert_eq!(letters.0.load(Ordering::Relaxed), 1);
    assert!(running.failure().is_none());
}

#[test]
fn calls_to_a_flow_that_fails_get_the_class_of_its_error() {
    let (requests, running) = start(workers(2), time(LONG), |call| match call.path() {
        "/panics" => panic!("a test of a panic with a secret"),
        _ => {
            // It is in the flow for good.
            std::mem::forget(call.clone());
            None
        }
    });
    let waiting: Vec<_> = (0..5).map(|_| requests.call(Request::get("/"))).collect();
    let panics = requests.call(Request::get("/panics"));
    let failed = CallError::Failed {
        flow: "serve".to_owned(),
        class: "an operator panicked",
    };
    for call in waiting {
        assert_eq!(call.wait().unwrap_err(), failed);
    }
    // Its item goes with the flow, before or after the queue is closed.
    let outcome = panics.wait().unwrap_err();
    assert!(matches!(
        outcome,
        CallError::Failed { .. } | CallError::Dropped { .. }
    ));
    assert_eq!(requests.call(Request::get("/")).wait().unwrap_err(), failed);
    assert!(running.join().is_err());
}

#[test]
fn calls_before_the_beginning_and_behind_the_end_are_refused() {
    let flow = Flow::with_settings("serve", workers(2));
    let requests = Requests::new(&flow, time(LONG));
    flow.sources("requests", requests.sources(2))
        .flat_map(|call: &Call, _: &mut Emit<'_, Reply>| std::mem::forget(call.clone()))
        .sink("respond", Respond);
    let call = || requests.call(Request::get("/"));
    assert!(matches!(call().wait(), Err(CallError::NotBegun { .. })));
    let running = flow.run().unwrap();
    requests.begin(&running).unwrap();
    let waiting = call();
    running.stop();
    let ended = CallError::Ended {
        flow: "serve".to_owned(),
    };
    assert_eq!(waiting.wait().unwrap_err(), ended);
    running.join().unwrap();
    assert_eq!(call().wait().unwrap_err(), ended);

    // A flow that is dropped ends, too, and so does one that never runs.
    let (requests, running, _held) = start_held(time(LONG));
    let waiting = requests.call(Request::get("/"));
    drop(running);
    assert!(matches!(waiting.wait(), Err(CallError::Ended { .. })));
    let requests = Requests::new(&Flow::new("serve"), time(LONG));
    drop(requests.sources(2));
    let refused = requests.call(Request::get("/")).wait();
    assert!(matches!(refused, Err(CallError::Ended { .. })));
}

#[test]
fn requests_that_would_miss_the_objective_are_refused_at_once() {
    let pool = Pool::new(1.try_into().unwrap());
    let settings = FlowSettings {
        pool: Arc::clone(&pool),
        class: Class::Critical,
        ..workers(1)
    };
    let of_requests = RequestSettings {
        objective: Some(Objective::p99(Duration::from_millis(200))),
        ..time(LONG)
    };
    let (requests, running) = start(settings, of_requests, |call| {
        thread::sleep(Duration::from_millis(5));
        Some(call.reply(Response::text("done")))
    });
    // These show the pace: a fortieth of the objective for each, or more on a busy machine.
    let first: Vec<_> = (0..10).map(|_| requests.call(Request::get("/"))).collect();
    for call in first {
        call.wait().unwrap();
    }
    let calls: Vec<_> = (0..200).map(|_| requests.call(Request::get("/"))).collect();
    let mut refused = 0;
    for call in calls {
        match call.wait() {
            Ok(response) => assert_eq!(response.body_text(), Some("done")),
            Err(CallError::Overloaded { flow, retry_after }) => {
                assert_eq!(flow, "serve");
                assert!(retry_after > Duration::ZERO);
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    // At most 36 fit into nine tenths of the objective.
    assert!(refused >= 200 - 40, "{refused}");
    let view = pool.objectives().remove(0);
    assert_eq!((view.refused, view.answered), (refused, 210 - refused));
    assert_eq!(view.waiting, 0);
    running.stop();
    running.join().unwrap();
    assert!(pool.objectives().is_empty(), "the flow has ended");
}
