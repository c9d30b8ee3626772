//! The results and the state that a job leaves.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use millstream::Node;
use millstream::client::{Client, ClientConfig, ClientError};
use millstream::connect::Network;
use millstream::log::{Log, LogConfig};
use serde_json::Value;

use crate::jobs::Job;
use crate::process::wait_until;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The committed values of each topic, and the rows of each keyed one, in order.
    results: BTreeMap<&'static str, Vec<String>>,
    /// The values of the topics of state by key.
    values: BTreeMap<&'static str, BTreeMap<String, Value>>,
}

impl Outcome {
    fn read(job: Job, node: &Node) -> Result<Outcome, millstream::Error> {
        let mut outcome = Outcome::default();
        for topic in job.results() {
            let mut values = node.topic(topic).text().read_all()?;
            values.sort_unstable();
            outcome.results.insert(topic, values);
        }
        for table in job.tables() {
            let rows = node.topic(table).text().read_keys::<u64>()?.into_iter();
            let mut rows: Vec<String> = rows.map(|(key, row)| format!("{key}: {row}")).collect();
            rows.sort_unstable();
            outcome.results.insert(table, rows);
        }
        for element in job.elements() {
            let topic = node.topic(&format!("{}.state.{element}", job.name()));
            let values = topic.json::<Value>().read_keys::<String>()?;
            outcome.values.insert(element, values.into_iter().collect());
        }
        Ok(outcome)
    }

    /// Reads it from a world's data, in which no transaction may be open.
    pub fn of_data(job: Job, dir: &Path) -> Outcome {
        let log = Log::open(LogConfig::new(dir.join("data"))).unwrap();
        for name in log.stream_names() {
            let stream = log.stream(&name).unwrap();
            for partition in 0..stream.partition_count() {
                let partition = stream.partition(partition).unwrap();
                let (stable, end) = (partition.last_stable_offset(), partition.next_offset());
                assert_eq!(stable, end, "a transaction is open in {name}");
            }
        }
        let outcome = Outcome::read(job, &Node::of_log(&log)).unwrap();
        log.close().unwrap();
        outcome
    }

    /// Reads it from a server, when no transaction is open any more: a server answers a commit before readers see it.
    pub fn of_server(job: Job, address: &str) -> Outcome {
        let network = Network::start("test").unwrap();
        let client = Client::new(ClientConfig::new(address));
        let open = || {
            let open = network.wait(async {
                let mut open = client.transactions().await?;
                open.extend(client.transactions_without_coordinator().await?);
                Ok::<_, ClientError>(open)
            });
            open.unwrap().into_iter().filter(|it| it.is_open()).count()
        };
        wait_until("all transactions are decided", || open() == 0);
        // The markers of the last commits may still be on their way to readers.
        std::thread::sleep(Duration::from_millis(100));
        Outcome::read(job, &Node::connect(address).unwrap()).unwrap()
    }

    /// Checks that the values in the topics are those that a flow has served.
    pub fn check_served(&self, states: &BTreeMap<String, BTreeMap<String, Value>>, at: &str) {
        for (element, values) in &self.values {
            assert_eq!(
                values, &states[*element],
                "{at}: {element} as it was served"
            );
        }
    }

    /// Checks the sizes of an undisturbed run.
    pub fn check_plausible(&self, job: Job) {
        for (topic, values) in &self.results {
            assert!(values.len() > 100, "{topic}: {}", values.len());
        }
        if job == Job::Words {
            let sums = ["running", "totals"].map(|element| {
                let values = self.values[element].values();
                values.map(|count| count.as_u64().unwrap()).sum::<u64>()
            });
            assert_eq!(sums[0], self.results["running"].len() as u64);
            assert_eq!(sums[0], sums[1]);
            let letters = self.results["words.dead_letters"].len() as u64;
            assert_eq!(sums[0] / 3 + letters, job.items());
        }
    }

    /// Checks that nothing differs, and names the first difference.
    pub fn check(&self, expected: &Outcome, at: &str) {
        for (topic, values) in &self.results {
            let expected = &expected.results[topic];
            let first = values.iter().zip(expected).find(|(a, b)| a != b);
            assert!(
                values == expected,
                "{at}: topic {topic} has {} values and not {}; the first that differ: {first:?}",
                values.len(),
                expected.len()
            );
        }
        assert_eq!(self.values, expected.values, "{at}");
    }
}
