//! `/proc/PID/stat`, in which a process chooses its own name.

use sublet_arbiter::Stat;

use crate::Target;

pub(super) const TARGET: Target = Target {
    name: "proc_stat",
    run,
};

/// For any name of a process, the fields after the name are read as for another name.
fn run(bytes: &[u8]) {
    let read = Stat::parse(bytes);
    let Some(end) = bytes.iter().rposition(|&byte| byte == b')') else {
        assert_eq!(read, None);
        return;
    };
    let plain = [&b"1 (a"[..], &bytes[end..]].concat();
    assert_eq!(Stat::parse(&plain), read);
}
