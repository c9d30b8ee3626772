//! The state elements that are partitioned by key.

use std::sync::Arc;
use std::time::Duration;

use crate::build::flow::Flow;
use crate::checkpoint::logged_element::LoggedElement;
use crate::error::{BoxError, FlowError};
use crate::state::counters::Counters;
use crate::state::lists::Lists;
use crate::state::lookups::{KeyLookup, LookupElement, Lookups};
use crate::state::maps::Maps;
use crate::state::matrices::Matrices;
use crate::state::ordered_maps::OrderedMaps;
use crate::state::partial_map::PartialMap;
use crate::state::partial_matrix::PartialMatrix;
use crate::state::sets::Sets;
use crate::state::tops::{Score, Tops};
use crate::state::value_table::LifetimeSpec;
use crate::state::values::{Layout, Place, VALUES, Value, Values};
use crate::state::vectors::Vectors;
use crate::windows::Key;

impl Flow {
    /// Adds a state element that is readable under `name`: a value for each key. In a checkpoint it is whole, or,
    /// where the store of checkpoints has [changelogs](crate::Checkpoints::changelog), only the keys that have changed
    /// since the checkpoint before.
    pub fn values<K: Key, V: Value>(&self, name: &str) -> Values<K, V> {
        let values = Values::new(Layout::of_keys(VALUES), &self.place(name));
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
    ///     .update("fill", &carts, |_user, mut cart, (_, item), emit: &mut Emit<u32>| {
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
        let maps = Maps::new(&self.place(name));
        self.add_values(name, &maps.values);
        maps
    }

