//! Best-effort work without end: a flow that computes 20 digits of π for each item, as the analytics of "In-Memory Web Objects"
//! do (section 5.2).

use std::hint::black_box;
use std::iter;

use anyhow::Result;
use millstream_flow::sources::Generator;
use millstream_flow::{Flow, FlowSettings, Running};

/// The name of the flow, and so that of its threads.
pub const ANALYTICS: &str = "analytics";

/// The digits of an item, with the one before the point.
const DIGITS: usize = 20;

/// Starts the flow, with an instance for each of its workers.
pub fn start(settings: FlowSettings) -> Result<Running> {
    let workers = settings.workers.get();
    let flow = Flow::with_settings(ANALYTICS, settings);
    let sums = flow.partial::<u64>("sums");
    let sources = iter::repeat_with(|| Generator::new(|number| number)).take(workers);
    flow.sources("numbers", sources)
        .fold_local(&sums, |sum, _| {
            let digits = digits(black_box(DIGITS));
            *sum += digits.iter().map(|digit| u64::from(*digit)).sum::<u64>();
        });
    Ok(flow.run()?)
}

/// Returns the first digits of π, by the spigot of Rabinowitz and Wagon.
fn digits(count: usize) -> Vec<u8> {
    // The last digits of a run of it may be wrong.
    const SPARE: usize = 10;
    let places = (count + SPARE) * 10 / 3 + 1;
    let mut rest = vec![2_u64; places];
    let mut digits: Vec<u8> = Vec::with_capacity(count + SPARE);
    // A nine may become a zero by a carry.
    let (mut held, mut nines) = (None, 0);
    while digits.len() < count {
        let mut carry = 0;
        for place in (0..places).rev() {
            let value = rest[place] * 10 + carry * (place as u64 + 1);
            let divisor = if place == 0 { 10 } else { 2 * place as u64 + 1 };
            rest[place] = value % divisor;
            carry = value / divisor;
        }
        match carry {
            9 => nines += 1,
            10 => {
                digits.extend(held.map(|digit: u8| digit + 1));
                digits.extend(iter::repeat_n(0, nines));
                (held, nines) = (Some(0), 0);
            }
            digit => {
                digits.extend(held);
                digits.extend(iter::repeat_n(9, nines));
                (held, nines) = (Some(digit as u8), 0);
            }
        }
    }
    digits.truncate(count);
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_are_those_of_pi() {
        let text: String = digits(40).iter().map(u8::to_string).collect();
        assert_eq!(text, "3141592653589793238462643383279502884197");
        assert_eq!(digits(1), [3]);
    }
}
