//! The contract of the simulated disk, on which other tests rely.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::Path;

use millstream_base::disk::{Access, Disk, DiskFile};
use millstream_sim::{OperationKind, Rng, SECTOR_BYTES, SimDisk};

const SEEDS: u64 = 300;

/// The number of crashes of a disk with few operations, enough to see every outcome.
const CRASHES: usize = 3_000;

fn open(disk: &SimDisk, path: &str) -> Box<dyn DiskFile> {
    disk.open(Path::new(path), Access::Create).unwrap()
}

fn sync_dir(disk: &SimDisk, path: &str) {
    disk.sync_dir(Path::new(path)).unwrap();
}

fn rename(disk: &SimDisk, from: &str, to: &str) {
    disk.rename(Path::new(from), Path::new(to)).unwrap();
}

/// A disk with a file `/f` that durably holds `content`.
fn disk_with(content: &[u8]) -> SimDisk {
    let disk = SimDisk::new(0);
    disk.write_file("/f", content).unwrap();
    disk
}

/// The files that crashes leave, each outcome once.
fn outcomes(disk: &SimDisk, crashes: usize) -> BTreeSet<BTreeMap<String, Vec<u8>>> {
    let mut rng = Rng::with_seed(7);
    (0..crashes)
        .map(|_| contents(&disk.crash(&mut rng)))
        .collect()
}

/// The names that many crashes leave, each outcome once, as `a b c`.
fn names_left(disk: &SimDisk) -> BTreeSet<String> {
    let names = outcomes(disk, CRASHES).into_iter();
    names
        .map(|files| files.into_keys().collect::<Vec<_>>().join(" "))
        .collect()
}

fn contents(disk: &SimDisk) -> BTreeMap<String, Vec<u8>> {
    let files = disk.files().into_iter();
    files
        .map(|(path, len)| {
            let bytes = disk.read_file(&path).unwrap();
            assert_eq!(bytes.len() as u64, len);
            (path.to_str().unwrap().to_owned(), bytes)
        })
        .collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

/// Runs `count` random operations; some fail, as intended.
fn random_operations(disk: &SimDisk, seed: u64, count: usize) {
    let mut rng = Rng::with_seed(seed);
    let folders = ["/", "/a", "/b", "/a/c"];
    for _ in 0..count {
        let mut path = || format!("{}/{}", rng.choice(folders).unwrap(), rng.u8(..3));
        let (path, other) = (path(), path());
        let folder = rng.choice(folders).unwrap();
        let _ = match rng.u8(..12) {
            0 => disk.create_dir_all(Path::new(folder)),
            1 => disk.rename(Path::new(&path), Path::new(&other)),
            2 => disk.remove_file(Path::new(&path)),
            3 => disk.remove_dir(Path::new(folder)),
            4 => disk.sync_dir(Path::new(folder)),
            5 => disk.sync_tree(Path::new(folder)),
            change => disk
                .open(Path::new(&path), Access::Create)
                .and_then(|file| match change {
                    6 => file.sync(),
                    7 => file.set_len(rng.u64(..5000)),
                    8 => file.reserve(rng.u64(..9000)),
                    _ => file.write_at(&vec![rng.u8(1..); rng.usize(..3000)], rng.u64(..4000)),
                }),
        };
    }
}

#[test]
fn the_same_seed_gives_the_same_disk() {
    for seed in 0..SEEDS {
        let run = || {
            let disk = SimDisk::new(seed);
            disk.set_capacity(20_000);
            disk.start_trace();
            disk.crash_at(60 + seed % 40);
            disk.fail_next_sync(|path| path.ends_with("1"));
            random_operations(&disk, seed, 100);
            let left = disk.crash(&mut Rng::with_seed(seed));
            (contents(&left), left.trace())
        };
        assert_eq!(run(), run());
    }
}

#[test]
fn synced_changes_survive_every_crash() {
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        random_operations(&disk, seed, 60);
        disk.sync_tree(Path::new("/")).unwrap();
        let synced = contents(&disk);
        assert_eq!(outcomes(&disk, 20), BTreeSet::from([synced]), "seed {seed}");
    }
}

#[test]
fn a_crashed_disk_is_durable_and_a_killed_one_holds_all_writes() {
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        random_operations(&disk, seed, 60);
        assert_eq!(contents(&disk.kill()), contents(&disk));
        assert_eq!(outcomes(&disk.kill(), 20), outcomes(&disk, 20));
        let left = disk.crash(&mut Rng::with_seed(seed));
        assert_eq!(outcomes(&left, 20), BTreeSet::from([contents(&left)]));
    }
}

