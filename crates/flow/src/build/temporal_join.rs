//! The join of a stream with the versions of a table.

use std::fmt::Debug;

use millstream_base::Timestamp;

use crate::build::connected::{Connected, Side};
use crate::build::interval_join::Joined;
use crate::joins::late::{InTime, OrLate};
use crate::joins::versions::{Version, Versions};
use crate::ranks::message::Message;
use crate::stage::chain::Emit;
use crate::stage::ends::steps::Steps;
use crate::windows::Key;

impl<K, L, V> Connected<K, L, V>
where
    K: Key,
    L: Message + Clone + Debug,
    V: Version,
{
    /// Joins each item of the first stream with the row that was valid at the item's time: of the second stream's items with the
    /// same key the latest one whose time is not later. In Flink it is a temporal join with a versioned table. The second stream
    /// has an [`Upsert`](crate::Upsert) for each change of a row, and [`upserts`](crate::Operators::upserts) makes them of a
    /// change stream; of a deletion `second_time` must return when it happened. Items without a valid row are left out.
    /// `function` makes an item of each pair. A stage of its own, named `name`.
    ///
    /// Both streams need [watermarks](crate::Operators::watermarks). An item of the first stream waits until the watermark, the
    /// lower one of both streams, has passed its time; so its result does not depend on the order in which the streams arrive. The
    /// results of a key come in the order of their times. An item that comes behind the watermark is late: it goes to the dead
    /// letters, and is counted, as those of an [interval join](Self::interval_join). A version that comes behind the watermark is
    /// valid for all items to come; it is late if a newer version has taken its place. A deletion that the watermark has reached
    /// takes no place, since it is forgotten. Of two versions of a key at the same time the one that comes last is valid.
    ///
    /// The state elements `<name>.first` and `<name>.second` have the items that wait, and the versions that items may need: of
    /// each key the one that is valid at the watermark, and all later ones. A row that is deleted leaves nothing behind.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use millstream_base::Timestamp;
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Flow, Upsert, Watermarks};
    ///
    /// // The rate of a currency changes at 0, 100 and 200 ms; an order every 25 ms.
    /// let flow = Flow::new("orders");
    /// let sum = flow.partial::<u64>("sum");
    /// let in_order = Watermarks::bounded(Duration::ZERO);
    /// let rate = |number| Upsert::Put(("EUR".to_owned(), number as i64 * 100, number + 1));
    /// let rates = flow
    ///     .source("rates", Generator::new(rate).limit(3))
    ///     .watermarks(|rate| Timestamp(rate.row().1), in_order)
    ///     .key_by(|rate| rate.row().0.clone());
    /// flow.source("orders", Generator::new(|number| ("EUR".to_owned(), number as i64 * 25)).limit(12))
    ///     .watermarks(|(_, time)| Timestamp(*time), in_order)
    ///     .key_by(|(currency, _)| currency.clone())
    ///     .connect(rates)
    ///     .temporal_join(
    ///         "converted",
    ///         |(_, time)| Timestamp(*time),
    ///         |rate| Timestamp(rate.row().1),
    ///         |_order, (_, _, rate)| *rate,
    ///     )
    ///     .fold_local(&sum, |sum, rate| *sum += rate);
    /// flow.run()?.join()?;
    /// assert_eq!(sum.merged(), 4 * (1 + 2 + 3));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn temporal_join<E, G, O, F>(
        self,
        name: &str,
        first_time: E,
        second_time: G,
        function: F,
    ) -> Joined<Side<L, V>, O>
    where
        E: Fn(&L) -> Timestamp + Send + Sync + 'static,
        G: Fn(&V) -> Timestamp + Send + Sync + 'static,
        O: Clone + Send + 'static,
        F: Fn(&L, &V::Row) -> O + Send + Sync + 'static,
    {
        let function = move |item: &L, row: Option<&V::Row>| Some(function(item, row?));
        self.join_versions(name, "temporal_join", first_time, second_time, function)
    }

    /// As [`temporal_join`](Self::temporal_join), and `function` gets items without a valid row as well.
    pub fn left_outer_temporal_join<E, G, O, F>(
        self,
        name: &str,
        first_time: E,
        second_time: G,
        function: F,
    ) -> Joined<Side<L, V>, O>
    where
        E: Fn(&L) -> Timestamp + Send + Sync + 'static,
        G: Fn(&V) -> Timestamp + Send + Sync + 'static,
        O: Clone + Send + 'static,
        F: Fn(&L, Option<&V::Row>) -> O + Send + Sync + 'static,
    {
        let function = move |item: &L, row: Option<&V::Row>| Some(function(item, row));
        self.join_versions(
            name,
            "left_outer_temporal_join",
            first_time,
            second_time,
            function,
        )
    }

    fn join_versions<E, G, O, F>(
        self,
        name: &str,
        kind: &str,
        first_time: E,
        second_time: G,
        function: F,
    ) -> Joined<Side<L, V>, O>
    where
        E: Fn(&L) -> Timestamp + Send + Sync + 'static,
        G: Fn(&V) -> Timestamp + Send + Sync + 'static,
        O: Clone + Send + 'static,
        F: Fn(&L, Option<&V::Row>) -> Option<O> + Send + Sync + 'static,
    {
        let flow = self.flow().without_lifetime();
        flow.agree(format!("{name}: {kind}"));
        let state = (
            flow.of_operator()
                .ordered_maps::<K, _, L>(&format!("{name}.first")),
            flow.of_operator()
                .ordered_maps::<K, _, V>(&format!("{name}.second")),
        );
        let timers = flow.timers::<K, u8>(&format!("{name}.timers"));
        let late = flow.late_items(name, kind);
        let label = late.label();
        let partitions = flow.partitions_of(name, &state);
        flow.reserve_timers(name, &timers, partitions);
        let results = self.exchange(name, partitions).process_in_steps(
            name,
            &state,
            &timers,
            move |_: &K,
                  (waiting, versions),
                  timers,
                  item: &Side<L, V>,
                  _: &mut Steps<()>,
                  emit: &mut Emit<'_, OrLate<Side<L, V>, O>>| {
                let watermark = timers.watermark();
                let mut state = Versions {
                    waiting,
                    versions,
                    timers,
                };
                let (time, is_late) = match item {
                    Side::First(item) => {
                        let time = first_time(item);
                        let is_late = time < watermark;
                        if !is_late {
                            state.wait(time, item);
                        }
                        (time, is_late)
                    }
                    Side::Second(version) => {
                        let time = second_time(version);
                        (time, !state.add(time, version))
                    }
                };
                if is_late {
                    late.add(
                        || item.clone(),
                        time,
                        watermark,
                        |item, late| emit(&OrLate::Late(item, late)),
                    );
                }
            },
            move |_, (waiting, versions), timers, fired, emit| {
                let mut state = Versions {
                    waiting,
                    versions,
                    timers,
                };
                state.fire(fired.tag, |item, row| {
                    if let Some(result) = function(item, row) {
                        emit(&OrLate::Result(result));
                    }
                });
            },
            true,
        );
        results.add("in_time", |before, _| InTime { before, label })
    }
}
