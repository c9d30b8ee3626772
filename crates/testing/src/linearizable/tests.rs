use fastrand::Rng;

use super::keys::Key;
use super::*;

/// The steps of a search. Most histories of tests need a few thousand.
const STEPS_MAX: u64 = 1_000_000;

const GET: KeyCall = KeyCall::Get;
const DELETE: KeyCall = KeyCall::Delete(KeyCondition::Any);
const NONE: KeyAnswer = KeyAnswer::Found(None);

fn put(value: i64) -> KeyCall {
    KeyCall::Put(value, KeyCondition::Any)
}

fn put_at(value: i64, version: u64) -> KeyCall {
    KeyCall::Put(value, KeyCondition::Version(version))
}

fn put_absent(value: i64) -> KeyCall {
    KeyCall::Put(value, KeyCondition::Absent)
}

fn found(value: i64, version: u64) -> KeyAnswer {
    KeyAnswer::Found(Some((value, version)))
}

fn stored(version: u64) -> KeyAnswer {
    KeyAnswer::Changed {
        version: Some(version),
        sum: None,
    }
}

fn added(sum: i64, version: u64) -> KeyAnswer {
    KeyAnswer::Changed {
        version: Some(version),
        sum: Some(sum),
    }
}

/// An operation that has its answer at `times.1`.
fn answered(times: (u64, u64), call: KeyCall, answer: KeyAnswer) -> KeyOperation {
    Operation {
        client: 0,
        called_at: times.0,
        call,
        answer: Some((times.1, answer)),
    }
}

/// An operation whose answer was lost.
fn open(called_at: u64, call: KeyCall) -> KeyOperation {
    Operation {
        client: 1,
        called_at,
        call,
        answer: None,
    }
}

#[track_caller]
fn assert_good(history: &[KeyOperation]) {
    check::<Key>(history, STEPS_MAX).unwrap();
    assert!(has_order(history));
}

/// Returns the report.
#[track_caller]
fn assert_bad(history: &[KeyOperation]) -> String {
    assert!(!has_order(history));
    match check::<Key>(history, STEPS_MAX) {
        Err(Fault::NotLinearizable(report)) => report,
        checked => panic!("{checked:?}"),
    }
}

/// Returns whether a history is linearizable: tries all orders.
fn has_order(history: &[KeyOperation]) -> bool {
    fn go_on(rest: &[&KeyOperation], state: &<Key as Model>::State) -> bool {
        let is_next = |it: &&KeyOperation| {
            let mut answers = rest.iter().filter_map(|other| other.answered_at());
            answers.all(|answer| it.called_at < answer)
        };
        let without = |place: usize| [&rest[..place], &rest[place + 1..]].concat();
        let mut places = rest.iter().enumerate();
        rest.iter().all(|it| it.answer.is_none())
            || places.any(|(place, it)| {
                is_next(it)
                    && Key::step(state, &it.call, it.answer())
                        .is_some_and(|state| go_on(&without(place), &state))
            })
    }
    let all: Vec<&KeyOperation> = history.iter().collect();
    go_on(&all, &Key::initial())
}

#[test]
fn sequential_operations_are_linearizable() {
    assert_good(&[]);
    assert_good(&[
        answered((0, 1), GET, NONE),
        answered((2, 3), put(5), stored(0)),
        answered((4, 5), KeyCall::Add(2), added(7, 4)),
        answered((6, 7), GET, found(7, 4)),
        answered((8, 9), put_at(8, 0), KeyAnswer::OtherVersion(Some(4))),
        answered((10, 11), put_at(8, 4), stored(6)),
        answered((12, 13), put_absent(1), KeyAnswer::OtherVersion(Some(6))),
        answered((14, 15), DELETE, stored(7)),
        answered((16, 17), put_at(9, 6), KeyAnswer::OtherVersion(None)),
        answered((18, 19), KeyCall::Add(-1), added(-1, 8)),
    ]);
}

