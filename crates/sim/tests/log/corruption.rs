//! Damages files: the log serves only right records, and reports missing ones with the name of their file.

use std::path::Path;

use millstream_base::ByteSize;
use millstream_log::{Log, LogError, StreamConfig};
use millstream_sim::for_each_seed;

use crate::world::{World, lane_of, open};

const CASES: u64 = 2_000;

/// The damage to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Flip,
    Cut,
    Empty,
    Remove,
}

#[test]
fn damage_is_reported_or_repaired_and_never_served() {
    for_each_seed(CASES, run);
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    assert!(world.open());
    fill(&mut world);
    if world.rng.bool() {
        // The last run appends nothing after the crash.
        world.crash();
        assert!(world.open());
    }
    let is_clean = world.rng.bool();
    match is_clean {
        true => world.close(),
        false => world.crash(),
    }
    let files = world.disk.files();
    let (path, len) = files[world.rng.usize(..files.len())].clone();
    let damages = [
        Damage::Flip,
        Damage::Flip,
        Damage::Cut,
        Damage::Empty,
        Damage::Remove,
    ];
    let damage = damages[world.rng.usize(..damages.len())];
    match damage {
        Damage::Flip if len == 0 => return,
        Damage::Flip => world.disk.flip_bit(&path, world.rng.u64(..len * 8)),
        Damage::Cut => world.disk.truncate(&path, world.rng.usize(..=len as usize)),
        Damage::Empty => world.disk.truncate(&path, 0),
        Damage::Remove => world.disk.remove(&path),
    }
    .expect("it exists");
    world.note(format!("{damage:?} of {}", path.display()));
    // A second check reports the same damage.
    for _ in 0..2 {
        check(&mut world, &path, damage, is_clean);
        world.kill();
    }
}

/// Fills several groups, in files and in the journal; the last ones are only in the journal.
fn fill(world: &mut World) {
    let config = StreamConfig {
        lanes: 2,
        group_segments: 1,
        segment: ByteSize(64 << 10),
        ..StreamConfig::default()
    };
    world.create("a", config);
    world.put_object("x", vec![7; 1_000]);
    for _ in 0..world.rng.u32(2..12) {
        let bytes = match world.rng.bool() {
            true => 30_000,
            false => 300,
        };
        let chunk = world.make_chunk(2, bytes, None);
        let (lane, appended) = world.append("a", 0, chunk).expect("no faults");
        assert!(world.acknowledge("a", &lane, &appended));
        if world.rng.u8(..4) == 0 {
            world.log().persist();
        }
    }
}

fn check(world: &mut World, path: &Path, damage: Damage, is_clean: bool) {
    let kind = path.extension().unwrap_or_default().to_owned();
    // A damaged end of the journal, or of a file behind its index, may look like the result of a crash.
    let may_be_torn = !is_clean && kind != "index" || path.ends_with("millstream.data");
    let log = match open(&world.disk, &world.clock) {
        Ok(log) => log,
        Err(error) => {
            assert!(kind != "index", "an index is healed: {error}");
            // A removed journal file is reported by the part of the log that misses its content.
            let misses_catalog = error.to_string().contains("the catalog is missing");
            if kind != "journal" || !misses_catalog {
                assert_names(&error, path);
            }
            return;
        }
    };
    if let Err(missing) = compare(world, &log, path) {
        assert!(kind != "index" || damage == Damage::Remove, "{missing}");
        // A lane without its first or last file looks like a shorter lane, if no other file mentions it.
        assert!(may_be_torn, "{damage:?} of {}: {missing}", path.display());
    }
    world.log = Some(log);
}

/// Reads all records. Fails if records are missing without a report.
fn compare(world: &World, log: &Log, damaged: &Path) -> Result<(), String> {
    let Ok(stream) = log.stream("a") else {
        return Err("the stream is missing".to_owned());
    };
    for (key, model) in &world.model.streams["a"].lanes {
        let lane = lane_of(&stream, *key);
        let fault = lane.info().fault;
        if let Some(fault) = &fault {
            assert!(
                names(fault, damaged),
                "{fault} does not name {}",
                damaged.display()
            );
        }
        let mut reader = lane.reader(lane.earliest());
        let mut expected = lane.info().earliest.0;
        let mut is_reported = fault.is_some();
        if expected > 0 && !is_reported {
            return Err(format!("lane {key:?} begins with {expected}"));
        }
        loop {
            match reader.read(1 << 20) {
                Ok(Some(read)) => {
                    for chunk in read.chunks() {
                        let chunk = chunk.expect("checked when it was read");
                        let base = chunk.header().base_offset.0;
                        let sent = model.chunks.iter().find(|sent| sent.base == base);
                        let sent = sent.expect("the model has no such chunk");
                        // Kafka's checksum does not cover the leader epoch, which these tests leave alone.
                        assert!(base >= expected && chunk.bytes()[16..] == sent.bytes[16..]);
                        assert!(base == expected || is_reported, "a gap before {base}");
                        expected = chunk.header().next_offset().0;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    assert_names(&error, damaged);
                    is_reported = true;
                    break;
                }
            }
        }
        if expected < model.acknowledged && !is_reported {
            return Err(format!(
                "lane {key:?} ends with {expected} of {}",
                model.acknowledged
            ));
        }
    }
    match log.get_object("x", None) {
        Ok(mut object) => {
            let mut content = Vec::new();
            match std::io::Read::read_to_end(&mut object, &mut content) {
                Ok(_) => assert_eq!(content, vec![7; 1_000]),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        Err(LogError::UnknownObject { .. }) => return Err("the object is missing".to_owned()),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    Ok(())
}

/// Checks that an error names the damaged file, or the neighbour of a missing one.
fn names(error: &str, path: &Path) -> bool {
    let folder = path.parent().unwrap_or(path);
    error.contains(&folder.display().to_string())
}

fn assert_names(error: &LogError, path: &Path) {
    let text = error.to_string();
    assert!(
        names(&text, path),
        "{text} does not name {}",
        path.display()
    );
}

#[test]
fn foreign_files_are_named_and_left_alone() {
    for place in [
        "/data/x",
        "/data/journal/x",
        "/data/streams/x",
        "/data/streams/16/x",
    ] {
        let mut world = World::new(1);
        assert!(world.open());
        fill(&mut world);
        world.log().persist();
        world.close();
        world
            .disk
            .write_file(place, b"foreign")
            .expect("the folder exists");
        let error = open(&world.disk, &world.clock).expect_err("it is foreign");
        let is_named = matches!(&error, LogError::ForeignFile { path } if path == Path::new(place));
        assert!(is_named, "{error}");
        assert_eq!(world.disk.read_file(place).expect("left alone"), b"foreign");
        world.disk.remove(place).expect("it exists");
        assert!(world.open());
    }
}

#[test]
fn another_format_is_refused() {
    let mut world = World::new(1);
    assert!(world.open());
    fill(&mut world);
    world.close();
    let marker = "/data/millstream.data";
    let error_of = |text: &[u8]| {
        let written = world.disk.write_file(marker, text);
        written.expect("it exists");
        open(&world.disk, &world.clock).expect_err("another format")
    };
    let newer = error_of(b"millstream data, format 4\n");
    assert!(
        matches!(newer, LogError::NewerFormat { found: 4, .. }),
        "{newer}"
    );
    let older = error_of(b"millstream data, format 1\n");
    assert!(
        matches!(older, LogError::OlderFormat { found: 1, .. }),
        "{older}"
    );
}