#[test]
fn sectors_of_unsynced_writes_survive_in_any_combination() {
    let disk = disk_with(&[b'-'; 3 * SECTOR_BYTES]);
    let file = open(&disk, "/f");
    file.write_at(&[b'1'; 2 * SECTOR_BYTES], 0).unwrap();
    file.write_at(&[b'2'; 2 * SECTOR_BYTES], SECTOR_BYTES as u64)
        .unwrap();
    let mut seen = BTreeSet::new();
    for files in outcomes(&disk, CRASHES) {
        let sectors: Vec<&[u8]> = files["/f"].chunks(SECTOR_BYTES).collect();
        assert!(sectors.iter().all(|s| s.iter().all(|b| *b == s[0])));
        seen.insert(sectors.iter().map(|s| s[0] as char).collect::<String>());
    }
    let all = [
        "---", "1--", "-1-", "-2-", "--2", "11-", "12-", "1-2", "-12", "-22", "112", "122",
    ];
    assert_eq!(seen, set(all));
}

#[test]
fn a_crashed_sector_has_a_prefix_of_its_writes() {
    let disk = disk_with(b"....");
    let file = open(&disk, "/f");
    file.write_at(b"A", 0).unwrap();
    file.write_at(b"B", 1).unwrap();
    file.write_at(b"C", 2).unwrap();
    let seen: BTreeSet<Vec<u8>> = outcomes(&disk, CRASHES)
        .into_iter()
        .map(|f| f["/f"].clone())
        .collect();
    let all = [b"....", b"A...", b"AB..", b"ABC."].map(|s| s.to_vec());
    assert_eq!(seen, all.into());
}

#[test]
fn the_length_follows_from_surviving_writes_and_holes_hold_zeros_or_garbage() {
    let disk = disk_with(b"head");
    let file = open(&disk, "/f");
    file.write_at(&[b'1'; 996], 4).unwrap();
    file.write_at(&[b'2'; 1000], 1000).unwrap();
    let mut lengths = BTreeSet::new();
    let (mut zeros, mut garbage) = (false, false);
    for files in outcomes(&disk, CRASHES) {
        let bytes = &files["/f"];
        assert_eq!(&bytes[..4], b"head");
        lengths.insert(bytes.len());
        // The first two writes write the whole second sector.
        if let Some(sector) = bytes.get(512..1024) {
            let is_written = sector[..488].iter().all(|b| *b == b'1');
            zeros |= sector.iter().all(|b| *b == 0);
            garbage |= !is_written && sector.iter().any(|b| *b != 0 && *b != b'1');
        }
    }
    assert_eq!(lengths, [4, 512, 1000, 1024, 1536, 2000].into());
    assert!(zeros && garbage);
}

#[test]
fn a_truncation_survives_before_later_writes_behind_it() {
    let disk = disk_with(&[b'o'; 4 * SECTOR_BYTES]);
    let file = open(&disk, "/f");
    file.set_len(700).unwrap();
    file.write_at(&[b'n'; 1000], 700).unwrap();
    let mut seen = BTreeSet::new();
    for files in outcomes(&disk, CRASHES) {
        let bytes = &files["/f"];
        let new = bytes.get(700) == Some(&b'n');
        match bytes.len() {
            700 | 1024 | 1536 | 1700 => assert!(!bytes[700..].contains(&b'o')),
            2048 => {
                let behind = if new { b'n' } else { b'o' };
                assert!(bytes[700..1024].iter().all(|b| *b == behind));
                assert!(bytes[1024..].iter().all(|b| *b == b'o'));
            }
            len => panic!("no write justifies {len}"),
        }
        seen.insert((bytes.len(), new));
    }
    assert!(seen.contains(&(2048, true)) && seen.contains(&(1700, true)));
}

#[test]
fn names_survive_a_sync_of_the_folder_and_content_a_sync_of_the_file() {
    let disk = SimDisk::new(0);
    open(&disk, "/content").write_at(b"x", 0).unwrap();
    sync_dir(&disk, "/");
    let file = open(&disk, "/name");
    file.write_at(b"x", 0).unwrap();
    file.sync().unwrap();
    let left = outcomes(&disk, CRASHES);
    assert!(left.iter().any(|files| files["/content"].is_empty()));
    assert!(left.iter().any(|files| !files.contains_key("/name")));
    let full = |files: &BTreeMap<_, Vec<u8>>| files.get("/name").is_none_or(|f| f == b"x");
    assert!(left.iter().all(full));
}