#[test]
fn concurrent_operations_may_take_effect_in_any_order() {
    let writes = [
        answered((0, 9), put(1), stored(5)),
        answered((1, 8), put(2), stored(3)),
        answered(
            (2, 7),
            DELETE,
            KeyAnswer::Changed {
                version: None,
                sum: None,
            },
        ),
    ];
    for read in [found(1, 5), found(2, 3), NONE] {
        assert_good(&[&writes[..], &[answered((4, 6), GET, read)]].concat());
    }
    // Versions grow in this order.
    let last = answered((10, 11), GET, found(2, 3));
    assert_bad(&[&writes[..], &[last]].concat());
}

#[test]
fn a_stale_read_is_found() {
    let report = assert_bad(&[
        answered((0, 1), put(1), stored(0)),
        answered((2, 3), put(2), stored(1)),
        answered((4, 5), GET, found(2, 1)),
        answered((6, 7), GET, found(1, 0)),
        answered((8, 9), put(3), stored(2)),
    ]);
    let shown = "3 of 5 operations suffice to show it, of which 0 older ones are left out here:\n  \
        client 0, 0 to 1: Put(1, Any) -> Changed { version: Some(0), sum: None }\n  \
        client 0, 2 to 3: Put(2, Any) -> Changed { version: Some(1), sum: None }\n  \
        client 0, 6 to 7: Get -> Found(Some((1, 0)))\n\
        2 operations with answers fit in some order, to the state State { value: Some(2), version: Some(1), next: 2 }. \
        None of these fits next:\n  client 0, called at 6\n";
    assert_eq!(report, shown);
    // Two reads of which the later one sees the older value, while a write is under way.
    assert_bad(&[
        answered((0, 1), put(1), stored(0)),
        answered((2, 9), put(2), stored(1)),
        answered((3, 4), GET, found(2, 1)),
        answered((5, 6), GET, found(1, 0)),
    ]);
}

#[test]
fn a_lost_acknowledged_write_is_found() {
    assert_bad(&[
        answered((0, 1), put(1), stored(0)),
        answered((2, 3), GET, NONE),
    ]);
    assert_bad(&[
        answered((0, 1), put(1), stored(0)),
        answered((2, 3), KeyCall::Add(1), added(1, 1)),
    ]);
    // The put seems to have come back later.
    assert_bad(&[
        answered((0, 1), put(1), stored(0)),
        answered((2, 3), GET, NONE),
        answered((4, 5), GET, found(1, 0)),
    ]);
}

#[test]
fn an_increment_that_counts_twice_is_found() {
    assert_bad(&[
        answered((0, 1), KeyCall::Add(1), added(1, 0)),
        answered((2, 3), KeyCall::Add(1), added(3, 2)),
    ]);
    assert_bad(&[
        answered((0, 1), put(5), stored(0)),
        open(2, KeyCall::Add(1)),
        answered((4, 5), GET, found(7, 2)),
    ]);
    // Two at the same time that do not see each other.
    assert_bad(&[
        answered((0, 5), KeyCall::Add(1), added(1, 0)),
        answered((1, 4), KeyCall::Add(1), added(1, 1)),
    ]);
}

#[test]
fn a_conditional_put_that_succeeds_on_an_older_version_is_found() {
    assert_bad(&[
        answered((0, 1), put(1), stored(0)),
        answered((2, 3), put(2), stored(1)),
        answered((4, 5), put_at(3, 0), stored(2)),
    ]);
    assert_bad(&[
        answered((0, 1), put(1), stored(0)),
        answered((2, 3), DELETE, stored(1)),
        answered((4, 5), put_at(3, 0), stored(2)),
    ]);
    assert_bad(&[
        answered((0, 1), put(1), stored(0)),
        answered((2, 3), put_absent(2), stored(1)),
    ]);
    // A condition that did not hold, although it had to.
    assert_bad(&[
        answered((0, 1), put(1), stored(0)),
        answered((2, 3), put_at(2, 0), KeyAnswer::OtherVersion(Some(0))),
    ]);
    assert_bad(&[
        answered((0, 1), put(1), stored(0)),
        answered((2, 3), put_at(2, 7), KeyAnswer::OtherVersion(None)),
    ]);
}

