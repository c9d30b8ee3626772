//! The cost of waiting for records that do not come.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::broker::{Broker, Brokers, Consuming};
use super::order::Delivery;
use super::work::RecordWork;
use crate::measure::Bench;
use crate::proc::{cpu_by_thread, thread_name, took};
use crate::report::{Better, Case};

pub const IDLE: &str = "idle";

/// The smallest time that the kernel's own counter knows.
const CPU_MS_MAX: f64 = 10.0;

/// The figure that stands for no processor time at all, since zero has no ratio to its bound.
const CPU_MS_MIN: f64 = 0.001;

/// The work that connecting causes is done by then.
const SETTLES: Duration = Duration::from_millis(300);

/// The broker's threads that push.
const PUSH_THREAD: &str = "millstream-push";

/// The processor time of all threads of some processes, in nanoseconds.
struct Look {
    broker: HashMap<u32, u64>,
    consumers: Vec<HashMap<u32, u64>>,
}

pub fn idle(bench: &Bench) -> Result<Vec<Case>> {
    let lasts_s = bench.size(60, 1);
    let mut brokers = Brokers::start(bench, false)?;
    for broker in [&mut brokers.near, &mut brokers.remote] {
        broker.create(1, false)?;
    }
    let all = [
        Delivery::Thread,
        Delivery::Task,
        Delivery::Tcp,
        Delivery::Pull,
    ];
    // Nothing is ever appended.
    let begin = |delivery| {
        let order = Broker::order(1, 1, 1, &RecordWork::Count);
        brokers.of(Some(delivery)).consume(delivery, order)
    };
    let consuming = all.into_iter().map(begin);
    let consuming = consuming.collect::<Result<Vec<Consuming>>>()?;
    thread::sleep(SETTLES);
    let before = Look::at(&brokers.near, &consuming)?;
    thread::sleep(Duration::from_secs(lasts_s));
    let after = Look::at(&brokers.near, &consuming)?;

    let ms = |ns: u64| ns as f64 / 1e6;
    let of_consumer = |index: usize| {
        let took: u64 = took(&before.consumers[index], &after.consumers[index]).sum();
        ms(took)
    };
    let is_push = |thread: &u32| {
        thread_name(brokers.near.process_id(), *thread).is_ok_and(|name| name == PUSH_THREAD)
    };
    let (push, rest): (HashMap<u32, u64>, HashMap<u32, u64>) =
        after.broker.iter().partition(|(thread, _)| is_push(thread));
    ensure!(!push.is_empty(), "the broker has no thread that pushes");
    let push_ms = ms(took(&before.broker, &push).sum());
    let rest_ms = ms(took(&before.broker, &rest).sum());
    let case = Case::new(
        format!("{IDLE}/push-across-processes"),
        "CPU-ms",
        Better::Lower,
        vec![(of_consumer(0) + push_ms).max(CPU_MS_MIN)],
    );
    Ok(vec![
        case.bound(CPU_MS_MAX)
            .detail("lasted_s", lasts_s as f64)
            .detail("consumer_ms", of_consumer(0))
            .detail("push_thread_ms", push_ms)
            .detail("consumer_that_is_a_task_ms", of_consumer(1))
            .detail("consumer_over_TCP_ms", of_consumer(2))
            .detail("consumer_that_pulls_ms", of_consumer(3))
            .detail("rest_of_the_broker_ms", rest_ms),
    ])
}

impl Look {
    fn at(broker: &Broker, consuming: &[Consuming]) -> Result<Look> {
        let consumers = consuming.iter().filter_map(|consuming| match consuming {
            Consuming::Here(process) => Some(process.id()),
            Consuming::InBroker => None,
        });
        Ok(Look {
            broker: cpu_by_thread(broker.process_id())?,
            consumers: consumers.map(cpu_by_thread).collect::<Result<_>>()?,
        })
    }
}