#[test]
fn a_crash_loses_a_folder_whose_name_was_not_synced() {
    let disk = SimDisk::new(0);
    disk.create_dir_all(Path::new("/a/b")).unwrap();
    open(&disk, "/a/b/f");
    sync_dir(&disk, "/a/b");
    sync_dir(&disk, "/a");
    assert_eq!(names_left(&disk), set(["", "/a/b/f"]));
    sync_dir(&disk, "/");
    assert_eq!(names_left(&disk), set(["/a/b/f"]));
}

#[test]
fn changes_to_the_names_of_a_folder_survive_in_order() {
    let disk = SimDisk::new(0);
    for name in ["/1", "/2", "/3"] {
        open(&disk, name);
    }
    disk.remove_file(Path::new("/1")).unwrap();
    let all = ["", "/1", "/1 /2", "/1 /2 /3", "/2 /3"];
    assert_eq!(names_left(&disk), set(all));
}

#[test]
fn a_rename_is_atomic_and_durable_once_either_folder_is_synced() {
    for synced in [None, Some("/a"), Some("/b")] {
        let disk = SimDisk::new(0);
        disk.create_dir_all(Path::new("/a")).unwrap();
        disk.create_dir_all(Path::new("/b")).unwrap();
        open(&disk, "/a/new");
        disk.sync_tree(Path::new("/")).unwrap();
        disk.write_file("/b/old", b"replaced").unwrap();
        rename(&disk, "/a/new", "/b/old");
        rename(&disk, "/b/old", "/b/current");
        if let Some(folder) = synced {
            sync_dir(&disk, folder);
        }
        let (before, between, after) = ("/a/new /b/old", "/b/old", "/b/current");
        match synced {
            None => assert_eq!(names_left(&disk), set([before, between, after])),
            Some("/a") => assert_eq!(names_left(&disk), set([between, after])),
            Some(_) => assert_eq!(names_left(&disk), set([after])),
        }
    }
}

#[test]
fn a_later_sync_does_not_repair_a_failed_one() {
    let disk = disk_with(b"old");
    let file = open(&disk, "/f");
    disk.fail_next_sync(|path| path.ends_with("f"));
    open(&disk, "/other").sync().unwrap();
    file.write_at(b"new", 0).unwrap();
    let error = file.sync().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5));
    file.sync().unwrap();
    file.write_at(b"more", SECTOR_BYTES as u64).unwrap();
    file.sync().unwrap();
    assert_eq!(&disk.read_file("/f").unwrap()[..3], b"new");

    // The seed of the disk decides the content of the medium.
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let disk = SimDisk::new(seed);
        disk.write_file("/f", b"old").unwrap();
        disk.fail_next_sync(|_| true);
        open(&disk, "/f").write_at(b"new", 0).unwrap();
        assert!(disk.sync_tree(Path::new("/")).is_err());
        disk.sync_tree(Path::new("/")).unwrap();
        let left = outcomes(&disk, 20);
        assert_eq!(left.len(), 1);
        seen.extend(left.into_iter().map(|mut files| files.remove("/f")));
    }
    assert_eq!(
        seen,
        [b"old", b"new"].map(|bytes| Some(bytes.to_vec())).into()
    );
}

#[test]
fn a_failed_sync_of_a_folder_leaves_its_names_unsynced() {
    let disk = SimDisk::new(0);
    open(&disk, "/f");
    disk.fail_next_sync(|path| path == Path::new("/"));
    assert!(disk.sync_dir(Path::new("/")).is_err());
    assert_eq!(names_left(&disk), set(["", "/f"]));
    sync_dir(&disk, "/");
    assert_eq!(names_left(&disk), set(["/f"]));
}

