//! The reasons for which windows stay open: the sources that hold back event time.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::Timestamp;
use serde::Serialize;

use crate::stage::contract::Stage;
use crate::time::gauge::SourceTime;

/// A source that is this far behind another one is reported.
const BEHIND_MS_MIN: i64 = 1_000;

/// A source that gives nothing for this long is reported.
const SILENT_MIN: Duration = Duration::from_secs(2);

/// A source that windows wait for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// The source's stage.
    pub stage: String,
    /// The reason, and when it ends if that is known: `source idle for 12 s; windows wait for it for another 18 s`.
    /// Where all sources are idle, windows wait until one of them gives items: `sources idle for 42 s; windows wait
    /// for event time`.
    pub reason: String,
}

/// Returns the sources that windows wait for at `now` of the flow's clock. A flow that is not `alone` has sources on
/// other ranks, which may emit watermarks while all of these are idle.
pub fn of(stages: &[Arc<dyn Stage>], now: Duration, is_alone: bool) -> Vec<Wait> {
    let sources = stages.iter().filter(|stage| !stage.has_ended());
    let sources: Vec<_> = sources
        .filter_map(|stage| Some((stage.name(), stage.source_times()?)))
        .collect();
    let all = || sources.iter().flat_map(|(_, (times, _))| times);
    if is_alone && all().all(|time| time.is_idle && !time.goes_by_clock) {
        let wait = |(name, (times, _)): &(&str, (Vec<SourceTime>, Duration))| {
            let reason = all_idle(times, now)?;
            let stage = (*name).to_owned();
            Some(Wait { stage, reason })
        };
        return sources.iter().filter_map(wait).collect();
    }
    // Sources that are idle hold nothing back, and are as far as the others.
    let live = all().filter(|time| !time.is_idle);
    let furthest = live.filter_map(|time| time.watermark).max();
    let wait = |(name, (times, idle_after)): &(&str, (Vec<SourceTime>, Duration))| {
        let mut live = times.iter().filter(|time| !time.is_idle);
        let reason = live.find_map(|time| reason(time, *idle_after, furthest, now))?;
        Some(Wait {
            stage: (*name).to_owned(),
            reason,
        })
    };
    sources.iter().filter_map(wait).collect()
}

/// Returns why windows stay open while all sources are idle; `times` are the sources of one stage.
fn all_idle(times: &[SourceTime], now: Duration) -> Option<String> {
    let since = times.iter().filter_map(|time| time.silent_since).max()?;
    let silence = now.saturating_sub(since).as_secs();
    Some(format!(
        "sources idle for {silence} s; windows wait for event time"
    ))
}

/// Returns why a source that is not idle holds others back.
fn reason(
    time: &SourceTime,
    idle_after: Duration,
    furthest: Option<Timestamp>,
    now: Duration,
) -> Option<String> {
    let silence = time
        .silent_since
        .map(|since| now.saturating_sub(since))
        .filter(|silence| *silence >= SILENT_MIN);
    if let Some(silence) = silence {
        let left = idle_after.saturating_sub(silence).as_secs();
        return Some(format!(
            "source idle for {} s; windows wait for it for another {left} s",
            silence.as_secs()
        ));
    }
    if time.unknown_partitions > 0 {
        return Some(format!(
            "the server of {} of its partitions does not answer",
            time.unknown_partitions
        ));
    }
    if time.unread_partitions > 0 {
        return Some(format!(
            "{} of its partitions have records that it has still to read",
            time.unread_partitions
        ));
    }
    let Some(watermark) = time.watermark else {
        return Some("no item has had an event time yet".to_owned());
    };
    let behind_ms = furthest?.0.saturating_sub(watermark.0);
    (behind_ms >= BEHIND_MS_MIN).then(|| {
        let behind = behind_ms as f64 / 1e3;
        format!("its event time is {behind:.1} s behind another source's")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE_AFTER: Duration = Duration::from_secs(30);
    const LIVE: SourceTime = SourceTime {
        goes_by_clock: false,
        watermark: Some(Timestamp(10_000)),
        is_idle: false,
        silent_since: None,
        unread_partitions: 0,
        unknown_partitions: 0,
    };

    #[track_caller]
    fn check(time: SourceTime, expected: Option<&str>) {
        let furthest = Some(Timestamp(14_200));
        let found = reason(&time, IDLE_AFTER, furthest, Duration::from_secs(20));
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn the_idle_time_of_all_sources_counts_from_their_last_item() {
        let idle = |seconds| SourceTime {
            is_idle: true,
            silent_since: Some(Duration::from_secs(seconds)),
            ..LIVE
        };
        let reason = all_idle(&[idle(3), idle(8)], Duration::from_secs(20));
        let expected = "sources idle for 12 s; windows wait for event time";
        assert_eq!(reason.as_deref(), Some(expected));
        assert_eq!(all_idle(&[], Duration::from_secs(20)), None);
    }

    #[test]
    fn the_reason_for_open_windows_names_the_source_they_wait_for() {
        let silent_since = Some(Duration::from_secs(8));
        let idle = "source idle for 12 s; windows wait for it for another 18 s";
        check(
            SourceTime {
                silent_since,
                ..LIVE
            },
            Some(idle),
        );
        let unread = "2 of its partitions have records that it has still to read";
        check(
            SourceTime {
                unread_partitions: 2,
                watermark: None,
                ..LIVE
            },
            Some(unread),
        );
        let unknown = "the server of 1 of its partitions does not answer";
        check(
            SourceTime {
                unknown_partitions: 1,
                ..LIVE
            },
            Some(unknown),
        );
        let untimed = "no item has had an event time yet";
        check(
            SourceTime {
                watermark: None,
                ..LIVE
            },
            Some(untimed),
        );
        let behind = "its event time is 4.2 s behind another source's";
        check(LIVE, Some(behind));
        let watermark = Some(Timestamp(14_000));
        check(SourceTime { watermark, ..LIVE }, None);
    }
}
