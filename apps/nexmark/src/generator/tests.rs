use std::collections::{BTreeMap, HashSet};

use super::*;

const GENERATOR: EventGenerator = EventGenerator {
    seed: 7,
    start: Timestamp(1_000_000),
    rate: NonZeroU64::new(500).unwrap(),
};

fn events(count: u64) -> impl Iterator<Item = Event> {
    (0..count).map(|number| GENERATOR.event(number))
}

/// Whether a count is within a tenth of the expected one.
fn is_about(count: usize, expected: f64) -> bool {
    (count as f64 - expected).abs() < expected / 10.0
}

#[test]
fn one_event_in_fifty_is_a_person_and_three_are_auctions() {
    let mut kinds = [0; 3];
    for event in events(5_000) {
        match event {
            Event::Person(_) => kinds[0] += 1,
            Event::Auction(_) => kinds[1] += 1,
            Event::Bid(_) => kinds[2] += 1,
        }
    }
    assert_eq!(kinds, [100, 300, 4_600]);
}

#[test]
fn persons_and_auctions_have_numbers_in_a_row_and_references_lead_to_earlier_events() {
    let (mut persons, mut auctions) = (0, 0);
    for event in events(200_000) {
        match event {
            Event::Person(person) => {
                assert_eq!(person.id, 1000 + persons);
                persons += 1;
            }
            Event::Auction(auction) => {
                assert_eq!(auction.id, 1000 + auctions);
                auctions += 1;
                assert!((1000..1000 + persons).contains(&auction.seller));
                assert!((10..15).contains(&auction.category));
                assert!(auction.expires > auction.date_time);
                assert!(auction.reserve > auction.initial_bid);
            }
            Event::Bid(bid) => {
                assert!((1000..1000 + auctions).contains(&bid.auction));
                assert!((1000..1000 + persons).contains(&bid.bidder));
                assert!((100..=100_000_000).contains(&bid.price));
            }
        }
    }
    assert_eq!((persons, auctions), (4_000, 12_000));
}

#[test]
fn hot_auctions_bidders_and_sellers_are_in_most_events() {
    let (mut sold, mut hot_sellers, mut bids) = (0, 0, 0);
    let (mut hot_auctions, mut hot_bidders, mut hot_channels) = (0, 0, 0);
    let is_hot = |id: u64| id.is_multiple_of(100);
    for event in events(200_000) {
        match event {
            Event::Person(_) => {}
            Event::Auction(auction) => {
                sold += 1;
                hot_sellers += usize::from(is_hot(auction.seller));
            }
            Event::Bid(bid) => {
                bids += 1;
                hot_auctions += usize::from(is_hot(bid.auction));
                hot_bidders += usize::from(is_hot(bid.bidder - 1));
                hot_channels += usize::from(!bid.channel.starts_with("channel-"));
            }
        }
    }
    let (sold, bids) = (f64::from(sold), f64::from(bids));
    assert!(is_about(hot_sellers, sold * 0.75), "{hot_sellers}");
    assert!(is_about(hot_bidders, bids * 0.75), "{hot_bidders}");
    assert!(is_about(hot_auctions, bids * 0.5), "{hot_auctions}");
    assert!(is_about(hot_channels, bids * 0.5), "{hot_channels}");
}

#[test]
fn prices_are_spread_over_six_orders_of_magnitude() {
    let mut orders: BTreeMap<u32, usize> = BTreeMap::new();
    let bids: Vec<_> = events(50_000).filter_map(|event| event.bid()).collect();
    for bid in &bids {
        *orders.entry(bid.price.ilog10()).or_default() += 1;
    }
    let expected = bids.len() as f64 / 6.0;
    // The highest price alone has one digit more.
    for order in 2..8 {
        assert!(is_about(orders[&order], expected), "{orders:?}");
    }
}

#[test]
fn most_other_channels_have_their_number_in_the_address_and_keep_their_address() {
    let mut urls: BTreeMap<String, String> = BTreeMap::new();
    let (mut others, mut with_id) = (0, 0);
    for bid in events(100_000).filter_map(|event| event.bid()) {
        if bid.channel.starts_with("channel-") {
            others += 1;
            with_id += usize::from(bid.url.contains("&channel_id="));
        }
        assert_eq!(bid.url.split('/').count(), 7, "{}", bid.url);
        let url = urls
            .entry(bid.channel.clone())
            .or_insert_with(|| bid.url.clone());
        assert_eq!(*url, bid.url);
    }
    assert!(is_about(with_id, f64::from(others) * 0.9), "{with_id}");
}

#[test]
fn events_have_their_usual_sizes() {
    let mut sizes: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for event in events(20_000) {
        let (kind, size) = match event {
            Event::Person(person) => {
                let it = &person;
                let texts = [&it.name, &it.email_address, &it.credit_card, &it.city];
                let texts = texts.map(String::len).iter().sum::<usize>();
                ("person", 16 + texts + it.state.len() + it.extra.len())
            }
            Event::Auction(it) => {
                let texts = it.item_name.len() + it.description.len() + it.extra.len();
                ("auction", 56 + texts)
            }
            // The address of the page is beside it.
            Event::Bid(bid) => ("bid", 32 + bid.channel.len() + bid.extra.len()),
        };
        sizes.entry(kind).or_default().push(size);
    }
    for (kind, usual) in [("person", 200.0), ("auction", 500.0), ("bid", 100.0)] {
        let sizes = &sizes[kind];
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!(is_about(mean, usual), "{kind}: {mean}");
    }
}

#[test]
fn the_same_number_gives_the_same_event_and_another_number_or_seed_another_event() {
    let other = EventGenerator {
        seed: 8,
        ..GENERATOR
    };
    let mut seen = HashSet::new();
    for number in 0..2_000 {
        let event = GENERATOR.event(number);
        assert_eq!(event, GENERATOR.event(number));
        assert_ne!(event, other.event(number));
        assert!(seen.insert(format!("{event:?}")), "{number}");
    }
}

#[test]
fn times_follow_the_rate_and_never_overflow() {
    assert_eq!(GENERATOR.time(0), Timestamp(1_000_000));
    assert_eq!(GENERATOR.time(1), Timestamp(1_000_002));
    assert_eq!(GENERATOR.time(50_000), Timestamp(1_100_000));
    assert_eq!(
        GENERATOR.event(50_000).time(),
        Timestamp(1_100_000),
        "the event has it"
    );
    let rate = |rate| EventGenerator {
        rate: NonZeroU64::new(rate).unwrap(),
        ..GENERATOR
    };
    assert_eq!(rate(3).time(4), Timestamp(1_001_333));
    assert_eq!(rate(1).time(u64::MAX), Timestamp(i64::MAX));
    assert_eq!(rate(u64::MAX).time(u64::MAX - 1), Timestamp(1_000_999));
    // A bid, an auction and a person.
    for number in [u64::MAX, u64::MAX - 14, u64::MAX - 15] {
        assert_eq!(rate(1).event(number).time(), Timestamp(i64::MAX));
    }
}
