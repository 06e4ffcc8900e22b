//! A second process that owns memory and lends it through CUDA's IPC handles.
//!
//! A process cannot open its own handles, so the program starts itself again and talks to that
//! process over pipes, one line for a request and one for the answer. The lender ends when its
//! standard input ends, and so also when its borrower is killed.

use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use sublet_driver_api::cuda::{CUdeviceptr, CUipcMemHandle_v1};

use crate::arguments::Common;
use crate::driver::{Context, Driver};
use crate::report::Failure;

/// The borrower's end.
pub(crate) struct Lender {
    child: Child,
    ask: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Lender {
    /// Starts the other process; it is ready to lend when this returns.
    pub(crate) fn start(common: &Common) -> Result<Self, Failure> {
        let program = env::current_exe().map_err(Failure::system("finding this program"))?;
        let mut child = Command::new(program)
            .arg("lend")
            .args(common.to_arguments())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(Failure::system("starting the lender"))?;
        let (Some(ask), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::Wrong("the lender has no pipes".to_owned()));
        };
        let mut lender = Self {
            child,
            ask: Some(ask),
            answers: BufReader::new(answers),
        };
        lender.answer()?;
        Ok(lender)
    }

    /// Borrows so many bytes; returns the lender's number for them, and the handle.
    pub(crate) fn lend(&mut self, size: usize) -> Result<(usize, CUipcMemHandle_v1), Failure> {
        let answer = self.ask(&format!("lend {size}"))?;
        answer
            .split_once(' ')
            .and_then(|(number, handle)| Some((number.parse().ok()?, from_hex(handle)?)))
            .ok_or_else(|| Failure::Wrong(format!("the lender answered `{answer}`")))
    }

    /// Tells the lender to free the memory that it lent under this number.
    pub(crate) fn take_back(&mut self, number: usize) -> Result<(), Failure> {
        self.ask(&format!("free {number}")).map(|_| ())
    }

    fn ask(&mut self, line: &str) -> Result<String, Failure> {
        if let Some(ask) = &mut self.ask {
            writeln!(ask, "{line}").map_err(Failure::system("asking the lender"))?;
        }
        self.answer()
    }

    fn answer(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .map_err(Failure::system("hearing the lender"))?;
        parse_answer(line.trim_end())
    }
}

impl Drop for Lender {
    fn drop(&mut self) {
        self.ask = None;
        let _ended_by_its_stdin = self.child.wait();
    }
}

/// The lender's end: serves until standard input ends.
pub(crate) fn serve(common: &Common) -> Result<(), Failure> {
    let served = Driver::load(common).and_then(|driver| {
        driver.init()?;
        let context = driver.context(common.device)?;
        say(&Ok("ready".to_owned()))?;
        serve_lines(&context)
    });
    if let Err(failure) = &served {
        say(&Err(failure.clone()))?;
    }
    served
}

fn serve_lines(context: &Context<'_>) -> Result<(), Failure> {
    let mut lent: Vec<CUdeviceptr> = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line.map_err(Failure::system("hearing the borrower"))?;
        let answer = match line.split_once(' ').map(|(verb, n)| (verb, n.parse())) {
            Some(("lend", Ok(size))) => lend(context, &mut lent, size),
            Some(("free", Ok(number))) => free(context, &lent, number),
            _ => Err(Failure::Wrong(format!("`{line}` is not a request"))),
        };
        say(&answer)?;
    }
    Ok(())
}

fn lend(
    context: &Context<'_>,
    lent: &mut Vec<CUdeviceptr>,
    size: usize,
) -> Result<String, Failure> {
    let mut address = 0;
    let mut handle = CUipcMemHandle_v1::default();
    // SAFETY: the pointers are to live values, and the address is of cuMemAlloc.
    unsafe {
        context.raw().cuMemAlloc_v2(&raw mut address, size)?;
        context.raw().cuIpcGetMemHandle(&raw mut handle, address)?;
    }
    lent.push(address);
    Ok(format!("{} {}", lent.len() - 1, to_hex(handle)))
}

fn free(context: &Context<'_>, lent: &[CUdeviceptr], number: usize) -> Result<String, Failure> {
    let Some(address) = lent.get(number) else {
        return Err(Failure::Wrong(format!("number {number} was never lent")));
    };
    // SAFETY: the address is of cuMemAlloc; the driver refuses a second free of it.
    unsafe { context.raw().cuMemFree_v2(*address)? };
    Ok("freed".to_owned())
}

fn say(answer: &Result<String, Failure>) -> Result<(), Failure> {
    let line = match answer {
        Ok(text) => format!("yes {text}"),
        Err(Failure::Driver { call, code, name }) => format!("no {code} {name} {call}"),
        Err(failure) => format!("failed {failure}"),
    };
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(Failure::system("answering the borrower"))
}

/// Turns the lender's line back into a text or a failure.
fn parse_answer(line: &str) -> Result<String, Failure> {
    if let Some(text) = line.strip_prefix("yes ") {
        return Ok(text.to_owned());
    }
    let refusal = line.strip_prefix("no ").and_then(|rest| {
        let mut words = rest.splitn(3, ' ');
        let code = words.next()?.parse().ok()?;
        let name = words.next()?.to_owned();
        // A call's name must live for ever, and a lender makes only these calls.
        let call = [
            "cuInit",
            "cuMemAlloc_v2",
            "cuIpcGetMemHandle",
            "cuMemFree_v2",
        ];
        let made = words.next()?;
        let call = call.into_iter().find(|call| *call == made);
        let call = call.unwrap_or("the lender's driver");
        Some(Failure::Driver { call, code, name })
    });
    Err(refusal.unwrap_or_else(|| Failure::Wrong(format!("the lender said `{line}`"))))
}

fn to_hex(handle: CUipcMemHandle_v1) -> String {
    let bytes = handle.reserved.iter();
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<CUipcMemHandle_v1> {
    let mut bytes = [0; 64];
    if text.len() != 2 * bytes.len() || !text.is_ascii() {
        return None;
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(CUipcMemHandle_v1 { reserved: bytes })
}

#[cfg(test)]
mod tests {
    use super::{CUipcMemHandle_v1, from_hex, parse_answer, to_hex};
    use crate::report::Failure;

    #[test]
    fn handles_survive_the_pipe() {
        let mut handle = CUipcMemHandle_v1 { reserved: [0; 64] };
        for (index, byte) in handle.reserved.iter_mut().enumerate() {
            *byte = u8::try_from(index * 4).expect("fits");
        }
        let again = from_hex(&to_hex(handle)).expect("what we wrote");
        assert_eq!(again.reserved, handle.reserved);
        assert!(from_hex("00").is_none());
        assert!(from_hex(&"zz".repeat(64)).is_none());
        assert!(from_hex(&"é".repeat(64)).is_none());
    }

    #[test]
    fn answers() {
        assert_eq!(parse_answer("yes 0 ab"), Ok("0 ab".to_owned()));
        let refused = parse_answer("no 2 CUDA_ERROR_OUT_OF_MEMORY cuMemAlloc_v2");
        assert!(matches!(
            refused,
            Err(Failure::Driver { call: "cuMemAlloc_v2", code: 2, name }) if name == "CUDA_ERROR_OUT_OF_MEMORY"
        ));
        for line in ["", "no", "no x y z", "failed dlopen: gone"] {
            assert!(
                matches!(parse_answer(line), Err(Failure::Wrong(_))),
                "{line:?}"
            );
        }
    }
}