#[test]
fn a_full_disk_refuses_until_there_is_room() {
    let disk = SimDisk::new(3);
    disk.set_capacity(1000);
    let file = open(&disk, "/f");
    file.reserve(600).unwrap();
    let full = |result: io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::StorageFull);
    };
    let other = open(&disk, "/other");
    full(other.set_len(401));
    full(other.reserve(401));
    full(other.write_at(&[1; 500], 0));
    assert!(other.len().unwrap() <= 400);
    other.set_len(400).unwrap();
    file.write_at(&[1; 600], 0).unwrap();
    let create = disk.open(Path::new("/third"), Access::Create);
    full(create.map(|_| ()));
    full(disk.create_dir_all(Path::new("/folder")));

    // An open file occupies its room even without a name.
    disk.remove_file(Path::new("/other")).unwrap();
    full(file.set_len(601));
    drop(other);
    file.write_at(&[1; 1000], 0).unwrap();
    file.set_len(0).unwrap();
    open(&disk, "/third").set_len(1000).unwrap();
    rename(&disk, "/f", "/third");
    open(&disk, "/fourth").set_len(1000).unwrap();
}

#[test]
fn a_write_to_a_full_disk_may_be_partial() {
    let lengths = (0..SEEDS).map(|seed| {
        let disk = SimDisk::new(seed);
        disk.set_capacity(10);
        let file = open(&disk, "/f");
        file.write_at(&[1; 20], 0).unwrap_err();
        file.len().unwrap()
    });
    assert_eq!(lengths.collect::<BTreeSet<_>>(), (0..=10).collect());
}

#[test]
fn each_injected_fault_has_its_own_error() {
    let disk = disk_with(b"x");
    let file = open(&disk, "/f");
    disk.fail_writes(|path| path.ends_with("f"));
    assert_eq!(file.write_at(b"y", 0).unwrap_err().raw_os_error(), Some(5));
    open(&disk, "/other").write_at(b"y", 0).unwrap();
    disk.fail_writes(|_| false);
    file.write_at(b"y", 0).unwrap();

    disk.set_read_only(true);
    let refused = [
        file.write_at(b"z", 0),
        disk.remove_file(Path::new("/f")),
        disk.open(Path::new("/f"), Access::Write).map(|_| ()),
        disk.open(Path::new("/g"), Access::Create).map(|_| ()),
    ];
    for result in refused {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    }
    let read = disk.open(Path::new("/f"), Access::Read).unwrap();
    assert_eq!(read.len().unwrap(), 1);
    disk.set_read_only(false);
    assert_eq!(read.write_at(b"z", 0).unwrap_err().raw_os_error(), Some(9));
    let huge = file.write_at(b"z", u64::MAX).unwrap_err();
    assert_eq!(huge.kind(), ErrorKind::FileTooLarge);
}

#[test]
fn wrong_paths_fail_with_the_errors_of_a_real_file_system() {
    let disk = disk_with(b"");
    disk.create_dir_all(Path::new("/a/b")).unwrap();
    let kinds = [
        disk.open(Path::new("/none"), Access::Write).map(|_| ()),
        disk.open(Path::new("/none/f"), Access::Create).map(|_| ()),
        disk.open(Path::new("/a"), Access::Read).map(|_| ()),
        disk.open(Path::new("/f/g"), Access::Create).map(|_| ()),
        disk.create_dir_all(Path::new("/f")),
        disk.remove_dir(Path::new("/a")),
        disk.remove_dir(Path::new("/f")),
        disk.remove_file(Path::new("/a")),
        disk.rename(Path::new("/none"), Path::new("/f")),
        disk.rename(Path::new("/f"), Path::new("/a")),
        disk.rename(Path::new("/a"), Path::new("/f")),
        disk.rename(Path::new("/a"), Path::new("/a/b/c")),
        disk.sync_dir(Path::new("/none")),
        disk.list(Path::new("/f")).map(|_| ()),
        disk.list(Path::new("../a")).map(|_| ()),
    ];
    let kinds: Vec<ErrorKind> = kinds.into_iter().map(|r| r.unwrap_err().kind()).collect();
    use ErrorKind::*;
    let expected = [
        NotFound,
        NotFound,
        IsADirectory,
        NotADirectory,
        AlreadyExists,
        DirectoryNotEmpty,
        NotADirectory,
        IsADirectory,
        NotFound,
        IsADirectory,
        NotADirectory,
        InvalidInput,
        NotFound,
        NotADirectory,
        InvalidInput,
    ];
    assert_eq!(kinds, expected);
    let names: Vec<_> = disk.list(Path::new("")).unwrap();
    assert_eq!(names.len(), 2);
    assert!(names[0].is_dir && names[0].name == "a" && !names[1].is_dir);
}

