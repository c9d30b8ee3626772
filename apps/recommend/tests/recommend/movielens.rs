//! Real ratings: those of MovieLens (ml-latest-small), whose pairs of films another program has counted.
//!
//! The ratings are not in the repository, but in the folder that `MILLSTREAM_TEST_DATA` names, or in `../shared/data` beside
//! the repository. Without them the tests are skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use millstream::{Error, Node};
use millstream_recommend::{Rating, Recommended};
use serde_json::Value;

use crate::direct::{Counts, Direct};
use crate::kills::co_occurrence;
use crate::running::{flow, run};

/// A user likes a film from this rating on.
const LIKED: f64 = 4.0;

/// The users whose recommendations are checked.
const USERS: usize = 30;

/// Returns the ratings of films that users like, and the counts of another program; `None` if they are not on this machine.
fn read() -> Option<(Vec<Rating>, Value)> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("MILLSTREAM_TEST_DATA").map_or(beside, PathBuf::from);
    let name = "ratings/ml-latest-small/ratings.csv";
    let path = folder.join(format!("{name}.zst"));
    let Ok(packed) = fs::read(&path) else {
        eprintln!(
            "skipped: there is no {}; set MILLSTREAM_TEST_DATA",
            path.display()
        );
        return None;
    };
    let mut text = String::new();
    let mut unpacked = zstd::Decoder::new(&packed[..]).expect("it is packed");
    unpacked.read_to_string(&mut text).expect("it is text");
    // userId,movieId,rating,timestamp
    let ratings = text.lines().skip(1).map(|line| {
        let mut fields = line.split(',');
        let mut field = || fields.next().expect("a line has four fields");
        Rating {
            user: field().to_owned(),
            item: field().parse().expect("a film has a number"),
            rating: field().parse().expect("a rating is a number"),
        }
    });
    let liked = ratings.filter(|rating| rating.rating >= LIKED);
    let answers = fs::read(folder.join("answers/ratings.json")).expect("they are beside it");
    let mut answers: Value = serde_json::from_slice(&answers).expect("they are JSON");
    let answers = answers["files"][name]["cooccurrence_rating_ge_4"].take();
    Some((liked.collect(), answers))
}

/// Returns the pairs that most users like, as the answers have them: the count falls, then the numbers of the films grow.
fn top_pairs(counts: &Counts, length: usize) -> Vec<[u64; 3]> {
    let pairs = counts.iter().filter(|((one, other), _)| one < other);
    let mut pairs: Vec<_> = pairs
        .map(|((one, other), count)| [*one, *other, *count as u64])
        .collect();
    pairs.sort_by(|one, other| other[2].cmp(&one[2]));
    pairs.truncate(length);
    pairs
}

/// Counts the pairs of films that at least this number of users like. Returns `None` without the ratings.
fn check(users_min: usize) -> Result<Option<(Counts, Value)>, Error> {
    let Some((mut ratings, answers)) = read() else {
        return Ok(None);
    };
    let mut users: BTreeMap<u64, usize> = BTreeMap::new();
    for rating in &ratings {
        *users.entry(rating.item).or_default() += 1;
    }
    ratings.retain(|rating| users[&rating.item] >= users_min);
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let topic = node.topic("ratings").json::<Rating>().create()?;
    topic.send(ratings.clone())?;
    let began_at = Instant::now();
    let running = run(flow().until_now(), &node)?;
    running.join()?;
    let taken = began_at.elapsed();
    println!("{} ratings counted in {taken:.1?}", ratings.len());
    let direct = Direct::of(&ratings);
    let counts = co_occurrence(&node)?;
    assert_eq!(counts, direct.co_occurrence());
    let state = running.state("recommendations").expect("it is served");
    let began_at = Instant::now();
    for user in direct.users().take(USERS) {
        let served = state.get(user).expect("the user likes films");
        let served: Vec<Recommended> = serde_json::from_value(served).expect("they are");
        assert_eq!(served, direct.recommendations(user, &counts), "{user}");
    }
    let taken = began_at.elapsed();
    println!("recommendations for {USERS} users computed twice in {taken:.1?}");
    let top = answers["top"].as_array().expect("it is a list");
    let top: Vec<[u64; 3]> = top
        .iter()
        .map(|pair| [0, 1, 2].map(|field| pair[field].as_u64().expect("it is a number")))
        .collect();
    assert_eq!(top_pairs(&counts, top.len()), top);
    Ok(Some((counts, answers)))
}

/// Films that fewer users like are in none of the pairs that the answers list.
#[test]
fn pairs_of_popular_films_are_those_of_another_program() -> Result<(), Error> {
    check(50).map(drop)
}

#[test]
#[ignore = "takes minutes without optimizations"]
fn all_pairs_of_films_are_those_of_another_program() -> Result<(), Error> {
    let Some((counts, answers)) = check(1)? else {
        return Ok(());
    };
    let films: BTreeSet<u64> = counts.keys().map(|(film, _)| *film).collect();
    // Of a film that a single user likes, and that is the only one of the user, there is no pair.
    assert!(films.len() as u64 <= answers["items"].as_u64().expect("it is a number"));
    assert_eq!(answers["distinct_pairs"], counts.len() / 2);
    let occurrences = counts.values().sum::<f64>() as u64 / 2;
    assert_eq!(answers["pair_occurrences"], occurrences);
    Ok(())
}
