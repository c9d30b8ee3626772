//! The application: its state and its recommendations equal those of a direct computation, however it is interrupted.

mod direct;
mod http;
mod kills;
mod movielens;
mod running;
