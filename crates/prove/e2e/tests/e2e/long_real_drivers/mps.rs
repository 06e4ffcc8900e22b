//! MPS with NVIDIA's own control program, of each driver: the tests of `one_machine::mps` that do
//! not need the stand-in's record. And clients of several users: NVIDIA's daemon and its clients'
//! library are real there, the server is a stand-in, because the real one ends without a card.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sublet_e2e::MpsControl;
use sublet_e2e::interposer::CUDA;
use sublet_e2e::one_machine::{Machine, Running, mib, until};
use sublet_e2e::real_driver::{DeviceFile, RealDriver};

use crate::one_machine::mps::{
    World, death_and_restart, killed_arbiter, limits_and_folders, words_of_a_client,
};
use crate::tenants::may_mount;

/// A user without rights.
const ANNE: u32 = 61_001;

/// A server that asks the daemon something, by the folder that it was given and as the user that it
/// was made, writes down who it is, and serves nobody.
const SERVER: &str = "#!/bin/sh
echo get_server_list | CONTROL > /dev/null && id -u >> RECORD
sleep 600
exit
";

fn with_each(test: fn(&MpsControl) -> Result<()>) -> Result<()> {
    let device = DeviceFile::as_it_is();
    for control in MpsControl::all_of_nvidia() {
        test(&control).with_context(|| format!("{control:?}"))?;
    }
    device.is_untouched()
}

#[test]
fn programs_are_told_their_limits_and_the_daemon_reports_none_of_its_own() -> Result<()> {
    with_each(limits_and_folders)
}

#[test]
fn a_daemon_that_dies_is_told_and_comes_back() -> Result<()> {
    with_each(death_and_restart)
}

#[test]
fn root_in_a_container_cannot_tell_the_daemon_of_mps_to_end() -> Result<()> {
    with_each(words_of_a_client)
}

#[test]
fn an_arbiter_that_is_killed_leaves_no_daemon() -> Result<()> {
    with_each(killed_arbiter)
}

/// A place where a driver's daemon serves, and a client of it that waits for a server.
struct Users {
    world: World,
    client: Running,
}

impl Users {
    /// A daemon, and a client of a container of Anne's: she has the folder of the sockets mounted.
    /// `options`: more of the daemon's.
    fn new(machine: Machine, driver: &RealDriver, options: &str) -> Result<Users> {
        let folder = machine.path().join("server");
        fs::create_dir(&folder)?;
        for file in [driver.mps_control(), driver.library(&CUDA)] {
            fs::copy(&file, folder.join(file.file_name().context("a folder")?))?;
        }
        // Any user may ask, and only the daemon is to be told what it is.
        let script = MpsControl::Nvidias(driver.clone()).script(Path::new(""), Path::new(""));
        let path = format!("export PATH={}:$PATH\n", folder.display());
        let more = format!("[ $# = 0 ] || set -- \"$@\" {options}\n");
        let script = script.replacen("\nexec", &format!("\n{path}{more}exec"), 1);
        let record = folder.join("record");
        fs::write(&record, "")?;
        fs::set_permissions(&record, fs::Permissions::from_mode(0o666))?;
        let control = folder.join("nvidia-cuda-mps-control");
        let server = SERVER.replace("CONTROL", &control.display().to_string());
        let server = server.replace("RECORD", &record.display().to_string());
        machine.script("server/nvidia-cuda-mps-server", &server)?;
        let world = World::with(machine, &script)?;
        let machine = &world.machine;
        // Everybody may use a card's device file.
        let state = machine.state()?;
        fs::set_permissions(&state, fs::Permissions::from_mode(0o777))?;
        fs::set_permissions(state.join("machine"), fs::Permissions::from_mode(0o666))?;

        let library = folder.join(CUDA.soname);
        let client = machine.direct(&format!("info --reach {}", library.display()));
        let pipe = machine.folder()?.join("mps/pipe");
        let client = Running::start(&mut in_container(&client, &pipe))?;
        until("a server that has reached the daemon", || {
            let served = fs::read_to_string(&record)?;
            ensure!(!served.is_empty(), "none yet: {}", client.errors());
            Ok(())
        })?;
        Ok(Users { world, client })
    }

    /// User of the server, as the server says.
    fn served(&self) -> Result<u32> {
        let text = fs::read_to_string(self.world.machine.path().join("server/record"))?;
        Ok(text.lines().next().context("no server")?.parse()?)
    }

