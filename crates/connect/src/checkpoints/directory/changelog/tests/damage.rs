//! Files with other bytes than were written, and changes that the program does not read.

use super::*;

#[test]
fn the_error_of_a_file_names_an_older_checkpoint_if_there_is_one() {
    let disk = SimDisk::new(1);
    let (run, prepared) = stored(&disk);
    disk.remove(
        run.dir.files.state_path(
            &run.ranks[0]
                .changelog
                .file(&run.ranks[0].changelog.sealed[0]),
        ),
    )
    .unwrap();
    let error = |run: &Run| {
        let begun = Rank::begin(&run.dir, &start(0, 1, Some(&prepared)), 4);
        begun.map(drop).expect_err("a file is missing").to_string()
    };
    assert!(!error(&run).contains("older"), "{}", error(&run));
    run.dir.put(key(3, 0), b"").unwrap();
    let expected = "or remove the files checkpoint.4.* to go on from an older checkpoint";
    assert!(error(&run).contains(expected), "{}", error(&run));
}

/// A base and a file of changes.
fn stored(disk: &SimDisk) -> (Run, Vec<u8>) {
    let mut run = Run::begin(disk, 1, 1).unwrap();
    let mut prepared = Vec::new();
    for number in 1..=4 {
        let rank = &mut run.ranks[0];
        let count = [60, 60, 0, 5][number as usize - 1];
        let changes = rank.change(count, 40, &mut run.rng);
        prepared = rank.prepare(&changes, number).unwrap();
    }
    let chain = run.ranks[0].changelog.chain();
    assert!(chain.len() > 1 && chain[0].is_base);
    (run, prepared)
}

#[test]
fn a_file_with_any_other_byte_is_refused_and_named() {
    let disk = SimDisk::new(1);
    let (run, prepared) = stored(&disk);
    let changelog = &run.ranks[0].changelog;
    for link in changelog.chain() {
        let path = run.dir.files.state_path(&changelog.file(&link));
        let whole = disk.read_file(&path).unwrap();
        let named = link.content.bytes as usize;
        let begin = |content: Option<&[u8]>| {
            match content {
                Some(content) => disk.write_file(&path, content).unwrap(),
                None => disk.remove(&path).unwrap(),
            }
            Rank::begin(&run.dir, &start(0, 1, Some(&prepared)), 4).map(|rank| rank.table)
        };
        for index in 0..named {
            let mut damaged = whole.clone();
            damaged[index] ^= 1 << (index % 8);
            let error = begin(Some(&damaged)).expect_err("damage").to_string();
            let is_named = error.starts_with(&format!("{}: ", path.display()));
            assert!(is_named && error.contains("bring back a copy"), "{error}");
        }
        for len in [0, 1, named / 2, named - 1] {
            let error = begin(Some(&whole[..len])).expect_err("cut").to_string();
            assert!(
                error.contains(&format!("{named} bytes and only {len}")),
                "{error}"
            );
        }
        let error = begin(None).expect_err("it is missing").to_string();
        assert!(
            error.starts_with(&format!("cannot open {}", path.display())),
            "{error}"
        );
        // Bytes behind those that the checkpoint names are of no checkpoint.
        let longer = [&whole[..named], &[7; 100]].concat();
        assert!(begin(Some(&longer)).unwrap() == run.ranks[0].table);
    }
}

#[test]
fn a_change_of_an_older_type_may_stay_if_a_later_one_replaces_it() {
    let disk = SimDisk::new(1);
    let mut run = Run::begin(&disk, 1, 1).unwrap();
    let change = |value: &[u8]| Change {
        key: b"ada".to_vec(),
        value: Some(value.to_vec()),
        checkpoint: 1,
        expires: None,
    };
    let restore = |run: &Run, prepared: &[u8]| {
        let mut changelog = DirChangelog::new(run.dir.files.clone(), "users", 9);
        changelog.recover(&start(0, 1, Some(prepared))).unwrap();
        let each = &mut |_: &[u8], value: Option<&[u8]>| match value {
            Some(b"old") => Err("it is old".into()),
            _ => Ok(()),
        };
        changelog.restore(Some(1), each)
    };
    let old = run.ranks[0].prepare(&[change(b"old")], 1).unwrap();
    let error = restore(&run, &old).unwrap_err().to_string();
    assert!(
        error.contains("the change of key \"ada\" cannot be read: it is old"),
        "{error}"
    );
    let new = run.ranks[0].prepare(&[change(b"new")], 2).unwrap();
    restore(&run, &new).unwrap();
}