    /// Adds a state element that is readable under `name`: an ordered map for each key. A checkpoint has it as
    /// [`values`](Self::values), entry by entry.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow};
    ///
    /// let flow = Flow::new("sensors");
    /// // By sensor and time, for ten minutes.
    /// let readings = flow.ordered_maps::<u64, u64, f64>("readings");
    /// let means = flow.partial::<u64>("means");
    /// flow.source("readings", Generator::new(|minute| (minute % 2, minute, 20.0)).limit(100))
    ///     .key_by(|(sensor, _, _)| *sensor)
    ///     .update("keep", &readings, |_sensor, mut readings, (_, minute, reading), emit: &mut Emit<f64>| {
    ///         readings.insert(minute, *reading);
    ///         while readings.first().is_some_and(|(first, _)| first + 10 <= *minute) {
    ///             readings.pop_first();
    ///         }
    ///         let last_three: Vec<f64> = readings.range(minute.saturating_sub(5)..).map(|it| *it.1).collect();
    ///         emit(&(last_three.iter().sum::<f64>() / last_three.len() as f64));
    ///     })
    ///     .fold_local(&means, |count, mean| *count += u64::from(*mean == 20.0));
    /// flow.run()?.join()?;
    /// assert_eq!(means.merged(), 100);
    /// let minutes: Vec<u64> = readings.entries(&1).into_iter().map(|(minute, _)| minute).collect();
    /// assert_eq!(minutes, [91, 93, 95, 97, 99]);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn ordered_maps<K: Key, F: Key, V: Value>(&self, name: &str) -> OrderedMaps<K, F, V> {
        let ordered = OrderedMaps::new(&self.place(name));
        self.add_values(name, &ordered.maps.values);
        ordered
    }

    /// Adds a state element that is readable under `name`: a list for each key. A checkpoint has it as
    /// [`values`](Self::values), item by item.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow};
    ///
    /// let flow = Flow::new("visits");
    /// let last_pages = flow.lists::<String, u64>("last_pages");
    /// let left = flow.partial::<u64>("left");
    /// flow.source("visits", Generator::new(|page| page).limit(10))
    ///     .key_by(|page| if page % 3 == 0 { "ann".to_owned() } else { "ben".to_owned() })
    ///     .update("visit", &last_pages, |_user, mut pages, page, emit: &mut Emit<u64>| {
    ///         pages.push_back(*page);
    ///         if pages.len() > 3 {
    ///             emit(&pages.pop_front().unwrap());
    ///         }
    ///     })
    ///     .fold_local(&left, |count, _page| *count += 1);
    /// flow.run()?.join()?;
    /// assert_eq!(last_pages.items(&"ann".to_owned()), [3, 6, 9]);
    /// assert_eq!(last_pages.items(&"ben".to_owned()), [5, 7, 8]);
    /// assert_eq!(left.merged(), 4);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn lists<K: Key, V: Value>(&self, name: &str) -> Lists<K, V> {
        let lists = Lists::new(&self.lasting_place(name));
        self.add_values(name, &lists.values);
        lists
    }

    /// Adds a state element that is readable under `name`: a dense vector of numbers for each key. A checkpoint has it as
    /// [`values`](Self::values).
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow};
    ///
    /// let flow = Flow::new("prices");
    /// let weights = flow.vectors::<u64>("weights");
    /// let errors = flow.partial::<u64>("errors");
    /// // Learns that the price of area `x` is 3 + 2x, by gradient descent.
    /// let sale = |number| { let x = (number % 3) as f64; (x, 3.0 + 2.0 * x) };
    /// flow.source("sales", Generator::new(sale).limit(2000))
    ///     .key_by(|_| 0)
    ///     .update("learn", &weights, |_city, mut weights, (area, price), emit: &mut Emit<f64>| {
    ///         let features = [1.0, *area];
    ///         let error = price - weights.dot(&features);
    ///         weights.add_scaled(0.1 * error, &features);
    ///         emit(&error);
    ///     })
    ///     .fold_local(&errors, |count, error| *count += u64::from(error.abs() > 0.01));
    /// flow.run()?.join()?;
    /// let learned = weights.get(&0);
    /// assert!((learned[0] - 3.0).abs() < 0.01 && (learned[1] - 2.0).abs() < 0.01);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn vectors<K: Key>(&self, name: &str) -> Vectors<K> {
        let vectors = Vectors::new(&self.place(name));
        self.add_values(name, &vectors.values);
        vectors
    }

    /// Adds a state element that is readable under `name`: a sparse matrix of numbers, spread over all ranks by its rows.
    /// A checkpoint has it as [`values`](Self::values), number by number.
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow};
    ///
    /// let flow = Flow::new("films");
    /// let ratings = flow.matrices::<String, u64>("ratings");
    /// let nothing = flow.partial::<u64>("nothing");
    /// let given = [("ann", 1, 5.0), ("ann", 2, 3.0), ("ben", 1, 1.0), ("ann", 1, 4.0)];
    /// flow.source("ratings", Generator::new(move |number| given[number as usize]).limit(4))
    ///     .map(|(user, film, rating)| (user.to_string(), *film, *rating))
    ///     .key_by(|(user, _, _)| user.clone())
    ///     .update("rate", &ratings, |_user, mut row, (_, film, rating), emit: &mut Emit<f64>| {
    ///         row.set(film, *rating);
    ///         // How much the user likes comedies.
    ///         let comedies = [(1, 0.5), (7, 1.0)];
    ///         emit(&row.multiply(comedies.iter().map(|(film, weight)| (film, *weight))));
    ///     })
    ///     .fold_local(&nothing, |_, _| ());
    /// flow.run()?.join()?;
    /// assert_eq!(ratings.row(&"ann".to_owned()), [(1, 4.0), (2, 3.0)]);
    /// assert_eq!(ratings.get(&"ben".to_owned(), &2), 0.0);
    /// assert_eq!((ratings.rows(9).len(), ratings.rows(1).len()), (2, 1));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn matrices<R: Key, C: Key>(&self, name: &str) -> Matrices<R, C> {
        let matrices = Matrices::new(&self.place(name));
        self.add_values(name, &matrices.maps.values);
        matrices
    }

    /// Adds a state element that is readable under `name`: for each key up to `count` items, those with the highest scores.
    /// A checkpoint has it as [`values`](Self::values).
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow};
    ///
    /// let flow = Flow::new("games");
    /// let leaders = flow.tops::<u64, u64, String>("leaders", 2);
    /// let records = flow.partial::<u64>("records");
    /// let played = [("ann", 70), ("ben", 90), ("cat", 80), ("ann", 60), ("ann", 95)];
    /// flow.source("games", Generator::new(move |number| played[number as usize]).limit(5))
    ///     .map(|(player, points)| (player.to_string(), *points))
    ///     .key_by(|_| 1)
    ///     .update("play", &leaders, |_game, mut leaders, (player, points), emit: &mut Emit<String>| {
    ///         if leaders.highest().is_none_or(|(highest, _)| points > highest) {
    ///             emit(player);
    ///         }
    ///         leaders.put(points, player);
    ///     })
    ///     .fold_local(&records, |count, _player| *count += 1);
    /// flow.run()?.join()?;
    /// assert_eq!(leaders.get(&1), [(95, "ann".to_owned()), (90, "ben".to_owned())]);
    /// assert_eq!(records.merged(), 3);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn tops<K: Key, S: Score, T: Value + PartialEq>(
        &self,
        name: &str,
        count: usize,
    ) -> Tops<K, S, T> {
        let tops = Tops::new(count, &self.place(name));
        self.add_values(name, &tops.values);
        tops
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
    ///     .update("visit", &pages, |_user, mut pages, (_, page), emit: &mut Emit<u64>| {
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
        let sets = Sets::new(&self.place(name));
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
    ///     .update("move", &stock, |item, mut stock, (_, by), emit: &mut Emit<u64>| {
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
        let counters = Counters::new(&self.place(name));
        self.add_values(name, &counters.values);
        counters
    }

    /// Adds a partial state element that is readable under `name`: a map of which each instance of
    /// [`update_local`](crate::Operators::update_local) has a replica. `merge` adds the second value to the first, in any
    /// order of the replicas. A checkpoint has it as [`values`](Self::values), entry by entry. Over HTTP each rank answers
    /// with its replicas, merged.
    pub fn partial_map<F: Key, V: Value>(
        &self,
        name: &str,
        merge: impl Fn(&mut V, &V) + Send + Sync + 'static,
    ) -> PartialMap<F, V> {
        let map = PartialMap::new("partial map", &self.lasting_place(name), merge);
        self.add_partial(name, &map);
        map
    }

    /// Adds a partial state element that is readable under `name`: a sparse matrix of numbers, of which each instance of
    /// [`update_local`](crate::Operators::update_local) has a replica, and which is the sum of them. Otherwise as
    /// [`partial_map`](Self::partial_map).
    ///
    /// Online collaborative filtering keeps the ratings of each user in a partitioned matrix, and in a partial one how often
    /// two items were rated by the same user; a user's recommendations are the product of both (iwo 2.7.2):
    ///
    /// ```
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{Emit, Flow};
    ///
    /// let flow = Flow::new("shop");
    /// let ratings = flow.matrices::<String, u64>("ratings");
    /// let together = flow.partial_matrix::<u64, u64>("together");
    /// let pairs = flow.partial::<u64>("pairs");
    /// let given = [("ann", 1), ("ann", 2), ("ben", 1), ("ben", 2), ("ben", 3), ("cat", 1)];
    /// flow.source("ratings", Generator::new(move |number| given[number as usize]).limit(6))
    ///     .map(|(user, item)| (user.to_string(), *item))
    ///     .key_by(|(user, _)| user.clone())
    ///     .update("rate", &ratings, |_user, mut row, (_, item), emit: &mut Emit<(u64, u64)>| {
    ///         row.iter().for_each(|(other, _)| emit(&(*item, *other)));
    ///         row.set(item, 1.0);
    ///     })
    ///     .update_local("pair", &together, |mut together, (item, other), emit: &mut Emit<u64>| {
    ///         together.add(item, other, 1.0);
    ///         together.add(other, item, 1.0);
    ///         emit(item);
    ///     })
    ///     .fold_local(&pairs, |count, _| *count += 1);
    /// flow.run()?.join()?;
    /// assert_eq!(pairs.merged(), 4);
    /// assert_eq!(together.get(&1, &2), 2.0);
    /// let row = ratings.row(&"cat".to_owned());
    /// let recommended = together.multiply(row.iter().map(|(item, rating)| (item, *rating)));
    /// assert_eq!((recommended[&2], recommended[&3]), (2.0, 1.0));
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn partial_matrix<R: Key, C: Key>(&self, name: &str) -> PartialMatrix<R, C> {
        let matrix = PartialMatrix::new(&self.lasting_place(name));
        self.add_partial(name, &matrix.map);
        matrix
    }

    /// Adds a state element that has the values of a table outside of the flow, such as a keyed stream: `lookup` finds them by key,
    /// and `decode` reads them. [`Keyed::update`](crate::Keyed::update) gives its function the value, as `Option<&V>`.
    ///
    /// About 2,048 values of each partition are in memory, or 32 MiB. One is as old as `max_age` at most when an item sees it, or was
    /// looked up for this item; so an item may see a value that was changed for that time. The values are in no checkpoint. A flow
    /// that resumes looks them up again, and may find newer ones than it has seen before.
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use std::sync::Arc;
    /// use std::sync::atomic::AtomicBool;
    /// use std::time::Duration;
    ///
    /// use millstream_flow::sources::Generator;
    /// use millstream_flow::{BoxError, Emit, Flow, KeyLookup};
    ///
    /// struct Names(HashMap<Vec<u8>, Vec<u8>>);
    ///
    /// impl KeyLookup for Names {
    ///     fn name(&self) -> String {
    ///         "names".to_owned()
    ///     }
    ///
    ///     fn get(&self, keys: &[Vec<u8>], _: &AtomicBool) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
    ///         Ok(keys.iter().map(|key| self.0.get(key).cloned()).collect())
    ///     }
    /// }
    ///
    /// let flow = Flow::new("greet");
    /// let names = Names([(b"ann".to_vec(), b"Ann Archer".to_vec())].into());
    /// let decode = |value: &[u8]| Ok(String::from_utf8(value.to_vec())?);
    /// let names = flow.lookups("names", Arc::new(names), Duration::from_secs(1), decode);
    /// let greeted = flow.partial::<u64>("greeted");
    /// let users = ["ann", "ben", "ann"];
    /// flow.source("users", Generator::new(move |number| users[number as usize].to_owned()).limit(3))
    ///     .key_by(|user: &String| user.clone())
    ///     .update("find", &names, |_user, name, _item, emit: &mut Emit<String>| {
    ///         if let Some(name) = name {
    ///             emit(name);
    ///         }
    ///     })
    ///     .fold_local(&greeted, |count, _name| *count += 1);
    /// flow.run()?.join()?;
    /// assert_eq!(greeted.merged(), 2);
    /// # Ok::<(), millstream_flow::FlowError>(())
    /// ```
    pub fn lookups<K: Key, V: Send + 'static>(
        &self,
        name: &str,
        lookup: Arc<dyn KeyLookup>,
        max_age: Duration,
        decode: impl Fn(&[u8]) -> Result<V, BoxError> + Send + Sync + 'static,
    ) -> Lookups<K, V> {
        let place = self.lasting_place(name);
        let clock = &self.settings.clock;
        let lookups = Lookups::new(lookup, max_age, Box::new(decode), clock, place.partitions);
        let element = LookupElement::new(name, &lookups);
        self.plan().graph.lookups.push(element);
        lookups
    }

    /// The place of an element whose entries live for ever.
    pub(super) fn lasting_place(&self, name: &str) -> Place {
        self.refuse_lifetime(name);
        Place {
            lifetime: None,
            ..self.place(name)
        }
    }

    /// Notes a fault if the element is to have a lifetime, since its kind cannot.
    pub(super) fn refuse_lifetime(&self, name: &str) {
        if let Some(lifetime) = self.lifetime {
            self.note_lifetime(
                name,
                lifetime,
                "only values, counters, vectors, tops, maps, ordered maps, sets and matrices can; add it by a handle of the flow without a lifetime",
            );
        }
    }

    fn note_lifetime(&self, name: &str, lifetime: Duration, why: &'static str) {
        let fault = FlowError::Lifetime {
            flow: self.name(),
            element: name.to_owned(),
            lifetime,
            why,
        };
        self.plan().faults.push(fault);
    }

    fn place(&self, name: &str) -> Place {
        let ranks = &self.settings.ranks;
        if let Some(zero) = self.lifetime.filter(Duration::is_zero) {
            self.note_lifetime(
                name,
                zero,
                "nothing would stay; let it be a millisecond at least",
            );
        }
        let clock = &self.settings.clock;
        Place {
            lifetime: self.lifetime.map(|it| LifetimeSpec::new(clock, it)),
            rank: ranks.rank(),
            ranks: ranks.count(),
            partitions: self.settings.workers.get(),
            memory: Arc::clone(&self.settings.state_memory),
            encoding: self.encoding,
        }
    }

    /// Lets readers see a partial element, merged, and checkpoints its replicas.
    fn add_partial<F: Key, V: Value>(&self, name: &str, map: &PartialMap<F, V>) {
        self.add_state(name, map.clone());
        let logged = LoggedElement::new(name, Arc::new(map.values.clone()));
        self.plan().graph.logged.push(Arc::new(logged));
    }

    /// Lets readers and checkpoints see an element.
    pub(super) fn add_values<K: Key, V: Value>(&self, name: &str, values: &Values<K, V>) {
        self.add_state(name, values.clone());
        let logged = LoggedElement::new(name, Arc::new(values.clone()));
        self.plan().graph.logged.push(Arc::new(logged));
    }
}
