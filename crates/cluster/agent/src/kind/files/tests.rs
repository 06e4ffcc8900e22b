//! Settings that the operator may write, devices that kubelet is told, and files that a container
//! gets.

use proptest::prelude::*;

use super::*;

#[test]
fn the_operator_s_wish_is_checked() {
    let wish = FilesWish::parse("rdma=/dev/infiniband,times=4").unwrap();
    assert_eq!(
        (wish.resource.as_str(), wish.folder, wish.times.get()),
        ("sublet.dev/rdma", PathBuf::from("/dev/infiniband"), 4)
    );
    let wish = FilesWish::parse("example.com/nic=/dev/a=b").unwrap();
    assert_eq!(
        (wish.resource.as_str(), wish.times.get()),
        ("example.com/nic", 1)
    );
    let refused = |text: &str| FilesWish::parse(text).unwrap_err();
    assert!(refused("rdma").starts_with("the form is files:NAME=DIR"));
    assert!(refused("rdma=dev").starts_with("`dev` is no absolute path"));
    assert!(refused("rdma=/dev,times=0").starts_with("times=0 is no number"));
    assert!(refused("a/b/c=/dev").starts_with("`a/b/c` cannot be a resource"));
    assert!(refused("-a=/dev").starts_with("`-a` cannot be a resource"));
    assert_eq!(refused("gpu-slot=/dev"), "`sublet.dev/gpu-slot` means GPUs");
    assert_eq!(
        refused("nvidia.com/gpu=/dev"),
        "`nvidia.com/gpu` means GPUs"
    );
    assert!(refused("node.kubernetes.io/a=/dev").contains("Kubernetes' own"));
}

/// The devices that kubelet is told of: `a b!` for a healthy and an unhealthy one.
fn offered(wish: &str, looks: &[&str]) -> String {
    let wish = FilesWish::parse(wish).unwrap();
    let files = Files::of(wish);
    for look in looks {
        files.see(match *look {
            "EMFILE" => Err(io::Error::from_raw_os_error(24)),
            "EIO" => Err(io::Error::from_raw_os_error(5)),
            names => Ok(found(names)),
        });
    }
    offer_of(&files)
}

fn found(names: &str) -> Folder {
    let found = names.split_whitespace().map(|name| {
        let seen = Seen {
            is_there: true,
            numa: None,
        };
        (name.to_owned(), seen)
    });
    found.collect()
}

fn offer_of(files: &Files) -> String {
    let pools = files.pools.borrow();
    let Some(pool) = pools.values().next() else {
        return String::new();
    };
    let words = pool
        .devices
        .iter()
        .map(|device| match device.health.as_str() {
            "Healthy" => device.id,
            _ => format!("{}!", device.id),
        });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_file_that_goes_is_an_unhealthy_device_until_it_comes_back() {
    let one = "rdma=/dev/infiniband";
    assert_eq!(offered(one, &[""]), "");
    assert_eq!(offered(one, &["a b"]), "a b");
    assert_eq!(offered(one, &["a b", "b"]), "a! b");
    assert_eq!(offered(one, &["a b", "", "a c"]), "a b! c");
    let shared = "rdma=/dev/infiniband,times=2";
    assert_eq!(offered(shared, &["a b", "b"]), "a-_-0! a-_-1! b-_-0 b-_-1");
}

#[test]
fn a_look_that_fails_says_nothing_of_any_file() {
    let one = "rdma=/dev/infiniband";
    assert_eq!(offered(one, &["EMFILE"]), "");
    assert_eq!(offered(one, &["a b", "EMFILE"]), "a b");
    assert_eq!(offered(one, &["a b", "b", "EIO", "EMFILE"]), "a! b");
    assert_eq!(offered(one, &["a b", "EIO", ""]), "a! b!");
}

#[test]
fn the_files_of_a_folder_that_is_gone_are_gone() {
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("infiniband");
    let files = Files::of(FilesWish::parse(&format!("rdma={}", folder.display())).unwrap());
    files.see(Ok(found("a")));
    assert_eq!(offer_of(&files), "a");
    files.see(look(&folder));
    assert_eq!(offer_of(&files), "a!");
    fs::write(&folder, "no folder").unwrap();
    files.see(Ok(found("a")));
    files.see(look(&folder));
    assert_eq!(offer_of(&files), "a!");
}

#[test]
fn only_device_files_are_found_and_handed_over() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("readme"), "no device").unwrap();
    fs::create_dir(folder.path().join("by-path")).unwrap();
    std::os::unix::fs::symlink("/dev/null", folder.path().join("link")).unwrap();
    assert_eq!(look(folder.path()).unwrap(), Folder::new());
    // Every machine has some.
    let found = look(Path::new("/dev")).unwrap();
    assert!(found["null"].is_there && !found.contains_key("shm"));

    let files = Files::of(FilesWish::parse("dev=/dev").unwrap());
    files.learn(|known| add(&mut known.folder, found));
    let resource = "sublet.dev/dev";
    let ask = |id: &str| files.specs(resource, &vec![id.to_owned()]);
    let spec = &ask("null").unwrap()["/dev/null"];
    assert_eq!(
        (
            spec.host_path.as_str(),
            spec.container_path.as_str(),
            spec.permissions.as_str()
        ),
        ("/dev/null", "/dev/null", "rw")
    );
    let refused = ask("gone").unwrap_err();
    assert_eq!(
        refused.message(),
        "sublet.dev/dev: /dev/gone is no device file any more"
    );
    assert!(ask("../dev/null").is_err());

    let health = |name: &str| {
        let pools = files.pools.borrow();
        let mut devices = pools[resource].devices.iter();
        devices.find(|device| device.id == name).unwrap().health
    };
    assert!(files.owns("/dev/null") && !files.owns("/dev/gone"));
    files.show(&[("/dev/null".to_owned(), "stuck".to_owned())].into());
    assert_eq!([health("null"), health("zero")], ["Unhealthy", "Healthy"]);
    files.show(&Ailing::new());
    assert_eq!(health("null"), "Healthy");
}

#[test]
fn two_devices_are_two_files_where_there_are_two() {
    let check = |available: &str, must: &str, count| {
        let ids = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let asked = ContainerPreferredAllocationRequest {
            available_device_i_ds: ids(available),
            must_include_device_i_ds: ids(must),
            allocation_size: count,
        };
        apart(&asked).join(" ")
    };
    assert_eq!(check("a-_-0 a-_-1 b-_-0", "", 2), "a-_-1 b-_-0");
    assert_eq!(check("a-_-0 a-_-1", "", 2), "a-_-1 a-_-0");
    assert_eq!(check("a-_-0 b-_-0 b-_-1", "a-_-0", 2), "a-_-0 b-_-1");
    assert_eq!(check("a-_-0", "", 2), "a-_-0");
}

proptest! {
    /// Every setting that is accepted gives a name that kubelet and the API server take.
    #[test]
    fn whatever_is_written_names_one_folder_or_is_refused(text in ".{0,80}", name in "[a-zA-Z./_-]{1,70}") {
        for text in [text, format!("{name}=/dev/x,times=3")] {
            if let Ok(wish) = FilesWish::parse(&text) {
                prop_assert!(wish.folder.is_absolute());
                prop_assert!(wish.resource.len() <= RESOURCE_MAX);
                let (domain, last) = wish.resource.split_once('/').unwrap();
                for part in domain.split('.').chain([last]) {
                    let end = part.trim_matches(|c: char| c.is_ascii_alphanumeric());
                    prop_assert!(!part.is_empty() && (end.is_empty() || end.len() + 2 <= part.len()));
                }
            }
        }
    }
}