#[test]
fn a_crash_can_hit_every_operation() {
    let run = |crash_at: Option<u64>| {
        let disk = SimDisk::new(5);
        disk.start_trace();
        if let Some(operation) = crash_at {
            disk.crash_at(operation);
        }
        random_operations(&disk, 5, 80);
        disk
    };
    let whole = run(None);
    assert_eq!(whole.trace().len() as u64, whole.operations());
    for operation in 1..=whole.operations() {
        let disk = run(Some(operation));
        assert!(disk.has_crashed());
        assert_eq!(disk.operations(), operation);
        let error = disk.open(Path::new("/0"), Access::Create).err().unwrap();
        assert_eq!(error.to_string(), "simulated crash");
        assert!(disk.list(Path::new("/")).is_err());
        let left = disk.crash(&mut Rng::with_seed(operation));
        assert!(left.list(Path::new("/")).is_ok());
        assert_eq!(left.trace().len() as u64, operation);
    }
}

#[test]
fn a_crash_may_tear_the_write_that_it_hits() {
    let lengths = (0..SEEDS).map(|seed| {
        let disk = SimDisk::new(seed);
        let file = open(&disk, "/f");
        disk.crash_at(1);
        file.write_at(&[1; 4], 0).unwrap_err();
        file.len().unwrap_err();
        disk.kill().files()[0].1
    });
    assert_eq!(lengths.collect::<BTreeSet<_>>(), (0..=4).collect());
}

#[test]
fn a_recorded_run_is_crashed_after_each_operation() {
    let disk = disk_with(b"old");
    disk.start_recording();
    let file = open(&disk, "/f");
    file.write_at(b"new", 0).unwrap();
    file.sync().unwrap();
    let seen = |operations: u64| -> BTreeSet<Vec<u8>> {
        let images = disk.crash_images(50, 1);
        images
            .filter(|image| image.operations == operations)
            .map(|image| image.disk.read_file("/f").unwrap())
            .collect()
    };
    let (old, new) = (b"old".to_vec(), b"new".to_vec());
    assert_eq!(seen(0), [old.clone()].into());
    assert_eq!(seen(1), [old, new.clone()].into());
    assert_eq!(seen(2), [new].into());
}

#[test]
fn a_lock_belongs_to_one_handle_of_one_run() {
    let disk = disk_with(b"");
    let (first, second) = (open(&disk, "/f"), open(&disk, "/f"));
    assert!(first.try_lock().unwrap());
    assert!(first.try_lock().unwrap());
    assert!(!second.try_lock().unwrap());
    let killed = disk.kill();
    assert!(open(&killed, "/f").try_lock().unwrap());
    drop(first);
    assert!(second.try_lock().unwrap());
}

#[test]
fn tests_can_damage_files() {
    let disk = SimDisk::new(0);
    open(&disk, "/f").write_at(&[0, 0, 0], 0).unwrap();
    disk.flip_bit("/f", 15).unwrap();
    assert_eq!(disk.read_file("/f").unwrap(), [0, 128, 0]);
    disk.truncate("/f", 2).unwrap();
    assert_eq!(outcomes(&disk, CRASHES).len(), 1);
    assert!(disk.flip_bit("/f", 16).is_err());
    disk.remove("/f").unwrap();
    assert!(disk.files().is_empty() && outcomes(&disk, CRASHES).len() == 1);
    assert_eq!(disk.operations(), 2);
}

#[test]
fn a_trace_prints_the_number_kind_and_file_of_each_operation() {
    let disk = SimDisk::new(0);
    disk.start_trace();
    open(&disk, "/f").write_at(&[0; 30], 10).unwrap();
    disk.remove_file(Path::new("/g")).unwrap_err();
    let trace = disk.trace();
    assert_eq!(
        trace[1].kind,
        OperationKind::Write {
            offset: 10,
            len: 30
        }
    );
    let lines: Vec<String> = trace.iter().map(ToString::to_string).collect();
    assert_eq!(lines[1], "     2 write /f [10, 40)");
    assert_eq!(lines[2], "     3 remove /g: entity not found");
}

#[test]
fn threads_share_a_disk() {
    let disk = SimDisk::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let file = open(&disk, &format!("/{thread}"));
            scope.spawn(move || {
                for at in 0..100 {
                    file.write_at(&[thread], at).unwrap();
                    file.sync().unwrap();
                }
            });
        }
    });
    assert_eq!(disk.operations(), 4 + 800);
    for thread in 0..4_u8 {
        let bytes = disk.read_file(format!("/{thread}")).unwrap();
        assert_eq!(bytes, [thread; 100]);
    }
}
