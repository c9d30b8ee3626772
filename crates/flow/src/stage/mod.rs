//! Stages: an input, a row of operators that are compiled into one loop, and the end that takes the results.
//!
//! One item takes this way: an [`input`] takes it in hand, [`fused`] activates the instance, the [`chain`] of operators
//! processes it, and one of the [`ends`] takes each result.
//!
//! - Items in hand stay in the stage's instance, so a worker that dies leaves them to the next one.
//! - A call of user code that panics becomes a dead letter, or fails the flow if it changes state.
//!
//! A stage does not know the graph around it, nor the workers that activate it. It only shares channels, the bell and
//! the pause with them.

pub mod activation;
pub mod attempt;
pub mod chain;
pub mod channel;
pub mod contract;
pub mod ends;
pub mod fused;
pub mod held_letters;
pub mod input;
pub mod item_loop;
pub mod late_item;
pub mod metrics;
pub mod rejected;
pub mod remote_input;
pub mod ring_input;
pub mod row;
pub mod saved;
pub mod source_input;
pub mod terminal;
pub mod user_code;
