//! Operators that read where the keys of items are owned, and change nothing there.

use std::fmt::{self, Debug};

use crate::build::entry::Entry;
use crate::build::keyed::Keyed;
use crate::build::operators::Operators;
use crate::error::{BoxError, FlowError};
use crate::parts::Parts;
use crate::ranks::message::Message;
use crate::stage::chain::{Chain, Emit};
use crate::stage::ends::keyed_item::KeyedItem;
use crate::stage::ring_input::RingInput;
use crate::state::read_only::ReadOnly;
use crate::state::values::{Value, Values};
use crate::windows::Key;

impl<I, C, T, K, F> Keyed<I, C, F>
where
    I: Entry,
    C: Chain<I::Item, Out = T>,
    T: Message + Clone + Debug,
    K: Key + Debug,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    /// Turns each item into another, with its key, on the rank that owns the key. There `function` finds the values of this key
    /// in all state elements, also in those of other flows that run on the same ranks. Items of one key come in their order. A
    /// stage of its own, named `name`.
    ///
    /// ```
    /// use millstream_flow::Flow;
    /// use millstream_flow::serving::{Call, Request, Requests, Respond, Response};
    /// use millstream_flow::sources::Generator;
    ///
    /// let analytics = Flow::new("words");
    /// let counts = analytics.values::<String, u64>("counts");
    /// let words = ["to", "be", "or", "not", "to", "be"].map(str::to_owned);
    /// analytics
    ///     .source("words", Generator::new(move |number| words[number as usize].clone()).limit(6))
    ///     .key_by(|word| word.clone())
    ///     .count("count", &counts);
    /// analytics.run()?.join()?;
    ///
    /// let serving = Flow::new("count");
    /// let requests = Requests::new(&serving, Default::default());
    /// serving
    ///     .sources("requests", requests.sources(2))
    ///     .key_by(|call: &Call| call.segment(0).unwrap_or_default())
    ///     .map("answer", move |word, call| call.reply(Response::json(&counts.get(word))))
    ///     .sink("respond", Respond);
    /// let running = serving.run()?;
    /// requests.begin(&running)?;
    /// assert_eq!(requests.call(Request::get("/be")).wait().unwrap().body_text(), Some("2"));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn map<O, G>(
        self,
        name: &str,
        function: G,
    ) -> Operators<
        RingInput<KeyedItem<K, T>>,
        impl Chain<KeyedItem<K, T>, Out = O> + use<I, C, T, K, F, O, G>,
    >
    where
        O: 'static,
        G: Fn(&K, &T) -> O + Send + Sync + 'static,
    {
        let partitions = self.operators.flow.settings.workers.get();
        let owned = self.exchange(name, partitions, T::clone);
        owned.map(move |item: &KeyedItem<K, T>| function(&item.key, &item.content))
    }

    /// As [`map`](Self::map), with the value of the key in an element of another flow, such as of the one that a serving flow
    /// serves. If the value [is not in memory](Values::get), the operator reads it meanwhile, and its worker goes on with other work.
    /// An item whose value cannot be read becomes a dead letter.
    ///
    /// ```
    /// use millstream_flow::Flow;
    /// use millstream_flow::serving::{Call, Request, Requests, Respond, Response};
    /// use millstream_flow::sources::Generator;
    ///
    /// let analytics = Flow::new("sums");
    /// let sums = analytics.values::<String, u64>("sums");
    /// analytics
    ///     .source("numbers", Generator::new(|number| number).limit(10))
    ///     .key_by(|number| format!("{}", number % 3))
    ///     .fold("add", &sums, |sum, number| *sum += number);
    /// let analytics = analytics.run()?;
    /// analytics.join()?;
    ///
    /// let serving = Flow::new("sum");
    /// let requests = Requests::new(&serving, Default::default());
    /// serving
    ///     .sources("requests", requests.sources(2))
    ///     .key_by(|call: &Call| call.segment(0).unwrap_or_default())
    ///     .read("find", &sums, |_key, sum, call| call.reply(Response::json(&sum)))
    ///     .sink("respond", Respond);
    /// let running = serving.run()?;
    /// requests.begin(&running)?;
    /// assert_eq!(requests.call(Request::get("/1")).wait().unwrap().body_text(), Some("12"));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    #[expect(clippy::type_complexity, reason = "an opaque type cannot have a name")]
    pub fn read<V, O, G>(
        self,
        name: &str,
        values: &Values<K, V>,
        function: G,
    ) -> Operators<
        RingInput<WithValue<K, T, V>>,
        impl Chain<WithValue<K, T, V>, Out = O> + use<I, C, T, K, F, V, O, G>,
    >
    where
        V: Value,
        O: 'static,
        G: Fn(&K, Option<&V>, &T) -> O + Send + Sync + 'static,
    {
        let flow = &self.operators.flow;
        if !values.is_on(&flow.settings.ranks) {
            let fault = FlowError::Elements {
                flow: flow.name(),
                operator: name.to_owned(),
                why: "its values are on other ranks; run both flows on the same ranks",
            };
            flow.plan().faults.push(fault);
        }
        values.watch(&flow.plan().graph.doorbell);
        let owned = self.exchange(name, values.tables().len(), T::clone);
        let read = move |key: &K,
                         value: Result<Option<&V>, BoxError>,
                         item: &T,
                         emit: &mut Emit<'_, WithValue<K, T, V>>| {
            emit(&WithValue {
                key: key.clone(),
                item: item.clone(),
                value: value
                    .map(Option::<&V>::cloned)
                    .map_err(|error| error.to_string()),
            });
        };
        let with_values = owned.update(name, &ReadOnly(values.clone()), read);
        // In a stage of its own, which holds no lock of the values, and whose panics reject items.
        with_values.each(move |it: &WithValue<K, T, V>, emit: &mut Emit<'_, O>| {
            let value = it.value.as_ref();
            let value = value.map_err(|error| format!("its value cannot be read: {error}"))?;
            emit(&function(&it.key, value.as_ref(), &it.item));
            Ok(())
        })
    }
}

/// An item with the value of its key; the reason, if that cannot be read.
#[derive(Clone)]
pub struct WithValue<K, T, V> {
    key: K,
    item: T,
    value: Result<Option<V>, String>,
}

/// Without the value.
impl<K: Debug, T: Debug, V> Debug for WithValue<K, T, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {:?}", self.key, self.item)
    }
}

impl<K: Debug + 'static, T: Debug + 'static, V: 'static> Parts for WithValue<K, T, V> {
    type Part<'a> = WithValue<K, T, V>;

    fn for_each_part(&self, mut visit: impl FnMut(&WithValue<K, T, V>)) {
        visit(self);
    }
}