#[test]
fn two_conditional_puts_that_both_win_are_found() {
    let first = answered((0, 1), put(1), stored(0));
    for other in [
        answered((3, 8), put_at(3, 0), stored(2)),
        answered((3, 8), KeyCall::Delete(KeyCondition::Version(0)), stored(2)),
    ] {
        let history = [
            first.clone(),
            answered((2, 9), put_at(2, 0), stored(1)),
            other,
        ];
        assert_bad(&history);
    }
    assert_bad(&[
        answered((0, 9), put_absent(1), stored(0)),
        answered((1, 8), put_absent(2), stored(1)),
    ]);
}

#[test]
fn a_deleted_value_that_comes_back_is_found() {
    assert_bad(&[
        answered((0, 1), put(1), stored(0)),
        answered((2, 3), DELETE, stored(1)),
        answered((4, 5), GET, NONE),
        answered((6, 7), GET, found(1, 0)),
    ]);
    assert_bad(&[
        answered((0, 1), put(1), stored(0)),
        answered((2, 3), DELETE, stored(1)),
        answered((4, 5), KeyCall::Add(1), added(2, 2)),
    ]);
}

#[test]
fn an_unanswered_write_takes_effect_late_or_never_but_not_twice() {
    let before = [answered((0, 1), put(1), stored(0)), open(2, put(2))];
    let read = |times, value, version| answered(times, GET, found(value, version));
    let with = |after: &[KeyOperation]| [&before[..], after].concat();
    assert_good(&before);
    assert_good(&with(&[read((3, 4), 1, 0)]));
    assert_good(&with(&[read((3, 4), 2, 1)]));
    assert_good(&with(&[
        read((3, 4), 1, 0),
        read((5, 6), 2, 1),
        read((7, 8), 2, 1),
    ]));
    assert_bad(&with(&[read((3, 4), 2, 1), read((5, 6), 1, 0)]));
    let over = answered((5, 6), put(3), stored(4));
    assert_good(&with(&[
        read((3, 4), 2, 1),
        over.clone(),
        read((7, 8), 3, 4),
    ]));
    // Twice.
    assert_bad(&with(&[read((3, 4), 2, 1), over, read((7, 8), 2, 5)]));
    // Nor does its version change.
    assert_bad(&with(&[read((3, 4), 2, 1), read((5, 6), 2, 2)]));
    // Not before its call.
    assert_bad(&[open(2, put(2)), read((0, 1), 2, 0)]);
    // A version that no answer has named yet.
    assert_good(&with(&[
        answered((3, 4), put_at(3, 0), KeyAnswer::OtherVersion(Some(7))),
        answered((5, 6), put_at(4, 7), stored(8)),
    ]));
    assert_good(&[
        answered((0, 1), put(1), stored(0)),
        open(2, DELETE),
        open(3, KeyCall::Add(5)),
        open(4, GET),
        answered((5, 6), GET, found(5, 3)),
    ]);
}

/// Clients of a key that answers as it should, but loses some answers.
struct Simulated {
    are_unique: bool,
    rng: Rng,
    clock: u64,
    value: Option<(i64, u64)>,
    offset: u64,
    history: Vec<KeyOperation>,
    /// The operation of each client, and its answer once it has taken effect.
    clients: Vec<Option<(usize, Option<KeyAnswer>)>>,
    /// Operations whose clients wait no longer.
    lost: Vec<usize>,
}