    /// A job of that user's.
    fn job(&self, name: &str, user: u32) -> Result<Running> {
        let mut command = self
            .world
            .machine
            .run(&format!("--memory 1GiB --name {name}"));
        let [uid, gid] = ["--reuid", "--regid"].map(|flag| format!("{flag}={user}"));
        command.args(["setpriv", &uid, &gid, "--clear-groups"]);
        command.arg(self.world.machine.built("sublet-workload"));
        command.args(["alloc", "--size", "64MiB", "--hold", "stdin"]);
        let mut job = Running::start(&mut command)?;
        let report = job.report()?;
        ensure!(report["bytes"] == mib(64), "{name}: {report}");
        Ok(job)
    }

    fn end(self) -> Result<()> {
        drop(self.client);
        self.world.end()
    }
}

/// The command as Anne's, with MPS's folder where a container has it, and no other way to it.
fn in_container(command: &Command, pipe: &Path) -> Command {
    let script = r#"mount --bind "$0" /mnt && exec "$@""#;
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "sh", "-c", script]).arg(pipe);
    let [uid, gid] = ["--reuid", "--regid"].map(|flag| format!("{flag}={ANNE}"));
    inside.args(["setpriv", &uid, &gid, "--clear-groups"]);
    inside.arg(command.get_program()).args(command.get_args());
    let variables = command.get_envs();
    inside.envs(variables.filter_map(|(name, value)| Some((name, value?))));
    inside.env("CUDA_MPS_PIPE_DIRECTORY", "/mnt");
    inside
}

/// A machine of several users for each driver; none if this user cannot make one.
fn with_users(test: fn(Machine, &RealDriver) -> Result<()>) -> Result<()> {
    let device = DeviceFile::as_it_is();
    for driver in RealDriver::all() {
        if !may_mount() {
            println!("skipped: this user may not mount (it takes root)");
            return Ok(());
        }
        let Some(machine) = Machine::of_everybody("2x16GiB,context=0MiB")? else {
            return Ok(());
        };
        test(machine, &driver).with_context(|| driver.version())?;
    }
    device.is_untouched()
}

/// A container's user need not be root's, and users of the host reach no socket. The daemon serves
/// one user; programs of others wait, and are shown with the reason.
#[test]
fn a_container_of_any_user_gets_its_server_and_another_user_is_told_to_wait() -> Result<()> {
    with_users(|machine, driver| {
        let users = Users::new(machine, driver, "")?;
        assert_eq!(users.served()?, ANNE);
        let machine = &users.world.machine;
        for group in [ANNE, 0] {
            let place = machine.folder()?.join("mps/own/control_privileged");
            let mut look = machine.command("test");
            look.arg("-e").arg(place).uid(ANNE).gid(group);
            ensure!(
                !look.status()?.success(),
                "group {group} sees the operator's socket"
            );
        }
        let sockets = machine.folder()?.join("mps/pipe/control");
        let mut look = machine.command("test");
        look.arg("-e").arg(sockets).uid(ANNE).gid(ANNE);
        ensure!(
            !look.status()?.success(),
            "a user of the host sees the clients' socket"
        );

        let (hers, mine) = (users.job("hers", ANNE)?, users.job("mine", 0)?);
        let mine_waits = until("a wait that is told", || {
            let row = machine.tenant("mine")?;
            ensure!(row["mps"] == "waiting", "{row}");
            Ok(row)
        })?;
        let why = mine_waits["reason"].as_str().context("no reason")?;
        ensure!(why.contains(&format!("of user {ANNE} have ended")), "{why}");
        assert_eq!(standing(machine, "hers")?, "serving");
        for job in [hers, mine] {
            assert_eq!(job.end()?.code, Some(0));
        }
        users.end()
    })
}

/// In NVIDIA's multi-user mode one server, root's, serves all users.
#[test]
fn nobody_waits_for_another_user_in_nvidia_s_multi_user_mode() -> Result<()> {
    with_users(|machine, driver| {
        // Those of before end at once and say how they are used.
        if !driver.version().starts_with("555.") {
            return Ok(());
        }
        let users = Users::new(machine, driver, "-multiuser-server")?;
        assert_eq!(users.served()?, 0);
        let machine = &users.world.machine;
        let (hers, mine) = (users.job("hers", ANNE)?, users.job("mine", 0)?);
        for name in ["hers", "mine"] {
            assert_eq!(standing(machine, name)?, "serving");
        }
        for job in [hers, mine] {
            assert_eq!(job.end()?.code, Some(0));
        }
        users.end()
    })
}

fn standing(machine: &Machine, name: &str) -> Result<Value> {
    Ok(machine.tenant(name)?["mps"].clone())
}
