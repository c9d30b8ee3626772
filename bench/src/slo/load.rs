//! The rate of the tasks over time.

use std::f64::consts::PI;

/// A rate that is the absolute value of a sine, as that of figure 5.10: `peak · |sin(π · t / half_wave)|`.
#[derive(Debug, Clone, Copy)]
pub struct Sine {
    /// Tasks in a second.
    pub peak: f64,
    /// The time from one zero to the next, in seconds.
    pub half_wave_s: f64,
}

impl Sine {
    /// Returns the rate at a time, in tasks per second.
    pub fn rate(&self, at_s: f64) -> f64 {
        self.peak * (PI * at_s / self.half_wave_s).sin().abs()
    }

    /// Returns when a task is due, in seconds: the time up to which the integral of the rate is `number` and a half.
    pub fn due_s(&self, number: u64) -> f64 {
        let of_half_wave = 2.0 * self.peak * self.half_wave_s / PI;
        let tasks = number as f64 + 0.5;
        let half_waves = (tasks / of_half_wave).floor();
        let rest = tasks / of_half_wave - half_waves;
        self.half_wave_s * (half_waves + (1.0 - 2.0 * rest).acos() / PI)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_due_as_often_as_the_rate_says() {
        let sine = Sine {
            peak: 1_000.0,
            half_wave_s: 2.5,
        };
        let due: Vec<f64> = (0..10_000).map(|number| sine.due_s(number)).collect();
        assert!(due.windows(2).all(|pair| pair[0] < pair[1]));
        for from in [0.1, 1.2, 2.4, 2.6, 3.7, 4.9] {
            let until = from + 0.1;
            let counted = due.iter().filter(|at| (from..until).contains(*at)).count();
            let expected = sine.rate(from + 0.05) * 0.1;
            assert!(
                (counted as f64 - expected).abs() < 3.0,
                "{from}: {counted}, {expected}"
            );
        }
        assert!(sine.rate(1.25) > 999.0 && sine.rate(2.5) < 1e-6);
    }
}
