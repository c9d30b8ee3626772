//! The tasks: calls of a serving flow from a thread of the process.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use bytes::Bytes;
use millstream::{Request, Response};
use millstream_flow::serving::{CallError, Pending, Requests};

use super::load::Sine;
use crate::fixed_share::FixedShare;
use crate::proc::raise_own_priority;

/// The generator's share of a processor: this part of each period.
const PERIOD: Duration = Duration::from_millis(1);
const PART: Duration = Duration::from_micros(150);

/// The numbers that a task brings along. With fewer, the generator would need more than its share at the highest load.
const NUMBERS: usize = 8_000;

/// Answers are waited for at most this long after the last task.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(30);

/// When tasks are sent.
#[derive(Debug, Clone, Copy)]
pub enum Pace {
    /// At their time, whatever the flow does.
    Sine(Sine),
    /// This many are unanswered at any time.
    Unanswered(usize),
}

/// The outcome of a task.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// When it was due, in seconds since the beginning.
    pub due_s: f64,
    /// How late the generator was, in seconds.
    pub late_s: f64,
    /// From the time when it was due to its answer, in seconds; `None` if it was refused.
    pub took_s: Option<f64>,
}

/// A task that waits for its answer.
struct Waiting {
    due_s: f64,
    late_s: f64,
    pending: Pending,
    answer: Arc<Answer>,
}

/// Notes when the flow settles a call.
struct Answer {
    began_at: Instant,
    /// Since `began_at`; 0 before the answer.
    at_ns: AtomicU64,
}

impl Wake for Answer {
    fn wake(self: Arc<Self>) {
        let at_ns = self.began_at.elapsed().as_nanos() as u64;
        self.at_ns.store(at_ns, Ordering::Release);
    }
}

/// Returns the body of a task: numbers as JSON.
pub fn body() -> Bytes {
    let numbers: Vec<String> = (0..NUMBERS)
        .map(|number| (number as f64 / 7.0).to_string())
        .collect();
    format!("[{}]", numbers.join(",")).into()
}

/// The work of a task: its numbers are read, and a response is made of their sum.
pub fn respond(request: &Request) -> Response {
    match request.json::<Vec<f64>>() {
        Ok(numbers) => Response::json(&numbers.iter().sum::<f64>()),
        Err(error) => Response::error(400, &error.to_string()),
    }
}

/// Sends tasks for this time, and waits for their answers. Returns the outcome of each.
pub fn send(requests: &Requests, pace: Pace, lasts: Duration) -> Result<Vec<Sent>> {
    let mut generator = Generator {
        requests,
        body: body(),
        began_at: Instant::now(),
        waiting: VecDeque::new(),
        sent: Vec::new(),
        number: 0,
    };
    // It stands for other machines, which do not wait for a processor of this one.
    raise_own_priority();
    let mut share = FixedShare::new(PERIOD, PART)?;
    while generator.began_at.elapsed() < lasts {
        share.wait();
        while !share.is_over() {
            generator.collect()?;
            generator.send_one_if_due(pace)?;
        }
    }
    while !generator.waiting.is_empty() {
        let late = generator.began_at.elapsed() > lasts + LAST_ANSWERS_MAX;
        ensure!(!late, "tasks have no answer {LAST_ANSWERS_MAX:?} later");
        share.wait();
        while !share.is_over() {
            generator.collect()?;
        }
    }
    Ok(generator.sent)
}

struct Generator<'a> {
    requests: &'a Requests,
    body: Bytes,
    began_at: Instant,
    /// In the order in which they were sent.
    waiting: VecDeque<Waiting>,
    sent: Vec<Sent>,
    /// The tasks so far.
    number: u64,
}

impl Generator<'_> {
    fn send_one_if_due(&mut self, pace: Pace) -> Result<()> {
        let now_s = self.began_at.elapsed().as_secs_f64();
        let due_s = match pace {
            Pace::Sine(sine) => sine.due_s(self.number),
            Pace::Unanswered(count) if self.waiting.len() < count => now_s,
            Pace::Unanswered(_) => return Ok(()),
        };
        if due_s > now_s {
            return Ok(());
        }
        self.number += 1;
        let answer = Arc::new(Answer {
            began_at: self.began_at,
            at_ns: AtomicU64::new(0),
        });
        let request = Request::post("/", self.body.clone());
        let mut task = Waiting {
            due_s,
            late_s: now_s - due_s,
            pending: self.requests.call(request),
            answer,
        };
        match task.poll() {
            Poll::Pending => self.waiting.push_back(task),
            Poll::Ready(is_answered) => {
                let took_s = self.began_at.elapsed().as_secs_f64() - due_s;
                self.sent.push(task.sent(is_answered?.then_some(took_s)));
            }
        }
        Ok(())
    }

    /// Takes in the answers of the oldest tasks.
    fn collect(&mut self) -> Result<()> {
        while let Some(task) = self.waiting.front_mut() {
            let at_ns = task.answer.at_ns.load(Ordering::Acquire);
            if at_ns == 0 {
                return Ok(());
            }
            let Poll::Ready(is_answered) = task.poll() else {
                return Err(anyhow!("a call has no outcome after it was settled"));
            };
            let took_s = at_ns as f64 / 1e9 - task.due_s;
            let sent = task.sent(is_answered?.then_some(took_s));
            self.sent.push(sent);
            self.waiting.pop_front();
        }
        Ok(())
    }
}

impl Waiting {
    /// Returns whether the task was answered or refused, once either is known.
    fn poll(&mut self) -> Poll<Result<bool>> {
        let waker = Waker::from(Arc::clone(&self.answer));
        let polled = Pin::new(&mut self.pending).poll(&mut Context::from_waker(&waker));
        polled.map(|outcome| match outcome {
            Ok(response) => {
                ensure!(response.status_code() == 200, "{:?}", response.body_text());
                Ok(true)
            }
            Err(CallError::Overloaded { .. } | CallError::Full { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        })
    }

    fn sent(&self, took_s: Option<f64>) -> Sent {
        Sent {
            due_s: self.due_s,
            late_s: self.late_s,
            took_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_the_sum_of_its_numbers() {
        let response = respond(&Request::post("/", body()));
        let sum: f64 = response.body_text().unwrap().parse().unwrap();
        let expected = (NUMBERS * (NUMBERS - 1)) as f64 / 14.0;
        assert!((sum - expected).abs() < 1.0, "{sum}, {expected}");
        assert_eq!(respond(&Request::post("/", "x")).status_code(), 400);
    }
}
