//! The state elements that are partitioned by key.

use std::sync::Arc;

use crate::build::flow::Flow;
use crate::checkpoint::logged_element::LoggedElement;
use crate::state::counters::Counters;
use crate::state::maps::Maps;
use crate::state::sets::Sets;
use crate::state::values::{Layout, Place, VALUES, Value, Values};
use crate::windows::Key;

impl Flow {
    /// Adds a state element that is readable under `name`: a value for each key. In a checkpoint it is whole, or,
    /// where the store of checkpoints has [changelogs](crate::Checkpoints::changelog), only the keys that have changed
    /// since the checkpoint before.
    pub fn values<K: Key, V: Value>(&self, name: &str) -> Values<K, V> {
        let values = Values::new(Layout::of_keys(VALUES), &self.place());
        self.add_values(name, &values);
        values
    }

    /// Adds a state element that is readable under `name`: a map for each key. A checkpoint has it as [`values`](Self::values),
    /// entry by entry.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow};
    ///
    /// let flow = Flow::new("shop");
    /// let carts = flow.maps::<String, String, u32>("carts");
    /// let bought = flow.partial::<u64>("bought");
    /// let orders = [("ann", "tea"), ("ben", "cup"), ("ann", "tea"), ("ann", "cup"), ("ben", "")];
    /// flow.source("orders", Generator::new(move |number| orders[number as usize]).limit(5))
    ///     .map(|(user, item)| (user.to_string(), item.to_string()))
    ///     .key_by(|(user, _)| user.clone())
    ///     .update("fill", &carts, |_user, cart, (_, item), emit: &mut Emit<u32>| {
    ///         if item.is_empty() {
    ///             emit(&cart.values().sum());
    ///             cart.clear();
    ///         } else {
    ///             *cart.or_default(item) += 1;
    ///         }
    ///     })
    ///     .fold_local(&bought, |bought, items| *bought += u64::from(*items));
    /// let running = flow.run()?;
    /// running.join()?;
    /// assert_eq!(carts.get(&"ann".to_owned(), &"tea".to_owned()), Some(2));
    /// assert_eq!(carts.entries(&"ben".to_owned()), []);
    /// assert_eq!(bought.merged(), 1);
    /// // Over HTTP: `/state/shop/carts/["ann","tea"]`.
    /// assert_eq!(running.state("carts").and_then(|carts| carts.get(r#"["ann","tea"]"#)).unwrap(), 2);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn maps<K: Key, F: Key, V: Value>(&self, name: &str) -> Maps<K, F, V> {
        let maps = Maps::new(&self.place());
        self.add_values(name, &maps.values);
        maps
    }

    /// Adds a state element that is readable under `name`: a set for each key. A checkpoint has it as [`values`](Self::values),
    /// element by element.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow};
    ///
    /// let flow = Flow::new("visits");
    /// let pages = flow.sets::<u64, u64>("pages");
    /// let first_visits = flow.partial::<u64>("first_visits");
    /// flow.source("visits", Generator::new(|number| (number % 2, number % 5)).limit(1000))
    ///     .key_by(|(user, _)| *user)
    ///     .update("visit", &pages, |_user, pages, (_, page), emit: &mut Emit<u64>| {
    ///         if pages.insert(page) {
    ///             emit(page);
    ///         }
    ///     })
    ///     .fold_local(&first_visits, |count, _page| *count += 1);
    /// flow.run()?.join()?;
    /// assert_eq!(first_visits.merged(), 10);
    /// assert_eq!(pages.elements(&1), [0, 1, 2, 3, 4]);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn sets<K: Key, T: Key>(&self, name: &str) -> Sets<K, T> {
        let sets = Sets::new(&self.place());
        self.add_values(name, &sets.maps.values);
        sets
    }

    /// Adds a state element that is readable under `name`: a counter for each key. A checkpoint has it as
    /// [`values`](Self::values).
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow};
    ///
    /// let flow = Flow::new("stock");
    /// let stock = flow.counters::<u64>("stock");
    /// let refused = flow.partial::<u64>("refused");
    /// let movements = [(1, 5), (2, 1), (1, -3), (2, -1), (1, -3)];
    /// flow.source("movements", Generator::new(move |number| movements[number as usize]).limit(5))
    ///     .key_by(|(item, _)| *item)
    ///     .update("move", &stock, |item, stock, (_, by), emit: &mut Emit<u64>| {
    ///         match stock.get() + by < 0 {
    ///             true => emit(item),
    ///             false => drop(stock.add(*by)),
    ///         }
    ///     })
    ///     .fold_local(&refused, |count, _item| *count += 1);
    /// flow.run()?.join()?;
    /// assert_eq!((stock.get(&1), stock.get(&2)), (2, 0));
    /// assert_eq!(refused.merged(), 1);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn counters<K: Key>(&self, name: &str) -> Counters<K> {
        let counters = Counters::new(&self.place());
        self.add_values(name, &counters.values);
        counters
    }

    fn place(&self) -> Place {
        let ranks = &self.settings.ranks;
        Place {
            rank: ranks.rank(),
            ranks: ranks.count(),
            partitions: self.settings.workers.get(),
            memory: Arc::clone(&self.settings.state_memory),
        }
    }

    /// Lets readers and checkpoints see an element.
    fn add_values<K: Key, V: Value>(&self, name: &str, values: &Values<K, V>) {
        self.add_state(name, values.clone());
        let logged = LoggedElement::new(name, Arc::new(values.clone()));
        self.plan().graph.logged.push(Arc::new(logged));
    }
}
