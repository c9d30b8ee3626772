//! The memory of the machine, or of the group of processes that this one belongs to.

use std::fs;
use std::path::Path;

/// Returns the memory that this process may use, in bytes: that of the machine, or less, if a control group bounds it.
pub fn memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    let bytes = machine.totalram.saturating_mul(machine.mem_unit.into());
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limits(&groups, Path::new("/sys/fs/cgroup"));
    limits.fold(bytes, u64::min)
}

/// Returns the bounds of the memory of control groups and of all groups around them, in both versions of their files.
fn limits(groups: &str, root: &Path) -> impl Iterator<Item = u64> {
    let files = groups.lines().filter_map(move |line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        match controllers {
            "" => Some((root.to_owned(), path, "memory.max")),
            "memory" => Some((root.join("memory"), path, "memory.limit_in_bytes")),
            _ => None,
        }
    });
    files.flat_map(|(root, path, file)| {
        let groups = Path::new(path).ancestors();
        let limit = move |group: &Path| {
            let text = fs::read_to_string(root.join(group).join(file)).ok()?;
            // "max" is no bound.
            text.trim().parse().ok()
        };
        groups.filter_map(limit).collect::<Vec<u64>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_bound_of_a_group_or_one_around_it_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/memory.max", "4096\n");
        write("a/b/memory.max", "max\n");
        write("memory/c/memory.limit_in_bytes", "8192\n");
        let limits = |groups: &str| limits(groups, root.path()).min();
        assert_eq!(limits("0::/a/b\n"), Some(4096));
        assert_eq!(limits("5:cpu:/x\n4:memory:/c\n0::/\n"), Some(8192));
        assert_eq!(limits("0::/\n"), None);
        assert_eq!(limits("nothing\n0::/none\n"), None);
    }

    #[test]
    fn a_process_has_memory() {
        assert!(memory_bytes() > 1 << 20);
    }
}