impl Simulated {
    /// With `are_unique`, no two puts store the same value, and only deletions do not name their versions, as over HTTP.
    fn run(
        seed: u64,
        clients: usize,
        operations: usize,
        loses: f64,
        are_unique: bool,
    ) -> Vec<KeyOperation> {
        let mut simulated = Simulated {
            are_unique,
            rng: Rng::with_seed(seed),
            clock: 0,
            value: None,
            offset: 0,
            history: Vec::new(),
            clients: vec![None; clients],
            lost: Vec::new(),
        };
        while simulated.history.len() < operations || simulated.clients.iter().any(Option::is_some)
        {
            simulated.go_on(operations, loses);
        }
        simulated.history
    }

    fn go_on(&mut self, operations: usize, loses: f64) {
        self.clock += 1;
        if !self.lost.is_empty() && self.rng.u8(..16) == 0 {
            let late = self.lost.swap_remove(self.rng.usize(..self.lost.len()));
            self.take_effect(self.history[late].call);
        }
        let client = self.rng.usize(..self.clients.len());
        match self.clients[client] {
            None if self.history.len() == operations => {}
            None => {
                self.clients[client] = Some((self.history.len(), None));
                let call = self.call();
                let call = open(self.clock, call);
                self.history.push(Operation { client, ..call });
            }
            Some((operation, answer)) if self.rng.f64() < loses => {
                if answer.is_none() {
                    self.lost.push(operation);
                }
                self.clients[client] = None;
            }
            Some((operation, None)) => {
                let answer = self.take_effect(self.history[operation].call);
                self.clients[client] = Some((operation, Some(answer)));
            }
            Some((operation, Some(answer))) => {
                self.history[operation].answer = Some((self.clock, answer));
                self.clients[client] = None;
            }
        }
    }

    fn call(&mut self) -> KeyCall {
        let value = match self.are_unique {
            true => self.history.len() as i64 * 1000,
            false => self.rng.i64(0..4),
        };
        let version = self.rng.u64(self.offset.saturating_sub(2)..=self.offset);
        match self.rng.u8(..8) {
            0 => put(value),
            1 => put_at(value, version),
            2 => put_absent(value),
            3 => KeyCall::Put(value, KeyCondition::Present),
            4 => KeyCall::Add(self.rng.i64(0..4)),
            5 => KeyCall::Delete(KeyCondition::Version(version)),
            6 => DELETE,
            _ => GET,
        }
    }

    fn take_effect(&mut self, call: KeyCall) -> KeyAnswer {
        let newest = self.value.map(|(_, version)| version);
        let (condition, value, sum) = match call {
            KeyCall::Get => return KeyAnswer::Found(self.value),
            KeyCall::Put(value, condition) => (condition, Some(value), None),
            KeyCall::Delete(condition) => (condition, None, None),
            KeyCall::Add(number) => {
                let sum = self.value.map_or(0, |(value, _)| value) + number;
                (KeyCondition::Any, Some(sum), Some(sum))
            }
        };
        let holds = match condition {
            KeyCondition::Any => true,
            KeyCondition::Absent => newest.is_none(),
            KeyCondition::Present => newest.is_some(),
            KeyCondition::Version(version) => newest == Some(version),
        };
        if !holds {
            return KeyAnswer::OtherVersion(newest);
        }
        let version = self.offset;
        self.offset += self.rng.u64(1..3);
        self.value = value.map(|value| (value, version));
        let is_named = match self.are_unique {
            true => call != DELETE,
            false => self.rng.bool(),
        };
        let version = is_named.then_some(version);
        KeyAnswer::Changed { version, sum }
    }
}

/// Gives one operation the answer of another one, or another answer.
fn spoil(history: &mut [KeyOperation], rng: &mut Rng) {
    let answers = history.iter().filter_map(|it| it.answer().copied());
    let answers: Vec<KeyAnswer> = answers.collect();
    let place = rng.usize(..history.len());
    let other = rng.choice(answers);
    if let (Some((_, answer)), Some(other)) = (&mut history[place].answer, other) {
        match answer {
            KeyAnswer::Found(Some((value, _))) if rng.bool() => *value += 1,
            KeyAnswer::Changed {
                version: Some(version),
                ..
            } if rng.bool() => *version += 1,
            answer => *answer = other,
        }
    }
}

