//! The arbiter's measurements, for people who are not on the node: the questions of `admin.sock`,
//! and none that changes anything, on the loopback of the agent's pod. A caller reaches it by a
//! port-forward, and the API server has checked the right to do so.

use std::net::SocketAddr;
use std::time::Duration;

use sublet_arbiter::admin::{Reply, Request};
use sublet_listener::{Door, Limits, WatchedStream};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tracing::debug;

use crate::isolate::supervisor::{IsolationState, IsolationWatch};

/// Limits on the callers: questions are short, and a few people look at a node at a time.
pub(crate) const CALLS: Limits = Limits {
    name: "top",
    connections: 16,
    idle: Duration::from_secs(10),
    ..Limits::PAGES
};

/// The longest line that is read. Questions are short.
const QUESTION_MAX: u64 = 4096;

/// Reads the flag.
///
/// # Errors
/// It is an address that others can reach.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| format!("`{text}` is no address such as 127.0.0.1:39994"))?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "{address} can be reached without a login; use 127.0.0.1"
        ));
    }
    Ok(address)
}

/// Answers for as long as the process lives.
pub(crate) async fn serve(door: Door, isolation: IsolationWatch) {
    door.converse(|caller| {
        let isolation = isolation.clone();
        async move {
            if let Err(error) = converse(caller, isolation).await {
                debug!(%error, "a question was not answered");
            }
        }
    })
    .await;
}

/// Answers one question after the other.
async fn converse(
    caller: WatchedStream<TcpStream>,
    isolation: IsolationWatch,
) -> std::io::Result<()> {
    let mut caller = BufReader::new(caller);
    loop {
        let mut line = String::new();
        (&mut caller)
            .take(QUESTION_MAX)
            .read_line(&mut line)
            .await?;
        if line.is_empty() {
            return Ok(());
        }
        let isolation = isolation.borrow().clone();
        let reply = spawn_blocking(move || answer(&line, &isolation)).await?;
        let mut text = serde_json::to_vec(&reply)?;
        text.push(b'\n');
        caller.write_all(&text).await?;
        if matches!(reply, Reply::Error { .. }) {
            return Ok(());
        }
        caller.get_ref().is_answered();
    }
}

fn answer(line: &str, isolation: &IsolationState) -> Reply {
    let error = |reason: String| Reply::Error { reason };
    let request: Request = match serde_json::from_str(line) {
        Ok(request) => request,
        Err(why) => return error(format!("this is no request: {why}")),
    };
    let isolation = match isolation {
        IsolationState::On(isolation) => isolation,
        IsolationState::Pending(why) => {
            return error(format!(
                "nothing holds containers to their parts now: {why}"
            ));
        }
        IsolationState::Unsupported(_) | IsolationState::Disabled => {
            return error("the agent runs without isolation, so it measures nothing".to_owned());
        }
    };
    let answered = isolation.read(request);
    answered.unwrap_or_else(|why| error(why.to_string()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use sublet_listener::{Callers, listen};
    use sublet_telemetry::metrics::Refused;
    use tokio::sync::watch;

    use super::*;

    #[test]
    fn only_loopback_will_do() {
        assert_eq!(
            address("127.0.0.1:39994").unwrap().to_string(),
            "127.0.0.1:39994"
        );
        assert!(address("[::1]:39994").is_ok());
        let refused = |text| address(text).unwrap_err();
        assert_eq!(
            refused("0.0.0.0:39994"),
            "0.0.0.0:39994 can be reached without a login; use 127.0.0.1"
        );
        assert!(refused("39994").contains("is no address such as"));
    }

    #[tokio::test]
    async fn a_line_is_answered_whatever_it_is() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let (_supervisor, isolation) = watch::channel(IsolationState::Disabled);
        let door = Door::new(listener, CALLS, &Refused::default());
        let door = door.for_callers(Callers::root_and_own(&[])).await;
        tokio::spawn(serve(door.unwrap(), isolation));
        // More than are served at a time: each is given up after its answer.
        for (line, expected) in [
            ("garbage\n".to_owned(), "this is no request"),
            ("x".repeat(10_000), "this is no request"),
            ("{\"kind\":\"list\"}\n".to_owned(), "without isolation"),
            ("\n".to_owned(), "this is no request"),
            ("{\"kind\":\"shutdown\"}\n".to_owned(), "without isolation"),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(line.as_bytes()).await.unwrap();
            let mut said = String::new();
            BufReader::new(&mut stream)
                .read_line(&mut said)
                .await
                .unwrap();
            let reply: Reply = serde_json::from_str(&said).unwrap();
            let Reply::Error { reason } = reply else {
                panic!("{said}");
            };
            assert!(reason.contains(expected), "{reason}");
        }
    }

    #[tokio::test]
    async fn another_user_of_the_node_learns_nothing() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: only root can be somebody else");
        }
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let door = Door::new(listener, CALLS, &Refused::default());
        let door = door.for_callers(Callers::root_and_own(&[])).await;
        let (_supervisor, isolation) = watch::channel(IsolationState::Disabled);
        tokio::spawn(serve(door.unwrap(), isolation));
        let ask = async |user: u32| {
            let script = format!(
                "exec 3<>/dev/tcp/127.0.0.1/{port}; echo '{{\"kind\":\"list\"}}' >&3; head -1 <&3"
            );
            let mut other = Command::new("bash");
            other.args(["-c", &script]).uid(user).gid(user);
            let said = spawn_blocking(move || other.output()).await.unwrap();
            String::from_utf8(said.unwrap().stdout).unwrap()
        };
        assert_eq!(ask(65_533).await, "");
        assert!(ask(0).await.contains("without isolation"));
    }
}
