//! What is measured, between two ends of anything.

use std::time::Instant;

use bytes::Bytes;

/// One end of a way in both directions. Both wait.
pub trait Link {
    fn send(&mut self, message: Bytes);
    /// Receives a message; answers its length.
    fn receive(&mut self) -> usize;
}

/// Sizes in bytes; how often back and forth; how many in one direction.
const SIZES: [(usize, u32, u32); 2] = [(8, 20_000, 2_000_000), (64 << 10, 5_000, 50_000)];

/// Does the one half of all cases; the first of both prints the figures.
pub fn run(mut link: impl Link, is_first: bool) {
    for (size, back_and_forth, one_way) in SIZES {
        let message = Bytes::from(vec![7; size]);
        for count in [back_and_forth / 10, back_and_forth] {
            let began_at = Instant::now();
            for _ in 0..count {
                if is_first {
                    link.send(message.clone());
                    assert_eq!(link.receive(), size);
                } else {
                    assert_eq!(link.receive(), size);
                    link.send(message.clone());
                }
            }
            let half_way = began_at.elapsed() / (2 * count);
            if is_first && count == back_and_forth {
                println!(
                    "half a round trip of {size} bytes, in µs\t{}",
                    half_way.as_nanos() as f64 / 1e3
                );
            }
        }
        let began_at = Instant::now();
        if is_first {
            (0..one_way).for_each(|_| link.send(message.clone()));
            link.receive();
            let seconds = began_at.elapsed().as_secs_f64();
            println!(
                "messages of {size} bytes, in MB/s\t{}",
                f64::from(one_way) * size as f64 / seconds / 1e6
            );
        } else {
            (0..one_way).for_each(|_| assert_eq!(link.receive(), size));
            link.send(Bytes::from_static(b"all"));
        }
    }
}