#[test]
fn the_checker_agrees_with_trying_all_orders_of_small_histories() {
    let mut bad = 0;
    for seed in 0..4000 {
        let mut history = Simulated::run(seed, 3, 8, 0.1, seed % 2 == 0);
        check::<Key>(&history, STEPS_MAX).unwrap();
        spoil(&mut history, &mut Rng::with_seed(seed));
        let is_good = has_order(&history);
        let checked = check::<Key>(&history, STEPS_MAX);
        assert_eq!(
            checked.is_ok(),
            is_good,
            "seed {seed}: {history:#?} {checked:?}"
        );
        bad += usize::from(!is_good);
    }
    assert!((500..3500).contains(&bad), "{bad} of 4000");
}

#[test]
fn the_checker_decides_thousands_of_operations_on_one_key() {
    for seed in 0..3 {
        let mut history = Simulated::run(seed, 8, 3000, 0.001, true);
        let lost = history.iter().filter(|it| it.answer.is_none()).count();
        assert!(lost > 2, "{lost}");
        check::<Key>(&history, STEPS_MAX).unwrap();
        let mut reads = history.iter_mut().skip(2000);
        let read = reads.find_map(|it| match &mut it.answer {
            Some((_, KeyAnswer::Found(Some((_, version))))) => Some(version),
            _ => None,
        });
        // A value that was overwritten long ago.
        *read.unwrap() = 0;
        match check::<Key>(&history, STEPS_MAX) {
            Err(Fault::NotLinearizable(report)) => {
                assert!(report.lines().count() <= 50, "{report}");
            }
            checked => panic!("seed {seed}: {checked:?}"),
        }
    }
}

/// Sums of numbers that no order gives, but there are many orders.
#[test]
fn the_search_ends_undecided_after_a_bounded_number_of_steps() {
    let adds = (0..20).map(|place| KeyOperation {
        client: place,
        called_at: place as u64,
        call: KeyCall::Add(1 << place),
        answer: None,
    });
    let mut history: Vec<KeyOperation> = adds.collect();
    history.push(answered((50, 51), GET, found(-1, 100)));
    match check::<Key>(&history, 10_000) {
        Err(Fault::Undecided { steps: 10_000 }) => {}
        checked => panic!("{checked:?}"),
    }
    let many = (0..200).map(|at| open(at, put(1)));
    let many: Vec<KeyOperation> = many.collect();
    let refused = check::<Key>(&many, 10_000).unwrap_err().to_string();
    assert!(
        refused.starts_with("undecided: 200 writes have no answer"),
        "{refused}"
    );
}

#[test]
fn keys_are_checked_independently_and_a_fault_names_its_key() {
    let good = answered((0, 1), put(1), stored(0));
    let bad = answered((2, 3), GET, found(2, 0));
    let history = [("a", good.clone()), ("b", good), ("b", bad)];
    let history = history.map(|(key, operation)| (key.to_owned(), operation));
    check_keys(history[..2].to_vec(), STEPS_MAX).unwrap();
    let fault = check_keys(history, STEPS_MAX).unwrap_err();
    assert!(
        fault.starts_with("key \"b\", 2 operations: the history is not linearizable\n"),
        "{fault}"
    );
}

#[test]
fn a_clock_never_shows_a_time_twice() {
    let clock = Clock::default();
    let times = std::thread::scope(|scope| {
        let threads =
            [(); 4].map(|()| scope.spawn(|| (0..1000).map(|_| clock.now()).collect::<Vec<u64>>()));
        threads.map(|thread| thread.join().unwrap())
    });
    assert!(times.iter().all(|times| times.is_sorted()));
    let mut all = times.concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 4000);
}
